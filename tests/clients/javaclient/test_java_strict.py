"""Apache's Java client under the profile Strict: only TLS and accounts, with signed administration."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from orderlymq.oracle.verdict import judge
from tests.clients.javaclient.test_java import history
from tests.clients.localcluster import LocalCluster, secured_cluster
from tests.clients.programs import Event, Java, consumed, survive

pytestmark = [pytest.mark.java, pytest.mark.cluster, pytest.mark.timeout(240)]

SECRET = "open sesame"
ACCOUNT = {"ak": "shopper", "sk": SECRET}


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("strict")
    rules = {
        "aclEnable": "true",
        "autoCreateTopicEnable": "false",
        "signedAdministration": "true",
    }
    cluster = secured_cluster(folder, "Enforcing", config=rules)
    cluster.up()
    yield cluster
    cluster.down()


@pytest.mark.long
def test_under_strict_order_is_kept_through_a_lost_leader(strict: LocalCluster, java: Java) -> None:
    """An account with rights for its topic and its consumer group sends and consumes in order over TLS."""
    topic = strict.topic()
    group = strict.group(topic)
    rights = {
        "topics": json.dumps([{"name": topic, "permission": "PUB|SUB"}]),
        "groups": json.dumps([{"name": group, "permission": "SUB"}]),
    }
    strict.user("shopper", SECRET, **rights)
    over_tls = java.speaking("tls.enable=true")
    common = {"ns": strict.name_server, "topic": topic, **ACCOUNT}

    with over_tls.start("consume", **common, group=group, seconds=220) as consumer:
        consumer.heard("started")
        send = {**common, "count": 10**6, "keys": 12, "pause": 5, "retry": True}
        with over_tls.start("send", **send) as sender:
            survive(strict.kill_leader, sender)
            sent = consumed(sender, consumer)
        got = consumer.stop()

    assert judge(history(topic, sent, {"c1": got})).findings == ()


def test_under_strict_nobody_else_is_served(strict: LocalCluster, java: Java) -> None:
    """Refused are a client without TLS, one without an account, and one without the right."""
    topic = strict.topic()
    strict.user("shop-guest", SECRET)
    over_tls = java.speaking("tls.enable=true")

    plain = _send(java, strict, topic, ak="shop-guest", sk=SECRET)
    unsigned = _send(over_tls, strict, topic)
    without_right = _send(over_tls, strict, topic, ak="shop-guest", sk=SECRET)

    assert [e for e in (*plain, *unsigned, *without_right) if e["event"] == "ack"] == []
    assert "No accessKey is configured" in _refusals(unsigned)
    assert f"No default permission for topic-{topic}" in _refusals(without_right)


def _send(java: Java, cluster: LocalCluster, topic: str, **account: str) -> list[Event]:
    with java.start(
        "guarding", role="send", ns=cluster.name_server, topic=topic, count=1, **account
    ) as program:
        return program.finish()


def _refusals(events: list[Event]) -> str:
    return " ".join(e["text"] + e["all"] for e in events if e["event"] == "refused")


@pytest.mark.long
def test_under_strict_mqadmin_shows_and_changes_nothing(
    strict: LocalCluster, java: Java, tmp_path: Path
) -> None:
    """An administrator's account can show everything over TLS; a change needs more than RocketMQ's signature."""
    topic = strict.topic()
    strict.user("shop-admin", SECRET, admin="true")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "tools.yml").write_text(f"accessKey: shop-admin\nsecretKey: {SECRET}\n")
    for name in ("logback_tools.xml", "rmq.tools.logback.xml"):
        (tmp_path / "conf" / name).write_text("<configuration/>\n")
    admin = java.speaking("tls.enable=true", f"rocketmq.home.dir={tmp_path}")

    listed = admin.admin(strict.name_server, "topicStatus", "-t", topic)
    refused = admin.admin(strict.name_server, "deleteTopic", "-c", "clients", "-t", topic)

    assert len([line for line in listed.splitlines() if line.startswith("clients-0")]) == 4
    assert "needs a signature of version 2" in refused
    assert "clients-0" in admin.admin(strict.name_server, "topicStatus", "-t", topic)
