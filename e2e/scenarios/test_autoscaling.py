"""Consumers scale with their backlog, by the HPA between 1 and 4, and by KEDA's rule from and to none; the oracle checks."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import yaml
from tests.runtime.certificates import make_authority, make_certificate

from e2e.externalmetrics import API, PORT
from e2e.machine import ROOT, MachineError
from e2e.orders import Orders, kept
from e2e.space import Json, Property, Space

pytestmark = pytest.mark.timeout(900)

METRIC: Final = "orderlymq_group_backlog_messages"
NAME: Final = "external-metrics"
CONSUMER: Final = "deployment/orders-consumer"
MOST: Final = 4
TARGET: Final = (
    300  # messages for each consumer; the figure in examples/scaling/keda.yaml is for a day's load
)
# One consumer works on 8 queues at a time, a little faster than messages are sent: the HPA acts every 15 s.
WORK_MS: Final = 60
_SCALED_S: Final = 240.0
HPA: Final = {
    "apiVersion": "autoscaling/v2",
    "kind": "HorizontalPodAutoscaler",
    "metadata": {"name": "orders-consumer"},
    "spec": {
        "scaleTargetRef": {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "name": "orders-consumer",
        },
        "minReplicas": 1,
        "maxReplicas": MOST,
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
        "metrics": [
            {
                "type": "External",
                "external": {
                    "metric": {
                        "name": METRIC,
                        "selector": {"matchLabels": {"group": "billing"}},
                    },
                    "target": {"type": "AverageValue", "averageValue": str(TARGET)},
                },
            }
        ],
    },
}


@pytest.fixture
def metrics(space: Space, tmp_path: Path) -> Iterator[None]:
    """Register an adapter for the group `demo-0` with the API server."""
    host = f"{NAME}.{space.name}.svc"
    files = make_certificate(make_authority(tmp_path), "adapter", host=host)
    assert files.certificate is not None
    assert files.key is not None
    group, _, version = API.partition("/")
    service = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"{version}.{group}"},
        "spec": {
            "group": group,
            "version": version,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "caBundle": base64.b64encode((tmp_path / "ca.pem").read_bytes()).decode(),
            "service": {"name": NAME, "namespace": space.name, "port": PORT},
        },
    }
    texts = {"tls.crt": files.certificate.read_text(), "tls.key": files.key.read_text()}
    made = (*_adapter(space, texts), service)
    space.apply(*(yaml.safe_dump(each) for each in made))
    try:
        yield
    finally:  # a namespace is not deleted while one of the API groups does not answer
        space.kubectl("delete", "apiservice", f"{version}.{group}")
        space.kubectl("delete", "hpa", "--all")


def _adapter(space: Space, texts: dict[str, str]) -> list[Json]:
    labels = {"app": NAME}
    program = (ROOT / "e2e" / "externalmetrics.py").read_text()
    container = {
        "name": "adapter",
        "image": space.image,
        "command": ["python", "/program/externalmetrics.py"],
        "env": [{"name": "PAGE", "value": "http://demo-0:13910/metrics"}],
        "ports": [{"containerPort": PORT}],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
        "volumeMounts": [
            {"name": "program", "mountPath": "/program"},
            {"name": "tls", "mountPath": "/tls"},
        ],
    }
    volumes = [
        {"name": "program", "configMap": {"name": NAME}},
        {"name": "tls", "secret": {"secretName": NAME}},
    ]
    meta = {"name": NAME}
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": meta,
            "data": {"externalmetrics.py": program},
        },
        {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": texts},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta,
            "spec": {"selector": labels, "ports": [{"port": PORT}]},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": meta,
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"containers": [container], "volumes": volumes},
                },
            },
        },
    ]


def backlog(space: Space) -> int | None:
    """Return the backlog as the HPA reads it; None if it finds none."""
    path = f"/apis/{API}/namespaces/{space.name}/{METRIC}?labelSelector=group%3Dbilling"
    try:
        found = json.loads(space.kubectl("get", "--raw", path))
    except MachineError:
        return None
    return int(found["items"][0]["value"])


def wanted(space: Space) -> int:
    """Return the wanted number of consumers."""
    return int(space.must(CONSUMER)["spec"]["replicas"])


def resize(space: Space, count: int) -> None:
    """Scale as KEDA itself does: from none to one, and from one to none."""
    space.kubectl("scale", CONSUMER, f"--replicas={count}")
    space.until(lambda: len(space.items("pods", "app=orders-consumer")) == count, f"{count}", 90)


def _watched(made: Json) -> None:
    if made["kind"] == "Cluster":
        made["spec"]["network"] = {"monitoring": [{"podLabels": {"app": NAME}}]}


def test_consumers_follow_their_backlog_and_the_order_holds(
    space: Space, orders: Orders, metrics: None, record_property: Property
) -> None:
    """The HPA keeps at least one consumer; the rule of examples/scaling/keda.yaml starts the first and ends the last."""
    space.example("quickstart.yaml", _watched)
    space.ready("cluster/demo", "topic/orders", "consumergroup/billing")
    orders.start(consumers=1)
    space.until(lambda: backlog(space) is not None, "the API server answers with the backlog", 120)
    resize(space, 0)
    space.kubectl("set", "env", CONSUMER, f"ORDERS_WORK_MS={WORK_MS}")
    space.apply(yaml.safe_dump(HPA))
    space.until(lambda: (backlog(space) or 0) > 2 * MOST * TARGET, "messages wait", 120)
    assert wanted(space) == 0

    resize(space, 1)
    grown_s = space.until(lambda: wanted(space) == MOST, f"{MOST} consumers", _SCALED_S)
    space.until(lambda: len(set(orders.owners().values())) >= MOST, "all of them deliver", 120)
    space.kubectl("scale", "deploy/orders-producer", "--replicas=0")
    shrunk_s = space.until(lambda: wanted(space) == 1, "one consumer", _SCALED_S)
    space.until(lambda: backlog(space) == 0, "nothing waits", 120)
    resize(space, 0)

    record_property("grown_s", round(grown_s))
    record_property("shrunk_s", round(shrunk_s))
    kept(orders.finish(), at_least=2 * MOST * TARGET)
