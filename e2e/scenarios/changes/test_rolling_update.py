"""Settings and images are rolled out broker by broker, the leader last, while messages flow."""

import pytest

from e2e.orders import Orders, kept
from e2e.space import Space

BROKERS = "orderlymq.io/cluster=demo,app.kubernetes.io/component=broker"
READY = ("cluster/demo", "topic/orders", "consumergroup/billing")


@pytest.mark.ci
def test_a_changed_setting_rolls_through_the_group_under_load(space: Space, orders: Orders) -> None:
    """Every pod is replaced once, never two together, and no message is lost or out of order."""
    space.example("quickstart.yaml")
    space.ready(*READY)
    orders.start()
    before = space.uids(BROKERS)

    space.patch("cluster/demo", {"config": {"tailCacheSize": "32Mi"}})

    fewest = space.rolled(BROKERS, before, timeout_s=300)
    space.ready(*READY)
    assert fewest >= len(before) - 1, "two replicas were away at once"
    kept(orders.finish())


def test_an_image_that_does_not_exist_stops_after_one_pod_and_heals(space: Space) -> None:
    """The condition names the image; two of three replicas continue; the right image repairs the Cluster."""
    space.example("quickstart.yaml")
    space.ready(*READY)
    before = space.uids(BROKERS)

    space.patch("cluster/demo", {"image": "orderlymq:no-such-tag", "imagePullPolicy": "Never"})

    found = space.says("cluster/demo", "ImageUnavailable", timeout_s=120)
    assert "no-such-tag" in found["message"], found
    assert len(set(space.uids(BROKERS).values()) & set(before.values())) == len(before) - 1

    space.patch("cluster/demo", {"image": space.image, "imagePullPolicy": "IfNotPresent"})
    space.ready(*READY)
