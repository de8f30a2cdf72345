"""
The chart as Helm itself reads it: no complaint, all that is switched on, nothing that the schema does not know.

Helm is the one on the path, or is built from its source by Go, once, into build/tools.
"""

import json
import os
import re
import runpy
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from release.dist import package_chart
from release.distributions import ROOT, project

from orderlymq_operator.kube.objects import console, names
from orderlymq_operator.kube.settings import parse
from orderlymq_operator.resources.cluster.canary import CANARY_COMPONENT
from orderlymq_operator.resources.kinds import KINDS, Cluster
from tests.alone import alone
from tests.operator.kube.rights import of_file, of_rules

CHART: Final = ROOT / "charts" / "orderlymq"
HELM_VERSION: Final = "v3.19.0"
OLDEST_KUBERNETES: Final = "1.29.0"
# Everything that a value switches on.
ALL_ON: Final = {
    "image": {"repository": "registry.example/orderlymq", "tag": "1.2.3"},
    "watchNamespaces": ["*"],
    "replicas": 2,
    "pipelines": {"executors": True, "sparkApplications": True},
    "metrics": {
        "serviceMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True},
        "dashboard": {"enabled": True},
    },
}

pytestmark = [pytest.mark.go, pytest.mark.long, pytest.mark.timeout(1_200)]


@pytest.fixture(scope="module")
def helm() -> Path:
    """Return the program."""
    found = shutil.which("helm")
    if found:
        return Path(found)
    if not shutil.which("go"):
        pytest.skip("neither helm nor go is installed")
    tools = ROOT / "build" / "tools"
    built = tools / "helm"
    with alone(tools):
        if not built.exists():
            source = f"helm.sh/helm/v3/cmd/helm@{HELM_VERSION}"
            environment = {**os.environ, "GOBIN": str(tools), "GOFLAGS": "-trimpath"}
            subprocess.run(["go", "install", source], env=environment, check=True)
    return built


