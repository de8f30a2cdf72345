"""The chart: its objects are accepted by the API server, tested, upgraded and uninstalled."""

import json
from typing import Any

import pytest
import yaml

from e2e.installed import Operator
from e2e.machine import ROOT, Machine, MachineError
from e2e.orders import Orders, kept
from e2e.space import Space

CHART = str(ROOT / "charts" / "orderlymq")
READY = ("cluster/demo", "topic/orders", "consumergroup/billing")

VALUES: dict[str, list[str]] = {
    "its own namespace": [],
    "all namespaces": ["watchNamespaces={*}"],
    "some namespaces": ["watchNamespaces={default,kube-public}", "crds.install=false"],
    "everything on": [
        "metrics.dashboard.enabled=true",
        "podLabels.team=mq",
        "podAnnotations.note=yes",
        "nodeSelector.disk=fast",
        "tolerations[0].key=dedicated",
        "priorityClassName=high",
        "imagePullSecrets[0].name=registry",
        "serviceAccount.annotations.role=mq",
        "replicas=2",
    ],
}


def _render(machine: Machine, values: list[str]) -> list[dict[str, Any]]:
    sets = [word for value in values for word in ("--set", value)]
    version = json.loads(machine.run("kubectl", "version", "-o", "json"))["serverVersion"]
    command = ["helm", "template", "checked", CHART, "-n", "default", "--kube-version"]
    text = machine.run(*command, version["gitVersion"], *sets)
    return [item for item in yaml.safe_load_all(text) if item]


@pytest.mark.ci
@pytest.mark.parametrize("name", VALUES)
def test_every_object_is_accepted_by_the_api_server(
    bare: Space, machine: Machine, name: str
) -> None:
    """`helm lint` finds nothing, and every object passes the server's strict validation."""
    machine.run("helm", "lint", "--strict", CHART)
    for made in _render(machine, VALUES[name]):
        if made["kind"] in {"CustomResourceDefinition", "Pod"}:
            continue  # they exist already; a pod needs the account that is created with it
        bare.machine.run(
            "kubectl",
            "create",
            "--dry-run=server",
            "--validate=strict",
            "-f",
            "-",
            stdin=yaml.safe_dump(made),
        )


@pytest.mark.ci
@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("replicas=7", "replicas"),
        ("logLevel=LOUD", "logLevel"),
        ("imge.tag=x", "imge"),
        ("watchNamespaces={Not_A_Name}", "watchNamespaces"),
    ],
)
def test_a_wrong_value_is_refused_by_name(machine: Machine, value: str, words: str) -> None:
    """values.schema.json refuses values that would otherwise be ignored."""
    with pytest.raises(MachineError, match=words):
        _render(machine, [value])


@pytest.mark.ci
def test_monitoring_is_made_for_prometheus_and_grafana(machine: Machine) -> None:
    """ServiceMonitor, PodMonitor, PrometheusRule and dashboard are made only if they are switched on."""
    wanted = {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
    toggles = [f"metrics.{name}.enabled=true" for name in ("serviceMonitor", "prometheusRule")]

    assert not wanted & {made["kind"] for made in _render(machine, [])}
    page = "https://example.com/operator.md"
    link = f"metrics.prometheusRule.runbookUrl={page}"
    made = _render(machine, [*toggles, link, "metrics.dashboard.enabled=true"])
    assert wanted <= {item["kind"] for item in made}
    (monitor,) = [item for item in made if item["kind"] == "PodMonitor"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["tlsConfig"] == {"insecureSkipVerify": True}
    assert "authorization" not in endpoint
    (rule,) = [item for item in made if item["kind"] == "PrometheusRule"]
    alerts = [alert for group in rule["spec"]["groups"] for alert in group["rules"]]
    assert len(alerts) >= 10
    assert all(alert["annotations"]["runbook_url"].startswith(f"{page}#") for alert in alerts)
    (board,) = [item for item in made if item["metadata"]["name"].endswith("-dashboard")]
    assert json.loads(board["data"]["orderlymq.json"])["panels"]


@pytest.mark.ci
def test_prometheus_gets_the_token_of_the_pages(machine: Machine) -> None:
    """Prometheus checks the authority to which it may send the token, instead of skipping the check of certificates."""
    monitor = "metrics.serviceMonitor"
    toggles = [
        f"{monitor}.enabled=true",
        f"{monitor}.authorization.credentials.name=pages",
        f"{monitor}.authorization.credentials.key=token",
        f"{monitor}.tlsConfig.serverName=shop",
    ]

    (made,) = [item for item in _render(machine, toggles) if item["kind"] == "PodMonitor"]
    endpoint, plain = made["spec"]["podMetricsEndpoints"]

    assert "authorization" not in plain
    assert endpoint["scheme"] == "https"
    assert endpoint["authorization"] == {"credentials": {"name": "pages", "key": "token"}}
    assert endpoint["tlsConfig"] == {"serverName": "shop"}


@pytest.mark.ci
def test_nothing_runs_as_root_or_writes_to_its_root_file_system(machine: Machine) -> None:
    """Every pod of the chart meets the restricted profile."""
    pods = [
        made["spec"] if made["kind"] == "Pod" else made["spec"]["template"]["spec"]
        for made in _render(machine, [])
        if made["kind"] in {"Pod", "Deployment", "Job"}
    ]
    assert len(pods) == 3
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


@pytest.mark.ci
def test_helm_test_makes_a_cluster_and_consumes_in_order(operator: Operator, space: Space) -> None:
    """`helm test` checks the installation and leaves nothing."""
    shown = operator.test()

    assert "Phase:          Succeeded" in shown, shown
    assert space.name


def test_upgrade_and_uninstall_leave_running_clusters_alone(
    operator: Operator, space: Space, orders: Orders
) -> None:
    """No broker is restarted when an operator is installed, upgraded or removed, and objects can be deleted without it."""
    space.example("quickstart.yaml")
    space.ready(*READY)
    orders.start()
    before = space.uids("orderlymq.io/cluster=demo")

    operator.install("logLevel=DEBUG")
    space.ready(*READY)
    assert space.uids("orderlymq.io/cluster=demo") == before

    space.patch("topic/orders", {"deletionPolicy": "Delete"})
    space.ready("topic/orders")
    with operator.uninstalled():
        orders.until_acknowledged(100)
        assert space.uids("orderlymq.io/cluster=demo") == before
        kept(orders.finish())
        space.kubectl("delete", "topic/orders", "consumergroup/billing", "--timeout=30s")
    space.ready("cluster/demo")
    assert space.uids("orderlymq.io/cluster=demo") == before
