"""Apache's Java client signs its requests, and gets exactly the rights of its account."""

from collections.abc import Iterator

import pytest

from tests.clients.localcluster import LocalCluster
from tests.clients.programs import Event, Java

pytestmark = [pytest.mark.java, pytest.mark.cluster, pytest.mark.timeout(240)]

SECRET = "open sesame"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path_factory.mktemp("guarded"), config={"aclEnable": "true"})
    cluster.up()
    cluster.user("shop-writer", SECRET, defaultTopicPermission="PUB")
    cluster.user("shop-reader", SECRET, defaultTopicPermission="SUB", defaultGroupPermission="SUB")
    yield cluster
    cluster.down()


def send(cluster: LocalCluster, java: Java, topic: str, **more: object) -> list[Event]:
    with java.start(
        "guarding", role="send", ns=cluster.name_server, topic=topic, count=4, **more
    ) as program:
        return program.finish()


@pytest.mark.long
def test_each_account_may_do_what_its_manifest_says(guarded: LocalCluster, java: Java) -> None:
    """The writer can send and the reader can consume; other accounts can do neither, and get the reason."""
    topic = guarded.topic("Normal")
    group = guarded.group(topic, "Concurrent")

    sent = send(guarded, java, topic, ak="shop-writer", sk=SECRET)
    as_reader = send(guarded, java, topic, ak="shop-reader", sk=SECRET)
    with_wrong_secret = send(guarded, java, topic, ak="shop-writer", sk="guessed")
    unsigned = send(guarded, java, topic)
    with java.start(
        "guarding",
        role="consume",
        ns=guarded.name_server,
        topic=topic,
        group=group,
        ak="shop-reader",
        sk=SECRET,
        expected=4,
    ) as program:
        got = program.finish()

    assert len([e for e in sent if e["event"] == "ack"]) == 4
    assert sorted(e["body"] for e in got if e["event"] == "done") == ["0", "1", "2", "3"]
    texts = [
        [e["text"] + e["all"] for e in events if e["event"] == "refused"]
        for events in (as_reader, with_wrong_secret, unsigned)
    ]
    assert "No default permission for topic-" in texts[0][0]
    assert "Check signature failed for accessKey=shop-writer" in texts[1][0]
    assert "No accessKey is configured" in texts[2][0]


def test_accounts_survive_the_leader(guarded: LocalCluster, java: Java) -> None:
    """The next leader knows the accounts, and refuses strangers from its first request on."""
    topic = guarded.topic("Normal")
    guarded.kill_leader()
    guarded.leader()

    sent = send(guarded, java, topic, ak="shop-writer", sk=SECRET)
    stranger = send(guarded, java, topic, ak="stranger", sk=SECRET)

    assert len([e for e in sent if e["event"] == "ack"]) == 4
    assert "No acl config for stranger" in stranger[-2]["text"]


@pytest.mark.long
def test_the_command_line_signs_with_what_the_environment_says(guarded: LocalCluster) -> None:
    """A new right counts immediately; without credentials nothing is served."""
    topic = guarded.topic("Normal")
    guarded.environment = {"ORDERLYMQ_ACCESS_KEY": "shop-writer", "ORDERLYMQ_SECRET_KEY": SECRET}
    guarded.command("send", topic, "hello")
    guarded.environment = {}

    with pytest.raises(AssertionError, match="No accessKey is configured"):
        guarded.command("send", topic, "hello")