def run(helm: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([helm, *words], capture_output=True, text=True, check=False)


def render(helm: Path, chart: Path, *words: str | Path) -> list[dict[str, Any]]:
    """Return what an installation would make."""
    place = ("release", chart, "--namespace", "system", "--kube-version", OLDEST_KUBERNETES)
    done = run(helm, "template", *place, *words)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def values(folder: Path, what: dict[str, Any]) -> Path:
    path = folder / "values.yaml"
    path.write_text(yaml.safe_dump(what))
    return path


@pytest.mark.parametrize("chosen", [{}, ALL_ON], ids=["defaults", "all on"])
def test_lint_has_no_complaint(helm: Path, tmp_path: Path, chosen: dict[str, Any]) -> None:
    """With warnings as errors."""
    done = run(helm, "lint", CHART, "--strict", "--values", values(tmp_path, chosen))

    assert done.returncode == 0, done.stdout
    assert "1 chart(s) linted, 0 chart(s) failed" in done.stdout


@pytest.mark.parametrize("chosen", [{}, ALL_ON], ids=["defaults", "all on"])
def test_each_object_is_made_once_in_the_namespace_of_the_release(
    helm: Path, tmp_path: Path, chosen: dict[str, Any]
) -> None:
    """With a kind, a name and labels that are Helm's."""
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
    """As crds/ has them, and none when somebody else keeps them."""
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
    """Roles for one namespace or for all; monitors and rules of Prometheus only where asked."""
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
    """None is refused. A Kubernetes without such policies gets none."""
    words: list[str | Path] = ["--values", values(tmp_path, chosen)]
    new = [*words, "--kube-version", "1.30.0"]
    bindings = [
        each["spec"]
        for each in render(helm, CHART, *new)
        if each["kind"] == "ValidatingAdmissionPolicyBinding"
    ]

    assert len(bindings) == 9
    for spec in bindings:
        assert spec["validationActions"] == ["Warn"]
        selected = spec.get("matchResources", {}).get("namespaceSelector", {})
        found = [each["values"] for each in selected.get("matchExpressions", ())]
        assert found == ([] if served is None else [served])
    for older in (words, [*new, "--set", "changeWarnings.enabled=false"]):
        assert not [each for each in render(helm, CHART, *older) if "Admission" in each["kind"]]


def only(made: list[dict[str, Any]], kind: str, ending: str = "") -> dict[str, Any]:
    """Return the one object of a kind whose name ends so."""
    (found,) = (
        each for each in made if each["kind"] == kind and each["metadata"]["name"].endswith(ending)
    )
    return found


def test_alarms_link_to_the_page_that_says_what_to_do(helm: Path, tmp_path: Path) -> None:
    """In the project's repository, or where the values say that it is to be read."""
    chosen = values(tmp_path, ALL_ON)
    own = "https://docs.example/alerts"
    for words, page in [
        ((), f"{project()['urls']['Repository']}/blob/main/docs/reference/alerts.md"),
        (("--set", f"metrics.prometheusRule.runbookUrl={own}"), own),
    ]:
        made = only(render(helm, CHART, "--values", chosen, *words), "PrometheusRule")
        for rule in made["spec"]["groups"][0]["rules"]:
            assert rule["annotations"]["runbook_url"] == f"{page}#{rule['alert'].lower()}"


def test_pods_are_scraped_as_they_say(helm: Path, tmp_path: Path) -> None:
    """By https where the operator's annotation says so; certificates name no pod, so none is compared unless asked."""
    made = render(helm, CHART, "--values", values(tmp_path, ALL_ON))
    (endpoint,) = only(made, "PodMonitor")["spec"]["podMetricsEndpoints"]

    annotation = re.sub(r"[^a-zA-Z0-9]", "_", names.ANNOTATION_SCHEME)
    (scheme,) = endpoint["relabelings"]
    assert scheme["sourceLabels"] == [f"__meta_kubernetes_pod_annotation_{annotation}"]
    assert scheme["targetLabel"] == "__scheme__"
    assert endpoint["tlsConfig"] == {"insecureSkipVerify": True}


def asked(monitor: dict[str, Any], component: str, scheme: str) -> list[tuple[str, bool]]:
    """Return for each scrape of a pod its scheme and whether it bears the token, as Prometheus reads a PodMonitor."""
    spec, component_label = monitor["spec"], "app.kubernetes.io/component"
    pod = {"app.kubernetes.io/managed-by": "orderlymq-operator", component_label: component}
    found = []
    chosen = spec["selector"]
    if any(pod[key] != value for key, value in chosen["matchLabels"].items()) or any(
        each["operator"] != "In" or pod[each["key"]] not in each["values"]
        for each in chosen.get("matchExpressions", [])
    ):
        return []
    meta = {f"label_{key}": value for key, value in pod.items()} | (
        {f"annotation_{names.ANNOTATION_SCHEME}": scheme} if scheme else {}
    )
    labels = {
        "__meta_kubernetes_pod_" + re.sub(r"[^a-zA-Z0-9]", "_", key): value
        for key, value in meta.items()
    }
    for endpoint in spec["podMetricsEndpoints"]:
        target = {"__scheme__": endpoint.get("scheme", "http")}
        kept = True
        for step in endpoint["relabelings"]:
            text = ";".join(labels.get(name, "") for name in step["sourceLabels"])
            match = re.fullmatch(step["regex"], text)
            if "action" in step:
                kept &= (match is not None) == (step["action"] == "keep")
            elif match:
                target[step["targetLabel"]] = match[1]
        if kept:
            found.append((target["__scheme__"], "authorization" in endpoint))
    return found


@pytest.mark.parametrize("token", [False, True], ids=["no token", "token"])
def test_the_token_of_the_pages_goes_to_brokers_and_name_servers_by_https_alone(
    helm: Path, tmp_path: Path, token: bool
) -> None:
    """All pods with metrics are asked once, whether their Cluster has a token or none; the console has no metrics."""
    access = {"authorization": {"credentials": {"name": "pages", "key": "token"}}}
    chosen = {"metrics": {"serviceMonitor": {"enabled": True, **(access if token else {})}}}
    monitor = only(render(helm, CHART, "--values", values(tmp_path, chosen)), "PodMonitor")

    for component in (names.BROKER, names.NAME_SERVER):
        assert asked(monitor, component, "https") == [("https", token)]
        assert asked(monitor, component, "http") == [("http", False)]
        assert asked(monitor, component, "") == [("http", False)]
    for component in (CANARY_COMPONENT, names.DRIVER):
        assert asked(monitor, component, "") == [("http", False)]
    for component in (console.COMPONENT, "stranger"):
        assert asked(monitor, component, "") == asked(monitor, component, "https") == []


def test_every_dashboard_is_in_the_config_map(helm: Path, tmp_path: Path) -> None:
    """Byte for byte: Grafana reads no templates."""
    made = render(helm, CHART, "--values", values(tmp_path, ALL_ON))
    found = only(made, "ConfigMap", "-dashboard")["data"]

    files = (CHART / "files" / "dashboards").glob("*.json")
    assert found == {path.name: path.read_text().rstrip() for path in files}


def test_users_of_the_cluster_get_the_resources_by_its_own_roles(helm: Path) -> None:
    """view reads every kind, edit writes all but Users, admin writes those; nothing is left out or given twice."""
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


def pods(made: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the specs of the chart's pods, Deployments and Jobs included."""
    found = []
    for each in made:
        spec = each["spec"] if each["kind"] == "Pod" else each.get("spec", {}).get("template")
        if isinstance(spec, dict):
            found.append(spec.get("spec", spec))
    return found


def test_every_pod_of_the_chart_runs_on_the_nodes_that_are_chosen(
    helm: Path, tmp_path: Path
) -> None:
    """The operator, what follows its end, and `helm test`: where all nodes have taints, no pod would wait for ever."""
    terms = [{"matchExpressions": [{"key": "disk", "operator": "In", "values": ["fast"]}]}]
    chosen = {
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "dedicated", "operator": "Equal", "value": "system"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}
            }
        },
        "priorityClassName": "important",
    }
    made = pods(render(helm, CHART, "--values", values(tmp_path, chosen)))

    assert [{key: pod.get(key) for key in chosen} for pod in made] == [chosen] * 3
    assert not any(key in pod for pod in pods(render(helm, CHART)) for key in chosen)


