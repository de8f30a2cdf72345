"""
The condition CapacitySufficient: whether leaders have CPU time left and disks have space left.

Pure. Rules: a figure that varies around a limit is reported once. A limit that was exceeded counts as exceeded until
the figure is clearly below it. Figures are rounded, so that a steady load does not cause repeated writes of the
Cluster.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from orderlymq_operator.kube.observe.cluster import Live
from orderlymq_operator.plan.actions import ConditionReport
from orderlymq_operator.plan.volumes import GROWTH_MARGIN
from orderlymq_operator.resources.kinds import Cluster

# A broker's event loop is one thread; above this share of a CPU, its work queues begin to grow.
CPU_MAX: Final = 0.8
# The distance below config.diskMaxUsedSpaceRatio, at which brokers refuse sends. It leaves time to act.
DISK_MARGIN: Final = 0.1
# How far a figure must fall below a limit again. With the default of `retention.size`, 66 % of a disk are used.
CPU_BACK: Final = 0.15
DISK_BACK: Final = 0.1
_ROUNDED_TO: Final = 5  # percent

ENOUGH: Final = ConditionReport(
    "True", "CapacityLeft", "no leader is short of CPU time, and no disk is filling up"
)


def capacity(cluster: Cluster, live: Live, previous: ConditionReport | None) -> ConditionReport:
    """Return the condition; *previous* is its last report."""
    before = previous.reason if previous is not None else ""
    found = _busy(cluster, live, before == "LeaderBusy") or _full(
        cluster, live, before == "DiskFills"
    )
    if found is None:
        return ENOUGH
    return ConditionReport("False", *found)


def _busy(cluster: Cluster, live: Live, was: bool) -> tuple[str, str] | None:
    leaders = {group: live.leader(group) for group in cluster.group_names}
    shares = {
        group: share
        for group, pod in leaders.items()
        if pod is not None and (share := live.statuses[pod.name].cpu) is not None
    }
    busy = _beyond(shares.items(), CPU_MAX, CPU_BACK if was else 0.0)
    if busy is None:
        return None
    group, share = busy
    text = (
        f"the leader of {group} has used {_percent(share)} % of one CPU for a minute, the most of {len(shares)} groups; more "
        f"groups (spec.groups, now {cluster.spec.groups}) share the load of new topics"
    )
    return "LeaderBusy", text


def _full(cluster: Cluster, live: Live, was: bool) -> tuple[str, str] | None:
    used = {
        name: status.disk_used
        for name, status in live.statuses.items()
        if status.disk_used is not None
    }
    limit = cluster.spec.config.disk_max_used_space_ratio
    if cluster.spec.storage.auto_grow is not None:
        return _ungrown(used, limit, was)
    full = _beyond(used.items(), limit / 100 - DISK_MARGIN, DISK_BACK if was else 0.0)
    if full is None:
        return None
    name, share = full
    text = (
        f"the disk of {name} is {_percent(share)} % full, sends are refused at {limit} %; raise spec.storage.size (now "
        f"{cluster.spec.storage.size}), shorten the retention, or add groups (now {cluster.spec.groups})"
    )
    return "DiskFills", text


def _ungrown(used: Mapping[str, float], limit: int, was: bool) -> tuple[str, str] | None:
    """Return reason and text for a disk that is full although its volume should have grown; None if there is none."""
    full = _beyond(used.items(), limit / 100, GROWTH_MARGIN / 100 if was else 0.0)
    if full is None:
        return None
    text = (
        f"the disk of {full[0]} has reached {limit} %, at which sends are refused; StorageReady says why its volume has not "
        "grown; if it has, raise storage.autoGrow.step"
    )
    return "DiskFills", text


def _beyond(
    figures: Iterable[tuple[str, float]], limit: float, back: float
) -> tuple[str, float] | None:
    """Return the greatest figure and its name if the figure is at least *limit* minus *back*; None if not."""
    name, share = max(figures, key=lambda each: (each[1], each[0]), default=("", 0.0))
    return (name, share) if share >= limit - back else None


def _percent(share: float) -> int:
    return int(100 * share) // _ROUNDED_TO * _ROUNDED_TO
