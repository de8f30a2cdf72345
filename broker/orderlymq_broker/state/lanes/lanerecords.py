"""Records of the raft log about key lanes, by the rules of ``records.py``; ``lane.py`` has the lane."""

from enum import IntEnum
from typing import TypeAlias

from msgspec import Struct

from orderlymq_broker.state.groups.failurepolicy import DeadPolicy
from orderlymq_broker.state.integerranges import Lease, Long, Maybe, Natural, Position
from orderlymq_broker.state.lanes.lane import Lane


class Said(IntEnum):
    """Kind of a member's report about an attempt; numbers stand in the log."""

    DONE = 1
    RENEW = 2
    RETRY = 3
    RELEASE = 4


class HandOut(Struct, frozen=True, array_like=True):
    """A lane that has messages owed goes to the member.

    Attributes:
        load: the first runs of the lane's index, no more than one may have, when nothing else of the lane is in memory; they
            leave the index.
        then: first offset of the next run, -1 when there is none; said with *load*.
        gone: so many of the lane's first messages are in no store any more.
        take: so many messages make the attempt; 0 when all that was looked at is gone.
        first: the first offset that the leader saw the lane owe; a lane with another one is passed over. -1 for any.
    """

    lane: Position
    take: Natural
    load: tuple[Position, ...] = ()
    then: Maybe = -1
    gone: Natural = 0
    first: Maybe = -1


class Found(Struct, frozen=True, array_like=True):
    """Messages of one key that the scan has found; the first *take* make an attempt if the key has no lane.

    Attributes:
        key: empty for a message without one, which is a lane of its own.
    """

    key: str
    offsets: tuple[Position, ...]
    take: Natural = 0


class QueueFetch(Struct, frozen=True, array_like=True):
    """Changes by a fetch in one queue.

    Attributes:
        start: where the leader saw the scan stand; another place makes the record void.
        scanned: where it stands now.
        begins: the leader saw no scan; one that it saw and that is gone by now makes the record void.
    """

    queue_id: Natural
    start: Position
    scanned: Position
    hand_outs: tuple[HandOut, ...] = ()
    found: tuple[Found, ...] = ()
    begins: bool = False


class LanesFetched(Struct, frozen=True, array_like=True, tag=110):
    """A member gets lanes, and the leader has looked at more of the queues; all or nothing.

    Attributes:
        sequence: the member's number of the fetch, by which a repeat finds its attempts.
        lease_ms: how long an attempt is good without renewal.
    """

    group: str
    topic: str
    client_id: str
    sequence: Long
    lease_ms: Lease
    queues: tuple[QueueFetch, ...]


class Report(Struct, frozen=True, array_like=True):
    """Report of a member about one attempt.

    Attributes:
        offset: messages of the attempt up to here are complete; -1 for none.
        due_ms: with RETRY: wall ms of the leader from which the lane is handed out again.
        tries_max: with RETRY: a message that has failed so often is dead; negative for never.
        policy: with RETRY: what follows then.
    """

    queue_id: Natural
    lane: Position
    attempt: Position
    said: Said
    offset: Maybe = -1
    due_ms: Long = 0
    tries_max: Long = -1
    policy: DeadPolicy = DeadPolicy.CONTINUE
    reason: str = ""


class LanesReported(Struct, frozen=True, array_like=True, tag=111):
    """A member says what became of attempts; each report counts or is stale for itself."""

    group: str
    topic: str
    client_id: str
    reports: tuple[Report, ...]


class LaneRef(Struct, frozen=True, array_like=True):
    """One attempt as the leader saw it."""

    topic: str
    queue_id: Natural
    lane: Position
    attempt: Position


class LanesExpired(Struct, frozen=True, array_like=True, tag=112):
    """Leases ran out on the leader's clock; attempts that are over by now are passed over."""

    group: str
    lanes: tuple[LaneRef, ...]


class LanesReturned(Struct, frozen=True, array_like=True, tag=113):
    """A member leaves its group: all its attempts end."""

    group: str
    client_id: str


class LaneFreed(Struct, frozen=True, array_like=True, tag=114):
    """An administrator frees the parked and held lanes of a key.

    Attributes:
        skip: the message that failed becomes a dead letter; else it is handed out again.
        queue_id: where the administrator saw the lane, -1 for everywhere.
        first: the message at which it stood then; a lane at another one is passed over. -1 for any.
    """

    group: str
    topic: str
    key: str
    skip: bool = False
    queue_id: Maybe = -1
    first: Maybe = -1


class LaneLettered(Struct, frozen=True, array_like=True, tag=115):
    """The dead letter whose append stands before it is stored, and its lane goes on; refused as that is."""

    group: str
    topic: str
    queue_id: Natural
    lane: Position
    offset: Position


LaneRecord: TypeAlias = (
    LanesFetched | LanesReported | LanesExpired | LanesReturned | LaneFreed | LaneLettered
)


# -- outcomes --------------------------------------------------------------------------------------


class Granted(Struct, frozen=True):
    """One attempt as it was handed out."""

    queue_id: int
    lane: int
    attempt: int
    key: str
    offsets: tuple[int, ...]
    tries: int
    behind: int
    since_ms: int


class LanesGranted(Struct, frozen=True):
    """The attempts that a fetch got."""

    group: str
    topic: str
    client_id: str
    lease_ms: int
    granted: tuple[Granted, ...]


class Answered(Struct, frozen=True):
    """Result of one report; the texts are those of the wire."""

    verdict: str
    tries: int = 0
    due_ms: int = 0
    remark: str = ""


class LanesMoved(Struct, frozen=True):
    """Lanes changed: what became of each report or freed lane, and whether something can be handed out now.

    Attributes:
        topics: where lanes or room became free, as (group, topic).
        ended: attempts that are over, as (group, topic, queue, lane, attempt).
        freed: queues and lanes that an administrator has freed, as they were before.
    """

    topics: tuple[tuple[str, str], ...]
    ended: tuple[tuple[str, str, int, int, int], ...] = ()
    answers: tuple[Answered, ...] = ()
    freed: tuple[tuple[int, Lane], ...] = ()


LaneOutcome: TypeAlias = LanesGranted | LanesMoved
