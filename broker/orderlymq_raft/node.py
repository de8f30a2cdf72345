"""
One replica's consensus core: messages, ticks and proposals in, Readys out.

Raft (Ongaro and Ousterhout; section numbers are the paper's, "thesis" is Ongaro's) without
any input or output of its own: the shell persists, sends and applies what ready() hands out
and says so with advance(). The rules stand in election.py, replication.py, follower.py,
membership.py and reads.py, violations.py finds messages that break them, dispatch.py leads the others to them; this module builds the Readys.
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
"""60 s at 200 ms: a slow disk opens a large state within that, and a peer that is gone holds the log for no longer."""


class Node:
    """
    One replica of one group.

    Life: built from storage after a start, driven by one thread, dropped at a stop; nothing
    needs closing. *applied* is the index that the state machine has durably applied. *random_below(n)*
    returns a number in 0..n-1. check() asserts the invariants.
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
        # What the last Ready said, so that the next one says only what is news.
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
        """Return the leader that this replica follows or is."""
        return self._state.leader

    @property
    def commit(self) -> Index:
        """Return the highest index known to be committed."""
        return self._state.log.commit

    @property
    def last_index(self) -> Index:
        """Return the end of the log, durable or not."""
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
        """Return how long a majority took to answer this leader the last time."""
        return self._state.round_trip_ticks or 0

    @property
    def is_restoring(self) -> bool:
        """Return whether a snapshot that was taken in is not durable yet."""
        return self._state.log.snapshot is not None

    @property
    def lease_valid(self) -> bool:
        """
        Return whether the leader may answer a read at *commit* without asking anyone.

        Needs lease_reads, and a shell that has just made up for all ticks that are due.
        """
        return reads.lease_valid(self._state)

    def tick(self) -> None:
        """Let one tick of time pass."""
        state = self._state
        state.ticks += 1
        if state.role is Role.LEADER:
            election.tick_leader(state)
        else:
            election.tick(state)
        keep_newest(state.after)

    def step(self, message: Message) -> None:
        """
        Take in *message* from another replica.

        Raises ProtocolViolation for one that breaks the rules of raft; it has changed nothing.
        """
        violations.check(self._state, message)
        dispatch.route(self._state, message)
        keep_newest(self._state.after)

    def hears(self, node: NodeId) -> bool:
        """Return whether *node* is, or may have become, a member; False of a removed one while a leader is heard."""
        return not dispatch.is_unknown(self._state, node)

    def propose(self, data: bytes) -> tuple[Term, Index]:
        """
        Append *data* to the group's log, if this replica leads.

        Returns where it stands: it is committed when a committed entry has that index and that
        term, and lost when one has that index and another term. Raises NotLeader, or
        ProposalRefused while too much is uncommitted or leadership is being transferred.
        """
        state = self._state
        if state.role is not Role.LEADER:
            raise NotLeader(state.leader)
        if state.transferee is not None:
            raise ProposalRefused("leadership is being transferred; ask the next leader")
        size = state.uncommitted_bytes + len(data)
        # One proposal always fits, however large, or it could never be made.
        if size > state.config.uncommitted_bytes_max and state.uncommitted_bytes:
            raise ProposalRefused("too many bytes wait to be committed; retry when some are")
        state.uncommitted_bytes = size
        return state.term, state.append_entry(data, EntryKind.NORMAL)

    def propose_membership(self, change: MembershipChange) -> tuple[Term, Index]:
        """Change the membership by one node; raises as propose(), and while one is under way."""
        index = membership.propose(self._state, change)
        return self._state.term, index

    @property
    def is_transferring(self) -> bool:
        """Return whether this leader hands its place over; false once it has given that up and leads on."""
        return self._state.transferee is not None

    def transfer_leadership(self, target: NodeId) -> None:
        """
        Hand leadership to the voter *target* (thesis 3.10); gives up after election_ticks.

        Proposals are refused meanwhile. Raises NotLeader, or ProposalRefused for a target that
        cannot lead.
        """
        if transfer.begin(self._state, target):
            replication.probe_lost_appends(self._state, target)

    def step_down(self) -> bool:
        """
        Lead no more, and ask the most complete of the others to run; return whether this replica led.

        For a leader that cannot do its work. One that is the only voter goes on: nobody else can.
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

        With lease reads it does nothing while a leader is heard: its lease rests on that.
        """
        if not election.is_bound(self._state):
            election.campaign(self._state, transfer=False)

    def leader_gone(self, node: NodeId) -> None:
        """Note that the connection on which *node* spoke is gone; if it led, run without delay."""
        election.leader_gone(self._state, node)

    def note_stickiness(self, node: NodeId, ticks: int) -> None:
        """
        Note for how many ticks *node* sticks to a leader that it hears; 0 where that is unknown.

        What it has said before is not undone: answers from now on rest on this. Leases need it, because
        replicas of a group may have different settings while these are changed.
        """
        if node != self.id:
            self._state.stickiness[node] = ticks

    def set_recovering(self, *, recovering: bool) -> None:
        """
        Note whether this replica may have lost its log, and has not all of it again.

        It cannot tell a group that begins from a disk that was lost. While its log holds nothing but
        the openings of terms it elects, and is elected by, others of its kind alone; with more it stands
        for no election and votes for nobody. A recovering leader sends no commit index: it
        bootstraps the group when its shell calls this with False.
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
        """Note that messages to *node* got lost: entries sent ahead must be sent again."""
        progress = self._state.progress.get(node)
        if progress is not None and progress.state is ProgressState.REPLICATE:
            progress.become_probe()
            self._state.append_wanted = True

    def report_wiped(self, node: NodeId) -> None:
        """
        Note that *node* has lost its log: nothing that it acknowledged counts from now on.

        What is committed stays committed. To be called before anything that the new life of *node*
        says is stepped, and before anything is sent to it. The shell of *node* must call it recovering
        (`set_recovering`) until it has everything again that an Append calls committed.
        """
        state = self._state
        if node == state.id:
            return
        if node in state.progress or node in state.leaving:
            state.track_wiped(node)
        elif state.role in (Role.PRE_CANDIDATE, Role.CANDIDATE) and not state.recovering:
            # Its vote may be on the way, and may have been followed by another one.
            state.become_follower(state.term, None)

    def report_snapshot(self, node: NodeId, ok: bool) -> None:
        """
        Note that *node* has taken in the snapshot, or that its transfer failed.

        Owed for every InstallSnapshot that was handed out: entries wait for it.
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
        # Its answer, or the next heartbeat's, says that it is there to be asked.
        progress.probe_sent = True

    def compact(self, index: Index) -> Index:
        """
        Return how much of the log may be dropped when *index* is wished for.

        Never more than is applied; on a leader never what a live peer still waits for, unless it lags too far, or one that has
        just taken a snapshot over and puts it in place, so that it need not fetch another one. The shell drops entries, the core
        holds none of them.
        """
        state = self._state
        allowed = min(index, state.log.applied)
        for progress in state.progress.values():
            if progress.snapshot is not None:
                # Its transfer may take long; what follows it must still be there then, or
                # the peer would need the next snapshot, and the next, for ever.
                allowed = min(allowed, progress.snapshot.index)
            elif progress.is_alive:
                # One that answers heartbeats may store nothing for hours.
                furthest = Index(index - state.config.live_lag_entries_max)
                allowed = min(allowed, max(progress.match, furthest))
            elif state.ticks < progress.installs_until:
                # It hears nobody meanwhile, so it seems to be away.
                allowed = min(allowed, max(progress.installs, progress.match))
        return allowed

    def ready(self) -> Ready | None:
        """Hand out the work of the next turn, or None when there is none."""
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
        """Return up to where the log is durable here."""
        return self._state.log.stable

    def take_heartbeat_responses(self) -> list[HeartbeatResponse]:
        """
        Return answers to heartbeats, which may be sent now, before any write that is under way.

        They say that this replica follows the leader of its term, whatever entries it has. So they wait for a term or a
        vote that is not durable, and for nothing else: a slow disk is no reason to depose a leader.
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
        """Note that everything of *ready*, the oldest one that must be synced, is durable now."""
        assert self._in_flight, "advance() without a Ready in flight"
        assert self._in_flight[0] is ready, "Readys are advanced in the order they came"
        self._in_flight.popleft()
        state = self._state
        state.log.land(ready.snapshot)

        if state.role is Role.LEADER:
            # A leader that is being removed replicates on, but does not count itself (6).
            own = state.progress.get(state.id)
            if own is not None and own.acknowledge(state.log.stable):
                replication.maybe_commit(state)
        elif state.role is Role.CANDIDATE and ready.hard_state is not None:
            promise = ready.hard_state
            if promise.term == state.term and promise.vote == state.id:
                election.count_vote(state, state.id, granted=True)

    def status(self) -> Status:
        """Return how things stand."""
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
        # Those of earlier terms may be settled without this leader's knowledge.
        own = [index for index, _ in state.configs[1:] if state.log.term(index) == state.term]
        assert len(own) <= 1, "one membership change at a time"
        for peer, progress in state.progress.items():
            progress.check()
            assert progress.match <= state.log.last_index, "nobody has more than the leader"
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
        """Return the hard state if it changed, and whether the change is a promise to keep."""
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
        """Take the entries to apply, and give their bytes back to the proposers."""
        state = self._state
        entries = state.log.deliver(state.config.committed_bytes_max)
        if state.uncommitted_bytes:
            term = state.term
            size = sum([len(entry.data) for entry in entries if entry.term == term])
            state.uncommitted_bytes = max(0, state.uncommitted_bytes - size)
        return entries
