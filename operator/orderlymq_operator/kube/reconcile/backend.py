"""
The backend of one Cluster in Kubernetes: it observes the Cluster and performs the planner's actions.

Rules: state that must survive a crash is written to annotations of the StatefulSet before the action begins. Replicas
are added and removed at the highest number, because StatefulSets require that. A pod is only deleted by its observed
UID.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Final

import aiohttp

from orderlymq_operator.brokers.admin import Admin, AdminError
from orderlymq_operator.brokers.answers import Lock
from orderlymq_operator.brokers.requests import perform_remote
from orderlymq_operator.brokers.status import PageAccess
from orderlymq_operator.brokers.tables import SILENT, Tables, read_tables
from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.cachedstate import may_change
from orderlymq_operator.kube.errors import ApiError, BudgetsOverlapError, EvictionRefusedError
from orderlymq_operator.kube.objects import drift, names
from orderlymq_operator.kube.objects.cluster import (
    Environment,
    RaftGroupFacts,
    group_set,
)
from orderlymq_operator.kube.objects.drift import fingerprint
from orderlymq_operator.kube.objects.listeners import in_turn
from orderlymq_operator.kube.objects.placement import HOSTNAME
from orderlymq_operator.kube.objects.pods import Access, access_by, replica_host
from orderlymq_operator.kube.observe.cluster import (
    Live,
    observed_group,
    process_states,
    read_name_servers,
    read_statuses,
    with_forms,
)
from orderlymq_operator.kube.observe.consumergroups import (
    ObservedConsumerGroup,
    observe_consumer_group,
)
from orderlymq_operator.kube.observe.desired import MESSAGE_MAX
from orderlymq_operator.kube.observe.listeners import (
    OutsideView,
    outside_view,
    published_addresses,
)
from orderlymq_operator.kube.observe.nodes import NodeFacts
from orderlymq_operator.kube.observe.pods import PodFacts
from orderlymq_operator.kube.observe.refusedpods import refused_replica
from orderlymq_operator.kube.observe.zones import ZONE
from orderlymq_operator.kube.reconcile.desiredobjects import (
    accessory_objects,
    early_objects,
    is_needed,
    late_objects,
    settings_in_use,
    surplus_objects,
)
from orderlymq_operator.kube.resources import (
    CLAIMS,
    CONFIG_MAPS,
    PODS,
    SERVICES,
    STATEFUL_SETS,
    Json,
    Resource,
    resource_of,
)
from orderlymq_operator.plan.actions import (
    Action,
    ActionChain,
    ConditionReport,
    DeleteConsumerGroup,
    Observed,
    ObservedGroup,
    PutOrderConfig,
    Refuse,
    ReportCondition,
    RestartNameServer,
    RestartReplica,
    StartNameServer,
    StartReplica,
    StopReplica,
    Subject,
    chain_of,
)
from orderlymq_operator.plan.liveness import FailureDetector
from orderlymq_operator.plan.settings import revision
from orderlymq_operator.resources.kinds import ConsumerGroup, Desired, Topic, User, declared_name
from orderlymq_runtime.sockets.addresses import join_address
from orderlymq_runtime.wallclock import monotonic_ms

_log = logging.getLogger(__name__)

# Consumer groups that are observed at the same time.
_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class Defaults:
    """The operator's default settings for pods."""

    image: str
    pull_policy: str
    namespace: str = "default"
    pull_secrets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Memory:
    """State that reconciles of a Cluster keep for later ones: silent processes, and results of applied objects."""

    detector: FailureDetector = field(default_factory=FailureDetector)
    answers: drift.Answers = field(default_factory=lambda: drift.Answers(time.monotonic))


