"""
The operator has exactly the rights that its calls need: no right without a call, and no call without a right.

Calls are found in the source: a change that adds a call, or removes the last one, must change the chart's rights, too.
The API server of the other tests refuses calls that the chart does not permit.
"""

import ast
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

import orderlymq_operator.kube
from orderlymq_operator.kube import resources
from orderlymq_operator.kube.objects import canary, console
from orderlymq_operator.kube.resources import (
    CRON_JOBS,
    JOBS,
    MADE,
    MADE_FOR_PIPELINES,
    OWN_KINDS,
    PARTS,
    ROLE_BINDINGS,
    ROLES,
    SPARK_APPLICATIONS,
    STATEFUL_SETS,
    Resource,
)
from orderlymq_operator.kube.watch import WATCHED
from tests.operator.kube.rights import FOLDER, Right, granted, of_file, of_rules

CHART: Final = FOLDER.parents[1]
SOURCES: Final = Path(orderlymq_operator.kube.__path__[0])
FORMS: Final = (STATEFUL_SETS, JOBS, CRON_JOBS, SPARK_APPLICATIONS)
# An apply creates the object if it is missing.
VERBS: Final = {
    "get": ("get",),
    "list": ("list",),
    "apply": ("create", "patch"),
    "make": ("list", "create", "patch"),
    "apply_status": ("patch",),
    "create": ("create",),
    "replace": ("update",),
    "patch": ("patch",),
    "delete": ("delete",),
    "evict": ("create",),
}
# The kinds in calls whose kind is a variable, by module and by the text of the call's first argument.
VARIABLE: Final[dict[tuple[str, str], tuple[Resource, ...]]] = {
    ("forecast/reader", "resource"): OWN_KINDS,
    ("observe/inventory", "resource"): (*OWN_KINDS, resources.PODS),
    ("observe/inventory", "refused"): OWN_KINDS,
    ("observe/lister", "resource"): (
        *MADE,
        *MADE_FOR_PIPELINES,
        resources.CLAIMS,
        resources.PODS,
        SPARK_APPLICATIONS,
        resources.TLS_ROUTES,
    ),
    ("reconcile/backend", "made"): (*MADE, resources.TLS_ROUTES),
    ("reconcile/backend", "resource"): (
        *console.KINDS,
        *canary.KINDS,
        resources.SERVICES,
        resources.TLS_ROUTES,
    ),
    ("reconcile/backups/bootstrap", "name_server_set(cluster, backend.environment)"): (
        STATEFUL_SETS,
    ),
    ("reconcile/finalizers", "item.resource"): (*PARTS, resources.BACKUPS),
    ("reconcile/pipeline", "_FORMS[form]"): FORMS,
    ("reconcile/pipeline", "made"): MADE_FOR_PIPELINES,
    ("reconcile/pipeline", "resource"): (*FORMS, ROLES, ROLE_BINDINGS),
    ("reconcile/pipeline", "workload"): FORMS,
    ("reconcile/groupremoval", "resource"): (
        resources.SERVICES,
        resources.CONFIG_MAPS,
        resources.BUDGETS,
        STATEFUL_SETS,
    ),
    ("reconcile/writer", "made"): OWN_KINDS,
}


def _calls() -> Iterator[tuple[str, str, str]]:
    """Yield module, method and first argument of every call of the API server's client."""
    for path in sorted(SOURCES.rglob("*.py")):
        module = str(path.relative_to(SOURCES).with_suffix(""))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                receiver = ast.unparse(node.func.value).rpartition(".")[2].lstrip("_")
                if receiver == "api" and node.func.attr in VERBS:
                    yield module, node.func.attr, ast.unparse(node.args[0])


def _resources(module: str, method: str, argument: str) -> tuple[Resource, ...]:
    if method == "evict":
        return (resources.PODS,)
    constant = getattr(resources, argument, None)
    if isinstance(constant, Resource):
        return (constant,)
    assert (module, argument) in VARIABLE, f"say in VARIABLE what {argument} is in {module}"
    return VARIABLE[module, argument]


