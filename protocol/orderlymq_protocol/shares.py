"""
The shares that members of a group get of a topic's queues, by the two strategies that brokers serve as well.

Rule: members in any language and the broker compute the same share from the same sorted lists.
"""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def averagely(queues: Sequence[T], member: int, members: int) -> list[T]:
    """Return a contiguous share; the first members get one more (AllocateMessageQueueAveragely)."""
    share, rest = divmod(len(queues), members)
    start = member * share + min(member, rest)

    return list(queues[start : start + share + (member < rest)])


def by_circle(queues: Sequence[T], member: int, members: int) -> list[T]:
    """Return every n-th queue (AllocateMessageQueueAveragelyByCircle)."""
    return list(queues[member::members])
