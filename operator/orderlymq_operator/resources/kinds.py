"""
All kinds of manifests in one place, and `Desired`: one cluster with everything that belongs to it.

`cluster`, `topic`, `consumergroup`, `user`, `pipelines` and `backups` define the kinds, `manifests` reads files,
`plan` decides what follows from a `Desired`. Pipelines and backups are not part of a `Desired`: they use a cluster as
clients do.
"""

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from orderlymq_operator.resources.backups.backup import Backup
from orderlymq_operator.resources.backups.scheduledbackup import ScheduledBackup
from orderlymq_operator.resources.cluster.cluster import Cluster
from orderlymq_operator.resources.consumergroup import ConsumerGroup
from orderlymq_operator.resources.meta import Condition, ObjectMeta
from orderlymq_operator.resources.pipelines.pipeline import Pipeline
from orderlymq_operator.resources.topic import Topic
from orderlymq_operator.resources.user import User
from orderlymq_protocol.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
    reply_topic,
)

__all__ = [
    "KINDS",
    "USING",
    "Backup",
    "Cluster",
    "Condition",
    "ConsumerGroup",
    "Desired",
    "ObjectMeta",
    "Pipeline",
    "Resource",
    "ScheduledBackup",
    "Topic",
    "User",
    "Using",
    "declared_name",
    "is_brokers_own",
    "is_deleted_with",
    "resources_of",
]

Resource: TypeAlias = Cluster | Topic | ConsumerGroup | User | Pipeline | Backup | ScheduledBackup
KINDS: Final[dict[str, type[Resource]]] = {
    "Cluster": Cluster,
    "Topic": Topic,
    "ConsumerGroup": ConsumerGroup,
    "User": User,
    "Pipeline": Pipeline,
    "Backup": Backup,
    "ScheduledBackup": ScheduledBackup,
}
# Kinds that use a cluster as clients do.
Using: TypeAlias = Pipeline | Backup | ScheduledBackup
USING: Final = frozenset({"Pipeline", "Backup", "ScheduledBackup"})


# The field with the name that clients use, by kind; the other kinds have none.
NAME_FIELDS: Final = {"Topic": "topic_name", "ConsumerGroup": "group_name", "User": "access_key"}
# Brokers create, read and delete topics with these names themselves.
_OWN_PREFIXES: Final = (
    RETRY_PREFIX,
    DLQ_PREFIX,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPIC_PREFIX.upper(),
)


@dataclass(frozen=True, slots=True)
class Desired:
    """Desired state: one cluster, its topics, consumer groups and users, and what must be deleted.

    Attributes:
        deleted_topics: topics (wire names) to delete, because their manifest was removed with policy Delete.
        deleted_consumer_groups: consumer groups to delete for the same reason.
        deleted_users: access keys of accounts whose manifest was removed.
        draining: raft groups to remove once nothing in them is needed any more.
        canary_groups: raft groups that hold a topic of the canary.
        unheld: kind and name of topics, consumer groups and users that have no finalizer yet. Nothing is created for
            them, and whatever needs them first waits.
    """

    cluster: Cluster
    topics: tuple[Topic, ...] = ()
    consumer_groups: tuple[ConsumerGroup, ...] = ()
    deleted_topics: frozenset[str] = frozenset()
    deleted_consumer_groups: frozenset[str] = frozenset()
    users: tuple[User, ...] = ()
    deleted_users: frozenset[str] = frozenset()
    draining: frozenset[str] = frozenset()
    canary_groups: frozenset[str] = frozenset()
    unheld: frozenset[tuple[str, str]] = frozenset()

    def resources(self) -> tuple[Resource, ...]:
        """Return every resource: the cluster, then topics, consumer groups and users."""
        return (self.cluster, *self.topics, *self.consumer_groups, *self.users)


def resources_of(desired: Desired) -> list[dict[str, object]]:
    """Return the manifests of *desired* as plain data that `manifests.parse` reads back."""
    return [
        resource.model_dump(mode="json", exclude_none=True, exclude={"status"})
        for resource in desired.resources()
    ]


def declared_name(resource: Resource) -> str:
    """Return the name that clients use for *resource*."""
    field = NAME_FIELDS.get(resource.kind)
    return str(getattr(resource, field)) if field else resource.metadata.name


def is_brokers_own(topic: str, cluster: Cluster) -> bool:
    """Return whether brokers reserve a topic's name: for retries, dead letters, or their own work.

    Brokers also have topics named after their cluster and their broker groups.
    """
    after = {cluster.metadata.name, reply_topic(cluster.metadata.name), *cluster.group_names}
    return topic in SYSTEM_TOPICS or topic in after or topic.startswith(_OWN_PREFIXES)


def is_deleted_with(resource: Resource) -> bool:
    """Return whether the brokers' part of *resource* is deleted together with the object."""
    spec: Any = resource.spec
    return isinstance(resource, User) or getattr(spec, "deletion_policy", "") == "Delete"
