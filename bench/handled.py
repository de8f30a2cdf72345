"""
Parses the log lines of consumers by key, and computes counts and times from them. Pure.

A line is `key offset sent_ns begun_ns done_ns`. The offset is a number that no other message of the same load has. All
times are from the clock that the processes of one machine share. A line that begins with `#` is not a message.
"""

import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter


@dataclass(frozen=True, slots=True)
class Done:
    """One message that a worker has finished; times in ns of the machine's monotonic clock."""

    key: str
    offset: int
    sent: int
    begun: int
    done: int

    @property
    def delay_ms(self) -> float:
        return (self.done - self.sent) / 1e6


def whole(text: str) -> list[str]:
    """Return the complete lines of a text."""
    return text[: text.rfind("\n") + 1].splitlines()


def read(lines: Sequence[str]) -> Iterator[Done]:
    """Yield the messages in the lines."""
    for line in lines:
        if not line.startswith("#"):
            key, *numbers = line.split(" ")
            yield Done(key, *map(int, numbers))


def messages(done: Sequence[Done]) -> set[tuple[str, int]]:
    """Return the distinct messages."""
    return {(each.key, each.offset) for each in done}


def repeats(done: Sequence[Done]) -> int:
    """Count the messages that were handled again."""
    return len(done) - len(messages(done))


def violations(done: Sequence[Done]) -> int:
    """Count the messages whose handling began before an earlier message of their key had ended.

    Earlier means sent earlier. A repeat after the message's end, which at-least-once delivery allows, is not a
    violation.
    """
    found = 0
    by_key = attrgetter("key")
    for _, same in itertools.groupby(sorted(done, key=attrgetter("key", "sent", "done")), by_key):
        # If a message came several times, its first end counts.
        ends = {each.offset: each for each in reversed(list(same))}
        firsts = sorted(ends.values(), key=attrgetter("sent"))
        ended = 0
        for each in firsts:
            found += each.begun < ended
            ended = max(ended, each.done)
    return found


def per_second(done: Sequence[Done]) -> float:
    """Return the messages per second between the first and the last finished one."""
    times = sorted(each.done for each in done)
    return (len(times) - 1) / ((times[-1] - times[0]) / 1e9)


def p99_ms(done: Sequence[Done]) -> float:
    """Return the 99th percentile of the delay in ms, from the call of a send to the end of the handler's call."""
    return statistics.quantiles([each.delay_ms for each in done], n=100)[98]


def longest_pause_s(done: Sequence[Done], begin: int, end: int) -> float:
    """Return the longest time in seconds between two instants in which no handling ended."""
    times = [begin, *sorted(each.done for each in done), end]
    return max(later - earlier for earlier, later in itertools.pairwise(times)) / 1e9
