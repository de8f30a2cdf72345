"""
Puts proposals into the log of a leader: they are admitted, share an entry, and hear when they are refused or lost.

The rules: a proposal that no replica could apply is refused before it reaches the log; what is handed to the log is
pending until its outcome is certain (``proposals.py``). ``groupcommit.py`` says how long proposals wait for others,
and ``loop.py`` when the next entry leaves and what was applied.
"""

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from orderlymq_broker.core.effects import Effect, Propose, Refusal
from orderlymq_broker.core.entrybuilder import UNBUILT, Built
from orderlymq_broker.replication.groupcommit import WaitingProposals
from orderlymq_broker.replication.interfaces import LoopFigures, LoopPorts, ReplicaParts
from orderlymq_broker.replication.proposals import PendingProposals

_log = logging.getLogger(__name__)

# Clients choose what is refused: at the limit of topics each send to another one is.
REFUSALS_LOGGED_S: Final = 1.0


class Proposer:
    """Brings proposals into the log of a leader.

    Attributes:
        waiting: what is not in the log yet.
        pending: what is in the log and not known to be committed or lost.
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
        """Let a proposal wait for the next entry, or refuse it; return whether it waits."""
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
        # Not before: what the node did not take is built again, and these with it.
        entries.settle(proposal for proposal, _ in built.misplaced)
        for proposal, refusal in built.misplaced:
            self._refuse(proposal, refusal)

    def lose(self, proposals: Sequence[Propose]) -> None:
        """Fail proposals that are in no log."""
        self._core.context.entries.settle(proposals)
        for proposal in proposals:
            self._figures.proposals_lost += 1
            if proposal.lost is not None:
                self._submit(proposal.lost(None))

    def _build(self, group: Sequence[Propose]) -> Built | None:
        """Return the entry of a group, or None when it was refused.

        The gate has let it through, so this is a mistake of ours. The log knows nothing of it, and a process that ended
        here would only hand the requests to the next leader, which would end as well.
        """
        entries = self._core.context.entries
        try:
            return entries.build(group, self._clock.now().wall_ms)
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
            more = f"; {self._unlogged} others were, too" if self._unlogged else ""
            text = "a proposal of %s is refused: %s%s"
            _log.warning(text, ", ".join(kinds), refusal.remark, more)
            self._logged_at, self._unlogged = now, 0
        else:
            self._unlogged += 1
        self._submit(self._core.refused(proposal, refusal))
