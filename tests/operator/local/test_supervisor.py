import asyncio
import json
import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from orderlymq_operator.local import session
from orderlymq_operator.local.directory import DataDirectory
from orderlymq_operator.local.errors import RefusedError
from orderlymq_operator.local.supervisor import _UNDER_WAY, RefusedChange, Supervisor
from orderlymq_operator.plan.descriptions import describe
from orderlymq_operator.plan.forecast.report import report_of, text_of
from orderlymq_operator.resources.manifests.problems import ManifestError
from orderlymq_operator.resources.manifests.reader import Manifest, parse
from orderlymq_protocol.codes import RequestCode
from orderlymq_runtime.remoting.client import RemotingClient
from tests.operator.local.manifests import manifests, normal_topic, text
from tests.operator.local.supervision import (
    apply,
    change_shared,
    group_of,
    running,
    shared_of,
    until,
)
from tests.operator.scripted import serving
from tests.runtime.certificates import make_authority, make_certificate

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.usefixtures("stub_brokers"),
    pytest.mark.timeout(60),
]


async def test_a_cluster_comes_up_whole_and_is_changed_while_it_runs(
    directory: DataDirectory, ports: int
) -> None:
    """Law: a cluster comes up with processes, topics, queue list and groups;
    while it runs a topic is expanded and deleted.
    """
    async with running(directory, ports) as supervisor:
        assert shared_of(directory)["topics"]["orders"] == {
            "topicName": "orders",
            "readQueueNums": 8,
            "writeQueueNums": 8,
            "perm": 6,
            "order": True,
        }
        assert shared_of(directory)["groups"]["billing"]["consumeMessageOrderly"] is True
        assert {item["ready"] for item in supervisor.snapshot()["resources"]} == {"True"}

        extra = normal_topic(4, "Delete")
        assert await apply(supervisor, text(ports, extra=extra)) == [
            "create topic clicks with 4 queues on demo-0"
        ]
        assert await apply(supervisor, text(ports, extra=normal_topic(6, "Delete"))) == [
            "change topic clicks on demo-0: 6 queues"
        ]
        assert await apply(supervisor, text(ports), prune=True) == [
            "delete topic clicks from demo-0"
        ]
        assert set(shared_of(directory)["topics"]) == {"orders", "TBW102"}
        assert await apply(supervisor, text(ports)) == []


async def test_a_change_without_a_first_step_is_not_nothing(
    directory: DataDirectory, ports: int
) -> None:
    """Law: `apply` reports nothing only if the manifests are the accepted ones and all of them are effective."""
    before = text(ports, replicas=1)
    async with running(directory, ports, replicas=1) as supervisor:
        other = before.replace("queues: 8", "queues: 8, queueChangePolicy: DrainAndSwitch")

        assert await supervisor.apply(parse(other, "t"), prune=False) == [_UNDER_WAY]
        await until(lambda: supervisor.settled)
        assert await supervisor.apply(parse(other, "t"), prune=False) == []


async def test_a_change_and_the_end_wait_for_one_action_alone(
    directory: DataDirectory, ports: int
) -> None:
    """Law: a new change, or the end, waits for at most one action of a long plan; the next pass plans the rest."""
    many = "".join(normal_topic(1).replace("clicks", f"topic-{number}") for number in range(400))
    async with running(directory, ports, replicas=1) as supervisor:
        await supervisor.apply(parse(text(ports, replicas=1, extra=many), "test.yaml"), prune=False)
        await until(lambda: len(shared_of(directory)["topics"]) > 2)

        await supervisor.apply(parse(normal_topic(1), "test.yaml"), prune=False)

        assert len(shared_of(directory)["topics"]) < 400
        assert not supervisor.settled
    assert len(shared_of(directory)["topics"]) < 400


async def test_what_is_not_allowed_is_refused_before_anything_is_touched(
    directory: DataDirectory, ports: int
) -> None:
    """Law: if one part of a change is not allowed, no part of it happens, now or after a restart."""
    async with running(directory, ports, replicas=1) as supervisor:
        before = (shared_of(directory), directory.load())
        wrong = parse(text(ports, replicas=1, queues=9, extra=normal_topic(4)), "test.yaml")

        with pytest.raises(RefusedChange, match="keeps its 8 queues"):
            await supervisor.apply(wrong, prune=False)
        with pytest.raises(ManifestError, match="there is no Cluster"):
            await apply(supervisor, normal_topic(4).replace("{name: demo}", "{name: other}"))

        assert (shared_of(directory), directory.load()) == before


