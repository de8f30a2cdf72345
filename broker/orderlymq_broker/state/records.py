"""
Records of the raft log: one small struct per kind of change, and the outcomes of applying them.

The rules: a record contains everything that ``statemachine.py`` needs, so that applying it is the same on every replica.
Times are fields that the leader wrote. Names are never reused with another meaning. On the wire a record is a msgpack
array that begins with its tag. New fields go to the end and have a default, so that an old log stays readable. A
replica of a former release silently drops a field that it does not know, for good. Therefore a leader writes a value
other than the default only once all replicas know the field. Next step: ``statemachine.py``.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from orderlymq_broker.state.admin.accessrecords import AccessChanged, AccessRecord
from orderlymq_broker.state.admin.settingsrecords import SettingsChanged, SettingsSet
from orderlymq_broker.state.groups.failurepolicy import backoff_ms
from orderlymq_broker.state.groups.lockrecords import (
    ClientDead,
    LockRecord,
    LocksFreed,
    LocksGranted,
)
from orderlymq_broker.state.groups.parkedkeyrecords import ParkedOutcome, ParkedRecord
from orderlymq_broker.state.integerranges import NO_TOKEN, Long, Natural, Position
from orderlymq_broker.state.lanes.lanerecords import (
    LaneOutcome,
    LaneRecord,
    LanesFetched,
    LanesMoved,
)
from orderlymq_broker.state.schedule.timerrecords import TimersEnded
from orderlymq_broker.state.topics.expansionrecords import ExpansionMoved, ExpansionRecord
from orderlymq_broker.state.transactions.halfrecords import HalfRecord, HalvesMoved
from orderlymq_protocol.body.lanes import (
    BY_KEY,
    BY_QUEUE,
    RETRY_PAUSE_MAX_MS,
    RETRY_PAUSE_MS,
)
from orderlymq_protocol.message.properties import SHARDING_KEY

# -- messages ------------------------------------------------------------------------------------


class Append(Struct, frozen=True, array_like=True, tag=1, gc=False):
    """One stored message in this entry's blob joins a queue.

    Attributes:
        physical: the physical offset of the stored record; dense over the whole log.
        size: the bytes of the stored record.
        tags_code: the code by which pulls filter; in the schedule topic the due time (wall ms).
        store_timestamp: wall ms of the leader; never falls within a queue.
        unique_key: the UNIQ_KEY property, empty if there is none.
        keys: the KEYS property unchanged: tokens separated by blanks.
        identity: the identity of the send in the duplicate window, empty if it has none there.
        reply_queue: the queue id in the answer to the sender; for a delayed message, the requested queue.
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
    """Messages [start, end) of a delay queue have been appended to their own topics."""

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
    """Old messages are removed: first the queue positions, last (floor > 0) the messages themselves."""

    queues: tuple[QueueFloor, ...] = ()
    floor: Position = 0


# -- topics and groups -----------------------------------------------------------------------------


class TopicSet(Struct, frozen=True, array_like=True, tag=10):
    """A topic is created, or its configuration replaced.

    Attributes:
        only_if_absent: do not change an existing topic; for automatic creation.
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
    """A topic is deleted with its queues, its index and the offsets that groups have in it."""

    name: str


class GroupSet(Struct, frozen=True, array_like=True, tag=12):
    """A consumer group is created, or its configuration replaced.

    Attributes:
        orderly: ordered by configuration: only the holder of a queue's lock may pull and commit.
        on_dead_letter: Continue, HoldKey or StopQueue; see ``groups/failurepolicy.py``.
        concurrency: Queue, by queue locks, or Key, by lanes; see ``processors/lanes/``.
        lane_key_property: the property whose value is the key of a message's lane.
        concurrent: declared to consume without order although it has taken locks; it gets no more of them.
        retry_pause_ms, retry_pause_max_ms: by key, the first and the longest pause of a lane whose message failed.
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
    concurrent: bool = False
    retry_pause_ms: Long = RETRY_PAUSE_MS
    retry_pause_max_ms: Long = RETRY_PAUSE_MAX_MS

    @property
    def by_key(self) -> bool:
        """Whether the group consumes by lanes."""
        return self.concurrency == BY_KEY

    def pause_ms(self, tries: int) -> int:
        """Return the pause of a lane whose message has failed *tries* times."""
        return backoff_ms(self.retry_pause_ms, self.retry_pause_max_ms, tries)


class GroupDeleted(Struct, frozen=True, array_like=True, tag=13):
    """A consumer group is deleted with its locks and members; its offsets only if requested."""

    name: str
    clean_offsets: bool = False


# -- consumer offsets ------------------------------------------------------------------------------


