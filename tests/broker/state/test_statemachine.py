"""The state machine: appends, deletions, retention, and the same state on every replica."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orderlymq_broker.state.groups.lockrecords import (
    ClientDead,
    LockRef,
    LocksExpired,
    LocksReleased,
    LocksRequested,
)
from orderlymq_broker.state.groups.parkedkeyrecords import (
    KeyParked,
    KeyReleased,
    ParkedFound,
    ParkedKey,
)
from orderlymq_broker.state.records import (
    Append,
    Commit,
    DedupTrimmed,
    DelayProgress,
    Done,
    GroupChanged,
    GroupDeleted,
    GroupSet,
    MemberLeft,
    MembersChanged,
    MemberSeen,
    OffsetsCommitted,
    OffsetsReset,
    Outcome,
    QueueFloor,
    Record,
    Refused,
    RetentionAdvanced,
    Subscription,
    TopicChanged,
    TopicDeleted,
    TopicSet,
    Trimmed,
    encode_records,
)
from orderlymq_broker.state.transactions.halfrecords import (
    HalfEnded,
    HalfOpened,
    HalvesMoved,
)
from orderlymq_broker.store.entry import encode_entry, split_entry
from orderlymq_broker.store.kv import Batch, Family
from orderlymq_broker.store.layout import (
    META_APPLIED,
    IndexKind,
    QueueEntry,
    decode_applied,
    decode_index_key,
    decode_queue_entry,
    decode_queue_key,
    encode_queue_entry,
    encode_timestamp,
    index_key,
    message_key,
    queue_key,
)
from orderlymq_protocol.operatortoken import stale_operator
from tests.broker.state.entries import WALL_MS, Replica, stored


def keys(replica: Replica, family: Family) -> list[bytes]:
    return [key for key, _ in replica.store.scan(family, b"", b"\xff" * 9, limit=10_000)]


def test_an_append_writes_queue_entry_indexes_and_window_in_one_batch(replica: Replica) -> None:
    """Law: an append writes the queue entry, the index rows and the window of known sends in one batch."""
    replica.take(TopicSet("orders", 1, 1))
    topic_id = replica.topic_id()

    record = replica.append(topic_id, keys="a  b a", unique_key="U", identity=b"id")

    assert isinstance(record, Append)
    ((key, value),) = replica.store.scan(Family.CONSUME_QUEUE, b"", b"\xff" * 17, limit=9)
    assert key == queue_key(topic_id, 0, 0)
    assert value == encode_queue_entry(QueueEntry(0, record.size, 7, WALL_MS))
    assert sorted(keys(replica, Family.KEY_INDEX)) == sorted(
        [
            index_key(topic_id, IndexKind.KEY, "a", 0),
            index_key(topic_id, IndexKind.KEY, "b", 0),
            index_key(topic_id, IndexKind.UNIQUE, "U", 0),
        ]
    )
    assert len(keys(replica, Family.DEDUP)) == 1
    assert replica.state.last_timestamp == WALL_MS


def test_the_index_is_written_with_the_entry(replica: Replica) -> None:
    """Law: the applied index is written in the same batch as the effects; raft's own entries count too."""
    replica.take(TopicSet("orders", 1, 1))
    batch = Batch()
    replica.machine.apply_noop(2, 3, batch)
    replica.store.write(batch, sync=True)

    assert replica.state.applied_index == 2
    applied = decode_applied(replica.store.get(Family.META, META_APPLIED))
    assert (applied.index, applied.term) == (2, 3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"queue_offset": 2},
        {"physical": 1},
        {"size": 10},
        {"store_timestamp": WALL_MS - 1},
    ],
)
def test_an_append_that_does_not_fit_stops_the_replica(wrong: dict[str, int]) -> None:
    """Law: an append whose offset does not follow the last one stops the replica, because log and state disagree."""
    replica = Replica()
    replica.take(TopicSet("orders", 1, 1))
    replica.append(replica.topic_id())
    end = replica.state.physical_end
    message = stored(1, end)
    right = Append(replica.topic_id(), 0, 1, end, len(message), 0, WALL_MS)
    record = msgspec.structs.replace(right, **wrong)

    with pytest.raises(AssertionError):
        replica.take(record, messages=[message])


