import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from orderlymq_operator.local import keeper, session
from orderlymq_operator.local.directory import DataDirectory
from orderlymq_operator.local.errors import RefusedError
from orderlymq_operator.local.supervisor import RefusedChange, Supervisor
from orderlymq_operator.plan.descriptions import describe
from orderlymq_operator.resources.manifests.reader import Manifest, ManifestError, parse
from tests.operator.local.manifests import manifests, normal_topic, text
from tests.runtime.certificates import make_authority, make_certificate

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.usefixtures("stub_brokers"),
    pytest.mark.timeout(60),
]

_PATIENCE_S = 30.0


@asynccontextmanager
async def _running(
    directory: DataDirectory, port: int | None, *, replicas: int = 3
) -> AsyncIterator[Supervisor]:
    """Supervise until the block ends; nothing may be left then."""
    found = manifests(port, replicas=replicas) if port is not None else []
    with session.prepared(directory, found) as state:
        supervisor = Supervisor(directory, state)
        task = asyncio.create_task(supervisor.run())
        try:
            await _until(lambda: supervisor.settled)
            yield supervisor
        finally:
            supervisor.stop()
            await task
    assert directory.run_records() == []


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - it waits for other processes
            await asyncio.sleep(0.02)


def _probes(directory: DataDirectory) -> list[int]:
    """Return the number of probes of each replica, the fewest first; the second is asked after the first answer."""
    return sorted(path.stat().st_size for path in directory.path.rglob("PROBES"))


def _group(supervisor: Supervisor) -> dict[str, Any]:
    found: dict[str, Any] = supervisor.snapshot()["groups"][0]
    return found


def _leader_pid(supervisor: Supervisor) -> int | None:
    """The process that leads; None while none is known, or the known one has ended."""
    group = _group(supervisor)
    pids = (item["pid"] for item in group["replicas"] if item["node"] == group["leader"])
    return next(pids, None)


def _running_leader_pid(supervisor: Supervisor) -> int:
    pid = _leader_pid(supervisor)
    assert pid is not None
    return pid


def _shared(directory: DataDirectory) -> dict[str, Any]:
    """Return the state that the stand-in brokers of the group hold."""
    found: dict[str, Any] = json.loads((directory.path / "replicas/demo-0.shared").read_text())
    return found


async def _apply(supervisor: Supervisor, text_: str, *, prune: bool = False) -> list[str]:
    steps = await supervisor.apply(parse(text_, "test.yaml"), prune=prune)
    await _until(lambda: supervisor.settled)
    return steps


async def test_a_cluster_comes_up_whole_and_is_changed_while_it_runs(
    directory: DataDirectory, ports: int
) -> None:
    """Processes, topics, queue list and groups; then a topic expands, and goes again."""
    async with _running(directory, ports) as supervisor:
        assert _shared(directory)["topics"]["orders"] == {
            "topicName": "orders",
            "readQueueNums": 8,
            "writeQueueNums": 8,
            "perm": 6,
            "order": True,
        }
        assert _shared(directory)["groups"]["billing"]["consumeMessageOrderly"] is True
        assert {item["ready"] for item in supervisor.snapshot()["resources"]} == {"True"}

        extra = normal_topic(4, "Delete")
        assert await _apply(supervisor, text(ports, extra=extra)) == [
            "create topic clicks with 4 queues on demo-0"
        ]
        assert await _apply(supervisor, text(ports, extra=normal_topic(6, "Delete"))) == [
            "change topic clicks on demo-0: 6 queues"
        ]
        assert await _apply(supervisor, text(ports), prune=True) == [
            "delete topic clicks from demo-0"
        ]
        assert set(_shared(directory)["topics"]) == {"orders", "TBW102"}
        assert await _apply(supervisor, text(ports)) == []


async def test_a_change_and_the_end_wait_for_one_action_alone(
    directory: DataDirectory, ports: int
) -> None:
    """However many actions a plan has; the next pass plans what is left."""
    many = "".join(normal_topic(1).replace("clicks", f"topic-{number}") for number in range(400))
    async with _running(directory, ports, replicas=1) as supervisor:
        await supervisor.apply(parse(text(ports, replicas=1, extra=many), "test.yaml"), prune=False)
        await _until(lambda: len(_shared(directory)["topics"]) > 2)

        await supervisor.apply(parse(normal_topic(1), "test.yaml"), prune=False)

        assert len(_shared(directory)["topics"]) < 400
        assert not supervisor.settled
    assert len(_shared(directory)["topics"]) < 400


