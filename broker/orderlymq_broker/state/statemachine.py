"""
The state machine of a broker: the only code that changes the state, from the raft log alone.

The rules: applying the same entries gives the same state on every replica, so no code here reads a
clock, a setting or a connection. The effects of an entry reach the store in one batch together with
its index. An entry that does not fit the state (such as an offset that is not dense) is a broken invariant
and stops the process. ``processors/dispatch.py`` shows what leaders do with the outcomes.
"""

from struct import Struct
from typing import Final, TypeAlias, assert_never

import msgspec

from orderlymq_broker.state import removals
from orderlymq_broker.state.admin.accessrecords import (
    AccessRecord,
    AccountDeleted,
    AccountSet,
    FormerSecretEnded,
    WhiteAddressesSet,
)
from orderlymq_broker.state.admin.settingsrecords import SettingsSet
from orderlymq_broker.state.broker import OPERATOR_ROW, BrokerState
from orderlymq_broker.state.groups.lockrecords import (
    ClientDead,
    LocksExpired,
    LocksReleased,
    LocksRequested,
)
from orderlymq_broker.state.groups.parkedkeyrecords import KeyFollowed, KeyParked, KeyReleased
from orderlymq_broker.state.integerranges import NO_TOKEN
from orderlymq_broker.state.lanes.lanerecords import (
    LaneDeadLettered,
    LaneFreed,
    LaneRecord,
    LanesExpired,
    LanesFetched,
    LanesMoved,
    LanesReported,
    LanesReturned,
)
from orderlymq_broker.state.records import (
    Append,
    AssignmentSet,
    DedupTrimmed,
    DelayProgress,
    Done,
    GroupDeleted,
    GroupSet,
    MemberLeft,
    MemberSeen,
    OffsetsCommitted,
    OffsetsReset,
    Outcome,
    Record,
    Refused,
    RetentionAdvanced,
    TopicDeleted,
    TopicSet,
    changes_in,
    decode_records,
)
from orderlymq_broker.state.schedule.timerrecords import TimersEnded
from orderlymq_broker.state.tables import TableWrites
from orderlymq_broker.state.topics import expansionphases
from orderlymq_broker.state.topics.expansionrecords import (
    ExpansionAborted,
    ExpansionFenced,
    ExpansionOpened,
    ExpansionPropagated,
    ExpansionSwitched,
)
from orderlymq_broker.state.topics.queues import write_floor
from orderlymq_broker.state.topics.rows import TailEntry
from orderlymq_broker.state.transactions.halfrecords import (
    HalfEnded,
    HalfGivenUp,
    HalfOpened,
    HalfResumed,
    HalvesChecked,
)
from orderlymq_broker.store.entry import MESSAGE_SIZE_MIN, Buffer, EntryParts
from orderlymq_broker.store.kv import Batch, Family
from orderlymq_broker.store.layout import (
    INDEX_TEXT_SIZE_MAX,
    META_APPLIED,
    Applied,
    IndexKind,
    Table,
    encode_applied,
    encode_timestamp,
    index_key,
)
from orderlymq_protocol.operatortoken import stale_operator

# Requests of an operator; each carries its token.
OperatorRecord: TypeAlias = (
    ClientDead
    | ExpansionFenced
    | ExpansionAborted
    | ExpansionSwitched
    | ExpansionPropagated
    | AssignmentSet
)
_QUEUE_VALUE: Final = Struct(">QIqQ")
_QUEUE_KEY: Final = Struct(">IIQ")
_POSITIONS: Final = Struct(">I16xqq")  # size, queueOffset, physicalOffset of a stored record

# The index keys that every message of an entry may have. With many more, one batch would block all clients for seconds.
KEYS_MAX: Final = 64
# A message may have this many while its entry has spare keys: a trace of RocketMQ's client covers hundreds of messages.
_KEYS_OF_MANY_MAX: Final = 1_024
_SPARE_KEYS: Final = 8_192


