"""
One replica's raft core: messages, ticks and proposals go in, Readys come out.

Raft (Ongaro and Ousterhout; section numbers are the paper's, "thesis" is Ongaro's) without any input or
output of its own: the shell persists, sends and applies what ready() returns, and confirms it with advance().
The rules are in election.py, replication.py, follower.py, membership.py and reads.py. violations.py rejects
messages that break them, dispatch.py routes the others. This module builds the Readys.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from orderlymq_raft import dispatch, election, membership, reads, replication, transfer, violations
from orderlymq_raft.config import Config
from orderlymq_raft.log import LogStorage, RaftLog
from orderlymq_raft.messages import HeartbeatResponse, Message
from orderlymq_raft.progress import ProgressState
from orderlymq_raft.ready import PeerStatus, Ready, Status, keep_newest
from orderlymq_raft.state import RaftState
from orderlymq_raft.types import (
    Entry,
    EntryKind,
    HardState,
    Index,
    Membership,
    MembershipChange,
    NodeId,
    NotLeader,
    ProposalRefused,
    Role,
    RoleChange,
    Term,
)

INSTALL_ELECTIONS: Final = 300
"""60 s at 200 ms: a slow disk opens a large state within this time, and an unreachable peer does not keep the log longer."""


class Node:
    """
    One replica of one raft group.

    It is built from storage after a start, driven by one thread, and dropped at a stop; nothing needs
    closing. *applied* is the index that the state machine has durably applied. *random_below(n)* returns a
    number in 0..n-1. check() asserts the invariants.
    """

    def __init__(
        self,
        config: Config,
        storage: LogStorage,
        *,
        applied: Index,
        random_below: Callable[[int], int],
    ) -> None:
        hard_state, _ = storage.initial_state()
        log = RaftLog(storage, commit=Index(max(hard_state.commit, applied)), applied=applied)
        configs = membership.load(storage, applied)
        self._state = RaftState(config, log, hard_state, configs, random_below)
        membership.settle(self._state)
        self._in_flight: deque[Ready] = deque()
        # The contents of the last Ready, so that the next one reports only changes.
        self._reported_hard_state = (hard_state.term, hard_state.vote, hard_state.commit)
        self._reported_role: tuple[Role, NodeId | None, Term] = (
            Role.FOLLOWER,
            None,
            hard_state.term,
        )

    @property
    def id(self) -> NodeId:
        """Return this replica's id."""
        return self._state.id

    @property
    def term(self) -> Term:
        """Return the present term."""
        return self._state.term

    @property
    def role(self) -> Role:
        """Return the present role."""
        return self._state.role

    @property
    def is_leader(self) -> bool:
        """Return whether this replica leads its term, as far as it knows."""
        return self._state.role is Role.LEADER

    @property
    def leader(self) -> NodeId | None:
        """Return the leader that this replica follows, or itself if it leads."""
        return self._state.leader

    @property
    def commit(self) -> Index:
        """Return the highest index known to be committed."""
        return self._state.log.commit

    @property
    def last_index(self) -> Index:
        """Return the last index of the log, durable or not."""
        return self._state.log.last_index

    @property
    def memberships(self) -> tuple[Membership, ...]:
        """Return all memberships that may be effective: the settled one, then those that the log adds."""
        return tuple(membership for _, membership in self._state.configs)

    @property
    def election_ticks(self) -> int:
        """Return the shortest election time-out of the group."""
        return self._state.config.election_ticks

    @property
    def round_trip_ticks(self) -> int:
        """Return how long a majority took to answer this leader's last round of heartbeats; 0 if unknown."""
        return self._state.round_trip_ticks or 0

    @property
    def is_restoring(self) -> bool:
        """Return whether a snapshot was received that is not durable yet."""
        return self._state.log.snapshot is not None

    @property
    def lease_valid(self) -> bool:
        """
        Return whether the leader may answer a read at *commit* without asking its peers.

        Needs lease_reads, and a shell that has just made up for all ticks that are due.
        """
        return reads.lease_valid(self._state)

    def tick(self) -> None:
        """Advance time by one tick."""
        state = self._state
        state.ticks += 1
        if state.role is Role.LEADER:
            election.tick_leader(state)
        else:
            election.tick(state)
        keep_newest(state.after)

    def step(self, message: Message) -> None:
        """
        Handle *message* from another replica.

        Raises ProtocolViolation for a message that breaks the rules of raft; such a message changes nothing.
        """
        violations.check(self._state, message)
        dispatch.route(self._state, message)
        keep_newest(self._state.after)

    def hears(self, node: NodeId) -> bool:
        """Return whether *node* is or may have become a member; False for a removed one while a leader is heard."""
        return not dispatch.is_unknown(self._state, node)

    def propose(self, data: bytes) -> tuple[Term, Index]:
        """
        Append *data* to the raft group's log, if this replica leads.

        Returns the term and index of the entry. It is committed when a committed entry has that index and
        that term, and lost when one has that index and another term. Raises NotLeader, or ProposalRefused
        while too much is uncommitted or leadership is being transferred.
        """
        state = self._state
        if state.role is not Role.LEADER:
            raise NotLeader(state.leader)
        if state.transferee is not None:
            raise ProposalRefused(
                "leadership is being transferred; send the request to the next leader"
            )
        size = state.uncommitted_bytes + len(data)
        # One proposal always fits, however large, or it could never be made.
        if size > state.config.uncommitted_bytes_max and state.uncommitted_bytes:
            raise ProposalRefused("too many bytes wait to be committed; retry when fewer do")
        state.uncommitted_bytes = size
        return state.term, state.append_entry(data, EntryKind.NORMAL)

    def propose_membership(self, change: MembershipChange) -> tuple[Term, Index]:
        """Change the membership by one node; raises as propose(), and while another change is under way."""
        index = membership.propose(self._state, change)
        return self._state.term, index

    @property
    def is_transferring(self) -> bool:
        """Return whether this leader is handing over its leadership; False again once it has given up the transfer."""
        return self._state.transferee is not None

    def transfer_leadership(self, target: NodeId) -> None:
        """
        Hand leadership to the voter *target* (thesis 3.10); gives up after election_ticks.

        Refuses proposals meanwhile. Raises NotLeader, or ProposalRefused for a target that cannot lead.
        """
        if transfer.begin(self._state, target):
            replication.probe_lost_appends(self._state, target)

    def step_down(self) -> bool:
        """
        Give up leadership and ask the most up-to-date of the others to run; return whether this replica did so.

        For a leader that cannot do its work. A leader that is the only voter continues, because no other
        replica can lead.
        """
        state = self._state
        if state.role is not Role.LEADER or state.membership.voters == {state.id}:
            return False
        replication.leave(state)
        return True

    def read_index(self, context: int) -> None:
        """Ask for ReadState(context, ...) in a later Ready; raises NotLeader."""
        reads.read_index(self._state, context)

    def campaign(self) -> None:
        """
        Stand for election now, for instance because the leader is known to be gone.

        With lease reads it does nothing while this replica still sticks to a leader, whose lease may rest on
        that.
        """
        if not election.is_bound(self._state):
            election.campaign(self._state, transfer=False)

    def leader_gone(self, node: NodeId) -> None:
        """Note that the connection to *node* broke; if it led, run as soon as leader stickiness ends."""
        election.leader_gone(self._state, node)

    def note_stickiness(self, node: NodeId, ticks: int) -> None:
        """
        Note for how many ticks *node* sticks to a leader that it hears; 0 if that is unknown.

        It applies to answers from now on; earlier answers stay valid. Leases need it, because the replicas of
        a raft group may have different settings while these are being changed.
        """
        if node != self.id:
            self._state.stickiness[node] = ticks

    def set_recovering(self, *, recovering: bool) -> None:
        """
        Note whether this replica may have lost its log and does not have all of it again yet.

        A recovering replica cannot tell a new raft group from a lost disk. While its log holds only the no-op
        entries that open terms, it votes only for recovering replicas, and only they vote for it. With more
        in its log it neither runs nor votes. A recovering leader sends no commit index: it bootstraps the
        group when its shell calls this with False.
        """
        state = self._state
        bootstraps = state.recovering and not recovering and state.role is Role.LEADER
        state.recovering = recovering
        if bootstraps:
            replication.broadcast_commit(state)

    def applied_to(self, index: Index) -> None:
        """Note that the state machine has applied everything up to *index*."""
        log = self._state.log
        assert index <= log.applying, f"entry {index} was not handed out for applying yet"
        log.applied = max(log.applied, index)

    def report_unreachable(self, node: NodeId) -> None:
        """Note that messages to *node* were lost: entries sent ahead must be sent again."""
        progress = self._state.progress.get(node)
        if progress is not None and progress.state is ProgressState.REPLICATE:
            progress.become_probe()
            self._state.append_wanted = True

    def report_wiped(self, node: NodeId) -> None:
        """
        Note that *node* has lost its log: nothing that it acknowledged counts from now on.

        Committed entries stay committed. Call this before stepping any message of the restarted *node*, and
        before sending anything to it. The shell of *node* must keep it recovering (`set_recovering`) until it
        has all entries again that an Append reports as committed.
        """
        state = self._state
        if node == state.id:
            return
        if node in state.progress or node in state.leaving:
            state.track_wiped(node)
        elif state.role in (Role.PRE_CANDIDATE, Role.CANDIDATE) and not state.recovering:
            # Its vote may be on its way to us, and it may have voted again since.
            state.become_follower(state.term, None)

    def report_snapshot(self, node: NodeId, ok: bool) -> None:
        """
        Note that *node* has received the snapshot, or that the transfer failed.

        The shell must call this for every InstallSnapshot that was handed out: entries wait for it.
        """
        progress = self._state.progress.get(node)
        if progress is None or progress.state is not ProgressState.SNAPSHOT:
            return
        if not ok:
            progress.snapshot = None
        elif progress.snapshot is not None:
            progress.installs = progress.snapshot.index
            longest = INSTALL_ELECTIONS * self._state.config.election_ticks
            progress.installs_until = self._state.ticks + longest
        progress.become_probe()
        # Its answer to the snapshot or to the next heartbeat shows that it can be asked.
        progress.probe_sent = True

    def compact(self, index: Index) -> Index:
        """
        Return up to which index the log may be dropped if the caller wants to drop up to *index*.

        Never more than is applied. On a leader, never what a live peer still needs, unless that peer lags too
        far. Nor what a peer needs that has just received a snapshot and is installing it, so that it need not
        fetch another one. The shell drops the entries; the core stores none of them.
        """
        state = self._state
        allowed = min(index, state.log.applied)
        for progress in state.progress.values():
            if progress.snapshot is not None:
                # The transfer may take long. The entries after the snapshot must still exist then, or the peer
                # would need one snapshot after another for ever.
                allowed = min(allowed, progress.snapshot.index)
            elif progress.is_alive:
                # A peer that answers heartbeats may still store nothing for hours.
                furthest = Index(index - state.config.live_lag_entries_max)
                allowed = min(allowed, max(progress.match, furthest))
            elif state.ticks < progress.installs_until:
                # A peer that installs a snapshot answers no messages, so it seems to be away.
                allowed = min(allowed, max(progress.installs, progress.match))
        return allowed

    def ready(self) -> Ready | None:
        """Return the work of the next turn, or None if there is none."""
        state = self._state
        log = state.log
        if state.append_wanted or state.heartbeat_wanted:
            replication.flush(state)
        if not self._has_news():
            return None

        snapshot = log.snapshot if self._is_new_snapshot() else None
        entries = log.hand_out()
        hard_state, promised = self._hard_state()
        ready = Ready(
            hard_state=hard_state,
            entries=entries,
            snapshot=snapshot,
            messages_now=state.now,
            messages_after=state.after,
            committed=self._deliver() if log.has_deliverable() else (),
            read_states=tuple(state.read_states),
            role_change=self._role_change(),
            must_sync=bool(entries) or snapshot is not None or promised,
            promises=promised,
        )
        state.now = []
        state.after = []
        if state.read_states:
            state.read_states = []
        if ready.must_sync:
            log.take_off()
            self._in_flight.append(ready)
        return ready

    @property
    def stable(self) -> Index:
        """Return the last index that is durable on this replica."""
        return self._state.log.stable

    def take_heartbeat_responses(self) -> list[HeartbeatResponse]:
        """
        Return answers to heartbeats, which may be sent now, before any write in progress.

        They state that this replica follows the leader of its term, regardless of its entries. So they wait
        only for a term or a vote that is not durable: a slow disk is no reason to depose a leader.
        """
        state = self._state
        found = [each for each in state.after if isinstance(each, HeartbeatResponse)]
        is_durable = self._reported_hard_state[:2] == (state.term, state.vote) and not any(
            each.promises for each in self._in_flight
        )
        if not found or not is_durable:
            return []
        state.after = [each for each in state.after if not isinstance(each, HeartbeatResponse)]

        return found

    def advance(self, ready: Ready) -> None:
        """Note that all of *ready*, the oldest Ready that must be synced, is durable now."""
        assert self._in_flight, "advance() without a Ready in flight"
        assert self._in_flight[0] is ready, "Readys are advanced in the order they came"
        self._in_flight.popleft()
        state = self._state
        state.log.land(ready.snapshot)

        if state.role is Role.LEADER:
            # A leader that is being removed still replicates, but does not count itself (6).
            own = state.progress.get(state.id)
            if own is not None and own.acknowledge(state.log.stable):
                replication.maybe_commit(state)
        elif state.role is Role.CANDIDATE and ready.hard_state is not None:
            promise = ready.hard_state
            if promise.term == state.term and promise.vote == state.id:
                election.count_vote(state, state.id, granted=True)

    def status(self) -> Status:
        """Return a report of the replica's state."""
        state = self._state
        return Status(
            id=state.id,
            role=state.role,
            term=state.term,
            leader=state.leader,
            commit=state.log.commit,
            applied=state.log.applied,
            last_index=state.log.last_index,
            membership=state.membership,
            transferee=state.transferee,
            progress={
                peer: PeerStatus(progress.match, progress.next, progress.state, progress.is_alive)
                for peer, progress in sorted(state.progress.items())
            },
        )

    def check(self) -> None:
        """Assert the invariants of the replica."""
        state = self._state
        state.log.check()
        assert state.log.in_flight() == len(self._in_flight), "both count the same Readys"
        assert [index for index, _ in state.configs] == sorted(
            {index for index, _ in state.configs}
        ), "memberships follow each other"
        assert all(index > state.log.commit for index, _ in state.configs[1:]), "settled at commit"
        assert state.membership == state.configs[-1][1], "the last membership is effective"
        if state.role is not Role.LEADER:
            assert not state.progress, "only a leader tracks peers"
            assert not state.leaving, "only a leader asks those who leave"
            assert state.transferee is None, "only a leader transfers"
            assert state.leader != state.id, "only a leader is its own leader"
            return
        assert state.leader == state.id, "a leader knows itself"
        assert state.progress.keys() == state.membership.members, "all members are tracked"
        assert state.leaving.keys() == state.former_voters, "those who leave are asked"
        # Changes of earlier terms may be committed without this leader's knowledge.
        own = [index for index, _ in state.configs[1:] if state.log.term(index) == state.term]
        assert len(own) <= 1, "one membership change at a time"
        for peer, progress in state.progress.items():
            progress.check()
            assert progress.match <= state.log.last_index, "no replica has more than the leader"
            if peer == state.id:
                assert progress.match == state.log.stable, "a leader counts what is durable"

    def _has_news(self) -> bool:
        """Return whether there is work, apart from appends that are not built yet."""
        state = self._state
        log = state.log
        return bool(
            state.after
            or state.now
            or log.has_unhanded()
            or log.has_deliverable()
            or state.read_states
            or self._reported_hard_state != (state.term, state.vote, log.commit)
            or self._reported_role != (state.role, state.leader, state.term)
        )

    def _hard_state(self) -> tuple[HardState | None, bool]:
        """Return the hard state if it changed, and whether the change is a promise (term or vote)."""
        state = self._state
        current = (state.term, state.vote, state.log.commit)
        reported = self._reported_hard_state
        if current == reported:
            return None, False
        self._reported_hard_state = current
        return HardState(*current), current[:2] != reported[:2]

    def _role_change(self) -> RoleChange | None:
        state = self._state
        current = (state.role, state.leader, state.term)
        if current == self._reported_role:
            return None
        self._reported_role = current
        return RoleChange(*current)

    def _is_new_snapshot(self) -> bool:
        snapshot = self._state.log.snapshot
        return snapshot is not None and all(
            flying.snapshot is not snapshot for flying in self._in_flight
        )

    def _deliver(self) -> tuple[Entry, ...]:
        """Take the entries to apply, and subtract their size from the uncommitted bytes."""
        state = self._state
        entries = state.log.deliver(state.config.committed_bytes_max)
        if state.uncommitted_bytes:
            term = state.term
            size = sum([len(entry.data) for entry in entries if entry.term == term])
            state.uncommitted_bytes = max(0, state.uncommitted_bytes - size)
        return entries
