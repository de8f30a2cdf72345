"""
The replication loop of a replica: each iteration proposes, sends, persists, applies and answers.

The rules, in the order in which they apply:

* All proposals of one iteration of the event loop, or of the time while an entry is on its way, share one log entry,
  within limits. They need one sync and one round trip to the followers together.
* A promise is sent only after the write that it rests on. Readys are finished in the order in which they were handed
  out.
* Applied state is staged and becomes durable with the next write. The log is authoritative: a restart applies again
  what was only staged.
* A proposal is answered when its outcome is certain (``proposals.py``). A new leader gives no offsets before its own
  no-op, and with it the whole log, is applied.

Everything here is synchronous and driven by the event loop: clients call `submit` and `handle`,
``transport/server.py`` calls `receive`, a timer calls `tick`, and ``writer.py`` reports completions.
``proposals.py`` puts proposals into the log, and ``role.py`` decides whether this replica serves. ``server``
decides which requests are answered; ``app.py`` wires it.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, assert_never

from orderlymq_broker.core.effects import Caller, CallSoon, Close, Effect, Now, Propose, Send
from orderlymq_broker.core.requestcontext import RequestRefused
from orderlymq_broker.replication.diskstall import STALL_ELECTIONS, WriteWatch
from orderlymq_broker.replication.interfaces import LoopFigures, LoopLimits, LoopPorts, ReplicaParts
from orderlymq_broker.replication.proposals import Proposer
from orderlymq_broker.replication.role import ReplicaRole
from orderlymq_broker.state.records import Outcome
from orderlymq_broker.store.entry import split_entry
from orderlymq_broker.store.kv import Batch, StoreError
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_raft import (
    Entry,
    EntryKind,
    InstallSnapshot,
    Membership,
    MembershipChange,
    Message,
    NotLeader,
    ProposalRefused,
    ProtocolViolation,
    Ready,
    SnapshotMeta,
)
from orderlymq_raft.ready import keep_newest
from orderlymq_raft.types import Index, NodeId

_log = logging.getLogger(__name__)

# One write runs, and one waits in the writer's queue so that the disk never idles. Later proposals gather in the
# next entry. A third write would only make the groups smaller.
TICKETS_MAX: Final = 2

# A process that was paused does not know how much time has passed. It makes up for this many ticks and then asks
# the others, instead of running through a whole election time-out.
TICKS_CATCH_UP_MAX: Final = 3

# A turn ends after this many applied changes, and continues after timers and sockets had their turn.
APPLIED_MAX: Final = 1_024


class ReplicationLoop:
    """Drives one Node, one BrokerCore and one store.

    Life cycle: made, `start`, then events until `stop`. Invariants: at most TICKETS_MAX writes are under way,
    one more after leadership was lost; Readys in flight are finished in order.
    """

    def __init__(self, parts: ReplicaParts, ports: LoopPorts, limits: LoopLimits) -> None:
        self.figures = LoopFigures()
        self._parts = parts
        self._node = parts.node
        self._core = parts.core
        self._ports = ports
        self._limits = limits
        # The Readys that must be synced and are not advanced yet. The oldest are durable; each of the others has
        # a ticket.
        self._in_flight: deque[Ready] = deque()
        self._tickets = 0
        election_s = parts.node.election_ticks * limits.tick_s
        self.writes = WriteWatch(STALL_ELECTIONS * election_s, ports.clock.seconds)
        self._turn_is_due = False
        self._refused = False
        self._stopped = False
        self._ticked_at = ports.clock.seconds()
        self._topics_version = parts.machine.state.topics_version
        self._proposer = Proposer(parts, ports, self.figures, self.submit, self._wake)
        self._pending = self._proposer.pending
        self._waiting = self._proposer.waiting
        self._role = ReplicaRole(parts, ports, self._proposer, self.submit)
        self._recovery = self._role.recovery
        self._lease = self._role.lease

    # -- what drives it --------------------------------------------------------------------------

    def start(self) -> None:
        """Begin: the entries in the log beyond the applied state are applied as they commit."""
        self._ticked_at = self._ports.clock.seconds()
        self._wake()

    def stop(self) -> None:
        """Ignore everything from now on."""
        self._stopped = True

    def handle(self, request: RemotingCommand, caller: Caller) -> None:
        """Let the core handle a request and perform its effects."""
        self.decide(lambda: self._core.handle(request, caller, self._ports.clock.now()))

    def refusal(self, request: RemotingCommand, caller: Caller) -> RemotingCommand | None:
        """Return the refusal of a request that its sender may not make, None if it may."""
        try:
            self._core.admit(request, caller, self._ports.clock.now())
        except RequestRefused as refused:
            return request.reply(refused.code, ext=refused.ext, remark=refused.remark)
        self.submit(self._core.note_operator(request))
        return None

    def connection_closed(self, connection: int) -> None:
        """Tell the core that a connection is closed."""
        self.decide(lambda: self._core.connection_closed(connection))

    def decide(self, ask: Callable[[], Iterable[Effect]]) -> None:
        """Call the core and perform its effects; every call of the core goes through here.

        A replica that cannot read its disk stops. A leader that went on would keep its leadership and serve
        no request, and work that was in progress when the read failed must not be answered.
        """
        if self._stopped:
            return
        try:
            effects = ask()
        except StoreError as error:
            self._fail(error)
            return
        self.submit(effects)

    def submit(self, effects: Iterable[Effect]) -> None:
        """Perform effects: send and close immediately, collect proposals for the next entry."""
        for effect in effects:
            match effect:
                case Send(connection, command):
                    self._ports.clients.send(connection, command)
                case Propose():
                    if self._proposer.admit(effect):
                        self._wake()
                case Close(connection, reason):
                    self._ports.clients.close(connection, reason)
                case CallSoon(step):
                    self._ports.call_soon(partial(self._go_on, step))
                case _:
                    assert_never(effect)

    def _go_on(self, step: Callable[[Now], list[Effect]]) -> None:
        self.decide(lambda: step(self._ports.clock.now()))

    def receive(self, messages: Sequence[Message]) -> None:
        """Handle messages of a peer; raises ProtocolViolation at one that breaks the rules of raft.

        First makes up for the ticks that are due, because a voter counts from now how long it sticks to a
        leader that it hears.
        """
        self.tick()
        if self._stopped:
            return
        try:
            for message in self._recovery.heard(messages):
                self._node.step(message)
            self._recovery.note_commit(messages, self._node.commit)
            self._maybe_end_recovery()
        except ProtocolViolation:
            # This is the sender's fault. Its connection is closed, and this replica continues.
            self._wake()
            raise
        except Exception as error:
            self._fail(error)
        self._wake()

    def _maybe_end_recovery(self) -> None:
        if not self._recovery.has_caught_up(self._node.stable):
            return
        batch = Batch()
        self._recovery.begin_end(batch)
        ticket = self._parts.store.prepare(batch)

        def done(_: float) -> None:
            self._parts.store.settle(ticket)
            _log.info("this replica has caught up with its group and may vote now")
            self._role.end_recovery()
            self._turn()

        self._ports.writer.submit(ticket, sync=True, done=done)

    def unreachable(self, node: NodeId) -> None:
        """Note that messages to *node* were dropped."""
        self._node.report_unreachable(node)

    def peer_lost(self, node: NodeId) -> None:
        """Note that the connection from *node* broke."""
        self._node.leader_gone(node)

    def note_stickiness(self, node: NodeId, sticks_ms: int) -> None:
        """Note for how long *node* sticks to a leader that it hears; 0 if that is unknown."""
        # The peer does not count the tick that has partly passed when it hears its leader; `reads.py` does.
        ticks = int(sticks_ms / (1000 * self._limits.tick_s)) + 1 if sticks_ms else 0
        self._node.note_stickiness(node, ticks)

    def report_wiped(self, node: NodeId) -> None:
        """Note that *node* has lost its log and restarts."""
        self._node.report_wiped(node)
        self._wake()

    @property
    def is_recovering(self) -> bool:
        """Return whether this replica has lost its log and has not caught up yet."""
        return self._recovery.active

    def lacks_log(self, offered: Index) -> bool:
        """Return whether this replica follows a leader and cannot replace another replica yet: see `Recovery.lacks`."""
        node = self._node
        follows = node.leader is not None and not node.is_leader
        return follows and self._recovery.lacks(node.stable, offered)

    def snapshot_sent(self, node: NodeId, *, ok: bool) -> None:
        """Note whether the transfer of a snapshot to *node* succeeded."""
        self._node.report_snapshot(node, ok)
        self._wake()

    def tick(self) -> None:
        """Make up for the time since the last call; call it about every tick."""
        if self._stopped:
            return
        now = self._ports.clock.seconds()
        due = int((now - self._ticked_at) / self._limits.tick_s)
        if due <= 0:
            return
        if due > TICKS_CATCH_UP_MAX:
            elapsed_s = now - self._ticked_at
            _log.warning("this process stood still for %.0f ms", 1000 * elapsed_s)
            self._ticked_at = now
            due = TICKS_CATCH_UP_MAX
            self.writes.forgive(elapsed_s - due * self._limits.tick_s)
            self._lease.suspend()
        else:
            self._ticked_at += due * self._limits.tick_s
        try:
            for _ in range(due):
                self._node.tick()
            self._lease.tick()
            self._maybe_step_down()
            self._role.maybe_end_bootstrap()
        except Exception as error:
            self._fail(error)
        self._wake()

    def _maybe_step_down(self) -> None:
        """Give up leadership if the disk hangs, so that a replica with a working disk can lead."""
        if self.writes.is_stalled and self._node.step_down():
            self.figures.disk_stalls += 1
            _log.error("no write ended for %.1f s: this replica steps down", self.writes.waiting_s)

    # -- administration ----------------------------------------------------------------------------

    def transfer(self, target: NodeId) -> None:
        """Hand leadership to *target*; raises NotLeader or ProposalRefused."""
        self._node.transfer_leadership(target)
        self._wake()

    def change_membership(self, change: MembershipChange) -> int:
        """Propose *change* and return its index; raises NotLeader or ProposalRefused.

        Only a serving leader accepts it. Such a leader reports when it stops serving, so that the index is
        not taken for one of another leader.
        """
        if self._node.is_leader and not self._role.serving:
            raise ProposalRefused("the leader does not serve yet; retry shortly")
        _, index = self._node.propose_membership(change)
        self._wake()
        return index

    # -- questions -------------------------------------------------------------------------------

    @property
    def serving(self) -> bool:
        """Return whether this replica leads and has applied the whole log."""
        return self._role.serving

    @property
    def collected(self) -> int:
        """Return how many proposals wait for the next entry."""
        return len(self._waiting)

    @property
    def pending(self) -> int:
        """Return how many proposals are in the log and not known to be committed or lost."""
        return len(self._pending)

    @property
    def idle_s(self) -> float:
        """Return how long ago the last tick was."""
        return self._ports.clock.seconds() - self._ticked_at

    def may_answer(self) -> bool:
        """Return whether an answer given now is valid for the whole raft group, because the lease is valid.

        Time without ticks counts: a process that was paused must not answer for a group that has elected
        another leader.
        """
        if self._stopped or not self._role.serving:
            return False
        if self.idle_s >= self._limits.tick_s:
            self.tick()
        return self._role.serving and self._lease.is_valid

    def request_confirmation(self) -> int:
        """Ask the raft group whether this replica still leads; return the number to pass to `is_confirmed`.

        For requests that have arrived and that `may_answer` holds back. `Host.lease_changed` reports the
        result.
        """
        number = self._lease.ask()
        self._wake()
        return number

    def is_confirmed(self, number: int) -> bool:
        """Return whether this replica still led after *number* was given out, so that it may answer."""
        return self._role.serving and self._lease.is_confirmed(number)

    # -- the turn --------------------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._turn_is_due and not self._stopped:
            self._turn_is_due = True
            self._ports.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_is_due = False
        if self._stopped:
            return
        self.figures.iterations += 1
        try:
            self._take_turn()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        # Continuing after a broken invariant could break a promise. A restart begins from the log.
        _log.critical("this replica cannot go on", exc_info=error)
        self._stopped = True
        self._ports.host.failed(error)

    def _take_turn(self) -> None:
        self._advance_durable()
        # Check the role first, and not from a Ready: a deposed leader must close its listeners even if its disk
        # hangs. The entries applied below are answered in the present role.
        self._role.watch()
        # Applying may create new proposals. They belong to the next turn, so that this one ends.
        self._propose()
        applied = self._parts.machine.changes
        if responses := self._node.take_heartbeat_responses():
            self._send(responses)
        while not self._stopped and self._may_take_ready():
            ready = self._node.ready()
            self._role.is_leaving = False
            if ready is None:
                break
            self._begin(ready)
            if self._parts.machine.changes - applied >= APPLIED_MAX:
                self._wake()
                break
        if self._stopped:
            return
        if self._may_propose() and not self._refused and not self._lingers():
            self._wake()
        topics_version = self._parts.machine.state.topics_version
        if topics_version != self._topics_version:
            self._topics_version = topics_version
            self._ports.host.topics_changed()
        self._role.watch()
        self._role.watch_lease()

    def _may_take_ready(self) -> bool:
        # A leader has only the entries that `_propose` made. So with both tickets under way its Readys hold only
        # heartbeats and commits, which must not wait for a slow disk. Nor must the messages that it sends when it
        # gives up leadership.
        return self._tickets < TICKETS_MAX or self._node.is_leader or self._role.is_leaving

    def _begin(self, ready: Ready) -> None:
        if ready.messages_now:
            self._send(ready.messages_now)
        self._lease.round_left()
        if ready.snapshot is not None:
            self._hand_over_snapshot(ready, ready.snapshot)
            return
        self._persist(ready)
        for entry in ready.committed:
            self._apply(entry)
        if self._lease.confirm(ready.read_states):
            self._role.was_confirmed = True
        if ready.messages_after and not ready.must_sync:
            if self._in_flight:
                # These messages must not overtake earlier ones. While a disk does not answer, heartbeats go on
                # for hours.
                waiting = self._in_flight[-1].messages_after
                waiting.extend(ready.messages_after)
                keep_newest(waiting)
            else:
                self._send(ready.messages_after)

    def _persist(self, ready: Ready) -> None:
        if not ready.entries and ready.hard_state is None:
            return
        batch = Batch()
        self._parts.log.append(batch, ready.entries, ready.hard_state)
        if not ready.must_sync:
            # A commit index is not a promise: it is written with the next write.
            self._parts.store.stage(batch)
            return
        self._in_flight.append(ready)
        ticket = self._parts.store.prepare(batch)
        self._tickets += 1
        self.writes.began()
        self._waiting.group_commit.began()
        self.figures.tickets += 1
        sync = self._limits.sync_writes or ready.promises

        def done(elapsed_s: float) -> None:
            self._tickets -= 1
            self.writes.ended()
            if sync:
                self.figures.on_sync(elapsed_s)
            self._parts.store.settle(ticket)
            self._turn()

        self._ports.writer.submit(ticket, sync=sync, done=done)

    def _advance_durable(self) -> None:
        """Finish the Readys that became durable: writes end in the order in which they began."""
        while len(self._in_flight) > self._tickets:
            ready = self._in_flight.popleft()
            self._node.advance(ready)
            self._maybe_end_recovery()
            if ready.messages_after:
                self._send(ready.messages_after)

    def _send(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if isinstance(message, InstallSnapshot):
                self._ports.outbound.send_snapshot(message)
        others = [message for message in messages if not isinstance(message, InstallSnapshot)]
        self._ports.outbound.send(others)

    def _hand_over_snapshot(self, ready: Ready, meta: SnapshotMeta) -> None:
        self._stopped = True
        unknown = self._pending.abandon()
        if unknown:
            # The snapshot may include them, so they get no answer: their clients only see a closed connection.
            _log.warning(
                "the outcome of %d proposals is unknown: a snapshot replaces the log", unknown
            )
        assert ready.hard_state is not None, "a snapshot always moves the commit index"
        self._ports.host.snapshot_ready(meta, ready.hard_state)

    # -- proposing -------------------------------------------------------------------------------

    def _may_propose(self) -> bool:
        return len(self._waiting) > 0 and self._tickets < TICKETS_MAX

    def _lingers(self) -> bool:
        """Return whether proposals wait for others; the loop wakes when the wait ends."""
        return self._waiting.linger(on_its_way=self._tickets > 0 or len(self._pending) > 0)

    def _propose(self) -> None:
        """Propose one entry; proposals that do not fit into it wait for the next turn."""
        self._refused = False
        if not self._may_propose():
            return
        if self._lingers():
            return
        if not self._role.serving:
            self._proposer.lose(self._waiting.take_all())
            return
        group = self._waiting.next_group()
        try:
            self._proposer.propose(group)
        except (ProposalRefused, NotLeader) as error:
            # Too much waits for followers, or leadership is being transferred. The proposals keep their place and
            # are tried again; nothing may overtake them. If leadership is lost, the next turn sees the change of
            # role and fails them.
            self._waiting.put_back(group)
            self._refused = True
            _log.debug("proposals wait: %s", error)

    # -- applying --------------------------------------------------------------------------------

    def _apply(self, entry: Entry) -> None:
        parts = self._parts
        batch = Batch()
        outcomes: list[Outcome] = []
        match entry.kind:
            case EntryKind.NORMAL:
                split = split_entry(entry.data)
                outcomes = parts.machine.apply(entry.index, entry.term, split, batch)
            case EntryKind.NOOP | EntryKind.CONFIG:
                parts.machine.apply_noop(entry.index, entry.term, batch)
                if entry.kind is EntryKind.CONFIG:
                    parts.log.set_membership(batch, Membership.decode(entry.data))
            case _:
                assert_never(entry.kind)
        parts.store.stage(batch)
        self._node.applied_to(entry.index)
        self.figures.entries_applied += 1
        self._applied(entry, outcomes)

    def _applied(self, entry: Entry, outcomes: list[Outcome]) -> None:
        now = self._ports.clock.now()
        if outcomes:
            self.submit(self._core.applied(outcomes, now))
        committed, lost = self._pending.settle(entry.index, entry.term)
        if committed is not None:
            position = 0
            self._core.context.entries.settle(committed.proposals)
            for proposal in committed.proposals:
                end = position + len(proposal.records)
                if proposal.applied is not None:
                    self.submit(proposal.applied(outcomes[position:end], now))
                position = end
            elapsed_s = self._ports.clock.seconds() - committed.proposed_at
            self._waiting.group_commit.ended(elapsed_s, len(committed.proposals))
            self.figures.on_commit(elapsed_s, len(committed.proposals))
        self.figures.proposals_lost += len(lost)
        self._proposer.lose(lost)
        match entry.kind:
            case EntryKind.CONFIG:
                self._ports.host.membership_changed(entry.index, Membership.decode(entry.data))
            case EntryKind.NOOP:
                self._role.noop_applied(entry.term)
