"""Apache's starter for Spring Boot: one program sends with each method of the template, and listeners of each kind print."""

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

FOLDER: Final = Path(__file__).parent / "spring"
#: 2.2.3 has the client 5.0.0; 2.3.4, the newest, has 5.3.2.
VERSIONS: Final = ("2.2.3", "2.3.4")
#: The messages to the plain topic, one for each method, and those of the three transactions that become visible.
PLAIN: Final = {
    *("converted", "synchronous", "oneway", "asynchronous", "priced", "delayed", "timed"),
    *("first of batch", "second of batch", "COMMIT", "UNKNOWN"),
}


@pytest.fixture(scope="module", params=VERSIONS)
def spring(
    request: pytest.FixtureRequest, cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Program]:
    reason = missing("java", "mvn")
    if reason:
        pytest.skip(reason)
    version = request.param
    # A broadcast group keeps its offsets there; other runs use topics of the same names.
    home = tmp_path_factory.mktemp("home")
    topics = (cluster.topic("Ordered"), cluster.topic("Normal"), cluster.topic("Normal"))
    words = (f"-Duser.home={home}", "io.orderlymq.spring.Main", cluster.name_server, *topics)
    with Program(framework(FOLDER, version, *words)) as program:
        program.heard("ready", timeout_s=120)
        yield program


def test_template_sends_reach_listeners(spring: Program) -> None:
    """Each kind of send arrives once at a consumer group, at a broadcast listener and at a lite pull consumer."""
    for listener in ("all", "broadcast", "pulled"):
        assert sorted(bodies(spring.heard(listener, len(PLAIN)))) == sorted(PLAIN), listener
    assert bodies(spring.of("sent")) == ["SEND_OK"]


def test_an_orderly_listener_gets_each_key_in_order(spring: Program) -> None:
    """A listener that throws gets the same message again before later ones."""
    got = bodies(spring.heard("in-order", 12))

    assert bodies(spring.of("failed")) == ["key-1:4"]
    for key in range(3):
        of_key = [body for body in got if body.startswith(f"key-{key}:")]
        assert of_key == [f"key-{key}:{n}" for n in range(key, 12, 3)]


def test_selectors_choose_what_a_listener_gets(spring: Program) -> None:
    """Messages are selected by tags and by SQL."""
    assert sorted(bodies(spring.heard("tagged", 2))) == ["converted", "oneway"]
    assert bodies(spring.heard("priced")) == ["priced"]


def test_transactions_are_committed_rolled_back_and_asked_about(spring: Program) -> None:
    """One transaction commits, one rolls back, and one is unknown until a check."""
    assert bodies(spring.heard("checked")) == ["UNKNOWN"]
    spring.until(lambda program: "UNKNOWN" in bodies(program.of("all")))
    assert "ROLLBACK" not in bodies(spring.of("all"))


def test_a_reply_listener_answers_a_request(spring: Program) -> None:
    """The callback of `sendAndReceive` gets the value that the reply listener returned."""
    assert bodies(spring.heard("answered")) == ["answer to question"]
