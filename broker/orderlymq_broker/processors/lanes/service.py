"""
The leader's key lanes as one object to which the dispatcher passes everything about them.

The rule: all requests, outcomes and time for lanes pass through here, so that ``dispatch.py`` knows one name only.
"""

from collections.abc import Collection, Sequence

from orderlymq_broker.core.effects import Effect, Now
from orderlymq_broker.core.requestcontext import Context, Handler
from orderlymq_broker.processors.lanes.deadletters import DeadLetterService
from orderlymq_broker.processors.lanes.fetch import LaneFetcher
from orderlymq_broker.processors.lanes.leases import LaneLeases
from orderlymq_broker.processors.lanes.overview import LaneOverview
from orderlymq_broker.processors.lanes.reports import LaneReporter
from orderlymq_broker.state.lanes.lanerecords import LanesGranted, LanesMoved
from orderlymq_broker.state.records import Append
from orderlymq_protocol.codes import RequestCode


class LaneService:
    """Serves groups that consume by key."""

    def __init__(self, context: Context) -> None:
        self.leases = LaneLeases(context)
        self.fetcher = LaneFetcher(context, self.leases)
        self.overview = LaneOverview(context)
        self._reporter = LaneReporter(context, self.leases)
        self._letters = DeadLetterService(context)

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.ORDERLYMQ_FETCH_LANES: self.fetcher.fetch,
            RequestCode.ORDERLYMQ_COMPLETE_LANES: self._reporter.complete,
            RequestCode.ORDERLYMQ_LANES: self.overview.lanes,
        }

    def start(self, now: Now) -> list[Effect]:
        """Begin to lead."""
        return self.leases.start(now)

    def stop(self) -> list[Effect]:
        """Stop leading."""
        self.leases.stop()
        self._letters.stop()

        return self.fetcher.stop()

    def changed(self, outcome: LanesGranted | LanesMoved, now: Now) -> list[Effect]:
        """Begin and end the leases of attempts, and serve fetches that wait for lanes that became free."""
        if isinstance(outcome, LanesGranted):
            self.leases.granted(outcome, now)
            return []
        self.leases.ended(outcome.ended)

        return self.fetcher.moved(outcome.topics, now)

    def appended(self, records: Sequence[Append], now: Now) -> list[Effect]:
        """Serve the fetches that wait for messages."""
        return self.fetcher.appended(records, now)

    def recheck_waiting(self, now: Now, groups: Collection[str] | None = None) -> list[Effect]:
        """Check waiting fetches of some groups again, or all after deletions of topics or groups."""
        gone = self.leases.forget_gone(now) if groups is None else []

        return [*gone, *self.fetcher.recheck_waiting(now, groups)]

    def tick(self, now: Now) -> list[Effect]:
        """Perform the due work."""
        return [*self.leases.tick(now), *self._letters.tick(), *self.fetcher.tick(now)]
