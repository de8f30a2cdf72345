"""Apache's unmodified Java client, in two generations, works with our brokers as its documents promise."""

import time
from collections import defaultdict
from collections.abc import Iterable

import pytest

from orderlymq.oracle.verdict import Event as Fact
from orderlymq.oracle.verdict import Kind, judge
from orderlymq.producer.selectors import hash_index
from tests.clients.localcluster import LocalCluster
from tests.clients.programs import Event, Java, consumed, survive

# Its threads wait up to three seconds for one another before they ask; those whose wait fails ask for the template.
NAME_SERVER_AWAY_S = 4.5

pytestmark = [
    pytest.mark.java,
    pytest.mark.cluster,
    pytest.mark.timeout(240),
]


def by_queue(events: Iterable[Event]) -> dict[str, list[int]]:
    """Return the offsets of *events* per queue, in the order of the events."""
    offsets: dict[str, list[int]] = defaultdict(list)
    for event in events:
        offsets[event["queue"]].append(event["offset"])
    return offsets


def history(topic: str, sender: Iterable[Event], consumers: dict[str, list[Event]]) -> list[Fact]:
    """Translate the reports of Java programs into a history; its times are of this machine's clock."""
    names = {"send": Kind.SEND, "ack": Kind.ACK}
    facts = [
        Fact(
            at=event["at"],
            kind=names[event["event"]],
            process="sender",
            topic=topic,
            key=event["key"],
            message=f"{event['key']}:{event['body']}",
            queue=event.get("queue", ""),
            offset=event.get("offset", -1),
        )
        for event in sender
        if event["event"] in names
    ]
    kinds = {"deliver": Kind.DELIVER, "done": Kind.DONE, "fail": Kind.FAILED}
    facts += [
        Fact(
            at=event["at"],
            kind=kinds[event["event"]],
            topic=topic,
            message=event["body"],
            queue=event["queue"],
            offset=event["offset"],
            group="group",
            client=client,
        )
        for client, events in consumers.items()
        for event in events
        if event["event"] in kinds
    ]
    end = max(fact.at for fact in facts) + 1
    return [*facts, Fact(at=end, kind=Kind.DRAINED, topic=topic, group="group")]


def test_ordered_sends_reach_an_orderly_listener_in_order(
    cluster: LocalCluster, java: Java
) -> None:
    """Messages of 20 keys, sent with a selector, reach an orderly listener per key in the order of their acknowledgements."""
    topic = cluster.topic()
    group = cluster.group(topic)

    with java.start("send", ns=cluster.name_server, topic=topic, count=200, keys=20) as sender:
        sent = sender.finish()
    with java.start(
        "consume", ns=cluster.name_server, topic=topic, group=group, expected=200
    ) as consumer:
        got = consumer.finish()

    assert [e for e in sent if e["event"] in ("failed", "error")] == []
    assert {e["status"] for e in sent if e["event"] == "ack"} == {"SEND_OK"}
    verdict = judge(history(topic, sent, {"c1": got}))
    assert verdict.findings == ()
    assert verdict.counts["delivered"] == 200


def test_order_and_messages_survive_the_leader(cluster: LocalCluster, java: Java) -> None:
    """The leader is killed during sends and orderly consumption: no message is lost, doubled or reordered."""
    topic = cluster.topic()
    group = cluster.group(topic)
    where = {"ns": cluster.name_server, "topic": topic}

    with java.start("consume", **where, group=group, seconds=220) as consumer:
        consumer.heard("started")
        with java.start("send", **where, count=10**6, keys=12, pause=5, retry=True) as sender:
            survive(cluster.kill_leader, sender)
            sent = consumed(sender, consumer)
        got = consumer.stop()

    assert judge(history(topic, sent, {"c1": got})).findings == ()


