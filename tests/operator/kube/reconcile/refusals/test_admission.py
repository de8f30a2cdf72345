"""Admission rules that change each object that is applied, as Autopilot does with resources and Kyverno with images."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from orderlymq_operator.kube.reconcile.pipeline import AT_WORK_S
from orderlymq_operator.kube.resources import JOBS, SERVICES, STATEFUL_SETS, Json
from tests.operator.kube.reconcile.pipeline.pipelineworld import OBJECT, World, one_pipeline
from tests.operator.kube.samples import NAMESPACE
from tests.operator.kube.smallcluster import KEY, SmallCluster, small_cluster


@pytest.fixture
async def small(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SmallCluster]:
    async with small_cluster(monkeypatch.setattr) as made:
        made.server.admit = with_room
        yield made


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    async with one_pipeline(monkeypatch) as made:
        made.server.admit = with_room
        yield made


def with_room(made: Json) -> Json:
    """Give containers other resources than the operator asked for."""
    template = (made.get("spec") or {}).get("template") or {}
    for each in template.get("spec", {}).get("containers", []):
        each["resources"] = {"requests": {"cpu": "250m", "memory": "512Mi"}}
    return made


def cpu(small: SmallCluster) -> Any:
    found = small.server.find(STATEFUL_SETS, NAMESPACE, "demo-0") or {}
    return found["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"]


async def calm(small: SmallCluster) -> None:
    """Reconcile until nothing is to be done."""
    for _ in range(12):
        if await small.reconciler.reconcile(KEY) is None:
            return
    raise AssertionError(f"it does not come to rest: {small.condition('Ready')}")


async def test_a_cluster_is_ready_whose_objects_are_kept_otherwise(small: SmallCluster) -> None:
    """Law: a Cluster is Ready although an admission rule changes its objects; the operator does not fight,
    and edits still pass.
    """
    await calm(small)
    small.server.writes()
    small.reconciler.interrupted({"StatefulSet", "Deployment"})
    await calm(small)

    assert small.condition("Ready")["status"] == "True"
    assert cpu(small) == "250m"
    assert small.server.writes() == []

    small.change(image="orderlymq:2")
    for _ in range(4):
        await small.reconciler.reconcile(KEY)
    made = small.server.find(STATEFUL_SETS, NAMESPACE, "demo-0") or {}
    assert made["spec"]["template"]["spec"]["containers"][0]["image"] == "orderlymq:2"


async def test_a_field_that_somebody_edits_beside_a_rule_is_put_right(small: SmallCluster) -> None:
    """Law: only the fields that the rule changed are left alone; another field that somebody edits is put right."""
    await calm(small)
    found = small.server.find(STATEFUL_SETS, NAMESPACE, "demo-0")
    assert found is not None
    edited = small.server.put(STATEFUL_SETS, {**found, "spec": {**found["spec"], "replicas": 0}})
    assert small.shown(STATEFUL_SETS, edited, gone=False)
    await calm(small)

    found = small.server.find(STATEFUL_SETS, NAMESPACE, "demo-0")
    assert found is not None
    assert found["spec"]["replicas"] == 1


@pytest.mark.parametrize(("spec", "resource"), [({}, STATEFUL_SETS), ({"trigger": None}, JOBS)])
async def test_a_pipeline_is_left_alone_whose_driver_is_kept_otherwise(
    world: World, spec: dict[str, Any], resource: Any
) -> None:
    """Law: a Pipeline whose driver an admission rule changes is neither ended nor applied again and again,
    even after a restart.
    """
    world.want(**spec)
    await world.settle()
    world.server.writes()
    for _ in range(3):
        await world.begin_again()
        world.inventory.invalidate()
        await world.settle()
        if resource == STATEFUL_SETS:  # Each operator tries once.
            world.server.writes()
        await world.look()

        path = resource.path(NAMESPACE)
        assert not [each for each in world.server.writes() if each[1].startswith(path)]


async def test_what_somebody_undoes_is_done_less_and_less(world: World) -> None:
    """Law: a change that somebody always undoes is made less and less often."""
    await world.settle()
    pauses = []
    for _ in range(20):
        found = world.server.find(SERVICES, NAMESPACE, OBJECT)
        assert found is not None
        world.server.put(SERVICES, {**found, "spec": {**found["spec"], "selector": {}}})
        world.drivers._lists.interrupted({"Service"})
        pauses.append(await world.look() or 0.0)

    assert pauses == sorted(pauses)
    assert pauses[0] == AT_WORK_S
    assert pauses[-1] > 1.0
