"""Plans carried out with our own API server, name server and leader; HTTP and remoting are real."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import aiohttp
import orjson
import pytest

from orderlymq_operator.brokers.admin import Admin, AdminError
from orderlymq_operator.brokers.status import CAUGHT_UP_LAG_MAX, Peer, ReplicaStatus
from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.errors import (
    BudgetsOverlapError,
    EvictionRefusedError,
    RetryLaterError,
)
from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.cluster import RaftGroupFacts, group_set
from orderlymq_operator.kube.observe.cluster import Live
from orderlymq_operator.kube.observe.pods import claim_facts, pod_facts
from orderlymq_operator.kube.reconcile import groupremoval
from orderlymq_operator.kube.reconcile.backend import KubeBackend
from orderlymq_operator.kube.reconcile.executor import execute
from orderlymq_operator.kube.reconcile.status import Findings
from orderlymq_operator.kube.resources import CLAIMS, PODS, STATEFUL_SETS, Json
from orderlymq_operator.plan.actions import (
    Action,
    ConditionReport,
    CreateTopic,
    Observed,
    ObservedExpansion,
    ObservedGroup,
    PutOrderConfig,
    RestartReplica,
    StartReplica,
    Subject,
    TopicConfig,
)
from orderlymq_operator.resources.kinds import Desired
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.client import RemotingClient
from orderlymq_runtime.remoting.connection import Connection
from orderlymq_runtime.remoting.server import RemotingServer
from tests.operator.examples import topic
from tests.operator.kube.objectserver import ObjectServer
from tests.operator.kube.samples import NAMESPACE, cluster, environment, pod
from tests.operator.scripted import Answer, serving

HOST = "127.0.0.1"
ORDERED, NORMAL = TopicConfig(4, 6, order=True), TopicConfig(4, 6, order=False)
BUDGET = "The disruption budget demo-0 needs 2 healthy pods and has 2 currently"


def _own(name: str, component: str, **status: Any) -> Json:
    made = pod(name, podIP=HOST, **status)
    container = {names.BROKER: "broker", names.NAME_SERVER: "name-server"}[component]
    for each in made["status"]["containerStatuses"]:
        each["name"] = each["name"].replace("main", container)
    made["metadata"]["labels"] = {
        names.LABEL_CLUSTER: "demo",
        names.LABEL_GROUP: "0",
        "app.kubernetes.io/component": component,
    }
    return made


def _no_topics(request: RemotingCommand) -> RemotingCommand:
    return request.reply(body=b'{"topicConfigTable": {}, "dataVersion": {}}')


class Place:
    """The place where plans are carried out.

    Attributes:
        created: topics that the leader was asked to create, in order.
        mute: whether the name server refuses requests.
        deposed: whether the leader cannot commit anything.
        accounts: the leader's accounts.
        closed: each request to the leader to stop, or to take messages again.
    """

    def __init__(self, server: ObjectServer, backend: KubeBackend) -> None:
        self.server = server
        self.backend = backend
        self.created: list[str] = []
        self.mute = False
        self.deposed = False
        self.accounts = {"shop", "audit"}
        self.closed = 0

    def show_accounts(self, request: RemotingCommand) -> RemotingCommand:
        """Answer with the accounts."""
        facts = dict.fromkeys(("defaultTopicPerm", "defaultGroupPerm"), "DENY")
        facts |= {"whiteRemoteAddress": "", "fingerprint": ""}
        rights: Json = {"admin": False, "topicPerms": {}, "groupPerms": {}}
        accounts = [{"accessKey": key, **facts, **rights} for key in self.accounts]
        return request.reply(body=orjson.dumps({"accounts": accounts}))

    def delete_account(self, request: RemotingCommand) -> RemotingCommand:
        """Delete an account."""
        self.accounts.remove(request.ext["accessKey"])
        return request.reply()

    def close(self, request: RemotingCommand) -> RemotingCommand:
        """Stop taking messages, or fail to commit that."""
        self.closed += 1
        return request.reply(ResponseCode.SYSTEM_ERROR if self.deposed else ResponseCode.SUCCESS)

    def put_list(self, request: RemotingCommand) -> RemotingCommand:
        """Take a queue list, or refuse it."""
        return request.reply(ResponseCode.SYSTEM_ERROR if self.mute else ResponseCode.SUCCESS)

    def create(self, request: RemotingCommand) -> RemotingCommand:
        """Note a topic."""
        self.created.append(request.ext["topic"])
        return request.reply()

    async def perform(self, actions: Sequence[Action]) -> tuple[list[Exception], int]:
        """Carry out *actions*; return what failed, and how many were done."""
        return await execute(self.backend, actions, OperatorMetrics())

    def put(self, made: Json) -> None:
        """Let a pod be there, for the API server and for the backend."""
        found = self.server.put(PODS, made)
        self.backend.live.pods[made["metadata"]["name"]] = pod_facts(found)


@pytest.fixture
async def place(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    """A Cluster with one name server and a group led by its first replica."""
    server, client = ObjectServer(), RemotingClient()
    made = cluster(nameServers={"replicas": 1})
    live = Live(
        pods={
            "demo-nameserver-0": pod_facts(_own("demo-nameserver-0", names.NAME_SERVER)),
            "demo-0-0": pod_facts(_own("demo-0-0", names.BROKER)),
        },
        statuses={"demo-0-0": ReplicaStatus("leader", 1, 1, {})},
    )
    async with server.serving() as api, aiohttp.ClientSession() as session:
        backend = KubeBackend(api, session, Admin(client), Desired(made), live, environment(made))
        found = Place(server, backend)
        async with (
            serving({RequestCode.PUT_KV_CONFIG: found.put_list}) as (_, name_server),
            serving(
                {
                    RequestCode.UPDATE_AND_CREATE_TOPIC: found.create,
                    RequestCode.UPDATE_BROKER_CONFIG: found.close,
                    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: found.show_accounts,
                    RequestCode.DELETE_ACL_CONFIG: found.delete_account,
                    RequestCode.GET_ALL_TOPIC_CONFIG: _no_topics,
                }
            ) as (_, leader),
        ):
            monkeypatch.setattr(names, "NAME_SERVER_PORT", int(name_server.rpartition(":")[2]))
            monkeypatch.setattr(names, "BROKER_PORT", int(leader.rpartition(":")[2]))
            yield found
    await client.close()


async def test_a_queue_list_that_is_not_published_holds_back_its_topic_and_no_other(
    place: Place,
) -> None:
    """Law: a topic waits until its queue list is published, and other topics do not;
    otherwise clients would see a part of its queues.
    """
    place.mute = True
    actions: list[Action] = [
        PutOrderConfig("orders", "demo-0:4"),
        CreateTopic("orders", "demo-0", ORDERED),
        CreateTopic("events", "demo-0", NORMAL),
    ]

    failed, done = await place.perform(actions)

    assert place.created == ["events"]
    assert [type(error) for error in failed] == [AdminError]
    assert done == 1

    place.mute = False
    assert await place.perform(actions[:2]) == ([], 2)
    assert place.created == ["events", "orders"]


async def test_what_a_broker_refuses_of_an_expansion_is_shown(place: Place) -> None:
    """Law: the refusal of a broker during an expansion is in the report."""
    place.backend.desired = Desired(cluster(), topics=(topic(),))
    subject = Subject("Topic", "orders")
    place.backend.reports[subject] = ConditionReport("False", "ExpansionSwitching", "switching")
    place.backend.failed["Topic", "orders"] = "the leader answered code 1: no"

    place.backend.name_failures()

    report = place.backend.reports[subject]
    assert report.message == "switching: the leader answered code 1: no"


class Silent:
    """A leader on a lost node: it takes requests while its connections stand, and answers none."""

    def __init__(self) -> None:
        self.asked = 0

    def connection_made(self, conn: Connection) -> None:
        pass

    def connection_lost(self, conn: Connection) -> None:
        pass

    def received(self, conn: Connection, command: RemotingCommand) -> None:
        """Count the request."""
        self.asked += 1


async def test_a_leader_that_falls_silent_amid_many_actions_gets_no_more_of_them(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a leader that becomes silent gets no further actions; 10,000 time-outs would delay the work with its successor."""
    monkeypatch.setattr("orderlymq_operator.brokers.admin._CHANGE_TIMEOUT_S", 2.0)
    silent, host = Silent(), "127.0.0.2"
    server = RemotingServer(silent)
    await server.listen(host, names.BROKER_PORT)
    lost = _own("demo-1-0", names.BROKER)
    lost["metadata"]["labels"][names.LABEL_GROUP] = "1"
    lost["status"]["podIP"] = host
    place.put(lost)
    place.backend.live.statuses["demo-1-0"] = ReplicaStatus("leader", 1, 1, {})
    events = [f"event-{number}" for number in range(200)]
    actions: list[Action] = [CreateTopic(f"lost-{name}", "demo-1", NORMAL) for name in events]
    actions += [CreateTopic(name, "demo-0", NORMAL) for name in events]

    async with asyncio.timeout(30):
        failed, done = await place.perform(actions)
    await server.close()

    assert silent.asked == 32
    assert len(failed) == 200
    assert (done, sorted(place.created)) == (200, sorted(events))


