"""A Topic, ConsumerGroup or User moves: it is made in another namespace and deleted here, and its data stays."""

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from orderlymq_operator.kube.objects.names import FINALIZER
from orderlymq_operator.kube.reconcile.finalizers import GIVE_UP_S
from orderlymq_operator.kube.resources import PARTS, TOPICS, Json, Resource
from orderlymq_protocol.body.config import SubscriptionGroupConfig
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand
from tests.operator.kube.fakes.brokers import topic_config
from tests.operator.kube.samples import NAMESPACE, custom
from tests.operator.kube.smallcluster import KEY, SmallCluster, small_cluster

OTHER = "other"
LEAVING: dict[str, Any] = {
    "deletionTimestamp": "2026-01-02T00:00:00Z",
    "finalizers": [FINALIZER],
}
SPECS: dict[str, Json] = {
    "Topic": {"deletionPolicy": "Delete", "queues": 4},
    "ConsumerGroup": {"deletionPolicy": "Delete"},
    "User": {"secretFrom": {"secret": {"name": "s"}}},
}
DELETIONS = {
    "Topic": RequestCode.DELETE_TOPIC_IN_BROKER,
    "ConsumerGroup": RequestCode.DELETE_SUBSCRIPTIONGROUP,
    "User": RequestCode.DELETE_ACL_CONFIG,
}
EACH = pytest.mark.parametrize("resource", PARTS, ids=lambda resource: str(resource.kind))


class Tables:
    """Topics, groups and accounts of the only broker; each has an `orders` until it is deleted."""

    def __init__(self, small: SmallCluster) -> None:
        self.kinds = set(DELETIONS)
        facts = {"readQueueNums": "4", "writeQueueNums": "4", "perm": "6", "order": "true"}
        group = orjson.loads(SubscriptionGroupConfig(group_name="orders").to_json())
        rights: Json = {"admin": False, "topicPerms": {}, "groupPerms": {}}
        rights |= dict.fromkeys(("defaultTopicPerm", "defaultGroupPerm"), "DENY")
        rights |= {"whiteRemoteAddress": "", "fingerprint": "", "accessKey": "orders"}
        version: Json = {"dataVersion": {}}
        topic = topic_config({"topic": "orders", **facts})
        self._tables: dict[int, tuple[str, Json, Json]] = {
            RequestCode.GET_ALL_TOPIC_CONFIG: (
                "Topic",
                {"topicConfigTable": {"orders": topic}, **version},
                {"topicConfigTable": {}, **version},
            ),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: (
                "ConsumerGroup",
                {"subscriptionGroupTable": {"orders": group}, **version},
                {"subscriptionGroupTable": {}, **version},
            ),
            RequestCode.GET_BROKER_CLUSTER_ACL_INFO: (
                "User",
                {"accounts": [rights]},
                {"accounts": []},
            ),
        }
        small.scripted.answers |= dict.fromkeys(self._tables, self._show)
        small.scripted.answers |= dict.fromkeys(DELETIONS.values(), self._delete)

    def _show(self, request: RemotingCommand) -> RemotingCommand:
        kind, full, empty = self._tables[request.code]
        return request.reply(body=orjson.dumps(full if kind in self.kinds else empty))

    def _delete(self, request: RemotingCommand) -> RemotingCommand:
        self.kinds -= {kind for kind, code in DELETIONS.items() if code == request.code}
        return request.reply()


@pytest.fixture
async def small(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SmallCluster]:
    async with small_cluster(
        monkeypatch.setattr, (NAMESPACE, OTHER), allowedNamespaces=[OTHER]
    ) as found:
        while await found.reconciler.reconcile(KEY) is not None:
            pass
        yield found


def show_leaving(small: SmallCluster, resource: Resource) -> None:
    """Let a watch show that somebody deletes `orders` here."""
    made = custom(resource.kind, "orders", spec=SPECS[resource.kind], **LEAVING)
    small.reconciler.inventory.shown(resource, small.server.put(resource, made), gone=False)


