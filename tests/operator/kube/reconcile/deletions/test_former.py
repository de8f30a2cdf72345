"""A Cluster that is deleted and made again under its name: nothing of the former one counts as part of the new one."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from orderlymq_operator.kube.errors import NameTakenError, RetryLaterError
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.reconcile.backoff import MAX_S, SOON_OBSERVATIONS
from orderlymq_operator.kube.resources import (
    CLAIMS,
    CLUSTERS,
    CONFIG_MAPS,
    PODS,
    SERVICES,
    STATEFUL_SETS,
    TOPICS,
    Json,
)
from tests.operator.kube.samples import NAMESPACE, custom
from tests.operator.kube.smallcluster import KEY, SmallCluster, small_cluster

NEW = "made-again"


@pytest.fixture
async def small(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SmallCluster]:
    async with small_cluster(monkeypatch.setattr) as found:
        await settle(found)
        yield found


async def settle(small: SmallCluster) -> None:
    while await small.reconciler.reconcile(KEY) is not None:
        pass


def make_again(small: SmallCluster) -> str:
    """Replace the Cluster by another one of its name; return the UID of the former one."""
    former = small.server.drop(CLUSTERS, *KEY)
    small.server.put(CLUSTERS, custom("Cluster", "demo", spec=former["spec"], uid=NEW))
    return str(former["metadata"]["uid"])


def of(small: SmallCluster, uid: str) -> list[str]:
    """Return the paths of all objects that an owner owns."""
    return [
        path
        for path, found in small.server.objects.items()
        for each in found["metadata"].get("ownerReferences") or []
        if each["uid"] == uid
    ]


def show_topic(small: SmallCluster) -> None:
    """Give the operator something to do, only by its watch."""
    topic = small.server.put(TOPICS, custom("Topic", "log", spec={"type": "Normal"}))
    small.reconciler.inventory.shown(TOPICS, topic, gone=False)


@pytest.mark.parametrize("is_shown", [True, False])
async def test_nothing_is_made_before_all_of_the_former_cluster_has_gone(
    small: SmallCluster, is_shown: bool
) -> None:
    """Law: nothing is made before all of the former Cluster is gone;
    the operator reads the Cluster itself before it changes anything.
    """
    former = make_again(small)
    show_topic(small)
    if is_shown:
        found = small.server.find(CLUSTERS, *KEY)
        assert found is not None
        small.reconciler.inventory.shown(CLUSTERS, found, gone=False)
    before = sorted(of(small, former))
    small.server.asked.clear()

    pauses = [await small.reconciler.reconcile(KEY) for _ in range(3)]

    assert all(pause is not None and pause >= 1 for pause in pauses)
    assert sorted(of(small, former)) == before
    assert of(small, NEW) == []
    written = {path.removesuffix("/status") for _, path, *_ in small.server.writes()}
    assert written == {CLUSTERS.path(*KEY)}
    assert "to a former Cluster" in small.condition("Ready")["message"]


async def test_objects_of_a_former_cluster_that_stay_are_looked_at_ever_more_rarely(
    small: SmallCluster,
) -> None:
    """Law: remains of a former Cluster are looked at less and less often; a finalizer may keep them for hours."""
    make_again(small)
    small.reconciler.inventory.invalidate()

    looks = [await small.lists() for _ in range(SOON_OBSERVATIONS + 8)]

    assert looks[-1] == (MAX_S, 2)
    assert "to a former Cluster" in small.condition("Ready")["message"]


async def test_the_new_cluster_is_made_whole_when_the_former_one_has_gone(
    small: SmallCluster,
) -> None:
    """Law: when the former Cluster is gone, the new one is made completely, with objects of its own."""
    former = make_again(small)
    show_topic(small)
    await small.reconciler.reconcile(KEY)
    for path in of(small, former):
        small.reconciler.shown(KEY, small.server.objects.pop(path), gone=True)
    small.server.drop(CLAIMS, NAMESPACE, "data-demo-0-0")
    small.server.drop(TOPICS, NAMESPACE, "log")
    small.reconciler.inventory.invalidate()
    small.server.asked.clear()

    await settle(small)

    applied = [path for method, path, *_ in small.server.asked if method == "PATCH"]
    sets = [path for path in applied if path.startswith(STATEFUL_SETS.path(NAMESPACE))]
    assert len(sets) == len(set(sets)) == 2  # Of the broker group and of the name servers.
    assert of(small, former) == []
    assert STATEFUL_SETS.path(NAMESPACE, "demo-0") in of(small, NEW)
    assert any(path.endswith("-identity") for path in of(small, NEW))


async def test_a_pod_of_a_former_statefulset_is_no_replica(small: SmallCluster) -> None:
    """Law: a pod of a former StatefulSet is not a replica; it still answers as leader of the former group until it ends."""
    adopt(small, PODS, "demo-0-0", "a-former-set")

    await small.reconciler.reconcile(KEY)

    live = small.reconciler.seen[KEY].live
    assert sorted(live.pods) == ["demo-nameserver-0"]
    assert live.leader("demo-0") is None


async def test_a_group_waits_for_the_volumes_of_its_former_statefulset(
    small: SmallCluster,
) -> None:
    """Law: a group waits until the volumes of its former StatefulSet are gone;
    they would be deleted with a new replica's data.
    """
    small.server.drop(STATEFUL_SETS, NAMESPACE, "demo-0")
    small.server.drop(PODS, NAMESPACE, "demo-0-0")
    adopt(small, CLAIMS, "data-demo-0-0", "a-former-set")
    small.now[0] += 10_000

    for _ in range(3):
        with pytest.raises(Exception, match="is being deleted with a former StatefulSet"):
            await small.reconciler.reconcile(KEY)
    held = small.server.find(STATEFUL_SETS, NAMESPACE, "demo-0")
    small.server.drop(CLAIMS, NAMESPACE, "data-demo-0-0")
    await small.reconciler.reconcile(KEY)

    assert held is None
    assert small.server.find(STATEFUL_SETS, NAMESPACE, "demo-0") is not None


async def test_what_is_somebody_else_s_is_never_taken_over(small: SmallCluster) -> None:
    """Law: an object of somebody else is never taken over, because it would be changed and deleted.

    One that only lost its label stays ours.
    """
    server = small.server
    ours = server.drop(CONFIG_MAPS, NAMESPACE, "demo-0")
    server.put(CONFIG_MAPS, {**ours, "metadata": {**ours["metadata"], "labels": {}}})
    service = server.drop(SERVICES, NAMESPACE, "demo-0")
    foreign = {"name": "demo-0", "namespace": NAMESPACE, "uid": "theirs", "labels": {"app": "web"}}
    before = server.put(SERVICES, {**service, "metadata": foreign})
    small.now[0] += 10_000

    with pytest.raises(NameTakenError):
        await small.reconciler.reconcile(KEY)
    told = small.condition("Ready")
    during = server.find(SERVICES, NAMESPACE, "demo-0")
    server.drop(SERVICES, NAMESPACE, "demo-0")
    await settle(small)

    assert during == before
    assert (told["status"], told["reason"]) == ("False", "NameTaken")
    assert "Service demo-0" in told["message"]
    labels = server.objects[CONFIG_MAPS.path(NAMESPACE, "demo-0")]["metadata"]["labels"]
    assert labels[names.LABEL_CLUSTER] == "demo"


async def test_what_was_made_since_the_reading_is_read_again(small: SmallCluster) -> None:
    """Law: the operator reads an object again before it makes it; the previous leader may have just made it,
    with other volumes.
    """
    server = small.server
    found = server.drop(STATEFUL_SETS, NAMESPACE, "demo-0")
    small.change(replicasPerGroup=3)
    small.now[0] += 10_000

    async def come_back() -> None:
        if any(method == "PATCH" for method, *_ in server.asked):  # Everything has been read.
            server.put(STATEFUL_SETS, found)

    server.asked.clear()
    server.slow = come_back
    with pytest.raises(RetryLaterError, match="was just created"):
        await small.reconciler.reconcile(KEY)

    assert server.find(STATEFUL_SETS, NAMESPACE, "demo-0")["spec"] == found["spec"]  # type: ignore[index]  # it is there


async def test_replicas_without_volumes_join_a_group_that_outlived_its_statefulset(
    small: SmallCluster,
) -> None:
    """Law: replicas without volumes join the group that has the messages; they never elect each other as an empty group."""
    small.server.drop(STATEFUL_SETS, NAMESPACE, "demo-0")
    small.change(replicasPerGroup=3)
    small.now[0] += 10_000

    sizes = []
    for _ in range(2):
        await small.reconciler.reconcile(KEY)
        found = small.server.find(STATEFUL_SETS, NAMESPACE, "demo-0")
        assert found is not None
        notes = found["metadata"]["annotations"]
        sizes.append((found["spec"]["replicas"], notes[names.ANNOTATION_FIRST]))

    assert sizes == [(1, "1"), (2, "1")]
    settings = small.server.find(CONFIG_MAPS, NAMESPACE, "demo-0")
    assert settings is not None
    assert all(json.loads(text)["join"] for text in settings["data"].values())


async def test_a_group_that_comes_back_on_its_volumes_takes_messages_again(
    small: SmallCluster,
) -> None:
    """Law: a group that comes back on its old volumes is opened again; it was closed when it was removed."""
    small.configured.clear()
    await settle(small)
    calm = list(small.configured)
    small.server.drop(STATEFUL_SETS, NAMESPACE, "demo-0")
    small.now[0] += 10_000

    await small.reconciler.reconcile(KEY)
    made = small.server.find(STATEFUL_SETS, NAMESPACE, "demo-0")
    await settle(small)
    found = small.server.find(STATEFUL_SETS, NAMESPACE, "demo-0")

    assert calm == []
    assert small.configured == [b"brokerPermission=6\n"]
    assert made is not None
    assert found is not None
    assert names.ANNOTATION_CLOSED not in found["metadata"]["annotations"]


def adopt(small: SmallCluster, resource: Any, name: str, uid: str) -> None:
    """Let a StatefulSet own an object, and a watch show that."""
    found: Json | None = small.server.find(resource, NAMESPACE, name)
    assert found is not None
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "demo-0", "uid": uid}
    meta = {**found["metadata"], "ownerReferences": [{**owner, "controller": True}]}
    made = small.server.put(resource, {**found, "metadata": meta})
    small.shown(resource, made, gone=False)
