"""
The canary of a Cluster as Kubernetes objects: a Deployment.

Pure. Rules: one pod, because two canaries on the same topics disturb each other. Its pages are plain HTTP, because they
contain only counts, and no names or messages of users.
"""

from collections.abc import Collection, Sequence
from typing import Final

from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.clientaccess import name_servers
from orderlymq_operator.kube.objects.clientpod import ClientPod, client_deployment, client_name
from orderlymq_operator.kube.resources import DEPLOYMENTS, NETWORK_POLICIES, Json
from orderlymq_operator.resources.cluster.canary import CANARY_COMPONENT, CANARY_PORT, CANARY_PREFIX
from orderlymq_operator.resources.kinds import Cluster

KINDS: Final = (DEPLOYMENTS, NETWORK_POLICIES)


def canary_objects(
    cluster: Cluster, *, image: str, pull_policy: str, draining: Collection[str] = ()
) -> list[Json]:
    """Return the objects of the canary, which does not send to *draining* broker groups; empty if it is not enabled."""
    if not cluster.spec.canary.enabled:
        return []
    groups = [group for group in cluster.group_names if group not in draining]
    pod = ClientPod(
        CANARY_COMPONENT,
        _command(cluster, groups),
        CANARY_PORT,
        cluster.spec.canary.resources,
        notes={names.ANNOTATION_GROUPS: ",".join(groups)},
    )
    return [client_deployment(cluster, pod, image=image, pull_policy=pull_policy)]


def canary_name(cluster: Cluster) -> str:
    """Return the name of all objects of the canary."""
    return client_name(cluster, CANARY_COMPONENT)


def _command(cluster: Cluster, groups: Sequence[str]) -> tuple[str, ...]:
    canary = cluster.spec.canary
    found = ["python", "-m", "orderlymq_operator.canary", "--name-server"]
    found += [name_servers(cluster), "--listen", "::", "--port", str(CANARY_PORT)]
    found += ["--prefix", CANARY_PREFIX, "--operated"]
    spans = {
        "interval": canary.interval,
        "target": canary.target,
        "takeover": canary.takeover_interval,
        "hold": canary.hold,
    }
    for name, span in spans.items():
        found += [f"--{name}", f"{span.milliseconds}ms"]
    found += ["--objective", str(canary.objective_ppm / 1_000_000)]
    for group in groups:
        found += ["--broker-group", group]

    return tuple(found)
