"""Apache's Go client: the features of its API, with a cluster and through the death of a leader."""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import pytest

from orderlymq_protocol.frame.command import request
from orderlymq_protocol.header.catalogue import CreateTopicHeader
from orderlymq_runtime.remoting.client import RemotingClient
from tests.clients.localcluster import LocalCluster, secured_cluster
from tests.clients.programs import Event, Go, Program, consumed, survive

pytestmark = [pytest.mark.go, pytest.mark.cluster, pytest.mark.timeout(180)]


def fresh(name: str) -> str:
    """Return a name that no former run of a test has used, so that no topic or group has it."""
    return f"{name}-{uuid4().hex[:6]}"


def sent(go: Go, **values: object) -> list[Event]:
    """Send; return the acknowledgements."""
    with go.start("send", **values) as sender:
        return [each for each in sender.finish() if each["event"] == "ack"]


def got(go: Go, **values: object) -> list[Event]:
    """Consume; return the consumed messages."""
    with go.start("consume", **{"seconds": 60, **values}) as consumer:
        consumer.finish(timeout_s=90)
    return consumer.of("done")


def by_key(events: list[Event]) -> dict[str, list[int]]:
    """Return the steps of each key in their order; a body is "key:step", possibly followed by dots."""
    steps: dict[str, list[int]] = {}
    for event in events:
        key, _, step = event["body"].rstrip(".").partition(":")
        steps.setdefault(key, []).append(int(step))
    return steps


def test_go_sends_and_consumes_in_order(cluster: LocalCluster, released_go: Go) -> None:
    """Keys are consumed in order, including a suspended message; 2.1.0 loses a message that it suspends."""
    topic = cluster.topic()
    group = cluster.group(topic)
    where = {"ns": cluster.name_server, "topic": topic}
    refused = {"fail": "key-3:", "times": 1} if released_go.version != "2.1.0" else {}

    acks = sent(released_go, **where, count=60, keys=6)
    with released_go.start(
        "consume", **where, **refused, group=group, expected=60, seconds=60
    ) as it:
        it.finish(timeout_s=90)

    assert len(acks) == 60
    assert by_key(it.of("done")) == {f"key-{k}": list(range(k, 60, 6)) for k in range(6)}
    if refused:
        assert by_key(it.of("fail")) == {"key-3": list(range(3, 60, 6))}


def test_go_sends_in_every_way_and_through_every_selector(
    cluster: LocalCluster, released_go: Go
) -> None:
    """Properties and compressed bodies are included; 2.1.0 leaves a field of its batches empty, which no broker reads."""
    where = {"ns": cluster.name_server, "topic": cluster.topic("Normal")}
    name = {"tag": "TagA", "colours": "red,green", "keys": 4, "size": 5000}

    acks = {
        selector: sent(released_go, **where, **name, count=8, how=how, selector=selector, **more)
        for selector, how, more in (
            ("hash", "sync", {}),
            ("robin", "async", {}),
            ("random", "async", {}),
            ("manual", "sync", {"queue": "clients-0:2"}),
        )
    }
    assert sent(released_go, **where, **name, count=8, how="oneway") == []
    batch = (
        []
        if released_go.version == "2.1.0"
        else sent(released_go, **where, **name, count=8, how="batch")
    )
    expected = 48 if batch else 40
    with released_go.start(
        "consume",
        **where,
        group=f"{where['topic']}-all",
        mode="concurrently",
        expected=expected,
    ) as consumer:
        consumer.finish()

    queues = {name: Counter(each["queue"] for each in some) for name, some in acks.items()}
    assert queues["robin"] == {f"clients-0:{queue}": 2 for queue in range(4)}
    assert queues["manual"] == {"clients-0:2": 8}
    assert {name: sum(some.values()) for name, some in queues.items()} == dict.fromkeys(queues, 8)
    assert len({(each["key"], each["queue"]) for each in acks["hash"]}) == 4
    done = consumer.of("done")
    assert Counter(each["body"] for each in done) == {
        f"key-{n % 4}:{n}".ljust(200, "."): expected / 8 for n in range(8)
    }
    assert {
        (e["size"], e["tags"], e["keys"].strip() == e["shardingKey"] == e["body"][:5], e["colour"])
        for e in done
    } == {(5000, "TagA", True, colour) for colour in ("red", "green")}


