"""What the recording cannot decide is no finding."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from orderlymq import (
    AdminClient,
    ClientSettings,
    Consumer,
    ConsumerSettings,
    Message,
    OrderedContext,
    Producer,
    ReceivedMessage,
    SendRefused,
    TransactionState,
    blocking,
)
from orderlymq.oracle.verdict import Defect, Kind
from orderlymq_protocol.body.config import SubscriptionGroupConfig
from orderlymq_testing.cluster import Cluster
from orderlymq_testing.plugin import orderlymq_cluster
from tests.waiting import until

__all__ = ["orderlymq_cluster"]


async def test_a_batch_that_is_stored_in_part_already_has_its_real_places(
    orderlymq_cluster: Cluster,
) -> None:
    """Law: a batch known in part has its real places, in results and for the oracle."""
    orderlymq_cluster.create_topic("orders", queues=1)
    async with Producer() as producer, Producer("other", linger=0.005) as lingering:
        again = Message(topic="orders", body=b"a", key="k")
        for each in (again, Message(topic="orders", body=b"between", key="k")):
            await producer.send(each)
        fresh = [Message(topic="orders", body=body, key="k") for body in (b"b", b"c")]

        result = await producer.send_batch([again, *fresh])
        late = [
            lingering.send_nowait(each)
            for each in (again, Message(topic="orders", body=b"d", key="k"))
        ]

        assert [result.place(number)[1] for number in range(3)] == [0, 2, 3]
        assert [(await each).queue_offset for each in late] == [0, 4]


def test_messages_whose_send_was_not_seen_break_no_promise(orderlymq_cluster: Cluster) -> None:
    """Law: messages whose send was not seen (other processes, one-way, transactions, delayed) break no promise."""
    orderlymq_cluster.create_topic("orders", queues=1)
    with blocking.TransactionProducer("shop", check=lambda _: TransactionState.COMMIT) as producer:
        producer.send("orders", "seen", key="k")
        producer.send_oneway("orders", "one way", key="k")
        producer.send(Message(topic="orders", body=b"later", key="k", delay=0.05))
        producer.send_in_transaction(
            "orders", "transaction", key="k", execute=lambda _: TransactionState.COMMIT
        )
    texts = []
    with blocking.Consumer(
        "billing", topics="orders", ordered=True, consume_from="first"
    ) as consumer:
        for message in consumer:
            texts.append(message.text)
            if len(texts) == 4:
                break

    assert sorted(texts) == ["later", "one way", "seen", "transaction"]
    verdict = orderlymq_cluster.verdict()
    assert verdict.kept
    assert verdict.not_judged == ("order of 3 messages in topic orders whose send was not seen",)


async def test_messages_with_a_time_that_are_not_there_yet_are_named(
    orderlymq_cluster: Cluster,
) -> None:
    """Law: delayed messages that have not come yet are named as not judged; a refused one is not waited for."""
    orderlymq_cluster.create_topic("orders", queues=1)
    async with Producer() as producer:
        for delay in (0.01, 600, 600):
            await producer.send(Message(topic="orders", body=b"later", key="k", delay=delay))
        with pytest.raises(SendRefused):
            await producer.send(Message(topic="orders", body=b"never", key="k", delay=10**9))
    async with Consumer("billing", topics="orders", ordered=True, consume_from="first") as consumer:
        assert (await anext(aiter(consumer))).text == "later"

    assert orderlymq_cluster.verdict().not_judged == (
        "loss of 2 messages with a time, not in topic orders",
        "order of 1 message in topic orders whose send was not seen",
    )


async def test_a_listener_that_gets_several_messages_in_one_call_breaks_no_promise(
    orderlymq_cluster: Cluster,
) -> None:
    """Law: a listener with several messages per call breaks no promise, also when a call fails."""
    orderlymq_cluster.create_topic("orders", queues=1)
    calls: list[list[str]] = []

    async def listener(messages: Sequence[ReceivedMessage], _: OrderedContext) -> None:
        calls.append([message.text for message in messages])
        if len(calls) == 1:
            raise ValueError("once")

    settings = ConsumerSettings(consume_message_batch_max_size=4, suspend_current_queue_time=0.01)
    async with Producer() as producer:
        for number in range(8):
            await producer.send("orders", f"m{number}", key="k")
    async with Consumer(
        "billing",
        topics="orders",
        ordered=True,
        consume_from="first",
        settings=settings,
        listener=listener,
    ):
        await until(lambda: bool(calls) and "m7" in calls[-1])

    assert max(map(len, calls)) > 1
    verdict = orderlymq_cluster.verdict()
    assert (verdict.kept, verdict.counts["delivered"]) == (True, 8)


async def test_a_group_whose_lanes_go_by_another_property_breaks_no_promise(
    orderlymq_cluster: Cluster,
) -> None:
    """Law: a group whose lanes use another property is judged by that."""
    orderlymq_cluster.create_topic("orders", queues=1)
    group = SubscriptionGroupConfig("billing", concurrency="Key", lane_key_property="order")
    done: list[str] = []

    async def listener(messages: Sequence[ReceivedMessage], context: OrderedContext) -> None:
        order = messages[0].properties.get("order", "")
        if order == "o1" and len(done) < 4:
            context.suspend_current_queue_time = 0.05
            raise ValueError("not yet")
        done.append(order)

    async with AdminClient() as admin, Producer() as producer:
        await admin.set_group(group)
        for order in ("o1", "o2", "o1", "o2", "", ""):
            properties = {"order": order} if order else {}
            await producer.send(
                Message(topic="orders", body=b"1", key="alice", properties=properties)
            )
        async with Consumer(
            "billing", topics="orders", ordered="key", consume_from="first", listener=listener
        ):
            await until(lambda: len(done) == 6)

    assert sorted(done) == ["", "", "o1", "o1", "o2", "o2"]
    assert done[-2:] == ["o1", "o1"]
    orderlymq_cluster.assert_kept()


async def test_a_message_that_became_a_dead_letter_is_in_nobodys_way(
    orderlymq_cluster: Cluster,
) -> None:
    """Law: a dead letter blocks nothing; a message that was only given up still does."""
    orderlymq_cluster.create_topic("orders", queues=1)
    done: list[str] = []

    async def listener(messages: Sequence[ReceivedMessage], _: OrderedContext) -> None:
        if messages[0].text == "poison":
            raise ValueError("always")
        done.append(messages[0].text)

    settings = ConsumerSettings(max_reconsume_times=2, suspend_current_queue_time=0.01)
    async with Producer() as producer:
        for text in ("before", "poison", "after"):
            await producer.send("orders", text, key="k")
    async with Consumer(
        "billing",
        topics="orders",
        ordered=True,
        consume_from="first",
        settings=settings,
        listener=listener,
    ):
        await until(lambda: done == ["before", "after"])

    verdict = orderlymq_cluster.verdict()
    assert (verdict.findings, verdict.counts["dead-lettered"]) == ((), 1)


async def test_topics_of_one_name_in_two_namespaces_are_two_topics(
    orderlymq_cluster: Cluster,
) -> None:
    """Law: topics of the same name in two namespaces are judged separately."""
    texts: list[str] = []
    for namespace in ("shop", "bank"):
        orderlymq_cluster.create_topic(f"{namespace}%orders", queues=1)
        settings = ClientSettings(namespace=namespace)
        async with Producer(client_settings=settings) as producer:
            await producer.send("orders", "a", key="k")
            await producer.send_nowait("orders", "b", key="k")
            await producer.send_batch([Message(topic="orders", body=b"c", key="k")])
        async with Consumer(
            "billing",
            topics="orders",
            ordered=True,
            consume_from="first",
            client_settings=settings,
        ) as consumer:
            async for message in consumer:
                texts.append(f"{namespace} {message.topic} {message.text}")
                if message.text == "c":
                    break

    verdict = orderlymq_cluster.verdict()
    events = orderlymq_cluster.recording.events
    assert texts == [f"{each} orders {text}" for each in ("shop", "bank") for text in "abc"]
    assert {event.topic for event in events} == {"shop%orders", "bank%orders"}
    assert (verdict.findings, verdict.not_judged) == ((), ())
    assert verdict.counts["delivered"] == verdict.counts["acknowledged"] == 6

    ack = next(event for event in events if event.kind is Kind.ACK)
    events.append(replace(ack, message="lost", offset=99))
    assert [found.defect for found in orderlymq_cluster.verdict().findings] == [Defect.LOST]
    events.remove(replace(ack, message="lost", offset=99))


def test_a_topic_that_is_gone_has_lost_what_was_acknowledged(orderlymq_cluster: Cluster) -> None:
    """Law: acknowledged messages of a topic that vanished without a deletion are lost."""
    recording = orderlymq_cluster.recording
    for kind in (Kind.SEND, Kind.ACK):
        recording.note(kind, topic="gone", message="m", queue="broker-a:0", offset=0)

    with pytest.raises(AssertionError, match="no broker has the topic any more"):
        orderlymq_cluster.assert_kept()
    recording.events.clear()


def test_what_an_administrator_deletes_is_not_lost(orderlymq_cluster: Cluster) -> None:
    """Law: messages of a deleted topic are not lost; a topic created again begins at its start."""
    with blocking.Producer() as producer, blocking.AdminClient() as admin:
        for turn in range(3):
            orderlymq_cluster.create_topic("orders", queues=1)
            producer.send("orders", f"turn {turn}", key="k")
            with blocking.Consumer("billing", topics="orders", ordered=True) as consumer:
                assert next(iter(consumer)).text == f"turn {turn}"
            verdict = orderlymq_cluster.verdict()
            assert (verdict.findings, len(verdict.not_judged)) == ((), turn)
            admin.delete_topic("orders")

    verdict = orderlymq_cluster.verdict()
    assert verdict.findings == ()
    assert [each.partition(" after ")[0] for each in verdict.not_judged] == [
        "loss of 1 message in topic orders, which was deleted"
    ] * 3
    assert verdict.counts["delivered"] == 3


async def test_a_message_of_a_batch_that_waits_leaves_the_others_in_their_places(
    orderlymq_cluster: Cluster,
) -> None:
    """Law: a delayed message in a batch leaves the others' places right."""
    orderlymq_cluster.create_topic("orders", queues=1)
    async with Producer() as producer:
        for turn in range(3):
            batch = [Message(topic="orders", body=b"immediate", key="k") for _ in range(3)]
            batch[turn] = Message(topic="orders", body=b"delayed", key="k", delay=0.05)
            await producer.send_batch(batch)
    texts: list[str] = []
    async with Consumer("billing", topics="orders", ordered=True, consume_from="first") as consumer:
        async for message in consumer:
            texts.append(message.text)
            if len(texts) == 9:
                break

    verdict = orderlymq_cluster.verdict()
    assert (verdict.findings, texts.count("delayed")) == ((), 3)


