"""The README's quick start, and the resources that it needs."""

import pytest

from e2e.orders import Orders, kept
from e2e.space import Property, Space

ALL = (
    "cluster.orderlymq.io/demo",
    "topic.orderlymq.io/orders",
    "consumergroup.orderlymq.io/billing",
)


@pytest.mark.ci
def test_the_quick_start_is_ready_within_a_minute_and_keeps_the_order(
    space: Space, orders: Orders, record_property: Property
) -> None:
    """The file that `make run` uses is applied unchanged, and then the application."""
    space.example("quickstart.yaml")
    record_property("ready_s", space.ready(*ALL))

    orders.start()
    space.until(lambda: orders.acknowledged() > 500, "500 sends", 60)

    kept(orders.finish(), at_least=500)


def test_kubectl_get_mq_shows_every_kind_with_columns_worth_reading(space: Space) -> None:
    """One command shows all objects and their condition."""
    space.example("quickstart.yaml")
    space.ready(*ALL)

    shown = space.kubectl("get", "mq")

    for word in (
        "cluster.orderlymq.io/demo",
        "LEADERS",
        "1/1",
        "QUEUES",
        "ORDERING",
        "READY",
        "True",
    ):
        assert word in shown, shown