def test_go_gets_the_messages_of_the_tags_it_names(cluster: LocalCluster, go: Go) -> None:
    """The selector has an expression and no type, as in most programs."""
    topic = cluster.topic()
    where = {"ns": cluster.name_server, "topic": topic}
    for tag in ("TagB", "TagC"):
        with go.start("send", **where, count=6, tag=tag) as sender:
            sender.finish()

    wish = {"group": cluster.group(topic), "expression": "TagA || TagB"}
    with go.start("consume", **where, **wish, expected=6) as consumer:
        got = consumer.finish(timeout_s=90)

    assert [e["offset"] for e in got if e["event"] == "done"] == list(range(6))


def test_go_gets_what_sql_chooses(cluster: LocalCluster, go: Go) -> None:
    """The client's pulls name no kind of expression, so that of its heartbeat counts."""
    name = fresh("go-sql")
    where = {"ns": cluster.name_server, "topic": name, "keys": 3}
    sent(go, **where, count=9, colours="red,green,blue")

    chosen = got(
        go,
        **where,
        group=name,
        mode="concurrently",
        sql="colour IN ('red', 'blue')",
        expected=6,
    )

    assert by_key(chosen).keys() == {"key-0", "key-2"}


def test_go_hands_back_what_fails_and_gives_up(cluster: LocalCluster, go: Go) -> None:
    """Both the delay level of its context and the maximum of tries count; the dead letter is read like any message."""
    topic = cluster.topic("Normal")
    where = {"ns": cluster.name_server, "mode": "concurrently"}
    group = cluster.group(topic, "Concurrent")
    sent(go, ns=cluster.name_server, topic=topic, count=4, keys=2)

    wish = {"fail": "key-1:1", "times": 9, "max_reconsume": 2, "delay_level": 1}
    with go.start("consume", **where, **wish, topic=topic, group=group, expected=9) as consumer:
        tries = consumer.heard("fail", 3)
        consumer.heard("done", 3)
        letters = got(go, **where, topic=cluster.await_letters(group), group=f"{group}-letters")

    assert [each["reconsume"] for each in tries] == [0, 1, 2]
    assert [b["at"] - a["at"] > 0.8e9 for a, b in pairwise(tries)] == [True] * 2
    assert {each["body"] for each in consumer.of("done")} == {"key-0:0", "key-0:2", "key-1:3"}
    assert [(each["body"], each["msgId"]) for each in letters] == [("key-1:1", tries[0]["msgId"])]


def test_go_gives_up_in_order(cluster: LocalCluster, go: Go) -> None:
    """The client pauses as its context says, and then hands the dead letter to the address that stored the message."""
    topic = cluster.topic(queues=1)
    group = cluster.group(topic)
    where = {"ns": cluster.name_server, "topic": topic}
    sent(go, **where, count=4)

    wish = {"fail": ":1", "times": 9, "max_reconsume": 1, "suspend": 300}
    with go.start("consume", **where, **wish, group=group, expected=3) as consumer:
        consumer.finish()

    assert by_key(consumer.of("deliver")) == {"key-0": [0, 1, 1, 1, 2, 3]}
    assert by_key(consumer.of("done")) == {"key-0": [0, 2, 3]}
    letters = {**where, "topic": cluster.await_letters(group), "mode": "concurrently"}
    assert by_key(got(go, **letters, group=f"{group}-letters")) == {"key-0": [1]}


