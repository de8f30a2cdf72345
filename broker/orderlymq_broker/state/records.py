"""
What stands in the raft log: one small struct per kind of change, and what applying it found.

The rules: a record says everything that ``machine.py`` needs, so that applying it is the same on
every replica; time is a field that the leader wrote; names are never re-used with another meaning.
On the wire a record is a msgpack array that begins with its tag; new fields go to the end and have
a default, so that an old log stays readable. Next step: ``machine.py``.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from orderlymq_broker.state.admin.accessrecords import AccessChanged, AccessRecord
from orderlymq_broker.state.admin.settingsrecords import SettingsChanged, SettingsSet
from orderlymq_broker.state.groups.parkedkeyrecords import ParkedOutcome, ParkedRecord
from orderlymq_broker.state.integerranges import (
    Lease,
    Long,
    Natural,
    Position,
    QueueCount,
    QueueTotal,
)
from orderlymq_broker.state.lanes.lanerecords import LaneOutcome, LaneRecord, LanesMoved
from orderlymq_broker.state.schedule.timerrecords import TimersEnded, TimersMoved
from orderlymq_protocol.body.lanes import BY_KEY, BY_QUEUE
from orderlymq_protocol.message.properties import SHARDING_KEY

# Written by the broker itself, not by an operator: nothing to compare.
NO_TOKEN: Final = -1

# -- messages ------------------------------------------------------------------------------------


class Append(Struct, frozen=True, array_like=True, tag=1, gc=False):
    """One stored message of this entry's blob joins a queue.

    Attributes:
        physical: physical offset of the stored record; dense over the whole log.
        size: bytes of the stored record.
        tags_code: what a pull filters by; in the schedule topic the due time (wall ms).
        store_timestamp: wall ms of the leader; never falls within a queue.
        unique_key: the UNIQ_KEY property, empty when there is none.
        keys: the KEYS property as it is, tokens separated by blanks.
        identity: identity of the send in the duplicate window, empty when it has none there.
        reply_queue: queue id that the sender was told: the requested one for a delayed message.
    """

    topic_id: Natural
    queue_id: Natural
    queue_offset: Position
    physical: Position
    size: Natural
    tags_code: Long
    store_timestamp: Position
    unique_key: str = ""
    keys: str = ""
    identity: bytes = b""
    reply_queue: Natural = 0


class DelayProgress(Struct, frozen=True, array_like=True, tag=2):
    """Messages [start, end) of a delay queue have been appended to where they belong."""

    queue_id: Natural
    start: Position
    end: Position


class DedupTrimmed(Struct, frozen=True, array_like=True, tag=3):
    """Sends below this physical offset have left the duplicate window."""

    floor: Position


class QueueFloor(Struct, frozen=True, array_like=True):
    """The first message of a queue that is kept."""

    topic_id: Natural
    queue_id: Natural
    min_offset: Position


class RetentionAdvanced(Struct, frozen=True, array_like=True, tag=4):
    """Old messages go: first the queue positions, last (floor > 0) the messages themselves."""

    queues: tuple[QueueFloor, ...] = ()
    floor: Position = 0


# -- topics and groups -----------------------------------------------------------------------------


class TopicSet(Struct, frozen=True, array_like=True, tag=10):
    """A topic is created or its configuration replaced.

    Attributes:
        only_if_absent: leave an existing topic as it is: for what is created in passing.
    """

    name: str
    read_queues: Natural
    write_queues: Natural
    perm: Long = 6
    order: bool = False
    sys_flag: Long = 0
    filter_type: str = "SINGLE_TAG"
    attributes: dict[str, str] = {}
    only_if_absent: bool = False


class TopicDeleted(Struct, frozen=True, array_like=True, tag=11):
    """A topic goes with its queues, its index and the offsets that groups have in it."""

    name: str


class GroupSet(Struct, frozen=True, array_like=True, tag=12):
    """A consumer group is created or its configuration replaced.

    Attributes:
        orderly: ordered by configuration: only the holder of a queue's lock may pull and commit.
        on_dead_letter: Continue, HoldKey or StopQueue; see ``processors/groups/parkedkeys.py``.
        concurrency: Queue, by queue locks, or Key, by lanes; see ``processors/lanes/``.
        lane_key_property: the property whose value is the key of a message's lane.
    """

    name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    orderly: bool = False
    retry_queues: Long = 1
    retry_max_times: Long = 16
    broker_id: Long = 0
    which_broker_when_slow: Long = 1
    notify_changes: bool = True
    sys_flag: Long = 0
    consume_timeout_minutes: Long = 15
    only_if_absent: bool = False
    on_dead_letter: str = "Continue"
    concurrency: str = BY_QUEUE
    lane_key_property: str = SHARDING_KEY

    @property
    def by_key(self) -> bool:
        """Tell whether the group consumes by lanes."""
        return self.concurrency == BY_KEY


class GroupDeleted(Struct, frozen=True, array_like=True, tag=13):
    """A consumer group goes with its locks and members; its offsets only when asked for."""

    name: str
    clean_offsets: bool = False


# -- consumer offsets ------------------------------------------------------------------------------


class Commit(Struct, frozen=True, array_like=True):
    """One consumer offset; *epoch* is that of the lock it was accepted under, 0 when unfenced."""

    group: str
    topic: str
    queue_id: Natural
    offset: Position
    epoch: Long = 0


class OffsetsCommitted(Struct, frozen=True, array_like=True, tag=20):
    """Offsets move forward; a lower one, or one of an epoch that has ended, is passed over."""

    commits: tuple[Commit, ...]


class OffsetsReset(Struct, frozen=True, array_like=True, tag=21):
    """Offsets are set, also backwards: an administrator's decision."""

    commits: tuple[Commit, ...]


