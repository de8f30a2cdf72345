"""
What a leader knows about each peer, and how much it may send to it.

The leader *probes* a peer with one append at a time until it knows where the logs match. Then it *replicates*
entries in a pipeline, as many appends and bytes ahead as the window allows. A peer that needs compacted
entries waits for a *snapshot*. Appends are built in replication.py.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from orderlymq_raft.types import NO_INDEX, Index, SnapshotMeta


class ProgressState(Enum):
    """The way in which a leader sends to a peer."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


@dataclass(slots=True)
class Progress:
    """
    One peer as its leader sees it, during one term.

    *match* is the highest index known to be durable on the peer and equal to ours. *next* is the first index
    not sent yet. match < next always holds.
    """

    next: Index
    inflight_max: int
    inflight_bytes_max: int
    match: Index = NO_INDEX
    state: ProgressState = ProgressState.PROBE
    # An append was sent while probing; the next one waits for an answer. Appends sent after a heartbeat only ask
    # for that answer.
    probe_sent: bool = False
    # Last index and size in bytes of every append that is in flight while replicating, oldest first.
    inflight: deque[tuple[Index, int]] = field(default_factory=deque)
    inflight_bytes: int = 0
    # The snapshot that is being sent, in state SNAPSHOT.
    snapshot: SnapshotMeta | None = None
    # Whether the peer was heard since the leader last checked for a majority. Other code should ask `is_alive`.
    recently_active: bool = False
    # The last index of the last snapshot that the peer received, and the tick until which it may be busy
    # installing it.
    installs: Index = NO_INDEX
    installs_until: int = 0
    # The value of recently_active in the election time-out before that.
    active_before: bool = False
    # The commit index that the last append carried.
    sent_commit: Index = NO_INDEX
    # The highest round of heartbeats that the peer has answered.
    acked_round: int = 0
    # match at the last heartbeat answer. If the next answer finds it unchanged, appends were lost.
    match_at_heartbeat: Index = NO_INDEX
    # The peer lost its log, and perhaps a vote for another leader with it. Its answers count from the round of
    # heartbeats that proves that there is no other leader (reads.py). 0 if its answers count.
    counts_from_round: int = 0

    @property
    def is_alive(self) -> bool:
        """Return whether the peer was heard in the present election time-out, which may have just begun, or in the last."""
        return self.recently_active or self.active_before

    @property
    def counted_match(self) -> Index:
        """Return the end of the peer's log if it counts for a commit, else 0."""
        return NO_INDEX if self.counts_from_round else self.match

    @property
    def counted_round(self) -> int:
        """Return the highest round of heartbeats that the peer has answered if its answers count, else 0."""
        return 0 if self.counts_from_round else self.acked_round

    def may_send(self) -> bool:
        """Return whether an append may be sent now."""
        if self.counts_from_round:
            # With part of the log the peer could not even vote in the election of a new raft group.
            return False
        if self.state is ProgressState.REPLICATE:
            # The last append may exceed the bound, or a very large entry could never be sent.
            return (
                len(self.inflight) < self.inflight_max
                and self.inflight_bytes < self.inflight_bytes_max
            )
        return self.state is ProgressState.PROBE and not self.probe_sent

    def sent(self, last_index: Index, size_bytes: int) -> None:
        """Note that an append with entries up to *last_index* and *size_bytes* of data was sent."""
        if self.state is ProgressState.REPLICATE:
            self.next = Index(last_index + 1)
            self.inflight.append((last_index, size_bytes))
            self.inflight_bytes += size_bytes
        else:
            self.probe_sent = True

    def acknowledge(self, index: Index) -> bool:
        """Note that the peer has everything up to *index*; return whether match changed."""
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
        Step back after the peer refused prev_index *rejected*; its log may match at *hint*.

        Returns False for an answer that is out of date.
        """
        if 0 < rejected == self.match and hint < rejected:
            # The peer no longer has what it acknowledged: its disk was replaced. Counting too little is safe, so
            # a late answer that looks like this only causes repetition.
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
            # The snapshot is still being sent. Only the end of its transfer ends this state.
            return False
        if rejected != self.next - 1:
            return False
        # Step back at least by one each time, so that probing ends for any hint.
        self.next = Index(max(min(rejected, hint + 1), self.match + 1))
        self.probe_sent = False
        return True

    def become_probe(self) -> None:
        """Send one append at a time from now on."""
        arrived = NO_INDEX if self.snapshot is None else self.snapshot.index
        self._reset(ProgressState.PROBE)
        self.next = Index(max(self.match, arrived) + 1)

    def become_replicate(self) -> None:
        """Send appends in a pipeline from now on."""
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
