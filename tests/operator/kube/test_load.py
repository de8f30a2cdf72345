"""How many requests the operator makes of the API server, counted by one of our own; HTTP is real, the clock is not."""

from collections.abc import AsyncIterator

import pytest

from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.observe.audit import Audit
from orderlymq_operator.kube.observe.inventory import Inventory
from orderlymq_operator.kube.observe.lister import KEPT_S
from orderlymq_operator.kube.reconcile.pace import FIRST_S, MAX_S, SOON_LOOKS, Backoff
from orderlymq_operator.kube.resources import OWN_KINDS, PODS
from tests.operator.kube.objectserver import ObjectServer
from tests.operator.kube.samples import NAMESPACE, pod
from tests.operator.kube.smallcluster import KEY, SmallCluster, small_cluster

# What docs/explanation/operator.md says of one Cluster: each kind that is made for it, once; then pods and StatefulSets.
_FIRST, _LATER = 12, 2


@pytest.fixture
async def small(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SmallCluster]:
    async with small_cluster(monkeypatch.setattr) as found:
        while await found.reconciler.reconcile(KEY) is not None:
            pass
        yield found


async def test_a_calm_cluster_is_read_whole_once_a_minute(small: SmallCluster) -> None:
    """In between a pass that a watch wakes reads pods and StatefulSets, and nobody makes others."""
    small.now[0] += KEPT_S

    counts = [await small.lists() for _ in range(4)]
    small.now[0] += KEPT_S
    later = [await small.lists() for _ in range(2)]

    assert counts == [(None, _FIRST)] + [(None, _LATER)] * 3
    assert later == [(None, _FIRST), (None, _LATER)]
    assert small.server.writes() == []


async def test_what_was_changed_by_hand_is_put_right_within_a_minute(small: SmallCluster) -> None:
    """What is kept hides it for that long, and a pass that had to do something reads all again."""
    gone = "/api/v1/namespaces/shop/services/demo-0"
    small.now[0] += KEPT_S
    await small.lists()
    del small.server.objects[gone]

    await small.lists()
    hidden = gone not in small.server.objects
    small.now[0] += KEPT_S
    await small.lists()

    assert hidden
    assert gone in small.server.objects
    assert (await small.lists())[1] == _FIRST


async def test_a_cluster_that_waits_is_looked_at_ever_more_rarely(small: SmallCluster) -> None:
    """A pod that a person must help would cost a pass a second for ever; each costs two lists."""
    failing = {"name": "main", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    server = small.server.objects[PODS.path(NAMESPACE, "demo-0-0")]
    status = {**server["status"], "containerStatuses": [failing], "podIP": "", "conditions": []}
    small.server.put(PODS, {**server, "status": status})

    looks = [await small.lists() for _ in range(SOON_LOOKS + 8)]

    pauses = [delay_s for delay_s, _ in looks]
    assert pauses[1:SOON_LOOKS] == [FIRST_S] * (SOON_LOOKS - 1)
    assert pauses[-1] == MAX_S
    assert {count for _, count in looks[1:]} == {_LATER}
    assert small.condition("Ready")["reason"] == "PodFailing"


def test_a_change_makes_looks_frequent_again() -> None:
    """What moves is worth a look."""
    pace = Backoff()
    same = [pace.pause_s("demo", "waits") for _ in range(SOON_LOOKS + 10)]

    assert same[-1] == MAX_S
    assert pace.pause_s("demo", "moves") == FIRST_S


async def test_a_cluster_that_is_paused_says_how_it_is(small: SmallCluster) -> None:
    """Nothing is done to it, and a healthy one stays Ready."""
    small.annotate(pause="true")

    delay_s, _ = await small.lists()

    assert delay_s is None
    assert small.condition("Ready")["status"] == "True"
    assert small.condition("Paused")["status"] == "True"


async def test_the_audit_reads_all_pods_every_ten_minutes_and_resources_not_twice() -> None:
    """Pods of all applications are many."""
    server, now = ObjectServer(), [0.0]
    server.put(PODS, pod())
    async with server.serving() as api:
        audit = Audit(OperatorMetrics(), lambda: now[0])
        inventory = Inventory(api, (NAMESPACE,))
        audit.shown("Pod", pod("gone"), gone=False)
        found, reads = [], []
        for _ in range(20):
            now[0] += 60
            server.asked.clear()
            found += await audit.compare(api, inventory, (NAMESPACE,))
            reads.append([path.rpartition("/")[2] for _, path, *_ in server.asked])

    assert found == [("Pod", (NAMESPACE, "gone", "one"))]
    kinds = sorted(resource.plural for resource in OWN_KINDS)
    assert [sorted(read) for read in reads if "pods" not in read] == [kinds] * 18
