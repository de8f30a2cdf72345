"""The API server refuses one object of a Cluster: the rest goes on."""

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest

from orderlymq_operator.kube.errors import ApiError, ForbiddenError
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.names import FINALIZER
from orderlymq_operator.kube.reconcile.backoff import MAX_S
from orderlymq_operator.kube.resources import (
    BUDGETS,
    CLAIMS,
    CLUSTERS,
    CONSUMER_GROUPS,
    DEPLOYMENTS,
    INGRESSES,
    NETWORK_POLICIES,
    PODS,
    SECRETS,
    SERVICES,
    STATEFUL_SETS,
    TOPICS,
    Resource,
)
from orderlymq_protocol.codes import RequestCode
from tests.operator.kube.samples import NAMESPACE, custom
from tests.operator.kube.smallcluster import KEY, SmallCluster, small_cluster

CONSOLE = {"enabled": True, "accounts": {"secretName": "who"}, "ingress": {"host": "mq.example"}}
LISTENER = {"name": "public", "type": "LoadBalancer", "port": 9094}
EDIT: dict[str, Any] = {"config": {"logLevel": "DEBUG"}}
CREATE = RequestCode.UPDATE_AND_CREATE_TOPIC
DENIED = "admission webhook denied the request"


@pytest.fixture
async def small(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SmallCluster]:
    async with small_cluster(monkeypatch.setattr) as found:
        for _ in range(6):
            await found.reconciler.reconcile(KEY)
        gone: dict[str, Any] = {
            "finalizers": [FINALIZER],
            "deletionTimestamp": "2026-01-01T00:00:00Z",
        }
        found.server.put(TOPICS, custom("Topic", "gone", spec={"deletionPolicy": "Delete"}, **gone))
        found.server.put(TOPICS, custom("Topic", "new"))
        yield found


async def settle(small: SmallCluster) -> list[str]:
    """Reconcile for a while; return the evicted pods."""
    small.server.writes()
    for _ in range(4):
        small.now[0] += 60
        small.reconciler.inventory.invalidate()
        await small.reconciler.reconcile(KEY)
    return [path for _, path, *_ in small.server.writes() if path.endswith("/eviction")]


def parts(small: SmallCluster) -> tuple[Any, bool]:
    """Return the finalizers of the deleted Topic, and whether brokers were asked to make the new one."""
    gone = small.server.find(TOPICS, NAMESPACE, "gone") or {}
    made = {fields.get("topic") for code, fields, _ in small.scripted.asked if code == CREATE}
    return gone["metadata"]["finalizers"], "new" in made


@pytest.mark.parametrize(
    ("resource", "name", "status", "spec"),
    [
        (INGRESSES, "demo-console", 400, {"console": CONSOLE}),
        (INGRESSES, "demo-console", 500, {"console": CONSOLE}),
        (DEPLOYMENTS, "demo-console", 403, {"console": CONSOLE}),
        (DEPLOYMENTS, "demo-canary", 400, {"canary": {"enabled": True}}),
        (SERVICES, "demo-0-public", 403, {"listeners": [LISTENER]}),
        (BUDGETS, "demo-0", 400, {}),
        (NETWORK_POLICIES, "demo-broker", 400, {"network": {"policies": True}}),
    ],
)
async def test_an_object_that_brokers_do_not_need_stops_nothing_but_itself(
    small: SmallCluster, resource: Resource, name: str, status: int, spec: dict[str, Any]
) -> None:
    """Law: if an object that brokers do not need is refused, the edit is still rolled out, Topics go on,
    and Ready says what was refused.
    """
    if (before := small.server.find(resource, NAMESPACE, name)) is not None:
        gone = small.server.drop(resource, NAMESPACE, name)
        small.shown(resource, gone, gone=True)
        assert before
    small.server.refused[resource.path(NAMESPACE, name)] = (status, DENIED)
    small.change(**EDIT, **spec)

    evicted = await settle(small)

    assert evicted
    finalizers, is_made = parts(small)
    assert not finalizers
    assert is_made
    ready = small.condition("Ready")
    assert (ready["status"], ready["reason"], ready["message"]) == ("False", "ApiRefused", DENIED)