def test_entries_are_applied_in_order_and_once() -> None:
    """Law: an entry whose index does not follow the applied one is refused."""
    replica = Replica()
    parts = split_entry(encode_entry(encode_records([]), [], 0, WALL_MS))

    with pytest.raises(AssertionError, match="does not follow"):
        replica.machine.apply(2, 1, parts, Batch())


def test_a_message_for_a_deleted_topic_is_in_no_queue(replica: Replica) -> None:
    """Law: a message for a deleted topic is refused, but its bytes count, because physical offsets have no gaps."""
    replica.take(TopicSet("orders", 1, 1))
    topic_id = replica.topic_id()
    replica.take(TopicDeleted("orders"))

    outcome = replica.append(topic_id)

    assert outcome == Refused("the topic was deleted before the message arrived")
    assert replica.state.physical_end > 0


def test_a_topic_made_again_begins_empty(replica: Replica) -> None:
    """Law: a topic that is created again has a new id; no messages or offsets of the old one return."""
    replica.take(TopicSet("orders", 1, 1), GroupSet("billing"))
    first = replica.topic_id()
    replica.append(first, keys="k")
    replica.take(
        OffsetsCommitted((Commit("billing", "orders", 0, 1),)),
        LocksRequested("billing", "c", "h:1", 1_000, (("orders", 0),)),
    )

    assert replica.take(TopicDeleted("orders")) == [
        TopicChanged("orders", changed=True, deleted=True)
    ]
    replica.take(TopicSet("orders", 1, 1))

    assert replica.topic_id() == first + 1
    assert replica.state.offsets.get("billing", "orders", 0) is None
    assert replica.state.locks.get("billing", "orders", 0) is None
    assert keys(replica, Family.CONSUME_QUEUE) == []
    assert keys(replica, Family.KEY_INDEX) == []
    assert replica.restarted().topic_id() == first + 1


def test_a_topic_deleted_in_the_entry_of_its_last_message_leaves_nothing(replica: Replica) -> None:
    """Law: a topic deleted in the same entry as its last message leaves nothing,
    although a batch applies range deletions before its puts.
    """
    replica.take(TopicSet("orders", 1, 1))
    message = stored(0, 0)
    record = Append(replica.topic_id(), 0, 0, 0, len(message), 0, WALL_MS, "U", "k")

    replica.take(record, TopicDeleted("orders"), messages=[message])

    assert keys(replica, Family.CONSUME_QUEUE) == []
    assert keys(replica, Family.KEY_INDEX) == []


def test_several_entries_may_share_one_batch(replica: Replica) -> None:
    """Law: several entries may share a batch; a row that one writes and the next deletes is gone."""
    batch = Batch()
    entries: Sequence[Sequence[Record]] = (
        [TopicSet("orders", 1, 1), MemberSeen("g", "c", "h:1")],
        [TopicDeleted("orders"), MemberLeft("g", "c")],
        [MemberSeen("g", "d", "h:1")],
    )
    for index, records in enumerate(entries, 1):
        data = encode_entry(encode_records(records), [], 0, WALL_MS)
        replica.machine.apply(index, 1, split_entry(data), batch)
    replica.store.write(batch, sync=True)

    again = replica.restarted()
    assert again.state.topics.by_name == {}
    assert list(again.state.members.of_group("g")) == ["d"]


def test_configuration_changes_move_the_version_and_repetitions_do_not(replica: Replica) -> None:
    """Law: a change of a topic or consumer group raises its version; a repetition does not. Name servers compare it."""
    assert replica.take(TopicSet("orders", 1, 1)) == [TopicChanged("orders", changed=True)]
    assert replica.take(TopicSet("orders", 1, 1)) == [TopicChanged("orders", changed=False)]
    assert replica.take(TopicSet("orders", 9, 9, only_if_absent=True)) == [
        TopicChanged("orders", changed=False)
    ]
    assert (replica.state.topics_version, replica.state.topics_timestamp) == (1, WALL_MS)
    assert replica.take(TopicSet("orders", 2, 2)) == [TopicChanged("orders", changed=True)]
    assert replica.restarted().state.topics_version == 2
    assert replica.take(GroupSet("g"), GroupSet("g", only_if_absent=True)) == [
        GroupChanged("g", changed=True),
        GroupChanged("g", changed=False),
    ]


