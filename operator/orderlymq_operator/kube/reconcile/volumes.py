"""
Volumes: expands them as spec.storage says, and deletes those of removed replicas.

Rule: a claim is deleted only if its number is above the planned number of replicas, no pod uses it, and the leader
reports that the replica is not a member. All other claims are left to people.
"""

from collections.abc import Iterable
from decimal import Decimal

from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.errors import ApiError, RetryLaterError
from orderlymq_operator.kube.observe.cluster import Live
from orderlymq_operator.kube.observe.desired import MESSAGE_MAX
from orderlymq_operator.kube.observe.pods import ClaimFacts
from orderlymq_operator.kube.reconcile.backend import KubeBackend
from orderlymq_operator.kube.reconcile.status import Findings
from orderlymq_operator.kube.resources import CLAIMS, STORAGE_CLASSES
from orderlymq_operator.plan.actions import ConditionReport
from orderlymq_operator.plan.volumes import (
    Volume,
    growth_of,
    is_exhausted,
    size_text,
    wanted_size,
)
from orderlymq_operator.resources.kinds import Cluster
from orderlymq_operator.resources.quantities import quantity


async def settle(backend: KubeBackend, found: Findings) -> int:
    """Expand volumes and delete those of removed replicas; return the number of changes.

    Raises:
        ApiError: the API server refused something other than growth, or does not answer.
    """
    count = await _settle_sizes(backend, found)
    # Deletions come last, so that a failed deletion does not affect the other volumes.
    return count + await _remove_former(backend)


async def _settle_sizes(backend: KubeBackend, found: Findings) -> int:
    """Expand volumes, and set the condition StorageReady; return the number of changes."""
    count = 0
    found.storage = await _unbound(backend) or _deleted(backend)
    cluster = backend.desired.cluster
    wanted = wanted_sizes(cluster, backend.live, backend.environment.groups)
    small = [
        claim
        for group, size in wanted.items()
        for claim in small_claims(backend.live, (group,), size)
    ]
    exhausted = _exhausted(cluster, backend.live, backend.environment.groups)
    if exhausted and found.storage is None:
        found.storage = ConditionReport("False", "GrowthLimitReached", exhausted)
    pending = [
        claim
        for group in backend.environment.groups
        for claim in backend.live.claims_of(group).values()
        if claim.phase == "Bound" and _size(claim.capacity) < _size(claim.requested)
    ]
    if not small:
        if pending:
            # A growth that needs a person comes before one that completes by itself.
            first = next((claim for claim in pending if claim.waits_for), pending[0])
            text = f"{first.name} has {first.capacity} of {first.requested}"
            text += f": {first.waits_for}" if first.waits_for else ""
            found.storage = ConditionReport("False", "Resizing", text[:MESSAGE_MAX])
        elif found.storage is None:
            found.storage = await _never_grows(backend)
        return count
    classes = {claim.class_name for claim in small}
    allowed = {name: await _expandable(backend.api, name) for name in classes}
    fixed = [claim for claim in small if not allowed[claim.class_name]]
    if fixed:
        size = wanted[_group_of(fixed[0])]
        text = f"StorageClass {fixed[0].class_name!r} does not let {fixed[0].name} grow to {size}"
        found.storage = ConditionReport("False", "NotExpandable", text)
    for claim in small:
        if allowed[claim.class_name]:
            size = wanted[_group_of(claim)]
            found.storage = await _grow(backend.api, cluster.metadata.namespace, claim, size)
            if found.storage.reason == "GrowthRefused":
                break
            count += 1
    return count


async def settle_claim(
    api: Api, namespace: str | None, claim: ClaimFacts, size: str
) -> ConditionReport | None:
    """Expand a claim to *size*; return the condition, or None if there is nothing to do.

    Raises:
        RetryLaterError: the API server does not answer.
    """
    if not _is_small(claim, size):
        return None
    if not await _expandable(api, claim.class_name):
        text = f"StorageClass {claim.class_name!r} does not let {claim.name} grow to {size}"
        return ConditionReport("False", "NotExpandable", text)
    return await _grow(api, namespace, claim, size)


async def _grow(api: Api, namespace: str | None, claim: ClaimFacts, size: str) -> ConditionReport:
    change = {"spec": {"resources": {"requests": {"storage": size}}}}
    try:
        await api.patch(CLAIMS, namespace, claim.name, change)
    except RetryLaterError:
        raise
    except ApiError as error:
        text = f"{claim.name} cannot grow from {claim.requested} to {size}: {error}"
        return ConditionReport("False", "GrowthRefused", text[:MESSAGE_MAX])
    text = f"{claim.name} grows from {claim.requested} to {size}"
    return ConditionReport("False", "Resizing", text)


