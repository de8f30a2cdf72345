"""
The age that a message has at least, whatever the clocks of its leaders have shown.

The rules: no message counts as older than it is, also when this leader's clock is ahead; a message that a clock ahead has stamped is old
at last, too, because the time of a leadership itself proves it. Pure.
"""

from collections import deque
from typing import Final

from orderlymq_broker.core.effects import Now
from orderlymq_broker.state.broker import BrokerState

# What the time of a leadership proves is proved so much later, in parts of the age.
_MARKS_PER_AGE: Final = 64


class MessageAge:
    """The ages of messages at the leader; retention and the patience with open transactions go by it."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._began = Now(0, 0)
        self._last_ms = 0  # store time of the last message before this leadership
        # Monotonic times of this leadership, and where the log ended then.
        self._marks: deque[tuple[int, int]] = deque()

    def start(self, now: Now) -> None:
        """Begin to lead."""
        self._began, self._last_ms = now, self._state.last_timestamp
        self._marks = deque([(now.monotonic_ms, self._state.physical_end)])

    def certain(self, now: Now, age_ms: int) -> Now:
        """Return the time by which a message is *age_ms* old for certain, also when this replica's clock is ahead.

        It has come so far since the last message before this leadership at least. When that is older than *age_ms*
        itself, only messages are left whose store times are of the clock that is asked now. Of a time that no majority
        confirms nothing is certain: by such a time the last message before may have been stored as well.
        """
        if not now.is_confirmed:
            return Now(0, now.monotonic_ms)
        led_ms = now.monotonic_ms - self._began.monotonic_ms
        from_ms = self._last_ms
        if led_ms > age_ms:
            from_ms = max(from_ms, self._began.wall_ms)

        return Now(min(now.wall_ms, from_ms + led_ms), now.monotonic_ms)

    def outlived(self, now: Now, age_ms: int) -> int:
        """Return the physical offset below which this leader has seen each message for *age_ms*, whatever its store time says."""
        marks = self._marks
        if now.monotonic_ms - marks[-1][0] >= age_ms // _MARKS_PER_AGE:
            marks.append((now.monotonic_ms, self._state.physical_end))
        led_ms = now.monotonic_ms - age_ms
        while len(marks) > 1 and marks[1][0] < led_ms:
            marks.popleft()

        return marks[0][1] if marks[0][0] < led_ms else 0
