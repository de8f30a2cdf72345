"""Defects of consensus, of the replication loop and of the store."""

from dataclasses import replace
from typing import Any

from orderlymq_broker.replication.leaderlease import LeaderLease
from orderlymq_broker.replication.loop import ReplicationLoop
from orderlymq_broker.replication.proposals import Committed, PendingProposals, Proposer
from orderlymq_broker.replication.recovery import Recovery
from orderlymq_broker.replication.role import ReplicaRole
from orderlymq_broker.state.broker import BrokerState
from orderlymq_broker.state.groups.locks import LockTable
from orderlymq_broker.store import snapshot
from orderlymq_broker.store.kv import Batch, Family, Reader
from orderlymq_broker.store.layout import Table, table_bounds
from orderlymq_broker.store.raftlog import RaftLogStore
from orderlymq_raft import election, reads, replication
from orderlymq_raft import follower as following
from orderlymq_raft.log import RaftLog
from orderlymq_raft.messages import Vote, VoteResponse
from orderlymq_raft.state import RaftState
from orderlymq_raft.types import Index
from tests.broker.store.memory import MemoryStore
from tests.sim.broker import replica
from tests.sim.defects.defect import Bed, Catalogue
from tests.sim.plan import STORMS

RAFT = Catalogue("raft")
LOOP = Catalogue("replication")


@RAFT.defect("commit an entry before a majority has it", "an acknowledged message is on a majority")
def _commit_alone(bed: Bed) -> None:
    bed.put(replication, "committed_index", lambda voters, acked: max(acked.values(), default=0))


@RAFT.defect(
    "commit entries of an earlier term by counting replicas",
    "only entries of the leader's own term are committed by counting",
    STORMS["older term"],
)
def _count_any_term(bed: Bed) -> None:
    real = replication.maybe_commit

    def maybe_commit(state: RaftState) -> None:
        own, state.term_start = state.term_start, Index(0)
        try:
            real(state)
        finally:
            if state.leader == state.id:
                state.term_start = own

    bed.put(replication, "maybe_commit", maybe_commit)


@RAFT.defect("vote twice in one term", "one vote per term, so one leader per term", STORMS["group"])
def _vote_twice(bed: Bed) -> None:
    def handle_vote(state: RaftState, message: Vote) -> None:
        granted = state.log.is_up_to_date(message.last_index, message.last_term)
        if granted:
            state.vote = message.sender
        state.after.append(VoteResponse(state.id, message.sender, state.term, granted))

    bed.put(election, "handle_vote", handle_vote)


@RAFT.defect(
    "vote for a candidate with a shorter log", "only a replica with a complete log is elected"
)
def _vote_for_anybody(bed: Bed) -> None:
    bed.put(RaftLog, "is_up_to_date", lambda self, last_index, last_term: True)


@RAFT.defect(
    "let a late append message truncate the log",
    "acknowledged entries stay in the log",
    STORMS["group"],
)
def _late_append_truncates(bed: Bed) -> None:
    real = following._merge

    def merge(state: RaftState, entries: Any) -> None:
        real(state, entries)
        end = entries[-1].index
        if state.log.commit <= end < state.log.last_index:
            state.log.truncate(Index(end + 1))

    bed.put(following, "_merge", merge)


@RAFT.defect("forget term and vote at a restart", "a vote is durable before it is sent")
def _forget_vote(bed: Bed) -> None:
    real = RaftLogStore.initial_state

    def initial_state(self: RaftLogStore) -> Any:
        hard_state, membership = real(self)
        return replace(hard_state, term=self.term(self.last_index()), vote=None), membership

    bed.put(RaftLogStore, "initial_state", initial_state)


@LOOP.defect(
    "send promises before they are durable",
    "promises survive a crash",
    STORMS["group"],
)
def _promise_early(bed: Bed) -> None:
    real = ReplicationLoop._begin

    def begin(self: ReplicationLoop, ready: Any) -> None:
        if ready.messages_after and ready.snapshot is None:
            self._send(ready.messages_after)
        real(self, ready)

    bed.put(ReplicationLoop, "_begin", begin)


@LOOP.defect("skip the sync of the disk", "promises survive a crash")
def _no_sync(bed: Bed) -> None:
    real = MemoryStore.commit
    bed.put(MemoryStore, "commit", lambda self, ticket, *, sync: real(self, ticket, sync=False))


