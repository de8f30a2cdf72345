"""
Bodies of key lanes: what a member of a group with `concurrency: Key` gets, completes and learns.

A lane is (group, topic, queue, key). Rules: *lane* and *attempt* are numbers of one queue, given by the broker and never
given twice; an attempt is one hand-out of a lane to one member. The body of a fetch's answer is a length (4 bytes,
big-endian), that many bytes of JSON (`LanesFetched`), and the stored records one after the other, in the order of
the lanes and of their offsets. What it all means: docs/explanation/lanes.md.
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

# Lanes that one request takes or reports at most: each is a row in one turn of a broker's loop.
LANES_MAX: Final = 512
# Messages of one lane in one attempt.
LANE_MESSAGES_MAX: Final = 32
# Characters of a key that a member is shown, who has the message itself; longer ones are cut there.
KEY_LENGTH_SHOWN: Final = 128
# Characters of why a message failed; it stands in the log and in the status.
REASON_LENGTH_MAX: Final = 256
# A delay that a client asks for before a failed message is tried again: a day.
DELAY_MS_MAX: Final = 24 * 3_600_000

# How long a message that has failed waits for its next try, the first time and at most, where its group says nothing.
RETRY_PAUSE_MS: Final = 1_000
RETRY_PAUSE_MAX_MS: Final = 300_000

# What a member says about an attempt.
DONE: Final = "done"
RENEW: Final = "renew"
RETRY: Final = "retry"
RELEASE: Final = "release"
RESULTS: Final = (DONE, RENEW, RETRY, RELEASE)

# What the broker answers about an attempt.
RENEWED: Final = "renewed"
PARKED: Final = "parked"
DEAD: Final = "dead"
HELD: Final = "held"
RELEASED: Final = "released"
STALE: Final = "stale"

_HEAD: Final = struct.Struct(">I")

Natural = Annotated[int, (0, 2**31 - 1)]
Position = Annotated[int, (0, 2**63 - 1)]


# Hot path: each message makes a Lane, a LaneReport and a LaneVerdict, and frozen ones would take twice the time.
@dataclass(slots=True)
class Lane(JsonModel):
    """One lane that the member holds.

    Attributes:
        lane: number of the lane from its first message until nothing of it is owed.
        attempt: number of this hand-out.
        key: as text for people; empty for a message without key, shortened when it is very long.
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
    """Result of a fetch (code 20512); *limited* says why there are no more new lanes, empty when nothing is in the way."""

    lanes: tuple[Lane, ...] = ()
    lease_millis: Int = 0
    limited: str = ""

    def encode(self, records: Iterable[bytes | bytearray | memoryview]) -> bytes:
        """Return the body of the answer."""
        head = self.to_json()

        return b"".join((_HEAD.pack(len(head)), head, *records))

    @classmethod
    def decode(cls, body: bytes) -> "tuple[LanesFetched, memoryview]":
        """Return what the body of an answer says, and the stored records behind it.

        Raises:
            ModelError: the body is no answer to a fetch.
            JsonError: the same.
        """
        if len(body) < _HEAD.size:
            raise ModelError(f"an answer to a fetch of lanes has {len(body)} bytes")
        (size,) = _HEAD.unpack_from(body)
        end = _HEAD.size + size
        if end > len(body):
            raise ModelError(f"{size} bytes of lanes are announced, {len(body)} are there")

        return cls.from_json(body[_HEAD.size : end]), memoryview(body)[end:]


@dataclass(slots=True)
class LaneReport(JsonModel):
    """Report of a member about one attempt.

    Attributes:
        result: done, renew, retry or release.
        offset: messages of the attempt up to here are complete, this one too; -1 for none.
        delay_millis: with retry: wait so long, instead of what the group's policy says.
        tries_max: with retry: a message that has failed so often is a dead letter; -1 for never; without it the
            group's policy says.
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
    """Result of one attempt: done, renewed, parked, dead, held, released or stale.

    Attributes:
        tries: how often the message that the lane stands at has failed.
        due_millis: wall ms of the leader when a parked lane is handed out again.
        remark: what to know about it; why an attempt is stale.
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
    """The answer to a completion: verdicts in the order of the reports, those that are done left out."""

    lanes: tuple[LaneVerdict, ...] = ()

    def of(self, reports: Iterable[LaneReport]) -> tuple[LaneVerdict, ...]:
        """Return a verdict per report.

        Raises:
            ModelError: the answer is about other reports, or has them in another order.
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
            raise ModelError(f"a verdict about attempt {following.attempt}, which was not reported")

        return tuple(found)


@dataclass(frozen=True, slots=True)
class QueueLanes(JsonModel):
    """The lanes of one queue in figures (code 20514).

    Attributes:
        scanned: every offset below was looked at; what is below and not owed is complete.
        committed: the first offset that is owed, else *scanned*.
        owed: messages below *scanned* that are not complete.
        in_hand, ready, parked, held, dying: lanes in each state.
        limited: why no new lanes are handed out; empty when nothing is in the way.
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
    dying: Natural = 0
    limited: str = ""


@dataclass(frozen=True, slots=True)
class LaneShown(JsonModel):
    """One lane that is parked or held, or that a member has in hand for long.

    Attributes:
        state: inHand, ready, parked, held or dying (its dead letter is being stored).
        offset: the first message that is owed.
        waiting: messages of the lane that are owed.
        since_millis: wall ms when the lane came into its state.
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
    """State of a group's lanes on one broker (code 20514); *lanes* are the oldest in trouble, the rest is counted.

    Attributes:
        lane_key_property: the property of a message that is the key of its lane.
    """

    concurrency: str = BY_QUEUE
    queues: tuple[QueueLanes, ...] = ()
    lanes: tuple[LaneShown, ...] = ()
    lane_key_property: str = SHARDING_KEY
