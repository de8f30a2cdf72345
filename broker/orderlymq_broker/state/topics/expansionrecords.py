"""Records of the raft log about the expansion of ordered topics, by the rules of ``records.py``."""

from enum import Enum
from typing import TypeAlias

from msgspec import Struct

from orderlymq_broker.state.integerranges import NO_TOKEN, Long, QueueCount, QueueTotal


class ExpansionPhase(Enum):
    """The phase of a topic's expansion in one raft group; see ``topics/expansionphases.py``."""

    OPEN = "open"
    FENCED = "fenced"
    SWITCHED = "switched"
    PROPAGATING = "settling"


class ExpansionFenced(Struct, frozen=True, array_like=True, tag=80):
    """Writes to an ordered topic are refused until its expansion proceeds or is given up.

    Attributes:
        attempt: the number of the expansion; rises with each.
        total: the queues that the topic will have in all raft groups.
        queues: the queues that it will have in this one.
        limit_ms: the leader gives the expansion up if it has not proceeded for this long.
        token: the operator's token, as in ``ClientDead``.
    """

    topic: str
    attempt: Long
    total: QueueTotal
    queues: QueueCount
    limit_ms: Long
    token: Long = NO_TOKEN


class ExpansionAborted(Struct, frozen=True, array_like=True, tag=81):
    """An expansion is given up, with the reason."""

    topic: str
    attempt: Long
    reason: str
    token: Long = NO_TOKEN


class ExpansionSwitched(Struct, frozen=True, array_like=True, tag=82):
    """The new queue list is valid in this raft group, if the old one is drained.

    Attributes:
        groups: consumer groups that read the topic in any raft group.
        perm: the permission for a topic that this raft group did not have.
        with_mixed: also wait for a group of which some members broadcast and others do not; former releases do not
            wait for it.
        keeps_barriers: the row keeps the ends of the old queues at the time of the fence. Records of earlier versions
            set this or neither flag, and their effect has not changed.
        keeps_ends: the row keeps the present ends of the old queues, and what it has of earlier growths.
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
    """Every name server returns the list of *total* queues; old lists are in use for *settle_ms* more."""

    topic: str
    total: QueueTotal
    settle_ms: Long
    token: Long = NO_TOKEN


class ExpansionOpened(Struct, frozen=True, array_like=True, tag=84):
    """By the leader's clock, the new list has settled: all senders may write."""

    topic: str


class ExpansionMoved(Struct, frozen=True):
    """The phase of a topic's expansion after the record; *changed* is False if it was in that phase already."""

    topic: str
    phase: ExpansionPhase
    changed: bool = False


ExpansionRecord: TypeAlias = (
    ExpansionFenced | ExpansionAborted | ExpansionSwitched | ExpansionPropagated | ExpansionOpened
)