async def test_a_topic_without_order_keeps_both_copies_of_a_repeat(
    orderlymq_cluster: Cluster,
) -> None:
    """Law: a topic without order keeps both copies of a repeat."""
    for name, ordered in (("orders", True), ("notes", False)):
        orderlymq_cluster.create_topic(name, queues=1, ordered=ordered)
    async with Producer() as producer:
        messages = [Message(topic=name, body=b"again", key="k") for name in ("orders", "notes")]
        offsets = [(await producer.send(each)).queue_offset for each in (*messages, *messages)]

    assert offsets == [0, 0, 0, 1]


@pytest.mark.parametrize("mode", [True, "key"])
async def test_what_an_administrator_passes_over_is_not_skipped(
    orderlymq_cluster: Cluster, mode: bool | Literal["key"]
) -> None:
    """Law: messages that an administrator skips are not "skipped"."""
    orderlymq_cluster.create_topic("orders", queues=1)
    seen: list[str] = []

    async def listener(messages: Sequence[ReceivedMessage], _: OrderedContext) -> None:
        seen.append(messages[0].text)
        if seen[-1] == "poison":
            raise ValueError("always")

    def consumer() -> Consumer:
        return Consumer(
            "billing",
            topics="orders",
            ordered=mode,
            consume_from="first",
            settings=ConsumerSettings(suspend_current_queue_time=0.01),
            listener=listener,
        )

    async with Producer() as producer, AdminClient() as admin:
        if mode == "key":
            await admin.set_group(SubscriptionGroupConfig("billing", concurrency="Key"))
        for text in ("first", "poison", "passed"):
            await producer.send("orders", text, key="k")
        async with consumer():
            await until(lambda: "poison" in seen)
            await admin.reset_offsets("billing", "orders", "latest")
            await producer.send("orders", "second", key="k")
            await until(lambda: seen[-1] == "second")
        await producer.send("orders", "passed, too", key="k")
        await admin.reset_offsets("billing", "orders", "latest")
        await producer.send("orders", "third", key="k")
        async with consumer():
            await until(lambda: seen[-1] == "third")

    assert list(dict.fromkeys(seen)) == ["first", "poison", "second", "third"]
    assert orderlymq_cluster.verdict().kept


