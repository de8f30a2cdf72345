"""Replicas of a cluster on one machine: they are added, removed, get new settings, and die."""

import json
import os
import signal
from pathlib import Path

import pytest

from orderlymq_operator.local import keeper
from orderlymq_operator.local.directory import DataDirectory
from orderlymq_operator.resources.manifests.reader import parse
from tests.operator.local.manifests import text
from tests.operator.local.supervision import (
    apply,
    group_of,
    leader_pid,
    probes,
    running,
    running_leader_pid,
    shared_of,
    until,
)
from tests.runtime.certificates import make_authority, make_certificate

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.usefixtures("stub_brokers"),
    pytest.mark.timeout(60),
]


async def test_replicas_are_added_and_removed_one_by_one(
    directory: DataDirectory, ports: int
) -> None:
    """Law: replicas go from 3 to 5 and back one by one; the data of removed ones is set aside."""
    async with running(directory, ports) as supervisor:
        await apply(supervisor, text(ports, replicas=5))
        assert shared_of(directory)["voters"] == [1, 2, 3, 4, 5]
        # From now on a replica that starts without its data waits for the others.
        settings = [directory.settings(f"demo-0-{node}").read_text() for node in range(1, 6)]
        assert [(each["join"], len(each["peers"])) for each in map(json.loads, settings)] == (
            [(True, 5)] * 5
        )

        await apply(supervisor, text(ports))

        assert shared_of(directory)["voters"] == [1, 2, 3]
        removed = sorted(path.name for path in (directory.path / "removed").iterdir())
        assert removed == ["demo-0-4.1", "demo-0-5.1"]
        assert [item["node"] for item in group_of(supervisor)["replicas"]] == [1, 2, 3]


async def test_a_replica_leaves_the_disk_before_the_memory(
    directory: DataDirectory, ports: int
) -> None:
    """Law: a removal is saved before it takes effect; if it cannot be saved (full disk) it is a problem and is tried
    again.
    """
    file = directory.path / "cluster.json"
    async with running(directory, ports, replicas=5) as supervisor:
        await supervisor.apply(parse(text(ports), "test.yaml"), prune=False)
        file.unlink()
        file.mkdir()
        await until(lambda: "cluster.json" in str(supervisor.snapshot()["problem"]))

        assert [item["node"] for item in group_of(supervisor)["replicas"]] == [1, 2, 3, 4, 5]
        file.rmdir()
        await until(lambda: supervisor.settled)

        found = directory.load()
        assert found is not None
        assert found.replicas == {"demo-0": dict.fromkeys((1, 2, 3), False)}


async def test_a_replica_that_leaves_never_begins_its_group_again(
    directory: DataDirectory, ports: int
) -> None:
    """Law: before a leaving replica's data is set aside, the disk says that it would join,
    so a crash cannot found a second group.
    """
    removed = directory.path / "removed"
    async with running(directory, ports, replicas=5) as supervisor:
        removed.rmdir()
        removed.write_text("no folder")
        await supervisor.apply(parse(text(ports), "test.yaml"), prune=False)
        await until(lambda: "stop replica" in str(supervisor.snapshot()["problem"]))

        found = directory.load()
        assert found is not None
        assert found.replicas == {"demo-0": {**dict.fromkeys((1, 2, 3, 4), False), 5: True}}
        removed.unlink()
        removed.mkdir()
        await until(lambda: supervisor.settled)


async def test_a_new_replica_leaves_the_others_what_they_run_with(
    directory: DataDirectory, ports: int, tmp_path: Path
) -> None:
    """Law: a new replica does not change how running ones are called (TLS or plain) before their restart."""
    files = make_certificate(make_authority(tmp_path / "tls"), "replica")

    def secured(mode: str, replicas: int) -> str:
        tls = f"{{mode: {mode}, certificateFile: {files.certificate}, keyFile: {files.key}}}"
        return text(ports, replicas=replicas).replace(
            "replicasPerGroup", f"tls: {tls}\n  replicasPerGroup"
        )

    async with running(directory, ports) as supervisor:
        await apply(supervisor, secured("Permissive", 3))
        await supervisor.apply(parse(secured("Disabled", 5), "test.yaml"), prune=False)
        await until(lambda: len(group_of(supervisor)["replicas"]) == 4)

        for node in (1, 2, 3):
            said = json.loads(directory.settings(f"demo-0-{node}").read_text())
            assert (said["tls"]["mode"], len(said["peers"])) == ("permissive", 4)
        await until(lambda: supervisor.settled)


async def test_changed_settings_reach_every_replica_one_after_the_other(
    directory: DataDirectory, ports: int
) -> None:
    """Law: changed settings reach all replicas by a rolling restart, one after the other."""
    async with running(directory, ports) as supervisor:
        changed = text(ports).replace(
            "replicasPerGroup", "lock: {leaseSeconds: 40}\n  replicasPerGroup"
        )

        await apply(supervisor, changed)

        texts = [event["text"] for event in supervisor.snapshot()["events"]]
        restarts = [item for item in texts if item.startswith("restart replica")]
        assert len(restarts) == len(set(restarts)) == 3
        for node in (1, 2, 3):
            file = directory.settings(f"demo-0-{node}")
            assert json.loads(file.read_text())["timers"]["lock_lease_ms"] == 40_000


