"""
The removal of raft groups: whether they may be removed, and what still keeps them.

Rules: a raft group is removed only on proof that nothing in it is needed: it has no queue of an Ordered topic, accepts
no messages, and retains none. Until then all of its objects stay, and a higher spec.groups keeps it. The raft group
with the highest number is removed first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from orderlymq_operator.brokers.admin import AdminError
from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.cachedstate import must_have_read
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.observe.cluster import Live
from orderlymq_operator.kube.observe.inventory import Item
from orderlymq_operator.kube.reconcile.backend import KubeBackend
from orderlymq_operator.kube.reconcile.status import Findings
from orderlymq_operator.kube.resources import (
    BUDGETS,
    CLAIMS,
    CONFIG_MAPS,
    SERVICES,
    STATEFUL_SETS,
)
from orderlymq_operator.plan.actions import ConditionReport, Observed
from orderlymq_operator.plan.expansion import topics_under_way
from orderlymq_operator.plan.refusals import published_layout
from orderlymq_operator.resources.cluster.status import GROUPS_MAX
from orderlymq_operator.resources.kinds import Cluster, Desired

_NAMED_MAX: Final = 5  # in a message


def planned_groups(cluster: Cluster, live: Live) -> tuple[str, ...]:
    """Return the raft groups that the planner keeps: those in the spec, and those that still exist."""
    counts = (
        count
        for count in range(GROUPS_MAX, cluster.spec.groups, -1)
        if live.find(STATEFUL_SETS, cluster.group_name(count - 1)) is not None
    )
    # Search from the highest number, because one in between may be gone or was never made.
    return cluster.with_spec(groups=next(counts, cluster.spec.groups)).group_names


def surplus_groups(cluster: Cluster, live: Live) -> tuple[str, ...]:
    """Return the raft groups to empty and remove; empty if the policy is Refuse."""
    if cluster.spec.scale_down.policy == "Refuse":
        return ()
    return planned_groups(cluster, live)[cluster.spec.groups :]


def with_standing_groups(desired: Desired, live: Live) -> Desired:
    """Return *desired* with every raft group that still exists, and with those to remove marked as draining."""
    cluster = desired.cluster
    return replace(
        desired,
        cluster=cluster.with_spec(groups=len(planned_groups(cluster, live))),
        draining=frozenset(surplus_groups(cluster, live)),
    )


def blocked(item: Item, accepted: Cluster, live: Live) -> ConditionReport | None:
    """Return the condition ScaleDownBlocked of a Cluster with raft groups above its spec; None once they are gone.

    The spec is that of the manifest, even if it is not *accepted* yet, so that no user believes that they are gone
    already.
    """
    cluster = item.manifest if isinstance(item.manifest, Cluster) else accepted
    present = planned_groups(cluster, live)
    if len(present) == cluster.spec.groups:
        return None
    if cluster.spec.scale_down.policy == "Drain":
        return ConditionReport("True", "Draining", f"{present[-1]} waits to be emptied")
    text = (
        f"{len(present)} groups exist, spec.groups is {cluster.spec.groups}; "
        "their queues hold messages"
    )
    return ConditionReport("True", "PolicyRefuses", text)


def ordered_topics(group: str, observed: Observed) -> list[str]:
    """Return the Ordered topics that have queues in a raft group."""
    published = {
        topic for server in observed.name_servers.values() for topic in server.order_config or {}
    }
    found = observed.groups.get(group)
    present = {} if found is None or found.topics is None else found.topics
    return sorted(
        {topic for topic in published if (published_layout(topic, observed) or {}).get(group)}
        | {topic for topic, config in present.items() if config.order and config.queues}
    )


def held_text(group: str, retained: Mapping[str, int]) -> str:
    """Return a sentence about the messages that a raft group retains, by topic."""
    shown = sorted(retained.items(), key=lambda held: -held[1])[:_NAMED_MAX]
    return f"{group} still holds " + ", ".join(f"{count} of {topic}" for topic, count in shown)


async def settle(
    api: Api, backend: KubeBackend, surplus: Sequence[str], found: Findings, observed: Observed
) -> int:
    """Take one step of closing, removing or reopening raft groups; return the number of changes.

    Raises:
        AdminError: a raft group does not answer now.
        ApiError: the API server refused.
    """
    count = await _reopen(backend, surplus)
    if not surplus:
        return count
    must_have_read()
    group = surplus[-1]
    blockers = ordered_topics(group, observed)
    if blockers:
        named = ", ".join(blockers[:_NAMED_MAX])
        text = f"{group} has queues of Ordered topics: {named}"
        found.scale_down = ConditionReport("True", "OrderedQueues", text)
        return count
    if growing := sorted(topics_under_way(observed.groups)):
        # The expansion may have begun earlier, with queues that it will place in this raft group.
        text = f"{group} waits until the expansion of {growing[0]} has ended"
        found.scale_down = ConditionReport("True", "OrderedQueues", text)
        return count
    found.draining = frozenset({group})
    found.step = ("DrainGroup", f"emptying {group}")
    if not _is_closed(backend.live, group):
        await _mark(backend, group, closed=True)
        count += 1
    api.must_lead()
    # Sent each time: the annotation alone closes nothing, and only a current leader can commit this, so its next report
    # is not out of date.
    await backend.admin.set_writable(backend.group_address(group), writable=False)
    tables = observed.groups.get(group)
    if tables is None or tables.topics is None:
        raise AdminError(f"group {group} does not answer; it is not removed")
    retained = await backend.admin.retained(backend.group_address(group))
    if retained:
        found.scale_down = ConditionReport("True", "Draining", held_text(group, retained))
        return count
    if backend.desired.cluster.spec.storage.delete_claim == "Retain":
        # If the raft group comes back later, accounts of Users that were deleted meanwhile must not be valid in it.
        address = backend.group_address(group)
        for key in await backend.admin.users(address):
            api.must_lead()
            await backend.admin.delete_user(address, key)
    await _remove(api, backend, group)
    return count + 1


async def _reopen(backend: KubeBackend, surplus: Sequence[str]) -> int:
    """Reopen closed raft groups that should stay, those without a leader later; return how many were reopened."""
    count = 0
    for group in backend.environment.groups:
        if group in surplus or backend.live.leader(group) is None:
            continue
        if _is_closed(backend.live, group):
            must_have_read()
            backend.api.must_lead()
            await backend.admin.set_writable(backend.group_address(group), writable=True)
            await _mark(backend, group, closed=False)
            count += 1
    return count


async def _mark(backend: KubeBackend, group: str, *, closed: bool) -> None:
    change = {"metadata": {"annotations": {names.ANNOTATION_CLOSED: "true" if closed else None}}}
    namespace = backend.desired.cluster.metadata.namespace
    found = await backend.api.patch(STATEFUL_SETS, namespace or "", group, change)
    backend.live.put(found)


def _is_closed(live: Live, group: str) -> bool:
    present = live.find(STATEFUL_SETS, group)
    notes = {} if present is None else present["metadata"].get("annotations") or {}
    return notes.get(names.ANNOTATION_CLOSED) == "true"


async def _remove(api: Api, backend: KubeBackend, group: str) -> None:
    cluster = backend.desired.cluster
    namespace = cluster.metadata.namespace or ""
    # The StatefulSet is deleted last: while it exists, the operator knows that the raft group is being removed.
    for resource, name in (
        (SERVICES, group),
        (SERVICES, names.replica_service(group)),
        (CONFIG_MAPS, group),
        (BUDGETS, group),
        (STATEFUL_SETS, group),
    ):
        if (found := backend.live.find(resource, name)) is not None:
            await api.delete(resource, namespace, name, uid=found["metadata"]["uid"])
    if cluster.spec.storage.delete_claim == "Delete":
        for claim in backend.live.claims_of(group).values():
            await api.delete(CLAIMS, namespace, claim.name, uid=claim.uid)
