"""Deleted objects wait only for a limited time for a Cluster that the operator cannot read, whatever the cause is."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from orderlymq_operator.kube.errors import ApiError
from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.observe.credentials import Credentials
from orderlymq_operator.kube.observe.inventory import Inventory
from orderlymq_operator.kube.reconcile.backend import Defaults
from orderlymq_operator.kube.reconcile.cluster import ClusterReconciler
from orderlymq_operator.kube.reconcile.finalizers import GIVE_UP_S
from orderlymq_operator.kube.resources import (
    CLUSTERS,
    CONSUMER_GROUPS,
    PODS,
    SERVICES,
    STATEFUL_SETS,
    TOPICS,
    USERS,
    Json,
    Resource,
)
from tests.operator.kube.objectserver import ObjectServer
from tests.operator.kube.samples import IMAGE, NAMESPACE, custom

KEY = (NAMESPACE, "demo")
LEAVING: dict[str, Any] = {
    "finalizers": [names.FINALIZER],
    "deletionTimestamp": "2026-01-01T00:00:00Z",
}
BACKUP = {"fromBackup": {"destination": {"objectStore": {"url": "s3://shop/demo"}}}}


def put(server: ObjectServer, resource: Resource, name: str, owner: str, **facts: Any) -> None:
    """Put an object that belongs to a Cluster."""
    meta: Json = {
        "name": name,
        "namespace": NAMESPACE,
        "labels": {names.LABEL_CLUSTER: "demo"},
        "annotations": {names.ANNOTATION_ACCEPTED: "{}"},
        "ownerReferences": [{"kind": "Cluster", "name": "demo", "uid": owner}],
    }
    kind = {"apiVersion": resource.api_version, "kind": resource.kind}
    server.put(resource, {**kind, "metadata": meta, **facts})


def former_service(server: ObjectServer) -> None:
    put(server, SERVICES, "demo-0", "a-former-one", spec={})


def lost_secret(server: ObjectServer) -> None:
    template: Json = {"metadata": {}, "spec": {"containers": [{"image": IMAGE}]}}
    put(server, STATEFUL_SETS, "demo-nameserver", "uid-shop-demo", spec={"template": template})


def lost_right(server: ObjectServer) -> None:
    server.refused[f"GET {STATEFUL_SETS.path(NAMESPACE)}"] = (403, "no Role")


def broken_list(server: ObjectServer) -> None:
    server.refused[f"GET {PODS.path(NAMESPACE)}"] = (500, "no such thing as a free lunch")


def nothing(server: ObjectServer) -> None:
    pass


@asynccontextmanager
async def reconciling(server: ObjectServer, now: list[float]) -> AsyncIterator[ClusterReconciler]:
    async with server.serving() as api:
        reconciler = ClusterReconciler(
            api,
            Inventory(api, (NAMESPACE,)),
            Defaults(IMAGE, "IfNotPresent"),
            OperatorMetrics(),
            Credentials(api, lambda: 1),
            lambda _: "",
            lambda: now[0],
        )
        yield reconciler
        await reconciler.close()


def held(server: ObjectServer) -> set[str]:
    """Return the kinds of the parts that still have their finalizer."""
    return {
        each.kind
        for each in (TOPICS, CONSUMER_GROUPS, USERS)
        if (server.find(each, NAMESPACE, "held") or {})["metadata"]["finalizers"]
    }


@pytest.mark.parametrize("is_paused", [False, True])
@pytest.mark.parametrize(
    ("spec", "breaks"),
    [
        pytest.param({}, former_service, id="an object of a former Cluster stays"),
        pytest.param({}, lost_secret, id="a Secret of its processes is gone"),
        pytest.param({}, lost_right, id="its objects may not be listed"),
        pytest.param({}, broken_list, id="its objects cannot be listed"),
        pytest.param(
            {"security": {"internalIssuer": {"secretName": "issuer"}}}, nothing, id="no issuer"
        ),
        pytest.param({"bootstrap": BACKUP}, nothing, id="its backup is not found"),
    ],
)
async def test_a_cluster_that_cannot_be_looked_at_keeps_no_namespace(
    spec: Json, breaks: Callable[[ObjectServer], None], is_paused: bool
) -> None:
    """Law: a Cluster that cannot be read keeps no namespace.

    A User's account is the exception; in a pause all objects wait.
    """
    server, now = ObjectServer(), [0.0]
    notes = {names.ANNOTATION_PAUSE: "true"} if is_paused else {}
    server.put(CLUSTERS, custom("Cluster", "demo", spec=spec, annotations=notes))
    for resource, own in (
        (TOPICS, {"deletionPolicy": "Delete"}),
        (CONSUMER_GROUPS, {"deletionPolicy": "Delete"}),
        (USERS, {"secretFrom": {"secret": {"name": "s"}}}),
    ):
        server.put(resource, custom(resource.kind, "held", uid=resource.kind, spec=own, **LEAVING))
    breaks(server)

    async with reconciling(server, now) as reconciler:
        for _ in range(3):
            with suppress(ApiError):  # the work queue tries it again
                await reconciler.reconcile(KEY)
        early = held(server)
        for _ in range(4):
            now[0] += GIVE_UP_S / 2 + 1
            with suppress(ApiError):
                await reconciler.reconcile(KEY)

    assert early == {"Topic", "ConsumerGroup", "User"}
    assert held(server) == (early if is_paused else {"User"})


async def test_what_is_deleted_goes_when_the_definition_of_clusters_has_gone() -> None:
    """Law: if the definition of Clusters is deleted, deleted objects go: there is nothing more to wait for."""
    server = ObjectServer()
    for resource in (TOPICS, CONSUMER_GROUPS, USERS):
        server.put(resource, custom(resource.kind, "held", **LEAVING))
    server.refused[CLUSTERS.path(NAMESPACE)] = (404, "404 page not found")

    async with reconciling(server, [0.0]) as reconciler:
        await reconciler.reconcile(KEY)

    assert held(server) == set()
