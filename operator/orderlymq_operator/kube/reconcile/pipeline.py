"""
One reconcile of one Pipeline: observe its objects and drivers, plan, apply, report.

Rules: the same as in `cluster`. A driver is only read: it has no rights, and the operator executes nothing that it
reports.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import aiohttp

from orderlymq_operator.brokers.pages import read_page
from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.drift import Answers, changes, stamped
from orderlymq_operator.kube.objects.ownership import is_former
from orderlymq_operator.kube.objects.pipeline import (
    DriverEnvironment,
    claim_name,
    pipeline_workload,
    supporting_objects,
    work_of,
)
from orderlymq_operator.kube.objects.sparkapplication import spark_application, unknown_fields
from orderlymq_operator.kube.observe.desired import MESSAGE_MAX
from orderlymq_operator.kube.observe.drivers import (
    driver_pod,
    is_driver,
    is_past,
    is_run,
    pause_of,
    read_report,
    run_of,
    status_facts,
    without_pause,
    workload_of,
)
from orderlymq_operator.kube.observe.inventory import Inventory, Item, Key
from orderlymq_operator.kube.observe.lister import Lister
from orderlymq_operator.kube.observe.pods import claim_facts
from orderlymq_operator.kube.observe.refusedpods import refused_run
from orderlymq_operator.kube.reconcile.accepted import read_accepted_cluster, with_pull_secrets
from orderlymq_operator.kube.reconcile.backoff import Backoff
from orderlymq_operator.kube.reconcile.status import previous_conditions, previous_facts
from orderlymq_operator.kube.reconcile.volumes import settle_claim
from orderlymq_operator.kube.reconcile.writer import StatusWriter
from orderlymq_operator.kube.resources import (
    CLAIMS,
    CRON_JOBS,
    DEFINITIONS,
    JOBS,
    MADE_FOR_PIPELINES,
    PIPELINES,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SPARK_APPLICATIONS,
    STATEFUL_SETS,
    Json,
    Resource,
)
from orderlymq_operator.plan import tenants
from orderlymq_operator.plan.actions import ConditionReport
from orderlymq_operator.plan.permissions import DriverPolicy, forbidden
from orderlymq_operator.plan.pipelines import (
    ApplyDriver,
    DriverPod,
    Form,
    ObservedPipeline,
    PipelineAction,
    ReportPipeline,
    StopDriver,
    SuspendDriver,
    form_of,
    plan_pipeline,
)
from orderlymq_operator.resources.kinds import Backup, Cluster, ScheduledBackup
from orderlymq_operator.resources.pipelines.pipeline import Pipeline
from orderlymq_operator.resources.quantities import quantity
from orderlymq_runtime.sockets.addresses import join_address

_log = logging.getLogger(__name__)

AT_WORK_S: Final = 0.2
WAITING_S: Final = 2.0
# How often a running driver is asked for its report, and how often a change of its figures alone is written.
ASKING_S: Final = 10.0
FIGURES_S: Final = 30.0
_ANSWER_S: Final = 2.0  # a driver with a busy JVM answers late
# How long a reconcile waits for the answer; short, because other reconciles wait. The next reconcile reads a later
# answer.
_SOON_S: Final = 0.2
# Enough for three times the queues that a status can hold. Parsing a report blocks everything else.
_PAGE_MAX: Final = 1 << 19
# How long the definition of SparkApplication is cached; it rarely changes.
_DEFINITION_S: Final = 60.0
_FORMS: Final[dict[Form, Resource]] = {
    "StatefulSet": STATEFUL_SETS,
    "Job": JOBS,
    "CronJob": CRON_JOBS,
    "SparkApplication": SPARK_APPLICATIONS,
}
_DEFINITION: Final = f"{SPARK_APPLICATIONS.plural}.{SPARK_APPLICATIONS.api_version.split('/')[0]}"


@dataclass(slots=True)
class _Observation:
    """The desired and the existing objects of a Pipeline."""

    wanted: list[Json]
    workload: Json
    pause: Json
    live: dict[Resource, list[Json]]
    answers: Answers
    observed: ObservedPipeline = field(default_factory=ObservedPipeline)

    @property
    def everything(self) -> list[Json]:
        """Every object that was read, except pods."""
        return [item for resource, items in self.live.items() if resource != PODS for item in items]

    def surplus(self) -> list[Json]:
        """Return the Roles and RoleBindings that are no longer needed."""
        kept = {(item["kind"], item["metadata"]["name"]) for item in self.wanted}
        return [
            item
            for resource in (ROLE_BINDINGS, ROLES)
            for item in self.live[resource]
            if (item["kind"], item["metadata"]["name"]) not in kept
        ]


class PipelineReconciler:
    """Reconciles Pipelines; `reconcile` is called for one key at a time."""

    def __init__(
        self,
        api: Api,
        inventory: Inventory,
        metrics: OperatorMetrics,
        *,
        policy: DriverPolicy,
        pull_policy: str,
        pull_secrets: Sequence[str] = (),
    ) -> None:
        self._api = api
        self._inventory = inventory
        self._metrics = metrics
        self._policy = policy
        self._pull_policy = pull_policy
        self._pull_secrets = pull_secrets
        self._writer = StatusWriter(api, inventory, metrics)
        self._session = aiohttp.ClientSession()
        self._reported_at: dict[Key, float] = {}
        self._lists = Lister(api, time.monotonic)
        self._backoff = Backoff()
        self._repeats = Backoff()
        self._answers: dict[Key, Answers] = {}
        self._definition: tuple[float, Json | None] | None = None
        # Requests that are running, or whose answer no reconcile has read yet; by Pipeline and UID of the pod.
        self._asked: dict[Key, dict[str, asyncio.Task[bytes]]] = {}

    async def close(self) -> None:
        """Close all connections."""
        for key in self._asked:
            self._drop_questions(key, set())
        await self._session.close()

    async def reconcile(self, key: Key) -> float | None:
        """Reconcile once; return the seconds until the next reconcile is due, or None if none is planned.

        Raises:
            ApiError: the API server could not be read or written; try again.
        """
        with self._metrics.reconciles.time():
            await self._inventory.refresh(key)
            item = self._inventory.item("Pipeline", key)
            if item is None or item.deleting_since is not None:
                self._forget(key)
                return None  # Kubernetes deletes the objects that it owns
            if not isinstance(item.manifest, Pipeline):
                await self._writer.not_ready(item, "Invalid", item.error)
                return None
            if item.is_paused:
                return None
            async with self._writer.saying_refusals(item):
                return await self._steps(key, item, item.manifest)

    async def _steps(self, key: Key, item: Item, pipeline: Pipeline) -> float | None:
        refusal = await self._forbidden(pipeline)
        pipeline = with_pull_secrets(pipeline, self._pull_secrets)
        environment = DriverEnvironment(
            pipeline.spec.image or self._policy.image,
            pipeline.spec.image_pull_policy or self._pull_policy,
        )
        seen = await self._observe(pipeline, item.created, environment, refusal)
        actions = plan_pipeline(pipeline, work_of(pipeline), seen.observed)
        for action in actions:
            await self._perform(pipeline, seen, action)
        # After the driver's actions, because a volume that cannot grow must not keep the driver from running.
        growth = await self._grow(pipeline, seen) if refusal is None else None
        grows = growth is not None and growth.reason == "Resizing"
        report = actions[-1]
        assert isinstance(report, ReportPipeline), "a plan ends with a report"
        conditions = {"Ready": report.condition}
        if growth is not None and not grows:
            conditions["StorageReady"] = growth
        await self._report(key, item, report, conditions, claim_name(pipeline))
        if len(actions) > 1 or grows:
            # Repeated actions without effect must not run as fast as possible.
            return self._repeats.pause_s(key, tuple(actions[:-1]), AT_WORK_S)
        self._repeats.forget(key)
        # Only a read shows the end of a previous driver.
        if report.condition.reason != "PreviousDriverTerminating":
            self._lists.keep(key, (PODS, _FORMS[form_of(pipeline.spec)]))
        if report.phase == "Running":
            self._backoff.forget(key)
            return ASKING_S
        # After the end, without a living pod, a watch event or a change of the spec wakes the reconcile.
        waits = report.phase == "Starting" or report.pod is not None
        if not waits or report.condition.reason == "ClusterNotFound":
            return None
        return max(WAITING_S, self._backoff.pause_s(key, (report.phase, report.condition)))

    # -- observing -------------------------------------------------------------------------------

    async def _observe(
        self,
        pipeline: Pipeline,
        since: str,
        environment: DriverEnvironment,
        refusal: ConditionReport | None,
    ) -> _Observation:
        namespace = pipeline.metadata.namespace
        chosen = f"{names.LABEL_PIPELINE}={pipeline.metadata.name}"
        definition = await self._spark_definition()
        known = [*MADE_FOR_PIPELINES, *([SPARK_APPLICATIONS] if definition else [])]
        key = (namespace or "", pipeline.metadata.name)
        live = await self._lists.read(
            key,
            (pipeline.metadata.uid, pipeline.metadata.generation, definition is not None),
            namespace,
            chosen,
            [PODS, *known],
        )
        made = driver_workload(pipeline, environment)
        workload, pause = without_pause(made)
        wanted = [_as_large(each, live) for each in supporting_objects(pipeline, environment)]
        answers = self._answers.setdefault(key, Answers(time.monotonic))
        seen = _Observation(wanted, stamped(workload), pause, live, answers)
        self._drop_questions(key, {each["metadata"]["uid"] for each in live[PODS]})
        pods = await asyncio.gather(
            *(
                self._ask(key, each)
                for each in live[PODS]
                if is_driver(each) and not is_past(each, since)
            )
        )
        reference = pipeline.spec.cluster_ref
        seen.observed = ObservedPipeline(
            workloads=tuple(
                replace(
                    workload_of(
                        found,
                        seen.workload if _same(found, seen.workload) else None,
                        answers.is_right,
                    ),
                    former=is_former(pipeline.metadata, found, PIPELINES.kind),
                )
                for resource in _FORMS.values()
                for found in live.get(resource, ())
                if not is_run(found)
            ),
            runs=tuple(run_of(each, seen.workload) for each in live[JOBS] if is_run(each)),
            refused_pod=await self._refused_pod(live),
            deleted_claim=_deleted_claim(pipeline, live[CLAIMS]),
            pods=tuple(pods),
            stale=len(changes(wanted, seen.everything, answers)) + len(seen.surplus()),
            cluster_found=reference is None or self._cluster_of(pipeline) is not None,
            forbidden=refusal,
            definition_found=definition is not None,
            unknown_fields=tuple(unknown_fields(definition, made))
            if definition is not None and made["kind"] == SPARK_APPLICATIONS.kind
            else (),
        )
        return seen

    async def _refused_pod(self, live: dict[Resource, list[Json]]) -> str:
        for made in (*live[STATEFUL_SETS], *live[JOBS]):
            if said := await refused_run(self._api, made, live[PODS]):
                return said[:MESSAGE_MAX]
        return ""

    def _cluster_of(self, pipeline: Pipeline) -> Item | None:
        reference = pipeline.spec.cluster_ref
        if reference is None:
            return None
        namespace = reference.namespace or pipeline.metadata.namespace or ""
        return self._inventory.cluster((namespace, reference.name))

    async def _forbidden(self, pipeline: Pipeline) -> ConditionReport | None:
        """Return why a Pipeline may not run; None if it may.

        The accepted spec of a Cluster decides what it allows and reserves. If no accepted spec is known, it allows
        nothing.
        """
        namespace, item = pipeline.metadata.namespace or "", self._cluster_of(pipeline)
        if item is not None and item.namespace != namespace:
            cluster = await read_accepted_cluster(self._api, item)
            if cluster is None:
                return tenants.unknown(item.name, item.namespace, item.error)
            if not tenants.allows(cluster, namespace):
                return tenants.refusal(item.name, item.namespace, namespace)
        near = [
            found
            for each in self._inventory.items("Cluster")
            if each.namespace == namespace
            for found in (each.manifest, await read_accepted_cluster(self._api, each))
            if isinstance(found, Cluster)
        ]
        backups = [
            each.manifest.spec.destination
            for kind in ("Backup", "ScheduledBackup")
            for each in self._inventory.items(kind)
            if each.namespace == namespace and isinstance(each.manifest, Backup | ScheduledBackup)
        ]
        return forbidden(pipeline, self._policy, near, backups)

    async def _ask(self, key: Key, found: Json) -> DriverPod:
        """Return a driver's pod with the report of its driver, now or since the last reconcile."""
        pod, uid = driver_pod(found), found["metadata"]["uid"]
        address = (found.get("status") or {}).get("podIP")
        if pod.ended or not address or not pod.ready:
            return pod
        url = f"http://{join_address(address, names.HTTP_PORT)}/status"
        asked = self._asked.setdefault(key, {})
        if uid not in asked:
            asked[uid] = asyncio.create_task(self._read(url), name=f"question to {pod.name}")
        await asyncio.wait({asked[uid]}, timeout=_SOON_S)
        # The report of a previous container says nothing about the current one.
        said = asked.pop(uid).result() if asked[uid].done() else b""
        if len(said) > _PAGE_MAX:
            unread = f"its figures are ignored, because its report has more than {_PAGE_MAX} bytes"
            return replace(pod, word=None, unread=unread)
        return replace(pod, word=read_report(said.decode(errors="replace")))

    async def _read(self, url: str) -> bytes:
        """Return a driver's report, not parsed yet; empty if the driver does not answer."""
        try:
            return await read_page(self._session, url, _ANSWER_S, size_max=_PAGE_MAX)
        except (aiohttp.ClientError, TimeoutError, OSError):
            return b""

    def _forget(self, key: Key) -> None:
        """Drop all state of a Pipeline."""
        self._reported_at.pop(key, None)
        self._lists.forget(key)
        self._backoff.forget(key)
        self._repeats.forget(key)
        self._answers.pop(key, None)
        self._writer.failures.forget(key)
        self._drop_questions(key, set())
        self._asked.pop(key, None)

    def _drop_questions(self, key: Key, kept: set[str]) -> None:
        """Cancel the requests to all pods except those with a UID in *kept*."""
        asked = self._asked.get(key, {})
        for uid in asked.keys() - kept:
            asked.pop(uid).cancel()

    async def _spark_definition(self) -> Json | None:
        now = time.monotonic()
        if self._definition is None or now - self._definition[0] > _DEFINITION_S:
            found = await self._api.get(DEFINITIONS, None, _DEFINITION)
            self._definition = (now, found)
        return self._definition[1]

    # -- carrying out --------------------------------------------------------------------------

    async def _perform(
        self, pipeline: Pipeline, seen: _Observation, action: PipelineAction
    ) -> None:
        namespace = pipeline.metadata.namespace
        match action:
            case StopDriver(form, name):
                await self._delete(_FORMS[form], seen, name)
            case ApplyDriver(form):
                await self._apply(seen, form)
            case SuspendDriver(form, name, suspend):
                change = {"spec": pause_of(form, suspend=suspend)}
                await self._api.patch(_FORMS[form], namespace, name, change)
            case ReportPipeline():
                return
        _log.info("%s/%s: carried out %s", namespace, pipeline.metadata.name, action)
        self._metrics.actions.labels(type(action).__name__).inc()

    async def _apply(self, seen: _Observation, form: Form) -> None:
        for made in changes(seen.wanted, seen.everything, seen.answers):
            known = any(_same(found, made) for found in seen.everything)
            found = await (self._api.apply(made) if known else self._api.make(made))
            seen.answers.note(made, found)
        for found in seen.surplus():
            resource = ROLES if found["kind"] == ROLES.kind else ROLE_BINDINGS
            await self._delete(resource, seen, found["metadata"]["name"])
        present = [each for each in seen.observed.workloads if each.form == form]
        if not present or not (form == "Job" or present[0].current or present[0].ended):
            spec = {**seen.workload["spec"], **seen.pause}
            workload = {**seen.workload, "spec": spec}
            found = await (self._api.apply(workload) if present else self._api.make(workload))
            seen.answers.note(seen.workload, found)

    async def _grow(self, pipeline: Pipeline, seen: _Observation) -> ConditionReport | None:
        """Expand the volume to its size in the spec; return the condition, or None if there is nothing to do."""
        storage, namespace = pipeline.spec.storage, pipeline.metadata.namespace
        if storage.claim_name is not None:
            return None  # the claim belongs to the user
        for found in map(claim_facts, seen.live[CLAIMS]):
            if found.name == claim_name(pipeline):
                return await settle_claim(self._api, namespace, found, str(storage.size))
        return None

    async def _delete(self, resource: Resource, seen: _Observation, name: str) -> None:
        """Delete an object by its observed UID, and the objects that it owns."""
        named = (each["metadata"] for each in seen.live[resource])
        meta = next(each for each in named if each["name"] == name)
        await self._api.delete(
            resource, meta["namespace"], name, uid=meta["uid"], propagation="Background"
        )

    # -- reporting -------------------------------------------------------------------------------

    async def _report(
        self,
        key: Key,
        item: Item,
        report: ReportPipeline,
        conditions: dict[str, ConditionReport],
        claim: str,
    ) -> None:
        previous = previous_facts(item)
        facts = status_facts(report, previous, claim)
        now = time.monotonic()
        news = conditions != previous_conditions(item) or any(
            facts.get(name) != previous.get(name)
            for name in ("phase", "driver", "result", "lastError")
        )
        if not news and now - self._reported_at.get(key, -FIGURES_S) < FIGURES_S:
            return
        self._reported_at[key] = now
        await self._writer.write(item, conditions, facts)


