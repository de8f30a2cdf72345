"""The chart as Helm itself renders it: no warnings, all that is switched on, only values that the schema knows."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from release.dist import package_chart
from release.distributions import ROOT, project

from tests.operator.kube.rights import of_file, of_rules
from tests.release.chart.rendering import (
    ALL_ON,
    CHART,
    OLDEST_KUBERNETES,
    only,
    pods,
    render,
    run,
    values,
)

pytestmark = [pytest.mark.go, pytest.mark.long, pytest.mark.timeout(1_200)]


@pytest.mark.parametrize("chosen", [{}, ALL_ON], ids=["defaults", "all on"])
def test_lint_has_no_complaint(helm: Path, tmp_path: Path, chosen: dict[str, Any]) -> None:
    """Warnings count as errors."""
    done = run(helm, "lint", CHART, "--strict", "--values", values(tmp_path, chosen))

    assert done.returncode == 0, done.stdout
    assert "1 chart(s) linted, 0 chart(s) failed" in done.stdout


@pytest.mark.parametrize("chosen", [{}, ALL_ON], ids=["defaults", "all on"])
def test_each_object_is_made_once_in_the_namespace_of_the_release(
    helm: Path, tmp_path: Path, chosen: dict[str, Any]
) -> None:
    """Each has a kind, a name and Helm's labels."""
    made = render(helm, CHART, "--values", values(tmp_path, chosen))
    names = Counter(
        (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in made
    )

    assert [name for name, count in names.items() if count > 1] == []
    assert {namespace for _, namespace, _ in names} <= {"system", None}
    (deployment,) = (each for each in made if each["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    image = chosen.get("image", {"repository": "orderlymq", "tag": project()["version"]})
    assert container["image"] == f"{image['repository']}:{image['tag']}"
    assert deployment["spec"]["replicas"] == chosen.get("replicas", 1)


def test_definitions_are_those_that_the_models_make(helm: Path) -> None:
    """The definitions equal those in crds/; none are rendered if they are installed separately."""
    made = {
        each["metadata"]["name"]: each["spec"]
        for each in render(helm, CHART)
        if each["kind"] == "CustomResourceDefinition"
    }
    kept = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "crds").glob("*.yaml"))]

    assert made == {each["metadata"]["name"]: each["spec"] for each in kept}
    without = render(helm, CHART, "--set", "crds.install=false")
    assert "CustomResourceDefinition" not in {each["kind"] for each in without}


def test_what_is_switched_on_comes_and_nothing_else(helm: Path, tmp_path: Path) -> None:
    """There are roles for one namespace or for all, and Prometheus' monitors and rules only on request."""
    by_default = Counter(each["kind"] for each in render(helm, CHART))
    with_all = Counter(
        each["kind"] for each in render(helm, CHART, "--values", values(tmp_path, ALL_ON))
    )

    assert {"ServiceMonitor", "PodMonitor", "PrometheusRule"} & set(by_default) == set()
    assert {"ServiceMonitor", "PrometheusRule"} <= set(with_all)
    assert by_default["Role"] >= 1
    assert with_all["ClusterRole"] >= by_default["ClusterRole"]


@pytest.mark.parametrize(
    ("chosen", "served"),
    [
        ({}, ["system"]),
        ({"watchNamespaces": ["a", "b"]}, ["a", "b"]),
        ({"watchNamespaces": ["*"]}, None),
    ],
)
def test_changes_are_warned_of_in_the_namespaces_that_are_served(
    helm: Path, tmp_path: Path, chosen: dict[str, Any], served: list[str] | None
) -> None:
    """Only changes by brokers of pods are refused; others only cause warnings, and values switch both off."""
    words: list[str | Path] = ["--values", values(tmp_path, chosen)]
    bindings = [
        each["spec"]
        for each in render(helm, CHART, *words)
        if each["kind"] == "ValidatingAdmissionPolicyBinding"
    ]

    assert Counter(action for each in bindings for action in each["validationActions"]) == {
        "Warn": 9,
        "Deny": 1,
    }
    for spec in bindings:
        selected = spec.get("matchResources", {}).get("namespaceSelector", {})
        found = [each["values"] for each in selected.get("matchExpressions", ())]
        assert found == ([] if served is None else [served])
    off = "changeWarnings.enabled=false,brokerPolicy.enabled=false"
    without = render(helm, CHART, *words, "--set", off)
    assert not [each for each in without if "Admission" in each["kind"]]