def test_a_route_that_comes_too_late_moves_no_key(cluster: LocalCluster, java: Java) -> None:
    """A producer that gives up its question asks for the template of new topics, which has four queues instead of eight."""
    topic = cluster.topic(queues=8)
    send = {"ns": cluster.name_server, "topic": topic, "keys": 40, "threads": 8, "retry": True}
    with java.start("send", **send, count=40) as usual:
        queues = {e["key"]: e["queue"] for e in usual.finish() if e["event"] == "ack"}
    assert len(set(queues.values())) > 4

    with (
        cluster.name_server_away() as end,
        java.start("send", **send, count=40, unprepared=True) as late,
    ):
        late.heard("send", 8)  # each thread is about to ask
        time.sleep(NAME_SERVER_AWAY_S)
        end()
        sent = late.finish(timeout_s=60)

    assert {e["key"]: e["queue"] for e in sent if e["event"] == "ack"} == queues


def test_a_suspended_message_holds_its_queue_and_comes_again(
    cluster: LocalCluster, java: Java
) -> None:
    """SUSPEND_CURRENT_QUEUE_A_MOMENT: the same message comes again, and no later one overtakes it."""
    topic = cluster.topic(queues=1)
    group = cluster.group(topic)

    with java.start("send", ns=cluster.name_server, topic=topic, count=5) as sender:
        sender.finish()
    with java.start(
        "consume",
        ns=cluster.name_server,
        topic=topic,
        group=group,
        expected=5,
        fail="key-0:2",
        times=2,
        suspend=100,
    ) as consumer:
        got = consumer.finish()

    delivered = [e["body"] for e in got if e["event"] == "deliver"]
    assert delivered == [f"key-0:{n}" for n in (0, 1, 2, 2, 2, 3, 4)]


def test_a_message_that_always_fails_goes_to_the_dead_letter_queue(
    cluster: LocalCluster, java: Java
) -> None:
    """After the limit the orderly listener continues, and the dead letter is there immediately."""
    topic = cluster.topic(queues=1)
    group = cluster.group(topic)

    with java.start("send", ns=cluster.name_server, topic=topic, count=3) as sender:
        sender.finish()
    with java.start(
        "consume",
        ns=cluster.name_server,
        topic=topic,
        group=group,
        expected=2,
        fail="key-0:1",
        max_reconsume=2,
        suspend=50,
    ) as consumer:
        got = consumer.finish()
    with java.start(
        "consume",
        ns=cluster.name_server,
        topic=f"%DLQ%{group}",
        group=f"{group}-dlq",
        mode="concurrently",
        expected=1,
    ) as reader:
        dead = reader.finish()

    delivered = [e["body"] for e in got if e["event"] == "deliver"]
    assert delivered == [f"key-0:{n}" for n in (0, 1, 1, 1, 2)]
    assert [e["body"] for e in dead if e["event"] == "deliver"] == ["key-0:1"]


@pytest.mark.long
@pytest.mark.parametrize(("policy", "deliveries"), [("StopQueue", 6), ("HoldKey", 3)])
def test_a_group_that_wants_no_dead_letters_gets_none_and_holding_is_not_for_java(
    cluster: LocalCluster, java: Java, policy: str, deliveries: int
) -> None:
    """PRB-08: under StopQueue the broker refuses the dead letter, so the client tries on; under HoldKey the key continues."""
    topic = cluster.topic(queues=1)
    group = cluster.group(topic, on_dead_letter=policy)

    with java.start("send", ns=cluster.name_server, topic=topic, count=3) as sender:
        sender.finish()
    with java.start(
        "consume",
        ns=cluster.name_server,
        topic=topic,
        group=group,
        expected=3 if policy == "StopQueue" else 2,
        fail="key-0:1",
        times=5,
        max_reconsume=2,
        suspend=50,
    ) as consumer:
        got = consumer.finish()

    delivered = [e["body"] for e in got if e["event"] == "deliver"]
    assert delivered == ["key-0:0", *["key-0:1"] * deliveries, "key-0:2"]


