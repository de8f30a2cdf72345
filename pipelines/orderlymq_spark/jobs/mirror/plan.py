"""
The next range that a mirror copies, and the offset of a consumer group at the target. Pure.

Rule: a message has the same offset at both clusters. The target's end therefore shows where to continue, and no
checkpoint can contradict it. Anything that would break this raises a specific error and changes nothing.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.message.record import StoredMessage
from orderlymq_protocol.names import is_dlq_topic, is_retry_topic, is_system_topic
from orderlymq_spark.errors import DataLost, OptionError, QueueListChanged, SinkConflict
from orderlymq_spark.offsets import Offsets, QueueRange

Pairs = Mapping[MessageQueue, MessageQueue]
"""The queue of the target that is the copy of each queue of the source."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The range of a queue: offsets [low, high)."""

    low: int
    high: int

    def next_after(self, end: int) -> int:
        """Return where a copy that ends at *end* continues; an empty copy begins where this queue does."""
        return end or self.low


def check_topics(topics: Iterable[str]) -> None:
    """Refuse topics whose messages depend on state that only their own cluster has.

    Raises:
        OptionError: One of the topics is such a topic.
    """
    for topic in topics:
        if is_system_topic(topic) or is_retry_topic(topic) or is_dlq_topic(topic):
            raise OptionError(
                f"a mirror does not copy {topic}: topics of the system, of retries and of dead letters belong to their "
                "own cluster; name topics that producers send to"
            )


def pair(topic: str, source: Sequence[MessageQueue], target: Sequence[MessageQueue]) -> Pairs:
    """Return the copy of each queue: the queue of equal number in the broker group of the same name.

    If names differ, the broker groups are paired in the order of their names. Numbers in names sort as numbers, so
    that the eleventh broker group comes last, as when a topic gets it. Queues that the target lacks are left out,
    because the source's topic may have grown.

    Raises:
        QueueListChanged: The target has queues that the source lacks, or clients order them differently, so keys would
            have other queues there.
    """
    mine, theirs = (
        sorted({queue.broker_name for queue in each}, key=_by_number) for each in (source, target)
    )
    same = set(theirs) <= set(mine)
    names = {name: name for name in theirs} if same else dict(zip(mine, theirs, strict=False))
    copies = [names[name] for name in sorted(names)]
    if copies != sorted(copies):
        raise QueueListChanged(
            f"{topic} has {_list(source)} at the source and {_list(target)} at the target; a key must have the same queue at "
            "both, and clients count the queues by the names of broker groups as texts, in which demo-10 comes before demo-9: "
            "name the target's broker groups so that each has the place of its source there"
        )
    wanted = {
        queue: MessageQueue(topic, names[queue.broker_name], queue.queue_id)
        for queue in source
        if queue.broker_name in names
    }
    if not set(target) <= set(wanted.values()):
        raise QueueListChanged(
            f"{topic} has {_list(source)} at the source and {_list(target)} at the target; a key must have the same queue at "
            "both, so let the topic at the source grow in the same way, or create the target's again with as many broker groups and queues"
        )
    there = set(target)
    return {queue: copy for queue, copy in wanted.items() if copy in there}


def check_list(topic: str, total: int, pairs: Pairs) -> None:
    """Refuse to continue after a growth to *total* queues if the target has not grown; everything before it is copied.

    Raises:
        QueueListChanged: The target lacks queues.
    """
    if len(pairs) < total:
        raise QueueListChanged(
            f"{topic} has grown to {total} queues at the source and has {len(pairs)} at the target, which has all messages "
            f"from before that; let the target's topic grow to {total} queues, and run the mirror again"
        )


def due(pairs: Pairs, sources: Mapping[MessageQueue, Bounds], ends: Offsets) -> list[QueueRange]:
    """Return the ranges of the source to copy, given the *ends* of the target's queues.

    Raises:
        DataLost: The source no longer has the messages that must come next.
        SinkConflict: The target has more messages than the source.
    """
    found = []
    for queue, copy in sorted(pairs.items()):
        has, end = sources[queue], ends[copy]
        if end > has.high:
            raise SinkConflict(
                f"the target's {copy} ends at {end}, the source's queue at {has.high}: the source was created again or "
                "restored, or the target is not a mirror of it; delete the target's topic and begin again"
            )
        start = has.next_after(end)
        if start < has.low:
            raise DataLost(
                f"{QueueRange(queue, start, has.low)} ({has.low - start} messages) aged out at the source before it was copied, "
                "and a mirror leaves no hole; delete the target's topic and begin again, keep messages longer at the source, or "
                "run the mirror without long breaks"
            )
        if start < has.high:
            found.append(QueueRange(queue, start, has.high))
    return found


def is_copy(message: StoredMessage, original: StoredMessage) -> bool:
    """Return whether a message of the target equals the source's, except for where and when it was stored."""
    return _content(message) == _content(original)


def translated(committed: int, end: int, present: int | None) -> int | None:
    """Return the offset that a consumer group gets at the target; None if it already has that or more.

    Args:
        committed: by the consumer group at the source; offsets are the same at both clusters.
        end: of the target's queue, read later; the consumer group begins there at the latest, and has skipped nothing.
        present: the current offset of the consumer group at the target.
    """
    wanted = min(committed, end)
    return wanted if present is None or wanted > present else None


def _content(message: StoredMessage) -> tuple[object, ...]:
    return (
        message.queue_offset,
        message.body_crc,
        message.body,
        message.properties,
        message.flag,
        message.born_timestamp,
        message.reconsume_times,
    )


def _by_number(name: str) -> tuple[list[str | int], str]:
    """Return a sort key that orders numbers in names by value: demo-2 before demo-10."""
    # Every second part is a number, so parts at the same index are comparable.
    parts = re.split("([0-9]+)", name)
    return [int(part) if place % 2 else part for place, part in enumerate(parts)], name


def _list(queues: Sequence[MessageQueue]) -> str:
    counts = Counter(queue.broker_name for queue in queues)
    return ", ".join(f"{name}:{count}" for name, count in sorted(counts.items())) or "no queues"
