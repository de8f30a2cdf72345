"""Small resources that tests start from."""

from typing import Any

from orderlymq_operator.resources.kinds import Cluster, ConsumerGroup, Desired, Pipeline, Topic


def cluster(name: str = "demo", **spec: Any) -> Cluster:
    return Cluster.model_validate({"metadata": {"name": name}, "spec": spec})


def topic(name: str = "orders", **spec: Any) -> Topic:
    facts = {"clusterRef": {"name": "demo"}, **spec}
    return Topic.model_validate({"metadata": {"name": name}, "spec": facts})


def group(name: str = "billing", **spec: Any) -> ConsumerGroup:
    facts = {"clusterRef": {"name": "demo"}, **spec}
    return ConsumerGroup.model_validate({"metadata": {"name": name}, "spec": facts})


def pipeline(name: str = "orders-archive", **spec: Any) -> Pipeline:
    facts = {
        "type": "archive",
        "clusterRef": {"name": "demo"},
        "source": {"topic": "orders"},
        "checkpoint": "checkpoint",
        "path": "archive",
        **spec,
    }
    meta = {"name": name, "namespace": "shop", "uid": f"uid-{name}"}
    return Pipeline.model_validate({"metadata": meta, "spec": facts})


def desired(*resources: Topic | ConsumerGroup, **spec: Any) -> Desired:
    return Desired(
        cluster(**{"nameServers": {"replicas": 1}, **spec}),
        tuple(item for item in resources if isinstance(item, Topic)),
        tuple(item for item in resources if isinstance(item, ConsumerGroup)),
    )
