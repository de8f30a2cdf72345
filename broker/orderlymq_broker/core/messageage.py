"""
The minimum age of a message, regardless of what the clocks of its leaders have shown.

The rules: no message counts as older than it is, even if this leader's clock is ahead. A message with a
timestamp from a clock that was ahead still becomes old, because the duration of a leadership itself proves
its age. A clock that no majority confirms may be behind: it stores nothing before what is stored already. Pure.
"""

from collections import deque
from typing import Final

from orderlymq_broker.core.effects import Now
from orderlymq_broker.state.broker import BrokerState

# A leadership proves an age with a delay of at most this fraction of the age.
_MARKS_PER_AGE: Final = 64


class MessageAge:
    """The ages of messages at the leader; used by retention and by the time-out of open transactions."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._began = Now(0, 0)
        self._last_ms = 0  # store time of the last message before this leadership
        # Monotonic times during this leadership, and the end of the log at each.
        self._marks: deque[tuple[int, int]] = deque()

    def start(self, now: Now) -> None:
        """Begin to lead."""
        self._began, self._last_ms = now, self._state.last_timestamp
        self._marks = deque([(now.monotonic_ms, self._state.physical_end)])

    def earliest_ms(self, now: Now) -> int:
        """Return the store time before which no message is stored now; 0 if a majority confirms the present time.

        Else the last message before this leadership was stored, and this leadership has lasted, by then at least.
        """
        if now.is_confirmed:
            return 0

        return self._last_ms + now.monotonic_ms - self._began.monotonic_ms

    def certain(self, now: Now, age_ms: int) -> Now:
        """Return the time by which a message is certainly *age_ms* old, even if this replica's clock is ahead.

        At least the duration of this leadership has passed since the last message before it. Once the
        leadership is longer than *age_ms* itself, only messages remain whose store times come from the
        present clock. Nothing is certain if no majority confirms the present time: the last message before
        may have been stored with such a time, too.
        """
        if not now.is_confirmed:
            return Now(0, now.monotonic_ms)
        led_ms = now.monotonic_ms - self._began.monotonic_ms
        from_ms = self._last_ms
        if led_ms > age_ms:
            from_ms = max(from_ms, self._began.wall_ms)

        return Now(min(now.wall_ms, from_ms + led_ms), now.monotonic_ms)

    def outlived(self, now: Now, age_ms: int) -> int:
        """Return the physical offset below which this leader has seen each message for *age_ms*, regardless of store times."""
        marks = self._marks
        if now.monotonic_ms - marks[-1][0] >= age_ms // _MARKS_PER_AGE:
            marks.append((now.monotonic_ms, self._state.physical_end))
        led_ms = now.monotonic_ms - age_ms
        while len(marks) > 1 and marks[1][0] < led_ms:
            marks.popleft()

        return marks[0][1] if marks[0][0] < led_ms else 0