def test_a_failed_concurrent_message_is_retried_later(cluster: LocalCluster, java: Java) -> None:
    """RECONSUME_LATER: the message is sent back and redelivered with its reconsume count and original topic."""
    topic = cluster.topic("Normal")
    group = cluster.group(topic, "Concurrent")

    with java.start("send", ns=cluster.name_server, topic=topic, count=8, kind="plain") as sender:
        sender.finish()
    with java.start(
        "consume",
        ns=cluster.name_server,
        topic=topic,
        group=group,
        mode="concurrently",
        expected=8,
        fail="key-0:5",
        times=1,
        seconds=40,
    ) as consumer:
        got = consumer.finish()

    again = [e for e in got if e["event"] == "deliver" and e["body"] == "key-0:5"]
    assert [(e["reconsume"], e["topic"]) for e in again] == [(0, topic), (1, topic)]
    assert {e["body"] for e in got if e["event"] == "done"} == {f"key-0:{n}" for n in range(8)}


def test_two_orderly_consumers_share_the_queues(cluster: LocalCluster, java: Java) -> None:
    """A second consumer takes over half of the queues; no queue is consumed by both at the same time."""
    topic = cluster.topic()
    group = cluster.group(topic)
    values = {"ns": cluster.name_server, "topic": topic, "group": group, "seconds": 220}

    with java.start("consume", **values, own_instance=True) as first:
        first.heard("started")
        with java.start(
            "send", ns=cluster.name_server, topic=topic, count=10**6, keys=40, pause=8
        ) as sender:
            first.heard("done", 20)
            with java.start("consume", **values, own_instance=True) as second:
                second.heard("done", 20)
                sent = consumed(sender, first, second)
                theirs = second.stop()
        ours = first.stop()

    verdict = judge(history(topic, sent, {"first": ours, "second": theirs}))
    assert verdict.findings == ()
    assert set(by_queue(e for e in theirs if e["event"] == "done")).issubset(
        by_queue(e for e in sent if e["event"] == "ack")
    )


@pytest.mark.long
def test_a_killed_members_queues_go_on_at_a_leader_that_has_heard_nothing_but_pulls(
    cluster: LocalCluster, java: Java
) -> None:
    """RocketMQ's heartbeats come every 30 s, and a 4.x client asks again for a refused queue after 20 s."""
    topic = cluster.topic()
    group = cluster.group(topic)
    values = {"ns": cluster.name_server, "topic": topic, "group": group, "seconds": 180}
    endless = {"ns": cluster.name_server, "topic": topic, "count": 10**6, "keys": 40, "pause": 10}

    with (
        java.start("consume", **values) as victim,
        java.start("consume", **values) as survivor,
        java.start("send", **endless, retry=True),
    ):
        for member in (victim, survivor):
            member.heard("done", 20, timeout_s=60)
        cluster.kill_leader()
        for member in (victim, survivor):
            member.heard("done", len(member.of("done")) + 50, timeout_s=60)
        queues = set(by_queue(victim.of("done")[-50:]))
        before = len(survivor.of("done"))
        victim.kill()

        survivor.until(
            lambda _: queues <= set(by_queue(survivor.of("done")[before:])), timeout_s=15
        )


def test_a_batch_stands_together(cluster: LocalCluster, java: Java) -> None:
    """A batch has one result and consecutive offsets of one queue, and all of its messages are delivered."""
    topic = cluster.topic("Normal", queues=1)
    group = cluster.group(topic, "Concurrent")

    with java.start(
        "send", ns=cluster.name_server, topic=topic, kind="batch", count=30, batch=10
    ) as sender:
        sent = sender.finish()
    with java.start(
        "consume",
        ns=cluster.name_server,
        topic=topic,
        group=group,
        mode="concurrently",
        expected=30,
    ) as consumer:
        got = consumer.finish()

    acks = [e for e in sent if e["event"] == "ack"]
    assert [e["offset"] for e in acks] == [0, 10, 20]
    assert [len(e["offsetMsgId"].split(",")) for e in acks] == [10, 10, 10]
    assert {e["body"] for e in got if e["event"] == "done"} == {f"key-0:{n}" for n in range(30)}


