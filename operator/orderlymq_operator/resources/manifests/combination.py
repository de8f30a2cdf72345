"""
The desired state of one cluster, from its manifests and the present state.

`combine` merges the resources as `kubectl apply` does: what a file does not mention stays as it was. It checks what
only the whole can show, and reports all problems together.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, TypeVar

from pydantic.alias_generators import to_camel

from orderlymq_operator.resources.kinds import (
    NAME_FIELDS,
    Backup,
    Cluster,
    ConsumerGroup,
    Desired,
    Pipeline,
    Resource,
    ScheduledBackup,
    Topic,
    User,
    Using,
    declared_name,
    is_brokers_own,
    is_deleted_with,
)
from orderlymq_operator.resources.manifests.problems import ManifestError, Problem
from orderlymq_operator.resources.manifests.reader import Manifest

_CALLED: Final = {"Topic": "topic", "ConsumerGroup": "consumer group", "User": "access key"}
R = TypeVar("R", Topic, ConsumerGroup, User)


class OtherClusterError(ManifestError):
    """The manifests belong to another cluster than the data directory."""


def combine(
    manifests: Sequence[Manifest], present: Desired | None, *, prune: bool = False
) -> Desired:
    """Merge *manifests* into the present desired state, and check what only the whole can show.

    Pipelines were checked when they were read. They are left out here, because `orderlymq pipeline run` runs them and
    not the local backend.

    Args:
        manifests: the manifests just read.
        present: the desired state before, or None for a new cluster.
        prune: whether resources that are not in *manifests* are removed.

    Raises:
        OtherClusterError: *present* is another cluster.
        ManifestError: no cluster, two clusters, a reference to a missing one, a name used twice, what only Kubernetes
            can do, or *prune* without a manifest.
    """
    manifests = [each for each in manifests if not isinstance(each.resource, Pipeline)]
    if prune and not manifests:
        text = "--prune without a manifest would remove everything; name the files of the manifests to keep"
        raise ManifestError([Problem("manifests", 1, "", text)])
    cluster = _only_cluster(manifests, present)
    if present is not None and present.cluster.metadata.name != cluster.metadata.name:
        raise OtherClusterError(
            [
                manifest.problem(
                    "metadata.name",
                    f"the data directory belongs to Cluster {present.cluster.metadata.name!r}; "
                    "choose another --data-dir for this one",
                )
                for manifest in manifests
                if isinstance(manifest.resource, Cluster)
            ]
        )
    wanted = {manifest.identity: manifest for manifest in manifests}
    kept: tuple[Resource, ...] = (
        ()
        if present is None or prune
        else (*present.topics, *present.consumer_groups, *present.users)
    )
    resources: list[Manifest] = [Manifest(resource, "(applied before)", 0) for resource in kept]
    resources = [known for known in resources if known.identity not in wanted]
    resources += wanted.values()
    problems = (
        _only_kubernetes(manifests) + _dangling(resources, cluster) + _shared_names(resources)
    )
    if problems:
        raise ManifestError(problems)

    found = [manifest.resource for manifest in resources]

    def of(kind: type[R]) -> tuple[R, ...]:
        return tuple(sorted((each for each in found if isinstance(each, kind)), key=declared_name))

    desired = Desired(cluster, of(Topic), of(ConsumerGroup), users=of(User))
    return _with_deletions(desired, present)


def _with_deletions(desired: Desired, present: Desired | None) -> Desired:
    """Record what must be deleted until it is deleted, so that a crash in between does not lose it."""
    if present is None:
        return desired
    return replace(
        desired,
        # A manifest must not delete topics that brokers reserve, although an earlier version accepted such a
        # manifest.
        deleted_topics=frozenset(
            name
            for name in _gone(present.topics, present.deleted_topics, desired.topics)
            if not is_brokers_own(name, desired.cluster)
        ),
        deleted_consumer_groups=_gone(
            present.consumer_groups, present.deleted_consumer_groups, desired.consumer_groups
        ),
        # An account that is no longer declared must give no access.
        deleted_users=_gone(present.users, present.deleted_users, desired.users),
    )


def _gone(
    before: Sequence[Resource], remembered: frozenset[str], now: Sequence[Resource]
) -> frozenset[str]:
    deleted = {declared_name(each) for each in before if is_deleted_with(each)}
    return frozenset((deleted | remembered) - {declared_name(each) for each in now})


def _only_cluster(manifests: Sequence[Manifest], present: Desired | None) -> Cluster:
    clusters = [manifest for manifest in manifests if isinstance(manifest.resource, Cluster)]
    match [manifest.resource for manifest in clusters]:
        case [Cluster() as cluster]:
            return cluster
        case [] if present is not None:
            return present.cluster
        case []:
            first = manifests[0] if manifests else None
            raise ManifestError(
                [
                    Problem(
                        first.file if first else "manifests",
                        1,
                        "",
                        "no Cluster is declared; add a document with `kind: Cluster`",
                    )
                ]
            )
        case _:
            raise ManifestError(
                [
                    manifest.problem(
                        "", "a data directory can have only one Cluster; remove this one"
                    )
                    for manifest in clusters[1:]
                ]
            )


def _only_kubernetes(manifests: Sequence[Manifest]) -> list[Problem]:
    """Find manifests that only Kubernetes carries out.

    If they were ignored silently, a user would rely on backups that are never made.
    """
    problems = []
    for manifest in manifests:
        resource = manifest.resource
        if isinstance(resource, Backup | ScheduledBackup):
            text = f"a {resource.kind} works only in Kubernetes; here, run `orderlymq backup create`, if you like from cron"
            problems.append(manifest.problem("kind", text))
        elif isinstance(resource, Cluster) and resource.spec.bootstrap is not None:
            text = "it works only in Kubernetes; here, remove it and run `orderlymq up --from-backup PLACE`"
            problems.append(manifest.problem("spec.bootstrap", text))
    return problems


def _dangling(manifests: Sequence[Manifest], cluster: Cluster) -> list[Problem]:
    name = cluster.metadata.name
    problems = []
    for manifest in manifests:
        resource = manifest.resource
        if isinstance(resource, Cluster | Using) or resource.spec.cluster_ref.name == name:
            continue
        wrong = resource.spec.cluster_ref.name
        problems.append(
            manifest.problem(
                "spec.clusterRef.name",
                f"there is no Cluster {wrong!r}; the Cluster here is {name!r}",
            )
        )
    return problems


def _shared_names(manifests: Sequence[Manifest]) -> list[Problem]:
    """Find two objects that declare the same topic, consumer group or access key."""
    problems = []
    seen: dict[tuple[str, str], Manifest] = {}
    for manifest in manifests:
        kind = manifest.resource.kind
        if kind not in NAME_FIELDS:
            continue
        key = kind, declared_name(manifest.resource)
        first = seen.setdefault(key, manifest)
        if first is not manifest:
            owner = first.resource.metadata.name
            problems.append(
                manifest.problem(
                    f"spec.{to_camel(NAME_FIELDS[kind])}",
                    f"the {_CALLED[kind]} {key[1]!r} is already declared by {owner!r}",
                )
            )
    return problems
