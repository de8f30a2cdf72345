"""
The settings of one replica's raft core.

Times are in ticks. The shell decides how long a tick is (25 ms by default) and must make up for ticks that it
missed while it was paused. All replicas of a raft group must agree on *pre_vote* and *check_quorum*. If the
*election_ticks* of a peer differ, a lease counts that peer for as long as it reports
(`Node.note_stickiness`).
"""

from dataclasses import dataclass

from orderlymq_raft.types import NodeId


@dataclass(frozen=True, slots=True)
class Config:
    """
    Settings; raises ValueError if they contradict each other.

    lease_reads needs check_quorum, because a lease rests on the promise of voters not to elect another leader
    while they hear the present one.
    """

    id: NodeId
    # 200 ms at 25 ms a tick. The actual time-out is drawn from this value to twice this value, 200-400 ms: a
    # crash costs at most 0.4 s, and four heartbeats may be lost before a replica stands for election.
    election_ticks: int = 8
    # 50 ms at 25 ms a tick.
    heartbeat_ticks: int = 2
    pre_vote: bool = True
    check_quorum: bool = True
    lease_reads: bool = False
    # For how many ticks an earlier process of this replica may have promised to stick to its leader; used if that
    # is longer than election_ticks.
    promised_ticks: int = 0
    # One append carries a group commit of 256 senders with bodies of 4 KiB.
    entries_per_append_bytes_max: int = 1024 * 1024
    # At a round trip of 10 ms this allows 6 400 appends a second to each follower.
    inflight_appends_max: int = 64
    # Keeps a 1 Gbit/s link with a round trip of 100 ms full. At 5 Mbit/s the window takes 27 s to send, and a
    # broken connection makes the leader repeat no more than that. An append holds at least one entry, which may
    # have megabytes: without this bound 64 of them would fill a link for minutes.
    inflight_bytes_max: int = 16 * 1024 * 1024
    # Limits what a leader without followers accepts, and so the entries that each replica keeps in memory.
    uncommitted_bytes_max: int = 64 * 1024 * 1024
    # How much one Ready hands out for applying. After it the shell can check its timers.
    committed_bytes_max: int = 1024 * 1024
    # A live peer that lacks more entries gets a snapshot. Otherwise a peer whose disk is full for hours would
    # keep the leader from compacting its log until its disk is full, too. Five times what a replica keeps for
    # peers that were away.
    live_lag_entries_max: int = 100_000
    # A learner that lacks more entries than this would delay commits once it votes.
    promotion_lag_entries_max: int = 1000
    # Send followers a new commit index immediately instead of with the next append or heartbeat. Off, because it
    # doubles the messages of a lone sender and makes no sender faster.
    eager_commit: bool = False

    def __post_init__(self) -> None:
        if self.id <= 0:
            raise ValueError(f"node id {self.id} is not positive; number the replicas from 1")
        if self.heartbeat_ticks < 1:
            raise ValueError("heartbeat_ticks must be at least 1")
        if self.election_ticks <= 2 * self.heartbeat_ticks:
            raise ValueError(
                f"election_ticks {self.election_ticks} must be more than twice heartbeat_ticks "
                f"{self.heartbeat_ticks}; otherwise one lost heartbeat ends the leadership"
            )
        if self.lease_reads and not self.check_quorum:
            raise ValueError("lease_reads needs check_quorum; set both or use read_index")
        appends = self.inflight_appends_max, self.inflight_bytes_max
        if min(*appends, self.entries_per_append_bytes_max) < 1:
            raise ValueError("a leader must be allowed to send at least one append")
