"""A Cluster reports a lack of room with figures, and is not written again for small changes of them."""

from typing import Any

from orderlymq_operator.brokers.status import parse_status
from orderlymq_operator.kube.observe.capacity import ENOUGH, capacity
from orderlymq_operator.kube.observe.cluster import Live
from orderlymq_operator.kube.observe.pods import pod_facts
from orderlymq_operator.plan.actions import ConditionReport
from orderlymq_operator.plan.settings import broker_options
from tests.operator.kube.samples import cluster, pod


def look(
    cpu: float | None = 0.1,
    disk: float | None = 0.1,
    previous: ConditionReport | None = None,
    **spec: Any,
) -> ConditionReport:
    """Return the condition of one group whose leader has these figures."""
    found = pod("demo-0-0")
    found["metadata"]["labels"] = {"orderlymq.io/group": "0"}
    status = {"role": "leader", "term": 1, "leader": 1, "cpu": cpu}
    live = Live(pods={"demo-0-0": pod_facts(found)})
    live.statuses = {"demo-0-0": parse_status({**status, "disk": {"ratio": disk}})}
    return capacity(cluster(groups=1, **spec), live, previous)


def test_a_calm_cluster_has_room_and_so_has_one_that_reports_no_figures() -> None:
    """Law: a calm Cluster has enough room, and so has one that reports no figures, as older brokers."""
    assert look() == look(None, None) == ENOUGH


def test_a_busy_leader_and_a_full_disk_are_reported_with_figures() -> None:
    """Law: a busy leader and a full disk are reported with figures and what to change."""
    busy, full = look(cpu=0.93), look(disk=0.84)

    assert (busy.status, busy.reason) == ("False", "LeaderBusy")
    assert "the leader of demo-0 has used 90 %" in busy.message
    assert (full.status, full.reason) == ("False", "DiskFills")
    assert "demo-0-0 is 80 % full, sends are refused at 90 %" in full.message
    assert "now 20Gi" in full.message


def test_what_hovers_around_the_limit_is_reported_once() -> None:
    """Law: a figure near the limit is reported once, until it is well below; a few per cent do not change the text."""
    busy = look(cpu=0.81)

    assert look(cpu=0.79) == ENOUGH
    assert look(cpu=0.84, previous=busy) == busy
    assert look(cpu=0.7, previous=busy).status == "False"
    assert look(cpu=0.6, previous=busy) == ENOUGH


def test_a_disk_that_keeps_what_retention_keeps_by_itself_is_no_lack_of_room() -> None:
    """Law: a disk filled by retention's own limit is no lack of room: three fifths are messages, a tenth more is indexes."""
    full = look(disk=0.81)
    kept = broker_options(cluster())["storage"]["retention_size"] / (20 << 30)

    assert look(disk=0.71, previous=full).status == "False"
    assert look(disk=1.1 * kept, previous=full) == ENOUGH


def test_volumes_that_grow_by_themselves_are_no_lack_of_room() -> None:
    """Law: volumes that grow by themselves are no lack of room; StorageReady reports when they cannot."""
    grows: dict[str, Any] = {"storage": {"autoGrow": {"limit": "100Gi"}}}

    assert look(disk=0.89, **grows) == ENOUGH


def test_a_disk_that_refuses_sends_is_reported_although_its_volume_should_grow() -> None:
    """Law: while sends are refused, the disk is reported even if its volume should grow."""
    grows: dict[str, Any] = {"storage": {"autoGrow": {"limit": "100Gi"}}}
    full = look(disk=0.9, **grows)

    assert (full.status, full.reason) == ("False", "DiskFills")
    assert "demo-0-0 has reached 90 %" in full.message
    assert "StorageReady" in full.message
    assert look(disk=0.86, previous=full, **grows) == full
    assert look(disk=0.84, previous=full, **grows) == ENOUGH
