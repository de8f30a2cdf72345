"""
Remembers which connections got the answer that a topic does not exist: only they see the queues of the template TBW102.

RocketMQ's producers ask for their topic, and for TBW102 if that fails for any reason: no such topic, no
answer in time, no connection. Then they write to four queues of their topic for half a minute. If the topic
exists and has more queues, its messages would go to other queues than before, and the order of its keys would
be broken.

The rule: TBW102 has queues only for a connection that just got the answer that a topic does not exist. Every
other connection sees its brokers, which idle producers need, and no queue. Such a send fails in the client
with "no route info", and its retry asks for the topic again. The Go client always sees the queues: it asks
for TBW102 only after a name server has answered for the topic, but it asks the next name server for TBW102,
and it keeps an empty route. So a name server that may not know the topic yet, or knows it only from a list of
queues, gives it no answer, and the client asks the next one.
"""

from typing import Final

# The time in the client from the answer about a topic to the query for the template; longer on a machine without
# free CPU.
NEGATIVE_TTL_MS: Final = 10_000


class NegativeCache:
    """The time of each connection's last answer that a topic does not exist (ms, by the caller's clock)."""

    def __init__(self) -> None:
        self._at_ms: dict[int, int] = {}

    def note(self, connection: int, now_ms: int) -> None:
        """Note that a connection got this answer."""
        self._at_ms[connection] = now_ms

    def closed(self, connection: int) -> None:
        """Drop a connection."""
        self._at_ms.pop(connection, None)

    def is_fresh(self, connection: int, now_ms: int) -> bool:
        """Return whether a connection got this answer just now; several threads of the client may share it."""
        at_ms = self._at_ms.get(connection)
        return at_ms is not None and now_ms - at_ms < NEGATIVE_TTL_MS