async def test_the_refusal_goes_when_its_cause_goes(small: SmallCluster) -> None:
    """Law: a refused object is tried again, less and less often, until it succeeds; Ready does not change meanwhile."""
    small.server.refused[INGRESSES.path(NAMESPACE, "demo-console")] = (400, DENIED)
    small.change(console=CONSOLE)
    for _ in range(6):
        await small.reconciler.reconcile(KEY)
    since = small.condition("Ready")["lastTransitionTime"]
    small.server.writes()
    pauses = [await small.reconciler.reconcile(KEY) or 0.0 for _ in range(20)]
    statuses = [path for _, path, *_ in small.server.writes() if path.endswith("/demo/status")]
    small.server.refused.clear()
    await small.reconciler.reconcile(KEY)

    assert (pauses[-1], statuses, since) == (
        MAX_S,
        [],
        small.condition("Ready")["lastTransitionTime"],
    )
    assert small.server.find(INGRESSES, NAMESPACE, "demo-console") is not None


async def test_a_service_of_somebody_else_stops_no_broker(small: SmallCluster) -> None:
    """Law: a listener's Service name that somebody else has taken stops no broker."""
    foreign = {"name": "demo-0-public", "namespace": NAMESPACE, "uid": "foreign"}
    spec = {"ports": [{"port": 1}]}
    small.server.put(
        SERVICES, {"apiVersion": "v1", "kind": "Service", "metadata": foreign, "spec": spec}
    )
    small.change(**EDIT, listeners=[LISTENER])

    assert await settle(small)
    assert small.condition("Ready")["reason"] == "NameTaken"
    assert not parts(small)[0]


@pytest.mark.parametrize("status", [403, 422])
async def test_a_part_that_may_not_be_written_stops_nothing_but_itself(
    small: SmallCluster, status: int
) -> None:
    """Law: a part that may not be written stops only itself; one that cannot get its finalizer is not made in the brokers."""
    for name, policy in (("new", "Retain"), ("held", "Delete")):
        spec = {"type": "Normal", "deletionPolicy": policy}
        small.server.put(TOPICS, custom("Topic", name, spec=spec))
    for name in ("gone", "held"):
        small.server.refused[TOPICS.path(NAMESPACE, name)] = (status, "spec.queues: Invalid")
    small.change(**EDIT)

    assert await settle(small)
    assert parts(small)[0] == [FINALIZER]
    assert small.condition("Ready")["reason"] != "ApiRefused"
    made = {fields.get("topic") for code, fields, _ in small.scripted.asked if code == CREATE}
    assert {"new", "held"} & made == {"new"}


async def test_a_group_waits_for_a_topic_that_cannot_be_held(small: SmallCluster) -> None:
    """Law: a ConsumerGroup waits for a Topic that cannot get its finalizer, because its start position needs the queues."""
    for name, resource, spec in (
        ("new", TOPICS, {"type": "Normal", "deletionPolicy": "Delete"}),
        ("billing", CONSUMER_GROUPS, {"topics": [{"name": "new"}], "startFrom": "Earliest"}),
    ):
        small.server.put(resource, custom(resource.kind, name, spec=spec))
    small.server.refused[TOPICS.path(NAMESPACE, "new")] = (422, "spec.queues: Invalid")
    small.change(**EDIT)

    assert await settle(small)
    made = {code for code, *_ in small.scripted.asked}
    assert RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP not in made


@pytest.mark.parametrize("status", [400, 500])
async def test_what_brokers_need_stops_pods_alone(small: SmallCluster, status: int) -> None:
    """Law: if an object that brokers need is refused, no pod is replaced, and Topics go on.

    The same holds if the server fails again and again at that object.
    """
    small.server.refused[STATEFUL_SETS.path(NAMESPACE, "demo-0")] = (status, DENIED)
    small.change(**EDIT)
    small.server.writes()
    for _ in range(6):
        small.now[0] += 60
        small.reconciler.inventory.invalidate()
        with pytest.raises(ApiError, match=DENIED):
            await small.reconciler.reconcile(KEY)

    assert not [path for _, path, *_ in small.server.writes() if path.endswith("/eviction")]
    finalizers, is_made = parts(small)
    assert not finalizers
    assert is_made
    assert small.condition("Ready")["reason"] == "ApiRefused"


@pytest.mark.parametrize("status", [400, 500])
async def test_brokers_of_a_cluster_whose_objects_are_refused_are_reported(
    small: SmallCluster, status: int
) -> None:
    """Law: brokers of a Cluster whose objects are refused are still observed; nobody takes old leaders for present ones."""
    small.server.refused[STATEFUL_SETS.path(NAMESPACE, "demo-0")] = (status, DENIED)
    small.change(**EDIT)
    await refusals(small, 6)
    before = small.condition("Available")["status"]
    small.serve(role="candidate", leader=0)
    _, writes = await refusals(small, 2)

    found = small.server.find(CLUSTERS, *KEY) or {}
    assert (before, small.condition("Available")["status"]) == ("True", "False")
    assert (found["status"]["leaders"], writes) == ("0/1", 0)
    assert small.condition("Ready")["reason"] == "ApiRefused"


