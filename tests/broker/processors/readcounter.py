"""A store that counts the messages that are read from it."""

from collections.abc import Sequence

from orderlymq_broker.store.kv import Family
from tests.broker.store.memory import MemoryStore


class ReadCounter:
    """Reads *store*; *count* messages with *size* bytes in all were read."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.count = self.size = 0

    def get(self, family: Family, key: bytes) -> bytes | None:
        value = self._store.get(family, key)
        self._note(family, value)
        return value

    def multi_get(self, family: Family, keys: Sequence[bytes]) -> list[bytes | None]:
        values = self._store.multi_get(family, keys)
        self._note(family, *values)
        return values

    def scan(
        self, family: Family, start: bytes, end: bytes, *, limit: int, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        pairs = self._store.scan(family, start, end, limit=limit, reverse=reverse)
        self._note(family, *(value for _, value in pairs))
        return pairs

    def _note(self, family: Family, *values: bytes | None) -> None:
        found = [value for value in values if value is not None]
        if family is Family.MESSAGES:
            self.count += len(found)
            self.size += sum(map(len, found))
