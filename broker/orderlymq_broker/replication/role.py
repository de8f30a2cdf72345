"""
The role of a replica in its raft group, and when it begins and ends serving as the leader.

The rules: a new leader serves once its own no-op, and with it the whole log, is applied. The first leader of
a new raft group first waits for the others (``bootstrap.py``). A replica that is elected ends its recovery
mode before it writes any useful entry. A deposed leader closes its listeners first, then answers its
proposals. ``leaderlease.py`` decides whether it may answer meanwhile; ``loop.py`` calls this module in every
turn.
"""

import logging
from collections.abc import Callable, Iterable

from orderlymq_broker.core.effects import Effect
from orderlymq_broker.replication.bootstrap import Bootstrap
from orderlymq_broker.replication.interfaces import LoopPorts, ReplicaParts
from orderlymq_broker.replication.leaderlease import LeaderLease
from orderlymq_broker.replication.proposals import Proposer
from orderlymq_broker.replication.recovery import Recovery
from orderlymq_broker.store.kv import Batch
from orderlymq_raft import Role, RoleChange
from orderlymq_raft.types import Term

_log = logging.getLogger(__name__)


class ReplicaRole:
    """The role of one replica in its raft group, as last reported to the process and the core.

    Attributes:
        serving: True from when the no-op of its own term is applied until leadership is lost.
        is_leaving: leadership was lost in this turn.
        was_confirmed: a majority has confirmed this leader since the host was last notified of its lease.
    """

    def __init__(
        self,
        parts: ReplicaParts,
        ports: LoopPorts,
        proposer: Proposer,
        submit: Callable[[Iterable[Effect]], None],
    ) -> None:
        self.serving = False
        self.is_leaving = False
        self.was_confirmed = False
        self.lease = LeaderLease(parts.node)
        self.recovery = Recovery(parts.store)
        parts.node.set_recovering(recovering=self.recovery.active)
        self._parts = parts
        self._node = parts.node
        self._ports = ports
        self._proposer = proposer
        self._submit = submit
        self._change = RoleChange(Role.FOLLOWER, None, parts.node.term)
        self._serving_term = Term(0)
        self._had_lease = False
        self._bootstrap = Bootstrap(self.lease)

    def watch(self) -> None:
        """Notify the host if the role, the leader or the term has changed; a deposed leader stops serving."""
        node = self._node
        change = RoleChange(node.role, node.leader, node.term)
        if change == self._change:
            return
        self.is_leaving = self._change.role is Role.LEADER and change.role is not Role.LEADER
        self._change = change
        leader = "unknown" if change.leader is None else change.leader
        _log.info("%s of term %d, leader %s", change.role.value, change.term, leader)
        if self.serving and (change.role is not Role.LEADER or change.term != self._serving_term):
            self._end_serving(change)
        self.lease.reset()
        self._bootstrap.reset()
        self._ports.host.role_changed(change)

    def watch_lease(self) -> None:
        """Notify the host if the leader may answer now, may no longer answer, or was confirmed."""
        has_lease = self.serving and self.lease.is_valid
        if has_lease != self._had_lease or self.was_confirmed:
            self._had_lease, self.was_confirmed = has_lease, False
            self._ports.host.lease_changed()

    def noop_applied(self, term: Term) -> None:
        """Begin to serve after the no-op of the own term, or begin to wait for the others of a new raft group."""
        if not self._node.is_leader or term != self._node.term or self.serving:
            return
        if self._parts.machine.state.topics_version:
            self._begin_serving(term)
        else:
            self._bootstrap.begin(term, self._ports.clock.seconds())
            self.maybe_end_bootstrap()

    def maybe_end_bootstrap(self) -> None:
        """Let the first leader of a new raft group serve when it no longer needs to wait."""
        term = self._bootstrap.term
        if term is None:
            return
        all_are_there = all(peer.match for peer in self._node.status().progress.values())
        if self._bootstrap.is_over(self._ports.clock.seconds(), all_are_there=all_are_there):
            self._bootstrap.reset()
            self._begin_serving(term)

    def end_recovery(self) -> None:
        """Vote from now on, because the log is complete."""
        if not self.recovery.active:
            return
        batch = Batch()
        self.recovery.end(batch)
        self._parts.store.stage(batch)
        self._node.set_recovering(recovering=False)

    def _begin_serving(self, term: Term) -> None:
        # Stage this before the first useful entry is written, so that a replica with that entry remembers it.
        self.end_recovery()
        self.serving = True
        self._serving_term = term
        now = self._ports.clock.now()
        self._submit(self._parts.core.become_leader(term, self._parts.log.physical_end(), now))
        self._ports.host.serving_began()

    def _end_serving(self, change: RoleChange) -> None:
        self.serving = False
        # Listeners close first: a client that retries from now on must find the next leader.
        self._ports.host.serving_ended()
        unsent = self._proposer.waiting.take_all()
        self._submit(self._parts.core.become_follower(change.leader is not None))
        self._parts.core.proposals_lost()
        self._proposer.lose(unsent)
