"""The canary comes and goes as the Cluster wants, and its verdict is a condition of the Cluster."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from orderlymq_operator.canary.troubles import Kind
from orderlymq_operator.canary.verdict import (
    ANOTHER_CANARY,
    NOT_DELIVERED,
    ORDER_KEPT,
    SENDS_FAIL,
    SLOW,
    STARTING,
)
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.observe.inventory import ClusterKey
from orderlymq_operator.kube.reconcile.canary import (
    SILENT,
    SILENT_S,
    Canaries,
    with_canary,
)
from orderlymq_operator.kube.reconcile.status import condition_of
from orderlymq_operator.kube.resources import (
    CLUSTERS,
    DEPLOYMENTS,
    EVENTS,
    NETWORK_POLICIES,
    PODS,
    Json,
)
from orderlymq_operator.plan.actions import (
    ConditionReport,
    ConsumerGroupConfig,
    CreateTopic,
    DeleteConsumerGroup,
    DeleteOrderConfig,
    DeleteTopic,
    Observed,
    ObservedGroup,
    ObservedNameServer,
    PutOrderConfig,
    TopicConfig,
    UpdateTopic,
)
from orderlymq_operator.plan.planner import plan
from orderlymq_operator.resources.conditions.canary import REASONS
from orderlymq_operator.resources.kinds import Desired
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from tests.operator.kube import smallcluster
from tests.operator.kube.reconcile.deletions.test_scaledown import stand_second_group
from tests.operator.kube.samples import NAMESPACE, cluster, pod
from tests.operator.kube.smallcluster import KEY, SmallCluster, small_cluster

NOTE = "orderlymq.io/broker-groups"
_STRICT = {"autoCreateTopicEnable": False}
KEPT = ConditionReport("True", "OrderKept", "order is kept in 2 queues")
BROKEN = ConditionReport("False", "Skipped", "demo-0/1: message 7 came before 6")


class Tables:
    """The topics of the broker and the lists of the name server, as requests change them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.topics: dict[str, Json] = {"TBW102": {"topicName": "TBW102", "perm": 7}}
        self.lists: dict[str, str] = {}
        for code, answer in {
            RequestCode.GET_ALL_TOPIC_CONFIG: self._tell_topics,
            RequestCode.UPDATE_AND_CREATE_TOPIC: self._create,
            RequestCode.DELETE_TOPIC_IN_BROKER: self._delete,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._tell_lists,
            RequestCode.PUT_KV_CONFIG: self._put,
            RequestCode.DELETE_KV_CONFIG: self._withdraw,
        }.items():
            patch.setitem(smallcluster._ANSWERS, code, answer)

    def _tell_topics(self, request: RemotingCommand) -> RemotingCommand:
        table = {"topicConfigTable": self.topics, "dataVersion": {}}
        return request.reply(ResponseCode.SUCCESS, body=orjson.dumps(table))

    def _create(self, request: RemotingCommand) -> RemotingCommand:
        config = {"readQueueNums": 2, "writeQueueNums": 2, "perm": 6, "order": True}
        name = request.ext["topic"]
        self.topics[name] = {"topicName": name, "topicFilterType": "SINGLE_TAG", **config}
        return request.reply(ResponseCode.SUCCESS)

    def _delete(self, request: RemotingCommand) -> RemotingCommand:
        self.topics.pop(request.ext["topic"], None)
        return request.reply(ResponseCode.SUCCESS)

    def _tell_lists(self, request: RemotingCommand) -> RemotingCommand:
        if not self.lists:
            return request.reply(ResponseCode.QUERY_NOT_FOUND)
        return request.reply(ResponseCode.SUCCESS, body=orjson.dumps({"table": self.lists}))

    def _put(self, request: RemotingCommand) -> RemotingCommand:
        self.lists[request.ext["key"]] = request.ext["value"]
        return request.reply(ResponseCode.SUCCESS)

    def _withdraw(self, request: RemotingCommand) -> RemotingCommand:
        del self.lists[request.ext["key"]]
        return request.reply(ResponseCode.SUCCESS)


