"""
A schedule of faults from a seed. Pure.

The same seed, plan and version of this module give the same schedule. It names faults but not their targets: ``pick``
is a number that the executor maps to a replica or a client that exists then. Faults of replicas, of clients, of
features other than order, and further pauses run on four parallel tracks. Adding a fault to a later track leaves the
earlier tracks of a seed unchanged. Every round plays each kind that is possible here, in another order, so a run of
at least one round has tried everything.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, Flag, StrEnum, auto
from typing import Final


class Ability(Flag):
    """An ability of this machine that kinds of faults need."""

    NONE = 0
    NETWORK = auto()  # a network namespace for each replica
    DISK = auto()  # a file system for each replica
    IO_ERRORS = auto()  # a library between the store and the kernel
    JAVA = auto()  # RocketMQ's own clients


class Kind(StrEnum):
    """Kinds of faults."""

    KILL_LEADER = "kill leader"
    KILL_FOLLOWER = "kill follower"
    PAUSE_LEADER = "pause leader"
    PAUSE_FOLLOWER = "pause follower"
    RESTART_ALL = "restart all"
    POWER_LOSS_ALL = "power loss of all"
    POWER_LOSS_LEADER = "power loss of the leader"
    CUT_LEADER = "cut leader off"
    SPLIT = "split"
    ONE_WAY = "one-way cut"
    CUT_CLIENTS = "cut clients from the leader"
    SLOW_LINKS = "slow links"
    LOSSY_LINKS = "lossy links"
    DISK_FULL = "disk full"
    IO_ERROR = "i/o error"
    ROLLING_RESTART = "rolling restart"
    MEMBERSHIP = "membership change"
    TRANSFER = "leadership transfer"
    WIPE = "wiped replica"
    NAME_SERVER = "kill name server"
    KILL_CONSUMER = "kill consumer"
    PAUSE_CONSUMER = "pause consumer"
    PAUSE_JAVA_CONSUMER = "pause Java consumer"
    KILL_PRODUCER = "kill producer"
    KILL_DEALER = "kill producer inside a transaction"
    DENY = "permission denied"
    DELETE_ACCOUNT = "account deleted"
    CHANGE_SECRET = "secret changed"
    PAUSE_MAJORITY = "pause a majority"
    PAUSE_PRODUCER = "pause producer"


class Track(Enum):
    """The target of a kind; kinds of one track come one after the other."""

    REPLICAS = "replica"
    CLIENTS = "client"
    BESIDE = "beside"  # features other than order
    PAUSES = "pauses"  # of replicas and clients, at the same time as the faults of the other tracks


@dataclass(frozen=True, slots=True)
class Shape:
    """The timing and the needs of a kind.

    Attributes:
        seconds: the range from which its length is drawn; for a kind whose length is not chosen (a rolling
            restart), the time to plan for.
        needs: what the machine must be able to do.
        alone: nothing else is broken at replicas at the same time. Losing the disks of a majority is
            outside the promise, so a fault that takes away a disk waits until all replicas are healthy.
        track: what it hits.
    """

    seconds: tuple[float, float]
    needs: Ability = Ability.NONE
    alone: bool = False
    track: Track = Track.REPLICAS


_NETWORK, _DISK = Ability.NETWORK, Ability.DISK

SHAPES: Final[Mapping[Kind, Shape]] = {
    Kind.KILL_LEADER: Shape((0.2, 6.0)),
    Kind.KILL_FOLLOWER: Shape((0.2, 6.0)),
    # Longer than the election time-out of 0.2 to 0.4 s, so that another replica leads when this one wakes.
    Kind.PAUSE_LEADER: Shape((0.5, 6.0)),
    Kind.PAUSE_FOLLOWER: Shape((0.5, 6.0)),
    Kind.RESTART_ALL: Shape((0.0, 2.0), alone=True),
    Kind.POWER_LOSS_ALL: Shape((0.0, 2.0), _DISK, alone=True),
    Kind.POWER_LOSS_LEADER: Shape((0.5, 4.0), _DISK),
    Kind.CUT_LEADER: Shape((1.0, 8.0), _NETWORK),
    Kind.SPLIT: Shape((1.0, 8.0), _NETWORK),
    Kind.ONE_WAY: Shape((1.0, 8.0), _NETWORK),
    Kind.CUT_CLIENTS: Shape((1.0, 6.0), _NETWORK),
    Kind.SLOW_LINKS: Shape((2.0, 8.0), _NETWORK),
    Kind.LOSSY_LINKS: Shape((2.0, 8.0), _NETWORK),
    Kind.DISK_FULL: Shape((2.0, 8.0), _DISK),
    Kind.IO_ERROR: Shape((0.5, 3.0), Ability.IO_ERRORS),
    Kind.ROLLING_RESTART: Shape((10.0, 10.0), alone=True),
    Kind.MEMBERSHIP: Shape((5.0, 5.0), alone=True),
    Kind.TRANSFER: Shape((0.0, 0.5)),
    Kind.WIPE: Shape((0.5, 3.0), alone=True),
    Kind.NAME_SERVER: Shape((0.5, 5.0)),
    Kind.KILL_CONSUMER: Shape((0.5, 8.0), track=Track.CLIENTS),
    # The SDK's lease is 15 s.
    Kind.PAUSE_CONSUMER: Shape((16.0, 22.0), track=Track.CLIENTS),
    # A Java client's lease is 60 s at the broker and 30 s by its own count.
    Kind.PAUSE_JAVA_CONSUMER: Shape((62.0, 70.0), Ability.JAVA, track=Track.CLIENTS),
    Kind.KILL_PRODUCER: Shape((0.5, 4.0), track=Track.CLIENTS),
    Kind.KILL_DEALER: Shape((0.5, 4.0), track=Track.BESIDE),
    # A fail-over happens within every other one.
    Kind.DENY: Shape((2.0, 8.0), track=Track.BESIDE),
    Kind.DELETE_ACCOUNT: Shape((2.0, 8.0), track=Track.BESIDE),
    Kind.CHANGE_SECRET: Shape((2.0, 8.0), track=Track.BESIDE),
    # One after the other, so that a leader without followers and followers without a leader wake in turn.
    Kind.PAUSE_MAJORITY: Shape((0.5, 2.0), track=Track.PAUSES),
    # Longer than a send's time-out, so that the producer does not know the outcome.
    Kind.PAUSE_PRODUCER: Shape((4.0, 8.0), track=Track.PAUSES),
}

#: Leadership changes affect clients most, so a round has more than one of each.
_OFTEN: Final = (Kind.KILL_LEADER, Kind.TRANSFER, Kind.KILL_CONSUMER)

FIRST_S: Final = 3.0
GAP_S: Final = (0.5, 4.0)
# Every fourth fault begins while the previous one lasts: two at a time find what one does not.
OVERLAP: Final = 0.25


@dataclass(frozen=True, slots=True)
class Plan:
    """The basis of a schedule; faults begin and end within *seconds*."""

    replicas: int
    seconds: float
    abilities: Ability


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, *begin_s* seconds after the beginning, for *lasts_s* seconds.

    Attributes:
        pick: chooses among the possible targets.
        strength: 0 to 1; how slow, how lossy, how many.
    """

    begin_s: float
    kind: Kind
    lasts_s: float
    pick: int
    strength: float

    @property
    def end_s(self) -> float:
        return self.begin_s + self.lasts_s

    @property
    def shape(self) -> Shape:
        return SHAPES[self.kind]


