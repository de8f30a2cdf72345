"""The resources of the API server that the operator reads and writes: their paths and names."""

from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from orderlymq_operator.resources.meta import GROUP, VERSION

# An object as the API server sends it: JSON, never a model, so that unknown fields are kept.
Json: TypeAlias = dict[str, Any]
# The format of times in the API server: UTC, whole seconds.
TIME_FORMAT: Final = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object.

    Attributes:
        optional: a list returns no objects, instead of an error, if the API server does not know the kind.
    """

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True
    optional: bool = False

    @property
    def root(self) -> str:
        """Path of its API group and version."""
        prefix = "/apis" if "/" in self.api_version else "/api"
        return f"{prefix}/{self.api_version}"

    def path(self, namespace: str | None = None, name: str | None = None, part: str = "") -> str:
        """Return the path of a collection, an object, or a subresource (*part*) of an object."""
        place = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        ends = "".join(f"/{piece}" for piece in (name, part) if piece)
        return f"{self.root}{place}/{self.plural}{ends}"


_OWN: Final = f"{GROUP}/{VERSION}"
# Optional, because the definitions of a previous version lack some kinds, and because a person may delete all
# definitions while the operator still has to remove finalizers.
CLUSTERS: Final = Resource(_OWN, "Cluster", "clusters", optional=True)
TOPICS: Final = Resource(_OWN, "Topic", "topics", optional=True)
CONSUMER_GROUPS: Final = Resource(_OWN, "ConsumerGroup", "consumergroups", optional=True)
USERS: Final = Resource(_OWN, "User", "users", optional=True)
PIPELINES: Final = Resource(_OWN, "Pipeline", "pipelines", optional=True)
BACKUPS: Final = Resource(_OWN, "Backup", "backups", optional=True)
SCHEDULED_BACKUPS: Final = Resource(_OWN, "ScheduledBackup", "scheduledbackups", optional=True)
# Kinds that belong to a Cluster. Other kinds in `OWN_KINDS` only use one.
PARTS: Final = (TOPICS, CONSUMER_GROUPS, USERS)
OWN_KINDS: Final = (CLUSTERS, *PARTS, PIPELINES, BACKUPS, SCHEDULED_BACKUPS)

STATEFUL_SETS: Final = Resource("apps/v1", "StatefulSet", "statefulsets")
DEPLOYMENTS: Final = Resource("apps/v1", "Deployment", "deployments")
SERVICES: Final = Resource("v1", "Service", "services")
CONFIG_MAPS: Final = Resource("v1", "ConfigMap", "configmaps")
SECRETS: Final = Resource("v1", "Secret", "secrets")
SERVICE_ACCOUNTS: Final = Resource("v1", "ServiceAccount", "serviceaccounts")
ROLES: Final = Resource("rbac.authorization.k8s.io/v1", "Role", "roles")
ROLE_BINDINGS: Final = Resource("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")
BUDGETS: Final = Resource("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICIES: Final = Resource("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
INGRESSES: Final = Resource("networking.k8s.io/v1", "Ingress", "ingresses")
# Gateway API has several versions of this kind; `observe.gateway` finds the one that the API server serves.
TLS_ROUTES: Final = Resource("gateway.networking.k8s.io/v1", "TLSRoute", "tlsroutes", optional=True)
JOBS: Final = Resource("batch/v1", "Job", "jobs")
CRON_JOBS: Final = Resource("batch/v1", "CronJob", "cronjobs")
SPARK_APPLICATIONS: Final = Resource(
    "sparkoperator.k8s.io/v1beta2", "SparkApplication", "sparkapplications", optional=True
)
PODS: Final = Resource("v1", "Pod", "pods")
CLAIMS: Final = Resource("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
NODES: Final = Resource("v1", "Node", "nodes", namespaced=False)
STORAGE_CLASSES: Final = Resource(
    "storage.k8s.io/v1", "StorageClass", "storageclasses", namespaced=False
)
EVENTS: Final = Resource("v1", "Event", "events")
LEASES: Final = Resource("coordination.k8s.io/v1", "Lease", "leases")
DEFINITIONS: Final = Resource(
    "apiextensions.k8s.io/v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    namespaced=False,
)

# The kinds that the operator makes for a Cluster, in the order in which it applies them.
MADE: Final = (
    SERVICE_ACCOUNTS,
    ROLES,
    ROLE_BINDINGS,
    SERVICES,
    CONFIG_MAPS,
    BUDGETS,
    NETWORK_POLICIES,
    STATEFUL_SETS,
    DEPLOYMENTS,
    INGRESSES,
)
# The kinds in `MADE` that no broker and no name server needs.
ACCESSORY: Final = (BUDGETS, NETWORK_POLICIES, DEPLOYMENTS, INGRESSES)
# The kinds that the operator makes for a Pipeline, in the order in which it applies them. The workload that runs the
# drivers comes last; a Pipeline has one workload.
MADE_FOR_PIPELINES: Final = (
    SERVICE_ACCOUNTS,
    ROLES,
    ROLE_BINDINGS,
    SERVICES,
    CONFIG_MAPS,
    CLAIMS,
    STATEFUL_SETS,
    JOBS,
    CRON_JOBS,
)
_BY_KIND: Final = {
    resource.kind: resource
    for resource in (
        *OWN_KINDS,
        *MADE,
        *MADE_FOR_PIPELINES,
        SPARK_APPLICATIONS,
        TLS_ROUTES,
        SECRETS,
        EVENTS,
    )
}


def resource_of(made: Json) -> Resource:
    """Return the resource that an object belongs to."""
    found = _BY_KIND[made["kind"]]
    return replace(found, api_version=made["apiVersion"]) if found is TLS_ROUTES else found
