"""A ConsumerGroup is deleted while its members consume: brokers refuse, and the object waits and says why."""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import orjson
import pytest

from orderlymq_operator.kube.errors import ApiError
from orderlymq_operator.kube.objects.names import FINALIZER
from orderlymq_operator.kube.reconcile.backoff import MAX_S, SOON_OBSERVATIONS
from orderlymq_operator.kube.reconcile.finalizers import GIVE_UP_S
from orderlymq_operator.kube.reconcile.status import condition_of
from orderlymq_operator.kube.resources import CONSUMER_GROUPS, EVENTS, Json
from orderlymq_protocol.body.config import SubscriptionGroupConfig
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from tests.operator.kube.samples import NAMESPACE, custom
from tests.operator.kube.smallcluster import KEY, SmallCluster, small_cluster

NAME = "orders"
REMARK = "group[orders] is in use: its members hold 2 queue locks; stop its consumers"
SYNCED = {"type": "Ready", "status": "True", "reason": "Synced", "message": "effective"}
LEAVING: dict[str, Any] = {
    "deletionTimestamp": "2026-01-02T00:00:00Z",
    "finalizers": [FINALIZER],
    "spec": {"deletionPolicy": "Delete"},
    "status": {"conditions": [{**SYNCED, "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
}


class UsedGroup:
    """The only broker with the consumer groups, which it keeps while they are in use."""

    def __init__(self, small: SmallCluster) -> None:
        self.is_used, self.is_there, self.by_key, self.refusals = True, True, False, 0
        self.names = {NAME}
        small.scripted.answers |= {
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._show,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self._delete,
            RequestCode.ORDERLYMQ_LOCK_TABLE: self._locks,
            RequestCode.ORDERLYMQ_LANES: self._lanes,
        }

    def _show(self, request: RemotingCommand) -> RemotingCommand:
        table = {
            name: orjson.loads(SubscriptionGroupConfig(group_name=name).to_json())
            for name in (self.names if self.is_there else ())
        }
        return request.reply(
            body=orjson.dumps({"subscriptionGroupTable": table, "dataVersion": {}})
        )

    def _locks(self, request: RemotingCommand) -> RemotingCommand:
        lock = {"topic": "orders", "queueId": 0, "clientId": "one", "wantedBy": ""}
        used = self.names if self.is_used and not self.by_key else ()
        locks = [{"consumerGroup": name, **lock} for name in used]
        return request.reply(body=orjson.dumps({"locks": locks}))

    def _lanes(self, request: RemotingCommand) -> RemotingCommand:
        counts = dict.fromkeys(("scanned", "committed", "owed", "ready", "parked", "held"), 0)
        queue = {"topic": "orders", "brokerName": "demo-0", "queueId": 0, **counts}
        in_hand = int(self.is_used and self.by_key)
        lanes = {"queues": [{**queue, "inHand": in_hand}], "lanes": []}
        return request.reply(body=orjson.dumps(lanes))

    def _delete(self, request: RemotingCommand) -> RemotingCommand:
        if self.is_used:
            self.refusals += 1
            return request.reply(ResponseCode.ORDERLYMQ_GROUP_IN_USE, remark=REMARK)
        self.is_there = False
        return request.reply()


@pytest.fixture
async def small(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SmallCluster]:
    async with small_cluster(monkeypatch.setattr) as found:
        while await found.reconciler.reconcile(KEY) is not None:
            pass
        found.server.put(CONSUMER_GROUPS, custom("ConsumerGroup", NAME, **LEAVING))
        found.reconciler.inventory.invalidate()
        yield found


def leaving(small: SmallCluster) -> Json:
    found = small.server.find(CONSUMER_GROUPS, NAMESPACE, NAME)
    assert found is not None
    return found


async def test_a_group_in_use_waits_for_its_consumers_and_says_so(small: SmallCluster) -> None:
    """Law: a ConsumerGroup in use waits as long as its consumers run, the Cluster stays Ready,
    and it goes when they have stopped.
    """
    group = UsedGroup(small)
    pauses = []
    for _ in range(24):
        small.now[0] += GIVE_UP_S
        pauses.append(await small.reconciler.reconcile(KEY))

    ready = condition_of(leaving(small)["status"], "Ready")
    assert ready is not None
    assert (ready["status"], ready["reason"]) == ("False", "InUse")
    assert REMARK in ready["message"]
    assert leaving(small)["metadata"]["finalizers"] == [FINALIZER]
    assert small.condition("Ready")["status"] == "True"
    assert pauses[-1] == MAX_S, "brokers are asked less and less often"
    events = [each for each in small.server.objects.values() if each["kind"] == EVENTS.kind]
    assert [(each["type"], each["reason"]) for each in events] == [("Warning", "InUse")]
    assert group.refusals

    group.is_used = False
    for _ in range(3):
        await small.reconciler.reconcile(KEY)

    assert not group.is_there
    assert leaving(small)["metadata"]["finalizers"] == []


async def test_a_refusal_of_something_else_gives_up_no_group_in_use(small: SmallCluster) -> None:
    """Law: a consumer group in use is not given up because the API server refuses something else of the Cluster."""
    group = UsedGroup(small)
    small.server.overlapping = {"demo-0-0", "demo-nameserver-0"}
    small.change(config={"logLevel": "DEBUG"})
    for _ in range(8):
        small.now[0] += GIVE_UP_S
        with suppress(ApiError):
            await small.reconciler.reconcile(KEY)

    assert small.condition("Ready")["reason"] == "BudgetsOverlap"
    assert group.is_there
    assert leaving(small)["metadata"]["finalizers"] == [FINALIZER]


async def test_a_namespace_that_is_deleted_is_not_kept_by_a_group_in_use(
    small: SmallCluster,
) -> None:
    """Law: a ConsumerGroup in use does not keep a deleted namespace; its object goes, and brokers keep the group."""
    group = UsedGroup(small)
    small.server.refused[EVENTS.path(NAMESPACE)] = (
        403,
        'events "x" is forbidden: cannot create resource "events"',
    )
    for _ in range(3):
        small.now[0] += GIVE_UP_S
        await small.reconciler.reconcile(KEY)

    assert group.is_there
    assert leaving(small)["metadata"]["finalizers"] == []


async def test_many_groups_in_use_ask_once_about_their_namespace(small: SmallCluster) -> None:
    """Law: many deleted groups in use ask only once per look whether their namespace is being deleted."""
    group = UsedGroup(small)
    group.names |= {"refunds", "returns"}
    for name in group.names:
        small.server.put(CONSUMER_GROUPS, custom("ConsumerGroup", name, **LEAVING))
    small.reconciler.inventory.invalidate()
    await small.reconciler.reconcile(KEY)
    small.server.asked.clear()

    await small.reconciler.reconcile(KEY)

    asked = [path for method, path, *_ in small.server.asked if method == "POST"]
    assert group.refusals >= len(group.names)
    assert asked == [EVENTS.path(NAMESPACE)]


@pytest.mark.parametrize("by_key", [False, True])
async def test_a_group_in_use_costs_two_lists_a_look(small: SmallCluster, by_key: bool) -> None:
    """Law: a waiting group costs two requests per look (locks and lanes in use); everything is read only before it goes."""
    group = UsedGroup(small)
    group.by_key = by_key
    await small.reconciler.reconcile(KEY)
    first = group.refusals
    looks = [await small.lists() for _ in range(SOON_OBSERVATIONS + 8)]
    ready = condition_of(leaving(small)["status"], "Ready") or {}
    group.is_used = False
    await small.reconciler.reconcile(KEY)

    assert (first, group.refusals) == (1, 1), "no broker is asked to delete it meanwhile"
    assert {count for _, count in looks} == {2}
    assert looks[-1][0] == MAX_S
    assert (ready["reason"], REMARK in ready["message"]) == ("InUse", True)
    assert not group.is_there
