"""Volumes of a running Cluster grow by themselves up to the limit, if their StorageClass allows it."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.resources import CLAIMS, EVENTS, PODS, STORAGE_CLASSES
from orderlymq_operator.resources.conditions.table import REASONS
from tests.operator.kube.samples import NAMESPACE, pod
from tests.operator.kube.smallcluster import KEY, SmallCluster, small_cluster

_NAME = "data-demo-0-0"


@pytest.fixture
async def growing(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SmallCluster]:
    storage = {"autoGrow": {"threshold": 70, "step": "10Gi", "limit": "35Gi"}}
    async with small_cluster(monkeypatch.setattr, storage=storage) as found:
        found.server.put(
            STORAGE_CLASSES, {"metadata": {"name": "standard"}, "allowVolumeExpansion": True}
        )
        await settle(found)
        yield found


async def settle(small: SmallCluster) -> None:
    for _ in range(3):
        await small.reconciler.reconcile(KEY)


def asked(small: SmallCluster) -> str:
    claim = small.server.find(CLAIMS, NAMESPACE, _NAME)
    assert claim is not None
    return str(claim["spec"]["resources"]["requests"]["storage"])


def grant(small: SmallCluster) -> None:
    """Let the volume get the size that was asked for, and a watch show that."""
    claim = small.server.find(CLAIMS, NAMESPACE, _NAME)
    assert claim is not None
    status: dict[str, Any] = {"phase": "Bound", "capacity": {"storage": asked(small)}}
    small.shown(CLAIMS, small.server.put(CLAIMS, {**claim, "status": status}), gone=False)


async def test_a_volume_grows_step_by_step_while_its_disk_fills(growing: SmallCluster) -> None:
    """Law: a volume grows step by step while its disk fills, waiting for each step;
    at the limit the condition asks a person.
    """
    calm = asked(growing)
    growing.serve(disk={"ratio": 0.75})
    await settle(growing)
    first, said = asked(growing), growing.condition("StorageReady")
    grant(growing)
    await settle(growing)
    second = asked(growing)
    grant(growing)
    await settle(growing)
    full = growing.condition("StorageReady")
    growing.serve(disk={"ratio": 0.5})
    await settle(growing)

    assert (calm, first, second, asked(growing)) == ("20Gi", "30Gi", "35Gi", "35Gi")
    assert (said["status"], said["reason"]) == ("False", "Resizing")
    assert (full["status"], full["reason"]) == ("False", "GrowthLimitReached")
    assert "more than 70 % full" in full["message"]
    assert growing.condition("StorageReady")["status"] == "True"


@pytest.mark.parametrize("ratio", [10, 72])
async def test_a_volume_grows_before_its_broker_refuses_sends(
    growing: SmallCluster, ratio: int
) -> None:
    """Law: a volume grows before its broker refuses sends or backups; a greater threshold would never be reached."""
    growing.change(config={"diskMaxUsedSpaceRatio": ratio})
    growing.serve(disk={"ratio": ratio / 100 - 0.06})
    await settle(growing)
    calm = asked(growing)
    growing.serve(disk={"ratio": ratio / 100 - 0.04})
    await settle(growing)
    first = asked(growing)
    grant(growing)
    await settle(growing)
    grant(growing)
    await settle(growing)

    assert (calm, first, asked(growing)) == ("20Gi", "30Gi", "35Gi")
    assert growing.condition("StorageReady")["reason"] == "GrowthLimitReached"
    assert f"more than {ratio - 5} % full" in growing.condition("StorageReady")["message"]


def events(small: SmallCluster) -> list[tuple[str, str, str]]:
    """Return the events about room, the oldest first."""
    told = {reason.name for reason in REASONS if "StorageReady" in reason.conditions}
    return [
        (each["type"], each["reason"], each["message"])
        for path, each in small.server.objects.items()
        if path.startswith(EVENTS.path(NAMESPACE)) and each["reason"] in told
    ]


async def test_growth_is_an_event_and_the_limit_a_warning(
    growing: SmallCluster,
) -> None:
    """Law: a growth is an event, and the limit a warning."""
    assert events(growing) == []
    growing.serve(disk={"ratio": 0.75})
    for _ in range(2):
        await settle(growing)
        grant(growing)
    await settle(growing)
    growing.serve(disk={"ratio": 0.5})
    await settle(growing)
    await settle(growing)

    steps = [(kind, reason) for kind, reason, _ in events(growing)]
    assert steps == [
        ("Normal", "Resizing"),
        ("Warning", "GrowthLimitReached"),
        ("Normal", "Bound"),
    ]
    assert events(growing)[0][2] == f"{_NAME} grows from 20Gi to 30Gi"


async def test_a_class_that_does_not_let_volumes_grow_is_named(growing: SmallCluster) -> None:
    """Law: a StorageClass without growth is reported before a disk fills and afterwards; no growth is asked for."""
    growing.server.put(STORAGE_CLASSES, {"metadata": {"name": "standard"}})
    await settle(growing)
    early = growing.condition("StorageReady")
    growing.serve(disk={"ratio": 0.75})
    await settle(growing)

    assert asked(growing) == "20Gi"
    assert (early["status"], early["reason"]) == ("False", "NotExpandable")
    assert growing.condition("StorageReady")["reason"] == "NotExpandable"
    assert growing.condition("Ready")["status"] == "True"


async def test_a_volume_that_may_not_grow_keeps_nothing_else_from_being_done(
    growing: SmallCluster,
) -> None:
    """Law: a refused growth (a full quota) is in the condition, and everything after volumes goes on."""
    growing.server.refused[CLAIMS.path(NAMESPACE, _NAME)] = (403, "exceeded quota: disks")
    growing.serve(disk={"ratio": 0.75})
    await settle(growing)
    refused = growing.condition("StorageReady")
    growing.server.refused.clear()
    await settle(growing)

    assert (refused["status"], refused["reason"]) == ("False", "GrowthRefused")
    assert "exceeded quota: disks" in refused["message"]
    assert asked(growing) == "30Gi"


async def test_a_growth_that_waits_for_a_pod_says_so(growing: SmallCluster) -> None:
    """Law: a growth that waits for a pod's restart says so, because the disk goes on filling."""
    growing.serve(disk={"ratio": 0.75})
    await settle(growing)
    claim = growing.server.find(CLAIMS, NAMESPACE, _NAME)
    assert claim is not None
    waits = {
        "type": "FileSystemResizePending",
        "status": "True",
        "message": "Waiting for user to (re-)start a pod to finish file system resize of volume on node.",
    }
    status = {**claim["status"], "conditions": [waits]}
    growing.shown(CLAIMS, growing.server.put(CLAIMS, {**claim, "status": status}), gone=False)
    await settle(growing)

    told = growing.condition("StorageReady")
    assert told["reason"] == "Resizing"
    assert told["message"] == f"{_NAME} has 20Gi of 30Gi: {waits['message']}"


