"""
The operator process: it makes all parts, connects them and ends them.

Rules: only the holder of the lease reconciles. Every worker takes one key at a time from the queue. The operator
reconciles every Cluster again at intervals, independent of the watches. A process that stops doing so reports itself as
unhealthy.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from orderlymq_operator.brokers.admin import AdminError
from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.competitors import ALL
from orderlymq_operator.kube.election import Election
from orderlymq_operator.kube.errors import ApiError
from orderlymq_operator.kube.health import Health
from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.objects.names import (
    LABEL_BACKUP,
    LABEL_CLUSTER,
    LABEL_PIPELINE,
    LABEL_RESTORE,
)
from orderlymq_operator.kube.observe.audit import Audit
from orderlymq_operator.kube.observe.credentials import Credentials
from orderlymq_operator.kube.observe.inventory import ClusterKey, Inventory, Key, cluster_of
from orderlymq_operator.kube.observe.zones import Zones
from orderlymq_operator.kube.reconcile.backend import Defaults
from orderlymq_operator.kube.reconcile.backups.backup import BackupReconciler
from orderlymq_operator.kube.reconcile.backups.schedule import ScheduleReconciler
from orderlymq_operator.kube.reconcile.canary import Canaries
from orderlymq_operator.kube.reconcile.cluster import ClusterReconciler
from orderlymq_operator.kube.reconcile.consumergroups import ConsumerGroupLoop
from orderlymq_operator.kube.reconcile.finalizers import release_everything
from orderlymq_operator.kube.reconcile.pipeline import PipelineReconciler
from orderlymq_operator.kube.resources import OWN_KINDS, Json
from orderlymq_operator.kube.settings import OperatorSettings
from orderlymq_operator.kube.takeover.handover import Takeover
from orderlymq_operator.kube.watch import watch
from orderlymq_operator.kube.workqueue import WorkQueue
from orderlymq_operator.plan.permissions import DriverPolicy
from orderlymq_operator.resources.kinds import KINDS, USING, Pipeline
from orderlymq_protocol.plurals import counted
from orderlymq_runtime.pages.server import HealthServer
from orderlymq_runtime.sockets.listener import EVERY_ADDRESS

_log = logging.getLogger(__name__)

# Clusters that are reconciled at the same time.
_WORKERS: Final = 4
# Pipelines that are reconciled at the same time.
_DRIVER_WORKERS: Final = 4
# Changes that arrive within this time cause one reconcile.
_GATHER_S: Final = 0.05
_OWN: Final = {resource.kind: resource for resource in OWN_KINDS}


class _Ended(Exception):  # noqa: N818 - named by what happened
    """A signal ended the watches, so the whole process ends."""


class OperatorProcess:
    """One operator, from start to end."""

    def __init__(self, settings: OperatorSettings, api: Api, metrics: OperatorMetrics) -> None:
        self._settings = settings
        self._api = api
        self._metrics = metrics
        self._queues: dict[str, WorkQueue[Key]] = {
            kind: WorkQueue() for kind in ("Cluster", *USING)
        }
        self._inventory = Inventory(
            api,
            settings.namespaces,
            lambda item: self._wake_for(item.kind, item.key, item.cluster),
        )
        self._election = Election(
            api, settings.namespace, settings.identity, self._lease_changed, settings.namespaces
        )
        api.acts = lambda: self._election.leads
        defaults = Defaults(
            settings.image, settings.pull_policy, settings.namespace, settings.pull_secrets
        )
        self._reconciler = ClusterReconciler(
            api,
            self._inventory,
            defaults,
            metrics,
            Credentials(api, lambda: self._election.token, self._election.overtaken),
            self._zone_of,
            label_of=self._label_of,
        )
        self._drivers = PipelineReconciler(
            api,
            self._inventory,
            metrics,
            policy=DriverPolicy(
                settings.spark_image, settings.pipeline_images, settings.pipeline_settings
            ),
            pull_policy=settings.pull_policy,
            pull_secrets=settings.pull_secrets,
        )
        self._makers = BackupReconciler(api, self._inventory, metrics, defaults)
        self._schedulers = ScheduleReconciler(api, self._inventory, metrics)
        self._canaries = Canaries(
            self._reconciler.seen.canaries,
            self._reconciler.orders,
            lambda: self._election.leads,
            self._wake,
        )
        self._audit = Audit(metrics)
        self._takeover = Takeover(
            api, metrics, self._reconciler.seen.targets, lambda: self._election.leads
        )
        self._zones = Zones(self._takeover.node_of)
        self._consumer_groups = ConsumerGroupLoop(
            self._reconciler.seen.assignment_targets, lambda: self._election.leads, self._zones
        )
        self._watching = asyncio.Event()
        self._health = Health(settings.resync_s)
        metrics.resync_limit.set(self._health.stale_s)

    async def run(self) -> None:
        """Work until cancelled."""
        http = HealthServer(
            EVERY_ADDRESS,
            self._settings.http_port,
            ready=self._ready,
            alive=self._health.alive,
            status=self._status,
            registry=self._metrics.registry,
        )
        await http.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                for name, loop in {
                    "election": self._election.run(),
                    "resync": self._resync(),
                    "watches": self._watch(),
                    "takeover": self._takeover.run(),
                    "consumer groups": self._consumer_groups.run(),
                    "canaries": self._canaries.run(),
                }.items():
                    tasks.create_task(loop, name=name)
                for kind, (reconcile, count) in {
                    "Cluster": (self._reconciler.reconcile, _WORKERS),
                    "Pipeline": (self._drivers.reconcile, _DRIVER_WORKERS),
                    "Backup": (self._makers.reconcile, 1),
                    "ScheduledBackup": (self._schedulers.reconcile, 1),
                }.items():
                    for number in range(count):
                        work = self._work(self._queues[kind], reconcile)
                        tasks.create_task(work, name=f"{kind} worker {number}")
        except* _Ended:
            _log.info("the operator ends")
        finally:
            await self._reconciler.close()
            await self._drivers.close()
            await http.close()

    async def _watch(self) -> None:
        await watch(
            self._settings.namespaces,
            self._hint,
            self._watching,
            self._audit.lost,
            lambda namespace: namespace not in self._inventory.unread,
        )
        raise _Ended

    # -- hints ---------------------------------------------------------------------------------

    def _hint(self, kind: str, found: Json, gone: bool, listed: bool) -> None:
        """Queue the objects that a change may concern."""
        meta = found["metadata"]
        self._audit.shown(kind, found, gone=gone, listed=listed)
        if kind in KINDS:
            if self._inventory.shown(_OWN[kind], found, gone=gone):
                place = (meta["namespace"], meta["name"])
                self._wake_for(kind, place, cluster_of(kind, found))
            return
        if kind == "Pod":
            self._takeover.pod_shown(found, gone=gone)
        elif kind == "Node":
            self._takeover.node_shown(found)
            self._zones.node_shown(found, gone=gone)
            if self._reconciler.nodes.shown(found, gone=gone):
                for key in self._reconciler.seen.on_nodes():
                    self._wake(key)
        labels = meta.get("labels") or {}
        if kind == "Pod" and LABEL_PIPELINE in labels:
            self._queues["Pipeline"].add_after(
                (meta["namespace"], labels[LABEL_PIPELINE]), _GATHER_S
            )
        if kind == "Pod" and LABEL_BACKUP in labels:
            self._queues["Backup"].add_after((meta["namespace"], labels[LABEL_BACKUP]), _GATHER_S)
        name = labels.get(LABEL_CLUSTER) or labels.get(LABEL_RESTORE)
        if name is not None and kind != "Node":
            key = (meta["namespace"], name)
            if self._reconciler.shown(key, {**found, "kind": kind}, gone=gone):
                self._wake(key)

    def _wake_for(self, kind: str, name: tuple[str, str], cluster: ClusterKey | None) -> None:
        if kind in USING:
            self._queues[kind].add_after(name, _GATHER_S)
        elif cluster is not None:
            self._wake(cluster)
        if kind == "Cluster":
            self._wake_users(name)

    def _wake(self, key: ClusterKey) -> None:
        self._queues["Cluster"].add_after(key, _GATHER_S)

    def _wake_users(self, cluster: ClusterKey) -> None:
        """Queue the Pipelines that use a Cluster, which may have appeared or disappeared."""
        for item in self._inventory.items("Pipeline"):
            if isinstance(item.manifest, Pipeline) and item.manifest.spec.cluster_ref is not None:
                reference = item.manifest.spec.cluster_ref
                if (reference.namespace or item.namespace, reference.name) == cluster:
                    self._queues["Pipeline"].add_after(item.key, _GATHER_S)

    def _lease_changed(self, leads: bool) -> None:
        self._metrics.set_leading(leads=leads)
        if leads:
            self._inventory.invalidate()
            self._wake_all()

    def _wake_all(self) -> None:
        for key in self._inventory.cluster_keys():
            self._queues["Cluster"].add(key)
        for kind in USING:
            for item in self._inventory.items(kind):
                self._queues[kind].add(item.key)

    # -- reconciles --------------------------------------------------------------------------------

    async def _work(
        self,
        queue: WorkQueue[tuple[str, str]],
        reconcile: Callable[[tuple[str, str]], Awaitable[float | None]],
    ) -> None:
        while True:
            key = await queue.take()
            if not self._election.leads:
                queue.done(key)  # the same watches wake the leader
                continue
            try:
                delay_s = await reconcile(key)
            except (ApiError, AdminError) as error:
                self._metrics.failures.inc()
                pause_s = queue.failed(key, getattr(error, "retry_after_s", 0.0))
                _log.warning("%s/%s: %s; again in %.1f s", *key, error, pause_s)
            except Exception:
                # The reconcile of one object must not end those of others.
                self._metrics.failures.inc()
                queue.failed(key)
                _log.exception("the reconcile of %s/%s failed", *key)
            else:
                queue.done(key)
                if delay_s is not None:
                    queue.add_after(key, delay_s)

    async def _resync(self) -> None:
        """Queue every Cluster at intervals; find objects that disappeared while a watch was interrupted."""
        while True:
            try:
                self._health.begin()
                stale = await self._audit.compare(
                    self._api,
                    self._inventory,
                    self._settings.namespaces,
                    self._reconciler.interrupted,
                )
                for kind, (namespace, name, uid) in stale:
                    _log.warning(
                        "a watch showed %s %s/%s, which no longer exists", kind, namespace, name
                    )
                    if kind == "Pod":
                        self._takeover.stale_pod(uid)
            except ApiError as error:
                self._health.problem = f"cannot read the API server: {error}"
                _log.warning("%s", self._health.problem)
                await asyncio.sleep(min(self._settings.resync_s, 2.0))
                continue
            self._health.problem = ""
            self._metrics.unread_namespaces.set(len(self._inventory.unread))
            self._metrics.last_resync.set_to_current_time()
            self._metrics.clusters.set(len(self._inventory.items("Cluster")))
            self._wake_all()
            await self._release_left()
            await asyncio.sleep(self._settings.resync_s)

    async def _release_left(self) -> None:
        """Remove the finalizers in namespaces that this operator served before and that no operator serves now."""
        election = self._election
        if not (election.leads and election.left):
            return
        places = () if ALL in election.left else tuple(sorted(election.left))
        try:
            count = await release_everything(self._api, places, election.is_looked_after)
        except ApiError as error:
            _log.warning("finalizers stay in namespaces that are no longer served: %s", error)
            return
        election.left = frozenset()
        what = ", ".join(places) or "all namespaces that nobody serves"
        _log.info("removed the finalizer from %s in %s", counted(count, "object"), what)

    def _zone_of(self, address: str) -> str:
        return self._zones.of_address(address)

    def _label_of(self, node: str, key: str) -> str | None:
        return self._zones.label(node, key)

    # -- reporting -------------------------------------------------------------------------------

    def _ready(self) -> tuple[bool, str]:
        if self._health.problem:
            return False, self._health.problem
        if not self._watching.is_set():
            return False, "the watches have not started"
        if self._election.competitor:
            return False, self._election.competitor
        state = "leads" if self._election.leads else "stands by"
        unread = [f"{place}: {why}" for place, (_, why) in self._inventory.unread.items()]
        return True, "; ".join([state, *(f"does not serve namespace {each}" for each in unread)])

    def _status(self) -> dict[str, object]:
        return {
            "leads": self._election.leads,
            "token": self._election.token,
            "waiting": len(self._queues["Cluster"]),
            "clusters": [item.name for item in self._inventory.items("Cluster")],
            "pipelines": [item.name for item in self._inventory.items("Pipeline")],
        }