class Commit(Struct, frozen=True, array_like=True):
    """One consumer offset; *epoch* is that of the lock under which it was accepted, 0 if unfenced."""

    group: str
    topic: str
    queue_id: Natural
    offset: Position
    epoch: Long = 0


class OffsetsCommitted(Struct, frozen=True, array_like=True, tag=20):
    """Offsets move forward; a lower one, or one of an epoch that has ended, is ignored."""

    commits: tuple[Commit, ...]


class OffsetsReset(Struct, frozen=True, array_like=True, tag=21):
    """Offsets are set, even backwards, as an administrator decided.

    Attributes:
        fences: raise the epochs of these queues' locks, because a holder that continues under the former epoch does not
            know of the reset.
    """

    commits: tuple[Commit, ...]
    fences: bool = False


# -- membership and assignment ----------------------------------------------------------------------


class Subscription(Struct, frozen=True, array_like=True):
    """A member's subscription to a topic; *version* is the millisecond in which it was made."""

    topic: str
    expression: str = "*"
    expression_type: str = "TAG"
    version: Long = 0
    codes: tuple[Long, ...] = ()
    tags: tuple[str, ...] = ()


class MemberSeen(Struct, frozen=True, array_like=True, tag=40):
    """A client is a member of a group; written when it joins or its data changes.

    Attributes:
        account: the access key with which it signed; empty without access control.
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
    """A client is no longer a member of a group."""

    group: str
    client_id: str


class AssignmentSet(Struct, frozen=True, array_like=True, tag=85):
    """An operator has decided which member of a group takes which queue of a topic.

    Attributes:
        owners: (broker name, queue, client id) over all raft groups; an empty tuple ends the assignment.
        token: the operator's token, as in ``ClientDead``.
    """

    group: str
    topic: str
    owners: tuple[tuple[str, Natural, str], ...]
    token: Long = NO_TOKEN


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
    | LockRecord
    | MemberSeen
    | MemberLeft
    | HalfRecord
    | TimersEnded
    | AccessRecord
    | SettingsSet
    | ExpansionRecord
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
    """Return the records that ``encode_records`` has encoded.

    Raises:
        UNREADABLE: one of these; the bytes are not a list of known records.
    """
    return _decoder.decode(meta)


# The deletion of a topic visits every consumer group: 1 ms for 10,000 of them, 6 ms for 40,000. That of a group removes
# everything the group has: about 10 ms for 100,000 offsets and as many locks.
_DELETION_CHANGES: Final = 256


def changes_in(record: Record) -> int:
    """Return how many changes a record makes, counting each that takes time to apply."""
    if type(record) is TopicDeleted or type(record) is GroupDeleted:
        return _DELETION_CHANGES
    if type(record) is LanesFetched:
        return sum([max(1, len(part.hand_outs) + len(part.found)) for part in record.queues]) or 1
    if type(record) is ClientDead:
        return max(1, record.most)
    values = msgspec.structs.astuple(record)

    return max(1, sum([len(value) for value in values if type(value) is tuple]))


# -- outcomes --------------------------------------------------------------------------------------


class Refused(Struct, frozen=True):
    """The record changed nothing; *reason* says why. A refused message is in no queue."""

    reason: str


class TopicChanged(Struct, frozen=True):
    """The topic table changed (set or deleted), or an auto-creation found an existing topic."""

    name: str
    changed: bool
    deleted: bool = False


class GroupChanged(Struct, frozen=True):
    """The group table changed, or an auto-creation found an existing group.

    Attributes:
        mode_changed: an existing group has changed between consuming by key and by queue.
    """

    name: str
    changed: bool
    deleted: bool = False
    mode_changed: bool = False


class OffsetsMoved(Struct, frozen=True):
    """How many offsets moved; the others were lower or came under an epoch that has ended.

    Attributes:
        reset: the groups and topics whose offsets were set, even backwards.
    """

    moved: int
    passed_over: int = 0
    reset: tuple[tuple[str, str], ...] = ()


class MembersChanged(Struct, frozen=True):
    """The groups whose members or subscriptions changed, and the queues and lanes that became free as a result."""

    groups: tuple[str, ...]
    freed: tuple[tuple[str, str, int], ...] = ()
    lanes: LanesMoved = LanesMoved(())


class AssignmentChanged(Struct, frozen=True):
    """The assignment of a group's queues changed; *changed* is False if the record made no difference."""

    group: str
    changed: bool


class Done(Struct, frozen=True):
    """The record was applied; its proposer knows the result."""


class Trimmed(Struct, frozen=True):
    """Old entries of a window or of queues were removed."""

    count: int


# The outcome of a successful append is the record itself: it tells where the message is,
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
    | Done
    | HalvesMoved
    | AccessChanged
    | SettingsChanged
    | ExpansionMoved
    | AssignmentChanged
    | ParkedOutcome
    | LaneOutcome
    | Trimmed
)
