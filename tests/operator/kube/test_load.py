"""The operator's requests to the API server, counted by a server of our own; HTTP is real, the clock is not."""

import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE
from types import FrameType

import orjson
import pytest

from orderlymq_operator.brokers.admin import AdminError
from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.observe.audit import Audit
from orderlymq_operator.kube.observe.inventory import Inventory
from orderlymq_operator.kube.observe.lister import WATCHED_KEPT_S
from orderlymq_operator.kube.reconcile.backoff import FIRST_S, MAX_S, SOON_OBSERVATIONS, Backoff
from orderlymq_operator.kube.resources import (
    CLAIMS,
    CLUSTERS,
    MADE,
    OWN_KINDS,
    PODS,
    SERVICES,
    TOPICS,
)
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.names import AUTO_CREATE_TOPIC
from tests.operator.kube.objectserver import ObjectServer
from tests.operator.kube.samples import NAMESPACE, custom, pod
from tests.operator.kube.smallcluster import KEY, SmallCluster, small_cluster

# Numbers of docs/explanation/operator.md for one Cluster: each kind that is made for it, its claims and its pods.
_ALL, _CHANGING = 12, 2
# Before a pass that changes something: the Cluster itself, and all of its objects.
_WHOLE = 1 + _ALL


@pytest.fixture
async def small(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SmallCluster]:
    async with small_cluster(monkeypatch.setattr) as found:
        while await found.reconciler.reconcile(KEY) is not None:
            pass
        yield found


async def test_a_calm_cluster_asks_the_api_server_for_nothing(small: SmallCluster) -> None:
    """Law: a calm Cluster costs no request (not even for its Secrets); all is read again after half an hour,
    in case a watch broke off.
    """
    small.server.asked.clear()
    for _ in range(30):
        small.now[0] += 59
        assert await small.reconciler.reconcile(KEY) is None
    asked = list(small.server.asked)
    small.now[0] += WATCHED_KEPT_S
    later = [await small.lists() for _ in range(2)]

    assert asked == []
    assert later == [(None, _ALL), (None, 0)]
    assert small.server.writes() == []


def _called_in_the_loop(found: Counter[str], frame: FrameType, event: str, _: object) -> None:
    """Count a call of a function of the operator that is not a coroutine."""
    code = frame.f_code
    plain = not code.co_flags & (CO_COROUTINE | CO_ASYNC_GENERATOR)
    if event == "call" and plain and "orderlymq_operator" in code.co_filename:
        found[f"{code.co_filename}: {code.co_qualname}"] += 1


async def _calls_at_rest(small: SmallCluster, count: int) -> Counter[str]:
    """Return how often the loop calls each function in a pass over that many Topics that finds nothing to do."""
    names = [f"topic-{number}" for number in range(count)]
    facts = {"perm": 6, "readQueueNums": 8, "writeQueueNums": 8, "order": True}
    table = {name: {"topicName": name, **facts} for name in [*names, AUTO_CREATE_TOPIC]}
    topics = orjson.dumps({"topicConfigTable": table, "dataVersion": {}})
    lists = orjson.dumps({"table": dict.fromkeys(names, "demo-0:8")})
    small.scripted.answers |= {
        RequestCode.GET_ALL_TOPIC_CONFIG: lambda request: request.reply(body=topics),
        RequestCode.GET_KVLIST_BY_NAMESPACE: lambda request: request.reply(body=lists),
    }
    for name in names:
        small.server.put(TOPICS, custom("Topic", name))
    small.reconciler.inventory.invalidate()
    while await small.reconciler.reconcile(KEY) is not None:
        pass
    small.server.asked.clear()
    found: Counter[str] = Counter()
    sys.setprofile(partial(_called_in_the_loop, found))
    try:
        assert await small.reconciler.reconcile(KEY) is None
    finally:
        sys.setprofile(None)
    assert small.server.writes() == []
    return found


