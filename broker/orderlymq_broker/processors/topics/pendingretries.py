"""
Messages of groups that wait in the delay levels to be tried again.

A message that an ordered group sends back waits in the schedule topic until it is due, and only then goes to the
group's retry topic. Only the message itself names its target. Therefore the leader reads the waiting messages once,
in steps that delay nobody, and remembers them until they have been passed on. The rules: messages that are not read
yet count as waiting for every group, and so do proposed retries that are not applied. After the first question, each
tick reads on, so that a second question a moment later gets an answer, however many messages wait or arrive.
"""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection
from typing import Final

from orderlymq_broker.core.effects import Now
from orderlymq_broker.core.requestcontext import Context
from orderlymq_broker.state.topics.queues import Queue
from orderlymq_broker.store.consumequeue import read_entries, read_messages
from orderlymq_broker.store.layout import decode_queue_entry, message_key
from orderlymq_protocol.message.properties import REAL_TOPIC, find_property
from orderlymq_protocol.message.record import record_properties
from orderlymq_protocol.names import RETRY_PREFIX, SCHEDULE_TOPIC, retry_topic

# Messages read at a time, which takes about two milliseconds; a client that waits for an expansion asks several times a
# second. Large messages of a level are limited by bytes, to as many as it passes on together.
STEP_MAX: Final = 512
SIZE_MAX: Final = 4 << 20
# Each tick reads on for this long after a question: a refused client tries again every few minutes.
ATTENTION_MS: Final = 10 * 60_000


class _Level:
    """The messages of a delay level that go to retry topics: their ascending offsets, and the numbers of their groups.

    There may be millions; each takes twelve bytes.
    """

    def __init__(self) -> None:
        self._offsets = array("Q")
        self._groups = array("I")
        self._passed = 0

    def add(self, offset: int, group: int) -> None:
        """Add a message after all others."""
        self._offsets.append(offset)
        self._groups.append(group)

    def pass_to(self, progress: int) -> Counter[int]:
        """Drop the messages before *progress*; return their number by group."""
        start, end = self._passed, bisect_left(self._offsets, progress, self._passed)
        passed = Counter(self._groups[start:end])
        self._passed = end
        if 2 * end >= len(self._offsets):
            # Move the rest to the beginning; it is at most as large as what was dropped.
            del self._offsets[:end], self._groups[:end]
            self._passed = 0

        return passed


class RetryWatch:
    """Knows the messages that wait in the delay levels, as far as it has read them.

    Life cycle: call `start` whenever leadership begins; nothing is read before the first question.

    Attributes:
        unread: how many messages were not read yet at the last question.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._seen: dict[int, int] = {}
        self._waiting: dict[int, _Level] = {}
        # A number for each group, in the order in which groups were found, and how many messages of each wait.
        self._numbers: dict[str, int] = {}
        self._counts: Counter[int] = Counter()
        self.unread = 0
        self._is_asked = False
        # Each tick reads on until this monotonic time.
        self._until_ms = 0

    def start(self) -> None:
        """Clear everything."""
        self._is_asked, self._until_ms = False, 0
        self._seen.clear()
        self._waiting.clear()
        self._numbers.clear()
        self._counts.clear()

    def waiting(self, groups: Collection[str]) -> list[tuple[str, int]]:
        """Return (group, messages) for those of *groups* with messages to try again, the most first."""
        self._is_asked = True
        self.unread = self._read()
        under_way = self._context.view.retrying
        counts = (
            (group, self._count(group) + under_way[retry_topic(group)] + self.unread)
            for group in dict.fromkeys(groups)
        )
        found = [(group, count) for group, count in counts if count]

        return sorted(found, key=lambda each: (-each[1], each[0]))

    def tick(self, now: Now) -> None:
        """Read on while a client waits for an answer."""
        if self._is_asked:
            self._is_asked, self._until_ms = False, now.monotonic_ms + ATTENTION_MS
        if now.monotonic_ms < self._until_ms:
            self._read()

    def _count(self, group: str) -> int:
        number = self._numbers.get(group)

        return 0 if number is None else self._counts[number]

    def _read(self) -> int:
        """Read a few more messages; return how many are still unread."""
        schedule = self._context.state.topics.get(SCHEDULE_TOPIC)
        left, budget = 0, STEP_MAX
        for number, queue in schedule.queues.items() if schedule is not None else ():
            progress = max(self._context.state.delay.get(number, 0), queue.min_offset)
            level = self._waiting.setdefault(number, _Level())
            self._counts.subtract(level.pass_to(progress))
            start = max(self._seen.get(number, 0), progress)
            if start < queue.next_offset and budget:
                count = self._look(queue, start, min(budget, queue.next_offset - start))
                start += count
                # If a level has more messages, it is the last one read this time.
                budget = budget - count if start == queue.next_offset else 0
            self._seen[number] = start
            left += queue.next_offset - start

        return left

    def _look(self, queue: Queue, start: int, count: int) -> int:
        reader, number = self._context.reader, queue.queue_id
        pairs = read_entries(reader, queue.topic_id, number, start, count)
        keys: list[bytes] = []
        size = 0
        for _, value in pairs:
            entry = decode_queue_entry(value)
            size += entry.size
            if keys and size > SIZE_MAX:
                break
            keys.append(message_key(entry.physical))
        for offset, message in enumerate(read_messages(reader, keys), start):
            if message is None:
                continue
            target = find_property(record_properties(message), REAL_TOPIC) or ""
            if target.startswith(RETRY_PREFIX):
                group = target[len(RETRY_PREFIX) :]
                known = self._numbers.setdefault(group, len(self._numbers))
                self._waiting[number].add(offset, known)
                self._counts[known] += 1

        return len(keys)
