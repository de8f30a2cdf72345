"""
How many messages a pull asks for, while several pulls of one queue are in flight.

Pure. A pull that brings less than it was asked for makes those behind it useless, because they began too late: large
messages fill an answer, and RocketMQ's brokers give 32 and no more. Rule: what a broker brought is what is asked for
next; whether it brings more by now is tried rarely, and more rarely each time that it does not.
"""

from typing import Final

from orderlymq_spark.cluster.credit import CREDIT_MIN

_TRY_AFTER_FIRST: Final = 4
_TRY_AFTER_MAX: Final = 1024  # a try in vain costs one round


class PullSize:
    """Of one range of a queue, which is read front to back.

    Attributes:
        count: how many messages the next pull asks for.
        size: bytes that its answer may have, as those before it had.
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
            # In vain: the larger number was ours, and the broker still gives what it gave before.
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
