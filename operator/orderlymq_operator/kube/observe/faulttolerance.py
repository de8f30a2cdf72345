"""
The condition FaultTolerant: whether raft groups keep a majority after the loss of a failure domain (a node, a zone).

Pure. If m of n replicas are in the fullest domain, its loss leaves n - m, and the raft group needs a majority of n.
Replicas above the majority are spare: updates and drains need them while the domain is lost. The operator only reports
this: the scheduler places the pods.
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
    """The effect of losing the fullest domain of a raft group.

    Attributes:
        domain: the name of the domain.
        lost: the replicas in it.
    """

    domain: str
    lost: int
    replicas: int

    @property
    def majority(self) -> int:
        """The number of replicas that the raft group needs."""
        return self.replicas // 2 + 1

    @property
    def spare(self) -> int:
        """The number of further replicas that may fail then; below zero, the raft group has no majority."""
        return self.replicas - self.lost - self.majority


def tolerance(domains: Sequence[str]) -> Tolerance:
    """Return the effect of losing the fullest domain; *domains* has the domain of each replica and is not empty."""
    domain, lost = max(Counter(domains).items(), key=lambda found: (found[1], found[0]))
    return Tolerance(domain, lost, len(domains))


def fault_tolerance(
    cluster: Cluster, live: Live, label_of: Callable[[str, str], str | None]
) -> ConditionReport:
    """Return the condition FaultTolerant; *label_of* returns a label of a node, see `Zones.label`."""
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
                text = f"{found.lost} of {found.replicas} replicas of {group} are in {key}={found.domain}"
                return ConditionReport("False", "MajorityTogether", text)
            spare = min(spare, found.spare)
        texts.append(f"one {key} may be lost; each group may then lose {spare or 'none'} more")
    return ConditionReport("True", "SurvivesLoss", "; ".join(texts))
