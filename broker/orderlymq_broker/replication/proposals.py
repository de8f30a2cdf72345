"""
The proposals of a leader until their outcome: they wait, share a log entry, and are pending in the log.

The rules: a proposal that no replica could apply is refused before it reaches the log. A proposal in the log
is answered only when its outcome is certain, which is when an entry is *applied* at its index. With the same
term, the proposal was committed. With another term, it was overwritten and can never come back. A truncation
alone proves nothing, because a third leader may restore what a second one has overwritten. ``groupcommit.py``
decides how long proposals wait for others; ``loop.py`` decides when the next entry leaves and reports what
was applied.
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from orderlymq_broker.core.effects import Effect, Propose, Refusal
from orderlymq_broker.core.entrybuilder import UNBUILT, Built, next_group
from orderlymq_broker.replication.groupcommit import GroupCommit
from orderlymq_broker.replication.interfaces import LoopFigures, LoopPorts, ReplicaParts

_log = logging.getLogger(__name__)

# Clients cause refusals: at the limit of topics, for example, each send to a new topic is refused.
REFUSALS_LOGGED_S: Final = 1.0

# Event loops count timers in milliseconds: a shorter one may run immediately, again and again.
TIMER_MIN_S: Final = 0.001


class Proposer:
    """Puts proposals into the log of a leader.

    Attributes:
        waiting: proposals that are not in the log yet.
        pending: proposals in the log that are not known to be committed or lost.
    """

    def __init__(
        self,
        parts: ReplicaParts,
        ports: LoopPorts,
        figures: LoopFigures,
        submit: Callable[[Iterable[Effect]], None],
        wake: Callable[[], None],
    ) -> None:
        self.waiting = WaitingProposals(ports.clock.seconds, ports.call_later, wake)
        self.pending = PendingProposals()
        self._node = parts.node
        self._core = parts.core
        self._clock = ports.clock
        self._figures = figures
        self._submit = submit
        self._logged_at = -math.inf
        self._unlogged = 0

    def admit(self, proposal: Propose) -> bool:
        """Queue a proposal for the next entry, or refuse it; return whether it was queued."""
        refusal = self._core.context.entries.admit(proposal)
        if refusal is None:
            self.waiting.add(proposal)
            return True
        self._refuse(proposal, refusal)
        return False

    def propose(self, group: Sequence[Propose]) -> None:
        """Put *group* into one entry of the log; raises NotLeader or ProposalRefused."""
        entries = self._core.context.entries
        built = self._build(group)
        if built is None:
            return
        refused = [id(proposal) for proposal, _ in built.misplaced]
        if refused:
            group = [proposal for proposal in group if id(proposal) not in refused]
        if group:
            term, index = self._node.propose(built.data)
            size = built.physical_end - entries.physical_next
            entries.proposed(built)
            self.pending.add(index, term, group, self._clock.seconds())
            self._figures.on_proposed(len(group), size)
        # Not earlier: if the node refuses the entry, it is built again, with these proposals.
        entries.settle(proposal for proposal, _ in built.misplaced)
        for proposal, refusal in built.misplaced:
            self._refuse(proposal, refusal)

    def lose(self, proposals: Sequence[Propose]) -> None:
        """Fail proposals that are not in the log."""
        self._core.context.entries.settle(proposals)
        for proposal in proposals:
            if proposal.lost is not None:
                self._submit(proposal.lost(None))

    def _build(self, group: Sequence[Propose]) -> Built | None:
        """Return the entry of a group of proposals, or None if they were refused.

        They were admitted before, so a failure is a bug of ours. The log does not contain them, and if this
        process stopped, the requests would only reach the next leader, which would stop as well.
        """
        context, now = self._core.context, self._clock.now()
        entries = context.entries
        try:
            return entries.build(group, now.wall_ms, context.ages.earliest_ms(now))
        except Exception:
            _log.exception("an entry of %d proposals cannot be built; they are refused", len(group))
        entries.settle(group)
        for proposal in group:
            self._refuse(proposal, UNBUILT)
        return None

    def _refuse(self, proposal: Propose, refusal: Refusal) -> None:
        now = self._clock.seconds()
        if now - self._logged_at >= REFUSALS_LOGGED_S:
            kinds = sorted({type(record).__name__ for record in proposal.records})
            more = f"; {self._unlogged} other proposals were refused, too" if self._unlogged else ""
            text = "a proposal of %s is refused: %s%s"
            _log.warning(text, ", ".join(kinds), refusal.remark, more)
            self._logged_at, self._unlogged = now, 0
        else:
            self._unlogged += 1
        self._submit(self._core.refused(proposal, refusal))


class WaitingProposals:
    """The proposals that are not in the log yet, in their order, and the timer that ends their linger."""

    def __init__(
        self,
        seconds: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], object],
        wake: Callable[[], None],
    ) -> None:
        self.group_commit = GroupCommit(seconds)
        self._seconds = seconds
        self._call_later = call_later
        self._wake = wake
        self._queue: deque[Propose] = deque()
        self._wakes_at = math.inf

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, proposal: Propose) -> None:
        """Append a proposal."""
        self._queue.append(proposal)
        self.group_commit.arrived()

    def next_group(self) -> Sequence[Propose]:
        """Take out the proposals of the next entry."""
        return next_group(self._queue)

    def put_back(self, group: Sequence[Propose]) -> None:
        """Put *group* back at the front, because the log did not accept it."""
        self._queue.extendleft(reversed(group))

    def take_all(self) -> Sequence[Propose]:
        """Take out all proposals, for a replica that no longer leads."""
        taken, self._queue = self._queue, deque()
        return taken

    def linger(self, *, on_its_way: bool) -> bool:
        """Return whether proposals wait for others; a timer wakes the loop at the end, unless something else does before."""
        linger_s = self.group_commit.linger_s(len(self._queue), on_its_way=on_its_way)
        if linger_s <= 0:
            return False
        linger_s = max(linger_s, TIMER_MIN_S)
        due = self._seconds() + linger_s
        if due < self._wakes_at:
            self._wakes_at = due
            self._call_later(linger_s, self._end)
        return True

    def _end(self) -> None:
        self._wakes_at = math.inf
        if self._queue:
            self._wake()


@dataclass(frozen=True, slots=True)
class Committed:
    """The proposals of the entry that was just applied, in the order of their records."""

    proposals: tuple[Propose, ...]
    proposed_at: float


@dataclass(frozen=True, slots=True)
class _Pending:
    index: int
    term: int
    proposals: tuple[Propose, ...]
    proposed_at: float


class PendingProposals:
    """Pending proposals by (index, term).

    Invariant: indexes never fall along the queue, because a leader appends at the end of its log. A later
    term of the same replica begins after what is committed, or overwrites a tail whose proposals stay pending
    under their older term.
    """

    def __init__(self) -> None:
        self._pending: deque[_Pending] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(
        self, index: int, term: int, proposals: Sequence[Propose], proposed_at: float = 0.0
    ) -> None:
        """Store the proposals of the entry (*index*, *term*)."""
        entry = _Pending(index, term, tuple(proposals), proposed_at)
        self._count += len(entry.proposals)
        if self._pending and self._pending[-1].index >= index:
            # This replica led, lost its tail and leads again: proposals of both terms may be pending at one
            # index.
            merged = sorted([*self._pending, entry], key=lambda pending: pending.index)
            self._pending = deque(merged)
        else:
            self._pending.append(entry)

    def settle(self, index: int, term: int) -> tuple[Committed | None, tuple[Propose, ...]]:
        """Note that the entry (*index*, *term*) is applied.

        Returns:
            Its proposals, if it was proposed here, and the proposals that are now known to be
            lost.
        """
        pending = self._pending
        if not pending or pending[0].index > index:
            return None, ()

        committed: Committed | None = None
        lost: list[Propose] = []
        while pending and pending[0].index <= index:
            entry = pending.popleft()
            self._count -= len(entry.proposals)
            assert entry.index == index, (
                f"entry {entry.index} was skipped: the outcome of its proposals is unknown"
            )
            if entry.term == term:
                committed = Committed(entry.proposals, entry.proposed_at)
            else:
                lost.extend(entry.proposals)
        return committed, tuple(lost)

    def abandon(self) -> int:
        """Drop everything and return how many outcomes stay unknown.

        For a replica whose log is replaced by a snapshot: it can no longer find out their outcomes.
        """
        count = self._count
        self._pending.clear()
        self._count = 0
        return count
