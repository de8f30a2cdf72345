"""
The forecast of manifest files; reads its inputs from the API server through a kubeconfig.

Rule: it only reads: custom resources, the objects that the operator made for their Clusters, and Backups of a schedule.
"""

import time
from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from kubernetes.aio.config import ConfigException

from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.errors import ApiError, ForbiddenError
from orderlymq_operator.kube.forecast.change import Present, forecast_change, item_of
from orderlymq_operator.kube.forecast.using import forecast_using
from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.observe.cluster import Live, read_objects
from orderlymq_operator.kube.observe.desired import subject_of
from orderlymq_operator.kube.observe.gateway import GatewayApi, may_have_routes
from orderlymq_operator.kube.observe.inventory import (
    ClusterKey,
    Inventory,
    Item,
    cluster_of,
    read_item,
)
from orderlymq_operator.kube.observe.lister import Lister
from orderlymq_operator.kube.resources import BACKUPS, CLUSTERS, Json, Resource, resource_of
from orderlymq_operator.plan.actions import Refuse
from orderlymq_operator.plan.forecast.effects import Forecast
from orderlymq_operator.resources.cluster.cluster import ANY_NAMESPACE
from orderlymq_operator.resources.kinds import (
    Cluster,
    ConsumerGroup,
    ScheduledBackup,
    Topic,
    User,
    Using,
)
from orderlymq_operator.resources.manifests.reader import Manifest


async def forecast_files(
    manifests: Sequence[Manifest], *, namespace: str | None, context: str | None
) -> Forecast:
    """Return the forecast of applying *manifests*, for all Clusters that they concern.

    Raises:
        ApiError: the API server could not be read, or KUBECONFIG cannot be used.
    """
    try:
        connection = await Api.connect(OperatorMetrics(), context)
        place = namespace or Api.namespace(context)
    except ConfigException as error:
        raise ApiError(f"KUBECONFIG cannot be used: {error}", 0) from error
    async with connection as api:
        return await forecast_with(api, manifests, place)


async def forecast_with(api: Api, manifests: Sequence[Manifest], namespace: str) -> Forecast:
    """Return the forecast of applying *manifests*; those without a namespace go to *namespace*."""
    every = [each.resource for each in manifests]
    for definition in dict.fromkeys(
        (CLUSTERS, *(resource_of({"kind": each.kind}) for each in every))
    ):
        if not await api.serves(definition):
            text = f"the API server has no definition of {definition.kind} ({definition.api_version}); the chart installs it"
            raise ApiError(text, 404)
    resources = [each for each in every if not isinstance(each, Using)]
    made = {
        (each.metadata.namespace or namespace, each.metadata.name)
        for each in resources
        if isinstance(each, Cluster)
    }
    said = [await _of_clusters(api, resources, namespace)] if resources else []
    said += [
        await _of_using(api, each, each.metadata.namespace or namespace, made)
        for each in every
        if isinstance(each, Using)
    ]
    return _joined(said)


def _joined(said: Sequence[Forecast]) -> Forecast:
    return Forecast(
        tuple(resource for each in said for resource in each.resources),
        tuple(step for each in said for step in each.steps),
        tuple(refusal for each in said for refusal in each.refusals),
        all(each.complete for each in said),
    )


async def _of_using(api: Api, wanted: Using, place: str, made: Collection[ClusterKey]) -> Forecast:
    """Return the forecast of applying one manifest; *made* are the Clusters that are applied with it."""
    present = await _read(api, resource_of({"kind": wanted.kind}), place, wanted.metadata.name)
    after = item_of(wanted, place, present)
    is_schedule = isinstance(wanted, ScheduledBackup)
    found = await api.list(BACKUPS, place) if present is not None and is_schedule else []
    return forecast_using(
        None if present is None else read_item(after.resource, present),
        after,
        cluster_found=await _has_cluster(api, after, made),
        backups=[read_item(BACKUPS, each) for each in found],
        now=datetime.now(UTC),
    )