class StateMachine:
    """Applies entries to a state, in the order of the log, each exactly once.

    Attributes:
        changes: the number of applied changes, each of which takes time.
    """

    def __init__(self, state: BrokerState) -> None:
        self.state = state
        self._writes = TableWrites()
        self._spare_keys = 0
        self.changes = 0

    def apply(self, index: int, term: int, parts: EntryParts, batch: Batch) -> list[Outcome]:
        """Apply one entry; return one outcome per record.

        All its changes of the store, and the new applied *index*, go into *batch*.
        """
        state = self.state
        assert index == state.applied_index + 1, (
            f"entry {index} does not follow the applied index {state.applied_index}"
        )
        outcomes: list[Outcome] = []
        data, position = parts.data, parts.blob_start
        end = len(data)
        shift = parts.physical_start - position
        self._spare_keys = _SPARE_KEYS
        if position < end:
            assert parts.physical_start == state.physical_end, (
                f"messages begin at {parts.physical_start}, but the log ends at "
                f"{state.physical_end}"
            )
        for record in decode_records(parts.meta):
            if type(record) is Append:
                assert record.physical == shift + position, f"{record} is not at {shift + position}"
                outcomes.append(self._append(record, data, position, batch))
                position += record.size
            elif outcomes and type(outcomes[-1]) is Refused and _is_of_message(record):
                outcomes.append(outcomes[-1])
            else:
                self.changes += changes_in(record) + state.lanes.moved_by(record) - 1
                outcomes.append(self._apply_other(record, index, parts.wall_ms, batch))
        self.changes += len(outcomes)
        assert position == end, f"{end - position} bytes of messages have no record"
        state.physical_end += end - parts.blob_start
        self._finish(index, term, batch)

        return outcomes

    def apply_noop(self, index: int, term: int, batch: Batch) -> None:
        """Skip an entry that is raft's own: a new leader's first one, or a membership change."""
        self._finish(index, term, batch)

    # -- the hot path ------------------------------------------------------------------------------

    def _append(self, record: Append, data: Buffer, start: int, batch: Batch) -> Outcome:
        state = self.state
        topic_id, queue_id = record.topic_id, record.queue_id
        queue_offset, physical = record.queue_offset, record.physical
        topic = state.topics.by_id.get(topic_id)
        if topic is None:
            return Refused("the topic was deleted before the message arrived")
        queue = topic.queues.get(queue_id) or topic.queue(queue_id)
        store_timestamp = record.store_timestamp
        if queue_offset != queue.next_offset:
            # A copy of another cluster's queue begins at the first message that is still kept there.
            assert not queue.next_offset, f"{record} does not follow {queue}"
            queue.next_offset = queue.min_offset = queue.first_offset = queue_offset
            write_floor(queue, self._writes)
        assert store_timestamp >= queue.last_timestamp, f"{record} is older than {queue}"
        size = record.size
        assert MESSAGE_SIZE_MIN <= size <= len(data) - start, f"{record} has no complete message"
        assert _POSITIONS.unpack_from(data, start) == (size, queue_offset, physical), (
            f"the stored message is not where {record} says"
        )
        queue.next_offset = queue_offset + 1
        queue.last_timestamp = store_timestamp
        state.last_timestamp = max(state.last_timestamp, store_timestamp)
        puts = batch.puts
        puts.append(
            (
                Family.CONSUME_QUEUE,
                _QUEUE_KEY.pack(topic_id, queue_id, queue_offset),
                _QUEUE_VALUE.pack(physical, size, record.tags_code, store_timestamp),
            )
        )
        if record.unique_key:
            puts.append(
                (
                    Family.KEY_INDEX,
                    index_key(topic_id, IndexKind.UNIQUE, record.unique_key, physical),
                    encode_timestamp(store_timestamp),
                )
            )
        if record.keys:
            self._index_keys(record, batch)
        if record.identity:
            state.dedup.add(record, batch)
        if topic.timed:
            state.timers.open(record, self._writes)
        entry = TailEntry(physical, record.tags_code, store_timestamp, data, start, size)
        state.tail.add(queue, entry)

        return record

    def _index_keys(self, record: Append, batch: Batch) -> None:
        value = encode_timestamp(record.store_timestamp)
        tokens = record.keys.split(" ", _KEYS_OF_MANY_MAX)[:_KEYS_OF_MANY_MAX]
        if len(tokens) > KEYS_MAX:
            spare = min(len(tokens) - KEYS_MAX, self._spare_keys)
            self._spare_keys -= spare
            del tokens[KEYS_MAX + spare :]
        for token in dict.fromkeys(tokens):
            if token:
                key = index_key(
                    record.topic_id, IndexKind.KEY, token[:INDEX_TEXT_SIZE_MAX], record.physical
                )
                batch.put(Family.KEY_INDEX, key, value)

    # -- everything else ---------------------------------------------------------------------------

    def _apply_other(  # noqa: C901, PLR0911, PLR0912 - one line per kind of record is the clearest table
        self, record: Record, index: int, wall_ms: int, batch: Batch
    ) -> Outcome:
        state, writes = self.state, self._writes
        match record:
            case OffsetsCommitted():
                return self._commit_offsets(record)
            case LocksRequested():
                return state.locks.request(self._without_gone(record), index, wall_ms, writes)
            case LocksReleased():
                return state.locks.release(record, writes)
            case LocksExpired():
                return state.locks.expire(record, writes)
            case MemberSeen():
                return state.members.see(record, writes)
            case MemberLeft():
                return state.members.leave(record.group, record.client_id, writes)
            case DelayProgress():
                return self._advance_delay(record)
            case DedupTrimmed():
                return state.dedup.trim(record.floor, batch)
            case TopicSet():
                return removals.set_topic(state, record, wall_ms, writes)
            case GroupSet():
                return self._set_group(record, wall_ms)
            case HalfOpened():
                return state.transactions.begin(record, writes)
            case HalfEnded():
                return self._end_half(record, batch)
            case HalvesChecked():
                return state.transactions.check_again(record, wall_ms, writes)
            case HalfGivenUp():
                return state.transactions.give_up(record, writes)
            case HalfResumed():
                return state.transactions.resume(record, writes)
            case TimersEnded():
                return self._end_timers(record, wall_ms, batch)
            case OffsetsReset():
                return removals.reset_offsets(state, record, writes, batch)
            case (
                ClientDead()
                | ExpansionFenced()
                | ExpansionAborted()
                | ExpansionSwitched()
                | ExpansionPropagated()
                | AssignmentSet()
            ):
                return self._stale(record.token) or self._apply_operators(record, wall_ms)
            case ExpansionOpened():
                return expansionphases.open_all(state, record, wall_ms, writes)
            case RetentionAdvanced():
                return removals.advance_retention(state, record, writes, batch)
            case TopicDeleted():
                return removals.delete_topic(state, record, wall_ms, writes, batch)
            case GroupDeleted():
                return removals.delete_group(state, record, wall_ms, writes, batch)
            case AccountSet() | AccountDeleted() | FormerSecretEnded() | WhiteAddressesSet():
                return self._apply_access(record, wall_ms)
            case KeyParked() | KeyFollowed() | KeyReleased():
                return state.parked.apply(record, state.locks, state.offsets, wall_ms, writes)
            case LanesFetched() | LanesReported() | LanesExpired():
                return self._apply_lanes(record, wall_ms)
            case LanesReturned() | LaneFreed() | LaneDeadLettered():
                return self._apply_lanes(record, wall_ms)
            case SettingsSet():
                return state.overrides.set(record.values, wall_ms, writes)
            case Append():
                raise AssertionError("appends are applied with their message")
            case _:
                assert_never(record)

    def _without_gone(self, record: LocksRequested) -> LocksRequested:
        """Leave out topics and groups that were deleted meanwhile, because their rows would never be removed."""
        state = self.state
        if record.group not in state.groups.by_name or state.is_by_key(record.group):
            return msgspec.structs.replace(record, queues=(), orderly=False)
        topics = {name: state.topics.by_name.get(name) for name, _ in record.queues}
        kept = tuple(
            (name, queue_id)
            for name, queue_id in record.queues
            if (topic := topics[name]) is not None and queue_id < topic.queue_count
        )

        return record if kept == record.queues else msgspec.structs.replace(record, queues=kept)

    def _commit_offsets(self, record: OffsetsCommitted) -> Outcome:
        state = self.state
        commits = record.commits
        # By key, only the lanes determine the progress of a group.
        if any(state.is_by_key(commit.group) for commit in commits):
            commits = tuple(commit for commit in commits if not state.is_by_key(commit.group))
        return state.offsets.commit(commits, state.locks, state.topics.by_name, self._writes)

    def _end_half(self, record: HalfEnded, batch: Batch) -> Outcome:
        """End a transaction; a message that was rolled back may be sent again."""
        transactions = self.state.transactions
        half = transactions.get(record.offset)
        if half is not None and not record.committed:
            self.state.dedup.forget(half.opened.physical, batch)

        return transactions.end(record, self._writes)

    def _end_timers(self, record: TimersEnded, wall_ms: int, batch: Batch) -> Outcome:
        """End timers; a cancelled message may be sent again."""
        if record.cancelled:
            for timer in record.timers:
                self.state.dedup.cancel(timer.physical, wall_ms, batch)

        return self.state.timers.end(record, self._writes)

    def _apply_access(self, record: AccessRecord, wall_ms: int) -> Outcome:
        access, writes = self.state.access, self._writes
        match record:
            case AccountSet():
                return access.set(record, wall_ms, writes)
            case AccountDeleted():
                return access.delete(record.access_key, wall_ms, writes)
            case FormerSecretEnded():
                return access.end_former_secret(record, wall_ms, writes)
            case _:
                return access.set_white_addresses(record.addresses, wall_ms, writes)

    def _set_group(self, record: GroupSet, wall_ms: int) -> Outcome:
        """Set a group's configuration, unless it would change the group's mode while that is in use."""
        state, writes = self.state, self._writes
        present = state.groups.get(record.name)
        if not record.only_if_absent:
            reason = state.lanes.refuse_change(present, record, state.locks)
            if reason:
                return Refused(reason)
            if present is not None and present.by_key and not record.by_key:
                state.lanes.drop(writes, group=record.name)

        return state.groups.set(record, wall_ms, writes)

    def _apply_lanes(self, record: LaneRecord, wall_ms: int) -> Outcome:
        state, writes = self.state, self._writes
        lanes, offsets = state.lanes, state.offsets
        match record:
            case LanesFetched():
                if not state.is_by_key(record.group):
                    return Refused(f"group[{record.group}] no longer consumes by key")
                if state.members.get(record.group, record.client_id) is None:
                    return Refused(
                        f"{record.client_id} is no longer a member of group[{record.group}]"
                    )
                topic = state.topics.by_name.get(record.topic)
                return lanes.fetch(record, topic, offsets, wall_ms, writes)
            case LanesReported():
                return lanes.report(record, offsets, wall_ms, writes)
            case LanesExpired():
                config = state.groups.get(record.group)
                if config is None:
                    return LanesMoved(())
                return lanes.expire(record, config, wall_ms, writes)
            case LanesReturned():
                return lanes.give_back(record, wall_ms, writes)
            case LaneFreed():
                return lanes.free(record, wall_ms, writes)
            case LaneDeadLettered():
                return lanes.dead_lettered(record, offsets, wall_ms, writes)
            case _:
                assert_never(record)

    def _apply_operators(self, record: OperatorRecord, wall_ms: int) -> Outcome:
        state, writes = self.state, self._writes
        match record:
            case ClientDead():
                return removals.expire_client(state, record, wall_ms, writes)
            case ExpansionFenced():
                return expansionphases.fence(state, record, wall_ms, writes)
            case ExpansionAborted():
                return expansionphases.abort(state, record, wall_ms, writes)
            case ExpansionSwitched():
                return expansionphases.switch(state, record, wall_ms, writes)
            case ExpansionPropagated():
                return expansionphases.propagate(state, record, wall_ms, writes)
            case AssignmentSet():
                return state.assignments.set(record, writes)
            case _:
                assert_never(record)

    def _stale(self, token: int) -> Refused | None:
        """Refuse a request of an operator that a newer one has replaced; remember the newest token."""
        state = self.state
        if token in (NO_TOKEN, state.operator_token):
            return None
        if token < state.operator_token:
            return Refused(stale_operator(token, state.operator_token))
        state.operator_token = token
        self._writes.put(Table.COUNTERS, OPERATOR_ROW, value=token)

        return None

    def _advance_delay(self, record: DelayProgress) -> Outcome:
        present = self.state.delay.get(record.queue_id, 0)
        assert present == record.start, f"{record} does not follow the progress {present}"
        self.state.delay[record.queue_id] = record.end
        self._writes.put(Table.DELAY, record.queue_id, value=(record.queue_id, record.end))

        return Done()

    def _finish(self, index: int, term: int, batch: Batch) -> None:
        state = self.state
        state.applied_index = index
        self._writes.flush(batch)
        applied = Applied(index, term, state.physical_end, state.floor)
        batch.put(Family.META, META_APPLIED, encode_applied(applied))


def _is_of_message(record: Record) -> bool:
    """Return whether a record follows that of a message and is valid only if the message is stored."""
    return type(record) in (HalfOpened, LaneDeadLettered) or (
        type(record) is HalfEnded and record.committed
    )
