"""
Connections that asked for a topic that does not exist: they alone see the queues that new topics are made after (TBW102).

RocketMQ's producers ask for their topic, and for TBW102 when that fails, whatever the reason: no such topic, no
answer in time, no connection. Then they write to four queues of their topic for half a minute. A topic that
exists and has more would be written to in other queues than before, and the order of its keys would
be broken. The rule: TBW102 has queues only for a connection that was answered a moment ago that a topic does not
exist. Everybody else sees its brokers, as idle producers need them, and no queue: such a send fails in the
client with "no route info", and its repeat asks for the topic again. The Go client sees them always: it asks for
TBW102 only when a name server has answered for the topic, but asks the next name server; and it keeps an empty route. So a
name server that may not know the topic yet, or knows it from a list of queues alone, gives it no answer: it asks the next one.
"""

from typing import Final

# From the answer about a topic to the question for the template, in the client; longer on a machine that is starved.
NEGATIVE_TTL_MS: Final = 10_000


class NegativeCache:
    """When each connection was last answered that a topic does not exist (ms, by the clock of the caller)."""

    def __init__(self) -> None:
        self._at_ms: dict[int, int] = {}

    def note(self, connection: int, now_ms: int) -> None:
        """Note that a connection got this answer."""
        self._at_ms[connection] = now_ms

    def closed(self, connection: int) -> None:
        """Forget a connection."""
        self._at_ms.pop(connection, None)

    def is_fresh(self, connection: int, now_ms: int) -> bool:
        """Return whether a connection got this answer a moment ago; several threads may share it."""
        at_ms = self._at_ms.get(connection)
        return at_ms is not None and now_ms - at_ms < NEGATIVE_TTL_MS
