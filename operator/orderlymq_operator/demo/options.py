"""The options of the demo and of its processes; the processes get theirs as JSON on the command line."""

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """How the demo is played.

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
        group: of a consumer.
        seconds: how long a producer begins new orders.
        orders_at_once, pause_s: how many orders a producer has under way, and the pause between two steps of one.
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
