"""The progress of consumer groups: 208, 303, 317."""

from typing import Any

from orderlymq_broker.processors.admin.groupprogress import TOPICS_MAX
from orderlymq_broker.state.records import Commit as OffsetCommit
from orderlymq_broker.state.records import GroupSet, OffsetsReset, TopicSet
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.messagequeue import MessageQueue
from tests.broker.processors.adminshell import AdminShell, create_topic
from tests.broker.processors.driver import START_MS, TOOL
from tests.broker.processors.requests import (
    create,
    heartbeat,
    send,
)


def queue(number: int, topic: str = "orders") -> MessageQueue:
    return MessageQueue(topic, "broker-a", number)


def committed(*offsets: tuple[int, int], topic: str = "orders") -> OffsetsReset:
    """Return offsets of billing as (queue, offset)."""
    return OffsetsReset(tuple(OffsetCommit("billing", topic, number, at) for number, at in offsets))


def row(end: int, offset: int, last_ms: int = 0) -> dict[str, int]:
    """Return a row of 208 for a queue with nothing in flight."""
    return {
        "brokerOffset": end,
        "consumerOffset": offset,
        "lastTimestamp": last_ms,
        "pullOffset": offset,
    }


def test_progress_shows_end_offset_and_time_of_every_queue(admin: AdminShell) -> None:
    """Law: 208 shows the end, the committed offset and the store time of the last consumed message (0 if none) of each
    queue.
    """
    create_topic(admin, queues=3)
    send(admin, e=0)
    admin.pass_time(1_000)
    send(admin, e=0)
    send(admin, e=1)
    create(admin, committed((0, 1), (1, 0)))

    body = admin.read(208, consumerGroup="billing", topic="orders")

    assert body == {
        "consumeTps": 0.0,
        "offsetTable": {
            queue(0): row(2, 1, START_MS),
            queue(1): row(1, 0),
            queue(2): row(0, 0),
        },
    }


def test_progress_without_a_topic_covers_offsets_and_the_retry_topic(admin: AdminShell) -> None:
    """Law: 208 without a topic covers all topics with offsets, and the retry topic even without offsets."""
    create_topic(admin, queues=1)
    create_topic(admin, "other", queues=1)
    create_topic(admin, "%RETRY%billing", queues=1)
    create(admin, GroupSet("billing"), committed((0, 0)))
    everything = "offsetTable"

    assert set(admin.read(208, consumerGroup="billing")[everything]) == {queue(0)}
    assert send(admin, "%RETRY%billing", e=0, j=1).code == 0

    assert set(admin.read(208, consumerGroup="billing")[everything]) == {
        queue(0),
        queue(0, "%RETRY%billing"),
    }
    assert admin.read(208, consumerGroup="nobody") == {"consumeTps": 0.0, everything: {}}


def test_a_topic_that_members_no_longer_want_counts_when_it_is_named_or_nobody_is_online(
    admin: AdminShell,
) -> None:
    """Law: without a topic, 208 and 317 omit a topic that online members no longer subscribe to, as in RocketMQ;
    else it would lag for ever.
    """
    create(admin, GroupSet("billing"))
    for name in ("orders", "former", "%RETRY%billing"):
        create_topic(admin, name, queues=1)
        assert send(admin, name, e=0, j=1).code == 0
    create(admin, committed((0, 0)), committed((0, 0), topic="former"))
    retry = queue(0, "%RETRY%billing")

    def without_names() -> set[Any]:
        alone = set(admin.read(208, consumerGroup="billing")["offsetTable"])
        (row,) = admin.read(317, isOrder=False)["consumeStatsList"]
        assert {name for each in row["billing"] for name in each["offsetTable"]} == alone
        return alone

    assert without_names() == {queue(0), queue(0, "former"), retry}
    heartbeat(admin, "alice", topics=("orders",))

    assert without_names() == {queue(0), retry}
    assert set(admin.read(208, consumerGroup="billing", topic="former")["offsetTable"]) == {
        queue(0, "former")
    }
    # For our tools "consumed" and "has no offset" are different answers, so they get every queue.
    whole = admin.read(208, consumerGroup="billing", orderlymq="true")["offsetTable"]
    assert set(whole) == {queue(0), queue(0, "former"), retry}


def test_progress_of_listed_topics_has_each_once_and_no_more_than_a_question_may_list(
    admin: AdminShell,
) -> None:
    """Law: 208 lists each named topic once, at most 256 of them; one name repeated 74,000 times once held the leader for
    minutes.
    """
    create_topic(admin, "orders", 2)
    everything = "offsetTable"
    many = ";".join(["orders"] * 50_000)

    assert set(admin.read(208, consumerGroup="billing", topicList=many)[everything]) == {
        queue(0),
        queue(1),
    }
    names = ";".join(f"t{number}" for number in range(TOPICS_MAX + 1))
    refused = admin.tool(208, consumerGroup="billing", topicList=names)
    assert (refused.code, "name at most 256 at a time" in (refused.remark or "")) == (1, True)


def test_the_progress_of_all_groups_adds_up_the_lag(admin: AdminShell) -> None:
    """Law: 317 adds up the lag of all groups; with isOrder only ordered topics count."""
    create_topic(admin, queues=1)
    create_topic(admin, "events", queues=1, order=True)
    for _ in range(3):
        send(admin, e=0)
        send(admin, "events", e=0)
    create(admin, committed((0, 1)), committed((0, 3), topic="events"))

    everything = admin.read(317, isOrder=False)
    ordered = admin.read(317, isOrder=True)

    assert (everything["totalDiff"], ordered["totalDiff"]) == (2, 0)
    assert everything["brokerAddr"] == "192.0.2.100:10911"
    names = [set(row["offsetTable"]) for row in everything["consumeStatsList"][0]["billing"]]
    assert names == [{queue(0, "events")}, {queue(0)}]
    assert len(ordered["consumeStatsList"][0]["billing"]) == 1


def test_time_spans_show_how_old_the_next_message_is(admin: AdminShell) -> None:
    """Law: 303 shows the store times of the oldest, newest and consumed message, and the age of the first unread one."""
    create_topic(admin, queues=2)
    send(admin, e=0)
    admin.pass_time(1_000)
    send(admin, e=0)
    admin.pass_time(4_000)
    create(admin, committed((0, 1)))

    spans = admin.read(303, topic="orders", group="billing")["consumeTimeSpanSet"]

    assert spans == [
        {
            "consumeTimeStamp": START_MS,
            "delayTime": 4_000,
            "maxTimeStamp": START_MS + 1_000,
            "messageQueue": {"brokerName": "broker-a", "queueId": 0, "topic": "orders"},
            "minTimeStamp": START_MS,
        },
        {
            "consumeTimeStamp": 0,
            "delayTime": 0,
            "maxTimeStamp": 0,
            "messageQueue": {"brokerName": "broker-a", "queueId": 1, "topic": "orders"},
            "minTimeStamp": 0,
        },
    ]
    assert admin.tool(303, topic="nothing", group="billing").code == 17


def test_the_time_spans_of_a_topic_with_many_queues_are_read_in_steps(admin: AdminShell) -> None:
    """Law: 303 reads a topic with many queues in steps, because each queue takes up to three reads."""
    create(admin, TopicSet("orders", 1_000, 1_000))

    opaque = admin.submit(303, {"topic": "orders", "group": "billing"}, caller=TOOL)

    assert admin.reply_to(opaque) is None
    assert admin.later, "other requests are served between"
    admin.settle()
    reply = admin.reply_to(opaque)
    assert reply is not None
    assert len(fastjson.loads(reply.body)["consumeTimeSpanSet"]) == 1_000
