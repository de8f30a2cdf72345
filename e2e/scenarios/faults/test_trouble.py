"""Mistakes of users and faults of machines: a condition shows each with a reason, and clears with its cause."""

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from e2e.installed import Operator
from e2e.machine import MachineError, say
from e2e.manifests import part, small, storage_class
from e2e.orders import Orders, kept
from e2e.space import Property, Space
from orderlymq.oracle.verdict import Kind

BROKER = "orderlymq.io/cluster={},app.kubernetes.io/component=broker"
READY = ("cluster/demo", "topic/orders", "consumergroup/billing")
AWAY_S = 60.0


def test_a_right_that_is_taken_away_is_named_and_works_again_when_it_is_granted(
    space: Space, operator: Operator
) -> None:
    """The Cluster says Forbidden, even after a restart of the operator; the pending work is done afterwards."""
    space.apply(small("poor"), part("Topic", "before", "poor"))
    space.ready("cluster/poor", "topic/before")

    with operator.without(space.name, "statefulsets"):
        space.patch("cluster/poor", {"nameServers": {"replicas": 2}})
        found = space.says("cluster/poor", "Forbidden", timeout_s=90)
        assert "statefulsets" in found["message"], found
        operator.kubectl("delete", "pods", "-l", operator.selector, "--wait=false")
        operator.until(lambda: operator.leaders() == [1], "the new operator leads", 120)
        space.patch("cluster/poor", {"nameServers": {"replicas": 3}})
        space.until(
            lambda: (
                (space.condition("cluster/poor") or {})["reason"] == "Forbidden"
                and (space.condition("cluster/poor") or {}).get("observedGeneration", 0)
                == space.must("cluster/poor")["metadata"]["generation"]
            ),
            "it is reported for the newest generation, too",
            90,
        )

    space.ready("cluster/poor", timeout_s=240)
    assert space.must("statefulset/poor-nameserver")["spec"]["replicas"] == 3


def test_without_the_api_server_messages_flow_and_afterwards_everything_is_tended_again(
    space: Space, orders: Orders, operator: Operator
) -> None:
    """The control plane is paused for a minute, and no broker is restarted because of that."""
    if not space.machine.kind:
        pytest.skip("only kind's control plane can be stopped from here")
    space.example("quickstart.yaml")
    space.ready(*READY)
    orders.start()
    before = space.uids(BROKER.format("demo"))
    node = f"{space.machine.kind}-control-plane"

    say(f"{node} stands still")
    space.machine.run("docker", "pause", node)
    paused_ns = time.monotonic_ns()
    try:
        time.sleep(AWAY_S)
    finally:
        goes_on_ns = time.monotonic_ns()
        space.machine.run("docker", "unpause", node)
    space.until(lambda: _answers(space), "the API server answers", 120)

    def meanwhile() -> int:
        acks = [event.at for event in orders.history() if event.kind is Kind.ACK]
        return sum(paused_ns < at < goes_on_ns for at in acks)

    space.until(lambda: meanwhile() > 1_000, "sends went on meanwhile", 60)
    space.apply(part("Topic", "after", "demo"))
    space.ready(*READY, "topic/after", timeout_s=240)
    assert space.uids(BROKER.format("demo")) == before
    kept(orders.finish())
    assert operator.leaders() == [1]


def test_of_two_operators_one_acts_and_the_other_takes_over(
    space: Space, operator: Operator, record_property: Property
) -> None:
    """The lease decides; the standby writes nothing; a leading one that dies is replaced when its lease ends."""
    space.apply(small("shared"))
    space.ready("cluster/shared")
    with operator.replicas(2):
        operator.until(lambda: sorted(operator.leaders()) == [0, 1], "one of two leads", 90)
        (leader,) = [name for name, leads in operator.leading().items() if leads]
        (idle,) = [name for name, leads in operator.leading().items() if not leads]
        space.apply(part("Topic", "one", "shared"))
        space.ready("topic/one")
        assert operator.writes(idle) == 0

        operator.kill(leader)
        record_property(
            "followed_s", operator.until(lambda: 1 in operator.leaders(), "another one leads", 90)
        )
        space.apply(part("Topic", "two", "shared"))
        space.ready("topic/two", "cluster/shared")


def test_an_operator_of_a_second_release_stands_by_and_says_so(
    space: Space, operator: Operator
) -> None:
    """A second operator for the same namespaces is not ready, names the first one, and writes nothing."""
    second = replace(
        operator,
        name=space.name,
        release="ob-second",
        values=(*operator.values, "crds.install=false"),
    )
    second.install(wait=False)
    try:
        second.until(lambda: second.leaders() == [0], "the second one stands by", 120)
        second.until(lambda: "is already active" in second.log(), "it says why", 60)
        assert f"namespace {operator.name} " in second.log()
        space.apply(small("served"), part("Topic", "one", "served"))
        space.ready("cluster/served", "topic/one")
        (pod,) = second.pods(second.selector)
        assert second.writes(pod["metadata"]["name"]) == 0
        assert {
            each["status"] for each in pod["status"]["conditions"] if each["type"] == "Ready"
        } == {"False"}
        assert operator.leaders() == [1]
    finally:
        second.uninstall()

    space.apply(part("Topic", "two", "served", deletionPolicy="Delete"))
    space.ready("topic/one", "topic/two")
    space.kubectl("delete", "topic/two", "--timeout=60s")


