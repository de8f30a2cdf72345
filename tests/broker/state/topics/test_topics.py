"""The tables of topics and of consumer groups: derived values, and when the version rises."""

import pytest

from orderlymq_broker.state.records import (
    GroupChanged,
    GroupDeleted,
    GroupSet,
    TopicChanged,
    TopicDeleted,
    TopicSet,
)
from orderlymq_broker.state.topics.topics import Topic, Versioned
from orderlymq_protocol.body.config import DEDUP_ATTRIBUTE
from orderlymq_protocol.names import TIMER_TOPIC
from tests.broker.state.entries import WALL_MS, Replica


@pytest.mark.parametrize(
    ("perm", "readable", "writable"),
    [
        (0, False, False),
        (1, False, False),
        (2, False, True),
        (4, True, False),
        (6, True, True),
        (7, True, True),
    ],
)
def test_a_permission_is_read_bit_by_bit(perm: int, readable: bool, writable: bool) -> None:
    """Law: in a permission, bit 4 allows reads and bit 2 writes; bit 1 means neither."""
    topic = Topic(1, TopicSet("orders", 1, 1, perm))

    assert (topic.readable, topic.writable) == (readable, writable)


@pytest.mark.parametrize(("read", "write", "count"), [(4, 2, 4), (2, 4, 4), (3, 3, 3), (0, 0, 0)])
def test_a_topic_has_the_queues_that_anybody_may_use(read: int, write: int, count: int) -> None:
    """Law: queue_count covers all queues that may be read or written; during a change the two numbers differ."""
    assert Topic(1, TopicSet("orders", read, write)).queue_count == count


@pytest.mark.parametrize(
    ("config", "deduplicated"),
    [
        (TopicSet("orders", 1, 1), False),
        (TopicSet("orders", 1, 1, order=True), True),
        (TopicSet("%RETRY%g", 1, 1), True),
        (TopicSet("%DLQ%g", 1, 1), True),
        (TopicSet("orders", 1, 1, attributes={DEDUP_ATTRIBUTE: "true"}), True),
        (TopicSet("orders", 1, 1, attributes={DEDUP_ATTRIBUTE: "false"}), False),
        (TopicSet("orders", 1, 1, attributes={"other": "true"}), False),
    ],
)
def test_repeated_sends_are_looked_for_where_one_copy_is_promised(
    config: TopicSet, deduplicated: bool
) -> None:
    """Law: repeated sends are detected in ordered, retry and dead-letter topics, and where the attribute asks for it."""
    assert Topic(1, config).deduplicated is deduplicated


@pytest.mark.parametrize(
    ("name", "is_retry", "timed", "sendable"),
    [
        ("orders", False, False, True),
        ("%RETRY%g", True, False, True),
        (TIMER_TOPIC, False, True, False),
        ("SCHEDULE_TOPIC_XXXX", False, False, False),
    ],
)
def test_a_name_says_what_kind_of_topic_it_is(
    name: str, is_retry: bool, timed: bool, sendable: bool
) -> None:
    """Law: the name tells a topic's kind; clients cannot send to topics that the broker keeps for itself."""
    topic = Topic(1, TopicSet(name, 1, 1))

    assert (topic.is_retry, topic.timed, topic.sendable) == (is_retry, timed, sendable)


@pytest.mark.parametrize(("name", "size"), [("ü", 2), ("x" * 255, 255), ("x" * 256, 255)])
def test_the_prefix_of_a_name_is_its_length_in_bytes_and_one_byte_itself(
    name: str, size: int
) -> None:
    """Law: the name prefix is the name's length in one byte; longer names use the second layout of a stored message."""
    assert Topic(1, TopicSet(name, 1, 1)).name_prefix == bytes([size])


def test_another_configuration_of_a_topic_changes_what_is_derived_from_it() -> None:
    """Law: a new configuration changes the derived values; the queues stay."""
    topic = Topic(1, TopicSet("orders", 1, 1, 6, order=True))
    queue = topic.queue(0)

    topic.configure(TopicSet("orders", 3, 2, 2))

    derived = (topic.queue_count, topic.readable, topic.writable, topic.deduplicated)
    assert derived == (3, False, True, False)
    assert topic.queue(0) is queue


def test_a_version_counts_changes_and_its_time_never_falls() -> None:
    """Law: a version counts changes and its time never falls, even if a new leader's clock is behind."""
    version = Versioned()
    assert version.row() == (0, 0)

    version.bump(7)
    version.bump(5)

    assert version.row() == (2, 7)


def test_ids_begin_at_one_and_are_never_used_again() -> None:
    """Law: topic ids begin at 1 and are never reused; a changed configuration keeps the id."""
    replica = Replica()
    replica.take(TopicSet("a", 1, 1), TopicSet("b", 1, 1), TopicSet("a", 2, 2), TopicDeleted("b"))
    again = replica.restarted()

    again.take(TopicSet("b", 1, 1))

    assert (again.topic_id("a"), again.topic_id("b")) == (1, 3)


def test_a_configuration_does_not_say_how_it_came(replica: Replica) -> None:
    """Law: a topic or consumer group that was created automatically equals one that was set;
    setting it again changes nothing.
    """
    replica.take(TopicSet("t", 1, 1, only_if_absent=True), GroupSet("g", only_if_absent=True))

    assert replica.state.topics.by_name["t"].config == TopicSet("t", 1, 1)
    assert replica.state.groups.by_name == {"g": GroupSet("g")}
    assert replica.take(TopicSet("t", 1, 1), GroupSet("g")) == [
        TopicChanged("t", changed=False),
        GroupChanged("g", changed=False),
    ]


def test_every_change_of_groups_moves_their_version_once(replica: Replica) -> None:
    """Law: each change of a consumer group raises the version once; a repetition does not."""
    table = replica.state.groups
    replica.take(
        GroupSet("g"), GroupSet("g"), GroupSet("g", consume_enable=False, only_if_absent=True)
    )
    assert (table.version.row(), table.get("g")) == ((1, WALL_MS), GroupSet("g"))

    replica.take(GroupSet("g", consume_enable=False))
    assert (table.version.row(), table.get("g")) == (
        (2, WALL_MS),
        GroupSet("g", consume_enable=False),
    )
    assert replica.restarted().state.groups.version.row() == (2, WALL_MS)

    replica.take(GroupDeleted("g"), GroupDeleted("g"))
    assert (table.version.row(), table.get("g")) == ((3, WALL_MS), None)


def test_replicas_compare_ids_configurations_and_the_queues_that_were_written(
    replica: Replica,
) -> None:
    """Law: replicas compare ids, configurations and written queues, sorted; a queue that was only read is not stored."""
    b, a = TopicSet("b", 3, 3), TopicSet("a", 1, 1)
    replica.take(b, a)
    for queue in (2, 0, 2):
        replica.append(1, queue)
    replica.state.topics.by_name["b"].queue(1)

    assert list(replica.state.topics.rows()) == [
        (2, WALL_MS, 3),
        (2, a),
        (1, b),
        (1, 0, 0, 1, WALL_MS),
        (1, 2, 0, 2, WALL_MS),
    ]
    replica.take(GroupSet("h"), GroupSet("g"))
    assert list(replica.state.groups.rows()) == [(2, WALL_MS), (GroupSet("g"),), (GroupSet("h"),)]
