"""
Observed state of one Cluster: its objects, its pods, and the reports of the processes in them.

Rules: objects from watch events are never used directly. These do not belong to this Cluster: an object of a former
Cluster of the same name, a pod of a former StatefulSet, and a pod or claim with a name that no StatefulSet of this
Cluster gives. A process that does not answer within a second is reported as silent.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import aiohttp

from orderlymq_operator.brokers.admin import Admin
from orderlymq_operator.brokers.status import (
    PageAccess,
    ReplicaStatus,
    observe_replicas,
    read_status,
)
from orderlymq_operator.brokers.tables import Tables, read_name_server
from orderlymq_operator.kube.errors import ApiError
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.backups.restore import RESTORING
from orderlymq_operator.kube.objects.cluster import Environment, RaftGroupFacts
from orderlymq_operator.kube.objects.ownership import is_former, owners
from orderlymq_operator.kube.observe.lister import Lister
from orderlymq_operator.kube.observe.pods import (
    IMAGE_UNAVAILABLE,
    ClaimFacts,
    PodFacts,
    claim_facts,
    pod_facts,
)
from orderlymq_operator.kube.resources import CLAIMS, MADE, PODS, STATEFUL_SETS, Json, Resource
from orderlymq_operator.plan.actions import (
    ObservedGroup,
    ObservedNameServer,
    ObservedReplica,
)
from orderlymq_operator.plan.liveness import ProcessState
from orderlymq_operator.resources.kinds import Cluster
from orderlymq_runtime.sockets.addresses import join_address

# A pod must be ready for this long before it may take over a leader from another pod. This excludes unstable pods.
STEADY_S: Final = 60.0
# The kinds that change while the operator waits for an action to complete.
CHANGING: Final = (PODS, STATEFUL_SETS)


@dataclass(slots=True)
class Live:
    """The objects of one Cluster when they were last read.

    Attributes:
        former: kind and name of an object of a former Cluster of the same name, which will be deleted; empty for none.
        made: objects that the operator makes, by kind and name.
        unread: kinds of such objects that could not be listed, and why.
        statuses: the reports of the replicas, by pod.
        routes: the version in which TLSRoutes were read; None if none are needed or served.
        refused_pod: why a missing pod cannot be made; empty if no pod is missing or no event explains it.
    """

    former: str = ""
    made: dict[tuple[str, str], Json] = field(default_factory=dict)
    pods: dict[str, PodFacts] = field(default_factory=dict)
    claims: dict[str, ClaimFacts] = field(default_factory=dict)
    statuses: dict[str, ReplicaStatus] = field(default_factory=dict)
    unread: dict[str, ApiError] = field(default_factory=dict)
    routes: Resource | None = None
    refused_pod: str = ""

    def find(self, resource: Resource, name: str) -> Json | None:
        """Return an object by kind and name; None if it does not exist."""
        return self.made.get((resource.kind, name))

    def stateful_sets(self) -> list[Json]:
        """Return the StatefulSets, that of the name servers first."""
        found = [made for (kind, _), made in self.made.items() if kind == STATEFUL_SETS.kind]
        return sorted(
            found, key=lambda made: names.LABEL_GROUP in (made["metadata"].get("labels") or {})
        )

    def put(self, found: Json) -> None:
        """Store an object that a write returned."""
        self.made[found["kind"], found["metadata"]["name"]] = found

    def group_pods(self, group: str) -> dict[int, PodFacts]:
        """Return the pods of a raft group by node."""
        index = group.rpartition("-")[2]
        return {
            names.node_of(pod.name): pod
            for pod in self.pods.values()
            if pod.labels.get(names.LABEL_GROUP) == index
        }

    def claims_of(self, group: str) -> dict[int, ClaimFacts]:
        """Return the volume claims of a raft group by node."""
        return {
            node: claim
            for claim in self.claims.values()
            if (node := names.node_of_claim(claim.name, group)) is not None
        }

    def deleted_claim(self, group: str, replicas: int) -> ClaimFacts | None:
        """Return a claim of the replicas 1 to *replicas* that is being deleted; it is gone when its pod ends."""
        found = self.claims_of(group).items()
        return next((each for node, each in found if node <= replicas and each.deleting), None)

    def name_server_pods(self) -> dict[int, PodFacts]:
        """Return the pods of the name servers by index."""
        return {
            int(pod.name.rpartition("-")[2]): pod
            for pod in self.pods.values()
            if pod.labels.get("app.kubernetes.io/component") == names.NAME_SERVER
        }

    def leader(self, group: str) -> PodFacts | None:
        """Return the pod of the leader with the highest term; None if no pod leads."""
        leading = [
            (status.term, pod.name)
            for pod in self.group_pods(group).values()
            if (status := self.statuses.get(pod.name)) is not None and status.leads
        ]
        return self.pods.get(max(leading)[1]) if leading else None

    def waits_in_vain(self, pod: PodFacts) -> bool:
        """Return whether *pod* cannot start, but may start with the newer template of its StatefulSet.

        This is the case if its image is unavailable: the new template may differ only in pull Secrets or pull policy,
        which are not part of the revision. A pod that restores counts with any trouble, because the planner does not
        replace it.
        """
        made = self.find(STATEFUL_SETS, pod.name.rpartition("-")[0]) or {}
        template = (made.get("status") or {}).get("updateRevision")
        return (
            pod.trouble is not None
            and (
                pod.trouble.reason == IMAGE_UNAVAILABLE
                or pod.annotations.get(names.ANNOTATION_REVISION) == RESTORING
            )
            and template not in (None, pod.labels.get(names.LABEL_TEMPLATE))
        )


async def read_objects(
    lists: Lister,
    cluster: Cluster,
    spare: Collection[Resource] = (),
    routes: Resource | None = None,
) -> Live:
    """Read the objects of a Cluster, and its *routes* if it may have some.

    Raises:
        ApiError: the objects cannot be read now; if a kind of *spare* is refused, that is noted instead.
    """
    meta = cluster.metadata
    owner = ("Cluster", meta.namespace or "", meta.name)
    chosen = f"{names.LABEL_CLUSTER}={meta.name}"
    optional = () if routes is None else (routes,)
    found = await lists.read(
        owner,
        (meta.uid, meta.generation),
        meta.namespace,
        chosen,
        (*MADE, CLAIMS, PODS, *optional),
        (*spare, *optional),
    )
    made = {
        (item["kind"], item["metadata"]["name"]): item
        for resource in (*MADE, *optional)
        for item in found[resource]
    }
    sets = {item["metadata"]["uid"] for item in found[STATEFUL_SETS]}
    return Live(
        former=next((" ".join(key) for key in made if is_former(cluster.metadata, made[key])), ""),
        made=made,
        pods={
            item["metadata"]["name"]: pod_facts(item)
            for item in found[PODS]
            if owners(item, STATEFUL_SETS.kind) <= sets and not _is_foreign(item, cluster)
        },
        claims={item["metadata"]["name"]: claim_facts(item) for item in found[CLAIMS]},
        unread=lists.refused(owner),
        routes=routes,
    )


def _is_foreign(pod: Json, cluster: Cluster) -> bool:
    """Return whether a pod has labels of brokers or name servers but another name, such as a pod that a Job made."""
    labels, owner = pod["metadata"].get("labels") or {}, None
    component, group = labels.get("app.kubernetes.io/component"), labels.get(names.LABEL_GROUP)
    if component == names.BROKER or group is not None:
        owner = f"{cluster.metadata.name}-{group}"
    elif component == names.NAME_SERVER:
        owner = names.name_server_set(cluster)
    return owner is not None and names.ordinal_of(pod["metadata"]["name"], owner) is None


async def read_statuses(
    session: aiohttp.ClientSession, live: Live, access: Callable[[PodFacts], PageAccess]
) -> None:
    """Read the status of every broker into `live.statuses`."""
    asked = [
        pod
        for pod in live.pods.values()
        if pod.running and pod.labels.get("app.kubernetes.io/component") == names.BROKER
    ]
    async with asyncio.TaskGroup() as tasks:
        answers = [
            tasks.create_task(
                read_status(
                    session,
                    f"{access(pod).scheme}://{join_address(pod.ip, names.HTTP_PORT)}",
                    access(pod),
                    _who(pod),
                )
            )
            for pod in asked
        ]
    live.statuses = {
        pod.name: status
        for pod, task in zip(asked, answers, strict=True)
        if (status := task.result()) is not None
    }


def _who(pod: PodFacts) -> dict[str, object]:
    """Return the identity that the broker in a pod must report: Cluster, raft group and node."""
    cluster = pod.labels.get(names.LABEL_CLUSTER)
    group = f"{cluster}-{pod.labels.get(names.LABEL_GROUP)}"
    return {"cluster": cluster, "group": group, "node": names.node_of(pod.name)}


def observed_group(
    live: Live,
    group: str,
    form: RaftGroupFacts,
    tables: Tables,
    *,
    min_ready_s: float,
    current: str,
    wanted: str,
    domains_of: Callable[[str], tuple[str, ...]] = lambda node: (node,),
) -> ObservedGroup:
    """Return the observed state of a raft group; pods of the revision *current* get the planner's revision *wanted*.

    *domains_of* returns the failure domains of a node.
    """
    pods = live.group_pods(group)
    certificates = form.certificates.text() if form.certificates else ""
    known, statuses = {}, {}
    for node in range(1, form.replicas + 1):
        pod = pods.get(node)
        notes = pod.annotations if pod is not None else {}
        revision = notes.get(names.ANNOTATION_REVISION)
        is_current = revision == current
        if is_current and notes.get(names.ANNOTATION_CERTIFICATES, "") != certificates:
            is_current, revision = False, f"{current}, previous certificates"
        if is_current and pod is not None and live.waits_in_vain(pod):
            is_current, revision = False, f"{current}, previous template"
        known[node] = ObservedReplica(
            running=True,
            join=node > form.first,
            revision=wanted if is_current else revision,
        )
        if pod is not None and not pod.deleting and pod.name in live.statuses:
            statuses[node] = live.statuses[pod.name]
    leader, replicas = observe_replicas(known, statuses)
    now = time.time()
    settled = {}
    for node, replica in replicas.items():
        has_settled = _has_settled(pods.get(node), now, min_ready_s)
        settled[node] = replace(
            replica,
            caught_up=replica.caught_up and has_settled,
            keeps_up=replica.keeps_up and has_settled,
            domains=_domains(pods.get(node), now, domains_of),
        )
    return ObservedGroup(leader, settled, *tables)


def outdated_pods(live: Live, environment: Environment) -> list[PodFacts]:
    """Return the pods to replace: pods of a previous form, and pods that cannot start but may with the new template."""
    found: list[PodFacts] = []
    for group, form in environment.groups.items():
        certificates = form.certificates.text() if form.certificates else ""
        found += [
            pod
            for _, pod in sorted(live.group_pods(group).items())
            if pod.annotations.get(names.ANNOTATION_REVISION) != environment.revision
            or pod.annotations.get(names.ANNOTATION_CERTIFICATES, "") != certificates
            or live.waits_in_vain(pod)
        ]
    servers = sorted(live.name_server_pods().items())
    return found + [pod for _, pod in servers if _is_stale(live, environment, pod)]


def process_states(pods: Mapping[int, PodFacts], wanted: Iterable[int]) -> dict[int, ProcessState]:
    """Return the state of processes as the kubelet reports it; a process without a pod counts as being replaced."""
    absent = ProcessState(leaving=True)
    return {
        number: absent
        if (pod := pods.get(number)) is None
        else ProcessState(
            pod.uid,
            ready=pod.ready_since is not None and not pod.deleting,
            runs=pod.serves,
            leaving=pod.deleting,
        )
        for number in wanted
    }


def _domains(
    pod: PodFacts | None, now: float, domains_of: Callable[[str], tuple[str, ...]]
) -> tuple[str, ...]:
    if pod is None or not pod.node or not _has_settled(pod, now, STEADY_S):
        return ()
    return domains_of(pod.node)


def _has_settled(pod: PodFacts | None, now: float, min_ready_s: float) -> bool:
    return pod is not None and pod.ready_since is not None and now - pod.ready_since >= min_ready_s


async def read_name_servers(
    admin: Admin, live: Live, count: int, expanding: Collection[str]
) -> dict[int, ObservedNameServer]:
    """Return the observed state of *count* name servers: their queue lists, and their routes of *expanding* topics."""
    pods = live.name_server_pods()

    async def ask(index: int) -> ObservedNameServer:
        pod = pods.get(index)
        if pod is None or not pod.running:
            return ObservedNameServer()
        address = join_address(pod.ip, names.NAME_SERVER_PORT)
        return await read_name_server(admin, address, expanding, registered=True)

    found = await asyncio.gather(*(ask(index) for index in range(count)))
    return dict(enumerate(found))


def with_forms(
    servers: Mapping[int, ObservedNameServer], live: Live, environment: Environment
) -> dict[int, ObservedNameServer]:
    """Return *servers* with revision and TLS mode for pods that have a previous form or cannot start in their own."""
    found = dict(servers)
    for index, pod in live.name_server_pods().items():
        form = pod.annotations.get(names.ANNOTATION_REVISION)
        if _is_stale(live, environment, pod) and index in found:
            serves_plain = pod.tls_mode != "Enforcing"
            found[index] = replace(found[index], revision=str(form), serves_plain=serves_plain)
    return found


def _is_stale(live: Live, environment: Environment, pod: PodFacts) -> bool:
    """Return whether the pod of a name server has a previous form, or cannot start in its own."""
    form = pod.annotations.get(names.ANNOTATION_REVISION)
    return form != environment.name_server_revision or live.waits_in_vain(pod)
