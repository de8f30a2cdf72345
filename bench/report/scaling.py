"""
A model of larger clusters than were measured: from a message's cost in one raft group, their messages per second. Pure.

A broker process uses at most one core, and a raft group has one leader. More cores therefore do not raise the rate of
one raft group; they need more raft groups.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from bench.report.figures import shown

CORES: Final = (8, 16, 64)
MACHINES: Final = (3, 9, 30)
_REPLICAS: Final = 3
#: The share of time for which a core may be busy; above it, sends wait for each other.
_BUSY: Final = 0.7
#: The bytes per second of a machine's network in each direction, and of its disk: usual values of today.
_NETWORK_BYTES_S: Final = 10e9 / 8
_DISK_BYTES_S: Final = 1e9
#: Bytes are written to the store's log and then to its files, each time with 9 % for keys and indexes.
_WRITTEN: Final = 2 * 1.09


@dataclass(frozen=True, slots=True)
class Costs:
    """The measured cost of one message of *size* bytes.

    Attributes:
        leader_us: CPU time of the leader of its raft group.
        follower_us: CPU time of each of the two followers.
        written: bytes that a replica writes per byte of the body.
    """

    leader_us: float
    follower_us: float
    size: int = 1024
    written: float = _WRITTEN


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity of a cluster.

    Attributes:
        rate: messages/s.
        groups: the smallest number of raft groups that reaches it.
        bound: the resource that limits it.
    """

    machines: int
    cores: int
    rate: float
    groups: int
    bound: str


def capacity(costs: Costs, machines: int, cores: int) -> Capacity:
    """Return the capacity of machines with this many cores each, with replicas and leaders spread evenly."""
    each_us = costs.leader_us + (_REPLICAS - 1) * costs.follower_us
    # Each copy is received once; the leader sends all copies except its own.
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
    """Return the messages/s of one raft group whose leader has a core to itself."""
    return _BUSY * 1e6 / costs.leader_us


def lines(costs: Costs) -> Iterator[str]:
    """Yield the model's table and its assumptions."""
    yield (
        f"This table is a model, not a measurement. A send of {costs.size:,} bytes costs the leader {shown(costs.leader_us)} µs and each follower"
        f" {shown(costs.follower_us)} µs of CPU time, as measured above with one group. One group takes at most"
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
    yield "The model assumes:"
    yield ""
    yield from (f"* {each}" for each in _assumptions(costs))


def _assumptions(costs: Costs) -> Sequence[str]:
    return (
        "A message costs as much as here, where replicas and load share the cores. Larger caches, slower cores and a network between"
        " the replicas would change the cost; they were not measured.",
        f"A process of a broker uses one core, {_BUSY:.0%} of the time. Its writer thread waits for the disk and is included.",
        "Senders spread evenly over groups, and leaders and replicas evenly over machines. One hot key stays in one group.",
        "The clients run on other machines. No messages are consumed.",
        f"A machine receives {_NETWORK_BYTES_S * 8 / 1e9:g} Gbit/s and writes {_DISK_BYTES_S / 1e9:g} GB/s; each of three"
        f" replicas writes {costs.written:g} times the body. Syncs of many groups on one disk cost no more than those of one.",
        "Name servers and the operator can handle so many groups. Neither was tried with more than four groups on one machine here.",
    )
