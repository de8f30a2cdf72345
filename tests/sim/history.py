"""The history of a run, in the words of the oracle."""

from orderlymq.oracle.verdict import Event, Kind
from tests.sim.timeline import Timeline


class History:
    """Collects events; each is part of what two runs of a seed have in common."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.events: list[Event] = []

    def event(self, kind: Kind, **attributes: str | int) -> None:
        """Note what happens now; events of one instant keep their order by a nanosecond each."""
        at = self._timeline.now * 1_000
        if self.events and self.events[-1].at >= at:
            at = self.events[-1].at + 1
        event = Event(at, kind, **attributes)  # type: ignore[arg-type]  # fields by name
        self.events.append(event)
        parts = " ".join(str(value) for value in attributes.values())
        self._timeline.note(f"{kind.value} {parts}")