async def test_what_is_not_allowed_is_refused_before_anything_is_touched(
    directory: DataDirectory, ports: int
) -> None:
    """One part of the change is not allowed, so no part of it happens, here or after a restart."""
    async with _running(directory, ports, replicas=1) as supervisor:
        before = (_shared(directory), directory.load())
        wrong = parse(text(ports, replicas=1, queues=9, extra=normal_topic(4)), "test.yaml")

        with pytest.raises(RefusedChange, match="keeps its 8 queues"):
            await supervisor.apply(wrong, prune=False)
        with pytest.raises(ManifestError, match="there is no Cluster"):
            await _apply(supervisor, normal_topic(4).replace("{name: demo}", "{name: other}"))

        assert (_shared(directory), directory.load()) == before


async def test_tls_is_neither_enforced_nor_ended_in_one_step_while_the_cluster_runs(
    directory: DataDirectory, ports: int, tmp_path: Path
) -> None:
    """Plan and apply refuse it; what stands still may begin with any mode."""
    files = make_certificate(make_authority(tmp_path / "tls"), "replica")
    tls = f"{{mode: Enforcing, certificateFile: {files.certificate}, keyFile: {files.key}}}"
    enforcing = text(ports, replicas=1).replace(
        "replicasPerGroup", f"tls: {tls}\n  replicasPerGroup"
    )
    async with _running(directory, ports, replicas=1) as supervisor:
        said = await supervisor.forecast(parse(enforcing, "test.yaml"), prune=False)
        assert [item.field for item in said.refusals] == ["spec.tls.mode"]
        with pytest.raises(RefusedChange, match="apply Permissive first, then Enforcing"):
            await supervisor.apply(parse(enforcing, "test.yaml"), prune=False)

    with session.prepared(directory, parse(enforcing, "test.yaml")) as state:
        assert state.desired.cluster.spec.tls.mode == "Enforcing"


async def test_files_are_read_before_anything_is_touched(
    directory: DataDirectory, ports: int, tmp_path: Path
) -> None:
    """Up, plan and apply refuse one that is missing, and a key of another certificate."""
    ca = make_authority(tmp_path / "tls")
    one, other = make_certificate(ca, "one"), make_certificate(ca, "other")

    def secured(certificate: object, key: object) -> list[Manifest]:
        tls = f"{{mode: Permissive, certificateFile: {certificate}, keyFile: {key}}}"
        return parse(
            text(ports, replicas=1).replace("replicasPerGroup", f"tls: {tls}\n  replicasPerGroup"),
            "t",
        )

    missing = secured(tmp_path / "missing.pem", one.key)
    with (
        pytest.raises(RefusedError, match=r"missing\.pem does not exist"),
        session.prepared(directory, missing),
    ):
        pass
    async with _running(directory, ports, replicas=1) as supervisor:
        for wrong, field in (
            (missing, "certificateFile"),
            (secured(one.certificate, other.key), ""),
        ):
            said = await supervisor.forecast(wrong, prune=False)
            assert [item.field for item in said.refusals] == [f"spec.tls.{field}".rstrip(".")]
            with pytest.raises(RefusedChange, match=r"spec\.tls"):
                await supervisor.apply(wrong, prune=False)


async def test_a_forecast_says_the_steps_that_follow_and_does_none(
    directory: DataDirectory, ports: int
) -> None:
    """The same planner answers, to the end; the supervisor then reports the same as done."""
    async with _running(directory, ports) as supervisor:
        changed = text(ports, replicas=5, extra=normal_topic(4))

        said = await supervisor.forecast(parse(changed, "test.yaml"), prune=False)

        assert supervisor.settled
        assert len(_group(supervisor)["replicas"]) == 3
        before = len(supervisor.snapshot()["events"])
        await _apply(supervisor, changed)
        told = {event["text"] for event in supervisor.snapshot()["events"][before:]}
        assert {describe(step) for step in said.steps} <= told
        assert [(each.subject.name, [e.kind for e in each.effects]) for each in said.resources] == [
            ("demo", ["Adds", "Adds"]),
            ("clicks", ["Creates"]),
            ("orders", []),
            ("billing", []),
        ]


