"""Parts of a real replica that report their actions to the laws."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orderlymq_broker.replication.compaction import Compaction
from orderlymq_broker.state.broker import BrokerState
from orderlymq_broker.state.records import Outcome
from orderlymq_broker.state.statemachine import StateMachine
from orderlymq_broker.store.entry import EntryParts
from orderlymq_broker.store.kv import Batch
from orderlymq_broker.store.raftlog import RaftLogStore
from orderlymq_raft import (
    Membership,
)
from orderlymq_raft.types import Entry, HardState

if TYPE_CHECKING:
    from tests.sim.broker.replica import Replica


class ObservedLog:
    """The real log as the loop writes it; it reports when a tail is truncated."""

    def __init__(self, log: RaftLogStore, replica: "Replica") -> None:
        self._log = log
        self._replica = replica

    def append(
        self, batch: Batch, entries: Sequence[Entry], hard_state: HardState | None = None
    ) -> None:
        if entries and entries[0].index <= self._log.last_index():
            first = entries[0]
            self._replica.cuts += 1
            self._replica.world.laws.promises.tail_cut(
                self._replica, first.index, self._log.term(first.index), first.term
            )
        self._log.append(batch, entries, hard_state)

    def set_membership(self, batch: Batch, membership: Membership) -> None:
        self._log.set_membership(batch, membership)

    def physical_end(self) -> int:
        return self._log.physical_end()


class UnsweptCompaction(Compaction):
    """The real compaction, without files that could be given back and without threads."""

    def _maybe_sweep(self) -> None:
        pass

    def _maybe_reclaim(self) -> None:
        pass


class ObservedMachine:
    """The real state machine; it reports what was applied."""

    def __init__(self, state: BrokerState, replica: "Replica") -> None:
        self.state = state
        self._machine = StateMachine(state)
        self._replica = replica

    @property
    def changes(self) -> int:
        return self._machine.changes

    def apply(self, index: int, term: int, parts: EntryParts, batch: Batch) -> list[Outcome]:
        outcomes = self._machine.apply(index, term, parts, batch)
        self._replica.world.laws.applied(self._replica, index, term, parts, outcomes)
        return outcomes

    def apply_noop(self, index: int, term: int, batch: Batch) -> None:
        self._machine.apply_noop(index, term, batch)
        self._replica.world.laws.applied(self._replica, index, term, None)