async def test_a_volume_that_is_not_bound_yet_is_left_alone(growing: SmallCluster) -> None:
    """Law: an unbound volume claim is left alone, because the API server refuses its growth."""
    claim = growing.server.find(CLAIMS, NAMESPACE, _NAME)
    assert claim is not None
    waiting = growing.server.put(CLAIMS, {**claim, "status": {"phase": "Pending"}})
    growing.shown(CLAIMS, waiting, gone=False)
    growing.change(storage={"size": "40Gi"})
    growing.server.writes()

    await settle(growing)

    assert asked(growing) == "20Gi"
    assert CLAIMS.path(NAMESPACE, _NAME) not in [path for _, path, *_ in growing.server.writes()]


@pytest.mark.parametrize("is_made_again", [False, True])
async def test_only_the_claim_that_was_looked_at_is_deleted(
    growing: SmallCluster, is_made_again: bool
) -> None:
    """Law: only the claim that was looked at is deleted; a late deletion does not reach a new claim of its name."""
    left, server = "data-demo-0-1", growing.server
    claim = server.find(CLAIMS, NAMESPACE, _NAME)
    assert claim is not None

    meta = {key: claim["metadata"][key] for key in ("namespace", "labels")}
    made = {**claim, "metadata": {**meta, "name": left}}

    async def make_again() -> None:
        if server.find(CLAIMS, NAMESPACE, left) is not None:
            server.put(CLAIMS, made)

    server.put(CLAIMS, made)
    growing.reconciler.interrupted((CLAIMS.kind,))
    server.slow = make_again if is_made_again else server.slow
    server.writes()
    await settle(growing)

    assert ("DELETE", CLAIMS.path(NAMESPACE, left)) in server.writes()
    assert (server.find(CLAIMS, NAMESPACE, left) is not None) == is_made_again