def possible(plan: Plan, track: Track) -> list[Kind]:
    """Return the kinds of one track that can be played, in the order of their declaration."""
    return [
        kind
        for kind, shape in SHAPES.items()
        if shape.track is track and shape.needs in plan.abilities
    ]


def schedule(seed: int, plan: Plan) -> tuple[Fault, ...]:
    """Return the faults of a run in the order in which they begin."""
    choose = random.Random(f"{seed}/{plan.replicas}")
    faults = [fault for track in Track for fault in _track(choose, plan, track)]
    return tuple(sorted(faults, key=lambda fault: fault.begin_s))


def _track(choose: random.Random, plan: Plan, track: Track) -> list[Fault]:
    kinds = possible(plan, track)
    faults: list[Fault] = []
    at = busy_until = FIRST_S
    while kinds:
        ring = kinds + [kind for kind in _OFTEN if kind in kinds]
        choose.shuffle(ring)
        fitted = 0
        for kind in ring:
            after = busy_until if SHAPES[kind].alone else at
            fault = Fault(
                round(after + choose.uniform(*GAP_S), 3),
                kind,
                round(choose.uniform(*SHAPES[kind].seconds), 3),
                choose.randrange(1 << 30),
                round(choose.random(), 3),
            )
            overlaps = choose.random() < OVERLAP and not fault.shape.alone
            if fault.end_s > plan.seconds:
                continue  # too long for the remaining time; a shorter one may fit
            fitted += 1
            faults.append(fault)
            busy_until = max(busy_until, fault.end_s)
            at = fault.begin_s if overlaps else busy_until
        if not fitted:
            break
    return faults