async def test_a_pass_over_many_topics_lets_the_loop_serve_others(small: SmallCluster) -> None:
    """Law: in a pass over many Topics the loop calls no function once per Topic; a thread compares and plans them."""
    few = await _calls_at_rest(small, 2)
    many = await _calls_at_rest(small, 32)

    assert {name for name in many if many[name] - few[name] >= 30} == set()


async def test_what_was_changed_by_hand_is_put_right_when_a_watch_shows_it(
    small: SmallCluster,
) -> None:
    """Law: a manual change is put right when a watch shows it; untouched kinds are not read.

    A pass that did something reads all again.
    """
    gone = SERVICES.path(NAMESPACE, "demo-0")
    found = small.server.objects.pop(gone)
    await small.lists()
    hidden = gone not in small.server.objects

    is_news = small.shown(SERVICES, found, gone=True)
    counts = [(await small.lists())[1] for _ in range(2)]

    assert (hidden, is_news) == (True, True)
    assert gone in small.server.objects
    assert counts == [2 + _WHOLE, _WHOLE]  # The Cluster, and whether another one has the name.


async def test_what_a_write_of_the_operator_echoes_is_no_news(small: SmallCluster) -> None:
    """Law: a watch's echo of the operator's own write, or an object shown again unchanged, causes no pass."""
    for resource, name in ((SERVICES, "demo-0"), (PODS, "demo-0-0"), (CLAIMS, "data-demo-0-0")):
        found = small.server.find(resource, NAMESPACE, name)
        assert found is not None
        assert not small.shown(resource, found, gone=False)

    assert await small.lists() == (None, 0)


async def test_nothing_is_done_on_the_word_of_a_watch(small: SmallCluster) -> None:
    """Law: the operator never acts on a watch alone: before a change it reads the Cluster and all objects made for it."""
    topic = small.server.put(TOPICS, custom("Topic", "log", spec={"type": "Normal"}))
    small.reconciler.inventory.shown(TOPICS, topic, gone=False)

    small.server.asked.clear()
    with suppress(AdminError):  # The brokers of this test make no topics.
        await small.reconciler.reconcile(KEY)
    read = [path.rpartition("/")[2] for method, path, *_ in small.server.asked if method == "GET"]

    wanted = {resource.plural for resource in (CLUSTERS, *MADE, CLAIMS, PODS)}
    assert wanted <= set(read)
    assert len(read) == _WHOLE + 2  # And the Secrets of its own.


async def test_a_namespace_whose_role_is_gone_is_not_served_until_it_is_back() -> None:
    """Law: a namespace whose Role is deleted is not served until the Role is back; deletions there are still seen."""
    server = ObjectServer()
    server.refused["/api/v1/namespaces/other/"] = (403, "not granted")
    async with server.serving() as api:
        audit, inventory = Audit(OperatorMetrics()), Inventory(api, (NAMESPACE, "other"))
        looks = []
        made = partial(server.put, TOPICS, custom("Topic", "orders", "other"))
        for step in (audit.lost, made, server.refused.clear, server.asked.clear):
            step()
            await audit.compare(api, inventory, (NAMESPACE, "other"))
            looks.append((list(inventory.unread), len(inventory.names("Topic"))))

    assert looks == [(["other"], 0), (["other"], 1), ([], 1), ([], 1)]
    assert server.asked == []


async def test_an_operator_at_rest_writes_nothing_and_asks_less_than_once_a_minute(
    small: SmallCluster,
) -> None:
    """Law: an operator at rest writes nothing and asks less than once a minute, beside watches and lease,
    over two hours of resyncs.
    """
    audit = Audit(OperatorMetrics(), lambda: small.now[0])
    inventory = small.reconciler.inventory
    await audit.compare(small.api, inventory, (NAMESPACE,))
    small.server.asked.clear()
    minutes = 120
    for _ in range(minutes):
        small.now[0] += 60
        await audit.compare(small.api, inventory, (NAMESPACE,), small.reconciler.interrupted)
        assert await small.reconciler.reconcile(KEY) is None

    assert len(small.server.asked) < minutes
    assert small.server.writes() == []


