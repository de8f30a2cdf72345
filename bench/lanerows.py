"""
Counts the store rows that lanes read and write per message while one key is parked with a deep backlog.

A busy machine does not change the counts. One replica applies the leader's plans; time stands still, so the key stays
parked.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from tests.broker.state.entries import WALL_MS, Replica, stored
from tests.broker.store.memory import MemoryStore

from orderlymq_broker.processors.lanes.planner import Fetch, Round, Turn
from orderlymq_broker.processors.lanes.scan import SCAN_MAX
from orderlymq_broker.state.lanes.lanerecords import (
    Granted,
    LanesFetched,
    LanesGranted,
    LanesReported,
    Report,
    ReportKind,
)
from orderlymq_broker.state.records import Append, GroupSet, MemberSeen, TopicSet
from orderlymq_broker.store.kv import Batch, Family
from orderlymq_protocol.body.clients import CONSUME_FROM_FIRST_OFFSET
from orderlymq_protocol.body.lanes import LANES_MAX
from orderlymq_protocol.message.properties import SHARDING_KEY

_GROUP: Final = "group"
_TOPIC: Final = "topic"
_CLIENT: Final = "client"
_DEEP: Final = "deep"
_OTHERS: Final = 5_000
_BATCH: Final = 1_000
_SIZE_MAX: Final = 1 << 20


class CountingStore(MemoryStore):
    """A store that counts the rows read and written."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    def get(self, family: Family, key: bytes) -> bytes | None:
        self.rows += 1
        return super().get(family, key)

    def multi_get(self, family: Family, keys: Sequence[bytes]) -> list[bytes | None]:
        self.rows += len(keys)
        return super().multi_get(family, keys)

    def scan(
        self, family: Family, start: bytes, end: bytes, *, limit: int, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        found = super().scan(family, start, end, limit=limit, reverse=reverse)
        self.rows += len(found)
        return found

    def write(self, batch: Batch, *, sync: bool) -> None:
        self.rows += len(batch.puts) + len(batch.range_deletes)
        super().write(batch, sync=sync)


class OneQueue:
    """A queue of a consumer group by key, and a member that fetches from it."""

    def __init__(self) -> None:
        self.store = CountingStore()
        self._replica = Replica(self.store)
        self._replica.take(TopicSet(_TOPIC, 1, 1))
        # No messages in memory, as when consumers are far behind.
        self._replica.state.tail.resize(0)
        self._replica.take(GroupSet(_GROUP, concurrency="Key"), MemberSeen(_GROUP, _CLIENT, "h:1"))
        self._turn = Turn()

    def fill(self, keys: Sequence[str]) -> None:
        """Store one message for each of the keys."""
        state = self._replica.state
        topic_id = self._replica.topic_id(_TOPIC)
        for start in range(0, len(keys), _BATCH):
            offset, physical = state.topics.by_id[topic_id].queue(0).next_offset, state.physical_end
            records, messages = [], []
            for key in keys[start : start + _BATCH]:
                message = stored(offset, physical, properties={SHARDING_KEY: key})
                records.append(Append(topic_id, 0, offset, physical, len(message), 0, WALL_MS))
                messages.append(message)
                offset, physical = offset + 1, physical + len(message)
            self._replica.take(*records, messages=messages)

    def drain(self) -> None:
        """Fetch and complete messages until none is left; messages of the deep key fail."""
        while granted := self._fetch():
            self._report(granted)

    def _fetch(self) -> Sequence[Granted]:
        """Fetch as the leader does; repeat plans that scan part of the backlog and grant nothing."""
        state = self._replica.state
        fetch = Fetch(_CLIENT, LANES_MAX, 1, _SIZE_MAX, None, CONSUME_FROM_FIRST_OFFSET)
        while True:
            this_round = Round(
                state,
                self.store,
                state.groups.by_name[_GROUP],
                state.topics.by_name[_TOPIC],
                self._turn,
                lambda queue: queue.due(WALL_MS),
                SCAN_MAX,
                1,
            )
            parts = this_round.plan(fetch).records()
            if not parts:
                return ()
            record = LanesFetched(_GROUP, _TOPIC, _CLIENT, 1, 30_000, parts)
            (outcome,) = self._replica.take(record)
            assert isinstance(outcome, LanesGranted), outcome
            if outcome.granted:
                return outcome.granted

    def _report(self, granted: Sequence[Granted]) -> None:
        reports = []
        for each in granted:
            done = Report(each.queue_id, each.lane, each.attempt, ReportKind.DONE, each.offsets[-1])
            failed = msgspec.structs.replace(
                done, kind=ReportKind.RETRY, offset=-1, due_ms=WALL_MS + 3_600_000
            )
            reports.append(failed if each.key == _DEEP else done)
        self._replica.take(LanesReported(_GROUP, _TOPIC, _CLIENT, tuple(reports)))


def rows_per_message(deep: int) -> tuple[float, float]:
    """Park a key with *deep* messages; return the rows per message of that key, and of other keys after that."""
    queue = OneQueue()
    queue.fill([_DEEP] * deep)
    before = queue.store.rows
    queue.drain()
    once = (queue.store.rows - before) / deep
    # Every tenth message belongs to the parked key.
    queue.fill([f"key-{each}" if each % 10 else _DEEP for each in range(_OTHERS)])
    before = queue.store.rows
    queue.drain()

    return once, (queue.store.rows - before) / _OTHERS
