"""
Offsets of many queues: their JSON form, limits per batch, ranges for tasks, and missing ranges. Pure.

Rules: equal offsets have equal JSON text, because Spark compares texts. A limit is shared in proportion to the
messages left in each queue. Every queue with messages left gets at least one, so that no small queue waits forever
behind a large one. One task reads one range, in order.

An offset belongs to one topic, so the JSON also holds the topic's id: a recreated topic begins at 0 under the same
name. It also holds a mark of the last message before the offset, because ids are not enough: brokers whose disks were
wiped give ids from 1 again, and a restored backup continues with other messages.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_spark.errors import OptionError

Offsets: TypeAlias = Mapping[MessageQueue, int]
"""The next offset to be read (or the exclusive end) of each queue."""
NO_OFFSETS: Final[Offsets] = MappingProxyType({})

TopicIds: TypeAlias = Mapping[tuple[str, str], int]
"""The id that each broker gives a topic, by topic and broker; RocketMQ's brokers give no ids."""
NO_IDS: Final[TopicIds] = MappingProxyType({})

Marks: TypeAlias = Mapping[MessageQueue, int]
"""A hash of the message before an offset; missing if that message does not exist."""
NO_MARKS: Final[Marks] = MappingProxyType({})

_TOPIC_ID: Final = "topicId"
_LAST: Final = "last"
EARLIEST: Final = -2  # in the JSON of starting and ending offsets, as rocketmq-spark has them
LATEST: Final = -1


@dataclass(frozen=True, slots=True, order=True)
class QueueRange:
    """Messages [start, end) of one queue."""

    queue: MessageQueue
    start: int
    end: int

    @property
    def size(self) -> int:
        """The number of offsets in the range."""
        return self.end - self.start

    def __str__(self) -> str:
        name = f"{self.queue.topic} {self.queue.broker_name}:{self.queue.queue_id}"
        return f"{name} [{self.start}, {self.end})"


def to_json(offsets: Offsets, ids: TopicIds = NO_IDS, marks: Marks = NO_MARKS) -> dict[str, Any]:
    """Return `{"topic": {"broker": {"0": 23, "topicId": 7, "last": {"0": 99}}}}`, sorted; unknown values are left out."""
    found: dict[str, Any] = {}
    for queue in sorted(offsets):
        brokers = found.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = offsets[queue]
    for (topic, broker), number in ids.items():
        if broker in found.get(topic, ()):
            found[topic][broker][_TOPIC_ID] = number
    for queue in sorted(marks.keys() & offsets.keys()):
        last = found[queue.topic][queue.broker_name].setdefault(_LAST, {})
        last[str(queue.queue_id)] = marks[queue]
    return found


def ids_in(value: Mapping[str, Any]) -> dict[tuple[str, str], int]:
    """Return the topic ids in the output of `to_json`."""
    return {
        (topic, broker): queues[_TOPIC_ID]
        for topic, brokers in value.items()
        for broker, queues in brokers.items()
        if _TOPIC_ID in queues
    }


def marks_in(value: Mapping[str, Any]) -> dict[MessageQueue, int]:
    """Return the marks in the output of `to_json`."""
    return {
        MessageQueue(topic, broker, int(number)): mark
        for topic, brokers in value.items()
        for broker, queues in brokers.items()
        for number, mark in queues.get(_LAST, {}).items()
    }


def created_again(
    queues: Iterable[MessageQueue], before: TopicIds, after: TopicIds
) -> set[MessageQueue]:
    """Return the queues whose topic was recreated between two reads of the ids; an unknown id proves nothing."""
    changed = {place for place in before if before[place] != after.get(place, before[place])}
    return {queue for queue in queues if (queue.topic, queue.broker_name) in changed}


