"""The resources of the API server that the operator reads and writes: their paths and names."""

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from orderlymq_operator.meta import GROUP, VERSION

# An object as the API server sends it: JSON, never a model, so that nothing unknown gets lost.
Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of objects."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

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
CLUSTERS: Final = Resource(_OWN, "Cluster", "clusters")
TOPICS: Final = Resource(_OWN, "Topic", "topics")
CONSUMER_GROUPS: Final = Resource(_OWN, "ConsumerGroup", "consumergroups")
USERS: Final = Resource(_OWN, "User", "users")
OWN_KINDS: Final = (CLUSTERS, TOPICS, CONSUMER_GROUPS, USERS)

STATEFUL_SETS: Final = Resource("apps/v1", "StatefulSet", "statefulsets")
SERVICES: Final = Resource("v1", "Service", "services")
CONFIG_MAPS: Final = Resource("v1", "ConfigMap", "configmaps")
SECRETS: Final = Resource("v1", "Secret", "secrets")
SERVICE_ACCOUNTS: Final = Resource("v1", "ServiceAccount", "serviceaccounts")
ROLES: Final = Resource("rbac.authorization.k8s.io/v1", "Role", "roles")
ROLE_BINDINGS: Final = Resource("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")
BUDGETS: Final = Resource("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
PODS: Final = Resource("v1", "Pod", "pods")
CLAIMS: Final = Resource("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
NODES: Final = Resource("v1", "Node", "nodes", namespaced=False)
NAMESPACES: Final = Resource("v1", "Namespace", "namespaces", namespaced=False)
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
    STATEFUL_SETS,
)
_BY_KIND: Final = {resource.kind: resource for resource in (*OWN_KINDS, *MADE, SECRETS, EVENTS)}


def resource_of(made: Json) -> Resource:
    """Return the resource that an object belongs to."""
    return _BY_KIND[made["kind"]]
