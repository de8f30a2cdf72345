"""
Whether the loss of a failure domain (a node, a zone) leaves each raft group a majority.

Pure. With n replicas, m of them in the fullest domain, n - m are left, and a majority of n is needed. More than that
may go at the same time: updates and drains need it while the domain is away. This is reported and changes nothing:
the scheduler places the pods.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orderlymq_operator.kube.objects.placement import HOSTNAME
from orderlymq_operator.kube.observe.cluster import Live
from orderlymq_operator.plan.actions import ConditionReport
from orderlymq_operator.resources.kinds import Cluster
from orderlymq_protocol.plurals import counted


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Replicas left when the fullest domain is lost.

    Attributes:
        domain: its name.
        lost: how many replicas it holds.
    """

    domain: str
    lost: int
    replicas: int

    @property
    def majority(self) -> int:
        """How many replicas the group needs."""
        return self.replicas // 2 + 1

    @property
    def spare(self) -> int:
        """How many further replicas may go then; below zero the group stands still."""
        return self.replicas - self.lost - self.majority


def tolerance(domains: Sequence[str]) -> Tolerance:
    """Return what the loss of one domain means; *domains* has that of each replica, of one at least."""
    domain, lost = max(Counter(domains).items(), key=lambda found: (found[1], found[0]))
    return Tolerance(domain, lost, len(domains))


def fault_tolerance(
    cluster: Cluster, live: Live, label_of: Callable[[str, str], str | None]
) -> ConditionReport:
    """Return the condition FaultTolerant; *label_of* returns a label of a node as `Zones.label` does."""
    placement = cluster.spec.placement
    texts: list[str] = []
    for key in dict.fromkeys(
        (HOSTNAME, placement.topology_key, *([placement.zone_key] if placement.zone_key else []))
    ):
        spare: int = cluster.spec.replicas_per_group
        for group in cluster.group_names:
            nodes = [pod.node for pod in live.group_pods(group).values() if pod.node]
            if len(nodes) < cluster.spec.replicas_per_group:
                return ConditionReport(
                    "Unknown", "NotPlaced", f"{group} has {counted(len(nodes), 'replica')} on nodes"
                )
            named = (node if key == HOSTNAME else label_of(node, key) for node in nodes)
            domains = [domain for domain in named if domain]
            if len(domains) < len(nodes):
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
