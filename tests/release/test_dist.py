"""Files of a release other than the wheels."""

import re
from typing import Any

import pytest
from release.dist import BILLS, with_licences
from release.distributions import ROOT

_LOCKED = re.compile(r"^([A-Za-z0-9._-]+)(?:\\[.*\\])?==([^ \\\\;]+)", re.MULTILINE)


@pytest.mark.parametrize("lock", BILLS.values())
def test_a_bill_of_materials_names_the_licence_of_each_distribution(lock: str) -> None:
    """Law: it names the licences of our distributions and of all those in an image with this Python."""
    locked = _LOCKED.findall((ROOT / "requirements" / lock).read_text())
    given = [{"name": name, "version": version} for name, version in locked]

    bill = with_licences({"metadata": {"component": {"name": "x"}}, "components": given})

    assert bill["metadata"]["component"]["licenses"] == [{"expression": "Apache-2.0"}]
    told: dict[str, list[dict[str, Any]]] = {
        each["name"]: each["licenses"] for each in bill["components"] if "licenses" in each
    }
    assert told.keys() == {name for name, _ in locked}
    assert told["aiohttp"] == [{"expression": "Apache-2.0 AND MIT"}]
    assert told["lz4"] == [{"license": {"name": "BSD License"}}]
