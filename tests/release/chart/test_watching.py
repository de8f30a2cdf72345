"""The chart's monitoring of its clusters: alerts, scrapes, dashboards."""

import re
from pathlib import Path
from typing import Any

import pytest
from release.distributions import project

from orderlymq_operator.kube.objects import console, names
from orderlymq_operator.resources.cluster.canary import CANARY_COMPONENT
from tests.release.chart.rendering import (
    ALL_ON,
    CHART,
    only,
    render,
    values,
)

pytestmark = [pytest.mark.go, pytest.mark.long, pytest.mark.timeout(1_200)]


def test_alerts_link_to_the_page_that_says_what_to_do(helm: Path, tmp_path: Path) -> None:
    """The page is in the project's repository, or at the address that the values name."""
    chosen = values(tmp_path, ALL_ON)
    own = "https://docs.example/alerts"
    for words, page in [
        ((), f"{project()['urls']['Repository']}/blob/main/docs/reference/alerts.md"),
        (("--set", f"metrics.prometheusRule.runbookUrl={own}"), own),
    ]:
        made = only(render(helm, CHART, "--values", chosen, *words), "PrometheusRule")
        for rule in made["spec"]["groups"][0]["rules"]:
            assert rule["annotations"]["runbook_url"] == f"{page}#{rule['alert'].lower()}"


def test_each_release_watches_its_own_operator(helm: Path, tmp_path: Path) -> None:
    """Another release may have a leading operator in the same Prometheus."""
    made = only(render(helm, CHART, "--values", values(tmp_path, ALL_ON)), "PrometheusRule")
    (rule,) = (
        each
        for each in made["spec"]["groups"][0]["rules"]
        if each["alert"] == "OrderlyMQNoOperatorLeads"
    )

    assert rule["expr"] == 'absent(orderlymq_operator_leading{namespace="system"} == 1)'
    assert rule["labels"]["namespace"] == "system"
    assert "RELEASE_NAMESPACE" not in str(made)


def test_pods_are_scraped_as_they_say(helm: Path, tmp_path: Path) -> None:
    """The scheme is https if the operator's annotation says so; certificates name no pod, so names are compared only on request."""
    made = render(helm, CHART, "--values", values(tmp_path, ALL_ON))
    (endpoint,) = only(made, "PodMonitor")["spec"]["podMetricsEndpoints"]

    annotation = re.sub(r"[^a-zA-Z0-9]", "_", names.ANNOTATION_SCHEME)
    (scheme,) = endpoint["relabelings"]
    assert scheme["sourceLabels"] == [f"__meta_kubernetes_pod_annotation_{annotation}"]
    assert scheme["targetLabel"] == "__scheme__"
    assert endpoint["tlsConfig"] == {"insecureSkipVerify": True}


def asked(monitor: dict[str, Any], component: str, scheme: str) -> list[tuple[str, bool]]:
    """Return, for each scrape of a pod, its scheme and whether it has the token, as Prometheus reads a PodMonitor."""
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
    """Each pod with metrics is scraped once, with or without a token of its Cluster; the console has no metrics."""
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
    """The files are included unchanged, because Grafana does not evaluate templates."""
    made = render(helm, CHART, "--values", values(tmp_path, ALL_ON))
    found = only(made, "ConfigMap", "-dashboard")["data"]

    files = (CHART / "files" / "dashboards").glob("*.json")
    assert found == {path.name: path.read_text().rstrip() for path in files}
