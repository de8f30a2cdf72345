"""
Records that remove rows from several tables: deletions, retention, dead clients, offsets that are set back, fewer queues.

The rule: when a table loses rows, every table that refers to them loses its references with the same entry. `machine`
calls these functions; a record that concerns one table is applied by that table.
"""

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Final

from orderlymq_broker.state.broker import BrokerState
from orderlymq_broker.state.groups.lockrecords import ClientDead
from orderlymq_broker.state.records import (
    GroupChanged,
    GroupDeleted,
    MembersChanged,
    OffsetsReset,
    Outcome,
    Refused,
    RetentionAdvanced,
    TopicChanged,
    TopicDeleted,
    TopicSet,
    Trimmed,
)
from orderlymq_broker.state.tables import TableWrites
from orderlymq_broker.state.topics.expansionphases import readers_of
from orderlymq_broker.state.topics.queues import trim
from orderlymq_broker.state.topics.topics import Topic
from orderlymq_broker.store.kv import Batch, Family
from orderlymq_broker.store.layout import message_key, prefix_end
from orderlymq_protocol.names import dlq_topic, retry_topic

_TOPIC_PREFIX: Final = Struct(">I")
_NO_OFFSETS: Mapping[int, int] = {}


def reset_offsets(
    state: BrokerState, record: OffsetsReset, writes: TableWrites, batch: Batch
) -> Outcome:
    """Set offsets, and remove known copies: messages that fail once more must not count as duplicates of these."""
    _forget_copies(
        state,
        {
            (commit.group, commit.topic)
            for commit in record.commits
            # By key, messages beyond the offset may be complete.
            if state.is_by_key(commit.group)
            or (at := state.offsets.get(commit.group, commit.topic, commit.queue_id)) is None
            or commit.offset < at
        },
        batch,
    )
    state.parked.reset(record.commits, writes)
    state.lanes.reset(record.commits, writes)
    if record.fences:
        state.locks.raise_epochs(
            ((each.group, each.topic, each.queue_id) for each in record.commits), writes
        )
    return state.offsets.reset(record.commits, state.topics.by_name, writes)


def _forget_copies(state: BrokerState, again: Iterable[tuple[str, str]], batch: Batch) -> None:
    """Remove known copies of messages that groups consume again (by group and topic), so that these can fail again."""
    topics = state.topics.by_name
    origins: dict[int, set[str]] = {}
    for group, name in again:
        for target in (retry_topic(group), dlq_topic(group)):
            topic = topics.get(target)
            if topic is not None:
                # Messages in a retry topic come from any topic.
                from_all = name == retry_topic(group)
                origins.setdefault(topic.id, set()).add("" if from_all else name)
    if origins:
        state.dedup.forget_copies(origins, batch)


def set_topic(
    state: BrokerState, record: TopicSet, wall_ms: int, writes: TableWrites
) -> TopicChanged | Refused:
    """Create or change a topic, unless that removes a queue which a group still has to read.

    The leader has checked this with the state applied then, but messages may have come since.
    """
    topic = state.topics.get(record.name)
    if topic is not None and not record.only_if_absent:
        reason = refuse_fewer(state, topic, max(record.read_queues, record.write_queues))
        if reason:
            return Refused(reason)

    return state.topics.set(record, wall_ms, writes)


def refuse_fewer(state: BrokerState, topic: Topic, count: int) -> str:
    """Return why a topic cannot have only *count* queues; empty if it can. A group may still have to consume the others."""
    kept = [
        (number, queue.next_offset)
        for number, queue in sorted(topic.queues.items())
        if number >= count and queue.min_offset < queue.next_offset
    ]
    if not kept:
        return ""
    # Go by group first: each existing offset is then looked up once, and the number of offsets is limited.
    for group in readers_of(state, topic.name):
        committed = state.offsets.of_group(group).get(topic.name, _NO_OFFSETS)
        for number, end in kept:
            if committed.get(number, 0) < end:
                return (
                    f"queue {number} of topic[{topic.name}] has messages that group {group} has "
                    "not consumed; lower writeQueueNums first, and readQueueNums when all "
                    "messages are consumed"
                )
    return ""