def test_users_of_the_cluster_get_the_resources_by_its_own_roles(helm: Path) -> None:
    """view reads every kind, edit writes all except Users, admin writes those; no right is missing or given twice."""
    kinds = {path.stem for path in (ROOT / "crds").glob("*.yaml")}

    def granted(made: list[dict[str, Any]], role: str) -> set[tuple[str, str]]:
        label = f"rbac.authorization.k8s.io/aggregate-to-{role}"
        rules = [
            rule
            for each in made
            if each["metadata"].get("labels", {}).get(label) == "true"
            for rule in each["rules"]
        ]
        assert all(rule["apiGroups"] == ["orderlymq.io"] for rule in rules)
        return {
            (what, verb) for rule in rules for what in rule["resources"] for verb in rule["verbs"]
        }

    made = render(helm, CHART)
    reads, writes = ("get", "list", "watch"), ("create", "update", "patch", "delete")
    every = kinds | {f"{kind}/status" for kind in kinds}
    write = (*writes, "deletecollection")
    assert granted(made, "view") == {(kind, verb) for kind in every for verb in reads}
    assert granted(made, "edit") == {
        *((kind, verb) for kind in kinds - {"users"} for verb in write),
        *(("clusters/scale", verb) for verb in ("get", "update", "patch")),
    }
    assert granted(made, "admin") == {("users", verb) for verb in write}
    without = render(helm, CHART, "--set", "rbac.aggregateClusterRoles=false")
    assert [role for role in ("view", "edit", "admin") if granted(without, role)] == []


def test_what_follows_the_end_needs_no_namespace_but_that_of_the_release(
    helm: Path, tmp_path: Path
) -> None:
    """`helm uninstall` would fail for a served namespace that was deleted."""
    chosen = values(tmp_path, {"watchNamespaces": ["gone", "shop"]})
    made = [
        each
        for each in render(helm, CHART, "--values", chosen)
        if each["metadata"].get("annotations", {}).get("helm.sh/hook") == "post-delete"
    ]

    assert {each["metadata"].get("namespace") for each in made} == {"system", None}
    assert of_rules(only(made, "ClusterRole")["rules"]) == of_file("release")
    assert of_file("release") < of_file("cluster")


def test_the_package_renders_as_the_folder_does(helm: Path, tmp_path: Path) -> None:
    """`make dist` packs the same files as Helm."""
    assert render(helm, package_chart(tmp_path)) == render(helm, CHART)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--set", "image.tagg=1"), "tagg"),
        (("--set", "replicas=many"), "replicas"),
        (("--set", "podSecurityContext.runAsUser=0"), "runAsUser"),
        (("--set", "image=null"), "missing property 'image'"),
        (("--set", "logLevel=null"), "missing property 'logLevel'"),
        (("--set", "image.repository=orderlymq:1"), "/image/repository"),
        (("--set", "image.tag=a b"), "/image/tag"),
        (("--set", "fullnameOverride=My_Queue"), "/fullnameOverride"),
        (("--set", "serviceAccount.name=a b"), "/serviceAccount/name"),
        (("--set", r"podLabels.app\.kubernetes\.io/name=x"), "app.kubernetes.io/name"),
        (("--set", r"metrics.dashboard.labels.helm\.sh/chart=x"), "helm.sh/chart"),
        (("--set", r"podLabels.orderlymq\.io/cluster=x"), "orderlymq.io/cluster"),
        (("--set", "watchNamespaces={*,shop}"), "watchNamespaces: * serves all namespaces"),
        (("--set", "serviceAccount.create=false"), "in serviceAccount.name"),
        (("--set", "pipelines.sparkApplications=true"), "/pipelines/executors"),
        (("--kube-version", "1.29.15"), "incompatible with Kubernetes"),
    ],
)
def test_what_cannot_work_is_refused(helm: Path, words: tuple[str, ...], said: str) -> None:
    """Unknown values, wrong types, names that Kubernetes refuses, and an old Kubernetes are refused.

    The schema refuses them, before a template fails.
    """
    version = ("--kube-version", OLDEST_KUBERNETES)  # a later value wins
    done = run(helm, "template", "release", CHART, *version, *words)

    assert done.returncode != 0
    assert said in done.stderr
    assert "executing" not in done.stderr


def test_the_notes_speak_of_the_namespaces_that_are_served(helm: Path, tmp_path: Path) -> None:
    """The notes also name the steps that the values leave to users: pull secrets, and who may scrape the operator."""
    chart = tmp_path / "chart"
    shutil.copytree(CHART, chart, symlinks=False)
    (chart / "templates" / "shown.yaml").write_text(
        "{kind: Notes, metadata: {name: notes}, "
        'text: {{ include (print .Template.BasePath "/NOTES.txt") . | quote }}}'
    )

    def notes(**chosen: Any) -> str:
        made = render(helm, chart, "--values", values(tmp_path, chosen))
        return str(only(made, "Notes")["text"])

    own, every = notes(), notes(watchNamespaces=["*"])
    served = notes(watchNamespaces=["shop", "web"], imagePullSecrets=[{"name": "registry"}])
    for command in ("apply", "wait", "get"):
        assert f"kubectl {command} -n shop " in served
        assert f"kubectl {command} -n system " in own
        assert f"kubectl {command} -n " not in every
    assert "for the image registry: registry." in served
    assert "registry" not in own
    scraped = {"serviceMonitor": {"enabled": True}}
    peers: list[dict[str, Any]] = [{"namespaceSelector": {}}]
    warned = [
        "networkPolicy.monitoring" in notes(metrics=scraped, networkPolicy=policy)
        for policy in ({}, {"monitoring": peers}, {"enabled": False})
    ]
    assert warned == [True, False, False]