async def test_tls_is_neither_enforced_nor_ended_in_one_step_while_the_cluster_runs(
    directory: DataDirectory, ports: int, tmp_path: Path
) -> None:
    """Law: a running cluster's TLS cannot be enforced or ended in one step (plan and apply refuse);
    a stopped one may start with any mode.
    """
    files = make_certificate(make_authority(tmp_path / "tls"), "replica")
    tls = f"{{mode: Enforcing, certificateFile: {files.certificate}, keyFile: {files.key}}}"
    enforcing = text(ports, replicas=1).replace(
        "replicasPerGroup", f"tls: {tls}\n  replicasPerGroup"
    )
    async with running(directory, ports, replicas=1) as supervisor:
        said = await supervisor.forecast(parse(enforcing, "test.yaml"), prune=False)
        assert [item.field for item in said.refusals] == ["spec.tls.mode"]
        with pytest.raises(RefusedChange, match="apply Permissive first, then Enforcing"):
            await supervisor.apply(parse(enforcing, "test.yaml"), prune=False)

    with session.prepared(directory, parse(enforcing, "test.yaml")) as state:
        assert state.desired.cluster.spec.tls.mode == "Enforcing"


async def test_files_are_read_before_anything_is_touched(
    directory: DataDirectory, ports: int, tmp_path: Path
) -> None:
    """Law: up, plan and apply refuse a missing file, or a key that does not fit its certificate, before anything changes."""
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
    async with running(directory, ports, replicas=1) as supervisor:
        for wrong, field in (
            (missing, "certificateFile"),
            (secured(one.certificate, other.key), ""),
        ):
            said = await supervisor.forecast(wrong, prune=False)
            assert [item.field for item in said.refusals] == [f"spec.tls.{field}".rstrip(".")]
            with pytest.raises(RefusedChange, match=r"spec\.tls"):
                await supervisor.apply(wrong, prune=False)


@pytest.mark.parametrize(
    ("more", "port"),
    [
        ("groups: 2\n  replicasPerGroup: 1\n  nameServers: {replicas: 1}", 34),
        ("replicasPerGroup: 3\n  nameServers: {replicas: 1}", 41),
        ("replicasPerGroup: 1\n  nameServers: {replicas: 2}", 1),
    ],
)
async def test_what_would_need_the_port_of_another_process_is_refused(
    directory: DataDirectory, ports: int, more: str, port: int
) -> None:
    """Law: a new group, replica or name server whose port is taken is refused; an accepted group could not be withdrawn."""
    begun = text(ports, replicas=1)
    for base, wider in ((20, 23), (40, 39)):  # So that there is room for a second group.
        begun = begun.replace(f"Port: {ports + base}", f"Port: {ports + wider}")
    changed = begun.replace("replicasPerGroup: 1\n  nameServers: {replicas: 1}", more)
    with session.prepared(directory, parse(begun, "test.yaml")):
        pass
    async with running(directory, None) as supervisor:
        before = directory.load()
        found = parse(changed, "test.yaml")
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", ports + port))
            other.listen(1)
            owner = rf"port {ports + port} .* is used by process {os.getpid()} "

            said = await supervisor.forecast(found, prune=False)
            with pytest.raises(RefusedChange, match=owner):
                await supervisor.apply(found, prune=False)

        assert re.search(owner, str(said.refusals[0]))
        assert directory.load() == before
        assert supervisor.settled
        await apply(supervisor, changed)


