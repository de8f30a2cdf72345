"""
A leader's knowledge about each peer, and how much it may send to it.

A peer is *probed* with one append at a time until its log is known to meet the leader's;
then entries *replicate* in a pipeline, as many appends and bytes ahead as the window allows; a peer
that needs what was compacted away waits for a *snapshot*. Appends are built in replication.py.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from orderlymq_raft.types import NO_INDEX, Index, SnapshotMeta


class ProgressState(Enum):
    """How a leader sends to a peer."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


@dataclass(slots=True)
class Progress:
    """
    One peer as its leader sees it.

    *match* is the highest index known to be durable there and equal to ours; *next* is the
    first index not sent yet. match < next always. It lives for one term of one leader.
    """

    next: Index
    inflight_max: int
    inflight_bytes_max: int
    match: Index = NO_INDEX
    state: ProgressState = ProgressState.PROBE
    # An append was sent while probing; the next one waits for an answer. Those of heartbeats only ask for it.
    probe_sent: bool = False
    # Last index and bytes of every append that is under way while replicating, oldest first.
    inflight: deque[tuple[Index, int]] = field(default_factory=deque)
    inflight_bytes: int = 0
    # What the peer is being sent while in state SNAPSHOT.
    snapshot: SnapshotMeta | None = None
    # Heard since the leader last asked itself whether a majority is there; `is_alive` is what to ask.
    recently_active: bool = False
    # The end of the last snapshot that the peer took over, and until which tick it may be busy putting that in place.
    installs: Index = NO_INDEX
    installs_until: int = 0
    # The same in the election time-out before that.
    active_before: bool = False
    # The commit index that the last append carried.
    sent_commit: Index = NO_INDEX
    # Highest round of heartbeats that the peer has answered.
    acked_round: int = 0
    # match at the last heartbeat answer; when the next finds it unmoved, appends were lost.
    match_at_heartbeat: Index = NO_INDEX
    # It lost its log, a vote for another leader with it maybe: what it says counts from the round of
    # heartbeats on that proves that there is none (reads.py). 0 when it counts.
    counts_from_round: int = 0

    @property
    def is_alive(self) -> bool:
        """Return whether the peer was heard in this election time-out, which may just begin, or the last."""
        return self.recently_active or self.active_before

    @property
    def counted_match(self) -> Index:
        """Return the end of the peer's log, as far as it counts for a commit."""
        return NO_INDEX if self.counts_from_round else self.match

    @property
    def counted_round(self) -> int:
        """Return the round of heartbeats that the peer has answered, as far as it counts."""
        return 0 if self.counts_from_round else self.acked_round

    def may_send(self) -> bool:
        """Return whether an append may leave now."""
        if self.counts_from_round:
            # With a part of the log it could not even take part in the election of a group that begins.
            return False
        if self.state is ProgressState.REPLICATE:
            # The last one may pass the bound: an entry of any size must leave some time.
            return (
                len(self.inflight) < self.inflight_max
                and self.inflight_bytes < self.inflight_bytes_max
            )
        return self.state is ProgressState.PROBE and not self.probe_sent

    def sent(self, last_index: Index, size_bytes: int) -> None:
        """Note that an append with entries up to *last_index*, so large in all, has left."""
        if self.state is ProgressState.REPLICATE:
            self.next = Index(last_index + 1)
            self.inflight.append((last_index, size_bytes))
            self.inflight_bytes += size_bytes
        else:
            self.probe_sent = True

    def acknowledge(self, index: Index) -> bool:
        """Note that the peer has everything up to *index*; return whether that is news."""
        inflight = self.inflight
        while inflight and inflight[0][0] <= index:
            self.inflight_bytes -= inflight.popleft()[1]
        if index <= self.match:
            return False
        self.match = index
        if self.next <= index:
            self.next = Index(index + 1)
        return True

    def reject(self, rejected: Index, hint: Index) -> bool:
        """
        Step back after the peer refused prev_index *rejected*; *hint* may match.

        Returns False for an answer that is too old to mean anything.
        """
        if 0 < rejected == self.match and hint < rejected:
            # It denies what it acknowledged: its disk was replaced. Counting less than there is
            # cannot harm, so a late answer that is mistaken for this costs only repetition.
            if self.state is ProgressState.SNAPSHOT:
                return False
            self.match = NO_INDEX
            self._reset(ProgressState.PROBE)
            self.next = Index(hint + 1)
            return True
        if self.state is ProgressState.REPLICATE:
            if rejected <= self.match:
                return False
            # Everything after match may be lost; match itself is certain.
            self.become_probe()
            return True
        if self.state is ProgressState.SNAPSHOT:
            # The snapshot is still on its way; its transfer ends this state, nothing else.
            return False
        if rejected != self.next - 1:
            return False
        # At least one step back each time, so that probing ends whatever the hint says.
        self.next = Index(max(min(rejected, hint + 1), self.match + 1))
        self.probe_sent = False
        return True

    def become_probe(self) -> None:
        """Send one append at a time from here on."""
        arrived = NO_INDEX if self.snapshot is None else self.snapshot.index
        self._reset(ProgressState.PROBE)
        self.next = Index(max(self.match, arrived) + 1)

    def become_replicate(self) -> None:
        """Pipeline appends from here on."""
        self._reset(ProgressState.REPLICATE)
        self.next = Index(self.match + 1)

    def become_snapshot(self, meta: SnapshotMeta) -> None:
        """Send no entries until the snapshot has arrived or failed."""
        self._reset(ProgressState.SNAPSHOT)
        self.snapshot = meta
        self.next = Index(meta.index + 1)

    def check(self) -> None:
        """Assert the invariants."""
        assert 0 <= self.match < self.next, "next must lie behind match"
        assert len(self.inflight) <= self.inflight_max, "more appends under way than allowed"
        assert self.inflight_bytes == sum(size for _, size in self.inflight), "each byte once"
        assert list(self.inflight) == sorted(self.inflight), "appends leave in order"
        assert (self.snapshot is not None) == (self.state is ProgressState.SNAPSHOT), "one of both"
        assert not self.inflight or self.state is ProgressState.REPLICATE, "only pipelines fly"
        assert not self.inflight or self.inflight[-1][0] < self.next, "sent lies before next"

    def _reset(self, state: ProgressState) -> None:
        self.state = state
        self.probe_sent = False
        self.inflight.clear()
        self.inflight_bytes = 0
        self.snapshot = None