@pytest.mark.parametrize("mode", [True, "key"])
@pytest.mark.parametrize(
    ("expression", "kind"), [("paid || shipped", "TAG"), ("step IS NOT NULL", "SQL92")]
)
async def test_what_a_group_does_not_select_is_not_skipped(
    orderlymq_cluster: Cluster, mode: bool | Literal["key"], expression: str, kind: str
) -> None:
    """Law: messages that a group does not select, by tags or properties, are not skipped."""
    orderlymq_cluster.create_topic("orders", queues=1)
    seen: list[str] = []

    async def listener(messages: Sequence[ReceivedMessage], _: OrderedContext) -> None:
        seen.extend(message.text for message in messages)

    async with Producer() as producer, AdminClient() as admin:
        concurrency = "Key" if mode == "key" else "Queue"
        await admin.set_group(SubscriptionGroupConfig("billing", concurrency=concurrency))
        for tag in ("paid", "created", "shipped", "created", "paid"):
            properties = {} if tag == "created" else {"step": tag}
            await producer.send("orders", tag, key="k", tags=tag, properties=properties)
    consumer = Consumer("billing", ordered=mode, consume_from="first", listener=listener)
    consumer.subscribe("orders", expression, kind=kind)
    async with consumer:
        await until(lambda: len(seen) == 3)

    assert seen == ["paid", "shipped", "paid"]
    assert orderlymq_cluster.verdict().kept

    recording, kept = orderlymq_cluster.recording, list(orderlymq_cluster.recording.events)
    recording.events = [e for e in kept if not (e.group and e.offset == 2)]
    found = orderlymq_cluster.verdict().findings
    recording.events = kept
    assert [each.defect for each in found] == ([Defect.SKIPPED] if kind == "TAG" else [])


async def test_two_clusters_of_one_process_are_judged_each_by_its_own_messages(
    tmp_path: Path,
) -> None:
    """Law: two clusters in one process are each judged by their own messages."""
    message = Message(topic="orders", body=b"to both", key="k")
    with Cluster(tmp_path / "a") as first, Cluster(tmp_path / "b") as second:
        for cluster in (first, second):
            cluster.create_topic("orders", queues=1)
        async with (
            Producer("shop", first.name_server) as one,
            Producer("other", second.name_server) as other,
            Consumer(
                "billing",
                second.name_server,
                topics="orders",
                ordered=True,
                consume_from="first",
            ) as consumer,
        ):
            await one.send("orders", "a", key="k")
            await one.send(message)
            await other.send(message)
            async for each in consumer:
                assert each.text == "to both"
                break

        verdicts = [first.verdict(), second.verdict()]
        assert [each.findings for each in verdicts] == [(), ()]
        assert [each.counts["acknowledged"] for each in verdicts] == [2, 1]
        assert [each.counts["sent"] for each in verdicts] == [2, 1]
        assert [each.counts["delivered"] for each in verdicts] == [0, 1]