async def test_a_leader_that_falls_silent_amid_a_report_is_asked_about_no_further_group(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: if the leader becomes silent during a report, no further consumer group is asked about."""
    monkeypatch.setattr("orderlymq_operator.brokers.admin._READ_TIMEOUT_S", 2.0)
    backend, codes = place.backend, RequestCode
    backend.live.put(group_set(backend.desired.cluster, "demo-0", backend.environment))
    answers: dict[int, Answer] = {
        codes.ORDERLYMQ_LOCK_TABLE: lambda request: request.reply(body=b'{"locks": []}'),
        codes.GET_CONSUMER_CONNECTION_LIST: lambda request: None,
        codes.GET_CONSUME_STATS: lambda request: None,
    }
    async with serving(answers) as (scripted, address), asyncio.timeout(30):
        monkeypatch.setattr(names, "BROKER_PORT", int(address.rpartition(":")[2]))
        groups = [f"group-{number}" for number in range(100)]
        found = await backend.consumer_groups(groups, lambda address: "")
        left = [task for task in asyncio.all_tasks() if "consumer_groups" in repr(task.get_coro())]

    assert (found, left) == (None, [])
    assert {code for code, *_ in scripted.asked} == set(answers)


async def test_a_queue_list_that_a_name_server_without_a_pod_lacks_holds_back_its_topic(
    place: Place,
) -> None:
    """Law: a topic waits while a name server without a pod lacks its queue list,
    because it would come back and show a part of the queues.
    """
    place.backend.desired = Desired(cluster(nameServers={"replicas": 2}))
    actions: list[Action] = [
        PutOrderConfig("orders", "demo-0:4"),
        CreateTopic("orders", "demo-0", ORDERED),
    ]

    failed, _ = await place.perform(actions)
    assert place.created == []
    assert [str(error) for error in failed] == [
        "name server 1 does not run and lacks the queue list"
    ]

    place.put(_own("demo-nameserver-1", names.NAME_SERVER))
    assert await place.perform(actions) == ([], 2)
    assert place.created == ["orders"]


async def test_who_does_not_lead_any_more_sends_brokers_and_name_servers_nothing(
    place: Place,
) -> None:
    """Law: an operator that has lost its lease sends no planned request to brokers or name servers."""
    api = place.backend.api
    api.acts = lambda: False

    failed, done = await place.perform(
        [PutOrderConfig("orders", "demo-0:4"), CreateTopic("events", "demo-0", NORMAL)]
    )

    assert [type(error) for error in failed] == [RetryLaterError] * 2
    assert (done, place.created) == (0, [])

    made = group_set(place.backend.desired.cluster, "demo-0", place.backend.environment)
    notes = {names.ANNOTATION_CLOSED: "true"}
    closed = {**made, "metadata": {**made["metadata"], "annotations": notes}}
    place.backend.live.put(place.server.put(STATEFUL_SETS, closed))
    observed = Observed(groups={"demo-0": ObservedGroup(1, {}, {}, {})})
    for surplus in (("demo-0",), ()):
        with pytest.raises(RetryLaterError):
            await groupremoval.settle(api, place.backend, surplus, Findings(), observed)
    assert (place.closed, place.accounts) == (0, {"shop", "audit"})


async def test_a_replica_is_replaced_by_eviction(place: Place) -> None:
    """Law: a replica is evicted only as the pod that was looked at; its successor is left alone."""
    place.put(_own("demo-0-1", names.BROKER))

    assert await place.perform([RestartReplica("demo-0", 2)]) == ([], 1)

    evicted = place.server.find(PODS, NAMESPACE, "demo-0-1")
    assert evicted is not None
    assert "deletionTimestamp" in evicted["metadata"]
    assert [each for each in place.server.writes() if each[0] == "DELETE"] == []

    successor = _own("demo-0-1", names.BROKER)
    successor["metadata"]["uid"] = "two"
    place.server.put(PODS, successor)
    await place.perform([RestartReplica("demo-0", 2)])
    left = place.server.find(PODS, NAMESPACE, "demo-0-1")
    assert left is not None
    assert "deletionTimestamp" not in left["metadata"]


_NEAR, _MUTE = Peer(0, active=True), Peer(0, active=False)
_FAR = Peer(CAUGHT_UP_LAG_MAX + 1, active=True)


@pytest.mark.parametrize(
    ("voters", "peers", "goes"),
    [
        ({1}, {}, False),
        ({1}, {2: _FAR}, False),
        ({1, 2}, {2: _NEAR}, False),
        ({1, 2, 3}, {2: _NEAR, 3: _NEAR}, True),
        ({1, 2, 3}, {2: _NEAR, 3: _FAR}, False),
        ({1, 2, 3}, {2: _NEAR, 3: _MUTE}, False),
        (None, {}, False),
    ],
    ids=[
        "alone",
        "copied to a learner",
        "of two",
        "spared",
        "another lags",
        "another is mute",
        "unled",
    ],
)
async def test_a_replica_whose_volume_goes_with_its_pod_stays_while_the_others_lack_what_is_on_it(
    place: Place, voters: set[int] | None, peers: dict[int, Peer], goes: bool
) -> None:
    """Law: a pod whose volume goes with it stays while the other replicas lack its data,
    also if a group grows or has no leader.
    """
    live = place.backend.live
    place.put(_own("demo-0-0", names.BROKER))
    live.statuses["demo-0-0"] = ReplicaStatus("leader", 1, 1, peers, frozenset(voters or ()))
    if voters is None:
        del live.statuses["demo-0-0"]
    meta = {"name": "data-demo-0-0", "uid": "1", "deletionTimestamp": "2026-01-02T00:00:00Z"}
    live.claims["data-demo-0-0"] = claim_facts({"metadata": meta, "spec": {}})

    assert await place.perform([RestartReplica("demo-0", 1)]) == ([], int(goes))

    found = place.server.find(PODS, NAMESPACE, "demo-0-0")
    assert found is not None
    assert ("deletionTimestamp" in found["metadata"]) == goes
    assert ["data-demo-0-0" in text for text in place.backend.held] == [True] * (not goes)


async def test_a_budget_that_keeps_a_pod_is_waited_for_and_is_no_failure(place: Place) -> None:
    """Law: a PodDisruptionBudget that forbids an eviction is no failure; its message is reported.

    Without a running broker the pod goes.
    """
    place.put(_own("demo-0-1", names.BROKER))
    place.server.budgets["demo-0-1"] = BUDGET

    assert await place.perform([RestartReplica("demo-0", 2)]) == ([], 0)

    assert len(place.backend.held) == 1
    assert BUDGET in place.backend.held[0]
    assert place.server.find(PODS, NAMESPACE, "demo-0-1") is not None

    waiting = {"name": "main", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    sidecar = {"name": "logs", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
    place.put(_own("demo-0-1", names.BROKER, containerStatuses=[waiting, sidecar]))
    assert await place.perform([RestartReplica("demo-0", 2)]) == ([], 1)
    assert place.server.find(PODS, NAMESPACE, "demo-0-1") is None


async def test_a_pod_that_two_budgets_select_says_what_to_do_and_is_never_deleted_while_it_serves(
    place: Place,
) -> None:
    """Law: if two budgets select a pod, the message says what to do, and the pod is never deleted while it serves;
    without a running broker it goes.
    """
    place.put(_own("demo-0-1", names.BROKER))
    place.server.overlapping = {"demo-0-1"}

    failed, done = await place.perform([RestartReplica("demo-0", 2)])

    (refused,) = failed
    assert isinstance(refused, BudgetsOverlapError)
    assert "delete the one that is not the operator's" in str(refused)
    assert done == 0
    kept = place.server.find(PODS, NAMESPACE, "demo-0-1")
    assert kept is not None
    assert "deletionTimestamp" not in kept["metadata"]

    waiting = {"name": "main", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    place.put(_own("demo-0-1", names.BROKER, containerStatuses=[waiting]))
    assert await place.perform([RestartReplica("demo-0", 2)]) == ([], 1)
    assert place.server.find(PODS, NAMESPACE, "demo-0-1") is None


async def test_an_api_server_that_is_busy_is_distinguished_from_a_budget(place: Place) -> None:
    """Law: a busy API server is distinguished from a budget, although both answer 429."""
    api: Api = place.backend.api
    place.put(_own("demo-0-1", names.BROKER))
    uid = place.backend.live.pods["demo-0-1"].uid
    place.server.refused[PODS.path(NAMESPACE, "demo-0-1", "eviction")] = (429, "too many requests")

    with pytest.raises(RetryLaterError):
        await api.evict(NAMESPACE, "demo-0-1", uid)

    place.server.refused.clear()
    place.server.budgets["demo-0-1"] = BUDGET
    with pytest.raises(EvictionRefusedError, match="needs 2 healthy pods"):
        await api.evict(NAMESPACE, "demo-0-1", uid)


@pytest.mark.parametrize(
    ("members", "kept", "replicas"),
    [
        ({1, 2, 3}, {"data-demo-0-4"}, 3),
        ({1, 2, 3, 4}, {"data-demo-0-3"}, 4),
        ({1, 2, 3, 4, 5}, {"data-demo-0-3", "data-demo-0-4"}, 5),
        ({1, 2, 3, 5}, {"data-demo-0-4"}, 3),
        (None, {"data-demo-0-3", "data-demo-0-4"}, 3),
    ],
)
async def test_the_volume_of_a_member_is_kept_and_started_again(
    place: Place, members: set[int] | None, kept: set[str], replicas: int
) -> None:
    """Law: a member's volume is kept and used again, also if an older StatefulSet comes back;
    replicas start one after the other.
    """
    backend, server = place.backend, place.server
    form = RaftGroupFacts(3, 3, "20Gi", "10.96.0.7")
    made = cluster(replicasPerGroup=5)
    backend.desired = Desired(made)
    backend.environment = environment(made, groups={"demo-0": form})
    backend.live.put(server.put(STATEFUL_SETS, group_set(made, "demo-0", backend.environment)))
    for number in (3, 4):
        name = f"data-demo-0-{number}"
        claim: Json = {"kind": CLAIMS.kind, "apiVersion": "v1", "spec": {"resources": {}}}
        claim["metadata"] = {"name": name, "namespace": NAMESPACE}
        backend.live.claims[name] = claim_facts(server.put(CLAIMS, claim))
    voters = None if members is None else frozenset(members)
    backend.live.statuses["demo-0-0"] = ReplicaStatus("leader", 1, 1, {}, voters)

    await place.perform([StartReplica("demo-0", node, join=True) for node in (4, 5)])

    left = {path.rpartition("/")[2] for path in server.objects if f"/{CLAIMS.plural}/" in path}
    found = server.find(STATEFUL_SETS, NAMESPACE, "demo-0")
    assert left == kept
    assert found is not None
    assert found["spec"]["replicas"] == replicas


async def test_a_group_goes_only_when_its_leader_commits_that_it_takes_no_more(
    place: Place,
) -> None:
    """Law: a group is removed only after its leader commits that it takes no more messages;
    a leader that was cut off may wrongly seem empty.
    """
    backend, server = place.backend, place.server
    made = group_set(backend.desired.cluster, "demo-0", backend.environment)
    backend.live.put(server.put(STATEFUL_SETS, made))
    observed = Observed(groups={"demo-0": ObservedGroup(1, {}, {}, {})})

    async def settle() -> Json | None:
        await groupremoval.settle(backend.api, backend, ("demo-0",), Findings(), observed)
        return server.find(STATEFUL_SETS, NAMESPACE, "demo-0")

    place.deposed = True
    for _ in range(3):
        with pytest.raises(AdminError):
            await settle()
    assert server.find(STATEFUL_SETS, NAMESPACE, "demo-0") is not None

    place.deposed = False
    growing = {"orders": ObservedExpansion("fenced")}
    observed = replace(observed, groups={"demo-0": ObservedGroup(1, {}, {}, {}, {}, growing)})
    assert await settle() is not None
    observed = replace(observed, groups={"demo-0": ObservedGroup(1, {}, {}, {})})
    assert await settle() is None
    # If it comes back on the volumes that stay, it would know accounts that are deleted meanwhile.
    assert place.accounts == set()
