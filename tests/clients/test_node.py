"""ali-ons, the Node client, which sends raw numbers where others send strings, and does not answer brokers' requests."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.clients.localcluster import LocalCluster
from tests.clients.programs import Event, Program, bodies, consumed, options, survive

pytestmark = [pytest.mark.node, pytest.mark.cluster, pytest.mark.timeout(180)]

SECRET = "open sesame"


class Node:
    """Starts the programs of main.js with the common options of one test."""

    def __init__(self, folder: Path, **common: object) -> None:
        self._folder = folder
        self._common = common

    def start(self, program: str, **values: object) -> Program:
        words = options(**{**self._common, **values})
        return Program(["node", "main.js", program, *words], cwd=self._folder)

    def run(self, program: str, **values: object) -> list[Event]:
        with self.start(program, **values) as running:
            return running.finish()


def of(events: Iterable[Event], kind: str) -> list[Event]:
    return [each for each in events if each["event"] == kind]


def named(count: int) -> set[str]:
    """Return the bodies of *count* messages of one key."""
    return {f"key-0:{n}" for n in range(count)}


def test_node_sends_and_consumes(cluster: LocalCluster, node_folder: Path) -> None:
    """Messages with a sharding key use one queue per key, and all are consumed."""
    topic = cluster.topic()
    node = Node(node_folder, ns=cluster.name_server, topic=topic)

    acks = of(node.run("send", count=40, keys=5), "ack")
    got = node.run("consume", group=cluster.group(topic, "Concurrent"), expected=40)

    # Not for each key: the client loses the key of a message whose queue is 0.
    queues = {key: {e["queue"] for e in acks if e["key"] == key} for key in ("key-0", "key-4")}
    assert all(len(found) == 1 for found in queues.values())
    assert {e["body"] for e in of(got, "done")} == {f"key-{n % 5}:{n}" for n in range(40)}
    assert {(e["colour"], e["tags"], e["topic"]) for e in of(got, "done")} == {
        ("grün", "TagN", topic)
    }


def test_node_gets_what_is_large_or_waits(cluster: LocalCluster, node_folder: Path) -> None:
    """Bodies that the client compresses arrive whole, delayed messages not before their time."""
    topic = cluster.topic("Delay")
    node = Node(node_folder, ns=cluster.name_server, topic=topic)

    node.run("send", count=2, size=300_000)
    node.run("send", count=2, delay=1)
    got = of(node.run("consume", group=cluster.group(topic, "Concurrent"), expected=4), "done")

    assert sorted(e["size"] for e in got) == [7, 7, 300_000, 300_000]
    assert all(e["stored"] - e["born"] >= 1000 for e in got if e["size"] == 7)


def test_tags_and_sql_choose_what_node_gets(cluster: LocalCluster, node_folder: Path) -> None:
    topic = cluster.topic("Normal")
    node = Node(node_folder, ns=cluster.name_server, topic=topic)
    for tag in ("TagA", "TagB", "TagC"):
        node.run("send", count=3, tags=tag)

    def chosen(**expression: str) -> list[str]:
        got = node.run(
            "consume", group=cluster.group(topic, "Concurrent"), expected=6, **expression
        )
        return sorted(e["tags"] for e in of(got, "done"))

    assert chosen(tags="TagA || TagC") == ["TagA"] * 3 + ["TagC"] * 3
    assert chosen(sql="TAGS <> 'TagA'") == ["TagB"] * 3 + ["TagC"] * 3


def test_a_message_that_node_fails_comes_again_and_becomes_a_dead_letter(
    cluster: LocalCluster, node_folder: Path
) -> None:
    """Other messages are consumed meanwhile, and the offset passes all of them."""
    topic = cluster.topic("Normal")
    node = Node(node_folder, ns=cluster.name_server, topic=topic)
    node.run("send", count=6)
    group = cluster.group(topic, "Concurrent")

    with node.start("consume", group=group, fail=":3", max_reconsume=2) as consumer:
        consumer.heard("fail", 3)
        consumer.heard("done", 5)
        topic_of_letters = cluster.await_letters(group)
        dead_letters = {"topic": topic_of_letters, "group": f"{group}-dlq", "begin": "first"}
        dead = node.run("consume", **dead_letters, expected=1)
        got = consumer.stop()

    assert [(e["reconsume"], e["topic"]) for e in of(got, "fail")] == [(n, topic) for n in range(3)]
    assert bodies(of(dead, "done")) == ["key-0:3"]
    assert f"{group}: 0 members, lag 0" in cluster.command("group", "show", group)


def test_node_goes_on_where_it_stopped(cluster: LocalCluster, node_folder: Path) -> None:
    topic = cluster.topic("Normal")
    node = Node(node_folder, ns=cluster.name_server, topic=topic)
    member = {"group": cluster.group(topic, "Concurrent")}
    node.run("send", count=6)

    first = of(node.run("consume", **member, expected=6), "done")
    node.run("send", count=4, tags="TagLater")
    second = of(node.run("consume", **member, expected=4), "done")

    assert len(first) == 6
    assert [e["tags"] for e in second] == ["TagLater"] * 4


def test_every_broadcast_member_of_node_gets_everything(
    cluster: LocalCluster, node_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client keeps its offsets in its own file, and continues from there."""
    monkeypatch.setenv("HOME", str(tmp_path))
    topic = cluster.topic("Normal")
    group = cluster.group(topic, "Concurrent")
    node = Node(node_folder, ns=cluster.name_server, topic=topic, group=group, begin="first")
    node.run("send", count=6)

    for member in ("one", "two"):
        got = node.run("consume", model="broadcasting", instance=f"{topic}-{member}", expected=6)
        assert set(bodies(of(got, "done"))) == named(6)
    node.run("send", count=2, tags="TagLater")
    got = node.run("consume", model="broadcasting", instance=f"{topic}-one", expected=2)
    assert [e["tags"] for e in of(got, "done")] == ["TagLater"] * 2