# -- queue locks -----------------------------------------------------------------------------------


class LockRef(Struct, frozen=True, array_like=True):
    """One lock as the leader saw it; *stamp* is the raft index of its last grant or renewal."""

    topic: str
    queue_id: Natural
    stamp: Position


class LocksRequested(Struct, frozen=True, array_like=True, tag=30):
    """A client asks for queues: free ones are granted, its own renewed, others left alone.

    Attributes:
        address: "host:port" that the request came from.
        lease_ms: how long a grant is good without renewal.
        orderly: remember that this group takes locks; false for broadcasting members.
    """

    group: str
    client_id: str
    address: str
    lease_ms: Lease
    queues: tuple[tuple[str, Natural], ...]
    orderly: bool = True


class LocksReleased(Struct, frozen=True, array_like=True, tag=31):
    """A client gives queues back; None means all it holds in the group."""

    group: str
    client_id: str
    queues: tuple[tuple[str, Natural], ...] | None


class LocksExpired(Struct, frozen=True, array_like=True, tag=32):
    """Leases ran out on the leader's clock; one renewed since (other stamp) stays."""

    group: str
    locks: tuple[LockRef, ...]


class ClientDead(Struct, frozen=True, array_like=True, tag=33):
    """A client is proven dead: its locks are free and its memberships gone, in every group.

    Attributes:
        token: of the operator that says so; one smaller than the greatest seen changes nothing.
        addresses: where the dead program's connections came from, when nothing else tells it from another
            program with its client id. A lock that was asked for from elsewhere makes the proof void, and so do
            lanes of a member whose heartbeat came from elsewhere.
    """

    client_id: str
    proof: str
    token: Long = NO_TOKEN
    addresses: tuple[str, ...] | None = None


# -- membership ------------------------------------------------------------------------------------


class Subscription(Struct, frozen=True, array_like=True):
    """What a member wants of a topic; *version* is the millisecond it was made."""

    topic: str
    expression: str = "*"
    expression_type: str = "TAG"
    version: Long = 0
    codes: tuple[Long, ...] = ()
    tags: tuple[str, ...] = ()


class MemberSeen(Struct, frozen=True, array_like=True, tag=40):
    """A client is a member of a group; written when it joins or something about it changes.

    Attributes:
        account: the access key that it signed with; empty without access control.
    """

    group: str
    client_id: str
    address: str
    language: Long = 0
    version: Long = 0
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscriptions: tuple[Subscription, ...] = ()
    account: str = ""


