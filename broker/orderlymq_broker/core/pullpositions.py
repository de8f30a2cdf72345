"""
The pull positions of consumer groups: the next offset after the last answer, for each queue.

The rules are those of RocketMQ 5 (ConsumerOffsetManager.commitPullOffset), whose tools show messages that are
pulled but not committed as in flight. The positions are in the memory of one leader. They are kept while the
consumer group has members, and dropped with its topic, a reset of its offsets, or the leadership. Queues
beyond a limit are not noted: for them, the pull position is the committed offset.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from orderlymq_broker.state.groups.members import MemberTable

# Some 10 MB; as many as the pulls that may wait at a broker.
POSITIONS_MAX: Final = 100_000

_NO_TOPICS: Final[dict[str, dict[int, int]]] = {}
_NO_QUEUES: Final[dict[int, int]] = {}


class PullPositions:
    """The next offset of each queue that a consumer group with *members* pulls."""

    def __init__(self, members: MemberTable) -> None:
        self._members = members
        self._groups: dict[str, dict[str, dict[int, int]]] = {}
        self._count = 0

    def note(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Note the next offset of a consumer group; ignores groups without members, which tools use for reading."""
        queues = self._groups.get(group, _NO_TOPICS).get(topic, _NO_QUEUES)
        if queue_id in queues:
            queues[queue_id] = offset
        elif self._count < POSITIONS_MAX and self._members.of_group(group):
            self._groups.setdefault(group, {}).setdefault(topic, {})[queue_id] = offset
            self._count += 1

    def of(self, group: str, topic: str) -> Mapping[int, int]:
        """Return the known offsets by queue."""
        return self._groups.get(group, _NO_TOPICS).get(topic, _NO_QUEUES)

    def reset(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Drop groups and topics whose offsets were set: messages pulled before are no longer in flight."""
        for group, topic in pairs:
            self._forget(group, topic)

    def left(self, groups: Iterable[str]) -> None:
        """Drop those of *groups* that no longer have members."""
        for group in groups:
            if not self._members.of_group(group):
                self._forget_group(group)

    def deleted(self, topics: Collection[str], groups: Collection[str]) -> None:
        """Drop deleted topics and groups; takes some milliseconds for ten thousand groups."""
        for group in groups:
            self._forget_group(group)
        for group in [*self._groups] if topics else ():
            for topic in topics:
                self._forget(group, topic)

    def clear(self) -> None:
        """Drop all positions after this replica loses its leadership."""
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
