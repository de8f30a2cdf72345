"""
The settings of one replica's consensus core.

Times are in ticks; the shell decides how long a tick is (25 ms unless set otherwise) and must
make up for ticks that it missed while it was paused. All replicas of a group must agree on
*pre_vote* and *check_quorum*; with other *election_ticks* than theirs a peer counts for a lease
as long as it says (`Node.note_stickiness`).
"""

from dataclasses import dataclass

from orderlymq_raft.types import NodeId


@dataclass(frozen=True, slots=True)
class Config:
    """
    Settings; raises ValueError when they contradict each other.

    lease_reads needs check_quorum, because the promise not to elect another leader while
    one is heard is what a lease is made of.
    """

    id: NodeId
    # 200 ms at 25 ms a tick; the time-out itself is drawn from here to twice that, 200-400 ms:
    # a crash costs at most 0.4 s, and four heartbeats may be lost before anyone stirs.
    election_ticks: int = 8
    # 50 ms at 25 ms a tick.
    heartbeat_ticks: int = 2
    pre_vote: bool = True
    check_quorum: bool = True
    lease_reads: bool = False
    # For how long a former process of this replica may have told its leader that it sticks, if for longer.
    promised_ticks: int = 0
    # A group commit of 256 senders with bodies of 4 KiB fits one append.
    entries_per_append_bytes_max: int = 1024 * 1024
    # At a round trip of 10 ms this allows 6 400 appends a second to each follower.
    inflight_appends_max: int = 64
    # A 1 Gbit/s link with a round trip of 100 ms is kept full; at 5 Mbit/s it takes 27 s, and a connection that breaks costs no
    # more repeats. An append has one entry at least, of megabytes maybe: without a bound 64 of them would fill a link for minutes.
    inflight_bytes_max: int = 16 * 1024 * 1024
    # Bounds a leader that has lost its followers, and with it every tail in memory.
    uncommitted_bytes_max: int = 64 * 1024 * 1024
    # How much one Ready hands out for applying: behind it the shell may look at its timers.
    committed_bytes_max: int = 1024 * 1024
    # A live peer that lacks more entries gets a snapshot: one whose disk is full for hours must not fill the leader's with a
    # log that nobody may drop. Five times what a replica keeps for peers that were away.
    live_lag_entries_max: int = 100_000
    # A learner that lacks more entries than this would make commits wait once it votes.
    promotion_lag_entries_max: int = 1000
    # Send followers a new commit index immediately, instead of with the next append or
    # heartbeat. Doubles the messages of a lone sender and makes nobody faster, so it is off.
    eager_commit: bool = False

    def __post_init__(self) -> None:
        if self.id <= 0:
            raise ValueError(f"node id {self.id} is not positive; number replicas from 1")
        if self.heartbeat_ticks < 1:
            raise ValueError("heartbeat_ticks must be at least 1")
        if self.election_ticks <= 2 * self.heartbeat_ticks:
            raise ValueError(
                f"election_ticks {self.election_ticks} must be more than twice heartbeat_ticks "
                f"{self.heartbeat_ticks}, or one lost heartbeat costs the leader its place"
            )
        if self.lease_reads and not self.check_quorum:
            raise ValueError("lease_reads needs check_quorum; set both or use read_index")
        appends = self.inflight_appends_max, self.inflight_bytes_max
        if min(*appends, self.entries_per_append_bytes_max) < 1:
            raise ValueError("a leader must be allowed to send at least one append")
