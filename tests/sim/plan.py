"""What one seed decides before the run begins: sizes, habits and which kinds of trouble it will see."""

import random
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of a run; shares are between 0 and 1.

    Attributes:
        find_leader: how often a client that connects goes to whoever serves.
        long_listener: share of listener calls that take up to two leases.
        manual_commits: share of listener calls with auto_commit off.
        troubles: names of the faults that may happen (``faults.py``).
        every_us: mean time between two faults.
    """

    replicas: int
    queues: int
    producers: int
    consumers: int
    plain_consumers: int
    think_max_us: int
    entries_kept: int
    tail_size: int
    find_leader: float
    long_listener: float
    manual_commits: float
    poison: float
    every_us: int
    safety_us: int
    troubles: tuple[str, ...] = field(default=())


def draw(chance: random.Random, troubles: tuple[str, ...]) -> Plan:
    """Return the plan of a seed: not everything goes wrong in every run, or little would be reached."""
    chosen = tuple(name for name in troubles if chance.random() < 0.5)
    return Plan(
        replicas=5 if chance.random() < 0.2 else 3,
        queues=chance.choice((1, 2, 4)),
        producers=chance.choice((1, 2, 3)),
        consumers=chance.choice((1, 2, 3)),
        plain_consumers=chance.choice((0, 1, 2)),
        think_max_us=chance.choice((60_000, 200_000, 400_000)),
        entries_kept=chance.choice((30, 100, 20_000)),
        tail_size=chance.choice((1, 4_000, 1 << 20)),
        find_leader=chance.choice((0.5, 0.9, 1.0)),
        long_listener=chance.choice((0.0, 0.0, 0.02)),
        manual_commits=chance.choice((0.0, 0.0, 0.3)),
        poison=chance.choice((0.0, 0.05)),
        every_us=chance.choice((400_000, 1_000_000, 2_500_000)),
        safety_us=chance.choice((8_000_000, 12_000_000)),
        troubles=chosen,
    )