def test_a_deleted_group_keeps_its_offsets_unless_the_record_drops_them(replica: Replica) -> None:
    """Law: a deleted consumer group loses locks and members, and offsets only if the record says so.

    Epochs go on rising, so that an old holder is recognised.
    """
    replica.take(TopicSet("orders", 1, 1))
    for clean in (False, True):
        replica.take(
            GroupSet("billing"),
            MemberSeen("billing", "c", "h:1"),
            OffsetsCommitted((Commit("billing", "orders", 0, 1),)),
            LocksRequested("billing", "c", "h:1", 1_000, (("orders", 0),)),
        )
        replica.take(GroupDeleted("billing", clean_offsets=clean))
        assert replica.state.members.of_group("billing") == {}
        assert not replica.state.is_ordered("billing")
        assert replica.state.offsets.get("billing", "orders", 0) == (None if clean else 1)
    replica.take(
        GroupSet("billing"), LocksRequested("billing", "d", "h:1", 1_000, (("orders", 0),))
    )
    lock = replica.state.locks.get("billing", "orders", 0)
    assert lock is not None
    assert lock.epoch == 3


def test_a_commit_of_a_former_life_moves_nothing(replica: Replica) -> None:
    """Law: a commit for a topic or consumer group that was deleted meanwhile changes nothing,
    even if it was created again.
    """
    late = OffsetsCommitted((Commit("billing", "orders", 0, 7, epoch=1),))
    replica.take(
        TopicSet("orders", 1, 1),
        GroupSet("billing"),
        LocksRequested("billing", "c", "h:1", 1_000, (("orders", 0),)),
    )

    replica.take(TopicDeleted("orders"), late, OffsetsCommitted((Commit("b", "orders", 0, 7),)))
    replica.take(TopicSet("orders", 1, 1), late)

    assert replica.state.offsets.get("billing", "orders", 0) is None
    assert replica.state.offsets.get("b", "orders", 0) is None


def test_delay_progress_is_dense(replica: Replica) -> None:
    """Law: progress of delayed messages has no gap or repetition, which would skip a message or deliver it twice."""
    assert replica.take(DelayProgress(3, 0, 5)) == [Done()]
    assert replica.restarted().state.delay == {3: 5}

    with pytest.raises(AssertionError):
        Replica(replica.store.checkpoint()).take(DelayProgress(3, 4, 6))


