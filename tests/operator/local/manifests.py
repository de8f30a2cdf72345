"""Manifests of a small local cluster for tests."""

from orderlymq_operator.resources.manifests.reader import Manifest, parse


def text(port: int, *, queues: int = 8, extra: str = "", replicas: int = 3) -> str:
    """Return a cluster with a name server on *port*, an ordered topic and a group."""
    return f"""
apiVersion: orderlymq.io/v1alpha1
kind: Cluster
metadata: {{name: demo}}
spec:
  replicasPerGroup: {replicas}
  nameServers: {{replicas: 1}}
  local:
    nameServerPort: {port}
    brokerPort: {port + 12}
    raftPort: {port + 20}
    httpPort: {port + 40}
---
apiVersion: orderlymq.io/v1alpha1
kind: Topic
metadata: {{name: orders}}
spec: {{clusterRef: {{name: demo}}, queues: {queues}}}
---
apiVersion: orderlymq.io/v1alpha1
kind: ConsumerGroup
metadata: {{name: billing}}
spec: {{clusterRef: {{name: demo}}}}
{extra}
"""


def normal_topic(queues: int, policy: str = "Retain") -> str:
    """Return one more document."""
    return f"""
---
apiVersion: orderlymq.io/v1alpha1
kind: Topic
metadata: {{name: clicks}}
spec: {{clusterRef: {{name: demo}}, type: Normal, queues: {queues}, deletionPolicy: {policy}}}
"""


def manifests(port: int, **facts: int) -> list[Manifest]:
    """Return `text` as manifests."""
    return parse(text(port, **facts), "test.yaml")  # type: ignore[arg-type]  # numbers only
