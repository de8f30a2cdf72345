"""A cluster in the process of a test: ready, empty, breakable, judged at the end."""

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from orderlymq import (
    AdminClient,
    Consumer,
    Message,
    OrderedContext,
    Producer,
    ReceivedMessage,
    SendUnknown,
    SettingError,
    StateError,
    TopicNotFound,
    blocking,
)
from orderlymq.oracle.verdict import Defect, Kind
from orderlymq.testing import Cluster
from orderlymq_broker.processors.lanes import overview
from orderlymq_nameserver.processor import HOLD_MAX_MS
from orderlymq_testing.plugin import orderlymq_cluster

__all__ = ["orderlymq_cluster"]

STEPS = [f"step {number}" for number in range(20)]


async def consume(count: int) -> list[str]:
    """Return the first *count* messages of the topic in order; the environment names the cluster."""
    texts: list[str] = []
    async with Consumer("billing", topics="orders", ordered=True, consume_from="first") as consumer:
        async for message in consumer:
            texts.append(message.text)
            if len(texts) == count:
                break
    return texts


async def test_a_new_cluster_answers_without_waiting_for_brokers_that_may_come(
    orderlymq_cluster: Cluster,
) -> None:
    """Law: a new cluster answers immediately that a topic is unknown; a restarted name server would hold the question."""
    began_s = time.monotonic()
    async with AdminClient() as admin:
        with pytest.raises(TopicNotFound):
            await admin.route("orders")

    assert (time.monotonic() - began_s) * 1000 < HOLD_MAX_MS / 2


async def test_clients_find_it_by_the_environment(orderlymq_cluster: Cluster) -> None:
    """Law: clients find the cluster by the environment; the verdict counts their messages."""
    orderlymq_cluster.create_topic("orders")
    async with Producer() as producer:
        for step in STEPS:
            await producer.send("orders", step, key="order-1")

    assert await consume(20) == STEPS
    verdict = orderlymq_cluster.verdict()
    assert verdict.kept
    assert verdict.counts["acknowledged"] == 20
    assert verdict.counts["delivered"] == 20


@pytest.mark.parametrize("turn", [1, 2])
def test_every_test_begins_with_an_empty_cluster(orderlymq_cluster: Cluster, turn: int) -> None:
    """Law: every test begins with an empty cluster."""
    with blocking.AdminClient() as admin:
        assert "orders" not in admin.topics()
    orderlymq_cluster.create_topic("orders", queues=1)
    with blocking.Producer() as producer:
        assert producer.send("orders", f"turn {turn}", key="k").queue_offset == 0


@pytest.mark.parametrize("orderlymq_cluster", [1, 3], indirect=True)
async def test_a_killed_leader_loses_nothing(orderlymq_cluster: Cluster) -> None:
    """Law: a killed leader loses nothing, with one replica and with three."""
    orderlymq_cluster.create_topic("orders")
    async with Producer() as producer:
        for number, step in enumerate(STEPS):
            if number == 10:
                killing = asyncio.create_task(asyncio.to_thread(orderlymq_cluster.kill_leader))
            await producer.send("orders", step, key="order-1", timeout=20)
        await killing

    assert await consume(20) == STEPS


@pytest.mark.parametrize(("ordered", "named"), [(True, 256), ("key", 256), ("key", 0)])
async def test_an_expired_lock_lets_another_member_go_on_and_repeats_at_most(
    orderlymq_cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    ordered: Literal[True, "key"],
    named: int,
) -> None:
    """Law: when a lock or lane is made to expire, its consumer notices and takes it again; messages may repeat."""
    monkeypatch.setattr(overview, "SHOWN_MAX", named)
    orderlymq_cluster.create_topic("orders", queues=1)
    seen: list[str] = []
    expired = asyncio.Event()

    async def listener(messages: Sequence[ReceivedMessage], _: OrderedContext) -> None:
        seen.extend(message.text for message in messages)
        if len(seen) == 5:
            assert await asyncio.to_thread(orderlymq_cluster.expire_locks, "billing") > 0
            expired.set()

    async with (
        Producer() as producer,
        Consumer(
            "billing", topics="orders", ordered=ordered, consume_from="first", listener=listener
        ),
    ):
        for step in STEPS:
            await producer.send("orders", step, key="order-1")
        async with asyncio.timeout(30):
            while "step 19" not in seen:  # noqa: ASYNC110 - the listener is called elsewhere
                await asyncio.sleep(0.01)

    assert expired.is_set()
    assert list(dict.fromkeys(seen)) == STEPS