async def calm(small: SmallCluster) -> None:
    """Reconcile until nothing is to be done."""
    for _ in range(20):
        if await small.reconciler.reconcile(KEY) is None:
            return
    raise AssertionError(f"it does not come to rest: {small.condition('Ready')}")


def told(small: SmallCluster) -> Json | None:
    found = small.server.find(CLUSTERS, *KEY)
    assert found is not None
    return condition_of(found["status"], "OrderVerified")


def events(small: SmallCluster) -> list[tuple[str, str]]:
    path = EVENTS.path(NAMESPACE)
    return [
        (each["type"], each["reason"])
        for place, each in small.server.objects.items()
        if place.startswith(path) and each["reason"] in {reason.name for reason in REASONS}
    ]


async def test_the_canary_comes_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: the canary is made and removed with only the chart's rights; its NetworkPolicy goes with it, the brokers' stay."""
    tables = Tables(monkeypatch)
    async with small_cluster(monkeypatch.setattr) as small:
        await calm(small)
        assert small.server.find(DEPLOYMENTS, NAMESPACE, "demo-canary") is None
        assert told(small) is None

        small.change(canary={"enabled": True})
        await calm(small)
        assert small.server.find(DEPLOYMENTS, NAMESPACE, "demo-canary") is not None
        assert small.server.find(NETWORK_POLICIES, NAMESPACE, "demo-canary") is not None
        assert list(tables.topics) == ["TBW102", *tables.lists]
        assert list(tables.lists) == ["orderlymq_canary_demo-0"]

        small.change(canary={"enabled": False})
        await calm(small)
        assert small.server.find(DEPLOYMENTS, NAMESPACE, "demo-canary") is None
        assert small.server.find(NETWORK_POLICIES, NAMESPACE, "demo-canary") is None
        assert small.server.find(NETWORK_POLICIES, NAMESPACE, "demo-broker") is not None
        assert (list(tables.topics), tables.lists) == (["TBW102"], {})
        assert told(small) is None


def run_canary(small: SmallCluster, name: str, **notes: str) -> None:
    """Let a pod of the canary run."""
    made = pod(name, uid=name)
    made["metadata"]["labels"] = {
        names.LABEL_CLUSTER: "demo",
        "app.kubernetes.io/component": "canary",
    }
    made["metadata"]["annotations"] = notes
    assert small.shown(PODS, small.server.put(PODS, made), gone=False)


@pytest.mark.parametrize("change", [{"groups": 1}, {"groups": 1, "canary": {"enabled": False}}])
@pytest.mark.parametrize("notes", [{}, {NOTE: "demo-0,demo-1"}])
async def test_a_topic_goes_when_no_canary_sends_to_it_any_more(
    monkeypatch: pytest.MonkeyPatch, notes: dict[str, str], change: dict[str, Any]
) -> None:
    """Law: the canary's topic goes when no canary sends to it any more; that is not reported as a loss of messages."""
    tables = Tables(monkeypatch)
    spec: dict[str, Any] = {"groups": 2, "canary": {"enabled": True}}
    async with small_cluster(monkeypatch.setattr, scaleDown={"policy": "Drain"}, **spec) as small:
        stand_second_group(small)
        for _ in range(6):
            await small.reconciler.reconcile(KEY)
        run_canary(small, "demo-canary-a", **notes)
        small.change(**change)
        for _ in range(4):
            await small.reconciler.reconcile(KEY)

        deployment = small.server.find(DEPLOYMENTS, NAMESPACE, "demo-canary")
        if deployment is not None:
            assert "demo-1" not in str(deployment["spec"]["template"])
        assert "orderlymq_canary_demo-1" in tables.topics
        assert "orderlymq_canary_demo-1" in tables.lists

        gone = small.server.drop(PODS, NAMESPACE, "demo-canary-a")
        assert small.shown(PODS, gone, gone=True)
        run_canary(small, "demo-canary-b", **{NOTE: "demo-0"})
        for _ in range(4):
            await small.reconciler.reconcile(KEY)

        assert "orderlymq_canary_demo-1" not in tables.topics
        assert "orderlymq_canary_demo-1" not in tables.lists