@pytest.mark.long
def test_tags_choose_what_a_consumer_sees(cluster: LocalCluster, java: Java) -> None:
    """A subscription to TagB gets no message of TagA, and its committed offset passes them."""
    topic = cluster.topic("Normal")
    group = cluster.group(topic, "Concurrent")

    for tag in ("TagA", "TagB"):
        with java.start(
            "send", ns=cluster.name_server, topic=topic, count=6, tags=tag, prefix=tag, kind="plain"
        ) as sender:
            sender.finish()
    with java.start(
        "consume",
        ns=cluster.name_server,
        topic=topic,
        group=group,
        mode="concurrently",
        tags="TagB",
        expected=6,
        linger=500,
    ) as consumer:
        got = consumer.finish()

    assert {e["tags"] for e in got if e["event"] == "deliver"} == {"TagB"}
    assert len([e for e in got if e["event"] == "done"]) == 6


@pytest.mark.long
def test_every_broadcast_member_gets_everything(cluster: LocalCluster, java: Java) -> None:
    """Two members in broadcasting mode both get all messages that are sent while they run."""
    topic = cluster.topic("Normal")
    group = cluster.group(topic, "Concurrent")
    values = {
        "ns": cluster.name_server,
        "topic": topic,
        "group": group,
        "mode": "concurrently",
        "model": "BROADCASTING",
        "own_instance": True,
        "expected": 20,
        "seconds": 60,
    }

    with java.start("consume", **values) as one, java.start("consume", **values) as two:
        one.heard("started")
        two.heard("started")
        with java.start("send", ns=cluster.name_server, topic=topic, count=20) as sender:
            sender.finish()
        bodies = [{e["body"] for e in p.finish() if e["event"] == "done"} for p in (one, two)]

    assert bodies == [{f"key-0:{n}" for n in range(20)}] * 2


@pytest.mark.long
def test_async_and_oneway_sends_arrive(cluster: LocalCluster, java: Java) -> None:
    """Each asynchronous send gets one callback; oneway sends are stored without a reply."""
    topic = cluster.topic("Normal")
    group = cluster.group(topic, "Concurrent")

    for kind in ("async", "oneway"):
        with java.start(
            "send", ns=cluster.name_server, topic=topic, count=50, kind=kind, prefix=kind
        ) as sender:
            events = sender.finish()
            assert len([e for e in events if e["event"] == "ack"]) == (50 if kind == "async" else 0)
    with java.start(
        "consume",
        ns=cluster.name_server,
        topic=topic,
        group=group,
        mode="concurrently",
        expected=100,
    ) as consumer:
        got = consumer.finish()

    assert len({e["body"] for e in got if e["event"] == "done"}) == 100


def test_a_group_by_key_says_to_java_what_to_do(cluster: LocalCluster, java: Java) -> None:
    """A pull ends in an exception with code and reason; an orderly listener gets no lock, and therefore no message."""
    topic = cluster.topic()
    group = cluster.group(topic, concurrency="Key")
    where = {"ns": cluster.name_server, "topic": topic, "group": group}
    with java.start("send", ns=cluster.name_server, topic=topic, count=12, keys=3) as sender:
        sender.finish()

    with java.start("pull", **where) as puller:
        puller.until(lambda program: any("MQBrokerException" in line for line in program.noise))
        refusal = next(line for line in puller.noise if "MQBrokerException" in line)
        assert puller.of("message") == []
    assert f"CODE: 16  DESC: group[{group}] consumes by key (concurrency: Key)" in refusal
    assert 'consume with ordered="key" of the OrderlyMQ SDK, or set concurrency: Queue' in refusal

    with java.start("consume", **where, expected=1, seconds=10) as consumer:
        assert "deliver" not in {each["event"] for each in consumer.finish()}


