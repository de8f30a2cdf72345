"""A local cluster of stand-in brokers and real name servers, on its own ports."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from orderlymq_operator.local.directory import DataDirectory
from orderlymq_operator.local.session import stop
from tests.ports import free_row

_STUBS = Path(__file__).parent.parent / "stubs"
_SPAN = 60  # Ports that one test cluster uses, from its base on.


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[DataDirectory]:
    """A data directory; processes that still run on it at the end are ended."""
    found = DataDirectory(tmp_path / "data")
    yield found
    stop(found)


@pytest.fixture
def stub_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let child processes find the stand-in under the broker's name."""
    monkeypatch.setenv("PYTHONPATH", str(_STUBS))


@pytest.fixture
def ports() -> int:
    """The first of enough free ports for one test cluster."""
    return free_row(_SPAN)
