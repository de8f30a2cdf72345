"""Apache's Java client uses TLS on the port that plain clients use."""

from collections.abc import Iterator

import pytest

from tests.clients.localcluster import LocalCluster, secured_cluster
from tests.clients.programs import Event, Java

pytestmark = [pytest.mark.java, pytest.mark.cluster, pytest.mark.timeout(240)]


@pytest.fixture(scope="module", params=["Permissive", "Enforcing"])
def secured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("secured")
    cluster = secured_cluster(folder, request.param)
    cluster.up()
    yield cluster
    cluster.down()


def send(cluster: LocalCluster, java: Java, topic: str) -> list[Event]:
    with java.start(
        "guarding", role="send", ns=cluster.name_server, topic=topic, count=4
    ) as program:
        return program.finish()


def test_java_speaks_tls_and_plain_as_the_policy_says(secured: LocalCluster, java: Java) -> None:
    """-Dtls.enable=true works under both policies; plain connections only if they are permitted."""
    topic = secured.topic("Normal")
    group = secured.group(topic, "Concurrent")
    speaking_tls = java.speaking("tls.enable=true")

    encrypted = send(secured, speaking_tls, topic)
    plain = send(secured, java, topic)
    expected = 8 if "Permissive" in secured.tls else 4
    with speaking_tls.start(
        "guarding",
        role="consume",
        ns=secured.name_server,
        topic=topic,
        group=group,
        expected=expected,
    ) as program:
        got = program.finish()

    assert len([e for e in encrypted if e["event"] == "ack"]) == 4
    assert len([e for e in plain if e["event"] == "ack"]) == expected - 4
    assert len([e for e in got if e["event"] == "done"]) == expected


@pytest.mark.long
def test_our_own_command_checks_the_authority(secured: LocalCluster) -> None:
    """The settings come from the environment, as in the SDK."""
    topic = secured.topic("Normal")

    assert "messageId" in secured.command("send", topic, "hello", "--output", "json")