@dataclass(slots=True)
class KubeBackend:
    """One Cluster during one reconcile.

    Attributes:
        secrets: the content of the Users' Secrets, by the planner's name of the User; never kept longer.
        pages: the access to the HTTP pages of pods, by the form in which the pods were made.
        reports: the planner's reports about objects, filled by `execute`.
        holds: whether no pod is replaced: during a pause, and while a new pod could not start.
        expanding: topics that were expanding at the last reconcile.
        in_use: consumer groups that stay because members consume, with the broker's message, filled by `execute`.
        used_before: the value of `in_use` in the last reconcile.
        refused: the API server's refusals of objects that no broker needs, filled by `ensure`.
        failed: why the last action of a chain failed, filled by `execute`.
        silent: addresses that did not answer an action, filled by `execute`.
        held: why pods that should be replaced must stay for now.
        nodes: all nodes, if a listener publishes addresses of nodes.
        outside: the addresses of the Cluster for clients of other networks.
        label_of: returns a label of a node, see `Zones.label`.
    """

    api: Api
    session: aiohttp.ClientSession
    admin: Admin
    desired: Desired
    live: Live
    environment: Environment
    secrets: Mapping[str, str | None] = field(default_factory=dict)
    fingerprints: Mapping[str, str | None] = field(default_factory=dict)
    pages: Mapping[Access, PageAccess] = field(default_factory=dict)
    reports: dict[Subject, ConditionReport] = field(default_factory=dict)
    holds: bool = False
    expanding: frozenset[str] = frozenset()
    memory: Memory = field(default_factory=Memory)
    refused: list[ApiError] = field(default_factory=list)
    in_use: dict[ActionChain, str] = field(default_factory=dict)
    used_before: Mapping[ActionChain, str] = field(default_factory=dict)
    failed: dict[ActionChain, str] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    held: list[str] = field(default_factory=list)
    nodes: Sequence[NodeFacts] = ()
    outside: OutsideView = field(default_factory=OutsideView)
    label_of: Callable[[str, str], str | None] = field(default=lambda node, key: "")

    # -- observing -------------------------------------------------------------------------------

    async def observe(self) -> Observed:
        """Return the observed state of brokers and name servers; the objects were read before."""
        await read_statuses(self.session, self.live, self._page_of)
        forms = self.environment.groups
        started = [name for name in forms if self.live.find(STATEFUL_SETS, name) is not None]
        count = self.desired.cluster.spec.name_servers.replicas
        servers, tables, self.live.refused_pod = await asyncio.gather(
            read_name_servers(self.admin, self.live, count, self.expanding),
            asyncio.gather(*map(self._tables, started)),
            refused_replica(self.api, self.live),
        )
        now_ms = monotonic_ms()
        places = process_states(self.live.name_server_pods(), servers)
        if not self.holds:
            servers = with_forms(servers, self.live, self.environment)
        return Observed(
            name_servers=self.memory.detector.name_servers(servers, places, now_ms),
            groups={
                group: self._observed(group, forms[group], found, now_ms)
                for group, found in zip(started, tables, strict=True)
            },
            secrets=dict(self.fingerprints),
        )

    def _page_of(self, pod: PodFacts) -> PageAccess:
        form = pod.access or access_by(self.desired.cluster)
        return self.pages.get(form, PageAccess(form.scheme))

    def _observed(
        self, group: str, form: RaftGroupFacts, tables: Tables, now_ms: int
    ) -> ObservedGroup:
        cluster = self.desired.cluster
        found = observed_group(
            self.live,
            group,
            form,
            tables,
            min_ready_s=cluster.spec.update.min_ready.milliseconds / 1000,
            current=self.environment.revision,
            wanted=revision(cluster),
            domains_of=self._domains_of,
        )
        places = process_states(self.live.group_pods(group), found.replicas)
        found = self.memory.detector.group(group, found, places, now_ms)
        if not self.holds:
            return found
        kept = {
            node: replace(replica, revision=revision(cluster))
            for node, replica in found.replicas.items()
        }
        return replace(found, replicas=kept)

    def _domains_of(self, node: str) -> tuple[str, ...]:
        """Return a node's zone, its domain of placement.topologyKey, and the node; empty if its labels are unknown."""
        placement = self.desired.cluster.spec.placement
        keys = dict.fromkeys((placement.zone_key or ZONE, placement.topology_key))
        labels = [self.label_of(node, key) for key in keys if key != HOSTNAME]
        known = [label for label in labels if label is not None]
        return (*known, node) if len(known) == len(labels) else ()

    async def _tables(self, group: str) -> Tables:
        try:
            address = self.group_address(group)
        except AdminError:
            return SILENT
        return await read_tables(self.admin, address, self.desired, self.expanding)

    async def consumer_groups(
        self, groups: Sequence[str], zone_of: Callable[[str], str]
    ) -> dict[str, ObservedConsumerGroup] | None:
        """Return the state of the consumer *groups* from all raft groups; None if a raft group does not answer.

        *zone_of* returns the zone of a member by its address.
        """
        started = [
            name
            for name in self.environment.groups
            if self.live.find(STATEFUL_SETS, name) is not None
        ]
        gate = asyncio.Semaphore(_AT_ONCE)

        keyed = {
            it.group_name for it in self.desired.consumer_groups if it.spec.concurrency == "Key"
        }

        async def see(name: str, places: Mapping[str, str]) -> ObservedConsumerGroup:
            at, admin = places.values(), self.admin
            async with gate:
                members, lags, lanes = await asyncio.gather(
                    asyncio.gather(*(admin.members(place, name) for place in at)),
                    asyncio.gather(*(admin.lag(place, name) for place in at)),
                    asyncio.gather(*(admin.lanes(place, name) for place in at if name in keyed)),
                )
            views = dict(zip(places, members, strict=True))
            held = locks.get(name, {})
            return observe_consumer_group(views, held, lags, zone_of, lanes)

        try:
            places = {name: self.group_address(name) for name in started}
            tables = {name: await self.admin.locks(place) for name, place in places.items()}
            locks: dict[str, dict[str, list[Lock]]] = {}
            for place, table in tables.items():
                for lock in table:
                    locks.setdefault(lock.group, {}).setdefault(place, []).append(lock)
            # The first failure ends the other tasks, because each of them would wait as long for a lost leader.
            async with asyncio.TaskGroup() as tasks:
                views = {name: tasks.create_task(see(name, places)) for name in groups}
            return {name: view.result() for name, view in views.items()}
        except* AdminError:
            pass
        return None

    # -- the addresses and secrets for `requests` ----------------------------------------------------------------------

    def group_address(self, group: str) -> str:
        """Return the address of the leader's pod, which works before the Service has followed a new leader.

        Raises:
            AdminError: the raft group has no leader, or the leader did not answer an earlier action.
        """
        pod = self.live.leader(group)
        if pod is None:
            raise AdminError(f"group {group} has no leader now")
        return self._answering(join_address(pod.ip, names.BROKER_PORT))

    def replica_address(self, group: str, node: int) -> str:
        """Return the address at which other replicas reach a replica."""
        return f"{replica_host(self.desired.cluster, group, node)}:{names.RAFT_PORT}"

    def name_server_addresses(self) -> list[str]:
        """Return the addresses of all running name servers."""
        return [
            self._answering(join_address(pod.ip, names.NAME_SERVER_PORT))
            for pod in self.live.name_server_pods().values()
            if pod.running
        ]

    def _answering(self, address: str) -> str:
        """Return *address*, unless it did not answer an action of this reconcile.

        Raises:
            AdminError: it did not answer.
        """
        if address in self.silent:
            raise AdminError(f"{address} did not answer the previous request")
        return address

    def secret_of(self, user: str) -> str | None:
        """Return the secret of a User as it was at the beginning of the reconcile."""
        return self.secrets.get(user)

    # -- objects -------------------------------------------------------------------------------

    async def ensure(self) -> int:
        """Apply every object that differs from its desired form, delete surplus objects; return how many were changed.

        Raises:
            ApiError: an object that brokers need was refused; refusals of other objects are noted in `refused`.
        """
        cluster = self.desired.cluster
        early = early_objects(cluster, self.environment)
        # Delete first, because another Service may need a node port that becomes free.
        wanted = [*early, *accessory_objects(cluster, self.environment)]
        count = await self._remove(surplus_objects(cluster, wanted, self.live))
        early, stuck = in_turn(early, self.live.made)
        count += await self._remove([(SERVICES, name) for name in stuck])
        count += await self._apply_changes(early)
        self._learn_addresses()
        self.observe_outside()
        late = late_objects(cluster, self.environment, self.live)
        count += await self._apply_changes(late)
        await self._announce_addresses()
        return count

    async def _announce_addresses(self) -> None:
        """Annotate the name servers' pods, so that kubelets update the ConfigMap now instead of up to 90 s later."""
        addresses = self.environment.addresses
        if not addresses:
            return
        text = fingerprint(addresses)
        for pod in self.live.name_server_pods().values():
            if pod.annotations.get(names.ANNOTATION_ADDRESSES) != text and not pod.deleting:
                notes = {"uid": pod.uid, "annotations": {names.ANNOTATION_ADDRESSES: text}}
                with self._noting_refusal():
                    await self.api.patch(PODS, pod.namespace, pod.name, {"metadata": notes})

    async def _apply_changes(self, wanted: list[Json]) -> int:
        # Objects of a kind that cannot be listed stay unchanged, because their current state is unknown.
        unread = {kind for made in wanted if (kind := made["kind"]) in self.live.unread}
        self.refused += [self.live.unread[kind] for kind in sorted(unread)]
        wanted = [made for made in wanted if made["kind"] not in unread]
        count, answers = 0, self.memory.answers
        for made in drift.changes(wanted, self.live.made.values(), answers):
            kind, name = made["kind"], made["metadata"]["name"]
            known = self.live.find(resource_of(made), name)
            with nullcontext() if is_needed(made) else self._noting_refusal():
                found = await (self.api.apply(made) if known else self.api.make(made))
                self.live.put(found)
                # An object that comes back with the same change as before is no progress.
                if answers.note(made, found):
                    count += 1
                    if not drift.contains(found, made):
                        _log.warning("%s %s was altered, perhaps by admission", kind, name)
        return count

    @contextmanager
    def _noting_refusal(self) -> Iterator[None]:
        """Note a refusal and continue; other errors are raised."""
        try:
            yield
        except ApiError as error:
            if not error.is_refusal:
                raise
            _log.warning("%s: %s", self.desired.cluster.metadata.name, error)
            self.refused.append(error)

    async def _remove(self, found: list[tuple[Resource, str]]) -> int:
        """Delete objects that brokers do not need; return how many were deleted."""
        namespace = self.desired.cluster.metadata.namespace
        before = len(self.refused)
        for resource, name in found:
            with self._noting_refusal():
                uid = self.live.made[resource.kind, name]["metadata"]["uid"]
                await self.api.delete(resource, namespace, name, uid=uid)
                del self.live.made[resource.kind, name]
        return len(found) - (len(self.refused) - before)

    def observe_outside(self) -> None:
        """Find the addresses of the additional listeners; `ensure` calls this after it has applied their Services."""
        cluster = self.desired.cluster
        present = published_addresses(self.live.find(CONFIG_MAPS, names.name_server_set(cluster)))
        served = self.live.routes is not None
        self.outside = outside_view(cluster, self.live.find, self.nodes, present, routes=served)
        self.environment = replace(self.environment, addresses=self.outside.addresses)

    def _learn_addresses(self) -> None:
        forms = dict(self.environment.groups)
        for group, form in forms.items():
            service = self.live.find(SERVICES, group)
            if service is not None and form.address is None:
                forms[group] = replace(form, address=service["spec"]["clusterIP"])
        self.environment = replace(self.environment, groups=forms)

    async def _apply_group(self, group: str, form: RaftGroupFacts) -> None:
        self.environment = replace(
            self.environment, groups={**self.environment.groups, group: form}
        )
        cluster = self.desired.cluster
        settings = settings_in_use(cluster, self.environment, self.live)
        await self._apply_changes(settings)
        await self._apply_changes([group_set(cluster, group, self.environment)])

    # -- carrying out --------------------------------------------------------------------------

    async def perform(self, action: Action) -> None:
        """Carry out one action.

        Raises:
            AdminError: a broker or name server refused or did not answer; try again later.
            ApiError: the API server did.
        """
        match action:
            case StartNameServer():
                pass  # `ensure` has applied their StatefulSet
            case RestartNameServer(index):
                await self.replace_pod(self.live.name_server_pods()[index].name)
            case StartReplica(group, node, join):
                await self._start_replica(group, node, join=join)
            case RestartReplica(group, node):
                self._check_volume(group, node)
                await self.replace_pod(names.pod_name(group, node))
            case StopReplica(group, node):
                await self._stop_replica(group, node)
            case ReportCondition() | Refuse():
                raise AssertionError("a report is kept, and a refused plan is not carried out")
            case PutOrderConfig():
                await perform_remote(action, self.admin, self)
                self._check_name_servers()
            case _:
                await perform_remote(action, self.admin, self)

    async def used_still(self, action: Action) -> str:
        """Return the broker's earlier message if a consumer group is still in use; empty if it may be deleted.

        Only used if changes are not allowed now; else the result is empty. Reading the consumer group's locks and lanes
        needs no fresh state of the Cluster, but deleting the consumer group does.
        """
        said = self.used_before.get(chain_of(action), "")
        if may_change() or not said or not isinstance(action, DeleteConsumerGroup):
            return ""
        name, address = action.consumer_group, self.group_address(action.group)
        is_locked = any(lock.group == name for lock in await self.admin.locks(address))
        lanes = () if is_locked else await self.admin.lanes(address, name)
        return said if is_locked or any(each.in_hand for each in lanes) else ""

    def _check_name_servers(self) -> None:
        """Check that all name servers run, because one without the queue list would show only a part of the queues.

        Raises:
            AdminError: a name server does not run now.
        """
        pods = self.live.name_server_pods()
        for index in range(self.desired.cluster.spec.name_servers.replicas):
            if (pod := pods.get(index)) is None or not pod.running:
                raise AdminError(f"name server {index} does not run and lacks the queue list")

    def name_failures(self) -> None:
        """Add the answers of brokers and name servers to the reports of objects that are not effective yet."""
        if not self.failed:
            return
        desired = self.desired
        declared: list[Topic | ConsumerGroup | User] = [*desired.topics, *desired.consumer_groups]
        for each in [*declared, *desired.users]:
            subject = Subject(each.kind, each.metadata.name)
            report, text = (
                self.reports.get(subject),
                self.failed.get((each.kind, declared_name(each))),
            )
            if text is not None and report is not None and report.status == "False":
                said = f"{report.message}: {text}"[:MESSAGE_MAX]
                self.reports[subject] = replace(report, message=said)

    async def start_group(self, group: str) -> None:
        """Make the StatefulSet of a raft group if it has none.

        Raises:
            AdminError: volumes of a former StatefulSet are being deleted; new pods that used them would lose them.
        """
        if self.live.find(STATEFUL_SETS, group) is not None:
            return
        for claim in self.live.claims_of(group).values():
            if claim.goes_with:
                raise AdminError(
                    f"volume claim {claim.name} is being deleted with a former StatefulSet"
                )
        await self._apply_group(group, self.environment.groups[group])

    async def _start_replica(self, group: str, node: int, *, join: bool) -> None:
        form = self.environment.groups[group]
        if self.live.find(STATEFUL_SETS, group) is None:
            await self.start_group(group)
            return
        if not join or node <= form.replicas:
            return  # Kubernetes restarts it, and a raft group that outlived its StatefulSet grows only by joins
        node = form.replicas + 1  # StatefulSets have no gaps
        name = names.claim_name(group, node)
        if name in self.live.claims and not self._is_member(group, node):
            # The claim is left over from a removed replica, and a replica that joins must start empty.
            namespace, uid = self.desired.cluster.metadata.namespace, self.live.claims[name].uid
            await self.api.delete(CLAIMS, namespace, name, uid=uid)
            raise AdminError(f"volume claim {name} of a removed replica is being deleted")
        await self._apply_group(group, replace(form, replicas=node))

    def _is_member(self, group: str, node: int) -> bool:
        """Return whether a replica is a member of its raft group, so that the raft group relies on its volume.

        Raises:
            AdminError: no leader reports its members now.
        """
        leader = self.live.leader(group)
        members = None if leader is None else self.live.statuses[leader.name].members
        if members is None:
            raise AdminError(f"no leader reports whether replica {node} of {group} is a member")
        return node in members

    async def _stop_replica(self, group: str, node: int) -> None:
        form = self.environment.groups[group]
        if node != form.replicas:
            raise AdminError(
                f"replica {form.replicas} of {group} must be removed before replica {node}"
            )
        smaller = replace(form, replicas=node - 1, first=min(form.first, node - 1))
        await self._apply_group(group, smaller)

    def _check_volume(self, group: str, node: int) -> None:
        """Check that a restart of a replica loses no data that exists only on its volume.

        Raises:
            EvictionRefusedError: its claim was deleted, and the other replicas may not have all messages.
        """
        if text := lost_volume_text(self.live, group, node):
            raise EvictionRefusedError(text, 0)

    async def replace_pod(self, name: str) -> None:
        """Evict a pod by its observed UID; its StatefulSet makes another one.

        If no broker or name server runs in the pod, it is deleted even if a disruption budget refuses the eviction.

        Raises:
            EvictionRefusedError: the budget does not allow it now; a later reconcile tries again.
            BudgetsOverlapError: several budgets select the pod, until a person removes one.
        """
        pod = self.live.pods.get(name)
        if pod is None or pod.deleting:
            return
        try:
            await self.api.evict(pod.namespace, name, pod.uid)
        except (EvictionRefusedError, BudgetsOverlapError) as error:
            if pod.serves:
                text = f"pod {name} must stay for now: {error}"
                raise type(error)(text, error.status, error.reason) from error
            await self.api.delete(PODS, pod.namespace, name, uid=pod.uid)


def lost_volume_text(live: Live, group: str, node: int) -> str:
    """Return why a replica is not restarted; empty if its volume stays or the other replicas have all messages."""
    claim = live.claims_of(group).get(node)
    if claim is None or not claim.deleting:
        return ""
    leader = live.leader(group)
    if leader is not None and live.statuses[leader.name].spares(node):
        return ""
    return (
        f"replica {node} of {group} is not restarted: its volume claim {claim.name} was deleted and would be lost with its "
        "pod, and the other replicas are no majority with all messages of the group"
    )
