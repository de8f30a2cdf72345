"""
The shares of a topic's queues that the members of a consumer group get, by the two strategies that brokers serve, too.

Rule: members in any language and the broker compute the same share from the same sorted lists.
"""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def averagely(queues: Sequence[T], member: int, members: int) -> list[T]:
    """Return a contiguous share; if the queues do not divide evenly, the first members get one more (AllocateMessageQueueAveragely)."""
    share, rest = divmod(len(queues), members)
    start = member * share + min(member, rest)

    return list(queues[start : start + share + (member < rest)])


def by_circle(queues: Sequence[T], member: int, members: int) -> list[T]:
    """Return every n-th queue, where n is the number of members (AllocateMessageQueueAveragelyByCircle)."""
    return list(queues[member::members])