async def test_a_forecast_names_a_new_user(
    directory: DataDirectory, ports: int, tmp_path: Path
) -> None:
    """Its secret is read although nothing knows it yet."""
    (tmp_path / "writer.secret").write_text("quite secret")
    user = f"""
---
apiVersion: orderlymq.io/v1alpha1
kind: User
metadata: {{name: shop-writer}}
spec: {{clusterRef: {{name: demo}}, secretFrom: {{file: {tmp_path / "writer.secret"}}}}}
"""
    async with _running(directory, ports, replicas=1) as supervisor:
        changed = parse(text(ports, replicas=1, extra=user), "test.yaml")

        said = await supervisor.forecast(changed, prune=False)

        (about,) = (each for each in said.resources if each.subject.kind == "User")
        assert [effect.kind for effect in about.effects] == ["Creates"]


async def test_what_is_refused_holds_back_nothing_but_itself(
    directory: DataDirectory, ports: int
) -> None:
    """Law: what stands behind it in the plan is done, and its condition says why it is not."""
    async with _running(directory, ports, replicas=1) as supervisor:
        await _apply(supervisor, text(ports, replicas=1, extra=normal_topic(4, "Delete")))
        shared = _shared(directory)
        del shared["groups"]["billing"]
        shared["refused"] = ["billing"]
        (directory.path / "replicas/demo-0.shared").write_text(json.dumps(shared))

        await supervisor.apply(parse(text(ports, replicas=1), "test.yaml"), prune=True)
        await _until(lambda: "clicks" not in _shared(directory)["topics"])

        def conditions() -> dict[str, tuple[str, str]]:
            resources = supervisor.snapshot()["resources"]
            return {item["name"]: (item["ready"], item["message"]) for item in resources}

        await _until(lambda: "cannot" in conditions()["billing"][1])
        assert conditions()["billing"] == ("False", supervisor.snapshot()["problem"])
        assert conditions()["orders"][0] == "True"
        assert not supervisor.settled


async def test_replicas_are_added_and_removed_one_by_one(
    directory: DataDirectory, ports: int
) -> None:
    """3 to 5 and back; what the removed ones held is kept aside."""
    async with _running(directory, ports) as supervisor:
        await _apply(supervisor, text(ports, replicas=5))
        assert _shared(directory)["voters"] == [1, 2, 3, 4, 5]
        # A replica that starts without its data from now on waits for the others.
        settings = [directory.settings(f"demo-0-{node}").read_text() for node in range(1, 6)]
        assert [(each["join"], len(each["peers"])) for each in map(json.loads, settings)] == (
            [(True, 5)] * 5
        )

        await _apply(supervisor, text(ports))

        assert _shared(directory)["voters"] == [1, 2, 3]
        removed = sorted(path.name for path in (directory.path / "removed").iterdir())
        assert removed == ["demo-0-4.1", "demo-0-5.1"]
        assert [item["node"] for item in _group(supervisor)["replicas"]] == [1, 2, 3]


async def test_a_replica_leaves_the_disk_before_the_memory(
    directory: DataDirectory, ports: int
) -> None:
    """Law: as on a full disk. A removal that cannot be written down is a problem, and comes when there is room again."""
    file = directory.path / "cluster.json"
    async with _running(directory, ports, replicas=5) as supervisor:
        await supervisor.apply(parse(text(ports), "test.yaml"), prune=False)
        file.unlink()
        file.mkdir()
        await _until(lambda: "cluster.json" in str(supervisor.snapshot()["problem"]))

        assert [item["node"] for item in _group(supervisor)["replicas"]] == [1, 2, 3, 4, 5]
        file.rmdir()
        await _until(lambda: supervisor.settled)

        found = directory.load()
        assert found is not None
        assert found.replicas == {"demo-0": dict.fromkeys((1, 2, 3), False)}


