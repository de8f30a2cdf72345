"""Tenants: listed namespaces may use a Cluster, the operator has the rights that it needs, and policies are made."""

import json
from collections.abc import Iterable

import pytest
from tests.operator.kube.rights import Right, of_file

from e2e.installed import Operator
from e2e.machine import MachineError
from e2e.space import Json, Space

READY = ("cluster/demo", "topic/orders", "consumergroup/billing")
# Rights that no role of the chart may permit, because each of them would lead to all others.
NEVER: tuple[Right, ...] = (("", "secrets", "list"), ("", "secrets", "delete"))
DENIED: tuple[Right, ...] = (
    *NEVER,
    ("", "secrets", "patch"),
    ("", "pods", "create"),
    ("apps", "deployments", "create"),
)


def _granted(operator: Operator, place: str, rights: Iterable[Right]) -> set[Right]:
    """Ask the API server for all rights in one request: `kubectl auth can-i` answers no for unknown kinds."""
    reviews = {right: _review(operator, place, right) for right in rights}
    command = ("kubectl", "create", "-f", "-", "-o", r'jsonpath={.status.allowed}{"\n"}')
    answers = operator.machine.run(*command, stdin="\n".join(map(json.dumps, reviews.values())))
    return {
        right for right, answer in zip(reviews, answers.split(), strict=True) if json.loads(answer)
    }


def _review(operator: Operator, place: str, right: Right) -> Json:
    group, resource, verb = right
    bare, _, part = resource.partition("/")
    wanted = {"namespace": place, "verb": verb, "group": group, "resource": bare}
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{operator.name}:{operator.deployment}",
            "resourceAttributes": {**wanted, "subresource": part},
        },
    }


@pytest.mark.ci
def test_the_api_server_grants_the_operator_what_the_chart_says(
    operator: Operator, space: Space
) -> None:
    """The operator has every right of a served namespace, and none that would lead to all others."""
    wanted = set(of_file("namespace"))
    denied = set(DENIED if "pipelines.executors=true" not in operator.values else NEVER)
    assert _granted(operator, space.name, wanted | denied) == wanted


def test_only_listed_namespaces_use_a_cluster(operator: Operator, space: Space) -> None:
    """A stranger's Topic says whom to ask, and becomes Synced when the Cluster lists its namespace."""
    space.example("quickstart.yaml")
    space.ready(*READY)
    policies = {each["metadata"]["name"] for each in space.items("networkpolicies")}
    assert policies == {"demo-broker", "demo-nameserver"}
    other = Space(space.machine, f"{space.name}-two", space.image)
    space.machine.run("kubectl", "create", "namespace", other.name, check=False)
    try:
        other.apply(
            "{apiVersion: orderlymq.io/v1alpha1, kind: Topic, metadata: {name: foreign}, "
            f"spec: {{clusterRef: {{name: demo, namespace: {space.name}}}, deletionPolicy: Delete}}}}"
        )
        other.until(
            lambda: _reason(other.must("topic/foreign")) == "NamespaceNotAllowed", "it is refused"
        )
        space.patch("cluster.orderlymq.io/demo", {"allowedNamespaces": [other.name]})
        other.ready("topic/foreign")
        space.patch("cluster.orderlymq.io/demo", {"allowedNamespaces": []})
        other.until(
            lambda: _reason(other.must("topic/foreign")) == "NamespaceNotAllowed", "it is refused"
        )
        # Without our finalizer, the deletion waits for no program.
        other.kubectl("delete", "topic/foreign", "--timeout=30s")
    except MachineError as error:
        raise AssertionError(f"{error}\n{operator.log()[-3000:]}") from error
    finally:
        # Not the namespace itself, because the operator's Role in it would be deleted, too.
        other.kubectl("delete", "topic/foreign", "--ignore-not-found", check=False)


def _reason(found: dict[str, object]) -> str:
    status = found.get("status")
    assert isinstance(status, dict)
    (ready,) = [each for each in status["conditions"] if each["type"] == "Ready"]
    return str(ready["reason"])
