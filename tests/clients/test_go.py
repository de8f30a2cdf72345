"""Apache's Go client: ordered sends and an ordered push consumer."""

import asyncio
import json
from pathlib import Path

import pytest

from orderlymq_protocol.frame.command import request
from orderlymq_protocol.header.catalogue import CreateTopicHeader
from orderlymq_runtime.remoting.client import RemotingClient
from tests.clients.localcluster import LocalCluster
from tests.clients.programs import Program, options

pytestmark = [pytest.mark.go, pytest.mark.cluster, pytest.mark.timeout(180)]


def test_go_sends_and_consumes_in_order(cluster: LocalCluster, go_program: Path) -> None:
    """Hash-selected sends come back key by key in order, a suspended message included."""
    topic = cluster.topic()
    group = cluster.group(topic)
    where = {"ns": cluster.name_server, "topic": topic}

    with Program([str(go_program), "send", *options(**where, count=60, keys=6)]) as sender:
        sent = sender.finish()
    consume = options(**where, group=group, expected=60, fail="key-3:", times=1, seconds=60)
    with Program([str(go_program), "consume", *consume]) as consumer:
        got = consumer.finish(timeout_s=90)

    assert len([e for e in sent if e["event"] == "ack"]) == 60
    done = [e for e in got if e["event"] == "done"]
    steps = {key: [] for key in {e["keys"] for e in done}}  # type: dict[str, list[int]]
    for event in done:
        steps[event["keys"]].append(int(event["body"].partition(":")[2]))
    assert steps == {f"key-{k}": list(range(k, 60, 6)) for k in range(6)}
    assert {e["body"] for e in got if e["event"] == "fail"} == {
        f"key-3:{n}" for n in range(3, 60, 6)
    }


def test_go_gets_the_messages_of_the_tags_it_names(cluster: LocalCluster, go_program: Path) -> None:
    """A selector with an expression and no type, as most programs write it."""
    topic = cluster.topic()
    where = {"ns": cluster.name_server, "topic": topic}
    for tag in ("TagB", "TagC"):
        with Program([str(go_program), "send", *options(**where, count=6, tag=tag)]) as sender:
            sender.finish()

    wish = {"group": cluster.group(topic), "expression": "TagA || TagB"}
    with Program([str(go_program), "consume", *options(**where, **wish, expected=6)]) as consumer:
        got = consumer.finish(timeout_s=90)

    assert [e["offset"] for e in got if e["event"] == "done"] == list(range(6))


def test_a_group_by_key_says_to_go_what_to_do(cluster: LocalCluster, go_program: Path) -> None:
    """Its pulls are refused with a sentence, which the client logs; it gets no lock, and no message out of order."""
    topic = cluster.topic()
    group = cluster.group(topic, concurrency="Key")
    where = {"ns": cluster.name_server, "topic": topic}
    with Program([str(go_program), "send", *options(**where, count=12, keys=3)]) as sender:
        sender.finish()

    consume = options(**where, group=group, expected=1, seconds=60, mode="concurrently", log="warn")
    with Program([str(go_program), "consume", *consume]) as consumer:
        consumer.until(lambda program: any("consumes by key" in line for line in program.noise))
        refusals = [line for line in consumer.noise if "consumes by key" in line]
        assert consumer.of("deliver") == []
    assert f"group[{group}] consumes by key (concurrency: Key)" in refusals[0]
    assert "consume with the OrderlyMQ SDK, or set concurrency: Queue" in refusals[0]

    ordered = options(**where, group=group, expected=1, seconds=10)
    with Program([str(go_program), "consume", *ordered]) as consumer:
        assert [each["event"] for each in consumer.finish()] == ["started", "finished"]


def test_go_makes_a_topic_that_does_not_exist_with_two_name_servers(
    cluster: LocalCluster, go_program: Path
) -> None:
    """The client asks one name server for the topic and the next one for what topics are made after."""
    both = f"{cluster.name_server};127.0.0.1:{cluster.base + 1}"

    send = options(ns=both, topic="made-by-go", count=12, keys=3)
    with Program([str(go_program), "send", *send]) as sender:
        sent = sender.finish()

    assert len([each for each in sent if each["event"] == "ack"]) == 12


def test_go_keeps_the_queue_of_a_key_while_one_group_takes_no_sends(
    tmp_path: Path, go_program: Path
) -> None:
    """An ordered topic that is read-only at one group: the keys of its queues are refused, and none moves."""
    cluster = LocalCluster(tmp_path, groups=2, replicas=1)
    words = options(ns=cluster.name_server, topic="by-tool", count=24, keys=12)

    def sent() -> tuple[dict[str, str], dict[str, str]]:
        with Program([str(go_program), "send", *words]) as sender:
            events = sender.finish()
        acks = {each["key"]: each["queue"] for each in events if each["event"] == "ack"}
        return acks, {each["key"]: each["text"] for each in events if each["event"] == "failed"}

    cluster.up()
    try:
        asyncio.run(_set_topic(cluster, "by-tool", {0: 6, 1: 6}))
        before, failed = sent()
        asyncio.run(_set_topic(cluster, "by-tool", {1: 4}))
        after, refused = sent()
    finally:
        cluster.down()

    kept = {key: queue for key, queue in before.items() if queue.startswith("clients-0:")}
    assert (len(before), failed) == (12, {})
    assert 0 < len(kept) < 12
    assert after == kept
    assert refused.keys() == before.keys() - kept.keys()
    assert all("topic[by-tool] has no write permission" in text for text in refused.values())


async def _set_topic(cluster: LocalCluster, topic: str, permissions: dict[int, int]) -> None:
    """Set an ordered topic at some groups as a tool does (17), and wait until the name server has heard of it."""
    client = RemotingClient()
    try:
        for group, perm in permissions.items():
            header = CreateTopicHeader(topic, "TBW102", 2, 2, perm, "SINGLE_TAG", order=True)
            place = f"127.0.0.1:{cluster.base + 12 + 10 * group}"
            answer = await client.invoke(place, request(17, header.to_ext()), 5.0)
            assert answer.code == 0, answer
        wanted = {f"clients-{group}": perm == 6 for group, perm in permissions.items()}
        async with asyncio.timeout(20):
            while True:
                answer = await client.invoke(
                    cluster.name_server, request(105, {"topic": topic}), 5.0
                )
                shown = {
                    each["brokerName"]: each["perm"] == 6
                    for each in json.loads(answer.body or b"{}").get("queueDatas", ())
                }
                if wanted.items() <= shown.items():
                    return
                await asyncio.sleep(0.1)
    finally:
        await client.close()