async def test_a_replica_that_leaves_never_begins_its_group_again(
    directory: DataDirectory, ports: int
) -> None:
    """Law: before its data is set aside the disk says that it joins, so that a crash leaves no second beginning."""
    removed = directory.path / "removed"
    async with _running(directory, ports, replicas=5) as supervisor:
        removed.rmdir()
        removed.write_text("no folder")
        await supervisor.apply(parse(text(ports), "test.yaml"), prune=False)
        await _until(lambda: "stop replica" in str(supervisor.snapshot()["problem"]))

        found = directory.load()
        assert found is not None
        assert found.replicas == {"demo-0": {**dict.fromkeys((1, 2, 3, 4), False), 5: True}}
        removed.unlink()
        removed.mkdir()
        await _until(lambda: supervisor.settled)


async def test_a_new_replica_leaves_the_others_what_they_run_with(
    directory: DataDirectory, ports: int, tmp_path: Path
) -> None:
    """Law: until its restart a process is called as it serves, though the manifests want it otherwise."""
    files = make_certificate(make_authority(tmp_path / "tls"), "replica")

    def secured(mode: str, replicas: int) -> str:
        tls = f"{{mode: {mode}, certificateFile: {files.certificate}, keyFile: {files.key}}}"
        return text(ports, replicas=replicas).replace(
            "replicasPerGroup", f"tls: {tls}\n  replicasPerGroup"
        )

    async with _running(directory, ports) as supervisor:
        await _apply(supervisor, secured("Permissive", 3))
        await supervisor.apply(parse(secured("Disabled", 5), "test.yaml"), prune=False)
        await _until(lambda: len(_group(supervisor)["replicas"]) == 4)

        for node in (1, 2, 3):
            said = json.loads(directory.settings(f"demo-0-{node}").read_text())
            assert (said["tls"]["mode"], len(said["peers"])) == ("permissive", 4)
        await _until(lambda: supervisor.settled)


async def test_changed_settings_reach_every_replica_one_after_the_other(
    directory: DataDirectory, ports: int
) -> None:
    """The rolling restart ends with all of them on the new settings."""
    async with _running(directory, ports) as supervisor:
        changed = text(ports).replace(
            "replicasPerGroup", "lock: {leaseSeconds: 40}\n  replicasPerGroup"
        )

        await _apply(supervisor, changed)

        texts = [event["text"] for event in supervisor.snapshot()["events"]]
        restarts = [item for item in texts if item.startswith("restart replica")]
        assert len(restarts) == len(set(restarts)) == 3
        for node in (1, 2, 3):
            file = directory.settings(f"demo-0-{node}")
            assert json.loads(file.read_text())["timers"]["lock_lease_ms"] == 40_000


async def test_live_settings_reach_every_replica_without_a_restart(
    directory: DataDirectory, ports: int
) -> None:
    """Law: the files of all replicas say them, and no process ends."""
    async with _running(directory, ports) as supervisor:
        before = [item["pid"] for item in _group(supervisor)["replicas"]]
        changed = text(ports).replace(
            "replicasPerGroup", "config: {maxMessageSize: 1Mi}\n  replicasPerGroup"
        )

        steps = await _apply(supervisor, changed)

        def said(node: int) -> int:
            file = directory.settings(f"demo-0-{node}")
            found: int = json.loads(file.read_text())["storage"]["body_size_max"]
            return found

        await _until(lambda: [said(node) for node in (1, 2, 3)] == [1 << 20] * 3)
        assert steps == ["config.maxMessageSize changes from 4Mi to 1Mi, without a restart"]
        assert [item["pid"] for item in _group(supervisor)["replicas"]] == before


async def test_a_file_that_cannot_be_written_ends_no_process_and_is_written_later(
    directory: DataDirectory, ports: int
) -> None:
    """Law: as on a full disk. The change is reported as a problem, and comes when there is room again."""
    changed = text(ports).replace(
        "replicasPerGroup", "config: {maxMessageSize: 1Mi}\n  replicasPerGroup"
    )
    file = directory.settings("demo-0-2")
    async with _running(directory, ports) as supervisor:
        before = [item["pid"] for item in _group(supervisor)["replicas"]]
        file.unlink()
        file.mkdir()

        await supervisor.apply(parse(changed, "test.yaml"), prune=False)
        await _until(lambda: str(file) in str(supervisor.snapshot()["problem"]))
        file.rmdir()
        await _until(lambda: file.exists() and supervisor.snapshot()["problem"] is None)

        assert json.loads(file.read_text())["storage"]["body_size_max"] == 1 << 20
        assert [item["pid"] for item in _group(supervisor)["replicas"]] == before