async def test_what_is_kept_is_read_again_after_a_watch_was_interrupted(
    small: SmallCluster,
) -> None:
    """Law: after a watch was interrupted all is read again, so an object that vanished meanwhile is made again."""
    audit = Audit(OperatorMetrics(), lambda: small.now[0])
    kept, gone = SERVICES.path(NAMESPACE, "demo-0-replicas"), SERVICES.path(NAMESPACE, "demo-0")
    for path in (kept, gone):
        audit.shown("Service", small.server.objects[path], gone=False, listed=True)
    await audit.compare(small.api, small.reconciler.inventory, (NAMESPACE,))
    small.server.drop(SERVICES, NAMESPACE, "demo-0")
    audit.shown("Service", small.server.objects[kept], gone=False, listed=True)

    await audit.compare(
        small.api, small.reconciler.inventory, (NAMESPACE,), small.reconciler.interrupted
    )
    await small.reconciler.reconcile(KEY)

    assert gone in small.server.objects


async def test_a_cluster_that_waits_is_looked_at_ever_more_rarely(small: SmallCluster) -> None:
    """Law: a waiting Cluster, whose pod needs a person's help, is looked at less and less often;
    each look costs two lists.
    """
    small.now[0] += WATCHED_KEPT_S
    failing = {"name": "main", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    server = small.server.objects[PODS.path(NAMESPACE, "demo-0-0")]
    status = {**server["status"], "containerStatuses": [failing], "podIP": "", "conditions": []}
    small.server.put(PODS, {**server, "status": status})

    looks = [await small.lists() for _ in range(SOON_OBSERVATIONS + 8)]

    pauses = [delay_s for delay_s, _ in looks]
    assert pauses[1:SOON_OBSERVATIONS] == [FIRST_S] * (SOON_OBSERVATIONS - 1)
    assert pauses[-1] == MAX_S
    assert {count for _, count in looks[1:]} == {_CHANGING}
    assert small.condition("Ready")["reason"] == "PodFailing"


def test_a_change_makes_looks_frequent_again() -> None:
    """Law: after a change, looks are frequent again."""
    pace = Backoff()
    same = [pace.pause_s("demo", "waits") for _ in range(SOON_OBSERVATIONS + 10)]

    assert same[-1] == MAX_S
    assert pace.pause_s("demo", "moves") == FIRST_S


async def test_a_cluster_that_is_paused_says_how_it_is(small: SmallCluster) -> None:
    """Law: a paused Cluster is still reported on, and a healthy one stays Ready."""
    small.annotate(pause="true")

    delay_s, _ = await small.lists()

    assert delay_s is None
    assert small.condition("Ready")["status"] == "True"
    assert small.condition("Paused")["status"] == "True"


async def test_the_audit_reads_what_a_watch_that_broke_off_may_have_missed() -> None:
    """Law: the audit finds what an interrupted watch may have missed.

    It reads all pods' metadata only then, other kinds twice an hour.
    """
    server, now = ObjectServer(), [0.0]
    server.put(PODS, pod())
    async with server.serving() as api:
        audit = Audit(OperatorMetrics(), lambda: now[0])
        inventory = Inventory(api, (NAMESPACE,))
        found, reads = [], []
        for minute in range(40):
            for shown in ("gone", "one") if minute == 0 else ("one",) if minute == 9 else ():
                audit.shown("Pod", pod(shown, uid=shown), gone=False, listed=True)
            server.asked.clear()
            found += await audit.compare(api, inventory, (NAMESPACE,))
            reads.append([path.rpartition("/")[2] for _, path, *_ in server.asked])
            now[0] += 60

    kinds = sorted(resource.plural for resource in OWN_KINDS)
    assert {minute: sorted(read) for minute, read in enumerate(reads) if read} == {
        0: kinds,
        9: ["pods"],
        30: kinds,
    }
    assert ("Pod", (NAMESPACE, "gone", "gone")) in found