def driver_workload(pipeline: Pipeline, environment: DriverEnvironment) -> Json:
    """Return the workload that makes the drivers."""
    if form_of(pipeline.spec) == "SparkApplication":
        return spark_application(pipeline, environment)
    return pipeline_workload(pipeline, environment)


def _deleted_claim(pipeline: Pipeline, claims: Sequence[Json]) -> str:
    """Return the name of the Pipeline's claim if it is being deleted; empty if not or if a former Pipeline owns it."""
    name = claim_name(pipeline)
    is_deleted = any(
        found["metadata"]["name"] == name
        and "deletionTimestamp" in found["metadata"]
        and not is_former(pipeline.metadata, found, PIPELINES.kind)
        for found in claims
    )
    return name if is_deleted else ""


def _same(found: Json, made: Json) -> bool:
    return bool(
        found["kind"] == made["kind"] and found["metadata"]["name"] == made["metadata"]["name"]
    )


def _as_large(made: Json, live: dict[Resource, list[Json]]) -> Json:
    """Return *made*; a claim gets the size of the existing claim, which may be larger and which `_grow` expands."""
    for found in live[CLAIMS] if made["kind"] == CLAIMS.kind else ():
        if not _same(found, made):
            continue
        asked = found["spec"]["resources"]["requests"]["storage"]
        if quantity(asked) != quantity(made["spec"]["resources"]["requests"]["storage"]):
            return {**made, "spec": {**made["spec"], "resources": found["spec"]["resources"]}}
    return made
