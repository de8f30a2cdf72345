"""
Requests that wait until a topic or a consumer group is created for them.

The rules: the first of these requests proposes the topic or group. The requests are served in the order in which they
came, a few at a time, and later requests queue behind them. They have their own memory limit, as large as that of
uncommitted bytes.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeAlias

from orderlymq_broker.core.capacity import BUSY
from orderlymq_broker.core.effects import CallSoon, Effect, Now, Propose, Refusal
from orderlymq_broker.core.requestcontext import Context, answer
from orderlymq_broker.core.uncommitted import Creation, LeaderView, Waiter
from orderlymq_broker.state.records import Outcome, Record
from orderlymq_protocol.codes import ResponseCode

# Requests served in one turn, before timers and other clients get their share; each takes about 50 us.
SERVED_MAX: Final = 256

_End: TypeAlias = Callable[[Waiter, Now], list[Effect]]


class Creations:
    """Holds waiting requests; *serve* and *refuse* end their wait."""

    def __init__(
        self,
        context: Context,
        serve: Callable[[Waiter, Now], list[Effect]],
        refuse: Callable[[Waiter, Refusal | None], list[Effect]],
    ) -> None:
        self._context = context
        self._serve = serve
        self._refuse = refuse

    def wait(self, names: Creation, records: Sequence[Record], waiter: Waiter) -> list[Effect]:
        """Propose *records*, which create *names*, unless another request has done so; refuse if too much waits (2)."""
        view, request = self._context.view, waiter.request
        held = request.memory_bytes()
        room = self._context.settings.raft.uncommitted_size_max - view.creating_bytes
        if view.creating and held > room:
            return answer(request, waiter.caller, ResponseCode.SYSTEM_BUSY, remark=BUSY)
        view.creating_bytes += held
        waiting = view.creating.get(names)
        if waiting is not None:
            waiting.append(waiter)
            return []
        view.creating[names] = deque([waiter])

        def applied(_: Sequence[Outcome], now: Now) -> list[Effect]:
            return self._end_some(names, view, self._serve_or_refuse(view), now)

        def lost(refusal: Refusal | None) -> list[Effect]:
            def refuse(each: Waiter, _: Now) -> list[Effect]:
                return self._refuse(each, refusal)

            # A refusal reads no clock.
            return self._end_some(names, view, refuse, Now(0, 0))

        return [Propose(records, applied=applied, lost=lost)]

    def _serve_or_refuse(self, view: LeaderView) -> _End:
        """Return the function that ends a wait: it serves the request, or refuses it if a new leadership began meanwhile.

        Such a request would otherwise be served after younger ones.
        """

        def end(waiter: Waiter, now: Now) -> list[Effect]:
            if self._context.leading and self._context.view is not view:
                return self._refuse(waiter, None)
            return self._serve(waiter, now)

        return end

    def _end_some(self, names: Creation, view: LeaderView, end: _End, now: Now) -> list[Effect]:
        """End the wait of some requests; the others stay ahead of those that come meanwhile."""
        # Remove them from the view first; otherwise a request that is served now would wait again for its own creation.
        waiting = view.creating.pop(names)
        effects: list[Effect] = []
        for _ in range(min(len(waiting), SERVED_MAX)):
            waiter = waiting.popleft()
            view.creating_bytes -= waiter.request.memory_bytes()
            effects += end(waiter, now)
        if not waiting:
            return effects
        if names in view.creating:
            # It was deleted meanwhile and is being created again for a request served here: the others wait behind it.
            view.creating[names].extend(waiting)
            return effects
        view.creating[names] = waiting

        return [*effects, CallSoon(partial(self._end_some, names, view, end))]
