"""Apache's C++ client in the wheel `rocketmq`: orderly and concurrent consumers, pulls, all kinds of sends."""

from collections.abc import Callable, Iterator

import pytest

from orderlymq.oracle.verdict import Defect, judge
from tests.clients.javaclient.test_java import by_queue, history
from tests.clients.localcluster import LocalCluster
from tests.clients.programs import Event, Program, bodies, consumed, options, survive
from tests.clients.test_node import named, of

pytestmark = [pytest.mark.cpp, pytest.mark.cluster, pytest.mark.timeout(180)]

SECRET = "open sesame"
# The client does not notice a closed connection, so a pull there waits until its time-out.
PULL_TIME_OUT_S = 30

Cpp = Callable[..., Program]


@pytest.fixture
def cpp(cpp_command: list[str], cluster: LocalCluster) -> Cpp:
    return starter(cpp_command, cluster)


def starter(command: list[str], cluster: LocalCluster) -> Cpp:
    def start(program: str, **values: object) -> Program:
        return Program([*command, program, *options(**{"ns": cluster.name_server, **values})])

    return start


def run(program: Program) -> list[Event]:
    with program:
        return program.finish()


def test_cpp_sends_and_consumes_in_order(cluster: LocalCluster, cpp: Cpp) -> None:
    """Messages sent with a selector are consumed per key in order; a suspended message holds its queue."""
    topic = cluster.topic()

    sent = run(cpp("send", topic=topic, count=60, keys=6))
    consume = {"topic": topic, "group": cluster.group(topic), "expected": 60}
    got = run(cpp("consume", **consume, fail="key-3:", times=1))

    verdict = judge(history(topic, sent, {"c1": got}))
    assert verdict.findings == ()
    assert verdict.counts["acknowledged"] == 60
    assert bodies(of(got, "fail")) == [f"key-3:{n}" for n in range(3, 60, 6)]
    assert {(e["colour"], e["tags"]) for e in of(got, "done")} == {("grün", "TagP")}


@pytest.mark.parametrize("kind", ["sync", "async", "oneway"])
def test_cpp_pulls_what_it_sent(cluster: LocalCluster, cpp: Cpp, kind: str) -> None:
    topic = cluster.topic("Normal")

    run(cpp("send", topic=topic, count=8, kind=kind))
    got = run(cpp("pull", topic=topic, group=f"pull-{topic}"))

    assert set(bodies(of(got, "pulled"))) == named(8)


def test_cpp_gets_what_is_large_or_waits(cluster: LocalCluster, cpp: Cpp) -> None:
    """Bodies that the client compresses arrive whole, delayed ones not before their time; tags select messages."""
    topic = cluster.topic("Delay")
    member = {"topic": topic, "mode": "concurrently"}

    run(cpp("send", topic=topic, count=2, size=100_000, tags="Large"))
    run(cpp("send", topic=topic, count=2, delay=1))
    group = cluster.group(topic, "Concurrent")
    got = of(run(cpp("consume", **member, group=group, expected=4)), "done")
    group = cluster.group(topic, "Concurrent")
    large = of(
        run(cpp("consume", **member, group=group, expected=2, tags="Large || Other")), "done"
    )

    assert sorted(e["size"] for e in got) == [7, 7, 100_000, 100_000]
    assert all(e["stored"] - e["born"] >= 1000 for e in got if e["size"] == 7)
    assert [e["size"] for e in large] == [100_000] * 2


def test_a_message_that_cpp_fails_comes_again(cluster: LocalCluster, cpp: Cpp) -> None:
    """All messages of the same pull come again, because the client sends these back, too."""
    topic = cluster.topic("Normal")
    group = cluster.group(topic, "Concurrent")
    run(cpp("send", topic=topic, count=4))

    member = {"topic": topic, "group": group, "mode": "concurrently"}
    with cpp("consume", **member, fail=":2", times=2) as consumer:
        consumer.until(lambda program: set(bodies(program.of("done"))) == named(4))
        got = consumer.stop()

    assert [(e["reconsume"], e["topic"]) for e in of(got, "fail")] == [(0, topic), (1, topic)]


def test_every_broadcast_member_of_cpp_gets_everything(cluster: LocalCluster, cpp: Cpp) -> None:
    """The client begins at the end of a topic, so a first message shows that a member is ready."""
    topic = cluster.topic("Normal", queues=1)
    group = cluster.group(topic, "Concurrent")
    member = {"topic": topic, "group": group, "mode": "concurrently", "model": "broadcasting"}

    with (
        cpp("consume", **member, instance=f"{topic}-one") as one,
        cpp("consume", **member, instance=f"{topic}-two") as two,
        cpp("send", topic=topic, count=10**6, pause=20),
    ):
        for each in (one, two):
            each.heard("done", 20)
        first = max(each.of("done")[0]["offset"] for each in (one, two))
        for each in (one, two):
            offsets = [e["offset"] for e in each.of("done") if e["offset"] >= first]
            assert sorted(offsets) == list(range(first, first + len(offsets)))


