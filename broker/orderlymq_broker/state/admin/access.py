"""
The table of accounts and of the addresses that need no account.

The rules: it is part of the replicated state, so permissions outlive a leader and are the same on all replicas at the
same index. A change takes effect with its log entry, without a restart. ``processors/admin/access.py`` decides what a
request needs and whether an account has it.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from orderlymq_broker.state.admin.accessrecords import (
    AccessChanged,
    AccountSet,
    FormerSecretEnded,
)
from orderlymq_broker.state.tables import TableWrites, read_as
from orderlymq_broker.state.topics.topics import Versioned
from orderlymq_broker.store.kv import Reader
from orderlymq_broker.store.layout import Table

_GLOBALS: Final = "globals"


class _Globals(msgspec.Struct, frozen=True, array_like=True):
    """Settings that do not belong to one account."""

    addresses: tuple[str, ...]
    counter: int
    timestamp: int


class AccessTable:
    """Accounts by access key, and the global white addresses; ``processors/admin/accounts.py`` limits both."""

    def __init__(self, reader: Reader) -> None:
        self.accounts: dict[str, AccountSet] = {}
        self.white_addresses: tuple[str, ...] = ()
        self.version = Versioned()
        for account in read_as(reader, Table.ACCOUNTS, AccountSet):
            self.accounts[account.access_key] = account
        for found in read_as(reader, Table.ACCESS, _Globals):
            self.white_addresses = found.addresses
            self.version = Versioned(found.counter, found.timestamp)

    def set(self, account: AccountSet, wall_ms: int, writes: TableWrites) -> AccessChanged:
        """Create or replace an account."""
        if self.accounts.get(account.access_key) == account:
            return AccessChanged(changed=False)
        self.accounts[account.access_key] = account
        writes.put(Table.ACCOUNTS, account.access_key, value=account)

        return self._bump(wall_ms, writes)

    def delete(self, access_key: str, wall_ms: int, writes: TableWrites) -> AccessChanged:
        """Remove an account."""
        if self.accounts.pop(access_key, None) is None:
            return AccessChanged(changed=False)
        writes.delete(Table.ACCOUNTS, access_key)

        return self._bump(wall_ms, writes)

    def end_former_secret(
        self, record: FormerSecretEnded, wall_ms: int, writes: TableWrites
    ) -> AccessChanged:
        """Remove the former secret of an account, unless a later rotation has begun."""
        account = self.accounts.get(record.access_key)
        if account is None or account.former_until_ms != record.until_ms:
            return AccessChanged(changed=False)
        ended = msgspec.structs.replace(account, former_secret="", former_until_ms=0)

        return self.set(ended, wall_ms, writes)

    def set_white_addresses(
        self, addresses: tuple[str, ...], wall_ms: int, writes: TableWrites
    ) -> AccessChanged:
        """Replace the addresses that need no account."""
        if self.white_addresses == addresses:
            return AccessChanged(changed=False)
        self.white_addresses = addresses

        return self._bump(wall_ms, writes)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield everything for the digest."""
        yield (*self.version.row(), self.white_addresses)
        for access_key in sorted(self.accounts):
            yield (self.accounts[access_key],)

    def _bump(self, wall_ms: int, writes: TableWrites) -> AccessChanged:
        self.version.bump(wall_ms)
        row = _Globals(self.white_addresses, *self.version.row())
        writes.put(Table.ACCESS, _GLOBALS, value=row)

        return AccessChanged(changed=True)