async def refusals(small: SmallCluster, times: int) -> tuple[list[str], int]:
    """Let reconciles fail; return Ready's reason after each one, and how often the last one wrote the Cluster's status."""
    reasons, count = [], 0
    for _ in range(times):
        small.now[0] += 60
        small.reconciler.inventory.invalidate()
        small.server.writes()
        with suppress(ApiError):
            await small.reconciler.reconcile(KEY)
        status = CLUSTERS.path(*KEY) + "/status"
        count = sum(path == status for _, path, *_ in small.server.writes())
        reasons.append(str(small.condition("Ready")["reason"]))
    return reasons, count


async def test_pods_that_two_budgets_select_are_named_until_one_budget_goes(
    small: SmallCluster,
) -> None:
    """Law: pods that two budgets select are reported once, with what a person must do; the roll goes on when one is gone."""
    small.server.overlapping = {"demo-0-0", "demo-nameserver-0"}
    small.change(**EDIT)

    reasons, writes = await refusals(small, 6)

    assert reasons[3:] == ["BudgetsOverlap"] * 3
    assert "delete the one that is not the operator's" in small.condition("Ready")["message"]
    assert writes == 0
    small.server.overlapping.clear()
    assert await settle(small)
    assert small.condition("Ready")["reason"] != "BudgetsOverlap"


@pytest.mark.parametrize(
    ("status", "begin"),
    [
        (500, f"POST {PODS.path(NAMESPACE, 'demo-0-0', 'eviction')}"),
        (500, f"GET {PODS.path(NAMESPACE)}"),
        (500, f"GET {SECRETS.path(NAMESPACE)}"),
        (500, f"PATCH {STATEFUL_SETS.path(NAMESPACE)}"),
        (409, f"GET {PODS.path(NAMESPACE)}"),
        (409, f"PATCH {STATEFUL_SETS.path(NAMESPACE)}"),
    ],
)
async def test_a_failure_of_the_api_server_that_stays_is_said_wherever_it_comes(
    small: SmallCluster, status: int, begin: str
) -> None:
    """Law: a passing failure of the API server is not reported, a lasting one is, whichever request it is."""
    small.server.refused[begin] = (status, "no such thing as a free lunch")
    small.change(**EDIT)

    reasons, writes = await refusals(small, 7)

    assert "ApiRefused" not in reasons[:3]
    assert reasons[4:] == ["ApiRefused"] * 3
    assert small.condition("Ready")["message"].endswith("a free lunch")
    assert writes == 0
    small.server.refused.clear()
    await settle(small)
    assert small.condition("Ready")["reason"] != "ApiRefused"


def leave_over_a_claim(small: SmallCluster) -> str:
    """Put the volume claim of a removed replica; return the request that deletes it."""
    found = small.server.find(CLAIMS, NAMESPACE, "data-demo-0-0") or {}
    meta = {**found["metadata"], "name": "data-demo-0-1", "uid": "left-over"}
    small.shown(CLAIMS, small.server.put(CLAIMS, {**found, "metadata": meta}), gone=False)
    return f"DELETE {CLAIMS.path(NAMESPACE, 'data-demo-0-1')}"


def strip_the_leader(small: SmallCluster) -> str:
    """Remove the leader's label from its pod; return the request that sets it again."""
    found = small.server.find(PODS, NAMESPACE, "demo-0-0") or {}
    labels = {**found["metadata"]["labels"]}
    del labels[names.LABEL_ROLE]
    meta = {**found["metadata"], "labels": labels}
    small.shown(PODS, small.server.put(PODS, {**found, "metadata": meta}), gone=False)
    return f"PATCH {PODS.path(NAMESPACE, 'demo-0-0')}"