async def _never_grows(backend: KubeBackend) -> ConditionReport | None:
    """Report a volume that cannot grow as storage.autoGrow requires, before its disk is full; None if all can."""
    growth = backend.desired.cluster.spec.storage.auto_grow
    if growth is None:
        return None
    claims = {
        claim.class_name: claim.name
        for group in backend.environment.groups
        for claim in backend.live.claims_of(group).values()
        if claim.phase == "Bound" and _size(claim.requested) < growth.limit.size_bytes
    }
    for name, claim in sorted(claims.items()):
        if not await _expandable(backend.api, name):
            text = f"StorageClass {name!r} does not let {claim} grow, as storage.autoGrow requires"
            return ConditionReport("False", "NotExpandable", text)
    return None


def wanted_sizes(cluster: Cluster, live: Live, groups: Iterable[str]) -> dict[str, str]:
    """Return the desired size of the volumes of each raft group."""
    storage, growth = cluster.spec.storage, growth_of(cluster)
    found = {}
    for group in groups:
        size = wanted_size(storage.size.size_bytes, growth, _volumes(live, group))
        found[group] = str(storage.size) if size == storage.size.size_bytes else size_text(size)
    return found


def _exhausted(cluster: Cluster, live: Live, groups: Iterable[str]) -> str:
    """Return a message about a raft group whose volumes fill and have reached their limit; empty if there is none."""
    storage = cluster.spec.storage
    growth = growth_of(cluster)
    if growth is None:
        return ""
    for group in groups:
        if is_exhausted(storage.size.size_bytes, growth, _volumes(live, group)):
            return (
                f"a disk of {group} is more than {growth.threshold} % full, and its volumes have reached "
                f"the limit of {growth.limit}"
            )
    return ""


def _volumes(live: Live, group: str) -> list[Volume]:
    used = {f"data-{pod}": status.disk_used for pod, status in live.statuses.items()}
    return [
        Volume(int(_size(claim.requested)), int(_size(claim.capacity)), used.get(claim.name))
        for claim in live.claims_of(group).values()
        if not claim.deleting
    ]


def _group_of(claim: ClaimFacts) -> str:
    return claim.name.removeprefix("data-").rpartition("-")[0]


def small_claims(live: Live, groups: Iterable[str], wanted: str) -> list[ClaimFacts]:
    """Return the claims of *groups* that must grow to *wanted*; only bound ones, because others cannot change."""
    return [
        claim
        for group in groups
        for claim in live.claims_of(group).values()
        if _is_small(claim, wanted)
    ]


def _is_small(claim: ClaimFacts, wanted: str) -> bool:
    smaller = _size(claim.requested) < _size(wanted)
    return smaller and claim.phase == "Bound" and not claim.deleting


async def _unbound(backend: KubeBackend) -> ConditionReport | None:
    """Report a volume that is not bound because its StorageClass does not exist; None if there is none."""
    claims = sorted(backend.live.claims.values(), key=lambda claim: claim.name)
    waiting = {
        claim.class_name: claim.name for claim in reversed(claims) if claim.phase == "Pending"
    }
    for name, claim in waiting.items():
        if name and await backend.api.get(STORAGE_CLASSES, None, name) is None:
            text = f"{claim} waits: there is no StorageClass {name!r}"
            return ConditionReport("False", "VolumePending", text)
    return None


def _deleted(backend: KubeBackend) -> ConditionReport | None:
    """Report a volume whose claim was deleted, so that it disappears together with its pod; None if none was."""
    for group, form in backend.environment.groups.items():
        if claim := backend.live.deleted_claim(group, form.replicas):
            text = f"{claim.name} was deleted: Kubernetes keeps it while its pod runs; after that, the replica begins empty"
            return ConditionReport("False", "ClaimDeleted", text)
    return None


async def _remove_former(backend: KubeBackend) -> int:
    count = 0
    for group, form in backend.environment.groups.items():
        leader = backend.live.leader(group)
        if leader is None:
            continue
        status = backend.live.statuses[leader.name]
        members = (status.voters or frozenset()) | (status.learners or frozenset())
        pods = backend.live.group_pods(group)
        for node, claim in backend.live.claims_of(group).items():
            surplus = node > form.replicas and status.voters is not None and node not in members
            if surplus and node not in pods and not claim.deleting:
                namespace = backend.desired.cluster.metadata.namespace
                await backend.api.delete(CLAIMS, namespace, claim.name, uid=claim.uid)
                count += 1
    return count


async def _expandable(api: Api, name: str) -> bool:
    found = await api.get(STORAGE_CLASSES, None, name) if name else None
    return bool((found or {}).get("allowVolumeExpansion"))


def _size(text: str) -> Decimal:
    return quantity(text) or Decimal(0)
