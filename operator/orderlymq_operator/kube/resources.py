"""The resources of the API server that the operator reads and writes: their paths and names."""

from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from orderlymq_operator.resources.meta import GROUP, VERSION

# An object as the API server sends it: JSON, never a model, so that nothing unknown gets lost.
Json: TypeAlias = dict[str, Any]
# A time as the API server writes it: UTC, to the second.
TIME_FORMAT: Final = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of objects.

    Attributes:
        optional: an API server that does not know the kind has none of it.
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
        """Return the path of a collection, an object, or a subresource (*part*) of it."""
        place = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        ends = "".join(f"/{piece}" for piece in (name, part) if piece)
        return f"{self.root}{place}/{self.plural}{ends}"


_OWN: Final = f"{GROUP}/{VERSION}"
# Definitions of a previous version lack some kinds, and somebody may take all of them away while finalizers are to go.
CLUSTERS: Final = Resource(_OWN, "Cluster", "clusters", optional=True)
TOPICS: Final = Resource(_OWN, "Topic", "topics", optional=True)
CONSUMER_GROUPS: Final = Resource(_OWN, "ConsumerGroup", "consumergroups", optional=True)
USERS: Final = Resource(_OWN, "User", "users", optional=True)
PIPELINES: Final = Resource(_OWN, "Pipeline", "pipelines", optional=True)
BACKUPS: Final = Resource(_OWN, "Backup", "backups", optional=True)
SCHEDULED_BACKUPS: Final = Resource(_OWN, "ScheduledBackup", "scheduledbackups", optional=True)
# What belongs to a Cluster, and what only uses one.
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
# Gateway API has several versions of it; `observe.gateway` finds the one that is served.
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

# What the operator makes for a Cluster, in the order in which it is applied.
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
# Of these, what no broker and no name server needs.
ACCESSORY: Final = (BUDGETS, NETWORK_POLICIES, DEPLOYMENTS, INGRESSES)
# Likewise for a Pipeline; what runs its drivers comes last, and of that there is one.
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
