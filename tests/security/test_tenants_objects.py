"""
A stranger's Topic, ConsumerGroup or User that names a Cluster of another namespace changes nothing there.

Each manifest worked once: it made the stranger an administrator, or deleted messages.
"""

from typing import Any

import pytest

from orderlymq_operator.kube.objects.names import FINALIZER
from orderlymq_operator.kube.observe.desired import desired_state
from orderlymq_operator.kube.observe.inventory import read_item
from orderlymq_operator.kube.resources import CONSUMER_GROUPS, TOPICS, USERS, Json, Resource
from orderlymq_operator.plan.actions import Subject
from orderlymq_operator.resources.kinds import Desired
from tests.operator.kube.samples import NAMESPACE, cluster, custom, item
from tests.operator.kube.smallcluster import KEY, small_cluster

STRANGER = "evil"
SECRET = {"secretFrom": {"secret": {"name": "mine"}}}
DELETE = {"deletionPolicy": "Delete"}
ATTACKS: list[tuple[Resource, dict[str, Any]]] = [
    (USERS, {**SECRET, "admin": True}),
    (USERS, {**SECRET, "accessKey": "orderlymq-operator"}),
    (TOPICS, {"topicName": "orders", **DELETE}),
    (CONSUMER_GROUPS, {"groupName": "billing", **DELETE}),
]
LEAVING: dict[str, Any] = {"deletionTimestamp": "2026-01-02T00:00:00Z", "finalizers": [FINALIZER]}


def attack(resource: Resource, spec: dict[str, Any], **facts: Any) -> Json:
    return custom(resource.kind, "attack", STRANGER, spec=spec, **facts)


@pytest.mark.parametrize(("resource", "spec"), ATTACKS)
@pytest.mark.parametrize("facts", [{}, {"finalizers": [FINALIZER]}, LEAVING])
def test_the_cluster_wants_nothing_that_a_stranger_wants(
    resource: Resource, spec: dict[str, Any], facts: dict[str, Any]
) -> None:
    """The object has no effect while it exists, when it is deleted, or by its finalizers."""
    made = read_item(resource, attack(resource, spec, **facts))
    assert made.manifest is not None

    state = desired_state(cluster(), [made])

    assert state.desired == Desired(cluster())
    assert state.leaving == []


def test_a_stranger_that_is_older_holds_no_name() -> None:
    """Among objects of the same name, only those of allowed namespaces compete, and the oldest of these wins."""
    first = item("Topic", "orders", STRANGER, creationTimestamp="2020-01-01T00:00:00Z")
    own = item("Topic", "orders")

    state = desired_state(cluster(), [first, own])

    assert [topic.metadata.name for topic in state.desired.topics] == ["shop/orders"]
    assert state.verdicts.keys() == {Subject("Topic", f"{STRANGER}/orders")}


@pytest.mark.parametrize(
    ("allowed", "namespace", "counts"),
    [
        ([], NAMESPACE, True),
        ([], STRANGER, False),
        (["sales"], "sales", True),
        (["sales"], STRANGER, False),
        (["sales"], "sales-2", False),
        (["*"], STRANGER, True),
    ],
)
def test_only_the_own_namespace_and_listed_ones_count(
    allowed: list[str], namespace: str, counts: bool
) -> None:
    """Names of namespaces are compared as a whole; * stands for all."""
    state = desired_state(cluster(allowedNamespaces=allowed), [item("Topic", "orders", namespace)])

    assert bool(state.desired.topics) is counts


@pytest.mark.parametrize(("resource", "spec"), ATTACKS)
async def test_a_stranger_learns_whom_to_ask_and_gets_no_finalizer(
    monkeypatch: pytest.MonkeyPatch, resource: Resource, spec: dict[str, Any]
) -> None:
    """The condition names the Cluster, the namespace and the field to change."""
    async with small_cluster(monkeypatch.setattr, (NAMESPACE, STRANGER)) as world:
        world.server.put(resource, attack(resource, spec))

        await world.reconciler.reconcile(KEY)

        found = world.server.find(resource, STRANGER, "attack")
        assert found is not None
        (ready,) = found["status"]["conditions"]
        assert (ready["status"], ready["reason"]) == ("False", "NamespaceNotAllowed")
        assert "spec.allowedNamespaces" in ready["message"]
        assert "'shop'" in ready["message"]
        assert FINALIZER not in found["metadata"].get("finalizers", [])


@pytest.mark.parametrize(("resource", "spec"), ATTACKS)
async def test_a_stranger_s_deletion_waits_for_nobody_and_deletes_nothing(
    monkeypatch: pytest.MonkeyPatch, resource: Resource, spec: dict[str, Any]
) -> None:
    """Otherwise a namespace that lost its permission could not be deleted."""
    async with small_cluster(monkeypatch.setattr, (NAMESPACE, STRANGER)) as world:
        world.server.put(resource, attack(resource, spec, **LEAVING))

        await world.reconciler.reconcile(KEY)

        found = world.server.find(resource, STRANGER, "attack")
        assert found is not None
        assert found["metadata"]["finalizers"] == []
