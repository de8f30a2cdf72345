"""
The inputs of one reconcile of a Cluster, and the state of the last reconcile for work between reconciles.

The takeover, the canaries, the addresses of nodes and the assignments run between reconciles (`kube.app` connects
them).
"""

from dataclasses import dataclass

from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.observe.cluster import Live
from orderlymq_operator.kube.observe.desired import DesiredState
from orderlymq_operator.kube.observe.inventory import ClusterKey, Item
from orderlymq_operator.kube.observe.listeners import needs_nodes
from orderlymq_operator.kube.reconcile.backend import KubeBackend
from orderlymq_operator.kube.reconcile.canary import canary_page
from orderlymq_operator.kube.reconcile.consumergroups import AssignmentTarget, target_of
from orderlymq_operator.kube.reconcile.status import Findings
from orderlymq_operator.kube.takeover.clients import Target
from orderlymq_operator.plan.actions import Observed
from orderlymq_operator.resources.kinds import Cluster
from orderlymq_runtime.sockets.addresses import join_address


@dataclass(slots=True)
class Scope:
    """The inputs of one reconcile.

    Attributes:
        cluster: the Cluster with its accepted spec; that of *item*, unless an edit waits.
        backup_id: the backup from which it was restored; empty for none, None while the restore is not complete.
    """

    item: Item
    cluster: Cluster
    state: DesiredState
    live: Live
    backend: KubeBackend
    found: Findings
    backup_id: str | None = ""
    observed: Observed | None = None


class LastScopes(dict[ClusterKey, Scope]):
    """The scope of the last reconcile of each Cluster."""

    def targets(self) -> list[Target]:
        """Return every Cluster that enables the takeover, with the leaders that the last reconcile found."""
        found = []
        for key, scope in self.items():
            cluster = scope.state.desired.cluster
            if cluster.spec.lock.takeover != "ConfirmedPodDeath":
                continue
            leaders = [scope.live.leader(group) for group in scope.backend.environment.groups]
            addresses = tuple(
                join_address(pod.ip, names.BROKER_PORT) for pod in leaders if pod is not None
            )
            complete = len(addresses) == len(leaders)
            found.append(Target(key, scope.backend.admin, addresses, complete))
        return found

    def canaries(self) -> dict[ClusterKey, str]:
        """Return the URL of each enabled canary's status page, by Cluster; empty if the last reconcile found no pod."""
        return {
            key: canary_page(scope.live)
            for key, scope in self.items()
            if scope.state.desired.cluster.spec.canary.enabled
        }

    def on_nodes(self) -> list[ClusterKey]:
        """Return every Cluster whose clients connect to addresses of nodes, as the last reconcile found it."""
        return [key for key, scope in self.items() if needs_nodes(scope.state.desired.cluster)]

    def assignment_targets(self) -> dict[ClusterKey, AssignmentTarget]:
        """Return every Cluster with consumer groups in which every raft group answered the last reconcile."""
        found = {}
        for key, scope in self.items():
            groups = {} if scope.observed is None else scope.observed.groups
            target = target_of(scope.backend.admin, scope.state.desired, scope.live, groups)
            if target is not None:
                found[key] = target
        return found
