"""
Whether the replicas of each raft group stand so that the loss of a node or a zone leaves a majority.

Pure. Rule: this is told and changes nothing; where a pod stands the scheduler says, and which label a node has.
"""

from collections.abc import Callable

from orderlymq_operator.kube.objects.pods import HOSTNAME
from orderlymq_operator.kube.observe.cluster import Live
from orderlymq_operator.plan.actions import ConditionReport
from orderlymq_operator.plan.tolerance import tolerance
from orderlymq_operator.resources.kinds import Cluster


def fault_tolerance(
    cluster: Cluster, live: Live, label_of: Callable[[str, str], str]
) -> ConditionReport:
    """Return the condition FaultTolerant; *label_of* tells a label of a node, empty where it is not known."""
    wish = cluster.spec.placement
    texts: list[str] = []
    for key in dict.fromkeys(
        (HOSTNAME, wish.topology_key, *([wish.zone_key] if wish.zone_key else []))
    ):
        spare: int = cluster.spec.replicas_per_group
        for group in cluster.group_names:
            nodes = [pod.node for pod in live.group_pods(group).values() if pod.node]
            if len(nodes) < cluster.spec.replicas_per_group:
                return ConditionReport(
                    "Unknown", "NotPlaced", f"{group} has {len(nodes)} replicas on nodes"
                )
            domains = [node if key == HOSTNAME else label_of(node, key) for node in nodes]
            if not all(domains):
                return ConditionReport(
                    "Unknown", "NotPlaced", f"a node of {group} has no label {key}"
                )
            found = tolerance(domains)
            if found.spare < 0:
                text = f"{found.lost} of {found.replicas} replicas of {group} stand in {key}={found.domain}"
                return ConditionReport("False", "MajorityTogether", text)
            spare = min(spare, found.spare)
        texts.append(f"one {key} may be lost, {spare or 'none'} more of a group may go then")
    return ConditionReport("True", "SurvivesLoss", "; ".join(texts))