def test_go_consumes_in_batches_in_order(cluster: LocalCluster, go: Go) -> None:
    """A batch has as many messages as it asks for, within those of each pull."""
    topic = cluster.topic(queues=1)
    where = {"ns": cluster.name_server, "topic": topic}
    sent(go, **where, count=40, keys=3)

    done = got(go, **where, group=cluster.group(topic), batch=7, expected=40, pull_batch=10)

    assert [each["offset"] for each in done] == list(range(40))
    assert max(each["together"] for each in done) == 7


def test_transactions_are_committed_rolled_back_and_asked_about(
    cluster: LocalCluster, released_go: Go
) -> None:
    """A commit is seen once, a rollback never, and a check decides unknown ones; commits keep their order."""
    topic = cluster.topic(queues=1)
    group = cluster.group(topic)
    where = {"ns": cluster.name_server, "topic": topic}

    plan = "commit,rollback,unknown,commit"
    with released_go.start("transact", **where, group=f"{group}-producers", plan=plan) as producer:
        checks = producer.heard("check")
        done = got(released_go, **where, group=group, expected=3, linger=500)
        producer.stop()

    assert [each["body"] for each in done] == ["commit:0", "commit:3", "unknown:2"]
    assert [(each["body"], each["topic"], each["times"]) for each in checks] == [
        ("unknown:2", topic, "1")
    ]


@pytest.mark.long
def test_go_keeps_the_order_of_a_key_and_its_transactions_when_the_leader_is_killed(
    cluster: LocalCluster, go: Go
) -> None:
    """The client does not notice the end of a connection: a pull there waits for its whole 30 s."""
    topic, decided = cluster.topic(), cluster.topic(queues=1)
    where = {"ns": cluster.name_server, "topic": topic}
    undecided = {**where, "topic": decided, "group": "go-deciders", "plan": "unknown"}

    with (
        go.start("transact", **undecided, immunity=4) as producer,
        go.start("consume", **where, group=cluster.group(topic), expected=10**6, seconds=170) as it,
        go.start("send", **where, count=10**6, keys=20, pause=10, retry=True) as sender,
    ):
        producer.heard("half")
        it.heard("done", 50)
        survive(cluster.kill_leader, sender)
        consumed(sender, it)
        producer.heard("check")

    count = len(sender.of("ack"))
    assert [each["body"] for each in sender.of("ack")] == list(range(count))
    # Messages in transit when the sender was killed may have been stored, too.
    done = [each for each in it.of("done") if int(each["body"].partition(":")[2]) < count]
    first = {each["body"]: each for each in reversed(done)}
    in_order = sorted(first.values(), key=lambda each: each["at"])
    assert by_key(in_order) == {f"key-{k}": list(range(k, count, 20)) for k in range(20)}
    committed = got(go, ns=cluster.name_server, topic=decided, group=cluster.group(decided))
    assert [each["body"] for each in committed] == ["unknown:0"]


def test_go_asks_and_answers(cluster: LocalCluster, go: Go) -> None:
    """Each answer reaches its sender after that has identified itself."""
    where = {"ns": cluster.name_server, "topic": fresh("go-questions")}
    sent(go, **where, count=1)

    answering = {"group": fresh("go-answers"), "mode": "concurrently"}
    with go.start("reply", **where, **answering) as replier:
        replier.heard("started")
        with go.start("request", **where, group="go-askers", instance="go-asker", count=4) as asker:
            asker.finish()

    assert [each["body"] for each in asker.of("answer")] == [
        f"answer to question {n}" for n in range(4)
    ]


def test_go_administers_topics(cluster: LocalCluster, go: Go) -> None:
    """The client creates a topic at the broker, lists its queues and those of a group, and deletes it."""
    topic = cluster.topic()
    where = {"ns": cluster.name_server, "broker": f"127.0.0.1:{cluster.base + 12}"}

    with go.start("admin", **where, topic=fresh("go-made"), group=cluster.group(topic)) as program:
        program.finish()

    (made,) = program.of("created")
    assert (made["queues"], made["group"]) == ([f"clients-0:{queue}" for queue in range(6)], True)


