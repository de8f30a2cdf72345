"""The queue expansions of a topic, as its brokers report them (20506): from which offset on each queue has the new list."""

import sys
from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.message.record import StoredMessage


class Expansion(NamedTuple):
    """One expansion of a topic's queue list.

    Attributes:
        at_ms: the latest time at which the list can have grown.
        queues: the number of queues of the current list at each broker; during an expansion more can be read.
        total: the number of queues of the list after this expansion; more than in `queues` while brokers have not
            switched.
        barriers: the ends of the previous list's queues at each broker that reports them.
        late: the brokers that have not switched; no producer has sent to them by the new list.
    """

    at_ms: int
    queues: Mapping[str, int]
    total: int
    barriers: Mapping[str, Mapping[int, int]]
    late: Set[str] = frozenset()

    def has(self, queue: MessageQueue) -> bool:
        """Return whether a queue belongs to the list; if its broker does not answer, assume that it does."""
        return queue.queue_id < self.queues.get(queue.broker_name, queue.queue_id + 1)

    def begins_at(self, queue: MessageQueue) -> int | None:
        """Return the first offset of a queue whose messages belong to the list; None if its broker does not report it."""
        if queue.broker_name in self.late:
            return sys.maxsize
        known = self.barriers.get(queue.broker_name)
        return None if known is None else known.get(queue.queue_id, 0)

    def is_behind(self, message: StoredMessage, queue: MessageQueue) -> bool:
        """Return whether a message belongs to the list; if its broker does not report it, compare the store time."""
        begins = self.begins_at(queue)
        if begins is None:
            return message.store_timestamp >= self.at_ms
        return message.queue_offset >= begins


def expansions_of(expansions: Mapping[str, Mapping[str, Any]]) -> list[Expansion]:
    """Return the expansions that brokers report (20506), oldest first."""
    told = {
        name: [*each.get("earlierGrowths", ()), each]
        for name, each in expansions.items()
        if each["total"]
    }
    queues = {name: each["writeQueues"] for name, each in expansions.items()}
    found = []
    for total in sorted({each["total"] for mine in told.values() for each in mine}):
        barriers = {name: _barriers(mine, total) for name, mine in told.items()}
        times = [
            each["grownMillis"] for mine in told.values() for each in mine if each["total"] == total
        ]
        known = {name: each for name, each in barriers.items() if each is not None}
        # A broker outside the list was never fenced.
        late = {
            name for name, each in expansions.items() if each["total"] < total and each["attempt"]
        }
        found.append(Expansion(max(times), queues, total, known, late))
    return found


def _barriers(told: Sequence[Mapping[str, Any]], total: int) -> Mapping[int, int] | None:
    """Return the ends of a broker's queues when a list of *total* queues began; None if its expansions do not show them."""
    first = told[0]
    if first["total"] > total and first.get("grownBarriers") == []:
        return {}  # the broker got the topic later and had no queue at that time
    ends = next((each.get("grownBarriers") for each in told if each["total"] == total), None)
    return None if ends is None else dict(ends)
