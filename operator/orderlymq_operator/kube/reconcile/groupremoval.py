"""
Raft groups that are to be removed: whether they may go, what still holds them, and their removal.

Rules: a group is removed only on proof that nothing in it is needed. No queue of an Ordered topic is in it, it takes no
more messages, and it holds none. Until then everything about it stays, and a higher spec.groups keeps it. The highest
group goes first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from orderlymq_operator.brokers.admin import AdminError
from orderlymq_operator.kube.api import Api, must_have_read
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

_NAMED_MAX: Final = 5  # in a sentence


def planned_groups(cluster: Cluster, live: Live) -> tuple[str, ...]:
    """Return the groups that the planner keeps: those that are wanted, and those that still stand."""
    counts = (
        count
        for count in range(GROUPS_MAX, cluster.spec.groups, -1)
        if live.find(STATEFUL_SETS, cluster.group_name(count - 1)) is not None
    )
    # From the highest: one between them may be gone, or was never made.
    return cluster.with_spec(groups=next(counts, cluster.spec.groups)).group_names


def surplus_groups(cluster: Cluster, live: Live) -> tuple[str, ...]:
    """Return the groups that are to be emptied and taken away; none where the policy refuses."""
    if cluster.spec.scale_down.policy == "Refuse":
        return ()
    return planned_groups(cluster, live)[cluster.spec.groups :]


def with_standing_groups(desired: Desired, live: Live) -> Desired:
    """Return *desired* with every group that still stands, and with those that are to go marked as draining."""
    cluster = desired.cluster
    return replace(
        desired,
        cluster=cluster.with_spec(groups=len(planned_groups(cluster, live))),
        draining=frozenset(surplus_groups(cluster, live)),
    )


def blocked(item: Item, accepted: Cluster, live: Live) -> ConditionReport | None:
    """Return the condition of a Cluster that has groups above its spec; None once they have gone, and not before.

    That counts for an edit, too, that is not *accepted* yet: nobody may take its groups for gone.
    """
    cluster = item.manifest if isinstance(item.manifest, Cluster) else accepted
    present = planned_groups(cluster, live)
    if len(present) == cluster.spec.groups:
        return None
    if cluster.spec.scale_down.policy == "Drain":
        return ConditionReport("True", "Draining", f"{present[-1]} is to be emptied")
    text = (
        f"{len(present)} groups exist, spec.groups is {cluster.spec.groups}; "
        "their queues hold messages"
    )
    return ConditionReport("True", "PolicyRefuses", text)


def ordered_topics(group: str, observed: Observed) -> list[str]:
    """Return the Ordered topics that have queues in a group."""
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
    """Say what a group still holds."""
    shown = sorted(retained.items(), key=lambda held: -held[1])[:_NAMED_MAX]
    return f"{group} still holds " + ", ".join(f"{count} of {topic}" for topic, count in shown)


async def settle(
    api: Api, backend: KubeBackend, surplus: Sequence[str], found: Findings, observed: Observed
) -> int:
    """Take one step with groups that are to go or to stay; return how many changes were made.

    Raises:
        AdminError: a group does not answer now.
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
        text = f"queues of Ordered topics stand in {group}: {named}"
        found.scale_down = ConditionReport("True", "OrderedQueues", text)
        return count
    if growing := sorted(topics_under_way(observed.groups)):
        # Its expansion may have begun before, with queues that are to stand here.
        text = f"{group} waits until the queue list of {growing[0]} has grown"
        found.scale_down = ConditionReport("True", "OrderedQueues", text)
        return count
    found.draining = frozenset({group})
    found.step = ("DrainGroup", f"emptying {group}")
    if not _is_closed(backend.live, group):
        await _mark(backend, group, closed=True)
        count += 1
    api.must_lead()
    # Each time: the mark alone closes nothing, and who commits this leads, so that its next report is not old.
    await backend.admin.set_writable(backend.group_address(group), writable=False)
    tables = observed.groups.get(group)
    if tables is None or tables.topics is None:
        raise AdminError(f"group {group} does not answer; it is not taken away")
    retained = await backend.admin.retained(backend.group_address(group))
    if retained:
        found.scale_down = ConditionReport("True", "Draining", held_text(group, retained))
        return count
    if backend.desired.cluster.spec.storage.delete_claim == "Retain":
        # Should it come back, accounts of Users that are deleted meanwhile must not be valid in it.
        address = backend.group_address(group)
        for key in await backend.admin.users(address):
            api.must_lead()
            await backend.admin.delete_user(address, key)
    await _remove(api, backend, group)
    return count + 1


async def _reopen(backend: KubeBackend, surplus: Sequence[str]) -> int:
    """Let groups take messages that were to go, or had gone, and are wanted again; those without a leader later."""
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
    # The StatefulSet last: while it stands the group is known to be on its way out.
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
