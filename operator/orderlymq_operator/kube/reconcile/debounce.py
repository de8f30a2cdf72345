"""
Debounce: decides when a Cluster that stopped being Ready is reported.

Pure: the caller passes the time. Rules: a process that stops for a moment is not reported, nor is an election that ends
before the next reconcile. A report would cost two writes to every object of the Cluster. Trouble of pods and all news
about a new generation are reported immediately.
"""

from collections.abc import Hashable, Mapping
from typing import Any, Final

from orderlymq_operator.plan.actions import ConditionReport

# About two more reconciles. A raft group that lost its leader has another one by then.
DEBOUNCE_MS: Final = 2_000
_PASSING: Final = {"GroupNotReady", "NameServerUnavailable"}


class Debounce:
    """The time at which each Cluster stopped being Ready."""

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
        """Return whether to delay the report of *ready*; *previous* is the condition Ready as it was last written."""
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
