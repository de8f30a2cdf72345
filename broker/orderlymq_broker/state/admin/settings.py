"""
Settings that administrators changed while the broker group was running.

The rules: they are part of the replicated state, so that a change outlives the leader and holds on all
replicas. Here they are plain texts, because applying a record must not depend on a setting.
``core/livesettings.py`` interprets them on each replica.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from orderlymq_broker.state.admin.settingsrecords import SettingsChanged
from orderlymq_broker.state.tables import TableWrites, read_as
from orderlymq_broker.state.topics.topics import Versioned
from orderlymq_broker.store.kv import Reader
from orderlymq_broker.store.layout import Table

_ALL: Final = "all"


class _Row(msgspec.Struct, frozen=True, array_like=True):
    """The whole table in one row: it has a dozen entries at most."""

    values: dict[str, tuple[str, str]]
    counter: int
    timestamp: int


class OverrideTable:
    """By RocketMQ's name: the value, and the manifest's value that it replaced; at most one for each live key."""

    def __init__(self, reader: Reader) -> None:
        self.values: dict[str, tuple[str, str]] = {}
        self.version = Versioned()
        for row in read_as(reader, Table.SETTINGS, _Row):
            self.values = row.values
            self.version = Versioned(row.counter, row.timestamp)

    def set(
        self, values: dict[str, tuple[str, str]], wall_ms: int, writes: TableWrites
    ) -> SettingsChanged:
        """Set values; remove those that equal the manifest's value again."""
        wanted = {
            name: (value, replaced)
            for name, (value, replaced) in {**self.values, **values}.items()
            if value != replaced
        }
        if wanted == self.values:
            return SettingsChanged(changed=False)
        self.values = wanted
        self.version.bump(wall_ms)
        writes.put(Table.SETTINGS, _ALL, value=_Row(wanted, *self.version.row()))

        return SettingsChanged(changed=True)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield everything for the digest."""
        yield (*self.version.row(), sorted(self.values.items()))
