"""Objects are edited while the operator works on them, and objects of the operator are edited by hand."""

import pytest

from e2e.space import Space

READY = ("cluster/demo", "topic/orders", "consumergroup/billing")


def test_the_last_of_many_edits_wins(space: Space) -> None:
    """A Cluster is edited again before the former edit is carried out; the last edit counts."""
    space.example("quickstart.yaml")
    for replicas in (1, 2, 3):
        space.patch("cluster/demo", {"nameServers": {"replicas": replicas}})
        space.kubectl("label", "cluster/demo", f"round={replicas}", "--overwrite")

    space.ready(*READY)

    assert space.must("statefulset/demo-nameserver")["spec"]["replicas"] == 3
    assert space.must("cluster/demo")["metadata"]["labels"]["round"] == "3"


def test_a_stateful_set_that_was_edited_by_hand_is_repaired(space: Space) -> None:
    """The operator repairs its own fields when a watch shows the change; additions of others stay."""
    space.example("quickstart.yaml")
    space.ready(*READY)

    space.kubectl("label", "service/demo-0", "orderlymq.io/cluster-", "mine=yes")
    space.kubectl("delete", "pdb/demo-0")

    space.until(
        lambda: (
            space.must("service/demo-0")["metadata"]["labels"].get("orderlymq.io/cluster") == "demo"
        ),
        "the label is back",
        90,
    )
    space.until(lambda: space.get("pdb/demo-0") is not None, "the budget is back", 90)
    assert space.must("service/demo-0")["metadata"]["labels"]["mine"] == "yes"


@pytest.mark.ci
def test_a_topic_may_come_before_its_cluster(space: Space) -> None:
    """The Topic says what it waits for, and continues by itself."""
    early = """
apiVersion: orderlymq.io/v1alpha1
kind: Topic
metadata: {name: early}
spec: {clusterRef: {name: demo}, queues: 4}
"""
    space.kubectl("delete", "cluster/demo", "--ignore-not-found", "--timeout=60s")
    space.apply(early)
    space.says("topic/early", "ClusterNotFound")

    space.example("quickstart.yaml")

    space.ready("topic/early")


def test_of_two_topics_with_one_name_the_oldest_wins(space: Space) -> None:
    """The other one says Conflict, and takes over when the first is deleted."""
    space.example("quickstart.yaml")
    space.ready(*READY)
    second = """
apiVersion: orderlymq.io/v1alpha1
kind: Topic
metadata: {name: second}
spec: {clusterRef: {name: demo}, topicName: orders, queues: 8}
"""
    space.apply(second)

    space.says("topic/second", "Conflict")
    assert (space.condition("topic/orders") or {})["status"] == "True"

    space.kubectl("delete", "topic/orders")
    space.ready("topic/second")
