"""The options of the demo and of its processes; the processes get theirs as JSON on the command line."""

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The options of the demo.

    Attributes:
        seconds: how long new orders begin.
        kill: whether the leader is killed half way.
    """

    seconds: float = 12.0
    kill: bool = True
    topic: str = "orders"
    group: str = "billing"


class MemberOptions(msgspec.Struct, frozen=True):
    """The options of a producer or consumer process.

    Attributes:
        group: consumer group of a consumer.
        seconds: how long a producer begins new orders.
        orders_at_once: how many orders a producer has under way.
        pause_s: the pause between two steps of an order.
    """

    run: str
    process: str
    name_servers: str
    topic: str
    group: str
    history: str
    seconds: float
    orders_at_once: int
    pause_s: float
