"""The history of a run, as events of the oracle."""

from orderlymq.oracle.verdict import Event, Kind
from tests.sim.timeline import Timeline


class History:
    """Collects events; each belongs to what two runs of a seed must have in common."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.events: list[Event] = []

    def event(self, kind: Kind, **attributes: str | int) -> None:
        """Record an event now; events of the same instant are one nanosecond apart, in their order."""
        at = self._timeline.now * 1_000
        if self.events and self.events[-1].at >= at:
            at = self.events[-1].at + 1
        event = Event(at, kind, **attributes)  # type: ignore[arg-type]  # fields by name
        self.events.append(event)
        parts = " ".join(str(value) for value in attributes.values())
        self._timeline.note(f"{kind.value} {parts}")
