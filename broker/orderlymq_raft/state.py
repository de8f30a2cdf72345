"""
All state that one replica has about its raft group, and its role changes.

Plain data that election, replication, following, reads and membership work on. Only Node creates it. Messages
for other replicas are collected here in two outboxes. *now* holds messages that a leader may send before its
own disk has finished. *after* holds promises, which must not be sent before the state that they rest on is
durable.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from orderlymq_raft.config import Config
from orderlymq_raft.log import RaftLog
from orderlymq_raft.messages import Message
from orderlymq_raft.progress import Progress
from orderlymq_raft.types import (
    Entry,
    EntryKind,
    HardState,
    Index,
    Membership,
    NodeId,
    ReadState,
    Role,
    Term,
)

SPREAD_DOUBLINGS_MAX: Final = 4
"""Time-outs are drawn from up to 16 election time-outs: 3.2 s at 200 ms, twice a round trip of 1.6 s."""


@dataclass(frozen=True, slots=True)
class PendingRead:
    """Reads that are answered once a majority has answered heartbeat round *round*."""

    round: int
    index: Index
    contexts: tuple[int, ...]


def _sticks_after_start(config: Config, term: Term) -> int:
    """Return for how many ticks a replica sticks after its start: it may have answered a leader just before it stopped."""
    return max(config.election_ticks, config.promised_ticks) if config.lease_reads and term else 0


class RaftState:
    """
    The volatile state of one replica.

    It is built from storage, changed by step and tick, and dropped at a crash. progress, reads and the other
    fields of a leader are empty in every other role.
    """

    def __init__(
        self,
        config: Config,
        log: RaftLog,
        hard_state: HardState,
        configs: list[tuple[Index, Membership]],
        random_below: Callable[[int], int],
    ) -> None:
        self.config = config
        self.id = config.id
        self.log = log
        self.random_below = random_below

        self.term = hard_state.term
        self.vote = hard_state.vote
        self.role = Role.FOLLOWER
        self.leader: NodeId | None = None
        self.votes: dict[NodeId, bool] = {}

        # The first one is certain; later ones may still be truncated. The last one is effective from the moment
        # it is appended (thesis 4.1).
        self.configs = configs
        self.membership = configs[-1][1]
        # How far an append of this term's leader has shown, since this process started, that the logs are equal.
        self.matched = Index(0)
        self.ticks = 0
        # The tick until which this replica does not help to elect another leader.
        self.sticks_until = _sticks_after_start(config, self.term)
        self.election_elapsed = 0
        self.heartbeat_elapsed = 0
        self.election_timeout = 0
        # Real elections lost in a row. They widen the range of the next time-out.
        self.elections_lost = 0
        self.votes_asked = 0  # requests sent in this candidacy
        # A shorter time-out while the leader is believed to be gone; reset when a leader is heard.
        self.hurry_ticks = 0
        # Whether this replica may have lost its log: then its vote, even for itself, counts only in a new raft group.
        self.recovering = False
        # Whether a candidate whose log is behind has asked this learner for its vote: see may_run.
        self.forced_candidate = False
        self.draw_election_timeout()

        # How long each peer sticks to a leader that it hears, if it has reported that.
        self.stickiness: dict[NodeId, int] = {config.id: config.election_ticks}
        self.progress: dict[NodeId, Progress] = {}
        self.leaving: dict[NodeId, Progress] = {}  # former voters: get heartbeats, but no entries
        # The no-op of this term. This leader commits entries from here on by counting replicas.
        self.term_start = Index(0)
        self.uncommitted_bytes = 0
        self.transferee: NodeId | None = None
        self.transfer_sent = False

        self.round = 0
        self.round_ticks: deque[tuple[int, int]] = deque()
        # How long a majority took to answer the last round; None until the no-op of the term is committed.
        self.round_trip_ticks: int | None = None
        self.led_since_tick = 0
        self.lease_tick: int | None = None
        # How long a majority of the voters that answered at lease_tick sticks to this leader.
        self.lease_ticks = 0
        self.lease_revoked = False
        self.reads_next: list[int] = []
        self.reads_pending: deque[PendingRead] = deque()
        self.read_states: list[ReadState] = []

        self.now: list[Message] = []
        self.after: list[Message] = []
        # Messages are built only when the shell asks for a Ready, so that work that arrives together shares them.
        self.append_wanted = False
        self.heartbeat_wanted = False

    @property
    def is_voter(self) -> bool:
        """Return whether this replica counts in majorities."""
        return self.id in self.membership.voters

    @property
    def former_voters(self) -> frozenset[NodeId]:
        """
        Return the other voters whose removal may still be undone, so that they may still elect another leader.

        A voter with the removal in its log would refuse its vote to replicas that lack the entry and may need
        that vote.
        """
        voters = frozenset[NodeId]().union(*(each.voters for _, each in self.configs))
        return voters - self.membership.members - {self.id}

    @property
    def may_run(self) -> bool:
        """
        Return whether this replica may stand for election.

        A replica whose removal is not known to be committed may run, though its own vote does not count:
        perhaps no other replica has the entry that removes it (thesis 4.2.2). A learner may run after a
        candidate with a log that is behind asked for its vote; it leaves as soon as it leads. A recovering
        replica may run only while its log holds nothing but elections: only other recovering replicas vote
        for it (election.py).
        """
        if self.recovering and not self.log.is_blank():
            return False
        return self.forced_candidate or any(
            self.id in membership.voters for _, membership in self.configs
        )

    def draw_election_timeout(self) -> None:
        """
        Choose the next time-out at random, so that split votes are rare (section 5.2).

        Candidates split the vote if they start within one message delay of each other. Each lost election
        doubles the range of the draw, so that it becomes wide enough for any network.
        """
        ticks = self.config.election_ticks
        spread = ticks << min(self.elections_lost, SPREAD_DOUBLINGS_MAX)
        self.hurry_ticks = 0
        self.election_timeout = ticks + self.random_below(spread + 1)

    def become_follower(self, term: Term, leader: NodeId | None) -> None:
        """Follow *leader* in *term*, or wait for a leader if it is None."""
        assert term >= self.term, "terms never fall"
        if term > self.term:
            self.term = term
            self.vote = None
            self.matched = Index(0)
        if self.role is not Role.FOLLOWER or leader is not None:
            # A higher term alone does not reset the timer: a candidate that cannot win because its log is behind
            # must not keep one that can win from trying.
            self.election_elapsed = 0
        self.role = Role.FOLLOWER
        self.leader = leader
        if leader is not None:
            self.forced_candidate = False
            # Half of them still count: the network that split these votes will split those of the next election,
            # too.
            self.elections_lost //= 2
        self.draw_election_timeout()
        self._leave_leadership()

    def become_pre_candidate(self) -> None:
        """Ask for pre-votes without changing the term (thesis 9.6)."""
        assert self.role is not Role.LEADER, "a leader has no reason to run"
        self.role = Role.PRE_CANDIDATE
        self.leader = None
        self.votes.clear()
        self.election_elapsed = 0
        self.draw_election_timeout()

    def become_candidate(self) -> None:
        """Open a new term and vote for this replica; the vote counts once it is durable."""
        assert self.role is not Role.LEADER, "a leader has no reason to run"
        self.role = Role.CANDIDATE
        self.term = Term(self.term + 1)
        self.matched = Index(0)
        self.vote = self.id
        self.leader = None
        self.votes.clear()
        self.votes_asked = 0
        self.election_elapsed = 0
        self.draw_election_timeout()

    def become_leader(self) -> None:
        """Lead this term, and open it with an empty entry (section 8)."""
        assert self.role is Role.CANDIDATE, "only an election makes a leader"
        self.role = Role.LEADER
        self.leader = self.id
        self.led_since_tick = self.ticks
        self.votes.clear()
        self.election_elapsed = 0
        self.heartbeat_elapsed = 0
        self.term_start = Index(self.log.last_index + 1)
        for peer in self.membership.members | self.former_voters:
            self.track(peer, self.term_start)
        self.append_entry(b"", EntryKind.NOOP)

    def track(self, peer: NodeId, first: Index) -> Progress:
        """Begin to replicate to *peer* from entry *first* with nothing known of its log; a former voter gets only heartbeats."""
        progress = Progress(
            next=first,
            inflight_max=self.config.inflight_appends_max,
            inflight_bytes_max=self.config.inflight_bytes_max,
            # The peer has a full election time-out to answer before it counts as gone.
            recently_active=True,
        )
        if peer == self.id:
            # Only durable entries count, for the leader as for every voter.
            progress.acknowledge(self.log.stable)
            progress.acked_round = self.round
            progress.become_replicate()
        tracked = self.progress if peer in self.membership.members else self.leaving
        tracked[peer] = progress
        return progress

    def track_wiped(self, peer: NodeId) -> None:
        """Restart replication to *peer*, which has lost its log."""
        progress = self.track(peer, Index(self.log.last_index + 1))
        progress.counts_from_round = self.round + 1
        self.append_wanted = True
        self.heartbeat_wanted = True

    def append_entry(self, data: bytes, kind: EntryKind) -> Index:
        """Append an entry to the leader's own log; the next Ready sends it to the peers."""
        log = self.log
        index = Index(log.last_index + 1)
        log.append((Entry(self.term, index, data, kind),))
        self.append_wanted = True
        return index

    def _leave_leadership(self) -> None:
        self.votes.clear()
        self.progress.clear()
        self.leaving.clear()
        self.term_start = Index(0)
        self.uncommitted_bytes = 0
        self.transferee = None
        self.transfer_sent = False
        self.round = 0
        self.round_ticks.clear()
        self.round_trip_ticks = None
        self.lease_tick = None
        self.lease_revoked = False
        self.reads_next.clear()
        self.reads_pending.clear()
        self.append_wanted = False
        self.heartbeat_wanted = False
        self.heartbeat_elapsed = 0
