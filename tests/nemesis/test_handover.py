"""The clients whose hand-over is measured."""

from pathlib import Path

from orderlymq.oracle.history import Recorder
from tests.clients.programs import Java
from tests.nemesis.cluster import Cluster
from tests.nemesis.ground.ground import Loopback
from tests.nemesis.handover import REPLICAS, TARGETS, _clients


def test_java_consumers_are_killed_with_and_without_an_instance_name(tmp_path: Path) -> None:
    """Law: a client id that names no process is taken over as fast, so both are measured by their groups."""
    history = tmp_path / "history.jsonl"
    cluster = Cluster(tmp_path / "group", REPLICAS, Loopback())
    clients = _clients(
        tmp_path / "logs",
        cluster,
        Recorder(history, process="causes"),
        history,
        [Java("4.9.8"), Java("5.5.0")],
    )

    named: dict[str, list[bool]] = {}
    for client in clients.values():
        if client.group and client.java is not None:
            words = client._java(client.java)
            named.setdefault(client.group, []).append(f"instance={client.name}" in words)

    assert named == {
        "Java-4": [False, False],
        "Java-4-named": [True, True],
        "Java-5": [False, False],
        "Java-5-named": [True, True],
    }
    for group in named:
        assert f"consumer killed: {group.replace('-', ' ')} takes over" in TARGETS
