"""A broker group is removed: refused if its messages would be lost, drained if that is safe."""

from e2e.space import Space


def test_a_group_with_ordered_queues_stays_and_says_so(space: Space) -> None:
    """The condition names what holds the group; setting the number of groups back clears it."""
    space.apply(_cluster(2), _topic("kept", "Ordered"))
    space.ready("cluster/two", "topic/kept")

    space.patch("cluster/two", {"groups": 1, "scaleDown": {"policy": "Drain"}})
    space.says("cluster/two", "OrderedQueues", "ScaleDownBlocked", timeout_s=120)
    assert space.get("statefulset/two-1") is not None

    space.patch("cluster/two", {"groups": 2})
    space.says("cluster/two", "NotBlocked", "ScaleDownBlocked", timeout_s=120)


def test_an_empty_group_is_drained_and_goes(space: Space) -> None:
    """A group without ordered queues and without messages can be removed without loss."""
    space.apply(_cluster(2), _topic("moving", "Normal"))
    space.ready("cluster/two", "topic/moving")
    space.kubectl("delete", "topic/kept", "--ignore-not-found")

    space.patch("cluster/two", {"groups": 1, "scaleDown": {"policy": "Drain"}})

    space.until(lambda: space.get("statefulset/two-1") is None, "the group is gone", 240)
    space.ready("cluster/two", "topic/moving")


def _cluster(groups: int) -> str:
    return f"""
apiVersion: orderlymq.io/v1alpha1
kind: Cluster
metadata: {{name: two}}
spec: {{groups: {groups}, replicasPerGroup: 1, nameServers: {{replicas: 1}}}}
"""


def _topic(name: str, kind: str) -> str:
    return f"""
apiVersion: orderlymq.io/v1alpha1
kind: Topic
metadata: {{name: {name}}}
spec: {{clusterRef: {{name: two}}, type: {kind}, queues: 4}}
"""
