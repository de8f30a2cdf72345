"""Apache Camel's component for RocketMQ: routes consume, reply and send."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.clients.localcluster import LocalCluster
from tests.clients.programs import Program, bodies, framework, missing

pytestmark = [
    pytest.mark.java,
    pytest.mark.cluster,
    pytest.mark.long,
    pytest.mark.timeout(240),
]

FOLDER: Final = Path(__file__).parent / "camel"
#: It has the client 5.3.0.
VERSION: Final = "4.8.0"


@pytest.fixture(scope="module", params=[VERSION])
def camel(request: pytest.FixtureRequest, cluster: LocalCluster) -> Iterator[Program]:
    reason = missing("java", "mvn")
    if reason:
        pytest.skip(reason)
    topics = (cluster.topic("Normal"), cluster.topic("Normal"), cluster.topic("Normal"))
    words = ("io.orderlymq.camel.Main", cluster.name_server, *topics)
    with Program(framework(FOLDER, request.param, *words)) as program:
        program.heard("ready", timeout_s=120)
        yield program


def test_routes_get_what_templates_send(camel: Program) -> None:
    """A route gets all messages, a route with tags only its own; a message key arrives as a header."""
    camel.heard("all", 3)

    assert set(bodies(camel.of("all"))) >= {"tagged", "keyed", "not waited for"}
    assert bodies(camel.heard("key")) == ["key-1"]
    assert bodies(camel.heard("tagged")) == ["tagged"]


def test_a_request_is_answered_through_a_reply_topic(camel: Program) -> None:
    """The component identifies replies by message keys."""
    assert bodies(camel.heard("answered")) == ["answer to question"]
