"""
Which spec, image and pull secrets of a Cluster are carried out: an edit may wait for its confirmation, or for the end of a pause.

An edit that cannot be used waits for its correction: the Cluster that runs goes on with the spec before.

Pure. What waits for a confirmation is decided in `plan.guard`.
"""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.cluster import (
    accepted_spec,
)
from orderlymq_operator.kube.objects.pods import is_former
from orderlymq_operator.kube.observe.cluster import Live
from orderlymq_operator.kube.observe.desired import MESSAGE_MAX
from orderlymq_operator.kube.observe.inventory import Item
from orderlymq_operator.kube.resources import STATEFUL_SETS, Json
from orderlymq_operator.plan.actions import (
    ConditionReport,
)
from orderlymq_operator.plan.guard import unconfirmed
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


def is_unusable(item: Item, live: Live) -> bool:
    """Return whether the spec of a Cluster cannot be used, and none before it is known to be carried out."""
    name = names.name_server_set(named(item))
    return item.manifest is None and accepted_spec(live.find(STATEFUL_SETS, name)) is None


def carried_out(item: Item, live: Live) -> tuple[Cluster, ConditionReport | None]:
    """Return the Cluster with the spec that is carried out, and the condition Confirmed where an edit lacks it.

    In a pause, and while an edit is not confirmed or cannot be used, that is the spec before.
    """
    cluster = named(item)
    spec = accepted_spec(live.find(STATEFUL_SETS, names.name_server_set(cluster)))
    if spec is None:
        return cluster, None
    before = cluster.model_copy(update={"spec": spec})
    if item.manifest is None:
        return before, None
    acts = unconfirmed(before, cluster, item.annotations)
    report = None
    if acts:
        text = "; ".join(f"{act.name}: {act.text}; {act.advice}" for act in acts)
        report = ConditionReport("False", "ConfirmationMissing", text[:MESSAGE_MAX])
    held = bool(acts) or item.annotations.get(names.ANNOTATION_PAUSE) == "true"
    return before if held else cluster, report


def last_usable(item: Item, sets: Iterable[Json]) -> Cluster | None:
    """Return a Cluster as its spec says; where that cannot be used, with the one that is carried out.

    None where no such spec is known. *sets* are the StatefulSets of that name, also of a former Cluster.
    """
    if isinstance(item.manifest, Cluster):
        return item.manifest
    cluster = named(item)
    name = names.name_server_set(cluster)
    own = [
        found
        for found in sets
        if found["metadata"]["name"] == name and not is_former(cluster.metadata, found)
    ]
    spec = accepted_spec(own[0]) if own else None
    return None if spec is None else cluster.model_copy(update={"spec": spec})


def with_pull_secrets(manifest: Pulling, default: Sequence[str]) -> Pulling:
    """Return *manifest* with the operator's pull secrets where it names none; they must be in its namespace."""
    if manifest.spec.image_pull_secrets or not default:
        return manifest
    spec = manifest.spec.model_copy(update={"image_pull_secrets": list(default)})
    return manifest.model_copy(update={"spec": spec})


def image_of(cluster: Cluster, live: Live, default: str) -> str:
    """Return the image of the pods: a new operator with another *default* alone changes none that runs."""
    if cluster.spec.image is not None:
        return cluster.spec.image
    present = live.find(STATEFUL_SETS, cluster.group_name(0))
    if present is None or cluster.spec.update.on_operator_upgrade == "Adopt":
        return default
    kept = (present["metadata"].get("annotations") or {}).get(names.ANNOTATION_IMAGE)
    # An operator of an earlier version has left no note.
    return str(kept or present["spec"]["template"]["spec"]["containers"][0]["image"])