def expire_client(
    state: BrokerState, record: ClientDead, wall_ms: int, writes: TableWrites
) -> Outcome:
    """Free the locks and lanes of a client that is proven dead and remove its memberships, unless it was seen elsewhere."""
    members, lanes, client_id = state.members, state.lanes, record.client_id
    groups = members.groups_of(client_id)
    if record.addresses is not None:
        places = {lock.address for lock in state.locks.of_client(client_id)}
        if lanes.holds_any(client_id):
            # The address of a former member is not known.
            places |= {
                member.address
                for group in groups
                if lanes.holds(group, client_id) and (member := members.get(group, client_id))
            } or {""}
        if not places.issubset(record.addresses):
            return MembersChanged(())
    freed = state.locks.free_client(client_id, record.proof, writes, record.most).queues
    if record.most:
        return MembersChanged((), freed)
    ended = lanes.free_client(record, state.groups, wall_ms, writes)
    for group in groups:
        members.leave(group, client_id, writes)

    return MembersChanged(tuple(groups), freed, ended)


def advance_retention(
    state: BrokerState, record: RetentionAdvanced, writes: TableWrites, batch: Batch
) -> Outcome:
    """Remove messages below the new floors, but keep those that lanes still owe, and open half messages in the log.

    Messages may have come to be owed or open after the leader's decision.
    """
    count = 0
    for floor in record.queues:
        topic = state.topics.by_id.get(floor.topic_id)
        queue = topic.queues.get(floor.queue_id) if topic is not None else None
        if topic is None or queue is None:
            continue
        assert floor.min_offset <= queue.next_offset, f"{floor} is after the end of {queue}"
        owed = state.lanes.first_owed(topic.name, floor.queue_id)
        min_offset = floor.min_offset if owed is None else min(owed, floor.min_offset)
        if min_offset <= queue.min_offset:
            continue
        count += min_offset - queue.min_offset
        trim(queue, min_offset, writes, batch)
    first_open = state.transactions.first_open()
    log_floor = min(record.floor, state.physical_end if first_open is None else first_open)
    if log_floor > state.floor:
        state.floor = log_floor
        batch.drop_messages(message_key(state.floor))
        for physical in state.transactions.drop_below(state.floor, writes):
            state.dedup.forget(physical, batch)

    return Trimmed(count)


def delete_topic(
    state: BrokerState, record: TopicDeleted, wall_ms: int, writes: TableWrites, batch: Batch
) -> Outcome:
    """Delete a topic and everything that other tables have about it."""
    topic = state.topics.delete(record.name, wall_ms, writes)
    if topic is None:
        return TopicChanged(record.name, changed=False)
    state.expansions.drop(record.name, writes)
    state.assignments.drop(writes, topic=record.name)
    state.parked.drop(writes, topic=record.name)
    state.lanes.drop(writes, topic=record.name)
    state.offsets.drop_topic(record.name, writes)
    state.locks.drop_topic(record.name, writes)
    prefix = _TOPIC_PREFIX.pack(topic.id)
    for family in (Family.CONSUME_QUEUE, Family.KEY_INDEX):
        batch.delete_range(family, prefix, prefix_end(prefix))

    return TopicChanged(record.name, changed=True, deleted=True)


def delete_group(
    state: BrokerState, record: GroupDeleted, wall_ms: int, writes: TableWrites, batch: Batch
) -> Outcome:
    """Delete a consumer group; its offsets only if requested."""
    existed = state.groups.delete(record.name, wall_ms, writes)
    state.locks.drop_group(record.name, writes)
    state.assignments.drop(writes, group=record.name)
    state.parked.drop(writes, group=record.name)
    state.lanes.drop(writes, group=record.name)
    for client_id in list(state.members.of_group(record.name)):
        state.members.leave(record.name, client_id, writes)
    if record.clean_offsets:
        _forget_copies(state, [(record.name, retry_topic(record.name))], batch)
        state.offsets.drop_group(record.name, writes)

    return GroupChanged(record.name, changed=existed, deleted=True)