def begun_again(start: Mapping[str, Any], end: Mapping[str, Any]) -> set[MessageQueue]:
    """Return the queues that a batch reads from 0; *start* and *end* are places of a stream, as `to_json` returns them.

    Their topic has another id at the end, the end lies before the start, or another message precedes the same offset.
    The result lacks queues that were replaced on a cluster that gives the same ids and have since grown past the start.
    """
    ends, before, after = from_json(end), marks_in(start), marks_in(end)
    known = from_json(start)
    found = created_again(known, ids_in(start), ids_in(end))
    for queue, offset in known.items():
        at = ends.get(queue, offset)
        mark = before.get(queue)
        other = at == offset and mark is not None and after.get(queue, mark) != mark
        if at < offset or other:
            found.add(queue)
    return found


def from_json(value: object, what: str = "offsets") -> dict[MessageQueue, int]:
    """Read offsets in the form that `to_json` returns.

    Raises:
        OptionError: The value has another form; *what* names it.
    """
    found: dict[MessageQueue, int] = {}
    for topic, brokers in _members(value, what):
        for broker, queues in _members(brokers, what):
            for number, offset in _members(queues, what):
                if number == _LAST:
                    _members(offset, what)
                    continue
                named = number.isdecimal() or number == _TOPIC_ID
                if not named or type(offset) is not int or offset < EARLIEST:
                    raise _form(what)
                if number != _TOPIC_ID:
                    found[MessageQueue(topic, broker, int(number))] = offset
    return found


def queues_from_json(value: object) -> frozenset[MessageQueue]:
    """Read a selection of queues: `{"topic": {"broker": [0, 1]}}`.

    Raises:
        OptionError: The value has another form.
    """
    found: set[MessageQueue] = set()
    for topic, brokers in _members(value, "queues"):
        for broker, numbers in _members(brokers, "queues"):
            if not isinstance(numbers, list) or any(type(each) is not int for each in numbers):
                raise OptionError('queues must look like {"orders": {"broker-a": [0, 1]}}')
            found |= {MessageQueue(topic, broker, number) for number in numbers}
    return frozenset(found)


def _members(value: object, what: str) -> list[tuple[str, Any]]:
    if not isinstance(value, Mapping) or any(not isinstance(name, str) for name in value):
        raise _form(what)
    return list(value.items())


def _form(what: str) -> OptionError:
    return OptionError(
        f'{what} must look like {{"orders": {{"broker-a": {{"0": 23, "1": -2}}}}}}; '
        "-2 is earliest, -1 latest"
    )


