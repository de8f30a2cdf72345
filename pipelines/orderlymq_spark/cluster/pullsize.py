"""
The number of messages that a pull requests, while several pulls of one queue are in flight. Pure.

A pull that returns less than requested makes the pulls behind it useless, because they start at wrong offsets. Large
messages fill an answer early, and RocketMQ's brokers return at most 32. Rule: a pull requests as many messages as
the broker last returned. A larger number is tried rarely, and more rarely after each attempt without success.
"""

from typing import Final

from orderlymq_spark.cluster.credit import CREDIT_MIN

_TRY_AFTER_FIRST: Final = 4
_TRY_AFTER_MAX: Final = 1024  # a failed attempt costs one round


class PullSize:
    """The pull size for one range of a queue, which is read front to back.

    Attributes:
        count: how many messages the next pull requests.
        size: the expected bytes of its answer, from the previous answers.
    """

    def __init__(self, count_max: int) -> None:
        self.count = count_max
        self.size = CREDIT_MIN
        self._max = count_max
        self._full = 0
        self._try_after = _TRY_AFTER_FIRST
        self._tried = False

    def note(self, asked: int, brought: int) -> None:
        """Learn from the first answer of a round; *asked* is less than `count` at the end of a block or range."""
        if brought < asked:
            # If we had tried a larger number, the broker's limit has not changed, so the next attempt waits longer.
            self._try_after = (
                min(_TRY_AFTER_MAX, self._try_after * 2) if self._tried else _TRY_AFTER_FIRST
            )
            self.count, self._full, self._tried = max(1, brought), 0, False
            return
        if asked < self.count or self.count >= self._max:
            return
        if self._tried:
            self._try_after, self._tried = _TRY_AFTER_FIRST, False
        self._full += 1
        if self._full >= self._try_after:
            self.count, self._full, self._tried = min(self._max, self.count * 2), 0, True
