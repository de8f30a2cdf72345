"""
Desired state of one Cluster, from its custom resources: what it has, what is refused, what must be deleted.

Pure. Rules: an object of a namespace that the Cluster does not allow wants nothing, holds no name and deletes nothing. Of
two objects that declare the same name the older one wins, and the other one reports Conflict. An object that is being
deleted is no longer desired; with deletionPolicy Delete the brokers delete first what it stands for, unless another
object declared that first, one that is not known may do so, or brokers keep the name for themselves. One that was refused
from its beginning has no finalizer, so it is not waited for.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from orderlymq_operator.kube.objects.names import FINALIZER
from orderlymq_operator.kube.observe.inventory import Item
from orderlymq_operator.plan import tenants
from orderlymq_operator.plan.actions import ConditionReport, Subject
from orderlymq_operator.resources.kinds import (
    NAME_FIELDS,
    Cluster,
    Desired,
    is_brokers_own,
    is_deleted_with,
)

MESSAGE_MAX: Final = 1024  # of a condition, in the schema
# Why Ready is False where another object declares what brokers hold under its name.
OTHER_OWNER: Final = "Conflict"


@dataclass(slots=True)
class DesiredState:
    """Desired state of the objects of one Cluster.

    Attributes:
        subjects: each object by the name that the planner knows it under.
        verdicts: objects that are left alone, and why.
        leaving: objects that are being deleted and whose finalizer waits for the brokers.
        unsure: UIDs of those for which nothing is deleted yet, because an object that is not known may declare the same.
        unlisted: objects, living or leaving, of namespaces that the Cluster does not allow.
    """

    desired: Desired
    subjects: dict[Subject, Item] = field(default_factory=dict)
    verdicts: dict[Subject, ConditionReport] = field(default_factory=dict)
    leaving: list[Item] = field(default_factory=list)
    unsure: set[str] = field(default_factory=set)
    unlisted: dict[Subject, Item] = field(default_factory=dict)


def subject_of(item: Item) -> Subject:
    """Return the name under which the planner knows an object: unique over namespaces."""
    if item.kind == "Cluster":
        return Subject(item.kind, item.name)
    return Subject(item.kind, f"{item.namespace}/{item.name}")


def desired_state(
    cluster: Cluster,
    parts: Iterable[Item],
    is_unsure: Callable[[Item], bool] = lambda _: False,
) -> DesiredState:
    """Return what *cluster* and its *parts*, the oldest of a kind first, want.

    *is_unsure* says whether an object that is not known may declare the same as one that leaves.
    """
    found: dict[str, list[Any]] = {kind: [] for kind in NAME_FIELDS}
    gone: dict[str, set[str]] = {kind: set() for kind in NAME_FIELDS}
    claimed: dict[tuple[str, str], Item] = {}
    state = DesiredState(Desired(cluster))
    for item in parts:
        if not tenants.allows(cluster, item.namespace):
            subject = subject_of(item)
            state.unlisted[subject] = item
            if item.deleting_since is None:
                state.subjects[subject] = item
                meta = cluster.metadata
                refusal = tenants.refusal(meta.name, meta.namespace or "", item.namespace)
                state.verdicts[subject] = refusal
            continue
        if item.deleting_since is not None:
            if leaves(item):
                state.leaving.append(item)
            continue
        subject = subject_of(item)
        state.subjects[subject] = item
        # Also one that cannot be used: what it declares is not another one's to change or to delete.
        winner = claimed.setdefault((item.kind, item.declared), item)
        if item.planned is None:
            state.verdicts[subject] = ConditionReport("False", "Invalid", item.error[:MESSAGE_MAX])
            continue
        if winner is not item:
            other = f"{item.kind} {winner.namespace}/{winner.name}"
            text = f"{other} is older and declares {item.declared!r}, too"
            state.verdicts[subject] = ConditionReport("False", OTHER_OWNER, text)
            continue
        found[item.kind].append(item.planned)
    for item in state.leaving:
        # Another object may have taken the name over: then nothing is deleted.
        if not deletes(item) or (item.kind, item.declared) in claimed or _was_refused(item):
            continue
        if item.kind == "Topic" and is_brokers_own(item.declared, cluster):
            continue
        if is_unsure(item):
            state.unsure.add(item.uid)
        else:
            gone[item.kind].add(item.declared)
    state.desired = Desired(
        cluster,
        tuple(found["Topic"]),
        tuple(found["ConsumerGroup"]),
        frozenset(gone["Topic"]),
        frozenset(gone["ConsumerGroup"]),
        tuple(found["User"]),
        frozenset(gone["User"]),
    )
    return state


def leaves(item: Item) -> bool:
    """Return whether an object is being deleted and its finalizer waits for the brokers."""
    return item.deleting_since is not None and FINALIZER in item.finalizers


def deletes(item: Item) -> bool:
    """Return whether what an object stands for is deleted in the brokers with it.

    An account is in any case. Whether the others are, a manifest that cannot be used does not say.
    """
    return item.kind == "User" if item.manifest is None else is_deleted_with(item.manifest)


def _was_refused(item: Item) -> bool:
    conditions = item.status.get("conditions") or []
    return any(each["type"] == "Ready" and each.get("reason") == OTHER_OWNER for each in conditions)