def test_every_pod_of_the_chart_has_the_labels_that_are_chosen(helm: Path, tmp_path: Path) -> None:
    """Where a policy asks for a label, no pod would be refused; by its own labels it is found still."""
    made = render(helm, CHART, "--values", values(tmp_path, {"podLabels": {"team": "mq"}}))
    found = [
        each["metadata"] if each["kind"] == "Pod" else each["spec"]["template"]["metadata"]
        for each in made
        if each["kind"] in {"Pod", "Deployment", "Job"}
    ]

    assert [each["labels"]["team"] for each in found] == ["mq"] * 3
    components = {each["labels"]["app.kubernetes.io/component"] for each in found}
    assert components == {"operator", "release", "selftest"}


def test_what_releases_finalizers_logs_as_the_operator_does(helm: Path, tmp_path: Path) -> None:
    """Its own settings read it."""
    chosen = {"logLevel": "DEBUG", "logFormat": "text"}
    made = render(helm, CHART, "--values", values(tmp_path, chosen))
    for kind in ("Deployment", "Job"):
        (container,) = only(made, kind)["spec"]["template"]["spec"]["containers"]
        told = parse([], {each["name"]: each.get("value", "") for each in container["env"]})
        assert (told.log_level, told.log_format) == ("DEBUG", "text")


def test_an_account_that_is_there_gets_the_rights(helm: Path) -> None:
    """The chart makes none of its own then, and the operator runs as that one."""
    words = ("--set", "serviceAccount.create=false", "--set", "serviceAccount.name=ours")
    made = render(helm, CHART, *words)

    accounts = {each["metadata"]["name"] for each in made if each["kind"] == "ServiceAccount"}
    assert accounts == {"release-orderlymq-release", "release-orderlymq-selftest"}
    pod = only(made, "Deployment")["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "ours"
    for name in ("release-orderlymq:system", "release-orderlymq-lease", "release-orderlymq"):
        (binding,) = (
            each
            for each in made
            if each["kind"].endswith("Binding") and each["metadata"]["name"] == name
        )
        assert [each["name"] for each in binding["subjects"]] == ["ours"]


@pytest.mark.parametrize("user", [1_000_720_000, None], ids=["a user", "the admission's"])
def test_the_cluster_of_helm_test_runs_where_the_chart_runs_and_as_whom(
    helm: Path, tmp_path: Path, user: int | None
) -> None:
    """Law: where the operator may run, the test can pass: on nodes with taints, and under OpenShift's restricted-v2."""
    terms = [{"matchExpressions": [{"key": "disk", "operator": "In", "values": ["fast"]}]}]
    nodes = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    placed: dict[str, Any] = {
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "dedicated", "operator": "Equal", "value": "system"}],
        "affinity": {"nodeAffinity": nodes},
        "priorityClassName": "important",
    }
    labels = {"podLabels": {"team": "mq"}}
    numbers = dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), user)
    made = render(
        helm,
        CHART,
        "--values",
        values(tmp_path, {**placed, **labels, "podSecurityContext": numbers}),
    )
    (container,) = only(made, "Pod")["spec"]["containers"]
    program = tmp_path / "selftest.py"
    program.write_text(only(made, "ConfigMap", "-selftest")["data"]["selftest.py"])

    *_, name, template = container["command"]
    manifests = runpy.run_path(str(program))["objects"](name, json.loads(template))
    (cluster, *_) = (KINDS[each["kind"]].model_validate(each) for _, each in manifests)
    assert isinstance(cluster, Cluster)
    assert cluster.spec.pod_template is not None
    said = cluster.spec.pod_template.model_dump(by_alias=True, exclude_unset=True)
    users = {key: value for key, value in numbers.items() if value is not None}
    assert said == {**placed, "labels": {"team": "mq"}, "securityContext": users}


