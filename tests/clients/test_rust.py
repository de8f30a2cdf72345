"""The crate `rocketmq-client-rust`: push in order and concurrently, lite pull, transactions, all kinds of sends; 390 crates are compiled first."""

from collections.abc import Callable, Iterator

import pytest

from orderlymq.oracle.verdict import judge
from tests.clients.javaclient.test_java import by_queue, history
from tests.clients.localcluster import LocalCluster, secured_cluster
from tests.clients.programs import Event, Program, bodies, options
from tests.clients.test_cpp import check_a_lost_leader
from tests.clients.test_node import named, of

pytestmark = [
    pytest.mark.rust,
    pytest.mark.cluster,
    pytest.mark.long,
    pytest.mark.timeout(1800),
]

SECRET = "open sesame"
# The client does not notice a closed connection, so a pull there waits until its time-out.
PULL_TIME_OUT_S = 30

Rust = Callable[..., Program]


@pytest.fixture
def rust(rust_command: list[str], cluster: LocalCluster) -> Rust:
    return starter(rust_command, cluster)


def starter(command: list[str], cluster: LocalCluster, **common: object) -> Rust:
    def start(program: str, **values: object) -> Program:
        return Program(
            [*command, program, *options(**{"ns": cluster.name_server, **common, **values})]
        )

    return start


def run(program: Program) -> list[Event]:
    with program:
        return program.finish()


def test_rust_sends_and_consumes_in_order(cluster: LocalCluster, rust: Rust) -> None:
    """Messages with a sharding key are consumed per key in order; a suspended message holds its queue."""
    topic = cluster.topic()

    sent = run(rust("send", topic=topic, count=60, keys=6))
    consume = {"topic": topic, "group": cluster.group(topic), "expected": 60}
    got = run(rust("consume", **consume, fail="key-3:", times=1))

    verdict = judge(history(topic, sent, {"c1": got}))
    assert verdict.findings == ()
    assert verdict.counts["acknowledged"] == 60
    assert bodies(of(got, "fail")) == [f"key-3:{n}" for n in range(3, 60, 6)]
    assert {(e["colour"], e["tags"], e["keys"] == e["shardingKey"]) for e in of(got, "done")} == {
        ("grün", "TagR", True)
    }


@pytest.mark.parametrize("kind", ["sync", "async", "oneway", "batch"])
def test_rust_polls_what_it_sent(cluster: LocalCluster, rust: Rust, kind: str) -> None:
    """The lite pull consumer continues at the consumer group's offsets."""
    topic = cluster.topic("Normal")
    group = f"poll-{topic}"

    run(rust("send", topic=topic, count=8, kind=kind))
    got = run(rust("poll", topic=topic, group=group, expected=8))
    run(rust("send", topic=topic, count=9, kind=kind))
    more = run(rust("poll", topic=topic, group=group, expected=9))

    assert set(bodies(of(got, "polled"))) == named(8)
    assert sorted(bodies(of(more, "polled"))) == sorted(named(9))


def test_rust_gets_what_is_large_or_waits(cluster: LocalCluster, rust: Rust) -> None:
    """Bodies that the client compresses arrive whole, delayed ones not before their time."""
    topic = cluster.topic("Delay")

    run(rust("send", topic=topic, count=2, size=100_000))
    run(rust("send", topic=topic, count=2, delay=1))
    group = cluster.group(topic, "Concurrent")
    got = of(
        run(rust("consume", topic=topic, group=group, mode="concurrently", expected=4)), "done"
    )

    assert sorted(e["size"] for e in got) == [7, 7, 100_000, 100_000]
    assert all(e["stored"] - e["born"] >= 1000 for e in got if e["size"] == 7)


def test_tags_and_sql_choose_what_rust_gets(cluster: LocalCluster, rust: Rust) -> None:
    topic = cluster.topic("Normal")
    for tag in ("TagA", "TagB", "TagC"):
        run(rust("send", topic=topic, count=3, tags=tag))

    def chosen(**expression: str) -> set[str]:
        group = cluster.group(topic, "Concurrent")
        member = {"topic": topic, "group": group, "mode": "concurrently", "expected": 6}
        return {e["tags"] for e in of(run(rust("consume", **member, **expression)), "done")}

    assert chosen(tags="TagA || TagC") == {"TagA", "TagC"}
    assert chosen(sql="TAGS IN ('TagA', 'TagB') AND colour = 'grün'") == {"TagA", "TagB"}


def test_a_message_that_rust_fails_comes_again_and_becomes_a_dead_letter(
    cluster: LocalCluster, rust: Rust
) -> None:
    topic = cluster.topic("Normal")
    group = cluster.group(topic, "Concurrent")
    run(rust("send", topic=topic, count=4))

    member = {"topic": topic, "group": group, "mode": "concurrently", "max_reconsume": 2}
    with rust("consume", **member, fail=":2", seconds=60) as consumer:
        consumer.heard("fail", 3)
        got = consumer.stop()
    letters = cluster.await_letters(group)
    dead = run(rust("poll", topic=letters, group=f"letters-{topic}", expected=1))

    assert set(bodies(of(got, "done"))) == named(4) - {"key-0:2"}
    assert [e["reconsume"] for e in of(got, "fail")] == [0, 1, 2]
    assert bodies(of(dead, "polled")) == ["key-0:2"]