async def test_live_settings_reach_every_replica_without_a_restart(
    directory: DataDirectory, ports: int
) -> None:
    """Law: live settings are written to all replicas' files without a restart."""
    async with running(directory, ports) as supervisor:
        before = [item["pid"] for item in group_of(supervisor)["replicas"]]
        changed = text(ports).replace(
            "replicasPerGroup", "config: {maxMessageSize: 1Mi}\n  replicasPerGroup"
        )

        steps = await apply(supervisor, changed)

        def said(node: int) -> int:
            file = directory.settings(f"demo-0-{node}")
            found: int = json.loads(file.read_text())["storage"]["body_size_max"]
            return found

        await until(lambda: [said(node) for node in (1, 2, 3)] == [1 << 20] * 3)
        assert steps == ["config.maxMessageSize changes from 4Mi to 1Mi, without a restart"]
        assert [item["pid"] for item in group_of(supervisor)["replicas"]] == before


async def test_a_file_that_cannot_be_written_ends_no_process_and_is_written_later(
    directory: DataDirectory, ports: int
) -> None:
    """Law: a settings file that cannot be written (full disk) ends no process; it is a problem, and is written later."""
    changed = text(ports).replace(
        "replicasPerGroup", "config: {maxMessageSize: 1Mi}\n  replicasPerGroup"
    )
    file = directory.settings("demo-0-2")
    async with running(directory, ports) as supervisor:
        before = [item["pid"] for item in group_of(supervisor)["replicas"]]
        file.unlink()
        file.mkdir()

        await supervisor.apply(parse(changed, "test.yaml"), prune=False)
        await until(lambda: str(file) in str(supervisor.snapshot()["problem"]))
        file.rmdir()
        await until(lambda: file.exists() and supervisor.snapshot()["problem"] is None)

        assert json.loads(file.read_text())["storage"]["body_size_max"] == 1 << 20
        assert [item["pid"] for item in group_of(supervisor)["replicas"]] == before


@pytest.mark.parametrize("process", ["demo-0-1", "name-server-0"])
async def test_what_was_stopped_for_a_restart_that_failed_is_started_whatever_is_wanted_by_then(
    directory: DataDirectory, ports: int, process: str
) -> None:
    """Law: a process that was stopped for a failed restart is started again, even if the change was withdrawn meanwhile."""
    changed = text(ports, replicas=1).replace(
        "replicasPerGroup", "config: {logLevel: DEBUG}\n  replicasPerGroup"
    )
    file = directory.settings(process)
    async with running(directory, ports, replicas=1) as supervisor:
        file.unlink()
        file.mkdir()
        await supervisor.apply(parse(changed, "test.yaml"), prune=False)
        await until(lambda: "cannot restart" in str(supervisor.snapshot()["problem"]))

        await supervisor.apply(parse(text(ports, replicas=1), "test.yaml"), prune=False)
        file.rmdir()
        await until(lambda: supervisor.settled)

        snapshot = supervisor.snapshot()
        found = [*snapshot["nameServers"], *snapshot["groups"][0]["replicas"]]
        assert all(each["pid"] for each in found)


async def test_changed_settings_reach_name_servers_too(
    directory: DataDirectory, ports: int
) -> None:
    """Law: changed settings also restart name servers; the forecast says so, and before that nothing counts as effective."""
    async with running(directory, ports) as supervisor:
        (before,) = supervisor.snapshot()["nameServers"]
        changed = text(ports).replace(
            "replicasPerGroup", "config: {logLevel: DEBUG}\n  replicasPerGroup"
        )

        said = await supervisor.forecast(parse(changed, "test.yaml"), prune=False)
        await apply(supervisor, changed)

        assert "nameserver/0" in said.targets("Restarts")
        (after,) = supervisor.snapshot()["nameServers"]
        assert before["pid"] != after["pid"]
        assert json.loads(directory.settings("name-server-0").read_text())["log_level"] == "DEBUG"


async def test_a_killed_leader_is_replaced_and_comes_back(
    directory: DataDirectory, ports: int
) -> None:
    """Law: after SIGKILL of the leader another replica leads, and the killed one comes back."""
    async with running(directory, ports) as supervisor:
        first = running_leader_pid(supervisor)

        os.kill(first, signal.SIGKILL)
        await until(lambda: "SIGKILL" in str(supervisor.snapshot()["events"]))
        await until(
            lambda: (
                all(item["pid"] and item["role"] for item in group_of(supervisor)["replicas"])
                and group_of(supervisor)["leader"] is not None
            )
        )

        assert first not in [item["pid"] for item in group_of(supervisor)["replicas"]]
        assert sum(item["restarts"] for item in group_of(supervisor)["replicas"]) == 1


async def test_a_stopped_leader_does_not_hold_the_port_for_ever(
    directory: DataDirectory, ports: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: after SIGSTOP the leader is found by /healthz, killed and replaced."""
    monkeypatch.setattr(keeper, "PROBE_INTERVAL_S", 0.1)
    monkeypatch.setattr(keeper, "PROBE_TIMEOUT_S", 0.3)
    async with running(directory, ports) as supervisor:
        await until(lambda: probes(directory) >= [2, 2, 2])
        first = running_leader_pid(supervisor)

        os.kill(first, signal.SIGSTOP)
        await until(lambda: "does not answer /healthz" in str(supervisor.snapshot()["events"]))
        await until(lambda: leader_pid(supervisor) not in {None, first})