class MemberLeft(Struct, frozen=True, array_like=True, tag=41):
    """A client is no member of a group any more."""

    group: str
    client_id: str


# -- transactions ----------------------------------------------------------------------------------


class HalfOpened(Struct, frozen=True, array_like=True, tag=50):
    """The half message whose append stands before it waits for its producer's decision; refused as that is.

    Attributes:
        offset: its queue offset in the topic of halves.
        physical: physical offset of its stored record.
        group: producer group that may end it and is asked about it.
        topic: where it goes when it is committed.
        unique_key: the producer's own id of the message.
        opened_ms: store time of the half, wall ms.
        immunity_ms: do not ask before that long after opening; negative for the setting.
    """

    offset: Position
    physical: Position
    group: str
    topic: str
    unique_key: str
    opened_ms: Position
    immunity_ms: Long = -1


class HalfEnded(Struct, frozen=True, array_like=True, tag=51):
    """A transaction is over; the append of a committed one's copy stands before it, and if that is refused, so is this."""

    offset: Position
    committed: bool


class HalvesChecked(Struct, frozen=True, array_like=True, tag=52):
    """Producers are asked about these halves as soon as this is applied."""

    offsets: tuple[Position, ...]


class HalfGivenUp(Struct, frozen=True, array_like=True, tag=53):
    """Nobody answered; a copy for people is an append of the same entry."""

    offset: Position


class HalfResumed(Struct, frozen=True, array_like=True, tag=54):
    """An administrator wants a half to be asked about again, from the first check on."""

    offset: Position


# -- expansion of ordered topics ------------------------------------------------------------------------


class ExpansionPhase(Enum):
    """How far a topic's expansion is on one raft group; see ``topics/expansion.py``."""

    OPEN = "open"
    FENCED = "fenced"
    SWITCHED = "switched"
    PROPAGATING = "settling"


class ExpansionFenced(Struct, frozen=True, array_like=True, tag=80):
    """Nobody writes to an ordered topic until its expansion goes on or is given up.

    Attributes:
        attempt: number of the expansion; rises with each.
        total: queues that the topic will have over all raft groups.
        queues: queues that it will have in this one.
        limit_ms: the leader gives the expansion up when it has not gone on for so long.
        token: of the operator, as in ``ClientDead``.
    """

    topic: str
    attempt: Long
    total: QueueTotal
    queues: QueueCount
    limit_ms: Long
    token: Long = NO_TOKEN


class ExpansionAborted(Struct, frozen=True, array_like=True, tag=81):
    """An expansion is given up, and why."""

    topic: str
    attempt: Long
    reason: str
    token: Long = NO_TOKEN


class ExpansionSwitched(Struct, frozen=True, array_like=True, tag=82):
    """The new queue list is valid on this raft group, if the old one is drained.

    Attributes:
        groups: consumer groups that read the topic on any raft group.
        perm: permission of a topic that this raft group did not have.
    """

    topic: str
    attempt: Long
    total: QueueTotal
    queues: QueueCount
    groups: tuple[str, ...] = ()
    perm: Long = 6
    token: Long = NO_TOKEN


class ExpansionPropagated(Struct, frozen=True, array_like=True, tag=83):
    """Every name server tells the list of *total* queues; old ones are in use for *settle_ms* more."""

    topic: str
    total: QueueTotal
    settle_ms: Long
    token: Long = NO_TOKEN


class AssignmentSet(Struct, frozen=True, array_like=True, tag=85):
    """An operator has decided which member of a group takes which queue of a topic.

    Attributes:
        owners: (broker name, queue, client id) over all raft groups; none ends the decision.
        token: of the operator, as in ``ClientDead``.
    """

    group: str
    topic: str
    owners: tuple[tuple[str, Natural, str], ...]
    token: Long = NO_TOKEN


class ExpansionOpened(Struct, frozen=True, array_like=True, tag=84):
    """By the leader's clock the new list has settled: everybody may write."""

    topic: str


