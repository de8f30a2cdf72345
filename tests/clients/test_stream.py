"""Alibaba's binder for Spring Cloud Stream: bindings of each kind send, and functions at bindings print."""

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

FOLDER: Final = Path(__file__).parent / "stream"
#: It has the client 5.3.1.
VERSION: Final = "2023.0.3.3"


@pytest.fixture(scope="module", params=[VERSION])
def stream(request: pytest.FixtureRequest, cluster: LocalCluster) -> Iterator[Program]:
    reason = missing("java", "mvn")
    if reason:
        pytest.skip(reason)
    topics = (cluster.topic("Ordered"), cluster.topic("Normal"))
    words = ("io.orderlymq.stream.Main", cluster.name_server, *topics)
    with Program(framework(FOLDER, request.param, *words)) as program:
        program.heard("ready", timeout_s=120)
        yield program


def test_an_orderly_binding_gets_each_key_in_order(stream: Program) -> None:
    """Messages that a queue selector sent arrive in order; a message that fails comes again before its successors."""
    got = bodies(stream.heard("in-order", 12))

    assert bodies(stream.of("failed"))[:1] == ["key-1:4"]
    for key in range(3):
        of_key = [body for body in got if body.startswith(f"key-{key}:")]
        assert of_key == [f"key-{key}:{n}" for n in range(key, 12, 3)]


def test_what_fails_or_waits_reaches_a_binding_later(stream: Program) -> None:
    """One message is delayed, and one fails at its first attempt."""
    stream.until(lambda program: {"delayed", "fails once"} <= set(bodies(program.of("all"))))


def test_subscriptions_choose_what_a_binding_gets(stream: Program) -> None:
    """Messages are selected by tags and by SQL."""
    assert bodies(stream.heard("tagged")) == ["red one"]
    assert bodies(stream.heard("priced")) == ["priced"]
