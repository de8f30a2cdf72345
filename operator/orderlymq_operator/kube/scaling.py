"""
Groups that are to be taken away: whether they may go, and what still holds them.

Pure. Rule: a group goes only with proof that nothing in it is needed; until then everything about it stays as it is.
"""

from orderlymq_operator.actions import ConditionReport
from orderlymq_operator.kube.looking import Live
from orderlymq_operator.kube.resources import STATEFUL_SETS
from orderlymq_operator.models import Cluster


def planned_groups(cluster: Cluster, live: Live) -> tuple[str, ...]:
    """Return the groups that the planner keeps: those that are wanted, and those that still stand."""
    count = cluster.spec.groups
    while live.find(STATEFUL_SETS, cluster.group_name(count)) is not None:
        count += 1
    return tuple(cluster.group_name(index) for index in range(count))


def scale_down(cluster: Cluster, live: Live) -> tuple[ConditionReport | None, frozenset[str]]:
    """Return the condition ScaleDownBlocked, None when no group is to go, and the groups that are drained."""
    surplus = planned_groups(cluster, live)[cluster.spec.groups :]
    if not surplus:
        return None, frozenset()
    if cluster.spec.scale_down.policy == "Refuse":
        text = (
            f"{cluster.spec.groups + len(surplus)} groups exist, {cluster.spec.groups} are wanted; "
            "their queues hold messages"
        )
        return ConditionReport("True", "PolicyRefuses", text), frozenset()
    return ConditionReport("True", "Draining", f"{surplus[-1]} is being emptied"), frozenset(
        surplus
    )