def share(start: Offsets, end: Offsets, limit: int) -> dict[MessageQueue, int]:
    """Return end offsets for a batch of about *limit* messages.

    The batch has exactly *limit* messages if at least as many are left and no more than *limit* queues have some. No
    offset exceeds *end*. A queue with messages left gets at least one, even if the total then exceeds *limit*.
    """
    left = {queue: max(0, end[queue] - start.get(queue, end[queue])) for queue in end}
    total = sum(left.values())
    if total <= limit:
        return dict(end)
    waiting = sorted(queue for queue, size in left.items() if size)
    # Each queue first gets one message; the rest is shared in proportion, by largest remainder.
    spare = max(0, limit - len(waiting))
    rest = max(1, total - len(waiting))
    parts = {queue: 1 + (left[queue] - 1) * spare // rest for queue in waiting}
    missing = max(limit, len(waiting)) - sum(parts.values())
    by_remainder = sorted(waiting, key=lambda each: (-((left[each] - 1) * spare % rest), each))
    for queue in by_remainder[:missing]:
        parts[queue] += 1
    return {queue: end[queue] - left[queue] + parts.get(queue, 0) for queue in end}


def ranges(start: Offsets, end: Offsets) -> list[QueueRange]:
    """Return one range between start and end for each queue that has messages; *start* has every queue of *end*."""
    return [
        QueueRange(queue, start[queue], end[queue])
        for queue in sorted(end)
        if end[queue] > start[queue]
    ]


def split(
    parts: Sequence[QueueRange], count_min: int, size_max: int | None = None
) -> list[QueueRange]:
    """Cut large ranges into at least *count_min* pieces, if there are enough messages, none larger than *size_max*.

    Several tasks then read the pieces of a queue. This speeds up reading but does not keep the order.
    """
    total = sum(each.size for each in parts)
    cut = len(parts) < count_min and total > 0
    found: list[QueueRange] = []
    for each in parts:
        pieces = min(each.size, max(1, -(-count_min * each.size // total))) if cut else 1
        if size_max is not None:
            pieces = max(pieces, -(-each.size // size_max))
        bounds = [each.start + each.size * number // pieces for number in range(pieces + 1)]
        found += [QueueRange(each.queue, *pair) for pair in pairwise(bounds)]
    return found


def passed_over(part: QueueRange, found: Sequence[int]) -> list[QueueRange]:
    """Return the missing ranges between the offsets *found* in a range; *found* is ascending."""
    bounds = [part.start - 1, *found, part.end]
    return [
        QueueRange(part.queue, before + 1, after)
        for before, after in pairwise(bounds)
        if after > before + 1
    ]


@dataclass(frozen=True, slots=True)
class Continued:
    """Where a stream continues, after the queues' bounds were read.

    Attributes:
        start: of every queue that exists.
        added: queues that are new to the stream.
        entered: those of *added* whose missing part is unknown: they begin at their first message.
        removed: queues that the stream knows but that no longer exist.
        missing: ranges that should be read but no longer exist.
    """

    start: dict[MessageQueue, int]
    added: tuple[MessageQueue, ...]
    entered: tuple[MessageQueue, ...]
    removed: tuple[MessageQueue, ...]
    missing: tuple[QueueRange, ...]


def entered_queues(known: Offsets, queues: Iterable[MessageQueue]) -> tuple[MessageQueue, ...]:
    """Return the queues whose topic or broker group is new to a stream.

    From Spark 4.2 on, the first batch with such a queue reads nothing from it.
    """
    topics, groups = ({queue[part] for queue in known} for part in (0, 1))
    return tuple(q for q in queues if q.topic not in topics or q.broker_name not in groups)


def continued(
    known: Offsets, lows: Offsets, highs: Offsets, again: Set[MessageQueue] = frozenset()
) -> Continued:
    """Compare the offsets that a stream has read (*known*) with the current bounds of the queues.

    An unknown queue was created after the stream began, so it is read from 0. If its topic or broker group is also
    unknown, it may be older, and the read begins at its first message. A queue that was recreated (*again*, or its end
    lies before the read offset) is read from 0. The possible loss is then reported as a missing range of size zero at
    the old offset.
    """
    added = sorted(set(lows) - set(known))
    entered = entered_queues(known, added)
    start: dict[MessageQueue, int] = {}
    missing: list[QueueRange] = []
    for queue in sorted(lows):
        at = known.get(queue, lows[queue] if queue in entered else 0)
        if queue in again or at > highs[queue]:
            missing.append(QueueRange(queue, at, at))
            at = 0
        if at < lows[queue]:
            missing.append(QueueRange(queue, at, lows[queue]))
        start[queue] = max(at, lows[queue])
    removed = tuple(sorted(set(known) - set(lows)))
    return Continued(start, tuple(added), entered, removed, tuple(missing))


def describe_missing(missing: Sequence[QueueRange], removed: Sequence[MessageQueue] = ()) -> str:
    """Describe the missing ranges and queues in one sentence."""
    texts = [
        f"{each} ({each.size} messages) no longer exists"
        if each.size
        else f"the topic of {each} was created again, or its cluster was wiped or restored: unread messages of the former topic "
        "are lost, and the present one begins at 0 (a pipeline that must not mix them needs a new checkpoint and a new target)"
        for each in missing
    ]
    texts += [
        f"the queue {each.topic} {each.broker_name}:{each.queue_id} was removed" for each in removed
    ]
    return "; ".join(texts)