def test_go_polls_and_hands_back(cluster: LocalCluster, go: Go) -> None:
    """Each message is handed back once, and acknowledged when it comes from the retry topic."""
    topic = cluster.topic("Normal")
    where = {"ns": cluster.name_server, "topic": topic}
    for tag in ("A", "B"):
        sent(go, **where, count=6, keys=3, tag=tag)

    wish = {"group": cluster.group(topic, "Concurrent"), "expression": "A", "fail": "all"}
    with go.start("poll", **where, **wish, expected=6) as program:
        program.finish()

    assert Counter(each["body"] for each in program.of("deliver")) == {
        f"key-{n % 3}:{n}": 2 for n in range(6)
    }
    assert {(each["tags"], each["reconsume"]) for each in program.of("done")} == {("A", 1)}


def test_go_takes_queues_itself_and_seeks(cluster: LocalCluster, newest_go: Go) -> None:
    """Assign, SeekOffset, Poll and ACK."""
    topic = cluster.topic("Normal")
    where = {"ns": cluster.name_server, "topic": topic}
    sent(newest_go, **where, count=12, selector="robin")

    with newest_go.start("assign", **where, group="go-assigned", seek=1) as program:
        program.heard("done", 8)
        program.stop()

    assert sorted((each["queue"], each["offset"]) for each in program.of("done")) == [
        (f"clients-0:{queue}", offset) for queue in range(4) for offset in (1, 2)
    ]


def test_a_broadcast_reaches_each_member_which_goes_on_where_it_was(
    cluster: LocalCluster, go: Go, tmp_path: Path
) -> None:
    """Each member keeps its offsets in a file named by its client id."""
    where = {"ns": cluster.name_server, "topic": cluster.topic("Normal")}
    sent(go, **where, count=6)
    more = {"group": "go-broadcast", "mode": "concurrently", "broadcasting": True}
    words = {
        name: go.command("consume", **where, **more, instance=name, expected=6)
        for name in ("one", "two")
    }
    at_home = ["env", f"HOME={tmp_path}"]

    with Program([*at_home, *words["one"]]) as one, Program([*at_home, *words["two"]]) as two:
        one.finish()
        two.finish()
    sent(go, **where, count=6)
    with Program([*at_home, *words["one"]]) as again:
        again.finish()

    first, second = [f"key-0:{n}" for n in range(6)], Counter(f"key-0:{n}" for n in range(6))
    assert [sorted(e["body"] for e in each.of("done")) for each in (one, two)] == [first, first]
    assert Counter(each["body"] for each in again.of("done")) == second
    assert {each["offsetMsgId"] for each in again.of("done")}.isdisjoint(
        each["offsetMsgId"] for each in one.of("done")
    )


def test_a_namespace_keeps_topics_groups_and_retries_apart(cluster: LocalCluster, go: Go) -> None:
    """Names with the client's namespace are served like any others."""
    name = fresh("spaced")
    where = {"ns": cluster.name_server, "topic": name, "namespace": "space"}
    cluster.command("group", "set", f"space%{name}", "--ordering", "concurrent")
    sent(go, **where, count=4)

    wish = {"fail": ":1", "delay_level": 1}
    done = got(go, **where, **wish, group=name, mode="concurrently", expected=4)

    assert {(each["topic"], each["body"], each["reconsume"]) for each in done} == {
        (f"space%{name}", f"key-0:{n}", int(n == 1)) for n in range(4)
    }


@contextmanager
def address_server(text: str) -> Iterator[tuple[str, list[str]]]:
    """Serve *text* at every path; yield the address and the requested paths."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            """Write no log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/rocketmq/nsaddr", asked
        finally:
            server.shutdown()


