"""The file of outside addresses: it is read again when it changes, and refused as a whole if any part is wrong."""

import os
from pathlib import Path

import pytest

from orderlymq_nameserver.addressfile import FILE_SIZE_MAX, AddressFile, read_table
from orderlymq_nameserver.outside import OutsideAddresses
from orderlymq_runtime.settingsfile import SettingsError

GOOD = '{"outside": {"g-0": "203.0.113.1:31001"}}'


def replace_file(path: Path, text: str) -> None:
    """Replace the file by another one, as a kubelet does."""
    fresh = path.with_suffix(".fresh")
    fresh.write_text(text)
    os.replace(fresh, path)


def test_a_change_of_the_file_counts_without_a_restart(tmp_path: Path) -> None:
    """Law: a name server publishes a new address from the file without a restart."""
    path = tmp_path / "addresses.json"
    path.write_text(GOOD)
    addresses = OutsideAddresses()
    file = AddressFile(path, addresses)

    assert addresses.table == {"outside": {"g-0": "203.0.113.1:31001"}}
    replace_file(path, '{"outside": {"g-0": "lb.example.com:31001"}}')
    file.refresh()
    assert addresses.table == {"outside": {"g-0": "lb.example.com:31001"}}


@pytest.mark.parametrize("text", ["", "[]", '{"outside": {"g-0": "203.0.113.1"}}'])
def test_a_file_that_cannot_be_used_changes_nothing(tmp_path: Path, text: str) -> None:
    """If the changed file is unusable, clients keep the addresses that they had."""
    path = tmp_path / "addresses.json"
    path.write_text(GOOD)
    addresses = OutsideAddresses()
    file = AddressFile(path, addresses)

    replace_file(path, text)
    file.refresh()
    assert addresses.table == {"outside": {"g-0": "203.0.113.1:31001"}}
    path.unlink()
    file.refresh()
    assert addresses.table == {"outside": {"g-0": "203.0.113.1:31001"}}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"Outside": {}}', "matching regex"),
        ('{"outside": {"g-0": 1}}', "Expected `str`"),
        ('{"outside": {"g-0": "host:0"}}', "not an address that clients can reach"),
        ('{"outside": {"g-0": "host:70000"}}', "is not host:port"),
        ("{" + ",".join(f'"l{n}": {{}}' for n in range(9)) + "}", "length <= 8"),
        ('"' + "x" * FILE_SIZE_MAX + '"', "more than"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, problem: str) -> None:
    """Each error begins with the path and names the wrong part."""
    path = tmp_path / "addresses.json"
    path.write_text(text)

    with pytest.raises(SettingsError, match=problem) as refused:
        read_table(path)
    assert str(refused.value).startswith(str(path))


def test_a_name_server_does_not_start_without_its_file(tmp_path: Path) -> None:
    """Without the file the name server would refuse every route, so it does not start."""
    with pytest.raises(SettingsError, match="No such file"):
        AddressFile(tmp_path / "none.json", OutsideAddresses())