def is_held(small: SmallCluster, resource: Resource) -> bool:
    found = small.server.find(resource, NAMESPACE, "orders")
    assert found is not None
    return FINALIZER in found["metadata"]["finalizers"]


async def reconcile(small: SmallCluster, times: int = 3) -> None:
    for _ in range(times):
        await small.reconciler.reconcile(KEY)


@EACH
@pytest.mark.parametrize("is_moved", [True, False], ids=["moved", "deleted"])
async def test_what_another_namespace_declares_is_not_deleted_however_late_its_watch_is(
    small: SmallCluster, resource: Resource, is_moved: bool
) -> None:
    """Law: what another namespace declares is not deleted in the brokers, even if the watch of that namespace is late."""
    tables = Tables(small)
    if is_moved:
        made = custom(resource.kind, "orders", OTHER, spec=SPECS[resource.kind])
        small.server.put(resource, made)  # No watch has shown it.
    show_leaving(small, resource)

    await reconcile(small)

    assert (resource.kind in tables.kinds) == is_moved
    assert not is_held(small, resource)


@EACH
async def test_what_leaves_while_others_are_listed_is_decided_by_a_list_that_follows(
    small: SmallCluster, resource: Resource
) -> None:
    """Law: a deletion is decided by a list that begins after it; two older lists could both miss an object that moves."""
    tables = Tables(small)
    first = custom(resource.kind, "invoices", spec=SPECS[resource.kind], **LEAVING)
    request, answers = ("GET", resource.path(OTHER)), 0

    async def move() -> None:
        nonlocal answers
        answers += small.server.asked[-1] == request
        if answers == 2:  # The answer for the other namespace is made, and is on its way.
            answers += 1
            made = custom(resource.kind, "orders", OTHER, spec=SPECS[resource.kind])
            small.server.put(resource, made)
            show_leaving(small, resource)

    small.reconciler.inventory.shown(resource, small.server.put(resource, first), gone=False)
    small.server.slow = move
    await reconcile(small)

    assert answers > 2
    assert resource.kind in tables.kinds
    assert not is_held(small, resource)


async def test_a_reconcile_begins_however_fast_others_leave(small: SmallCluster) -> None:
    """Law: a reconcile lists once and begins, even if each list shows another Topic being deleted;
    the next one handles that.
    """
    tables = Tables(small)
    lists = shown = 0
    request = ("GET", TOPICS.path(OTHER))

    async def leave() -> None:
        nonlocal lists, shown
        lists += small.server.asked[-1] == request
        if shown < 20:
            shown += 1
            made = custom("Topic", f"t{shown}", spec=SPECS["Topic"], **LEAVING)
            small.reconciler.inventory.shown(TOPICS, small.server.put(TOPICS, made), gone=False)

    show_leaving(small, TOPICS)
    small.server.slow = leave
    pause_s = await small.reconciler.reconcile(KEY)

    assert lists == 2  # Before and after the answer is made.
    assert "Topic" not in tables.kinds
    assert pause_s is not None
    while shown < 20:
        await small.reconciler.reconcile(KEY)
    await reconcile(small)
    for number in range(1, 21):
        left = small.server.find(TOPICS, NAMESPACE, f"t{number}")
        assert left is not None
        assert FINALIZER not in left["metadata"]["finalizers"]


@EACH
async def test_what_a_namespace_that_cannot_be_read_may_declare_stays_in_the_brokers(
    small: SmallCluster, resource: Resource
) -> None:
    """Law: while another namespace cannot be read, a deleted object waits, and goes after a time without its data.

    A deleted User's account never stays.
    """
    tables = Tables(small)
    small.server.refused[resource.path(OTHER)] = (403, "no Role")
    show_leaving(small, resource)

    await reconcile(small)
    is_waiting = is_held(small, resource)
    small.now[0] += GIVE_UP_S + 1
    await reconcile(small)

    assert is_waiting == (resource.kind != "User")
    assert (resource.kind in tables.kinds) == is_waiting
    assert not is_held(small, resource)