def test_go_finds_name_servers_however_they_are_given(
    cluster: LocalCluster, go: Go, tmp_path: Path
) -> None:
    """Name servers are given by an HTTP address, next to a dead one, or by a domain, with and without a unit's name."""
    topic = cluster.topic()
    live, dead = cluster.name_server, "127.0.0.1:1"
    with address_server(f"{dead};{live}\n") as (domain, asked):
        for more in (
            {"ns": f"http://{live}"},
            {"ns": f"{dead};{live}"},
            {"ns": "", "domain": domain},
            {"ns": "", "domain": domain, "unit": "unit1"},
        ):
            words = go.command("send", topic=topic, count=1, **more)
            with Program(["env", f"HOME={tmp_path}", *words]) as sender:
                sender.finish()
            assert len(sender.of("ack")) == 1, more

    done = got(go, ns=f"{dead};{live}", topic=topic, group=cluster.group(topic), expected=4)
    assert len(done) == 4
    assert set(asked) == {"/rocketmq/nsaddr", "/rocketmq/nsaddr-unit1?nofix=1"}


def test_go_waits_for_a_delay(cluster: LocalCluster, go: Go) -> None:
    """Level 5, which is 2 s here."""
    name = fresh("go-delayed")
    where = {"ns": cluster.name_server, "topic": name}
    sent(go, **where, count=4, delay=5)

    done = got(go, **where, group=name, mode="concurrently", expected=4)

    assert by_key(sorted(done, key=lambda each: each["body"])) == {"key-0": [0, 1, 2, 3]}
    assert min(each["at"] / 1e6 - each["born"] for each in done) >= 2000


@pytest.mark.long
def test_go_consumes_again_after_a_reset(cluster: LocalCluster, go: Go) -> None:
    """The reset works with and without order while it runs.

    The members pause for 10 s, and all ask for their offsets together.
    """
    topic = cluster.topic()
    where = {"ns": cluster.name_server, "topic": topic, "seconds": 90, "expected": 16}
    groups = {mode: cluster.group(topic, kind) for mode, kind in MODES.items()}
    sent(go, ns=cluster.name_server, topic=topic, count=8, selector="robin")

    with (
        go.start("consume", **where, group=groups["orderly"], mode="orderly") as orderly,
        go.start("consume", **where, group=groups["concurrently"], mode="concurrently") as other,
    ):
        for mode, member in (("orderly", orderly), ("concurrently", other)):
            member.heard("done", 8)
            cluster.command("group", "reset", groups[mode], "--topic", topic, "--to", "earliest")
        for member in (orderly, other):
            member.finish()
            assert Counter(by_key(member.of("done"))["key-0"]) == dict.fromkeys(range(8), 2)