def test_node_works_with_one_of_two_name_servers(cluster: LocalCluster, node_folder: Path) -> None:
    """The client works whichever name server it asks first, and with the list of an address server."""
    topic = cluster.topic("Normal")
    group = cluster.group(topic, "Concurrent")
    dead = f"127.0.0.1:{cluster.base + 9}"
    node = Node(node_folder, ns=f"{dead};{cluster.name_server}", topic=topic)

    node.run("send", count=2, addressed=True)
    node.run("send", ns=f"{cluster.name_server};{dead}", count=2)
    got = of(node.run("consume", group=group, expected=4), "done")

    assert len(got) == 4


def test_node_finds_the_topics_and_groups_of_its_namespace(
    cluster: LocalCluster, node_folder: Path
) -> None:
    """The client uses `NAMESPACE%NAME`, and its retries belong to the group of that name."""
    topic = cluster.topic("Normal")
    cluster.command("topic", "create", f"shop%{topic}", "--queues", "2")
    node = Node(node_folder, ns=cluster.name_server, topic=topic, namespace="shop")

    node.run("send", count=4)
    got = node.run("consume", group=f"group-of-{topic}", expected=4, fail=":2", times=1)

    assert {(e["body"], e["topic"]) for e in of(got, "done")} == {
        (body, f"shop%{topic}") for body in named(4)
    }
    assert "shop%group-of" in cluster.command("group", "list")


def test_an_ordered_group_says_to_node_what_to_do(cluster: LocalCluster, node_folder: Path) -> None:
    """The client has no ordered consumer: it gets no message out of order, and a refusal with the reason."""
    topic = cluster.topic()
    node = Node(node_folder, ns=cluster.name_server, topic=topic)
    node.run("send", count=4)

    with node.start("consume", group=cluster.group(topic)) as consumer:
        consumer.until(
            lambda program: any("is not locked" in e["text"] for e in program.of("error"))
        )
        assert consumer.of("deliver") == []


def test_what_node_sent_survives_the_leader(cluster: LocalCluster, node_folder: Path) -> None:
    """The client's program repeats a failed send; each acknowledged message is consumed."""
    topic = cluster.topic("Normal")
    group = cluster.group(topic, "Concurrent")
    node = Node(node_folder, ns=cluster.name_server, topic=topic)

    with (
        node.start("consume", group=group, seconds=170) as consumer,
        node.start("send", count=10**6, pause=5, retry=True) as sender,
    ):
        survive(cluster.kill_leader, sender)
        consumed(sender, consumer)


def test_nodes_share_queues_and_take_those_of_the_killed(
    cluster: LocalCluster, node_folder: Path
) -> None:
    """The client ignores notifications of changes: it checks at each rebalance, every 10 s by default."""
    topic = cluster.topic("Normal")
    group = cluster.group(topic, "Concurrent")
    node = Node(node_folder, ns=cluster.name_server, topic=topic)

    def queues(member: Program) -> int:
        return len({e["queue"] for e in member.of("done")[-12:]})

    with (
        node.start("consume", group=group, rebalance=500, seconds=120) as survivor,
        node.start("send", count=10**6, pause=5, retry=True) as sender,
    ):
        survivor.heard("done", 20)
        with node.start("consume", group=group, rebalance=500, seconds=120) as victim:
            victim.heard("done", 20)
            survivor.until(lambda _: queues(survivor) == queues(victim) == 2)
            victim.kill()
        survivor.until(lambda _: queues(survivor) == 4)
        consumed(sender, survivor, victim)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("guarded")
    cluster = LocalCluster(directory, config={"aclEnable": "true"}, replicas=1)
    cluster.up()
    cluster.user("writer", SECRET, defaultTopicPermission="PUB")
    cluster.user("reader", SECRET, defaultTopicPermission="SUB", defaultGroupPermission="SUB")
    yield cluster
    cluster.down()


def test_each_account_of_node_may_do_what_its_manifest_says(
    guarded: LocalCluster, node_folder: Path
) -> None:
    """The client signs numbers as it writes them; an account without the right gets the reason."""
    topic = guarded.topic("Normal")
    group = guarded.group(topic, "Concurrent")
    node = Node(node_folder, ns=guarded.name_server, topic=topic, sk=SECRET)

    sent = node.run("send", ak="writer", count=4)
    with node.start("send", ak="writer", sk="guessed", count=1) as stranger:
        stranger.heard("failed")
    got = node.run("consume", ak="reader", group=group, expected=4, fail=":2", times=1)

    assert len(of(sent, "ack")) == 4
    assert stranger.of("ack") == []
    assert set(bodies(of(got, "done"))) == named(4)
