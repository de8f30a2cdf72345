"""Records of the raft log about the expansion of ordered topics, by the rules of ``records.py``."""

from enum import Enum
from typing import TypeAlias

from msgspec import Struct

from orderlymq_broker.state.integerranges import NO_TOKEN, Long, QueueCount, QueueTotal


class ExpansionPhase(Enum):
    """How far a topic's expansion is on one raft group; see ``topics/expansionphases.py``."""

    OPEN = "open"
    FENCED = "fenced"
    SWITCHED = "switched"
    PROPAGATING = "settling"


class ExpansionFenced(Struct, frozen=True, array_like=True, tag=80):
    """Nobody writes to an ordered topic until its expansion goes on or is given up.

    Attributes:
        attempt: number of the expansion; rises with each.
        total: queues that the topic will have over all raft groups.
        queues: queues that it will have in this one.
        limit_ms: the leader gives the expansion up when it has not gone on for so long.
        token: of the operator, as in ``ClientDead``.
    """

    topic: str
    attempt: Long
    total: QueueTotal
    queues: QueueCount
    limit_ms: Long
    token: Long = NO_TOKEN


class ExpansionAborted(Struct, frozen=True, array_like=True, tag=81):
    """An expansion is given up, and why."""

    topic: str
    attempt: Long
    reason: str
    token: Long = NO_TOKEN


class ExpansionSwitched(Struct, frozen=True, array_like=True, tag=82):
    """The new queue list is valid on this raft group, if the old one is drained.

    Attributes:
        groups: consumer groups that read the topic on any raft group.
        perm: permission of a topic that this raft group did not have.
        with_mixed: wait also for a group of which some members broadcast and others do not; former releases do not.
        keeps_barriers: the row keeps where the old queues ended when writes were fenced; records of earlier versions say so, or
            neither, and change what they changed then.
        keeps_ends: it keeps where they end now, and what it had kept of earlier growths.
    """

    topic: str
    attempt: Long
    total: QueueTotal
    queues: QueueCount
    groups: tuple[str, ...] = ()
    perm: Long = 6
    token: Long = NO_TOKEN
    with_mixed: bool = False
    keeps_barriers: bool = False
    keeps_ends: bool = False


class ExpansionPropagated(Struct, frozen=True, array_like=True, tag=83):
    """Every name server returns the list of *total* queues; old ones are in use for *settle_ms* more."""

    topic: str
    total: QueueTotal
    settle_ms: Long
    token: Long = NO_TOKEN


class ExpansionOpened(Struct, frozen=True, array_like=True, tag=84):
    """By the leader's clock the new list has settled: everybody may write."""

    topic: str


class ExpansionMoved(Struct, frozen=True):
    """The phase in which a topic's expansion is now, or was already."""

    topic: str
    phase: ExpansionPhase
    changed: bool = False


ExpansionRecord: TypeAlias = (
    ExpansionFenced | ExpansionAborted | ExpansionSwitched | ExpansionPropagated | ExpansionOpened
)
