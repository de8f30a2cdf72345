"""The console comes, changes and goes as the Cluster wants; an API server keeps its objects."""

from typing import Any

import pytest

from orderlymq_operator.kube.objects.console import KINDS
from orderlymq_operator.kube.resources import (
    DEPLOYMENTS,
    INGRESSES,
    STATEFUL_SETS,
    Json,
    Resource,
)
from tests.operator.kube.samples import NAMESPACE
from tests.operator.kube.smallcluster import KEY, SmallCluster, small_cluster

ACCOUNTS = {"secretName": "who-may-look"}


def find(small: SmallCluster, resource: Resource) -> Json | None:
    return small.server.find(resource, NAMESPACE, "demo-console")


async def calm(small: SmallCluster) -> None:
    """Reconcile until nothing is to be done."""
    while await small.reconciler.reconcile(KEY) is not None:
        pass


async def test_the_console_comes_changes_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: the console is made, changed and removed with only the chart's rights; the brokers' StatefulSet stays as it is."""
    console: dict[str, Any] = {"enabled": True, "accounts": ACCOUNTS}
    async with small_cluster(monkeypatch.setattr) as small:
        await calm(small)
        before = small.server.find(STATEFUL_SETS, NAMESPACE, "demo-0")
        assert find(small, DEPLOYMENTS) is None

        small.change(console={**console, "ingress": {"host": "orders.example"}})
        await calm(small)
        assert None not in [find(small, resource) for resource in KINDS]

        small.change(console={**console, "readOnly": True})
        await calm(small)
        deployment = find(small, DEPLOYMENTS)
        assert deployment is not None
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert "--read-only" in container["command"]
        assert find(small, INGRESSES) is None

        small.change(console={"enabled": False})
        await calm(small)
        assert [find(small, resource) for resource in KINDS] == [None] * len(KINDS)
        after = small.server.find(STATEFUL_SETS, NAMESPACE, "demo-0")
        assert before is not None
        assert after is not None
        assert before["spec"] == after["spec"]


async def test_a_deployment_that_somebody_changes_is_put_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: a Deployment that somebody changed is put right; one that is right is left alone."""
    console = {"enabled": True, "accounts": ACCOUNTS}
    async with small_cluster(monkeypatch.setattr, console=console) as small:
        await calm(small)
        deployment = find(small, DEPLOYMENTS)
        assert deployment is not None
        small.server.put(DEPLOYMENTS, {**deployment, "spec": {**deployment["spec"], "replicas": 3}})
        small.change(console={**console, "hosts": ["console.example"]})
        await calm(small)
        small.server.writes()
        await calm(small)

        deployment = find(small, DEPLOYMENTS)
        assert deployment is not None
        assert deployment["spec"]["replicas"] == 1
        assert small.server.writes() == []
