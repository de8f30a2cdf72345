"""
A model of more cores and machines than were measured: from what a message costs one group, how many messages larger clusters take. Pure.

A process of a broker uses one core at most, and a group has one leader. So a group has a rate that no core beside it raises, and more
cores need more groups.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from bench.report.figures import shown

CORES: Final = (8, 16, 64)
MACHINES: Final = (3, 9, 30)
_REPLICAS: Final = 3
#: A core that is busy for longer makes sends wait for each other.
_BUSY: Final = 0.7
#: What a machine takes in or sends out, and what its disk writes: usual ones of today.
_NETWORK_BYTES_S: Final = 10e9 / 8
_DISK_BYTES_S: Final = 1e9
#: To the store's log first, then to its files, each time with 9 % of keys and indexes.
_WRITTEN: Final = 2 * 1.09


@dataclass(frozen=True, slots=True)
class Costs:
    """What one message of *size* bytes costs, measured.

    Attributes:
        leader_us: CPU time of the leader of its group.
        follower_us: CPU time of each of the two followers.
        written: bytes that a replica writes for a byte of the body.
    """

    leader_us: float
    follower_us: float
    size: int = 1024
    written: float = _WRITTEN


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a cluster takes.

    Attributes:
        rate: messages/s.
        groups: as few as reach it.
        bound: what stops it.
    """

    machines: int
    cores: int
    rate: float
    groups: int
    bound: str


def capacity(costs: Costs, machines: int, cores: int) -> Capacity:
    """Return what machines with so many cores each take, replicas and leaders spread evenly."""
    each_us = costs.leader_us + (_REPLICAS - 1) * costs.follower_us
    # Each copy comes in once; the leader sends out all but its own.
    bounds = {
        "processors": machines * cores * _BUSY * 1e6 / each_us,
        "network": machines * _NETWORK_BYTES_S / (costs.size * _REPLICAS),
        "disks": machines * _DISK_BYTES_S / (costs.size * costs.written * _REPLICAS),
    }
    bound = min(bounds, key=lambda name: bounds[name])
    return Capacity(
        machines, cores, bounds[bound], math.ceil(bounds[bound] / of_group(costs)), bound
    )


def of_group(costs: Costs) -> float:
    """Return the messages/s of one group, whose leader has a core."""
    return _BUSY * 1e6 / costs.leader_us


def lines(costs: Costs) -> Iterator[str]:
    """Yield the table of the model and its assumptions."""
    yield (
        f"A model, not a measurement: sends of {costs.size:,} bytes that cost the leader {shown(costs.leader_us)} µs and each follower"
        f" {shown(costs.follower_us)} µs of processor, as measured above with one group. One group takes at most"
        f" {of_group(costs):,.0f} messages/s."
    )
    yield ""
    yield "| machines | cores each | messages/s | groups | replicas on a machine | bound by |"
    yield "|---|---|---|---|---|---|"
    for machines in MACHINES:
        for cores in CORES:
            found = capacity(costs, machines, cores)
            replicas = math.ceil(found.groups * _REPLICAS / machines)
            yield f"| {machines} | {cores} | {found.rate:,.0f} | {found.groups:,} | {replicas:,} | {found.bound} |"
    yield ""
    yield "It assumes:"
    yield ""
    yield from (f"* {each}" for each in _assumptions(costs))


def _assumptions(costs: Costs) -> Sequence[str]:
    return (
        "A message costs what it costs here, where replicas and load share the cores. Larger caches, slower cores and a network between"
        " the replicas would change that; none was measured.",
        f"A process of a broker uses one core, {_BUSY:.0%} of the time. Its writer thread waits for the disk and counts in the same.",
        "Senders spread evenly over groups, and leaders and replicas evenly over machines. One hot key stays in one group.",
        "The clients run elsewhere. Nothing is consumed meanwhile.",
        f"A machine takes in {_NETWORK_BYTES_S * 8 / 1e9:g} Gbit/s and writes {_DISK_BYTES_S / 1e9:g} GB/s; each of three"
        f" replicas writes {costs.written:g} times the body. Syncs of many groups on one disk cost no more than those of one.",
        "Routes and the operator carry so many groups. Neither was tried with more than four on one machine here.",
    )
