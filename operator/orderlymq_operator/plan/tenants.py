"""
Which namespaces may use a Cluster: its own, and those that `spec.allowedNamespaces` lists.

Pure. Only this module decides it, for Topics, ConsumerGroups, Users and Pipelines. Rule: an object of any other
namespace changes nothing. It gets a condition that says who can allow it.
"""

from orderlymq_operator.plan.actions import ConditionReport
from orderlymq_operator.resources.cluster.cluster import ANY_NAMESPACE, Cluster


def allows(cluster: Cluster, namespace: str | None) -> bool:
    """Return whether objects of *namespace* may name *cluster*."""
    listed = cluster.spec.allowed_namespaces
    return namespace == cluster.metadata.namespace or ANY_NAMESPACE in listed or namespace in listed


def unknown(cluster_name: str, cluster_namespace: str, error: str) -> ConditionReport:
    """Return the condition for an object of another namespace while the allowed namespaces of a Cluster are not known."""
    text = (
        f"Cluster {cluster_name!r} in namespace {cluster_namespace!r} cannot be used, so it is not known which namespaces it "
        f"allows; correct the Cluster: {error}"
    )
    return ConditionReport("False", "NamespaceNotAllowed", text)


def refusal(cluster_name: str, cluster_namespace: str, namespace: str) -> ConditionReport:
    """Return the condition for an object of a *namespace* that the Cluster does not allow."""
    text = (
        f"Cluster {cluster_name!r} in namespace {cluster_namespace!r} does not allow namespace {namespace!r}; "
        f"add {namespace!r} to spec.allowedNamespaces of the Cluster, or name a Cluster of namespace {namespace!r}"
    )
    return ConditionReport("False", "NamespaceNotAllowed", text)