def test_cpp_works_with_one_of_two_name_servers(cluster: LocalCluster, cpp: Cpp) -> None:
    topic = cluster.topic("Normal")
    dead = f"127.0.0.1:{cluster.base + 9}"

    for both in (f"{dead};{cluster.name_server}", f"{cluster.name_server};{dead}"):
        sent = run(cpp("send", ns=both, topic=topic, count=2))
        assert len(of(sent, "ack")) == 2


def test_cpps_share_queues_take_those_of_the_killed_and_go_where_a_reset_sends_them(
    cluster: LocalCluster, cpp_command: list[str], cpp: Cpp
) -> None:
    """The client's ids do not end with a process id, so these programs connect only to OrderlyMQ."""
    topic = cluster.topic()
    group = cluster.group(topic)
    member = {"topic": topic, "group": group, "seconds": 120}
    quiet = starter(["sh", "-c", 'exec "$@" </dev/null', "sh", *cpp_command], cluster)

    def queues(program: Program) -> int:
        return len(by_queue(program.of("done")[-12:]))

    with (
        quiet("consume", **member, instance=f"{topic}-survivor") as survivor,
        cpp("send", topic=topic, count=10**6, keys=12, pause=5, retry=True) as sender,
    ):
        survivor.heard("done", 20)
        with quiet("consume", **member, instance=f"{topic}-victim") as victim:
            # The broker identifies its process a moment after it connects.
            victim.heard("done", 100, timeout_s=60)
            survivor.until(lambda _: queues(survivor) == queues(victim) == 2)
            victim.kill()
        survivor.until(lambda _: queues(survivor) == 4, timeout_s=45)
        sender.kill()
        sent = {f"{e['key']}:{e['body']}" for e in sender.of("ack")}
        survivor.until(lambda _: sent <= {*bodies(survivor.of("done")), *bodies(victim.of("done"))})
        verdict = judge(history(topic, sender.events, {"s": survivor.events, "v": victim.events}))
        assert verdict.findings == ()

        before = len(survivor.of("done"))
        cluster.command("group", "reset", group, "--topic", topic, "--to", "earliest")
        survivor.until(lambda _: sent <= set(bodies(survivor.of("done")[before:])))


@pytest.mark.long
def test_order_and_messages_of_cpp_survive_the_leader(cluster: LocalCluster, cpp: Cpp) -> None:
    """A send whose answer is lost with the leader may be stored twice, because the client gives each try its own id."""
    check_a_lost_leader(cluster, cpp, timeout_s=2 * PULL_TIME_OUT_S)


def check_a_lost_leader(cluster: LocalCluster, start: Cpp, *, timeout_s: float) -> None:
    """Check that order and messages survive the leader, for a client whose repeated sends may be stored twice."""
    topic = cluster.topic()
    group = cluster.group(topic)

    with (
        start("consume", topic=topic, group=group, seconds=170) as consumer,
        start("send", topic=topic, count=10**6, keys=12, pause=5, retry=True) as sender,
    ):
        survive(cluster.kill_leader, sender)
        sent = consumed(sender, consumer, timeout_s=timeout_s)
        got = consumer.stop()

    verdict = judge(history(topic, sent, {"c1": got}))
    assert {finding.defect for finding in verdict.findings} <= {Defect.DUPLICATED}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("guarded")
    cluster = LocalCluster(directory, config={"aclEnable": "true"}, replicas=1)
    cluster.up()
    cluster.user("writer", SECRET, defaultTopicPermission="PUB")
    cluster.user("reader", SECRET, defaultTopicPermission="SUB", defaultGroupPermission="SUB")
    yield cluster
    cluster.down()


def test_each_account_of_cpp_may_do_what_its_manifest_says(
    guarded: LocalCluster, cpp_command: list[str]
) -> None:
    topic = guarded.topic()
    cpp = starter(cpp_command, guarded)

    sent = run(cpp("send", topic=topic, count=4, kind="sync", ak="writer", sk=SECRET))
    stranger = run(cpp("send", topic=topic, count=1, kind="sync", ak="writer", sk="guessed"))
    member = {"topic": topic, "group": guarded.group(topic), "expected": 4}
    got = run(cpp("consume", **member, ak="reader", sk=SECRET))

    assert len(of(sent, "ack")) == 4
    assert (len(of(stranger, "failed")), of(stranger, "ack")) == (1, [])
    assert set(bodies(of(got, "done"))) == named(4)
