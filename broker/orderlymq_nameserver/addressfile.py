"""
The file with the addresses of each broker group for the clients of each additional listener.

The operator writes it. It is read again when it changes, so that a new address needs no restart. If the file
cannot be used, the present addresses stay effective. `outside` uses them.
"""

import logging
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import msgspec

from orderlymq_nameserver.outside import OutsideAddresses, Table
from orderlymq_protocol.decodeerrors import UNREADABLE
from orderlymq_protocol.plurals import counted
from orderlymq_runtime.followedfiles import FollowedFiles
from orderlymq_runtime.remoting.outside import LISTENERS_MAX, ListenerName
from orderlymq_runtime.settingsfile import SettingsError
from orderlymq_runtime.sockets.addresses import split_address

_log = logging.getLogger(__name__)

# Room for 8 listeners of 4 096 broker groups with DNS names.
FILE_SIZE_MAX: Final = 16 << 20

_Group: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
_Address: TypeAlias = Annotated[str, msgspec.Meta(min_length=3, max_length=300)]
_FileTable: TypeAlias = Annotated[
    dict[ListenerName, dict[_Group, _Address]], msgspec.Meta(max_length=LISTENERS_MAX)
]


class AddressFile:
    """The file with the addresses, read again when it changes.

    Raises:
        SettingsError: at the start, if it cannot be used.
    """

    def __init__(self, path: Path, addresses: OutsideAddresses) -> None:
        self._path = path
        self._addresses = addresses
        self._followed = FollowedFiles(
            path, log=_log, stays="the previous addresses stay effective"
        )
        addresses.update(read_table(path))

    def refresh(self) -> None:
        """Read the file if it has changed; if it cannot be used, the present addresses stay effective."""
        table = self._followed.read_changed(lambda: read_table(self._path), SettingsError)
        if table is None:
            return
        self._addresses.update(table)
        _log.info("%s was read again: %s", self._path, _described(table))


def read_table(path: Path) -> Table:
    """Read the addresses of each listener from a JSON file.

    Raises:
        SettingsError: it is missing, too large, not JSON of this form, or has an invalid address.
    """
    try:
        if path.stat().st_size > FILE_SIZE_MAX:
            raise SettingsError(f"{path}: the file has more than {FILE_SIZE_MAX} bytes")
        table = msgspec.json.decode(path.read_bytes(), type=_FileTable)
        for listener, groups in table.items():
            for group, address in groups.items():
                _check(address, f"{path}: {listener}, {group}")
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}; name the file of addresses") from error
    except UNREADABLE as error:
        raise SettingsError(f"{path}: {error}") from error
    return table


def _check(address: str, where: str) -> None:
    try:
        _, port = split_address(address)
    except ValueError as error:
        raise SettingsError(f"{where}: {error}") from error
    if port == 0:
        raise SettingsError(f"{where}: {address!r} is not an address that clients can reach")


def _described(table: Table) -> str:
    found = [
        f"{counted(len(groups), 'group')} for {listener}"
        for listener, groups in sorted(table.items())
    ]
    return ", ".join(found) or "no addresses"