@pytest.mark.parametrize("name", ["data-demo-0-copy", "data-demo-0-7", "data-demo-0-01"])
async def test_a_claim_that_no_replica_ever_had_is_left_to_its_owner(
    growing: SmallCluster, name: str
) -> None:
    """Law: a claim that no replica ever had (a copied volume has the labels) is neither deleted nor counted."""
    claim, server = growing.server.find(CLAIMS, NAMESPACE, _NAME), growing.server
    assert claim is not None
    meta = {key: claim["metadata"][key] for key in ("namespace", "labels")}
    server.put(CLAIMS, {**claim, "metadata": {**meta, "name": name}})
    growing.reconciler.interrupted((CLAIMS.kind,))
    server.writes()

    await settle(growing)

    assert ("DELETE", CLAIMS.path(NAMESPACE, name)) not in server.writes()
    assert growing.condition("Ready")["status"] == "True"


@pytest.mark.parametrize("component", [names.BROKER, names.NAME_SERVER, "tool"])
@pytest.mark.parametrize("name", ["debug", "x-0", "demo-0-0-debug"])
async def test_a_pod_that_only_has_the_labels_of_a_process_is_none(
    growing: SmallCluster, component: str, name: str
) -> None:
    """Law: a foreign pod with a process's labels (to pass the NetworkPolicies) does not count as a process."""
    made = pod(name, uid=name, podIP="127.0.0.9")
    made["metadata"]["labels"] = {
        names.LABEL_CLUSTER: "demo",
        names.LABEL_GROUP: "0",
        "app.kubernetes.io/component": component,
    }
    growing.server.put(PODS, made)
    growing.reconciler.interrupted((PODS.kind,))

    await settle(growing)

    scope = growing.reconciler.seen[KEY]
    assert set(scope.live.pods) == {"demo-0-0", "demo-nameserver-0"}
    assert growing.condition("Ready")["status"] == "True"


def delete_claim(small: SmallCluster) -> None:
    """Delete the claim of the only replica, as a person does; Kubernetes keeps it while a pod uses it."""
    claim = small.server.find(CLAIMS, NAMESPACE, _NAME)
    assert claim is not None
    meta = {**claim["metadata"], "deletionTimestamp": "2026-01-02T00:00:00Z"}
    small.shown(CLAIMS, small.server.put(CLAIMS, {**claim, "metadata": meta}), gone=False)


async def evicted(small: SmallCluster) -> set[str]:
    small.server.writes()
    await settle(small)
    return {path.split("/")[-2] for _, path, *_ in small.server.writes() if "eviction" in path}


async def test_the_only_replica_of_a_group_is_not_restarted_while_its_volume_would_go(
    growing: SmallCluster,
) -> None:
    """Law: the only replica of a group is not restarted while its claim is being deleted, because its data would go;
    it is reported.
    """
    delete_claim(growing)
    await settle(growing)
    told = growing.condition("StorageReady")
    growing.change(config={"logLevel": "DEBUG"})

    gone = await evicted(growing)

    assert (told["status"], told["reason"]) == ("False", "ClaimDeleted")
    assert _NAME in told["message"]
    assert gone == {"demo-nameserver-0"}
    progress = growing.condition("Progressing")
    assert (progress["status"], _NAME in progress["message"]) == ("True", True)
    assert growing.condition("StorageReady")["reason"] == "ClaimDeleted"