def _called() -> set[Right]:
    found = set()
    for module, method, argument in _calls():
        for resource in _resources(module, method, argument):
            part = {"apply_status": "/status", "evict": "/eviction"}.get(method, "")
            group = resource.api_version.rpartition("/")[0]
            found |= {(group, resource.plural + part, verb) for verb in VERBS[method]}
    for resource in WATCHED:
        group = resource.api_version.rpartition("/")[0]
        found |= {(group, resource.plural, verb) for verb in ("list", "watch")}
    return found


def test_every_right_has_a_call_and_every_call_a_right() -> None:
    """The rights and the calls are the same set."""
    assert granted() == _called()


def test_what_is_said_of_variables_is_used() -> None:
    """An entry for a removed call would keep an unneeded right."""
    assert {(module, argument) for module, _, argument in _calls()} >= VARIABLE.keys()


def test_secrets_are_neither_listed_nor_changed() -> None:
    """The operator only reads Secrets by known names and creates its own."""
    assert {verb for _, resource, verb in granted() if resource == "secrets"} == {"get", "create"}


def test_no_right_is_a_wildcard() -> None:
    """Each new kind or verb must be granted by name."""
    every = [granted(), of_file("executors"), of_file("release")]
    assert not any("*" in right for rights in every for right in rights)


def test_what_is_handed_on_to_brokers_and_drivers_is_owned() -> None:
    """Kubernetes lets an account grant only rights that it has; the rights of executors have their own switch."""
    assert {("", "pods", "get"), ("", "pods", "patch")} <= granted()
    assert {verb for _, _, verb in of_file("executors")} >= {"deletecollection"}


# -- what helm makes of it


def _helm() -> str:
    found = os.environ.get("ORDERLYMQ_HELM") or shutil.which("helm")
    if found is None:
        pytest.skip("helm is not installed; the scenarios of e2e have it")
    return found


def _rendered(*values: str) -> dict[tuple[str, str], set[Right]]:
    """Return the rights of each role of the operator, by kind and namespace."""
    sets = [word for value in values for word in ("--set", value)]
    command = [_helm(), "template", "x", str(CHART), "-n", "ops", "--kube-version", "1.34.0", *sets]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[tuple[str, str], set[Right]] = {}
    for made in filter(None, yaml.safe_load_all(text)):
        # Hooks have their own account, and the aggregated roles are bound to no account.
        meta = str(made["metadata"])
        own = made["kind"] in {"Role", "ClusterRole"} and not any(
            word in meta for word in ("hook", "aggregate-to-")
        )
        if own:
            key = (made["kind"], made["metadata"].get("namespace", ""))
            found.setdefault(key, set()).update(of_rules(made["rules"]))
    return found


def _files(*names: str) -> set[Right]:
    return set().union(*map(of_file, names))


@pytest.mark.parametrize(
    ("values", "roles"),
    [
        ([], {("Role", "ops"): ("namespace", "lease"), ("ClusterRole", ""): ("cluster",)}),
        (
            ["watchNamespaces={a,b}"],
            {
                ("Role", "ops"): ("lease",),
                ("Role", "a"): ("namespace",),
                ("Role", "b"): ("namespace",),
                ("ClusterRole", ""): ("cluster",),
            },
        ),
        (
            ["watchNamespaces={*}"],
            {("Role", "ops"): ("lease",), ("ClusterRole", ""): ("cluster", "namespace")},
        ),
        (
            ["pipelines.executors=true", "pipelines.sparkApplications=true"],
            {
                ("Role", "ops"): ("namespace", "lease", "executors", "sparkapplications"),
                ("ClusterRole", ""): ("cluster",),
            },
        ),
    ],
)
def test_rights_are_rendered_where_resources_are_served(
    values: list[str], roles: dict[tuple[str, str], tuple[str, ...]]
) -> None:
    """The default is one namespace; rights on the Secrets of all namespaces need a star."""
    assert _rendered(*values) == {key: _files(*names) for key, names in roles.items()}


def test_the_values_of_the_chart_say_what_the_tests_say() -> None:
    """The defaults are one namespace, no executors, no other image."""
    values: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())

    assert values["watchNamespaces"] == []
    assert values["pipelines"]["executors"] is False
    assert values["pipelines"]["allowedImages"] is None
    assert values["pipelines"]["allowedSettings"] == []
