"""
The accepted spec, image and pull Secrets of a Cluster: an edit may wait for a confirmation or the end of a pause.

An invalid edit waits for its correction; meanwhile, the running Cluster keeps the previous spec.

Pure, except `read_accepted_cluster`. `plan.guard` decides which edits need a confirmation.
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
    """Return the Cluster of an object; if its spec is invalid, a Cluster with only its metadata and a default spec."""
    if isinstance(item.manifest, Cluster):
        return item.manifest
    meta = ObjectMeta.model_construct(
        name=item.name, namespace=item.namespace, uid=item.uid, generation=item.generation
    )
    return Cluster(metadata=meta)


def obstacle(item: Item, live: Live) -> ConditionReport | None:
    """Return why a Cluster has no usable spec; None if it has one.

    This happens if no accepted spec is known, and the spec in the manifest is invalid or, for a running Cluster, not
    confirmed.
    """
    sets = live.stateful_sets()
    if accepted_spec(sets) is not None:
        return None
    if item.manifest is None:
        return ConditionReport("False", "Invalid", item.error)
    return _confirmation(unconfirmed(None, named(item), item.annotations)) if sets else None


def carried_out(item: Item, live: Live) -> tuple[Cluster, ConditionReport | None]:
    """Return the Cluster with its accepted spec, and the condition Confirmed if an edit is not confirmed.

    During a pause, and while an edit is not confirmed or is invalid, the accepted spec is the previous one.
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
    """Return whether the accepted spec may differ from the manifest: its status says so, or is out of date."""
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
    """Return the result of `accepted_cluster`; read the StatefulSets if they matter.

    Raises:
        ApiError: they cannot be read now.
    """
    sets = []
    if may_wait(item):
        chosen = f"{names.LABEL_CLUSTER}={item.name}"
        sets = await api.list(STATEFUL_SETS, item.namespace, labels=chosen)
    return accepted_cluster(item, sets)


def accepted_cluster(item: Item, sets: Iterable[Json]) -> Cluster | None:
    """Return a Cluster with its accepted spec, for code outside its own reconcile; None if no usable spec is known.

    *sets* are the StatefulSets with the Cluster's label, possibly including those of a former Cluster.
    """
    cluster = named(item)
    live = Live()
    for found in sets:
        if not is_former(cluster.metadata, found):
            live.put({**found, "kind": STATEFUL_SETS.kind})
    return None if obstacle(item, live) else carried_out(item, live)[0]


def with_pull_secrets(manifest: Pulling, default: Sequence[str]) -> Pulling:
    """Return *manifest* with the operator's pull Secrets if it names none; they must exist in its namespace."""
    if manifest.spec.image_pull_secrets or not default:
        return manifest
    return manifest.with_spec(image_pull_secrets=list(default))


def with_tls_step(cluster: Cluster, live: Live) -> tuple[Cluster, str]:
    """Return *cluster* with the TLS mode of its next pods, and what the desired mode waits for; empty if nothing.

    Pods with Disabled and pods with Enforcing cannot connect to each other, and any pod may restart at any time. A pod
    therefore gets one of these modes only after the last pod with the other one is gone; until then, new pods are
    Permissive.
    """
    wanted = cluster.spec.tls
    obstacle = next(_tls_obstacles(wanted.mode, live), "")
    has_pair = wanted.secret_name is not None or wanted.mode == "Disabled"
    if not obstacle or not has_pair:
        return cluster, ""
    # A spec with mode Disabled may no longer name the key pair, so its name is taken from existing pods.
    made = [access_to(each["spec"]["template"]) for each in live.stateful_sets()]
    made += [pod.access for pod in live.pods.values()]
    named = (each.tls_secret for each in made if each is not None and each.tls_secret)
    secret = wanted.secret_name or next(named, None)
    tls = wanted.model_copy(update={"mode": "Permissive", "secret_name": secret})
    text = f"tls.mode {wanted.mode} waits until every pod runs with Permissive: {obstacle}"
    return cluster.with_spec(tls=tls), text


def _tls_obstacles(mode: str, live: Live) -> Iterator[str]:
    """Yield the reasons why pods cannot be made with *mode* yet."""
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
            yield f"Kubernetes may still create pods of {name} from the previous template"


def image_of(cluster: Cluster, live: Live, default: str) -> str:
    """Return the image of the pods; a new operator with another *default* does not change running pods."""
    if cluster.spec.image is not None:
        return cluster.spec.image
    sets = live.stateful_sets()
    if not sets or cluster.spec.update.on_operator_upgrade == "Adopt":
        return default
    # Every StatefulSet has the annotation, so that it survives the deletion of one of them.
    notes = (
        (each["metadata"].get("annotations") or {}).get(names.ANNOTATION_IMAGE) for each in sets
    )
    # An operator of an earlier version wrote no annotation.
    return str(
        next(filter(None, notes), None)
        or sets[0]["spec"]["template"]["spec"]["containers"][0]["image"]
    )
