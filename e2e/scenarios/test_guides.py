"""Each command of the guides for Kubernetes has the described effect."""

import shlex
from pathlib import Path

import pytest
from tests.docs.tutorial import HOWTO, TUTORIALS, commands

from e2e.orders import Orders, kept
from e2e.space import Space

ALL = ("cluster/demo", "topic/orders", "consumergroup/billing")


def typed(page: str, *, section: str, folder: Path = HOWTO) -> list[list[str]]:
    """Return the arguments of `kubectl` in the lines of one section of a page."""
    lines = [shlex.split(line) for line in commands(folder / f"{page}.md", section)]
    return [words[1:] for words in lines if words[:1] == ["kubectl"]]


def _name(space: Space) -> str:
    """Return a consumer's name as a reader of the list of pods would take it."""
    return str(space.pods("app=orders-consumer")[0]["metadata"]["name"])


@pytest.mark.ci
def test_the_tutorial_goes_as_it_says(space: Space) -> None:
    """The fixtures do its installation; the last line of a section shows whether it succeeded."""
    for section in ("Make a cluster", "Run an application", "Kill a consumer"):
        for words in typed("kubernetes", section=section, folder=TUTORIALS):
            typing = [_name(space) if each == "POD" else each for each in words]
            shown = space.kubectl(*typing, timeout_s=240)
    assert "No violation was found" in shown

    (delete,) = typed("kubernetes", section="Clean up", folder=TUTORIALS)
    space.kubectl(*delete)
    assert space.get("cluster/demo") is None


def test_a_node_is_replaced_as_the_guide_says(space: Space, orders: Orders) -> None:
    """The node's replica, whose volume is bound to the node, is made on another node while orders flow."""
    space.example("quickstart.yaml")
    space.ready(*ALL)
    orders.start()
    for words in typed("replace-node", section="Before"):
        assert "demo" in space.kubectl(*words)
    for kind in ("QuorumHealthy", "FaultTolerant"):
        assert (space.condition("cluster/demo", kind) or {})["status"] == "True"

    node = space.node("demo-0-2")
    drain, *delete = typed("replace-node", section="A node that still works")
    try:
        space.kubectl(*(node if word == "NODE" else word for word in drain), timeout_s=240)
        for words in delete:
            space.kubectl(*words)
        space.until(
            lambda: space.node("demo-0-2") not in ("", node), "the replica is made elsewhere", 240
        )
        space.says("cluster/demo", "AllReplicasHealthy", "QuorumHealthy", timeout_s=240)
    finally:
        space.kubectl("uncordon", node)

    space.ready(*ALL, timeout_s=240)
    kept(orders.finish())


def test_a_lost_majority_is_seen_and_comes_back_as_the_guide_says(
    space: Space, orders: Orders
) -> None:
    """Two of three replicas fit on no node: the condition has the page's reason; when they fit again, clients continue."""
    space.example("quickstart.yaml")
    space.ready(*ALL)
    orders.start()
    orders.until_acknowledged(100)
    nodes = space.workers()
    try:
        for node in nodes:
            space.kubectl("cordon", node)
        for pod in ("demo-0-1", "demo-0-2"):
            space.kubectl("delete", "pod", pod, "--grace-period=0", "--force")
        space.says("cluster/demo", "GroupWithoutLeader", "Available", timeout_s=120)

        look = typed("lost-majority", section="1. Look")
        assert len(look) == 3
        for words in look:
            assert "demo" in space.kubectl(*words)
    finally:
        for node in nodes:
            space.kubectl("uncordon", node)

    space.ready(*ALL, timeout_s=240)
    orders.until_acknowledged(200)
    kept(orders.finish())