def test_no_two_releases_share_a_name_without_namespace(helm: Path) -> None:
    """Otherwise the later one could not be installed. Names and namespaces may have hyphens."""
    found: Counter[tuple[str, str]] = Counter()
    for name, namespace in (("mq", "a"), ("mq", "a-view"), ("mq-a", "view"), ("mq-release", "a")):
        words = ("--namespace", namespace, "--set", f"fullnameOverride={name}")
        for each in render(helm, CHART, *words):
            meta = each["metadata"]
            if "namespace" not in meta and each["kind"] != "CustomResourceDefinition":
                found[each["kind"], meta["name"]] += 1
    assert max(found.values()) == 1, found


def test_every_name_that_helm_allows_is_one_for_kubernetes(helm: Path, tmp_path: Path) -> None:
    """Names that YAML reads as numbers stay texts; the Service's name begins with a letter and has no dot."""
    chosen = values(tmp_path, {**ALL_ON, "watchNamespaces": ["789"]})
    words = ("--kube-version", OLDEST_KUBERNETES, "--values", chosen)
    done = run(helm, "template", "12.5", CHART, "--namespace", "456", *words)
    made = [each for each in yaml.safe_load_all(done.stdout) if each]

    assert done.returncode == 0, done.stderr
    metas = [each["metadata"] for each in made]
    subjects = [subject for each in made for subject in each.get("subjects", ())]
    assert {each.get("namespace") for each in [*metas, *subjects]} == {None, "456", "789"}
    labels = [each.get("labels", {}) for each in metas]
    assert {each.get("app.kubernetes.io/instance") for each in labels} == {None, "12.5"}
    (container,) = only(made, "Job")["spec"]["template"]["spec"]["containers"]
    (container_of_test,) = only(made, "Pod")["spec"]["containers"]
    texts = [each["value"] for each in container["env"]] + container_of_test["command"]
    assert all(isinstance(text, str) for text in texts)
    assert only(made, "Service")["metadata"]["name"] == "mq-12-5-orderlymq"


@pytest.mark.parametrize(
    ("whole", "account"), [("true", "123"), ("null", "2026-11-27"), ("no", "")]
)
def test_chosen_names_stay_texts(helm: Path, tmp_path: Path, whole: str, account: str) -> None:
    """Names that YAML reads as other types stay texts; a pull secret may have any valid name of a Secret."""
    secret = f"registry.example.{'x' * 230}"
    chosen = {
        **ALL_ON,
        "fullnameOverride": whole,
        "serviceAccount": {"name": account},
        "imagePullSecrets": [{"name": secret}],
    }
    made = render(helm, CHART, "--values", values(tmp_path, chosen))

    subjects = [subject for each in made for subject in each.get("subjects", ())]
    names = [each["name"] for each in [*subjects, *(each["metadata"] for each in made)]]
    accounts = [each["serviceAccountName"] for each in pods(made)]
    assert {type(name) for name in names + accounts} == {str}
    assert {whole, account or whole} <= {*names}
    assert only(made, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"] in names


def test_values_that_the_schema_accepts_leave_no_hole(helm: Path, tmp_path: Path) -> None:
    """Null removes a value: those that the chart needs are required, and without the others it still renders."""
    kept: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())

    def without(value: dict[str, Any], rules: dict[str, Any]) -> dict[str, Any]:
        """Remove the values that *rules* do not require."""
        found: dict[str, Any] = {}
        for key, each in value.items():
            needed = key in rules.get("required", ())
            if not needed:
                found[key] = None
            elif isinstance(each, dict):
                found[key] = without(each, rules["properties"][key])
        return found

    made = render(helm, CHART, "--values", values(tmp_path, without(kept, schema)))

    (container,) = only(made, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert [each for each in container["env"] if each.get("value", "") is None] == []
    assert len(pods(made)) == 2
    labelled = [
        "--set",
        r"podLabels.app\.kubernetes\.io/part-of=shop",
        "--set",
        "image.tag=1@sha256:0f",
    ]
    render(helm, CHART, *labelled, "--set", "image.repository=registry:5000/mq/orderlymq")
