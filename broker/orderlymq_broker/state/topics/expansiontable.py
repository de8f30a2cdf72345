"""
The table of expansions: the state of each topic's queue list, and since when.

The rule: a row has what its phase needs and nothing more, which ``check`` asserts. ``expansionphases.py`` explains the
phases and the conditions for the next one.
"""

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import msgspec

from orderlymq_broker.state.tables import TableWrites, read_as
from orderlymq_broker.state.topics.expansionrecords import ExpansionPhase
from orderlymq_broker.store.kv import Reader
from orderlymq_broker.store.layout import Table

# The growths before the last one that a row keeps, each with an offset of every queue. No reader is farther behind.
EARLIER_MAX: Final = 16

Ends: TypeAlias = tuple[tuple[int, int], ...]


class EarlierGrowth(msgspec.Struct, frozen=True, array_like=True):
    """A growth before the last one; the fields are those that `Expansion` has for the last one."""

    total: int
    grown_ms: int
    grown_barriers: Ends | None


class Expansion(msgspec.Struct, frozen=True, array_like=True):
    """The state of one topic's queue list.

    Attributes:
        total: the queues of the valid list in all raft groups; 0 if it never grew.
        next_total: the queues of the coming list; 0 if there is none.
        queues: the queues that this raft group will have.
        attempt: the number of the expansion, given by the operator; rises.
        barriers: (queue, offset) at which each queue ended when writes were fenced.
        limit_ms: how long the fence may last, then how long the settling lasts.
        since_ms: the leader's wall clock when the phase began.
        reason: why the last expansion was given up; empty if none was.
        grown_ms: the leader's wall clock when the valid list became valid or, by records of earlier versions, when
            all senders might write to it; 0: it never grew.
        grown_barriers: (queue, offset) at which the queues of the former list ended; None: it never grew, or a record
            of an earlier version expanded it.
        earlier: the growths before that one; at most the last ``EARLIER_MAX``, if records of this version followed
            them.
    """

    topic: str
    phase: ExpansionPhase = ExpansionPhase.OPEN
    total: int = 0
    next_total: int = 0
    queues: int = 0
    attempt: int = 0
    barriers: Ends = ()
    limit_ms: int = 0
    since_ms: int = 0
    reason: str = ""
    grown_ms: int = 0
    grown_barriers: Ends | None = None
    earlier: tuple[EarlierGrowth, ...] = ()

    @property
    def list_since_ms(self) -> int:
        """When the list got its present length, at the latest; 0 if it never grew."""
        # Rows of earlier versions have no time of expansion; it was not after their phase began.
        return self.grown_ms or (self.since_ms if self.total else 0)


class ExpansionTable:
    """Expansions by topic; a topic that never grew has no row, and a row is removed with its topic.

    Attributes:
        under_way: topics in another phase than OPEN. An operator expands a few at a time; rows stay.
    """

    def __init__(self, reader: Reader) -> None:
        self.by_topic: dict[str, Expansion] = {}
        self.under_way: dict[str, None] = {}
        for expansion in read_as(reader, Table.EXPANSIONS, Expansion):
            self._put(expansion)

    def put(self, expansion: Expansion, writes: TableWrites) -> None:
        """Replace a row."""
        self._put(expansion)
        writes.put(Table.EXPANSIONS, expansion.topic, value=expansion)

    def drop(self, topic: str, writes: TableWrites) -> None:
        """Remove the row of a deleted topic."""
        self.under_way.pop(topic, None)
        if self.by_topic.pop(topic, None) is not None:
            writes.delete(Table.EXPANSIONS, topic)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield rows for the digest."""
        for topic in sorted(self.by_topic):
            yield (self.by_topic[topic],)

    def check(self) -> None:
        """Assert the invariants."""
        for name, expansion in self.by_topic.items():
            assert expansion.topic == name, expansion
            if expansion.phase is ExpansionPhase.FENCED:
                assert expansion.next_total > expansion.total, expansion
            elif expansion.phase is not ExpansionPhase.OPEN:
                assert expansion.next_total == 0, expansion
                assert expansion.total > 0, expansion
            is_open = expansion.phase is ExpansionPhase.OPEN
            assert is_open == (name not in self.under_way), expansion
        assert self.under_way.keys() <= self.by_topic.keys(), self.under_way

    def _put(self, expansion: Expansion) -> None:
        self.by_topic[expansion.topic] = expansion
        if expansion.phase is ExpansionPhase.OPEN:
            self.under_way.pop(expansion.topic, None)
        else:
            self.under_way[expansion.topic] = None