async def test_the_loop_turns_while_what_is_wanted_is_written_down(
    directory: DataDirectory, ports: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: neither many topics nor a slow disk keep the supervisor from its brokers and from other commands."""
    begun, turned, sync = threading.Event(), threading.Event(), os.fsync
    turns: list[bool] = []

    def sync_slowly(descriptor: int) -> None:
        begun.set()
        turns.append(turned.wait(5.0))
        sync(descriptor)

    async with _running(directory, ports, replicas=1) as supervisor:
        with monkeypatch.context() as slow:
            slow.setattr(os, "fsync", sync_slowly)
            found = parse(text(ports, replicas=1, extra=normal_topic(4)), "test.yaml")
            applied = asyncio.create_task(supervisor.apply(found, prune=False))
            await _until(begun.is_set)
            turned.set()
            await applied

    assert turns
    assert all(turns)


async def test_nothing_that_many_topics_make_long_is_done_on_the_loop(
    directory: DataDirectory, ports: int
) -> None:
    """Law: ten thousand topics are planned for seconds, in which brokers are asked and commands answered."""
    on_loop: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            on_loop.add(frame.f_code.co_qualname)

    async with _running(directory, ports, replicas=1) as supervisor:
        found = parse(text(ports, replicas=1, extra=normal_topic(4)), "test.yaml")
        sys.setprofile(note)  # of this thread alone
        try:
            await supervisor.forecast(found, prune=False)
            await supervisor.apply(found, prune=False)
            await _until(lambda: supervisor.settled)
        finally:
            sys.setprofile(None)

    assert "Supervisor.apply" in on_loop
    assert not on_loop & {"combine", "plan", "plan_accepted", "forecast", "DataDirectory.save"}


async def test_changed_settings_reach_name_servers_too(
    directory: DataDirectory, ports: int
) -> None:
    """Nothing is called effective before they have them, and the forecast says so."""
    async with _running(directory, ports) as supervisor:
        (before,) = supervisor.snapshot()["nameServers"]
        changed = text(ports).replace(
            "replicasPerGroup", "config: {logLevel: DEBUG}\n  replicasPerGroup"
        )

        said = await supervisor.forecast(parse(changed, "test.yaml"), prune=False)
        await _apply(supervisor, changed)

        assert "nameserver/0" in said.targets("Restarts")
        (after,) = supervisor.snapshot()["nameServers"]
        assert before["pid"] != after["pid"]
        assert json.loads(directory.settings("name-server-0").read_text())["log_level"] == "DEBUG"


async def test_a_killed_leader_is_replaced_and_comes_back(
    directory: DataDirectory, ports: int
) -> None:
    """SIGKILL: another one leads, and the group is whole again."""
    async with _running(directory, ports) as supervisor:
        first = _running_leader_pid(supervisor)

        os.kill(first, signal.SIGKILL)
        await _until(lambda: "SIGKILL" in str(supervisor.snapshot()["events"]))
        await _until(
            lambda: (
                all(item["pid"] and item["role"] for item in _group(supervisor)["replicas"])
                and _group(supervisor)["leader"] is not None
            )
        )

        assert first not in [item["pid"] for item in _group(supervisor)["replicas"]]
        assert sum(item["restarts"] for item in _group(supervisor)["replicas"]) == 1


async def test_a_stopped_leader_does_not_hold_the_port_for_ever(
    directory: DataDirectory, ports: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGSTOP: it is found out by /healthz, killed, and replaced."""
    monkeypatch.setattr(keeper, "PROBE_INTERVAL_S", 0.1)
    monkeypatch.setattr(keeper, "PROBE_TIMEOUT_S", 0.3)
    async with _running(directory, ports) as supervisor:
        await _until(lambda: _probes(directory) >= [2, 2, 2])
        first = _running_leader_pid(supervisor)

        os.kill(first, signal.SIGSTOP)
        await _until(lambda: "does not answer /healthz" in str(supervisor.snapshot()["events"]))
        await _until(lambda: _leader_pid(supervisor) not in {None, first})


async def test_everything_goes_on_after_a_restart(directory: DataDirectory, ports: int) -> None:
    """The state on disk is enough; nothing is created a second time."""
    async with _running(directory, ports) as supervisor:
        await _apply(supervisor, text(ports, replicas=5, extra=normal_topic(4)))
    before = _shared(directory)

    async with _running(directory, None) as supervisor:
        texts = [event["text"] for event in supervisor.snapshot()["events"]]

        assert sorted(texts[:-1]) == [
            "start name server 0",
            *(f"start replica demo-0-{node}" for node in (1, 2, 3)),
            *(f"start replica demo-0-{node} as a new member" for node in (4, 5)),
        ]
        assert _shared(directory)["voters"] == before["voters"]
        assert _shared(directory)["topics"] == before["topics"]


async def test_drift_is_repaired(directory: DataDirectory, ports: int) -> None:
    """Somebody deleted the group with another tool; it is back within seconds."""
    async with _running(directory, ports, replicas=1):
        file = directory.path / "replicas/demo-0.shared"
        shared = _shared(directory)
        del shared["groups"]["billing"]
        file.write_text(json.dumps(shared))

        await _until(lambda: "billing" in _shared(directory)["groups"])


async def test_a_topic_that_was_changed_by_others_is_reported_and_the_rest_kept_in_order(
    directory: DataDirectory, ports: int
) -> None:
    """A tool gave a topic more queues: they are not taken away; everything else is repaired."""
    async with _running(directory, ports, replicas=1) as supervisor:
        await _apply(supervisor, text(ports, replicas=1, extra=normal_topic(4)))
        file = directory.path / "replicas/demo-0.shared"
        shared = _shared(directory)
        shared["topics"]["clicks"]["readQueueNums"] = 16
        del shared["groups"]["billing"]
        file.write_text(json.dumps(shared))

        def is_reported() -> bool:
            conditions = {item["name"]: item for item in supervisor.snapshot()["resources"]}
            clicks = (conditions["clicks"]["ready"], conditions["clicks"]["reason"])
            problem = str(supervisor.snapshot()["problem"])
            return (
                clicks == ("False", "ResourceConflict") and "16 queues cannot become 4" in problem
            )

        await _until(lambda: "billing" in _shared(directory)["groups"])
        await _until(is_reported)
        assert _shared(directory)["topics"]["clicks"]["readQueueNums"] == 16


async def test_a_directory_that_is_supervised_is_refused(
    directory: DataDirectory, ports: int
) -> None:
    """Two supervisors would start everything twice."""
    async with _running(directory, ports, replicas=1):
        with (
            pytest.raises(RefusedError, match=r"runs on .* already"),
            session.prepared(directory, manifests(ports)),
        ):
            pass


async def test_the_ports_of_a_running_cluster_are_refused_to_another(
    directory: DataDirectory, ports: int
) -> None:
    """The refusal comes before anything is written for the new one."""
    async with _running(directory, ports, replicas=1):
        other = DataDirectory(directory.path.parent / "other")
        with (
            pytest.raises(RefusedError, match=f"port {ports} .name-server-0, clients. is used by"),
            session.prepared(other, manifests(ports)),
        ):
            pass

        assert not other.path.exists()


def test_a_change_that_is_not_allowed_is_refused_at_the_start_too(
    directory: DataDirectory, ports: int
) -> None:
    """`up` with another file is an `apply`."""
    with session.prepared(directory, manifests(ports)):
        pass

    with (
        pytest.raises(RefusedError, match="keeps its 8 queues"),
        session.prepared(directory, manifests(ports, queues=9)),
    ):
        pass
    other = parse(text(ports).replace("name: demo", "name: other"), "test.yaml")
    with (
        pytest.raises(RefusedError, match="belongs to Cluster 'demo'"),
        session.prepared(directory, other),
    ):
        pass
