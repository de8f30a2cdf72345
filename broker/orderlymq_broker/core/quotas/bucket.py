"""
A token bucket on a clock that is given.

The rule: who finds a token may take more than there are, so that a message larger than a second's worth
passes; the debt is worked off before the next one does. So the average holds, whatever the sizes.
"""


class Bucket:
    """Tokens that come at a steady rate, one second's worth at most.

    Attributes:
        rate: tokens per second; more than 0.
    """

    __slots__ = ("_at_ms", "_level", "rate")

    def __init__(self, rate: int, now_ms: int) -> None:
        assert rate > 0, "no rate is no bucket"
        self.rate = rate
        self._level = float(rate)
        self._at_ms = now_ms

    def has_more_than(self, floor: float, now_ms: int) -> bool:
        """Return whether there are more than *floor* tokens; below zero is debt."""
        return self._refilled(now_ms) > floor

    def take(self, tokens: int) -> None:
        """Take tokens, also those that are not there yet."""
        self._level -= tokens

    def wait_ms(self, now_ms: int) -> int:
        """Return after how many ms there will be a token."""
        return max(0, int(-self._refilled(now_ms) * 1000 / self.rate)) + 1

    def _refilled(self, now_ms: int) -> float:
        # A clock that stands still, or is another one since, gives nothing and takes nothing.
        passed_ms = max(0, now_ms - self._at_ms)
        self._level = min(float(self.rate), self._level + passed_ms * self.rate / 1000)
        self._at_ms = max(self._at_ms, now_ms)

        return self._level