@pytest.mark.parametrize("status", [403, 500])
@pytest.mark.parametrize("disturb", [leave_over_a_claim, strip_the_leader])
async def test_what_is_refused_beside_the_plan_keeps_no_report_waiting(
    small: SmallCluster, disturb: Callable[[SmallCluster], str], status: int
) -> None:
    """Law: a refused deletion of a volume, or change of a pod, does not delay Topics and their reports."""
    small.server.refused[disturb(small)] = (status, DENIED)

    reasons, _ = await refusals(small, 8)

    finalizers, is_made = parts(small)
    assert not finalizers
    assert is_made
    told = (small.server.find(TOPICS, NAMESPACE, "new") or {})["status"]["conditions"]
    assert [each["reason"] for each in told] == ["Progressing"]
    assert small.condition("Ready")["message"] == DENIED
    assert reasons[-3:] == ["ApiRefused"] * 3
    assert small.condition("StorageReady")["reason"] == "Bound"
    small.server.refused.clear()
    await settle(small)
    assert DENIED not in small.condition("Ready")["message"]


async def test_a_cluster_that_names_a_secret_twice_says_what_to_do(small: SmallCluster) -> None:
    """Law: a spec that names a Secret twice (an earlier version took it) says what to do,
    and the previous spec is carried out.
    """
    small.change(**EDIT, imagePullSecrets=["r", "r"])

    await settle(small)

    assert not parts(small)[0]
    ready = small.condition("Ready")
    assert ready["reason"] == "Invalid"
    assert "Secret 'r' is given twice; remove one" in ready["message"]


@pytest.mark.parametrize(
    ("resource", "status", "spec"),
    [
        (INGRESSES, 404, {"console": CONSOLE}),
        (DEPLOYMENTS, 403, {"canary": {"enabled": True}}),
        (BUDGETS, 403, {}),
        (NETWORK_POLICIES, 403, {"network": {"policies": True}}),
    ],
)
async def test_a_kind_that_cannot_be_listed_stops_nothing_but_itself(
    small: SmallCluster, resource: Resource, status: int, spec: dict[str, Any]
) -> None:
    """Law: if a kind of object cannot be listed, only that kind is left alone, and Ready says so until the right is there."""
    small.server.refused[resource.path(NAMESPACE)] = (status, DENIED)
    small.change(**EDIT, **spec)

    assert await settle(small)
    finalizers, is_made = parts(small)
    assert not finalizers
    assert is_made
    ready = small.condition("Ready")
    assert ready["message"] == f"{resource.plural} cannot be listed: {DENIED}"
    assert ready["reason"] == "ApiRefused"

    small.server.refused.clear()
    await settle(small)
    assert "cannot be listed" not in small.condition("Ready")["message"]
    assert [name for kind, name in _made(small) if kind == resource.kind]


@pytest.mark.parametrize("resource", [INGRESSES, DEPLOYMENTS])
async def test_a_right_that_nothing_needs_may_lack(small: SmallCluster, resource: Resource) -> None:
    """Law: a missing right does not matter if the Cluster needs no object of that kind; it costs no more requests."""
    small.server.refused[resource.path(NAMESPACE)] = (403, DENIED)
    small.reconciler.interrupted((resource.kind,))
    for _ in range(2):
        await small.reconciler.reconcile(KEY)
    assert small.condition("Ready")["status"] == "True"

    assert await small.lists() == (None, 1)


async def test_a_kind_that_brokers_need_must_be_listed(small: SmallCluster) -> None:
    """Law: a kind that brokers need must be listed; otherwise nobody knows what runs, and the pass fails."""
    small.server.refused[STATEFUL_SETS.path(NAMESPACE)] = (403, DENIED)
    small.reconciler.interrupted((STATEFUL_SETS.kind,))
    with pytest.raises(ForbiddenError, match=DENIED):
        await small.reconciler.reconcile(KEY)


def _made(small: SmallCluster) -> list[tuple[str, str]]:
    return [(each["kind"], each["metadata"]["name"]) for each in small.server.objects.values()]


@pytest.mark.parametrize(
    ("resource", "labels"),
    [(NETWORK_POLICIES, {}), (SERVICES, {names.LABEL_LISTENER: "public"})],
)
async def test_an_object_of_somebody_else_with_the_label_of_the_cluster_stays(
    small: SmallCluster, resource: Resource, labels: dict[str, str]
) -> None:
    """Law: an object of somebody else with the Cluster's label is never deleted."""
    meta = {
        "name": "mine",
        "namespace": NAMESPACE,
        "labels": {names.LABEL_CLUSTER: "demo", **labels},
    }
    made = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta, "spec": {}}
    small.shown(resource, small.server.put(resource, made), gone=False)
    small.change(network={"policies": False})

    await settle(small)

    assert small.server.find(resource, NAMESPACE, "mine") is not None
