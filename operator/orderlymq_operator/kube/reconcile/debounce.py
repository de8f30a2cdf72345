"""
Debounce: whether bad news about a Cluster is reported yet.

Pure: the caller gives the time. Rule: a process that stops for a moment, or an election that is over before the next
reconcile, is not reported; it would cost two writes to every object of the Cluster. Trouble of pods and everything about
a new generation is reported immediately.
"""

from collections.abc import Hashable, Mapping
from typing import Any, Final

from orderlymq_operator.plan.actions import ConditionReport

# Two further reconciles; a Service that lost its leader has another one by then.
DEBOUNCE_MS: Final = 2_000
_PASSING: Final = {"GroupNotReady", "NameServerUnavailable"}


class Debounce:
    """Since when each Cluster that was Ready has been seen otherwise."""

    def __init__(self) -> None:
        self._since: dict[Hashable, int] = {}

    def hold(
        self,
        key: Hashable,
        previous: Mapping[str, Any] | None,
        ready: ConditionReport,
        generation: int,
        now_ms: int,
    ) -> bool:
        """Return whether to keep quiet for now: *previous* is the condition Ready as it was last written."""
        debounced = (
            previous is not None
            and previous.get("status") == "True"
            and previous.get("observedGeneration") == generation
            and ready.status != "True"
            and ready.reason in _PASSING
        )
        if not debounced:
            self._since.pop(key, None)
            return False
        return now_ms - self._since.setdefault(key, now_ms) < DEBOUNCE_MS
