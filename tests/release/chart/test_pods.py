"""The pods of the chart and of `helm test`: their nodes, users, labels and secrets."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from orderlymq_operator.kube.settings import parse
from orderlymq_operator.resources.kinds import KINDS, Cluster
from tests.release.chart.rendering import (
    CHART,
    only,
    pods,
    render,
    values,
)

pytestmark = [pytest.mark.go, pytest.mark.long, pytest.mark.timeout(1_200)]


def test_every_pod_of_the_chart_runs_on_the_nodes_that_are_chosen(
    helm: Path, tmp_path: Path
) -> None:
    """All pods have the chosen nodes, even those of hooks and `helm test`, which would never start if all nodes had taints."""
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
    """No policy that requires a label refuses a pod; selectors use the chart's own labels."""
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
    """The job reads the same settings for logs as the operator."""
    chosen = {"logLevel": "DEBUG", "logFormat": "text"}
    made = render(helm, CHART, "--values", values(tmp_path, chosen))
    for kind in ("Deployment", "Job"):
        (container,) = only(made, kind)["spec"]["template"]["spec"]["containers"]
        told = parse([], {each["name"]: each.get("value", "") for each in container["env"]})
        assert (told.log_level, told.log_format) == ("DEBUG", "text")


def test_an_account_that_is_there_gets_the_rights(helm: Path) -> None:
    """With an existing account the chart makes none, and the operator runs with the existing one."""
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
    """Law: wherever the operator can run, the test can pass: on nodes with taints, and under OpenShift's restricted-v2."""
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
    """The operator gets the names of the secrets, and its own settings read them."""
    chosen = {"imagePullSecrets": [{"name": "one"}, {"name": "two"}]}
    made = render(helm, CHART, "--values", values(tmp_path, chosen))

    every = pods(made)
    assert [pod.get("imagePullSecrets") for pod in every] == [chosen["imagePullSecrets"]] * 3
    (container,) = only(made, "Deployment")["spec"]["template"]["spec"]["containers"]
    told = {each["name"]: each.get("value", "") for each in container["env"]}
    assert parse([], told).pull_secrets == ("one", "two")


def test_the_users_of_the_charts_pods_may_be_left_to_the_clusters_admission(helm: Path) -> None:
    """OpenShift refuses user ids outside the range of the namespace."""

    def users(*words: str) -> list[dict[str, Any]]:
        return [pod["securityContext"] for pod in pods(render(helm, CHART, *words))]

    profile = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    numbers = dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), 10001)
    assert users() == [profile | numbers] * 3
    nulls = [word for name in numbers for word in ("--set", f"podSecurityContext.{name}=null")]
    assert users(*nulls) == [profile] * 3
    some = users("--set", "podSecurityContext.runAsUser=1000720000")
    assert some == [profile | numbers | {"runAsUser": 1_000_720_000}] * 3
