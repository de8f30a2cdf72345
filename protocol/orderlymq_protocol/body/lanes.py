"""
Bodies of key lanes: what a member of a group with `concurrency: Key` gets, completes and learns.

A lane is (group, topic, queue, key). Rules: *lane* and *attempt* are numbers within one queue; the broker assigns them and never
reuses them. An attempt is one hand-out of a lane to one member. The body of a fetch's answer is a length (4 bytes,
big-endian), that many bytes of JSON (`LanesFetched`), and the stored records. The records are in the order of
the lanes and of their offsets. docs/explanation/lanes.md explains the concept.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final

from orderlymq_protocol.body.declaration import JsonModel, ModelError
from orderlymq_protocol.integers import Int, Long
from orderlymq_protocol.message.properties import SHARDING_KEY

BY_KEY: Final = "Key"
BY_QUEUE: Final = "Queue"

# Most lanes that one request takes or reports: each is a row in one turn of a broker's loop.
LANES_MAX: Final = 512
# Most messages of one lane in one attempt.
LANE_MESSAGES_MAX: Final = 32
# Characters of a key that a member is shown; longer keys are cut, because the member has the message itself.
KEY_LENGTH_SHOWN: Final = 128
# Characters of the reason why a message failed; the reason is in the log and in the status.
REASON_LENGTH_MAX: Final = 256
# Longest delay that a client may ask for before a failed message is tried again: a day.
DELAY_MS_MAX: Final = 24 * 3_600_000

# How long a failed message waits for its next try, the first time and at most, if its group does not say.
RETRY_PAUSE_MS: Final = 1_000
RETRY_PAUSE_MAX_MS: Final = 300_000

# A member's results of an attempt.
DONE: Final = "done"
RENEW: Final = "renew"
RETRY: Final = "retry"
RELEASE: Final = "release"
RESULTS: Final = (DONE, RENEW, RETRY, RELEASE)

# The broker's verdicts on an attempt.
RENEWED: Final = "renewed"
PARKED: Final = "parked"
DEAD: Final = "dead"
HELD: Final = "held"
RELEASED: Final = "released"
STALE: Final = "stale"

_HEAD: Final = struct.Struct(">I")

Natural = Annotated[int, (0, 2**31 - 1)]
Position = Annotated[int, (0, 2**63 - 1)]


# Hot path: each message makes a Lane, a LaneReport and a LaneVerdict; frozen ones would take twice the time.
@dataclass(slots=True)
class Lane(JsonModel):
    """One lane that the member holds.

    Attributes:
        lane: number of the lane, from its first message until none of its messages is owed.
        attempt: number of this hand-out.
        key: the key as text for people; empty for a message without a key, shortened if it is very long.
        offsets: queue offsets of the messages, rising.
        tries: how often the first of them has failed.
        behind: messages of the lane that the broker has seen and that wait behind these.
        since_millis: wall ms of the leader when the lane came to this attempt.
    """

    is_sparse = True

    queue_id: Natural
    lane: Position
    attempt: Position
    key: str
    offsets: tuple[Position, ...]
    tries: Natural = 0
    behind: Position = 0
    since_millis: Long = 0


@dataclass(frozen=True, slots=True)
class LanesFetched(JsonModel):
    """The result of a fetch (code 20512); *limited* says why there are no more new lanes, empty if nothing limits them."""

    lanes: tuple[Lane, ...] = ()
    lease_millis: Int = 0
    limited: str = ""

    def encode(self, records: Iterable[bytes | bytearray | memoryview]) -> bytes:
        """Return the body of the answer."""
        head = self.to_json()

        return b"".join((_HEAD.pack(len(head)), head, *records))

    @classmethod
    def decode(cls, body: bytes) -> "tuple[LanesFetched, memoryview]":
        """Return the content of an answer's body, and the stored records behind it.

        Raises:
            ModelError: the body is not an answer to a fetch.
            JsonError: the same.
        """
        if len(body) < _HEAD.size:
            raise ModelError(f"a response to a fetch of lanes has {len(body)} bytes")
        (size,) = _HEAD.unpack_from(body)
        end = _HEAD.size + size
        if end > len(body):
            raise ModelError(f"{size} bytes of lanes are announced, but {len(body)} are present")

        return cls.from_json(body[_HEAD.size : end]), memoryview(body)[end:]


@dataclass(slots=True)
class LaneReport(JsonModel):
    """Report of a member about one attempt.

    Attributes:
        result: done, renew, retry or release.
        offset: messages of the attempt up to and including this one are complete; -1 for none.
        delay_millis: with retry: wait this long, instead of what the group's policy says.
        tries_max: with retry: a message that has failed this often is a dead letter; -1 for never; without it the
            group's policy applies.
        reason: with retry: why the message failed.
    """

    is_sparse = True

    queue_id: Natural
    lane: Position
    attempt: Position
    result: str
    offset: Annotated[int, (-1, 2**63 - 1)] = -1
    delay_millis: Annotated[int, (-1, DELAY_MS_MAX)] = -1
    tries_max: Int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LaneReports(JsonModel):
    """The body of a completion (code 20513)."""

    lanes: tuple[LaneReport, ...] = ()


@dataclass(slots=True)
class LaneVerdict(JsonModel):
    """The verdict on one attempt: done, renewed, parked, dead, held, released or stale.

    Attributes:
        tries: how often the message at which the lane stands has failed.
        due_millis: wall ms of the leader when a parked lane is handed out again.
        remark: further information, such as why an attempt is stale.
    """

    is_sparse = True

    queue_id: Natural
    lane: Position
    attempt: Position
    verdict: str
    tries: Natural = 0
    due_millis: Long = 0
    remark: str = ""


@dataclass(frozen=True, slots=True)
class LaneVerdicts(JsonModel):
    """The answer to a completion: verdicts in the order of the reports, without those that are done."""

    lanes: tuple[LaneVerdict, ...] = ()

    def of(self, reports: Iterable[LaneReport]) -> tuple[LaneVerdict, ...]:
        """Return a verdict per report.

        Raises:
            ModelError: the answer is about other reports, or has another order.
        """
        named = iter(self.lanes)
        following = next(named, None)
        found = []
        for report in reports:
            place = (report.queue_id, report.lane, report.attempt)
            verdict = LaneVerdict(*place, DONE)
            if following is not None and place == (
                following.queue_id,
                following.lane,
                following.attempt,
            ):
                verdict, following = following, next(named, None)
            found.append(verdict)
        if following is not None:
            raise ModelError(f"a verdict on attempt {following.attempt}, which was not reported")

        return tuple(found)


@dataclass(frozen=True, slots=True)
class QueueLanes(JsonModel):
    """The lanes of one queue in numbers (code 20514).

    Attributes:
        scanned: every offset below this was looked at; a message below it that is not owed is complete.
        committed: the first offset that is owed; *scanned* if none is.
        owed: messages below *scanned* that are not complete.
        in_hand, ready, parked, held, dead_lettering: lanes in each state.
        limited: why no new lanes are handed out; empty if nothing limits them.
    """

    topic: str
    broker_name: str
    queue_id: Natural
    scanned: Position
    committed: Position
    owed: Position
    in_hand: Natural
    ready: Natural
    parked: Natural
    held: Natural
    dead_lettering: Natural = 0
    limited: str = ""


@dataclass(frozen=True, slots=True)
class LaneShown(JsonModel):
    """One lane that is parked or held, or that a member has had in hand for long.

    Attributes:
        state: inHand, ready, parked, held or deadLettering (its dead letter is being stored).
        offset: the first message that is owed.
        waiting: messages of the lane that are owed.
        since_millis: wall ms when the lane entered its state.
        due_millis: wall ms when a parked lane is handed out again.
    """

    topic: str
    broker_name: str
    queue_id: Natural
    lane: Position
    key: str
    state: str
    offset: Long
    waiting: Position
    tries: Natural = 0
    since_millis: Long = 0
    due_millis: Long = 0
    reason: str = ""
    holder: str = ""


@dataclass(frozen=True, slots=True)
class LaneTable(JsonModel):
    """State of a group's lanes on one broker (code 20514); *lanes* lists the oldest in trouble, and the others are only counted.

    Attributes:
        lane_key_property: the property of a message that is the key of its lane.
    """

    concurrency: str = BY_QUEUE
    queues: tuple[QueueLanes, ...] = ()
    lanes: tuple[LaneShown, ...] = ()
    lane_key_property: str = SHARDING_KEY
