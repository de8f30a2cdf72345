"""
Log lines about queue locks: acquired, taken over from an expired lease, or refused because another client holds them.

The rules: the words are those of RocketMQ's RebalanceLockManager, so that people can search for them. There is one
line per request, kind and holder, for any number of queues, and for a few holders only. A renewal is not logged. A
client that is refused again and again is logged once a minute. Pure: the shell takes the lines and writes them.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final, Literal, NamedTuple

from orderlymq_broker.core.effects import Now
from orderlymq_protocol.body.messagequeue import MessageQueue

# The most lines between two visits of the shell; if a rebalance of more groups writes more, the newest are kept.
LINES_MAX: Final = 200
REFUSED_AGAIN_MS: Final = 60_000
REFUSED_MAX: Final = 1_000
QUEUES_SHOWN: Final = 4
# A request may name thousands of queues, each with another holder.
HOLDERS_SHOWN: Final = 4
NAME_SHOWN: Final = 127


class Line(NamedTuple):
    """One line for the log."""

    level: Literal["info", "warning"]
    text: str


class LockReports:
    """The lines since they were last taken."""

    def __init__(self) -> None:
        self._lines: deque[Line] = deque(maxlen=LINES_MAX)
        self._refused: dict[tuple[str, str], int] = {}

    def take(self) -> list[Line]:
        """Return the lines added since the last call."""
        lines = list(self._lines)
        self._lines.clear()

        return lines

    def decided(
        self,
        group: str,
        client_id: str,
        granted: Mapping[MessageQueue, tuple[str, bool]],
        refused: Mapping[MessageQueue, str],
        now: Now,
    ) -> None:
        """Note the outcome of a lock request.

        *granted* has the former holder of each granted queue (empty if there was none) and whether its lease
        was over; *refused* has the holder of each other queue.
        """
        got: list[MessageQueue] = []
        taken: dict[str, list[MessageQueue]] = {}
        others: dict[str, list[MessageQueue]] = {}
        for queue, (holder, expired) in granted.items():
            if expired:
                taken.setdefault(holder, []).append(queue)
            elif holder != client_id:
                got.append(queue)
        for queue, holder in refused.items():
            others.setdefault(holder, []).append(queue)
        begin = "tryLockBatch, message queue"
        if got:
            self._add(
                "info",
                f"{begin} not locked, I got it. Group: {group} NewClientId: {client_id} {_named(got)}",
            )
        for holder, queues in islice(taken.items(), HOLDERS_SHOWN):
            self._add(
                "warning",
                f"{begin} lock expired, I got it. Group: {group} OldClientId: {holder} NewClientId: "
                f"{client_id} {_named(queues)}",
            )
        if others and self._may_say(group, client_id, now):
            for holder, queues in islice(others.items(), HOLDERS_SHOWN):
                self._add(
                    "warning",
                    f"{begin} locked by other client. Group: {group} OtherClientId: {holder} "
                    f"NewClientId: {client_id} {_named(queues)}",
                )

    def _may_say(self, group: str, client_id: str, now: Now) -> bool:
        due_ms = self._refused.pop((group, client_id), 0)
        said = now.monotonic_ms < due_ms
        self._refused[group, client_id] = due_ms if said else now.monotonic_ms + REFUSED_AGAIN_MS
        if len(self._refused) > REFUSED_MAX:
            del self._refused[next(iter(self._refused))]

        return not said

    def _add(self, level: Literal["info", "warning"], text: str) -> None:
        self._lines.append(Line(level, text))


def _named(queues: Sequence[MessageQueue]) -> str:
    shown = ", ".join(
        f"{queue.topic[:NAME_SHOWN]}:{queue.queue_id}" for queue in queues[:QUEUES_SHOWN]
    )
    left = len(queues) - QUEUES_SHOWN

    return f"mq: {shown}" + (f" and {left} more" if left > 0 else "")
