"""Statuses reach the very objects that they are about."""

import pytest

from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.observe.inventory import Inventory, Item
from orderlymq_operator.kube.reconcile.writer import StatusWriter
from orderlymq_operator.kube.resources import OWN_KINDS, Json, Resource
from orderlymq_operator.plan.actions import ConditionReport
from tests.operator.kube.objectserver import ObjectServer
from tests.operator.kube.samples import NAMESPACE, custom

KEY = (NAMESPACE, "demo")
EACH = pytest.mark.parametrize("resource", OWN_KINDS, ids=lambda resource: str(resource.kind))
READY = {"Ready": ConditionReport("True", "Ready", "all is as declared")}


def made(resource: Resource, uid: str = "one") -> Json:
    return custom(resource.kind, "demo", uid=uid)


def known(inventory: Inventory, resource: Resource) -> Item:
    item = inventory.item(resource.kind, KEY)
    assert item is not None
    return item


def facts(number: int) -> Json:
    return {"restored": {"backupId": str(number)}, "phase": "Complete"}


@EACH
@pytest.mark.parametrize("is_shown", [False, True], ids=["unseen", "shown"])
async def test_a_status_reaches_no_object_that_was_made_again_under_the_name(
    resource: Resource, is_shown: bool
) -> None:
    """Law: a status is never written to a new object of the same name; it would seem restored, or complete."""
    server, told = ObjectServer(), list[Item]()
    server.put(resource, made(resource))
    async with server.serving() as api:
        inventory = Inventory(api, (NAMESPACE,), told.append)
        await inventory.refresh()
        item = known(inventory, resource)
        server.drop(resource, *KEY)
        again = server.put(resource, made(resource, "two"))
        if is_shown:
            inventory.shown(resource, again, gone=False)
        told.clear()
        await StatusWriter(api, inventory, OperatorMetrics()).write(item, READY, facts(1))

    assert (server.find(resource, *KEY) or {})["status"] == {}
    assert known(inventory, resource).uid == "two"
    assert [each.uid for each in told] == ([] if is_shown else ["two"])


@EACH
async def test_a_status_of_an_object_that_is_gone_is_dropped(resource: Resource) -> None:
    """Law: a status of a deleted object is dropped without ending the reconcile, and the object is forgotten."""
    server = ObjectServer()
    server.put(resource, made(resource))
    async with server.serving() as api:
        inventory = Inventory(api, (NAMESPACE,))
        await inventory.refresh()
        item = known(inventory, resource)
        server.drop(resource, *KEY)
        await StatusWriter(api, inventory, OperatorMetrics()).write(item, READY, facts(1))
        await inventory.refresh()

    assert inventory.item(resource.kind, KEY) is None


@EACH
async def test_who_has_changed_meanwhile_gets_its_status_and_is_looked_at(
    resource: Resource,
) -> None:
    """Law: an object that changed meanwhile gets its status all the same, and the change wakes its reconcile."""
    server, told = ObjectServer(), list[Item]()
    server.put(resource, made(resource))
    async with server.serving() as api:
        inventory = Inventory(api, (NAMESPACE,), told.append)
        await inventory.refresh()
        item = known(inventory, resource)
        changed = {**made(resource), "spec": {"clusterRef": {"name": "other"}}}
        server.put(resource, changed)
        told.clear()
        await StatusWriter(api, inventory, OperatorMetrics()).write(item, READY, facts(1))

    found = server.find(resource, *KEY) or {}
    assert found["status"]["restored"] == {"backupId": "1"}
    assert found["spec"] == changed["spec"]
    assert [each.version for each in told] == ["2"]


async def test_statuses_cost_one_request_each() -> None:
    """Law: each status costs one request; the operator's own writes do not count as changes by others."""
    server, told = ObjectServer(), list[Item]()
    resource = OWN_KINDS[0]
    server.put(resource, made(resource))
    async with server.serving() as api:
        inventory = Inventory(api, (NAMESPACE,), told.append)
        await inventory.refresh()
        item = known(inventory, resource)
        writer = StatusWriter(api, inventory, OperatorMetrics())
        server.asked.clear()
        told.clear()
        for number in range(3):
            await writer.write(item, READY, facts(number))

    assert server.asked == [("PATCH", resource.path(*KEY, "status"))] * 3
    assert not told
