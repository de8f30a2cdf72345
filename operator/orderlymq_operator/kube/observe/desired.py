"""
From custom resources to `Desired`: what belongs to a Cluster, what of it cannot be, what must disappear.

Pure. Rules: of two objects that declare the same name the oldest wins and the other is told so; an object that is being
deleted is wanted no more, and with deletionPolicy Delete what it stands for must go first.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from orderlymq_operator.kube.objects.names import FINALIZER
from orderlymq_operator.kube.observe.inventory import Item
from orderlymq_operator.plan.actions import ConditionReport, Subject
from orderlymq_operator.resources.kinds import (
    Cluster,
    ConsumerGroup,
    Desired,
    Resource,
    Topic,
    User,
)

MESSAGE_MAX: Final = 1024  # of a condition, in the schema


@dataclass(slots=True)
class DesiredState:
    """What the objects of one Cluster want.

    Attributes:
        subjects: each object by the name that the planner knows it under.
        verdicts: objects that are left alone, and why.
        leaving: objects that are being deleted and whose finalizer waits for the brokers.
    """

    desired: Desired
    subjects: dict[Subject, Item] = field(default_factory=dict)
    verdicts: dict[Subject, ConditionReport] = field(default_factory=dict)
    leaving: list[Item] = field(default_factory=list)


def subject_of(item: Item) -> Subject:
    """Return the name under which the planner knows an object: unique over namespaces."""
    if item.kind == "Cluster":
        return Subject(item.kind, item.name)
    return Subject(item.kind, f"{item.namespace}/{item.name}")


def desired_state(cluster: Cluster, parts: Iterable[Item]) -> DesiredState:
    """Return what *cluster* and its *parts*, the oldest of a kind first, want."""
    found: dict[str, list[Any]] = {"Topic": [], "ConsumerGroup": [], "User": []}
    gone: dict[str, set[str]] = {"Topic": set(), "ConsumerGroup": set(), "User": set()}
    claimed: dict[tuple[str, str], Item] = {}
    wish = DesiredState(Desired(cluster))
    for item in parts:
        if item.deleting_since is not None:
            if FINALIZER in item.finalizers:
                wish.leaving.append(item)
            continue
        subject = subject_of(item)
        wish.subjects[subject] = item
        if item.manifest is None:
            wish.verdicts[subject] = ConditionReport("False", "Invalid", item.error[:MESSAGE_MAX])
            continue
        name = declared_name(item.manifest)
        winner = claimed.setdefault((item.kind, name), item)
        if winner is not item:
            text = (
                f"{item.kind} {winner.namespace}/{winner.name} is older and declares {name!r}, too"
            )
            wish.verdicts[subject] = ConditionReport("False", "Conflict", text)
            continue
        found[item.kind].append(_renamed(item.manifest, subject.name))
    for item in wish.leaving:
        # Another object may have taken the name over: then nothing is deleted.
        if item.manifest is not None and must_delete(item.manifest):
            name = declared_name(item.manifest)
            if (item.kind, name) not in claimed:
                gone[item.kind].add(name)
    wish.desired = Desired(
        cluster,
        tuple(found["Topic"]),
        tuple(found["ConsumerGroup"]),
        frozenset(gone["Topic"]),
        frozenset(gone["ConsumerGroup"]),
        tuple(found["User"]),
        frozenset(gone["User"]),
    )
    return wish


def declared_name(manifest: Resource) -> str:
    """Return the name that clients use."""
    match manifest:
        case Topic():
            return manifest.topic_name
        case ConsumerGroup():
            return manifest.group_name
        case User():
            return manifest.access_key
        case _:
            return manifest.metadata.name


def must_delete(manifest: Resource) -> bool:
    """Tell whether deleting the object deletes something in the brokers: the only use of a finalizer."""
    match manifest:
        case Topic() | ConsumerGroup():
            return manifest.spec.deletion_policy == "Delete"
        case User():
            return True
        case _:
            return False


def _renamed(manifest: Resource, name: str) -> Resource:
    """Return the manifest under a name that is unique over namespaces, clients' name unchanged."""
    spec: Any = manifest.spec
    match manifest:
        case Topic():
            spec = manifest.spec.model_copy(update={"topic_name": manifest.topic_name})
        case ConsumerGroup():
            spec = manifest.spec.model_copy(update={"group_name": manifest.group_name})
        case User():
            spec = manifest.spec.model_copy(update={"access_key": manifest.access_key})
    meta = manifest.metadata.model_copy(update={"name": name})
    return manifest.model_copy(update={"metadata": meta, "spec": spec})
