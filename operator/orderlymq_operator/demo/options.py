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


class ProducerOptions(msgspec.Struct, frozen=True):
    """The options of a producer process."""

    run: str
    process: str
    name_servers: str
    topic: str
    history: str
    seconds: float
    orders_at_once: int
    pause_s: float


class ConsumerOptions(msgspec.Struct, frozen=True):
    """The options of a consumer process."""

    run: str
    process: str
    name_servers: str
    topic: str
    group: str
    history: str
