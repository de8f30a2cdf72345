"""Records of the raft log about key lanes, by the rules of ``records.py``; ``lane.py`` has the lane."""

from enum import IntEnum
from typing import TypeAlias

from msgspec import Struct

from orderlymq_broker.state.groups.failurepolicy import DeadPolicy
from orderlymq_broker.state.integerranges import Lease, Long, Maybe, Natural, Position
from orderlymq_broker.state.lanes.lane import Lane


class ReportKind(IntEnum):
    """The kind of a member's report about an attempt; the numbers are in the log."""

    DONE = 1
    RENEW = 2
    RETRY = 3
    RELEASE = 4


class HandOut(Struct, frozen=True, array_like=True):
    """A lane that owes messages goes to the member.

    Attributes:
        load: the first runs of the lane's index, up to the size of one run, if nothing else of the lane is in memory;
            they are removed from the index.
        then: the first offset of the next run, -1 if there is none; set with *load*.
        gone: how many of the lane's first messages are no longer stored.
        take: how many messages make up the attempt; 0 if all that were read are gone.
        first: the first owed offset that the leader saw; a lane with another one is skipped. -1 for any.
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
        key: empty for a message without a key, which gets its own lane.
    """

    key: str
    offsets: tuple[Position, ...]
    take: Natural = 0


class QueueFetch(Struct, frozen=True, array_like=True):
    """The changes that a fetch makes in one queue.

    Attributes:
        start: the position of the scan that the leader saw; another position makes the record void.
        scanned: the position of the scan now.
        begins: the leader saw no scan. If it saw one that is gone by now, the record is void.
    """

    queue_id: Natural
    start: Position
    scanned: Position
    hand_outs: tuple[HandOut, ...] = ()
    found: tuple[Found, ...] = ()
    begins: bool = False


class LanesFetched(Struct, frozen=True, array_like=True, tag=110):
    """A member gets lanes, and the leader has scanned more of the queues; the record applies completely or not at all.

    Attributes:
        sequence: the member's number of the fetch, by which a repeat finds its attempts.
        lease_ms: how long an attempt is valid without renewal.
    """

    group: str
    topic: str
    client_id: str
    sequence: Long
    lease_ms: Lease
    queues: tuple[QueueFetch, ...]


class Report(Struct, frozen=True, array_like=True):
    """A member's report about one attempt.

    Attributes:
        offset: messages of the attempt up to this offset are complete; -1 for none.
        due_ms: with RETRY: the wall ms of the leader from which the lane is handed out again.
        tries_max: with RETRY: a message that failed this often is dead; negative for never.
        policy: with RETRY: what follows then.
    """

    queue_id: Natural
    lane: Position
    attempt: Position
    kind: ReportKind
    offset: Maybe = -1
    due_ms: Long = 0
    tries_max: Long = -1
    policy: DeadPolicy = DeadPolicy.CONTINUE
    reason: str = ""


class LanesReported(Struct, frozen=True, array_like=True, tag=111):
    """A member reports the results of attempts; each report counts, or is stale, on its own."""

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
    """Leases expired on the leader's clock; attempts that have ended meanwhile are skipped."""

    group: str
    lanes: tuple[LaneRef, ...]


class LanesReturned(Struct, frozen=True, array_like=True, tag=113):
    """A member leaves its group, so all its attempts end."""

    group: str
    client_id: str


class LaneFreed(Struct, frozen=True, array_like=True, tag=114):
    """An administrator frees the parked and held lanes of a key.

    Attributes:
        skip: the failed message becomes a dead letter; otherwise it is handed out again.
        queue_id: the queue in which the administrator saw the lane, -1 for all queues.
        first: the first message of the lane at that time; a lane at another message is skipped. -1 for any.
    """

    group: str
    topic: str
    key: str
    skip: bool = False
    queue_id: Maybe = -1
    first: Maybe = -1


class LaneDeadLettered(Struct, frozen=True, array_like=True, tag=115):
    """The dead letter appended by the preceding record is stored, and its lane continues; refused if that record is."""

    group: str
    topic: str
    queue_id: Natural
    lane: Position
    offset: Position


LaneRecord: TypeAlias = (
    LanesFetched | LanesReported | LanesExpired | LanesReturned | LaneFreed | LaneDeadLettered
)


# -- outcomes --------------------------------------------------------------------------------------


class Granted(Struct, frozen=True):
    """One attempt that was handed out."""

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
    """The result of one report; the texts are those on the wire."""

    verdict: str
    tries: int = 0
    due_ms: int = 0
    remark: str = ""


class LanesMoved(Struct, frozen=True):
    """Lanes changed: the result of each report or freed lane, and whether there is something to hand out now.

    Attributes:
        topics: the (group, topic) pairs in which lanes or room became free.
        ended: the attempts that have ended, as (group, topic, queue, lane, attempt).
        freed: the queues and lanes that an administrator has freed, as they were before.
    """

    topics: tuple[tuple[str, str], ...]
    ended: tuple[tuple[str, str, int, int, int], ...] = ()
    answers: tuple[Answered, ...] = ()
    freed: tuple[tuple[int, Lane], ...] = ()


LaneOutcome: TypeAlias = LanesGranted | LanesMoved