async def test_brokers_that_answer_late_keep_no_command_waiting(
    directory: DataDirectory, ports: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: slow brokers do not delay commands; questions about consumer groups are asked outside the commands' turn."""
    async with running(directory, ports, replicas=1) as supervisor:
        monkeypatch.setattr("orderlymq_operator.brokers.admin._READ_TIMEOUT_S", 600.0)
        mute = {"mute": [RequestCode.ORDERLYMQ_LOCK_TABLE]}
        change_shared(directory, lambda shared: shared.update(mute))
        await until(lambda: "unanswered" in shared_of(directory))

        await apply(supervisor, text(ports, replicas=1, extra=normal_topic(4)))

        assert "clicks" in shared_of(directory)["topics"]


async def test_a_reconcile_that_fails_ends_nothing(
    directory: DataDirectory, ports: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a reconcile that fails (no thread available) is a passing problem, and brokers run on."""

    def none_left(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    async with running(directory, ports, replicas=1) as supervisor:
        before = [item["pid"] for item in group_of(supervisor)["replicas"]]
        with monkeypatch.context() as exhausted:
            exhausted.setattr("concurrent.futures.ThreadPoolExecutor.submit", none_left)
            await until(lambda: "can't start new thread" in str(supervisor.snapshot()["problem"]))
        await until(lambda: supervisor.snapshot()["problem"] is None)

        assert [item["pid"] for item in group_of(supervisor)["replicas"]] == before


async def test_a_forecast_says_the_steps_that_follow_and_does_none(
    directory: DataDirectory, ports: int
) -> None:
    """Law: a forecast names the steps that the real change then does, and changes nothing."""
    async with running(directory, ports) as supervisor:
        changed = text(ports, replicas=5, extra=normal_topic(4))

        said = await supervisor.forecast(parse(changed, "test.yaml"), prune=False)

        assert supervisor.settled
        assert len(group_of(supervisor)["replicas"]) == 3
        before = len(supervisor.snapshot()["events"])
        await apply(supervisor, changed)
        told = {event["text"] for event in supervisor.snapshot()["events"][before:]}
        assert {describe(step) for step in said.steps} <= told
        assert [(each.subject.name, [e.kind for e in each.effects]) for each in said.resources] == [
            ("demo", ["Adds", "Adds"]),
            ("clicks", ["Creates"]),
            ("orders", []),
            ("billing", []),
        ]


async def test_a_forecast_says_that_no_pipeline_runs_here(
    directory: DataDirectory, ports: int
) -> None:
    """Law: a forecast says that Pipelines do not run on one machine; that is no change."""
    example = Path(__file__).parents[3] / "examples" / "pipelines" / "lag.yaml"
    found = parse(await asyncio.to_thread(example.read_text), "lag.yaml")
    async with running(directory, ports, replicas=1) as supervisor:
        report = report_of(await supervisor.forecast(found, prune=False))

    assert not report["changes"]
    said = text_of(report).splitlines()
    assert said[-1] == "Nothing to change."
    assert "only Kubernetes runs its drivers; run `orderlymq pipeline run FILE`" in said[-2]


def _writer(secret: Path) -> str:
    """Return the document of a User whose secret is in a file."""
    return f"""
---
apiVersion: orderlymq.io/v1alpha1
kind: User
metadata: {{name: shop-writer}}
spec: {{clusterRef: {{name: demo}}, secretFrom: {{file: {secret}}}}}
"""


async def test_a_forecast_names_a_new_user(
    directory: DataDirectory, ports: int, tmp_path: Path
) -> None:
    """Law: a forecast names a new User, whose secret is read first."""
    (tmp_path / "writer.secret").write_text("quite secret")
    user = _writer(tmp_path / "writer.secret")
    async with running(directory, ports, replicas=1) as supervisor:
        changed = parse(text(ports, replicas=1, extra=user), "test.yaml")

        said = await supervisor.forecast(changed, prune=False)

        (about,) = (each for each in said.resources if each.subject.kind == "User")
        assert [effect.kind for effect in about.effects] == ["Creates"]


async def test_a_rotation_to_a_secret_that_brokers_refuse_is_said(
    directory: DataDirectory, ports: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Law: if a User's file changes to an unusable secret, the supervisor warns once, and plan and apply refuse."""
    secret = tmp_path / "writer.secret"
    secret.write_text("quite secret")
    changed = parse(text(ports, replicas=1, extra=_writer(secret)), "test.yaml")
    async with running(directory, ports, replicas=1) as supervisor:
        await supervisor.apply(changed, prune=False)
        secret.write_text("abc")

        with pytest.raises(RefusedChange, match="has 3 characters, fewer than 6"):
            await supervisor.apply(changed, prune=False)
        assert (await supervisor.forecast(changed, prune=False)).refusals
        await until(lambda: "has 3 characters" in caplog.text)
        async with supervisor._turn:
            await supervisor._pass()

    warnings = [each for each in caplog.records if each.levelname == "WARNING"]
    (said,) = (each.getMessage() for each in warnings if "writer.secret" in each.getMessage())
    assert "brokers do not change the account until then" in said


async def test_what_is_refused_holds_back_nothing_but_itself(
    directory: DataDirectory, ports: int
) -> None:
    """Law: an action that a broker refuses does not stop later actions of the plan; its condition says why."""
    async with running(directory, ports, replicas=1) as supervisor:
        await apply(supervisor, text(ports, replicas=1, extra=normal_topic(4, "Delete")))

        def refuse(shared: dict[str, Any]) -> None:
            del shared["groups"]["billing"]
            shared["refused"] = ["billing"]

        change_shared(directory, refuse)

        await supervisor.apply(parse(text(ports, replicas=1), "test.yaml"), prune=True)
        await until(lambda: "clicks" not in shared_of(directory)["topics"])

        def conditions() -> dict[str, tuple[str, str]]:
            resources = supervisor.snapshot()["resources"]
            return {item["name"]: (item["ready"], item["message"]) for item in resources}

        await until(lambda: "cannot" in conditions()["billing"][1])
        assert conditions()["billing"] == ("False", supervisor.snapshot()["problem"])
        assert conditions()["orders"][0] == "True"
        assert not supervisor.settled


async def test_the_loop_turns_while_what_is_wanted_is_written_down(
    directory: DataDirectory, ports: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: saving many topics, or a slow disk, does not block the supervisor's loop."""
    begun, turned, sync = threading.Event(), threading.Event(), os.fsync
    turns: list[bool] = []

    def sync_slowly(descriptor: int) -> None:
        begun.set()
        turns.append(turned.wait(5.0))
        sync(descriptor)

    async with running(directory, ports, replicas=1) as supervisor:
        with monkeypatch.context() as slow:
            slow.setattr(os, "fsync", sync_slowly)
            found = parse(text(ports, replicas=1, extra=normal_topic(4)), "test.yaml")
            applied = asyncio.create_task(supervisor.apply(found, prune=False))
            await until(begun.is_set)
            turned.set()
            await applied

    assert turns
    assert all(turns)


async def test_nothing_that_many_topics_make_long_is_done_on_the_loop(
    directory: DataDirectory, ports: int
) -> None:
    """Law: no work that grows with the number of topics runs on the loop; 10,000 topics are planned in a thread."""
    on_loop: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            on_loop.add(frame.f_code.co_qualname)

    async with running(directory, ports, replicas=1) as supervisor:
        found = parse(text(ports, replicas=1, extra=normal_topic(4)), "test.yaml")
        sys.setprofile(note)  # Of this thread alone.
        try:
            await supervisor.forecast(found, prune=False)
            await supervisor.apply(found, prune=False)
            await until(lambda: supervisor.settled)
        finally:
            sys.setprofile(None)

    assert "Supervisor.apply" in on_loop
    assert not on_loop & {"combine", "plan", "plan_accepted", "forecast", "DataDirectory.save"}


async def test_everything_goes_on_after_a_restart(directory: DataDirectory, ports: int) -> None:
    """Law: after a restart of the supervisor everything goes on from the state on disk, and nothing is created twice."""
    async with running(directory, ports) as supervisor:
        await apply(supervisor, text(ports, replicas=5, extra=normal_topic(4)))
    before = shared_of(directory)

    async with running(directory, None) as supervisor:
        texts = [event["text"] for event in supervisor.snapshot()["events"]]

        assert sorted(texts[:-1]) == [
            "start name server 0",
            *(f"start replica demo-0-{node}" for node in (1, 2, 3)),
            *(f"start replica demo-0-{node} as a new member" for node in (4, 5)),
        ]
        assert shared_of(directory)["voters"] == before["voters"]
        assert shared_of(directory)["topics"] == before["topics"]


async def test_drift_is_repaired(directory: DataDirectory, ports: int) -> None:
    """Law: a group that another tool deleted is back within seconds."""
    async with running(directory, ports, replicas=1) as supervisor:
        before = len(supervisor.snapshot()["events"])
        change_shared(directory, lambda shared: shared["groups"].pop("billing"))

        def repairs() -> list[str]:
            return [event["text"] for event in supervisor.snapshot()["events"][before:]]

        await until(lambda: bool(repairs()))
        assert repairs() == ["set consumer group billing on demo-0"]
        await until(lambda: "billing" in shared_of(directory)["groups"])


async def test_a_topic_that_was_changed_by_others_is_reported_and_the_rest_kept_in_order(
    directory: DataDirectory, ports: int
) -> None:
    """Law: queues that a tool added are reported and not removed; everything else is repaired."""
    async with running(directory, ports, replicas=1) as supervisor:
        await apply(supervisor, text(ports, replicas=1, extra=normal_topic(4)))

        def change(shared: dict[str, Any]) -> None:
            shared["topics"]["clicks"]["readQueueNums"] = 16
            del shared["groups"]["billing"]

        change_shared(directory, change)

        def is_reported() -> bool:
            conditions = {item["name"]: item for item in supervisor.snapshot()["resources"]}
            clicks = (conditions["clicks"]["ready"], conditions["clicks"]["reason"])
            problem = str(supervisor.snapshot()["problem"])
            return (
                clicks == ("False", "ResourceConflict") and "16 queues cannot become 4" in problem
            )

        await until(lambda: "billing" in shared_of(directory)["groups"])
        await until(is_reported)
        assert shared_of(directory)["topics"]["clicks"]["readQueueNums"] == 16


_WAITING = """---
apiVersion: orderlymq.io/v1alpha1
kind: User
metadata: {name: archive}
spec: {clusterRef: {name: demo}, secretFrom: {env: SECRET_OF_ARCHIVE}}
"""


async def test_what_clients_make_again_is_not_deleted_once_more(
    directory: DataDirectory, ports: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a deleted topic that clients make again is not deleted again, even while another deletion still waits."""

    def lose(shared: dict[str, Any]) -> None:
        del shared["groups"]["billing"]

    def make_again(shared: dict[str, Any]) -> None:
        shared["topics"]["clicks"] = {**shared["topics"]["orders"], "topicName": "clicks"}
        lose(shared)

    async def one_pass(edit: Callable[[dict[str, Any]], None]) -> None:
        """Change something, and wait until a later pass has repaired what was lost."""
        change_shared(directory, edit)
        await until(lambda: "billing" in shared_of(directory)["groups"])

    async with running(directory, ports, replicas=1) as supervisor:
        await apply(supervisor, text(ports, replicas=1, extra=normal_topic(4, "Delete")))
        wanted = text(ports, replicas=1, extra=_WAITING)
        monkeypatch.setenv("SECRET_OF_ARCHIVE", "long enough")
        await supervisor.apply(parse(wanted, "test.yaml"), prune=True)
        monkeypatch.delenv("SECRET_OF_ARCHIVE")
        await until(lambda: "clicks" not in shared_of(directory)["topics"])
        for edit in (lose, make_again, lose):
            await one_pass(edit)

        assert not supervisor.settled
        assert "clicks" in shared_of(directory)["topics"]
        stored = json.loads((directory.path / "cluster.json").read_text())
        assert stored["deleted_topics"] == []


async def test_a_supervisor_takes_a_greater_token_than_its_brokers_have_seen(
    directory: DataDirectory, ports: int
) -> None:
    """Law: a supervisor takes a greater token than its brokers have seen,
    so a clock that was set back does not lock it out.
    """
    with session.prepared(directory, manifests(ports, replicas=1)) as state:
        seen = directory.count_start() + 86_400
        told = json.dumps({"operatorToken": seen, "topics": []}).encode()
        client = RemotingClient()
        async with serving({20506: lambda request: request.reply(body=told)}) as (broker, address):
            admin = Supervisor(directory, state)._admin(client)
            assert admin.operator_token < seen
            await admin.expansion(address, ())
            await admin.delete_topic(address, "orders")
        await client.close()

        assert broker.asked[-1][1]["operatorToken"] == str(seen + 1)
        assert int((directory.path / "operator.starts").read_text()) == seen + 1


async def test_a_directory_that_is_supervised_is_refused(
    directory: DataDirectory, ports: int
) -> None:
    """Law: a directory that already has a supervisor is refused."""
    async with running(directory, ports, replicas=1):
        with (
            pytest.raises(RefusedError, match=r"already runs on"),
            session.prepared(directory, manifests(ports)),
        ):
            pass


async def test_the_ports_of_a_running_cluster_are_refused_to_another(
    directory: DataDirectory, ports: int
) -> None:
    """Law: another cluster with the ports of a running one is refused before anything is written."""
    async with running(directory, ports, replicas=1):
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
    """Law: `up` with a changed file is checked like `apply`."""
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


def test_a_directory_that_changes_before_it_is_held_is_refused(
    directory: DataDirectory, ports: int
) -> None:
    """Law: a directory that changes before it is locked is refused; otherwise added replicas would be forgotten."""

    class Changing(DataDirectory):
        @contextmanager
        def locked(self, inherited: int | None = None) -> Iterator[None]:
            with super().locked(inherited):
                state = self.load()
                assert state is not None
                self.save(replace(state, replicas={"demo-0": {1: False, 4: True}}))
                yield

    with session.prepared(directory, manifests(ports)):
        pass

    with (
        pytest.raises(RefusedError, match="was just changed by another command"),
        session.prepared(Changing(directory.path), manifests(ports)),
    ):
        pass
    state = directory.load()
    assert state is not None
    assert state.replicas == {"demo-0": {1: False, 4: True}}
