"""
Desired state of one Cluster, from its custom resources: objects to have, objects to refuse, and names to delete.

Pure. Rules: an object in a namespace that the Cluster does not allow has no effect: it adds nothing, reserves no name
and deletes nothing. If two objects declare the same name, the older one has it and the other one reports Conflict. An
object that is being deleted is no longer desired. With deletionPolicy Delete, the brokers first delete the declared
topic, consumer group or user, unless another object declares it, an unknown object may declare it, or brokers reserve
the name. An object that was refused from its beginning has no finalizer, so its deletion does not wait.
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

MESSAGE_MAX: Final = 1024  # the limit of a condition's message in the schema
# The reason of Ready=False if another object declares the same name.
OTHER_OWNER: Final = "Conflict"


@dataclass(slots=True)
class DesiredState:
    """Desired state of the objects of one Cluster.

    Attributes:
        subjects: each object by the name that the planner uses for it.
        verdicts: objects that are refused, and why.
        leaving: objects that are being deleted and whose finalizer waits for the brokers.
        unsure: UIDs of leaving objects for which nothing is deleted yet, because an unknown object may declare the
            same.
        unlisted: objects, living or leaving, in namespaces that the Cluster does not allow.
    """

    desired: Desired
    subjects: dict[Subject, Item] = field(default_factory=dict)
    verdicts: dict[Subject, ConditionReport] = field(default_factory=dict)
    leaving: list[Item] = field(default_factory=list)
    unsure: set[str] = field(default_factory=set)
    unlisted: dict[Subject, Item] = field(default_factory=dict)


def subject_of(item: Item) -> Subject:
    """Return the name that the planner uses for an object; it is unique over namespaces."""
    if item.kind == "Cluster":
        return Subject(item.kind, item.name)
    return Subject(item.kind, f"{item.namespace}/{item.name}")


def desired_state(
    cluster: Cluster,
    parts: Iterable[Item],
    is_unsure: Callable[[Item], bool] = lambda _: False,
) -> DesiredState:
    """Return the desired state of *cluster* from it and its *parts*, which are sorted by age, oldest of a kind first.

    *is_unsure* returns whether an unknown object may declare the same name as a leaving object.
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
        # An invalid object also reserves its name: another object must not change or delete what it declares.
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
        # If another object declares the name now, nothing is deleted.
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
    """Return whether the brokers delete the declared topic, consumer group or user together with the object.

    Users are always deleted, topics and consumer groups only if the manifest is valid and says so.
    """
    return item.kind == "User" if item.manifest is None else is_deleted_with(item.manifest)


def _was_refused(item: Item) -> bool:
    conditions = item.status.get("conditions") or []
    return any(each["type"] == "Ready" and each.get("reason") == OTHER_OWNER for each in conditions)
