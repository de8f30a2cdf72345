"""Names within namespaces, as NamespaceUtil of RocketMQ's clients makes them."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq import (
    ClientSettings,
    ConsumerSettings,
    LitePullConsumer,
    Producer,
    PullConsumer,
    ReceivedMessage,
    with_namespace,
    without_namespace,
)
from orderlymq.consumer.push.consumer import Consumer
from orderlymq_protocol.body.catalogue import LockBatchRequest
from orderlymq_protocol.body.messagequeue import MessageQueue
from tests.client import fakecluster
from tests.client.fakecluster import BROKER, FakeCluster, running
from tests.client.inbox import Inbox
from tests.waiting import until


@pytest.mark.parametrize(
    ("namespace", "name", "whole"),
    [
        ("shop", "orders", "shop%orders"),
        ("shop", "shop%orders", "shop%orders"),
        ("shop", "%RETRY%billing", "%RETRY%shop%billing"),
        ("shop", "%DLQ%billing", "%DLQ%shop%billing"),
        ("shop", "%RETRY%shop%billing", "%RETRY%shop%billing"),
        ("shop", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_HALF_TOPIC"),
        ("shop", "TOOLS_CONSUMER", "TOOLS_CONSUMER"),
        ("", "orders", "orders"),
    ],
)
def test_names_are_wrapped_as_java_wraps_them(namespace: str, name: str, whole: str) -> None:
    """Law: a name is prefixed once, behind the prefix of a retry or dead-letter topic, and never a system name."""
    assert with_namespace(namespace, name) == whole


NAMES = st.from_regex(r"(%RETRY%|%DLQ%)?[a-z]{1,8}", fullmatch=True)


@given(st.from_regex(r"[A-Za-z]{1,8}", fullmatch=True), NAMES)
def test_what_was_wrapped_is_unwrapped(namespace: str, name: str) -> None:
    """Law: a prefixed name loses its own or any namespace, but not another one."""
    whole = with_namespace(namespace, name)

    assert with_namespace(namespace, whole) == whole
    assert without_namespace(whole, namespace) == name
    assert without_namespace(whole) == name
    assert without_namespace(whole, namespace + "x") == whole


# -- clients of a namespace ----------------------------------------------------------------------------

SHOP = ClientSettings(namespace="shop")
WHOLE = {"shop%T": 2, "T": 2}


def names_said(cluster: FakeCluster) -> set[str]:
    """Return all topics and groups that brokers and name servers received."""
    fields = ("topic", "b", "a", "consumerGroup", "group", "originTopic", "producerGroup")
    said = {each.ext[name] for each in cluster.seen for name in fields if name in each.ext}
    for beat in cluster.heartbeats:
        said |= {each.group_name for each in beat.producer_data_set}
        for consumer in beat.consumer_data_set:
            said |= {consumer.group_name, *(w.topic for w in consumer.subscription_data_set)}
    for each in cluster.seen:
        if each.code in (41, 42):
            body = LockBatchRequest.from_json(each.body)
            said |= {body.consumer_group, *(queue.topic for queue in body.queues)}
    return said


async def test_producer_and_ordered_consumer_of_a_namespace_say_whole_names_only() -> None:
    """Law: producer and ordered consumer send full names only, as Java's clients do;
    received messages have the bare topic.
    """
    inbox = Inbox()
    async with running(topics=dict(WHOLE), ordered=True) as cluster:
        consumer = Consumer(
            "G",
            cluster.address,
            topics="T",
            ordered=True,
            consume_from="first",
            listener=inbox.ordered,
            client_settings=SHOP,
        )
        async with (
            Producer("P", cluster.address, client_settings=SHOP) as producer,
            consumer,
        ):
            result = await producer.send("T", "one", key="k")
            await producer.send_nowait("shop%T", "two", key="k")
            await producer.send_oneway("T", "three", queue=MessageQueue("T", BROKER, 0))
            await until(lambda: len(inbox.seen) == 3)
            assert {queue.topic for queue in await producer.queues("T")} == {"shop%T"}
            said = names_said(cluster)

    assert (result.queue.topic, producer.group, consumer.group) == ("shop%T", "shop%P", "shop%G")
    assert {message.topic for message in inbox.messages} == {"T"}
    assert {message.queue.topic for message in inbox.messages} == {"shop%T"}
    assert said == {"shop%T", "shop%G", "shop%P", "%RETRY%shop%G"}


async def test_a_retry_inside_a_namespace_comes_back_under_its_bare_topic() -> None:
    """Law: a retry within a namespace comes back under its bare topic, returned by request or as a copy."""
    inbox = Inbox()
    inbox.answers = [ValueError("first"), ValueError("second")]
    async with running(topics=dict(WHOLE)) as cluster:
        cluster.faults[36] = [fakecluster.refuse(1)]
        cluster.append("shop%T", 0, b"x")
        async with Consumer(
            "G",
            cluster.address,
            topics="T",
            consume_from="first",
            listener=inbox.concurrent,
            client_settings=SHOP,
            settings=ConsumerSettings(max_reconsume_times=5),
        ):
            await until(lambda: len(inbox.seen) == 3, 20)
            said = names_said(cluster)

    assert {message.topic for message in inbox.messages} == {"T"}
    assert "T" not in said
    assert "G" not in said
    assert {"shop%T", "%RETRY%shop%G"} <= said


async def test_pull_consumers_of_a_namespace_take_bare_and_whole_names() -> None:
    """Law: pull consumers accept queues with bare and full names."""
    async with running(topics=dict(WHOLE)) as cluster:
        cluster.append("shop%T", 0, b"x")
        async with PullConsumer("G", cluster.address, client_settings=SHOP) as reader:
            (first, _) = await reader.fetch_queues("T")
            fetched = await reader.pull(first, "*", 0)
            by_hand = await reader.pull(MessageQueue("T", BROKER, 0), "*", 0)
        lite = LitePullConsumer("L", cluster.address, consume_from="first", client_settings=SHOP)
        lite.subscribe("T")
        polled: list[ReceivedMessage] = []
        async with lite:
            while not polled:
                polled = await lite.poll(1)
        said = names_said(cluster)

    assert first.topic == "shop%T"
    found = [*fetched.messages, *by_hand.messages, *polled]
    assert [(each.topic, each.text) for each in found] == [("T", "x")] * 3
    assert not {"T", "G", "L"} & said


async def test_a_queue_that_is_made_by_hand_is_the_same_whatever_is_asked_about_it() -> None:
    """Law: a queue made by hand with a bare topic means the namespace's topic in all calls, also for offsets."""
    by_hand = MessageQueue("T", BROKER, 0)
    async with running(topics=dict(WHOLE)) as cluster:
        for topic, count in (("T", 3), ("shop%T", 5)):
            for _ in range(count):
                cluster.append(topic, 0, b"x")
        async with PullConsumer("G", cluster.address, client_settings=SHOP) as reader:
            await reader.fetch_queues("T")
            range_ = await reader.min_offset(by_hand), await reader.max_offset(by_hand)
            at = await reader.offset_for_timestamp(by_hand, 2**62)
            await reader.commit(by_hand, 2)
            committed = await reader.committed(by_hand)
            reader.update_offset(by_hand, 4)
        lite = LitePullConsumer("L", cluster.address, consume_from="first", client_settings=SHOP)
        lite.assign([by_hand])
        async with lite, asyncio.timeout(10):
            lite.pause([by_hand])
            lite.seek(by_hand, 1)
            await lite.seek_to_begin(by_hand)
            lite.resume([by_hand])
            polled: list[ReceivedMessage] = []
            while len(polled) < 5:
                polled += await lite.poll(1)
            await lite.commit()
            assigned = lite.assignment
        said = names_said(cluster)

    assert (range_, at, committed) == ((0, 5), 5, 2)
    assert assigned == (MessageQueue("shop%T", BROKER, 0),)
    assert cluster.offsets == {("shop%G", "shop%T", 0): 4, ("shop%L", "shop%T", 0): 5}
    assert not {"T", "G", "L"} & said


async def test_without_a_namespace_names_that_look_wrapped_stay_as_they_are() -> None:
    """Law: without a namespace, a name with a percent sign stays as it is."""
    async with (
        running(topics=dict(WHOLE)) as cluster,
        Producer("P", cluster.address) as producer,
        PullConsumer("G", cluster.address) as reader,
    ):
        await producer.send("shop%T", "x", queue=0)
        (queue, _) = await reader.fetch_queues("shop%T")
        found = await reader.pull(queue, "*", 0)

    assert [message.topic for message in found.messages] == ["shop%T"]
