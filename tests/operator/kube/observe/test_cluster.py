"""Observations of a Cluster distinguish pods that cannot start from pods that need no replacement."""

from typing import Any, Final

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from orderlymq_operator.brokers.status import PageAccess
from orderlymq_operator.brokers.tables import SILENT
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.cluster import name_server_revision
from orderlymq_operator.kube.observe.cluster import (
    Live,
    observed_group,
    process_states,
    read_statuses,
    with_forms,
)
from orderlymq_operator.kube.observe.pods import pod_facts
from orderlymq_operator.kube.resources import Json
from orderlymq_operator.plan.actions import Action, ObservedNameServer, RestartReplica
from orderlymq_operator.plan.liveness import OBSERVATIONS_MIN, SURE_MS, FailureDetector
from orderlymq_operator.plan.replicas import replica_actions
from orderlymq_operator.plan.settings import revision
from tests.operator.kube.samples import IMAGE, cluster, environment, pod

MADE: Final = cluster(replicasPerGroup=3)
AROUND: Final = environment(MADE, name_server_revision=name_server_revision(MADE, IMAGE))


def live(template: str, reason: str = "ImagePullBackOff") -> Live:
    """Return a Cluster whose pods, made with template "first", wait for a *reason*;
    the StatefulSets have another template.
    """
    found = Live()
    for name, form in (
        ("demo-0", AROUND.revision),
        ("demo-nameserver", AROUND.name_server_revision),
    ):
        found.put(
            {
                "kind": "StatefulSet",
                "metadata": {"name": name},
                "status": {"updateRevision": template} if template else {},
            }
        )
        for index in range(3):
            made = waiting(f"{name}-{index}", form, reason)
            found.pods[f"{name}-{index}"] = pod_facts(made)
    return found


def waiting(name: str, form: str, reason: str) -> Json:
    of_group = {names.LABEL_GROUP: "0"} if name.startswith("demo-0") else {}
    component = names.BROKER if of_group else names.NAME_SERVER
    status: Json = {"name": component, "state": {"waiting": {"reason": reason}}}
    made = pod(name, phase="Pending", podIP="", containerStatuses=[status])
    labels = {"app.kubernetes.io/component": component, names.LABEL_TEMPLATE: "first", **of_group}
    made["metadata"] |= {"labels": labels, "annotations": {names.ANNOTATION_REVISION: form}}
    return made


def actions(found: Live) -> list[Action]:
    """Return the planner's actions for the group after enough looks."""
    facts: dict[str, Any] = {"current": AROUND.revision, "wanted": revision(MADE), "min_ready_s": 0}
    group = observed_group(found, "demo-0", AROUND.groups["demo-0"], SILENT, **facts)
    places = process_states(found.group_pods("demo-0"), group.replicas)
    detector = FailureDetector()
    for look in range(OBSERVATIONS_MIN):
        seen = detector.group("demo-0", group, places, look * SURE_MS)
    return replica_actions(MADE, {"demo-0": seen})


def stale_name_servers(found: Live) -> set[int]:
    """Return the name servers that show a previous form."""
    servers = with_forms(dict.fromkeys(range(3), ObservedNameServer()), found, AROUND)
    return {index for index, server in servers.items() if server.revision is not None}


def test_a_pod_without_its_image_gets_the_template_of_today() -> None:
    """Law: a new pull secret or policy replaces only pods that cannot start without it."""
    found = live("second")

    assert actions(found) == [RestartReplica("demo-0", 1)]
    assert stale_name_servers(found) == {0, 1, 2}


@pytest.mark.parametrize(
    ("template", "reason"),
    [("first", "ImagePullBackOff"), ("", "ImagePullBackOff"), ("second", "CrashLoopBackOff")],
    ids=["its template", "a set that says nothing yet", "an image that is there"],
)
def test_a_pod_that_another_template_would_not_help_stays(template: str, reason: str) -> None:
    """Law: a pod that another template would not help, such as one that waits for the registry, is not replaced."""
    found = live(template, reason)

    assert actions(found) == []
    assert stale_name_servers(found) == set()


@pytest.mark.parametrize(
    ("facts", "leads"),
    [
        ({"cluster": "demo", "group": "demo-0", "node": 2}, True),
        ({}, True),
        ({"cluster": "demo", "group": "demo-1", "node": 2}, False),
        ({"cluster": "demo", "group": "demo-0", "node": 1}, False),
        ({"cluster": "other", "group": "demo-0", "node": 2}, False),
    ],
)
async def test_a_process_that_has_the_address_of_a_pod_by_now_is_not_taken_for_it(
    facts: Json, leads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a process that now has a pod's former address is not taken for it; addresses are reused."""

    async def status(_: web.Request) -> web.Response:
        return web.json_response({"role": "leader", "term": 1, "leader": 2, **facts})

    made = pod("demo-0-1", podIP="127.0.0.1")
    labels = {names.LABEL_CLUSTER: "demo", names.LABEL_GROUP: "0"}
    made["metadata"]["labels"] = {**labels, "app.kubernetes.io/component": names.BROKER}
    found = Live(pods={"demo-0-1": pod_facts(made)})
    app = web.Application()
    app.router.add_get("/status", status)
    async with TestServer(app, host="127.0.0.1") as server, aiohttp.ClientSession() as session:
        monkeypatch.setattr(names, "HTTP_PORT", server.port)
        await read_statuses(session, found, lambda _: PageAccess())

    assert (found.leader("demo-0") is not None) is leads