def test_pull_secrets_reach_every_pod_of_the_chart_and_what_the_operator_makes(
    helm: Path, tmp_path: Path
) -> None:
    """The operator gets their names, and its own settings read them."""
    chosen = {"imagePullSecrets": [{"name": "one"}, {"name": "two"}]}
    made = render(helm, CHART, "--values", values(tmp_path, chosen))

    every = pods(made)
    assert [pod.get("imagePullSecrets") for pod in every] == [chosen["imagePullSecrets"]] * 3
    (container,) = only(made, "Deployment")["spec"]["template"]["spec"]["containers"]
    told = {each["name"]: each.get("value", "") for each in container["env"]}
    assert parse([], told).pull_secrets == ("one", "two")


def test_the_users_of_the_charts_pods_may_be_left_to_the_clusters_admission(helm: Path) -> None:
    """OpenShift refuses numbers that are not of the namespace's range."""

    def users(*words: str) -> list[dict[str, Any]]:
        return [pod["securityContext"] for pod in pods(render(helm, CHART, *words))]

    profile = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    numbers = dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), 10001)
    assert users() == [profile | numbers] * 3
    nulls = [word for name in numbers for word in ("--set", f"podSecurityContext.{name}=null")]
    assert users(*nulls) == [profile] * 3
    some = users("--set", "podSecurityContext.runAsUser=1000720000")
    assert some == [profile | numbers | {"runAsUser": 1_000_720_000}] * 3


def test_what_follows_the_end_needs_no_namespace_but_that_of_the_release(
    helm: Path, tmp_path: Path
) -> None:
    """`helm uninstall` would fail for a namespace that was served and is gone."""
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
    """`make dist` packs what Helm would pack."""
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
        (("--kube-version", "1.28.0"), "incompatible with Kubernetes"),
    ],
)
def test_what_cannot_work_is_refused(helm: Path, words: tuple[str, ...], said: str) -> None:
    """Unknown values, values of another type, names that Kubernetes refuses, an old Kubernetes.

    The schema says it, and no template breaks.
    """
    version = ("--kube-version", OLDEST_KUBERNETES)  # a word that comes later wins
    done = run(helm, "template", "release", CHART, *version, *words)

    assert done.returncode != 0
    assert said in done.stderr
    assert "executing" not in done.stderr


def test_the_notes_speak_of_the_namespaces_that_are_served(helm: Path, tmp_path: Path) -> None:
    """And of what the values leave to people: pull secrets, and who may scrape the operator."""
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
    assert "open the registry: registry." in served
    assert "registry" not in own
    scraped = {"serviceMonitor": {"enabled": True}}
    peers: list[dict[str, Any]] = [{"namespaceSelector": {}}]
    warned = [
        "networkPolicy.monitoring" in notes(metrics=scraped, networkPolicy=policy)
        for policy in ({}, {"monitoring": peers}, {"enabled": False})
    ]
    assert warned == [True, False, False]


def test_no_two_releases_share_a_name_without_namespace(helm: Path) -> None:
    """The later one could not be installed. Names and namespaces may have hyphens."""
    found: Counter[tuple[str, str]] = Counter()
    for name, namespace in (("mq", "a"), ("mq", "a-view"), ("mq-a", "view"), ("mq-release", "a")):
        words = ("--namespace", namespace, "--set", f"fullnameOverride={name}")
        for each in render(helm, CHART, "--kube-version", "1.30.0", *words):
            meta = each["metadata"]
            if "namespace" not in meta and each["kind"] != "CustomResourceDefinition":
                found[each["kind"], meta["name"]] += 1
    assert max(found.values()) == 1, found


def test_every_name_that_helm_allows_is_one_for_kubernetes(helm: Path, tmp_path: Path) -> None:
    """Names that YAML reads as numbers stay texts, and the Service begins with a letter and has no dot."""
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
    """Those that YAML reads as something else, too; a pull secret may have any name of a Secret."""
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
    """Null takes a value away: those that the chart cannot do without are required, and all others render."""
    kept: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())

    def without(value: dict[str, Any], rules: dict[str, Any]) -> dict[str, Any]:
        """Take away what *rules* do not require."""
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