@LOOP.defect(
    "count a wiped replica for a leader that it may have voted out",
    "a replica that lost its log counts only for a leader without a successor",
    STORMS["rebuild"],
)
def _count_at_once(bed: Bed) -> None:
    real = RaftState.track_wiped

    def track(self: RaftState, peer: Any) -> None:
        real(self, peer)
        (self.progress.get(peer) or self.leaving[peer]).counts_from_round = 0

    bed.put(RaftState, "track_wiped", track)


@LOOP.defect(
    "let a wiped replica vote",
    "a replica that lost its log votes only after it has the log again",
    STORMS["rebuild"],
)
def _no_recovery(bed: Bed) -> None:
    bed.put(Recovery, "begin", staticmethod(lambda batch: None))


@LOOP.defect("report an overwritten proposal as committed", "an answer reports the real result")
def _all_committed(bed: Bed) -> None:
    real = PendingProposals.settle

    def settle(self: PendingProposals, index: int, term: int) -> Any:
        committed, lost = real(self, index, term)
        return (committed or Committed(lost, 0.0), ()) if lost else (committed, lost)

    bed.put(PendingProposals, "settle", settle)


@LOOP.defect("refuse a send that may still be committed", "a refused send is in no log")
def _refuse_early(bed: Bed) -> None:
    real = ReplicaRole._end_serving

    def end_serving(self: ReplicaRole, change: Any) -> None:
        real(self, change)
        pending = self._proposer.pending
        proposals = [proposal for entry in pending._pending for proposal in entry.proposals]
        pending.abandon()
        self._proposer.lose(proposals)

    bed.put(ReplicaRole, "_end_serving", end_serving)


@LOOP.defect(
    "serve before the whole log is applied", "a new leader applies the whole log before it serves"
)
def _serve_early(bed: Bed) -> None:
    real = ReplicaRole.watch

    def watch(self: ReplicaRole) -> None:
        real(self)
        if self._node.is_leader and not self.serving:
            self._begin_serving(self._node.term)

    bed.put(ReplicaRole, "watch", watch)


@LOOP.defect(
    "answer without a lease",
    "an answer is not older than its request",
    STORMS["group"],
)
def _answer_anyway(bed: Bed) -> None:
    bed.put(ReplicationLoop, "may_answer", lambda self: self.serving)
    bed.put(reads, "lease_valid", lambda state: True)


@RAFT.defect(
    "compute the lease from the leader's own election time-out only",
    "a lease ends before the replicas that granted it can elect another leader",
    {"every_us": 200_000, "troubles": ("crash", "island", "transfer"), "mixed_elections": True},
)
def _count_own_lease(bed: Bed) -> None:
    bed.put(reads, "_sticks_ticks", lambda state, acked, reached: state.config.election_ticks)


@LOOP.defect(
    "take a read as confirmed without a round of heartbeats",
    "an answer is not older than its request",
    {**STORMS["group"], "links": 175.0},
)
def _confirm_alone(bed: Bed) -> None:
    bed.put(LeaderLease, "is_confirmed", lambda self, number: self._node.is_leader)


@LOOP.defect("lose the last proposal of a group commit", "acknowledged messages are in the log")
def _lose_last(bed: Bed) -> None:
    real = Proposer.propose

    def propose(self: Proposer, group: Any) -> None:
        *_, last = group
        if len(group) > 1 and last.messages:
            group = [*group[:-1], replace(last, records=(), messages=())]
        real(self, group)

    bed.put(Proposer, "propose", propose)


@LOOP.defect("apply an entry twice after a restart", "each entry is applied once")
def _apply_twice(bed: Bed) -> None:
    real = BrokerState.__init__

    def read(self: BrokerState, reader: Reader) -> None:
        real(self, reader)
        self.applied_index = max(0, self.applied_index - 1)

    bed.put(BrokerState, "__init__", read)


@LOOP.defect("take a snapshot without the locks", "a snapshot is the whole state")
def _snapshot_without_locks(bed: Bed) -> None:
    real = snapshot.adopt_state

    def adopt_state(store: Any, *arguments: Any, where: str) -> Any:
        batch = Batch()
        batch.delete_range(Family.TABLES, *table_bounds(Table.LOCKS))
        store.write(batch, sync=True)
        return real(store, *arguments, where=where)

    bed.put(replica, "adopt_state", adopt_state)


@LOOP.defect("do not write locks to the store", "locks survive a change of the leader")
def _volatile_locks(bed: Bed) -> None:
    real = LockTable.__init__
    bed.put(LockTable, "__init__", lambda self, reader: real(self, MemoryStore()))
