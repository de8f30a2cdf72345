"""
Which spec, image and pull secrets of a Cluster are carried out: an edit may wait for its confirmation, or for the end of a pause.

An edit that cannot be used waits for its correction: the Cluster that runs goes on with the spec before.

Pure, but for `read_accepted_cluster`. `plan.guard` decides what waits for a confirmation.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.cluster import (
    accepted_spec,
)
from orderlymq_operator.kube.objects.ownership import is_former
from orderlymq_operator.kube.objects.pods import access_to, tls_mode_of
from orderlymq_operator.kube.observe.cluster import Live
from orderlymq_operator.kube.observe.desired import MESSAGE_MAX
from orderlymq_operator.kube.observe.inventory import Item
from orderlymq_operator.kube.reconcile.status import previous_conditions
from orderlymq_operator.kube.resources import STATEFUL_SETS, Json
from orderlymq_operator.plan.actions import (
    ConditionReport,
)
from orderlymq_operator.plan.guard import Act, unconfirmed
from orderlymq_operator.resources.kinds import Cluster, Pipeline
from orderlymq_operator.resources.meta import ObjectMeta

Pulling = TypeVar("Pulling", Cluster, Pipeline)


def named(item: Item) -> Cluster:
    """Return the Cluster of an object; where its spec cannot be used one that has no more than its name."""
    if isinstance(item.manifest, Cluster):
        return item.manifest
    meta = ObjectMeta.model_construct(
        name=item.name, namespace=item.namespace, uid=item.uid, generation=item.generation
    )
    return Cluster(metadata=meta)


def obstacle(item: Item, live: Live) -> ConditionReport | None:
    """Return why no spec of a Cluster is carried out; None where one is.

    That before is not known, and that of the manifest cannot be used or, as the Cluster runs, is not confirmed.
    """
    sets = live.stateful_sets()
    if accepted_spec(sets) is not None:
        return None
    if item.manifest is None:
        return ConditionReport("False", "Invalid", item.error)
    return _confirmation(unconfirmed(None, named(item), item.annotations)) if sets else None


def carried_out(item: Item, live: Live) -> tuple[Cluster, ConditionReport | None]:
    """Return the Cluster with the spec that is carried out, and the condition Confirmed where an edit lacks it.

    In a pause, and while an edit is not confirmed or cannot be used, that is the spec before.
    """
    cluster = named(item)
    spec = accepted_spec(live.stateful_sets())
    if spec is None:
        return cluster, None
    before = cluster.model_copy(update={"spec": spec})
    if item.manifest is None:
        return before, None
    acts = unconfirmed(before, cluster, item.annotations)
    return before if acts or item.is_paused else cluster, _confirmation(acts)


def _confirmation(acts: Sequence[Act]) -> ConditionReport | None:
    text = "; ".join(f"{act.name}: {act.text}; {act.advice}" for act in acts)
    return ConditionReport("False", "ConfirmationMissing", text[:MESSAGE_MAX]) if acts else None


def may_wait(item: Item) -> bool:
    """Return whether a Cluster may be carried out otherwise than it says; its status says so, unless it is older."""
    confirmed = previous_conditions(item).get("Confirmed")
    return (
        item.manifest is None
        or item.is_paused
        or item.status.get("observedGeneration") != item.generation
        or (
            confirmed is not None
            and (confirmed.status == "False" or confirmed.generation != item.generation)
        )
    )


async def read_accepted_cluster(api: Api, item: Item) -> Cluster | None:
    """Return a Cluster as `accepted_cluster` does; its StatefulSets are read where they matter.

    Raises:
        ApiError: they cannot be read now.
    """
    sets = []
    if may_wait(item):
        chosen = f"{names.LABEL_CLUSTER}={item.name}"
        sets = await api.list(STATEFUL_SETS, item.namespace, labels=chosen)
    return accepted_cluster(item, sets)


def accepted_cluster(item: Item, sets: Iterable[Json]) -> Cluster | None:
    """Return a Cluster as it is carried out, for others than its own reconcile; None where no usable spec is known.

    *sets* are the StatefulSets of that name, also of a former Cluster.
    """
    cluster = named(item)
    live = Live()
    for found in sets:
        if not is_former(cluster.metadata, found):
            live.put({**found, "kind": STATEFUL_SETS.kind})
    return None if obstacle(item, live) else carried_out(item, live)[0]


def with_pull_secrets(manifest: Pulling, default: Sequence[str]) -> Pulling:
    """Return *manifest* with the operator's pull secrets where it names none; they must be in its namespace."""
    if manifest.spec.image_pull_secrets or not default:
        return manifest
    return manifest.with_spec(image_pull_secrets=list(default))


def with_tls_step(cluster: Cluster, live: Live) -> tuple[Cluster, str]:
    """Return *cluster* with the TLS mode of its next pods, and what the wanted mode waits for; empty for nothing.

    Disabled and Enforcing do not reach each other, and any pod may restart at any time. So no pod gets the one before the
    last pod of the other has gone, and until then new pods are Permissive.
    """
    wanted = cluster.spec.tls
    obstacle = next(_tls_obstacles(wanted.mode, live), "")
    has_pair = wanted.secret_name is not None or wanted.mode == "Disabled"
    if not obstacle or not has_pair:
        return cluster, ""
    # A spec with Disabled need not name the key pair any more.
    made = [access_to(each["spec"]["template"]) for each in live.stateful_sets()]
    made += [pod.access for pod in live.pods.values()]
    named = (each.tls_secret for each in made if each is not None and each.tls_secret)
    secret = wanted.secret_name or next(named, None)
    tls = wanted.model_copy(update={"mode": "Permissive", "secret_name": secret})
    text = f"tls.mode {wanted.mode} waits until every pod has Permissive: {obstacle}"
    return cluster.with_spec(tls=tls), text


def _tls_obstacles(mode: str, live: Live) -> Iterator[str]:
    """Yield what keeps pods from being made with *mode*."""
    other = {"Disabled": "Enforcing", "Enforcing": "Disabled"}.get(mode)
    if other is None:
        return
    processes = (names.BROKER, names.NAME_SERVER)
    pods = [
        pod
        for _, pod in sorted(live.pods.items())
        if pod.labels.get("app.kubernetes.io/component") in processes
    ]
    yield from (f"pod {pod.name} has {other}" for pod in pods if pod.tls_mode == other)
    for made in live.stateful_sets():
        name, template = made["metadata"]["name"], tls_mode_of(made["spec"]["template"])
        known = (made.get("status") or {}).get("observedGeneration")
        if template == other:
            yield f"new pods of {name} get {other}"
        elif template != mode and known != made["metadata"].get("generation"):
            yield f"Kubernetes may still make pods of {name} as they were before"


def image_of(cluster: Cluster, live: Live, default: str) -> str:
    """Return the image of the pods: a new operator with another *default* alone changes none that runs."""
    if cluster.spec.image is not None:
        return cluster.spec.image
    sets = live.stateful_sets()
    if not sets or cluster.spec.update.on_operator_upgrade == "Adopt":
        return default
    # Whichever somebody deletes, the others know it.
    notes = (
        (each["metadata"].get("annotations") or {}).get(names.ANNOTATION_IMAGE) for each in sets
    )
    # An operator of an earlier version has left no note.
    return str(
        next(filter(None, notes), None)
        or sets[0]["spec"]["template"]["spec"]["containers"][0]["image"]
    )