Record: TypeAlias = (
    Append
    | DelayProgress
    | DedupTrimmed
    | RetentionAdvanced
    | TopicSet
    | TopicDeleted
    | GroupSet
    | GroupDeleted
    | OffsetsCommitted
    | OffsetsReset
    | LocksRequested
    | LocksReleased
    | LocksExpired
    | ClientDead
    | MemberSeen
    | MemberLeft
    | HalfOpened
    | HalfEnded
    | HalvesChecked
    | HalfGivenUp
    | HalfResumed
    | TimersEnded
    | AccessRecord
    | SettingsSet
    | ExpansionFenced
    | ExpansionAborted
    | ExpansionSwitched
    | ExpansionPropagated
    | ExpansionOpened
    | AssignmentSet
    | ParkedRecord
    | LaneRecord
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[list[Record]] = msgspec.msgpack.Decoder(list[Record])


def encode_records(records: Sequence[Record]) -> bytes:
    """Return the metadata part of an entry."""
    return _encoder.encode(records)


def decode_records(meta: bytes | memoryview) -> list[Record]:
    """Return the records that ``encode_records`` was given.

    Raises:
        UNREADABLE: one of these; the bytes are no list of known records.
    """
    return _decoder.decode(meta)


# -- outcomes --------------------------------------------------------------------------------------


class Refused(Struct, frozen=True):
    """The record changed nothing; *reason* says why. For a message: it is in no queue."""

    reason: str


class TopicChanged(Struct, frozen=True):
    """The table of topics changed (set or deleted), or an auto-creation found the topic there."""

    name: str
    changed: bool
    deleted: bool = False


class GroupChanged(Struct, frozen=True):
    """The table of groups changed, or an auto-creation found the group there."""

    name: str
    changed: bool
    deleted: bool = False


class OffsetsMoved(Struct, frozen=True):
    """How many offsets moved; the others were lower or came under an ended epoch."""

    moved: int
    passed_over: int = 0


class LocksGranted(Struct, frozen=True):
    """The queues that the client holds now, with their epochs, in the order asked for."""

    group: str
    client_id: str
    lease_ms: int
    granted: tuple[tuple[str, int, int], ...]


class LocksFreed(Struct, frozen=True):
    """The queues that became free, by group."""

    queues: tuple[tuple[str, str, int], ...]
    reason: str


class MembersChanged(Struct, frozen=True):
    """Groups whose members or subscriptions changed, and queues and lanes that became free with it."""

    groups: tuple[str, ...]
    freed: tuple[tuple[str, str, int], ...] = ()
    lanes: LanesMoved = LanesMoved(())


class DelayAdvanced(Struct, frozen=True):
    """A delay queue's progress stands at *offset*."""

    queue_id: int
    offset: int


class HalfChange(Enum):
    """What became of half messages."""

    OPENED = "opened"
    ENDED = "ended"
    CHECKED = "checked"
    GIVEN_UP = "given up"
    RESUMED = "resumed"


class HalvesMoved(Struct, frozen=True):
    """The half messages that changed; those that had ended before are not among them."""

    offsets: tuple[int, ...]
    change: HalfChange


class AssignmentChanged(Struct, frozen=True):
    """The assignment of a group's queues changed, or was so already."""

    group: str
    changed: bool


class ExpansionMoved(Struct, frozen=True):
    """The phase in which a topic's expansion is now, or was already."""

    topic: str
    phase: ExpansionPhase
    changed: bool = False


class Trimmed(Struct, frozen=True):
    """Old entries of a window or of queues went."""

    count: int


# The outcome of an append that went through is the record itself: it says where the message is,
# and a busy leader makes tens of thousands of them a second.
Outcome: TypeAlias = (
    Append
    | Refused
    | TopicChanged
    | GroupChanged
    | OffsetsMoved
    | LocksGranted
    | LocksFreed
    | MembersChanged
    | DelayAdvanced
    | HalvesMoved
    | TimersMoved
    | AccessChanged
    | SettingsChanged
    | ExpansionMoved
    | AssignmentChanged
    | ParkedOutcome
    | LaneOutcome
    | Trimmed
)
