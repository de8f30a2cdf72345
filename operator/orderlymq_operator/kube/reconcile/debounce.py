"""
Whether bad news about a Cluster is believed yet.

Pure: time is given. Rule: a process that stands still for a moment, as on a busy node, or an election that is over
before anybody looks again, is no news; told at once it would be two writes to every object of the Cluster. What a
person must see or has asked for is told at once: trouble of pods, and everything about a new generation.
"""

from collections.abc import Hashable, Mapping
from typing import Any, Final

from orderlymq_operator.plan.actions import ConditionReport

# Two further looks; a Service that lost its leader has another one by then.
DEBOUNCE_MS: Final = 2_000
_PASSING: Final = {"GroupNotReady", "NameServerUnavailable"}


class Debounce:
    """Since when each Cluster that was Ready has been seen otherwise."""

    def __init__(self) -> None:
        self._since: dict[Hashable, int] = {}

    def hold(
        self,
        key: Hashable,
        former: Mapping[str, Any] | None,
        ready: ConditionReport,
        generation: int,
        now_ms: int,
    ) -> bool:
        """Tell whether to keep quiet for now: *former* is the condition Ready as it was told last."""
        debounced = (
            former is not None
            and former.get("status") == "True"
            and former.get("observedGeneration") == generation
            and ready.status != "True"
            and ready.reason in _PASSING
        )
        if not debounced:
            self._since.pop(key, None)
            return False
        return now_ms - self._since.setdefault(key, now_ms) < DEBOUNCE_MS