async def _has_cluster(api: Api, item: Item, made: Collection[ClusterKey]) -> bool:
    """Return whether the Cluster that an object uses exists; also True if the caller may not read it."""
    reference = getattr(getattr(item.manifest, "spec", None), "cluster_ref", None)
    if reference is None:
        return True
    key = getattr(reference, "namespace", None) or item.namespace, reference.name
    try:
        return key in made or await _read(api, CLUSTERS, *key) is not None
    except ForbiddenError:
        return True


async def _read(api: Api, resource: Resource, namespace: str, name: str) -> Json | None:
    found = await api.list(resource, namespace, fields=f"metadata.name={name}")
    return found[0] if found else None


async def _of_clusters(
    api: Api, resources: Sequence[Cluster | Topic | ConsumerGroup | User], namespace: str
) -> Forecast:
    """Return the forecast of applying manifests of Clusters and their parts, for all Clusters that they concern."""
    places = {each.metadata.namespace or namespace for each in resources}
    places |= {
        each.spec.cluster_ref.namespace
        for each in resources
        if not isinstance(each, Cluster) and each.spec.cluster_ref.namespace
    }
    inventory = await _whole_inventory(api, resources, namespace, places)
    changed: dict[ClusterKey, list[Item]] = {}
    refused: list[Refuse] = []
    for each in resources:
        place = each.metadata.namespace or namespace
        found = await _read(api, resource_of({"kind": each.kind}), place, each.metadata.name)
        item = item_of(each, place, found)
        assert item.cluster is not None, "objects that only use a Cluster were left out"
        if found and (before := cluster_of(each.kind, found)) not in (None, item.cluster):
            refused.append(_moved(item, before))
            continue  # the object stays unchanged
        changed.setdefault(item.cluster, []).append(item)
    said = [
        forecast_change(await _present(api, inventory, key, items), items)
        for key, items in sorted(changed.items())
    ]
    return _joined([Forecast(refusals=tuple(refused)), *said])


async def _whole_inventory(
    api: Api,
    resources: Sequence[Cluster | Topic | ConsumerGroup | User],
    namespace: str,
    places: set[str],
) -> Inventory:
    """Return the objects in *places*, and in namespaces that a Cluster of *resources* allows, if these can be read."""
    inventory = Inventory(api, tuple(sorted(places)))
    await inventory.refresh()
    clusters: list[object] = []
    for each in resources:
        place = each.metadata.namespace or namespace
        if isinstance(each, Cluster):
            clusters.append(each)
            key = place, each.metadata.name
        else:
            key = each.spec.cluster_ref.namespace or place, each.spec.cluster_ref.name
        found = inventory.cluster(key)
        clusters.append(None if found is None else found.manifest)
    allowed = {
        name
        for each in clusters
        if isinstance(each, Cluster)
        for name in each.spec.allowed_namespaces
    }
    if allowed <= places:
        return inventory
    chosen = () if ANY_NAMESPACE in allowed else tuple(sorted(places | allowed))
    wider = Inventory(api, chosen)
    try:
        await wider.refresh()
    except ForbiddenError:
        return inventory  # few users may read all namespaces
    return wider


def _moved(item: Item, before: ClusterKey) -> Refuse:
    reason = f"it names Cluster {'/'.join(before)}, which cannot be changed"
    advice = "leave it as it is, or create another object"
    return Refuse(item.kind, subject_of(item).name, "spec.clusterRef", reason, advice)


async def _present(
    api: Api, inventory: Inventory, key: ClusterKey, changed: Sequence[Item]
) -> Present:
    item = inventory.cluster(key)
    either = [*changed, *([item] if item is not None else [])]
    routes = await GatewayApi(api).routes() if any(map(may_have_routes, either)) else None
    live = Live(routes=routes)
    if item is not None and isinstance(item.manifest, Cluster):
        live = await read_objects(Lister(api, time.monotonic), item.manifest, routes=routes)
    return Present(item, inventory.parts(key), live)
