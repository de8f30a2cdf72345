"""
Next range that a mirror copies, and the offset of a group at the target. Pure.

Rule: a message has the same offset at both clusters. So the target's end is where to go on, and no checkpoint can say
otherwise; whatever would break that has a name of its own and changes nothing.
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
    """Range of a queue: offsets [low, high)."""

    low: int
    high: int

    def next_after(self, end: int) -> int:
        """Return where a copy that ends at *end* goes on: one that never had a message begins where this queue does."""
        return end or self.low


def check_topics(topics: Iterable[str]) -> None:
    """Refuse topics whose messages wait for something that only their cluster knows.

    Raises:
        OptionError: There is one.
    """
    for topic in topics:
        if is_system_topic(topic) or is_retry_topic(topic) or is_dlq_topic(topic):
            raise OptionError(
                f"a mirror does not copy {topic}: topics of the system, of retries and of dead letters belong to the work of "
                "their own cluster; name topics that producers send to"
            )


def pair(topic: str, source: Sequence[MessageQueue], target: Sequence[MessageQueue]) -> Pairs:
    """Return which queue is the copy of which: equal numbers, in broker groups of one name or else in the order of their names.

    Numbers in names count as such, so that the eleventh group comes last, as a topic gets it.

    Queues that the target lacks are left out, because the source's topic may have grown.

    Raises:
        QueueListChanged: The target has queues that the source has not, or clients put them in another order, so keys would
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
            "both, so let the source's topic grow alike, or create the target's again with as many broker groups and queues"
        )
    there = set(target)
    return {queue: copy for queue, copy in wanted.items() if copy in there}


def check_list(topic: str, total: int, pairs: Pairs) -> None:
    """Refuse to go on behind the growth of a topic to *total* queues whose copy has not grown; what is before is copied.

    Raises:
        QueueListChanged: The target lacks queues.
    """
    if len(pairs) < total:
        raise QueueListChanged(
            f"{topic} has grown to {total} queues at the source and has {len(pairs)} at the target, which has everything from "
            f"before that; let the target's topic grow to {total} queues, and run the mirror again"
        )


def due(pairs: Pairs, sources: Mapping[MessageQueue, Bounds], ends: Offsets) -> list[QueueRange]:
    """Return what of the source is to be copied, given the *ends* of the target's queues.

    Raises:
        DataLost: The source does not hold any more what would have to come next.
        SinkConflict: The target holds more than the source.
    """
    found = []
    for queue, copy in sorted(pairs.items()):
        has, end = sources[queue], ends[copy]
        if end > has.high:
            raise SinkConflict(
                f"the target's {copy} ends at {end}, the source's queue at {has.high}: the source was created again or "
                "restored, or the target is no mirror of it; delete the target's topic and begin again"
            )
        start = has.next_after(end)
        if start < has.low:
            raise DataLost(
                f"{QueueRange(queue, start, has.low)} ({has.low - start} messages) aged out at the source before it was copied, "
                "and a mirror leaves no hole; delete the target's topic and begin again, keep messages longer at the source, or "
                "let the mirror run without long breaks"
            )
        if start < has.high:
            found.append(QueueRange(queue, start, has.high))
    return found


def is_copy(message: StoredMessage, original: StoredMessage) -> bool:
    """Return whether a message of the target is that of the source: all of it but where and when it is stored."""
    return _content(message) == _content(original)


def translated(committed: int, end: int, present: int | None) -> int | None:
    """Return the offset that a group gets at the target; None where it has that or more.

    Args:
        committed: by the group at the source; offsets are the same at both.
        end: of the target's queue, read later: it begins there at the latest, and has skipped nothing.
        present: offset of the group at the target.
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
    """Return what orders names as people count: demo-2 before demo-10."""
    # Every second part is a number, so parts at one place compare.
    parts = re.split("([0-9]+)", name)
    return [int(part) if place % 2 else part for place, part in enumerate(parts)], name


def _list(queues: Sequence[MessageQueue]) -> str:
    counts = Counter(queue.broker_name for queue in queues)
    return ", ".join(f"{name}:{count}" for name, count in sorted(counts.items())) or "no queues"