def test_retention_trims_queues_then_messages(replica: Replica) -> None:
    """Law: retention trims queues, then stored messages.

    Minimum offsets never fall, and an emptied queue keeps its position.
    """
    replica.take(TopicSet("orders", 2, 2))
    topic_id = replica.topic_id()
    for _ in range(4):
        replica.append(topic_id)
    end = replica.state.physical_end

    assert replica.take(RetentionAdvanced((QueueFloor(topic_id, 0, 3),))) == [Trimmed(3)]
    assert len(keys(replica, Family.MESSAGES)) == 4
    assert [decode_queue_key(key)[2] for key in keys(replica, Family.CONSUME_QUEUE)] == [3]
    assert replica.take(
        RetentionAdvanced((QueueFloor(topic_id, 0, 1), QueueFloor(topic_id, 1, 1)), end // 2)
    ) == [Trimmed(0)]
    assert len(keys(replica, Family.MESSAGES)) == 2
    replica.take(RetentionAdvanced((QueueFloor(topic_id, 0, 4),), end))
    replica.take(RetentionAdvanced((), 1))

    again = replica.restarted()
    queue = again.state.topics.by_name["orders"].queues[0]
    assert (queue.min_offset, queue.next_offset, queue.last_timestamp) == (4, 4, WALL_MS)
    assert (again.state.floor, keys(again, Family.MESSAGES)) == (end, [])


def test_a_dead_client_is_gone_everywhere(replica: Replica) -> None:
    """Law: one record removes a dead client's locks and memberships in all consumer groups."""
    replica.take(TopicSet("orders", 2, 2), GroupSet("a"), GroupSet("b"))
    for group in ("a", "b"):
        replica.take(
            MemberSeen(group, "c", "h:1"),
            LocksRequested(group, "c", "h:1", 1_000, (("orders", 0), ("orders", 1))),
        )

    outcome = replica.take(ClientDead("c", "pod gone"))

    assert outcome == [
        MembersChanged(
            ("a", "b"),
            (("a", "orders", 0), ("a", "orders", 1), ("b", "orders", 0), ("b", "orders", 1)),
        )
    ]
    assert list(replica.state.locks.held()) == []


def test_keys_are_indexed_up_to_a_limit(replica: Replica) -> None:
    """Law: at most 1,024 keys of a message are indexed, so that one message does not cost thousands of writes (batches:
    test_query.py).
    """
    replica.take(TopicSet("orders", 1, 1))

    replica.append(replica.topic_id(), keys=" ".join(f"k{n}" for n in range(5_000)))

    kinds = [decode_index_key(key)[1] for key in keys(replica, Family.KEY_INDEX)]
    assert kinds == [IndexKind.KEY] * 1_024


def test_an_append_without_key_or_identity_leaves_its_message_in_its_queue_alone(
    replica: Replica,
) -> None:
    """Law: a message without keys or identity writes no index row, no known send and no timer."""
    replica.take(TopicSet("orders", 1, 1))

    record = replica.append(replica.topic_id())

    assert isinstance(record, Append)
    message = stored(0, 0)
    (queue,) = replica.state.topics.queues()
    [entry] = queue.tail
    assert (entry.physical, entry.tags_code, entry.store_timestamp) == (0, 7, WALL_MS)
    assert entry.message == message
    assert (keys(replica, Family.KEY_INDEX), keys(replica, Family.DEDUP)) == ([], [])
    assert len(replica.state.dedup) == 0
    assert list(replica.state.timers.rows()) == [(0, 0)]


def test_an_index_row_holds_the_store_time_and_its_text_no_more_than_the_limit(
    replica: Replica,
) -> None:
    """Law: an index row holds the store time, which a query by time reads; its key text is cut at the limit."""
    replica.take(TopicSet("orders", 1, 1))
    topic_id = replica.topic_id()

    replica.append(topic_id, keys="k" * 999, unique_key="U", timestamp=WALL_MS + 1)

    assert replica.store.scan(Family.KEY_INDEX, b"", b"\xff" * 9, limit=9) == [
        (index_key(topic_id, IndexKind.KEY, "k" * 255, 0), encode_timestamp(WALL_MS + 1)),
        (index_key(topic_id, IndexKind.UNIQUE, "U", 0), encode_timestamp(WALL_MS + 1)),
    ]


def test_only_entries_with_messages_say_where_the_log_of_messages_ends() -> None:
    """Law: only an entry with messages is checked against the end of the message log; a wrong place stops the replica."""
    replica = Replica()
    replica.take(TopicSet("orders", 1, 1))
    replica.append(replica.topic_id())
    end = replica.state.physical_end
    replica.apply(encode_entry(encode_records([GroupSet("g")]), [], end + 5, WALL_MS))
    assert replica.state.physical_end == end
    message = stored(1, end + 5)
    record = Append(replica.topic_id(), 0, 1, end + 5, len(message), 7, WALL_MS)

    with pytest.raises(AssertionError, match="the log ends at"):
        replica.apply(encode_entry(encode_records([record]), [message], end + 5, WALL_MS))


def test_what_is_true_only_of_a_stored_message_is_refused_with_it(replica: Replica) -> None:
    """Law: if a message is refused, so are records that depend on it, such as opening or ending a half message;
    others are applied.
    """
    replica.take(TopicSet("orders", 1, 1))
    topic_id = replica.topic_id()
    replica.take(*(HalfOpened(n, n, "p", "orders", "U", WALL_MS) for n in (0, 1)))
    replica.take(TopicDeleted("orders"))

    def behind_a_message(*records: Record) -> list[Outcome]:
        end = replica.state.physical_end
        message = stored(0, end)
        append = Append(topic_id, 0, 0, end, len(message), 7, WALL_MS)
        return replica.take(append, *records, messages=[message])

    gone = Refused("the topic was deleted before the message arrived")
    opened = HalfOpened(2, 2, "p", "orders", "U", WALL_MS)
    assert behind_a_message(opened, opened, GroupSet("g")) == [
        *(gone, gone, gone),
        GroupChanged("g", changed=True),
    ]
    assert behind_a_message(HalfEnded(0, True)) == [gone, gone]
    assert behind_a_message(HalfEnded(1, False)) == [gone, HalvesMoved((1,))]
    assert list(replica.state.transactions.open) == [0]
    assert replica.take(GroupSet("g"), opened)[1] == HalvesMoved((2,))


def test_a_dead_client_is_a_member_of_no_group_any_more(replica: Replica) -> None:
    """Law: a dead client leaves every consumer group; other members stay."""
    replica.take(*(MemberSeen(group, "c", "h:1") for group in ("a", "b")))
    replica.take(MemberSeen("b", "d", "h:1"))

    assert replica.take(ClientDead("c", "pod gone")) == [MembersChanged(("a", "b"))]

    assert {group: list(replica.state.members.of_group(group)) for group in ("a", "b")} == {
        "a": [],
        "b": ["d"],
    }


def test_a_floor_that_is_not_above_is_passed_over_and_the_next_one_counts(replica: Replica) -> None:
    """Law: a new minimum offset is skipped for a deleted topic, an unwritten queue or one that is already there;
    the others count.
    """
    replica.take(TopicSet("gone", 1, 1), TopicSet("orders", 3, 3))
    gone, topic_id = replica.topic_id("gone"), replica.topic_id()
    for queue in (0, 0, 0, 1, 1, 2):
        replica.append(topic_id, queue)
    replica.take(TopicDeleted("gone"))
    rows = keys(replica, Family.TABLES)
    nothing = (QueueFloor(gone, 0, 1), QueueFloor(topic_id, 9, 1), QueueFloor(topic_id, 2, 0))

    assert replica.take(RetentionAdvanced(nothing)) == [Trimmed(0)]
    assert keys(replica, Family.TABLES) == rows

    floors = (QueueFloor(topic_id, 0, 2), QueueFloor(topic_id, 1, 1))
    assert replica.take(RetentionAdvanced((*nothing, *floors))) == [Trimmed(3)]
    queues = sorted(replica.state.topics.queues(), key=lambda queue: queue.queue_id)
    assert [queue.row()[1:4] for queue in queues] == [(0, 2, 3), (1, 1, 2), (2, 0, 1)]


def test_messages_go_no_farther_than_the_log_reaches(replica: Replica) -> None:
    """Law: the floor of the message log does not pass its end and never falls."""
    replica.take(TopicSet("orders", 1, 1))
    replica.append(replica.topic_id())
    end = replica.state.physical_end

    replica.take(RetentionAdvanced((), end + 1))
    assert replica.state.floor == end
    replica.take(RetentionAdvanced((), end - 1))
    assert replica.state.floor == end

    replica.append(replica.topic_id())
    assert keys(replica, Family.MESSAGES) == [message_key(end)]


def test_an_offset_that_is_set_lets_a_released_key_fail_again(replica: Replica) -> None:
    """Law: after a reset of the offset, a key that was released once can be parked again."""
    replica.take(TopicSet("orders", 1, 1), GroupSet("g"))
    replica.take(LocksRequested("g", "c", "h:1", 1_000, (("orders", 0),)))
    parked = KeyParked("g", "orders", 0, "k", 1, "M", 1)
    replica.take(parked, KeyReleased("g", "orders", "k"))
    assert replica.take(parked) == [ParkedFound(None)]

    replica.take(OffsetsReset((Commit("g", "orders", 0, 0),)))

    held = ParkedKey("g", "orders", 0, "k", 1, "M", WALL_MS)
    assert replica.take(parked) == [ParkedFound(held)]


def test_the_greatest_token_of_an_operator_wins_and_is_kept(replica: Replica) -> None:
    """Law: the greatest operator token is kept over a restart; a smaller one is refused, an equal one or none is accepted."""
    dead = MembersChanged(())
    assert replica.take(ClientDead("c", "p", 7), ClientDead("c", "p", 7)) == [dead, dead]
    assert replica.take(ClientDead("c", "p", 6), ClientDead("c", "p")) == [
        Refused(stale_operator(6, 7)),
        dead,
    ]
    assert replica.take(ClientDead("c", "p", 8)) == [dead]
    assert replica.restarted().state.operator_token == 8


NAMES = st.sampled_from(["orders", "returns"])
GROUPS = st.sampled_from(["billing", "audit"])
CLIENTS = st.sampled_from(["c1", "c2"])
QUEUES = st.integers(0, 1)
RECORDS: st.SearchStrategy[Record | tuple[str, int]] = st.one_of(
    st.tuples(NAMES, QUEUES),  # An append.
    st.builds(TopicSet, NAMES, st.just(2), st.just(2), order=st.booleans()),
    st.builds(TopicDeleted, NAMES),
    st.builds(GroupSet, GROUPS, orderly=st.booleans()),
    st.builds(GroupDeleted, GROUPS, st.booleans()),
    st.builds(
        LocksRequested,
        GROUPS,
        CLIENTS,
        st.just("h:1"),
        st.just(1_000),
        st.lists(st.tuples(NAMES, QUEUES), max_size=3).map(tuple),
    ),
    st.builds(LocksReleased, GROUPS, CLIENTS, st.none()),
    st.builds(
        LocksExpired,
        GROUPS,
        st.lists(st.builds(LockRef, NAMES, QUEUES, st.integers(1, 20)), max_size=2).map(tuple),
    ),
    st.builds(ClientDead, CLIENTS, st.just("proof")),
    st.builds(
        MemberSeen,
        GROUPS,
        CLIENTS,
        st.just("h:1"),
        subscriptions=st.lists(
            st.builds(Subscription, NAMES, version=st.integers(0, 3)), max_size=2
        ).map(tuple),
    ),
    st.builds(MemberLeft, GROUPS, CLIENTS),
    st.builds(
        OffsetsCommitted,
        st.lists(
            st.builds(Commit, GROUPS, NAMES, QUEUES, st.integers(0, 9), st.integers(0, 3)),
            max_size=3,
        ).map(tuple),
    ),
    st.builds(
        OffsetsReset,
        st.lists(st.builds(Commit, GROUPS, NAMES, QUEUES, st.integers(0, 9)), max_size=2).map(
            tuple
        ),
    ),
    st.builds(DedupTrimmed, st.integers(0, 2_000)),
    st.builds(RetentionAdvanced, st.just(()), st.integers(0, 2_000)),
)


def entry(replica: Replica, wanted: Sequence[Record | tuple[str, int]]) -> bytes:
    """Return an entry of these records, with appends at the ends of their queues."""
    records: list[Record] = []
    messages: list[bytes] = []
    ends: dict[tuple[int, int], int] = {}
    physical = replica.state.physical_end
    for each in wanted:
        if not isinstance(each, tuple):
            records.append(each)
            continue
        name, queue_id = each
        topic = replica.state.topics.get(name)
        if topic is None:
            continue
        offset = ends.get((topic.id, queue_id), topic.queue(queue_id).next_offset)
        ends[topic.id, queue_id] = offset + 1
        message = stored(offset, physical, queue_id=queue_id)
        identity = f"{name}{offset % 3}".encode()
        records.append(
            Append(
                *(topic.id, queue_id, offset, physical, len(message), 0, WALL_MS),
                *("U", "k", identity, queue_id),
            )
        )
        messages.append(message)
        physical += len(message)
    return encode_entry(encode_records(records), messages, replica.state.physical_end, WALL_MS)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.lists(RECORDS, max_size=5), max_size=10), st.data())
def test_every_replica_that_has_applied_the_same_log_has_the_same_state(
    entries: list[list[Record | tuple[str, int]]], data: st.DataObject
) -> None:
    """Law: a replica that restarts in the middle of a log has the same state as one that never restarts."""
    steady, restarted = Replica(), Replica()
    middle = data.draw(st.integers(0, len(entries)), label="restart before entry")
    for number, wanted in enumerate(entries):
        encoded = entry(steady, wanted)
        if number == middle:
            restarted = restarted.restarted()

        assert steady.apply(encoded) == restarted.apply(encoded)

        assert steady.state.digest() == restarted.state.digest()
        steady.state.check_invariants()
    assert steady.restarted().state.digest() == restarted.state.digest()
    for key, value in steady.store.scan(Family.CONSUME_QUEUE, b"", b"\xff" * 17, limit=999):
        topic_id, queue_id, offset = decode_queue_key(key)
        queue = steady.state.topics.by_id[topic_id].queues[queue_id]
        assert queue.min_offset <= offset < queue.next_offset
        assert decode_queue_entry(value).physical < steady.state.physical_end
