"""
How far consumer groups have pulled: where the last answer let each go on, queue by queue.

The rules: RocketMQ 5's (ConsumerOffsetManager.commitPullOffset), whose tools show what a group has pulled and has not committed
as in flight; one leader's memory, kept while the group has members, and gone with its topic, with a reset of its offsets and with
the leadership. Beyond a limit further queues are not noted, and count as pulled as far as they are committed.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from orderlymq_broker.state.groups.members import MemberTable

# Some 10 MB, and as many as the pulls that may wait at a broker.
POSITIONS_MAX: Final = 100_000

_NO_TOPICS: Final[dict[str, dict[int, int]]] = {}
_NO_QUEUES: Final[dict[int, int]] = {}


class PullPositions:
    """The next offset of each queue that a group of *members* pulls."""

    def __init__(self, members: MemberTable) -> None:
        self._members = members
        self._groups: dict[str, dict[str, dict[int, int]]] = {}
        self._count = 0

    def note(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Note where an answer lets a group go on; tools that read under a group without members are passed over."""
        queues = self._groups.get(group, _NO_TOPICS).get(topic, _NO_QUEUES)
        if queue_id in queues:
            queues[queue_id] = offset
        elif self._count < POSITIONS_MAX and self._members.of_group(group):
            self._groups.setdefault(group, {}).setdefault(topic, {})[queue_id] = offset
            self._count += 1

    def of(self, group: str, topic: str) -> Mapping[int, int]:
        """Return the offsets by queue, as far as they are known."""
        return self._groups.get(group, _NO_TOPICS).get(topic, _NO_QUEUES)

    def reset(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Forget groups and topics whose offsets were set: messages pulled before are no longer in flight."""
        for group, topic in pairs:
            self._forget(group, topic)

    def left(self, groups: Iterable[str]) -> None:
        """Forget those of *groups* that have no members any more."""
        for group in groups:
            if not self._members.of_group(group):
                self._forget_group(group)

    def deleted(self, topics: Collection[str], groups: Collection[str]) -> None:
        """Forget topics and groups that are gone; some milliseconds for ten thousand groups."""
        for group in groups:
            self._forget_group(group)
        for group in [*self._groups] if topics else ():
            for topic in topics:
                self._forget(group, topic)

    def clear(self) -> None:
        """Forget all: the leadership is over."""
        self._groups.clear()
        self._count = 0

    def _forget_group(self, group: str) -> None:
        for topic in [*self._groups.get(group, _NO_TOPICS)]:
            self._forget(group, topic)

    def _forget(self, group: str, topic: str) -> None:
        topics = self._groups.get(group, _NO_TOPICS)
        self._count -= len(topics.pop(topic, _NO_QUEUES))
        if not topics:
            self._groups.pop(group, None)