async def test_a_delayed_answer_leaves_the_send_unknown_and_its_repeat_is_recognised(
    orderlymq_cluster: Cluster,
) -> None:
    """Law: a delayed answer leaves the send unknown; its repeat is recognised and stored once."""
    orderlymq_cluster.create_topic("orders", queues=1)
    orderlymq_cluster.delay("send", by=0.3)
    message = Message(topic="orders", body=b"once", key="order-1")
    async with Producer() as producer:
        with pytest.raises(SendUnknown):
            await producer.send(message, timeout=0.1)
        result = await producer.send(message, timeout=10)
    async with AdminClient() as admin:
        stats = await admin.topic_stats("orders")

    assert result.queue_offset == 0
    assert [each.max_offset for each in stats.values()] == [1]


async def test_a_delay_is_used_up_by_any_request_of_its_kind(orderlymq_cluster: Cluster) -> None:
    """Law: a delay is used up by the next request of its kind, a batch included."""
    orderlymq_cluster.create_topic("orders", queues=1)
    orderlymq_cluster.delay("send", by=0.3)
    async with Producer() as producer:
        with pytest.raises(SendUnknown):
            await producer.send("orders", "late", key="order-1", timeout=0.1)

    assert orderlymq_cluster._delays == []


async def test_the_verdict_names_what_a_listener_got_out_of_order(
    orderlymq_cluster: Cluster,
) -> None:
    """Law: a wrong order that a listener saw fails the test."""
    orderlymq_cluster.create_topic("orders", queues=1)
    async with Producer() as producer:
        for step in STEPS[:2]:
            await producer.send("orders", step, key="order-1")
    assert await consume(2) == STEPS[:2]
    recording = orderlymq_cluster.recording
    kept = list(recording.events)
    recording.events = [event for event in kept if event.kind not in (Kind.DELIVER, Kind.DONE)]
    for event in reversed([event for event in kept if event.kind is Kind.DELIVER]):
        facts = {
            name: getattr(event, name) for name in ("topic", "key", "message", "queue", "offset")
        }
        recording.note(Kind.DELIVER, group="billing", client="c", **facts)

    with pytest.raises(AssertionError, match="the oracle found") as caught:
        orderlymq_cluster.assert_kept()
    recording.events = kept

    assert str(Defect.REORDERED) in str(caught.value) or str(Defect.SKIPPED) in str(caught.value)


@pytest.mark.parametrize(
    ("what", "by", "times", "remark"),
    [
        ("everything", 1, 1, "choose one of send, pull, lock, commit"),
        ("send", "soon", 1, "give seconds or a timedelta"),
        ("send", -1, 1, "by is -1.0 s; give 0 or more"),
        ("send", 1, 0, "times is 0; give 1 or more"),
    ],
)
def test_a_delay_that_means_nothing_is_refused(
    orderlymq_cluster: Cluster, what: str, by: Any, times: int, remark: str
) -> None:
    """Law: a senseless delay is refused, and nothing is changed."""
    with pytest.raises(SettingError, match=remark):
        orderlymq_cluster.delay(what, by, times=times)

    assert orderlymq_cluster.recording.events == []


@pytest.mark.parametrize("replicas", [0, -1, "three"])
def test_a_cluster_has_one_replica_at_least(tmp_path: Path, replicas: Any) -> None:
    """Law: a number of replicas other than 1 or 3 is refused before anything starts."""
    with pytest.raises(SettingError, match=f"replicas is {replicas!r}; give 1, or 3"):
        Cluster(tmp_path, replicas=replicas)


def test_a_cluster_that_is_not_started_asks_no_other_one(tmp_path: Path) -> None:
    """Law: a cluster that is not started refuses calls, instead of asking one that the environment names."""
    cluster = Cluster(tmp_path)
    with pytest.raises(StateError, match="start the cluster first, or use `with`"):
        cluster.create_topic("orders")
    with pytest.raises(StateError, match="start the cluster first, or use `with`"):
        cluster.kill_leader()
    cluster.close()


@pytest.mark.parametrize("orderlymq_cluster", [1, 3], indirect=True)
async def test_leaders_are_killed_one_after_the_other(orderlymq_cluster: Cluster) -> None:
    """Law: concurrent kills of the leader take turns, and the cluster serves afterwards."""
    orderlymq_cluster.create_topic("orders")
    await asyncio.gather(*(asyncio.to_thread(orderlymq_cluster.kill_leader) for _ in range(3)))

    async with Producer() as producer:
        assert (await producer.send("orders", "a", key="k")).queue_offset == 0
    faults = [e.detail for e in orderlymq_cluster.recording.events if e.kind is Kind.FAULT]
    assert faults == ["leader killed"] * 3


def test_the_environment_is_restored() -> None:
    """Law: after the test the environment is restored."""
    assert os.environ.get("ORDERLYMQ_NAME_SERVER") is None