def reported(small: SmallCluster) -> set[str]:
    """Return the rows of the metric that are 1."""
    registry, row = small.metrics.registry, {"namespace": NAMESPACE, "orderlymq_io_cluster": "demo"}
    name = "orderlymq_operator_order_verified"
    return {
        status
        for status in ("True", "False", "Unknown")
        if registry.get_sample_value(name, {**row, "status": status})
    }


async def test_the_verdict_is_a_condition_and_what_is_broken_an_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: a verdict is a condition, and a broken one an event.

    Unknown is no event, and an unchanged verdict is not written again.
    """
    Tables(monkeypatch)
    async with small_cluster(monkeypatch.setattr, canary={"enabled": True}) as small:
        small.metrics.set_leading(leads=True)
        await calm(small)
        first = told(small)
        assert first is not None
        assert (first["status"], first["reason"]) == ("Unknown", "CanarySilent")

        for report in (KEPT, BROKEN, KEPT, SILENT, KEPT):
            small.reconciler.orders[KEY] = report
            await calm(small)
            now = told(small)
            assert now is not None
            assert (now["status"], now["reason"], now["message"]) == (
                report.status,
                report.reason,
                report.message,
            )
            assert reported(small) == {report.status}
        small.server.writes()
        await calm(small)

        assert small.server.writes() == []
        assert events(small) == [("Warning", "Skipped"), ("Normal", "OrderKept")]
        small.change(canary={"enabled": False})
        await calm(small)
        assert reported(small) == set()


def acts(desired: Desired, observed: Observed) -> list[object]:
    """Return the planned actions for topics and consumer groups."""
    kinds = (
        CreateTopic,
        DeleteConsumerGroup,
        DeleteOrderConfig,
        DeleteTopic,
        PutOrderConfig,
        UpdateTopic,
    )
    return [action for action in plan(desired, observed) if isinstance(action, kinds)]


def test_the_operator_makes_the_topics_of_a_canary() -> None:
    """Law: the operator makes the canary's topics, because it alone may publish queue lists: first the list,
    and nothing while a group is silent.
    """
    config = TopicConfig(2, 6, True)
    wanted = with_canary(Desired(cluster(groups=2, canary={"enabled": True}, config=_STRICT)))
    servers = {index: ObservedNameServer({}) for index in range(2)}

    def seen(first: TopicConfig | None) -> Observed:
        topics = {} if first is None else {"orderlymq_canary_demo-0": first}
        return Observed(
            name_servers=servers,
            groups={"demo-0": ObservedGroup(topics=topics), "demo-1": ObservedGroup()},
        )

    published = PutOrderConfig("orderlymq_canary_demo-0", "demo-0:2")
    assert acts(wanted, seen(None)) == [
        published,
        CreateTopic("orderlymq_canary_demo-0", "demo-0", config),
    ]
    assert acts(wanted, seen(TopicConfig(1, 6, True))) == [
        published,
        UpdateTopic("orderlymq_canary_demo-0", "demo-0", config),
    ]
    servers |= dict.fromkeys(servers, ObservedNameServer({"orderlymq_canary_demo-0": "demo-0:2"}))
    assert acts(wanted, seen(config)) == []
    assert (
        acts(Desired(cluster(canary={"enabled": True}, config=_STRICT)), seen(None)) == []
    )  # On a machine without Kubernetes.


def test_what_a_canary_left_is_deleted() -> None:
    """Law: after the canary is switched off its topics and group are deleted;
    those of a group to be removed also while it runs.
    """
    topics = {f"orderlymq_canary_demo-{index}": TopicConfig(2, 6, True) for index in range(2)}
    lists = dict.fromkeys(topics, "demo-0:3")
    observed = Observed(
        name_servers={0: ObservedNameServer(lists), 1: ObservedNameServer(lists)},
        groups={
            name: ObservedGroup(
                topics={f"orderlymq_canary_{name}": TopicConfig(2, 6, True)},
                consumer_groups={"orderlymq_canary": ConsumerGroupConfig(True, True, 16, 1, 15)},
                users={},
            )
            for name in ("demo-0", "demo-1")
        },
    )
    off = with_canary(Desired(cluster(groups=2, config=_STRICT)))
    on = Desired(
        cluster(groups=2, canary={"enabled": True}, config=_STRICT), draining=frozenset({"demo-1"})
    )

    assert acts(off, observed) == [
        DeleteConsumerGroup("orderlymq_canary", "demo-0"),
        DeleteConsumerGroup("orderlymq_canary", "demo-1"),
        DeleteTopic("orderlymq_canary_demo-0", "demo-0"),
        DeleteOrderConfig("orderlymq_canary_demo-0"),
        DeleteTopic("orderlymq_canary_demo-1", "demo-1"),
        DeleteOrderConfig("orderlymq_canary_demo-1"),
    ]
    assert acts(with_canary(on), observed) == [
        PutOrderConfig("orderlymq_canary_demo-0", "demo-0:2"),
        DeleteTopic("orderlymq_canary_demo-1", "demo-1"),
        DeleteOrderConfig("orderlymq_canary_demo-1"),
    ]


def test_the_table_of_reasons_has_every_verdict() -> None:
    """Law: each verdict of the canary is in the table of reasons, with its status."""
    unknown = {STARTING, SENDS_FAIL, NOT_DELIVERED, ANOTHER_CANARY, SILENT.reason}
    table = {reason.name: reason.status for reason in REASONS}

    assert table == (
        dict.fromkeys((ORDER_KEPT, SLOW), "True")
        | dict.fromkeys(unknown, "Unknown")
        | dict.fromkeys((kind.value for kind in Kind), "False")
    )


@dataclass
class Page:
    """The status that a canary reports; None while it does not answer."""

    said: dict[str, Any] | None = None


@asynccontextmanager
async def heard(
    page: Page,
) -> AsyncIterator[
    tuple[dict[ClusterKey, ConditionReport], Canaries, list[ClusterKey], list[float]]
]:
    """Serve *page*; yield what was heard, its listener, the wakes and the clock."""

    async def status(request: web.Request) -> web.Response:
        return web.Response(status=500) if page.said is None else web.json_response(page.said)

    pages = web.Application()
    pages.router.add_get("/status", status)
    async with TestServer(pages, host="127.0.0.1") as server:
        orders: dict[ClusterKey, ConditionReport] = {}
        woken: list[ClusterKey] = []
        clock = [100.0]
        clusters = {KEY: f"http://127.0.0.1:{server.port}/status"}
        yield (
            orders,
            Canaries(lambda: clusters, orders, lambda: True, woken.append, lambda: clock[0]),
            woken,
            clock,
        )


async def test_what_a_canary_said_goes_with_the_lease() -> None:
    """Law: an operator that leads again does not report what it heard before it lost its lease."""
    orders = {KEY: BROKEN}
    canaries = Canaries(dict, orders, lambda: False, lambda key: None)
    task = asyncio.create_task(canaries.run())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert orders == {}


async def test_a_canary_that_is_silent_for_a_while_proves_nothing() -> None:
    """Law: a canary counts as silent only after a while, since its pod may be replaced.

    Each change wakes the reconcile once.
    """
    page = Page({"status": "True", "reason": "OrderKept", "message": "in order"})
    async with heard(page) as (orders, canaries, woken, clock), aiohttp.ClientSession() as session:
        for _ in range(3):
            await canaries.look(session)
        assert orders == {KEY: ConditionReport("True", "OrderKept", "in order")}
        assert woken == [KEY]

        page.said = None
        await canaries.look(session)
        assert orders[KEY].status == "True"
        clock[0] += SILENT_S
        for _ in range(3):
            await canaries.look(session)
        assert orders == {KEY: SILENT}
        assert woken == [KEY, KEY]


@pytest.mark.parametrize(
    "said",
    [
        {"status": "True", "reason": "Ready!", "message": "no reason of ours"},
        {"status": "Perhaps", "reason": "OrderKept", "message": ""},
        {"reason": "OrderKept"},
        {},
    ],
)
async def test_an_answer_that_is_no_verdict_is_none(said: dict[str, Any]) -> None:
    async with heard(Page(said)) as (orders, canaries, _, _), aiohttp.ClientSession() as session:
        await canaries.look(session)
        assert orders == {KEY: SILENT}