MODES = {"orderly": "Ordered", "concurrently": "Concurrent"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster with accounts, traces and optional TLS."""
    folder = tmp_path_factory.mktemp("guarded")
    config = {"aclEnable": "true", "traceTopicEnable": "true"}
    cluster = secured_cluster(folder, "Permissive", config=config, replicas=1)
    cluster.up()
    cluster.user("writer", "sesame", defaultTopicPermission="PUB")
    cluster.user("reader", "sesame", defaultTopicPermission="SUB", defaultGroupPermission="SUB")
    yield cluster
    cluster.down()


@pytest.mark.long
def test_go_signs_and_traces(guarded: LocalCluster, go: Go) -> None:
    """The writer's account sends, the reader's consumes; others get the reason of the refusal."""
    check_accounts(guarded, go, tls=False)


@pytest.mark.long
def test_go_signs_and_traces_over_tls(guarded: LocalCluster, newest_go: Go) -> None:
    """The first version with TLS uses the same port as the others."""
    check_accounts(guarded, newest_go, tls=True)


def check_accounts(guarded: LocalCluster, go: Go, *, tls: bool) -> None:
    """Send and consume with accounts that have the right, and try it with others."""
    topic = guarded.topic("Normal")
    where = {"ns": guarded.name_server, "topic": topic, "tls": tls}
    sends = {**where, "count": 1, "retries": 0}
    consume = {"group": guarded.group(topic, "Concurrent"), "mode": "concurrently"}

    (ack,) = sent(go, **sends, ak="writer", sk="sesame", trace=True)
    heard = []
    for name, secret in (("reader", "sesame"), ("writer", "guessed"), ("", "")):
        with go.start("send", **sends, ak=name, sk=secret) as sender:
            sender.finish()
        heard.append([each["text"] for each in sender.of("failed")])
    done = got(go, **where, **consume, ak="reader", sk="sesame")

    assert [each["body"] for each in done] == ["key-0:0"]
    reasons = ("No default permission", "Check signature failed", "No accessKey is configured")
    assert [reason in text for (text,), reason in zip(heard, reasons, strict=True)] == [True] * 3
    guarded.environment |= {"ORDERLYMQ_ACCESS_KEY": "reader", "ORDERLYMQ_SECRET_KEY": "sesame"}
    try:
        assert "producer go-producers" in guarded.command("trace", ack["msgId"])
    finally:
        del guarded.environment["ORDERLYMQ_ACCESS_KEY"], guarded.environment["ORDERLYMQ_SECRET_KEY"]


def test_a_group_by_key_says_to_go_what_to_do(cluster: LocalCluster, go: Go) -> None:
    """The client's pulls are refused with a reason, which it logs; it gets no lock, and no message out of order."""
    topic = cluster.topic()
    group = cluster.group(topic, concurrency="Key")
    where = {"ns": cluster.name_server, "topic": topic}
    with go.start("send", **where, count=12, keys=3) as sender:
        sender.finish()

    wish = {"group": group, "seconds": 60, "mode": "concurrently", "log": "warn"}
    with go.start("consume", **where, **wish) as consumer:
        consumer.until(lambda program: any("consumes by key" in line for line in program.noise))
        refusals = [line for line in consumer.noise if "consumes by key" in line]
        assert consumer.of("deliver") == []
    assert f"group[{group}] consumes by key (concurrency: Key)" in refusals[0]
    assert (
        'consume with ordered="key" of the OrderlyMQ SDK, or set concurrency: Queue' in refusals[0]
    )

    with go.start("consume", **where, group=group, seconds=10) as consumer:
        assert [each["event"] for each in consumer.finish()] == ["started", "finished"]


def test_go_makes_a_topic_that_does_not_exist_with_two_name_servers(
    cluster: LocalCluster, go: Go
) -> None:
    """The client asks one name server for the topic and the next one for the template of new topics."""
    both = f"{cluster.name_server};127.0.0.1:{cluster.base + 1}"

    assert len(sent(go, ns=both, topic=fresh("made-by-go"), count=12, keys=3)) == 12


def test_go_keeps_the_queue_of_a_key_while_one_group_takes_no_sends(tmp_path: Path, go: Go) -> None:
    """An ordered topic is read-only at one group: sends of keys of its queues are refused, and no key moves."""
    cluster = LocalCluster(tmp_path, groups=2, replicas=1)
    where = {"ns": cluster.name_server, "topic": "by-tool"}

    def tried() -> tuple[dict[str, str], dict[str, str]]:
        with go.start("send", **where, count=24, keys=12) as sender:
            sender.finish()
        acks = {each["key"]: each["queue"] for each in sender.of("ack")}
        return acks, {each["key"]: each["text"] for each in sender.of("failed")}

    cluster.up()
    try:
        asyncio.run(_set_topic(cluster, "by-tool", {0: 6, 1: 6}))
        before, failed = tried()
        asyncio.run(_set_topic(cluster, "by-tool", {1: 4}))
        after, refused = tried()
    finally:
        cluster.down()

    kept = {key: queue for key, queue in before.items() if queue.startswith("clients-0:")}
    assert (len(before), failed) == (12, {})
    assert 0 < len(kept) < 12
    assert after == kept
    assert refused.keys() == before.keys() - kept.keys()
    assert all("topic[by-tool] has no write permission" in text for text in refused.values())


async def _set_topic(cluster: LocalCluster, topic: str, permissions: dict[int, int]) -> None:
    """Set an ordered topic at some groups as a tool does (17), and wait until the name server knows it."""
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