@pytest.fixture
def classes(space: Space) -> Iterator[list[str]]:
    """StorageClasses belong to no namespace, so those of a scenario are removed by name."""
    made: list[str] = []
    yield made
    for name in made:
        space.kubectl("delete", "storageclass", name, "--ignore-not-found")


def test_a_volume_that_cannot_be_bound_is_named_and_bound_when_its_class_comes(
    space: Space, classes: list[str]
) -> None:
    """VolumePending names the class; the Cluster needs no further edit."""
    name = f"{space.name}-later"
    classes.append(name)
    space.apply(small("unbound", storage={"className": name, "size": "64Mi"}))
    found = space.says("cluster/unbound", "VolumePending", timeout_s=90)
    assert name in found["message"], found

    space.apply(storage_class(name, _standard(space), expandable=False))

    space.ready("cluster/unbound", timeout_s=240)


def test_a_pod_that_no_node_has_room_for_is_named_and_smaller_requests_heal_it(
    space: Space,
) -> None:
    """The reason is shown from the start, before any replica has run."""
    space.apply(small("huge", resources={"requests": {"cpu": "500"}}))
    found = space.says("cluster/huge", "Unschedulable", timeout_s=90)
    assert "cpu" in found["message"], found

    space.patch("cluster/huge", {"resources": {"requests": {"cpu": "10m"}}})

    space.ready("cluster/huge", timeout_s=180)


def test_a_cluster_that_begins_with_an_image_that_does_not_exist_heals_when_it_is_corrected(
    space: Space,
) -> None:
    """Brokers and name servers behave alike here, none of which has run yet."""
    space.apply(small("blank", image="orderlymq:no-such-tag", imagePullPolicy="Never"))
    found = space.says("cluster/blank", "ImageUnavailable", timeout_s=90)
    assert "no-such-tag" in found["message"], found

    space.patch("cluster/blank", {"image": space.image, "imagePullPolicy": "IfNotPresent"})

    space.ready("cluster/blank", timeout_s=180)


@pytest.mark.ci
def test_a_stateful_set_that_was_edited_by_hand_is_put_right_and_loses_no_replica(
    space: Space,
) -> None:
    """The operator resets number and image of the replicas; running pods are not touched."""
    space.apply(small("touched", replicasPerGroup=3))
    space.ready("cluster/touched")
    before = space.uids(BROKER.format("touched"))
    wanted = space.must("statefulset/touched-0")["spec"]

    space.patch(
        "statefulset/touched-0",
        {
            "replicas": 4,
            "template": {
                "spec": {"containers": [{"name": "broker", "image": "somebody-elses:image"}]}
            },
        },
    )

    def put_right() -> bool:
        found = space.must("statefulset/touched-0")["spec"]
        image = found["template"]["spec"]["containers"][0]["image"]
        return bool(
            found["replicas"] == wanted["replicas"]
            and image == wanted["template"]["spec"]["containers"][0]["image"]
        )

    space.until(put_right, "the StatefulSet is as it was", 90)
    space.until(
        lambda: space.uids(BROKER.format("touched")) == before, "the pods are those of before", 90
    )
    space.ready("cluster/touched")


def test_a_finalizer_that_is_left_behind_goes_when_an_operator_comes(
    space: Space, operator: Operator
) -> None:
    """A topic that was deleted without an operator is deleted on the brokers, or with its Cluster, and blocks nothing."""
    space.apply(
        small("left"),
        part("Topic", "alone", "left", deletionPolicy="Delete"),
        part("Topic", "orphan", "gone", deletionPolicy="Delete"),
    )
    space.ready("cluster/left", "topic/alone")
    space.says("topic/orphan", "ClusterNotFound")
    with operator.away():
        # As another operator, or a user, may have left it.
        finalizer = {"metadata": {"finalizers": ["orderlymq.io/broker"]}}
        space.merge("topic/orphan", finalizer)
        space.kubectl("delete", "topic/alone", "topic/orphan", "--wait=false")
        time.sleep(2)
        assert space.get("topic/alone") is not None
        assert space.get("topic/orphan") is not None

    space.until(lambda: space.get("topic/alone") is None, "the deleted topic goes", 60)
    space.until(lambda: space.get("topic/orphan") is None, "the orphan goes", 60)


def _standard(space: Space) -> dict[str, object]:
    for found in space.items("storageclasses"):
        notes = found["metadata"].get("annotations") or {}
        if notes.get("storageclass.kubernetes.io/is-default-class") == "true":
            return found
    raise AssertionError("the cluster has no default StorageClass")


def _answers(space: Space) -> bool:
    try:
        space.kubectl("get", "namespace", space.name, "--request-timeout=5s", timeout_s=15)
    except (MachineError, TimeoutError):
        return False
    return True