@pytest.mark.long
@pytest.mark.parametrize("block", [False, True])
def test_the_pull_consumer_reads_to_the_end(cluster: LocalCluster, java: Java, block: bool) -> None:
    """DefaultMQPullConsumer finds all messages and gets NO_NEW_MSG at the end of every queue."""
    topic = cluster.topic()

    with java.start("send", ns=cluster.name_server, topic=topic, count=70, keys=9) as sender:
        sender.finish()
    with java.start(
        "pull", ns=cluster.name_server, topic=topic, group="pullers", block=block, suspend=1500
    ) as puller:
        got = puller.finish(timeout_s=120)

    assert len([e for e in got if e["event"] == "message"]) == 70
    ends = [e for e in got if e["event"] == "pull" and e["status"] != "FOUND"]
    assert [e["status"] for e in ends] == ["NO_NEW_MSG"] * 4
    assert sum(e["max"] for e in got if e["event"] == "bounds") == 70


@pytest.mark.parametrize("assign", [False, True])
def test_the_lite_pull_consumer_polls(cluster: LocalCluster, java: Java, assign: bool) -> None:
    """DefaultLitePullConsumer gets all messages, both by subscription and with assigned queues and a seek.

    A seek during a pull delivers the first messages twice.
    """
    topic = cluster.topic("Normal")
    group = cluster.group(topic, "Concurrent")

    with java.start("send", ns=cluster.name_server, topic=topic, count=40, keys=8) as sender:
        sender.finish()
    with java.start(
        "lite-pull",
        ns=cluster.name_server,
        topic=topic,
        group=group,
        assign=assign,
        expected=40,
        seconds=60,
    ) as poller:
        got = poller.finish(timeout_s=90)

    messages = [e for e in got if e["event"] == "message"]
    assert len({e["body"] for e in messages}) == 40
    for offsets in by_queue(messages).values():
        assert list(dict.fromkeys(offsets)) == sorted(set(offsets))


def test_messages_are_found_by_key_and_by_id(cluster: LocalCluster, java: Java) -> None:
    """Query by key, by unique id and by offset message id lead to the same message."""
    topic = cluster.topic()

    with java.start("send", ns=cluster.name_server, topic=topic, count=20, keys=20) as sender:
        sent = sender.finish()
    ack = next(e for e in sent if e["event"] == "ack" and e["body"] == 7)
    found = []
    for name in ("msgId", "offsetMsgId"):
        with java.start(
            "query", ns=cluster.name_server, topic=topic, key=ack["key"], id=ack[name]
        ) as query:
            found += [e for e in query.finish() if e["event"] in ("by-key", "by-id")]

    assert len(found) == 4
    assert {(e["body"], e["offset"]) for e in found} == {(f"{ack['key']}:7", ack["offset"])}


def test_a_delayed_message_is_never_early(cluster: LocalCluster, java: Java) -> None:
    """With delay level 1 (one second here), a message is delivered not earlier, and to the topic that it was sent to."""
    topic = cluster.topic("Normal")
    group = cluster.group(topic, "Concurrent")

    with java.start(
        "consume",
        ns=cluster.name_server,
        topic=topic,
        group=group,
        mode="concurrently",
        expected=3,
    ) as consumer:
        consumer.heard("started")
        with java.start(
            "send", ns=cluster.name_server, topic=topic, count=3, delay=1, kind="plain"
        ) as sender:
            sender.finish()
        consumer.heard("done", 3, timeout_s=60)
        arrived_ms = time.time() * 1000
        got = consumer.finish()

    born = [e["born"] for e in got if e["event"] == "done"]
    assert all(arrived_ms - b >= 1000 for b in born)


def test_the_selector_agrees_with_ours(java: Java) -> None:
    """Java's SelectMessageQueueByHash and the SDK choose the same queue for every key."""
    keys = ["4711", "a", "key-0", "polygenelubricants", "order/ä", "中文", "🙂🙂", "x" * 300]
    with java.start("hash", keys=",".join(keys), queues=8) as program:
        events = program.finish()

    assert {e["key"]: e["queue"] for e in events} == {key: hash_index(key, 8) for key in keys}
