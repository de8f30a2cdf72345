"""
The table of growths: how the queue list of each topic stands, and since when.

The rule: a row says what its phase needs and nothing more, which ``check`` asserts. What the phases mean and who may
go on to the next: ``expansion.py``.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from orderlymq_broker.state.records import GrowthPhase
from orderlymq_broker.state.tables import TableWrites, read_rows
from orderlymq_broker.store.kv import Reader
from orderlymq_broker.store.layout import Table


class Growth(msgspec.Struct, frozen=True, array_like=True):
    """What is known about the queue list of one topic.

    Attributes:
        total: queues of the valid list over all raft groups; 0 while it never grew.
        next_total: queues of the list that comes; 0 when none does.
        queues: queues that this raft group will have.
        attempt: number of the growth, given by the operator; rises.
        barriers: (queue, offset) where each queue ended when writes were fenced.
        limit_ms: how long the fence may last, then how long the settling lasts.
        since_ms: leader's wall clock when the phase began.
        reason: why the last growth was given up; empty when none was.
    """

    topic: str
    phase: GrowthPhase = GrowthPhase.OPEN
    total: int = 0
    next_total: int = 0
    queues: int = 0
    attempt: int = 0
    barriers: tuple[tuple[int, int], ...] = ()
    limit_ms: int = 0
    since_ms: int = 0
    reason: str = ""


class GrowthTable:
    """Growth by topic; a topic that never grew has no row, and a row goes with its topic."""

    def __init__(self) -> None:
        self.by_topic: dict[str, Growth] = {}

    @classmethod
    def load(cls, reader: Reader) -> "GrowthTable":
        """Read the table."""
        table = cls()
        for value in read_rows(reader, Table.GROWTH):
            growth = msgspec.msgpack.decode(value, type=Growth)
            table.by_topic[growth.topic] = growth

        return table

    def put(self, growth: Growth, writes: TableWrites) -> None:
        """Replace a row."""
        self.by_topic[growth.topic] = growth
        writes.put(Table.GROWTH, growth.topic, value=growth)

    def drop(self, topic: str, writes: TableWrites) -> None:
        """Forget a topic that is deleted."""
        if self.by_topic.pop(topic, None) is not None:
            writes.delete(Table.GROWTH, topic)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield rows for the digest."""
        for topic in sorted(self.by_topic):
            yield (self.by_topic[topic],)

    def check(self) -> None:
        """Assert what always holds."""
        for name, growth in self.by_topic.items():
            assert growth.topic == name, growth
            if growth.phase is GrowthPhase.FENCED:
                assert growth.next_total > growth.total, growth
            elif growth.phase is not GrowthPhase.OPEN:
                assert growth.next_total == 0, growth
                assert growth.total > 0, growth