def test_transactions_of_rust_are_committed_rolled_back_and_asked_about(
    cluster: LocalCluster, rust: Rust
) -> None:
    """A third is committed, a third rolled back, and a third unknown until the broker checks."""
    topic = cluster.topic("Transaction")
    group = cluster.group(topic, "Concurrent")

    with rust("transact", topic=topic, count=6, group=f"deals-{topic}", seconds=60) as dealer:
        member = {"topic": topic, "group": group, "mode": "concurrently"}
        got = run(rust("consume", **member, expected=4, seconds=60))
        dealer.stop()

    assert sorted(bodies(of(got, "done"))) == [f"key-0:{n}" for n in (0, 2, 3, 5)]
    assert set(bodies(dealer.of("check"))) == {"key-0:2", "key-0:5"}


def test_every_broadcast_member_of_rust_gets_everything(cluster: LocalCluster, rust: Rust) -> None:
    topic = cluster.topic("Normal")
    group = cluster.group(topic, "Concurrent")
    member = {"topic": topic, "group": group, "mode": "concurrently", "model": "broadcasting"}

    with (
        rust("consume", **member, instance=f"{topic}-one") as one,
        rust("consume", **member, instance=f"{topic}-two") as two,
        rust("send", topic=topic, count=20) as sender,
    ):
        sender.finish()
        for each in (one, two):
            each.until(lambda program: set(bodies(program.of("done"))) == named(20))
            assert len(each.of("done")) == 20


def test_rust_works_with_one_of_two_name_servers(cluster: LocalCluster, rust: Rust) -> None:
    topic = cluster.topic("Normal")
    dead = f"127.0.0.1:{cluster.base + 9}"

    for both in (f"{dead};{cluster.name_server}", f"{cluster.name_server};{dead}"):
        sent = run(rust("send", ns=both, topic=topic, count=2))
        assert len(of(sent, "ack")) == 2


def test_rusts_share_queues_and_take_those_of_the_killed(cluster: LocalCluster, rust: Rust) -> None:
    topic = cluster.topic()
    group = cluster.group(topic)
    member = {"topic": topic, "group": group, "seconds": 170}

    def queues(program: Program) -> int:
        return len(by_queue(program.of("done")[-12:]))

    with (
        rust("consume", **member) as survivor,
        rust("send", topic=topic, count=10**6, keys=12, pause=5, retry=True) as sender,
    ):
        survivor.heard("done", 20)
        with rust("consume", **member) as victim:
            victim.heard("done", 100, timeout_s=60)
            survivor.until(lambda _: queues(survivor) == queues(victim) == 2, timeout_s=60)
            victim.kill()
        survivor.until(lambda _: queues(survivor) == 4, timeout_s=100)
        sender.kill()
        sent = {f"{e['key']}:{e['body']}" for e in sender.of("ack")}
        survivor.until(lambda _: sent <= {*bodies(survivor.of("done")), *bodies(victim.of("done"))})
        verdict = judge(history(topic, sender.events, {"s": survivor.events, "v": victim.events}))
        assert verdict.findings == ()


def test_order_and_messages_of_rust_survive_the_leader(cluster: LocalCluster, rust: Rust) -> None:
    """A send whose answer is lost may be stored twice: the API takes messages by value, so a retry is a new message."""
    check_a_lost_leader(cluster, rust, timeout_s=3 * PULL_TIME_OUT_S)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster with accounts and optional TLS."""
    folder = tmp_path_factory.mktemp("guarded")
    cluster = secured_cluster(folder, "Permissive", config={"aclEnable": "true"}, replicas=1)
    cluster.up()
    cluster.user("writer", SECRET, defaultTopicPermission="PUB")
    cluster.user("reader", SECRET, defaultTopicPermission="SUB", defaultGroupPermission="SUB")
    yield cluster
    cluster.down()


@pytest.mark.parametrize("way", ["plain", "TLS"])
def test_each_account_of_rust_may_do_what_its_manifest_says(
    guarded: LocalCluster, rust_command: list[str], way: str
) -> None:
    topic = guarded.topic()
    common = {"ca": guarded.environment["ORDERLYMQ_TLS_CA"]} if way == "TLS" else {}
    rust = starter(rust_command, guarded, topic=topic, **common)

    sent = run(rust("send", count=4, kind="sync", ak="writer", sk=SECRET))
    stranger = run(rust("send", count=1, kind="sync", ak="writer", sk="guessed"))
    got = run(rust("consume", group=guarded.group(topic), expected=4, ak="reader", sk=SECRET))

    assert len(of(sent, "ack")) == 4
    assert (len(of(stranger, "failed")), of(stranger, "ack")) == (1, [])
    assert set(bodies(of(got, "done"))) == named(4)
