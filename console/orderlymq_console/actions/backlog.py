"""
Messages that wait in a queue while letters of one of its keys are released or sent again; they would be consumed before the letters.

Rule: an action that lets messages overtake dead letters of their key asks for a second consent, which says how many there may be.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from orderlymq.admin.client import AdminClient
from orderlymq_protocol.body.messagequeue import MessageQueue


@dataclass(frozen=True, slots=True)
class Backlog:
    """Messages at a place that a consumer group has not consumed; *count* is None if it is unknown."""

    place: str
    count: int | None

    @property
    def mark(self) -> str:
        """Its part of a plan's stamp; the part changes each time the count doubles."""
        return "?" if self.count is None else str(self.count.bit_length())

    @property
    def consent(self) -> str:
        """The text that must be agreed to; empty if nothing waits."""
        if self.count == 0:
            return ""
        if self.count is None:
            waits = f"The number of messages that wait in {self.place} is unknown."
        elif self.count == 1:
            waits = f"1 message waits in {self.place}."
        else:
            waits = f"{self.count:,} messages wait in {self.place}."
        return (
            f"{waits} Waiting messages of a key are consumed before its dead letters, which breaks their order. "
            "To avoid this, stop the senders of the key, and wait until there is no lag."
        )


async def backlog_of(admin: AdminClient, group: str, queues: Sequence[MessageQueue]) -> Backlog:
    """Return the messages that wait in queues of one topic.

    Raises:
        OrderlyMQError: A broker refused or did not answer.
    """
    first = queues[0]
    place = f"queue {first.broker_name}:{first.queue_id} of {first.topic}"
    if len(queues) > 1:
        place = f"{len(queues):,} queues of {first.topic}"
    progress = await admin.progress(group, first.topic)
    if any(queue not in progress for queue in queues):
        return Backlog(place, None)
    return Backlog(place, sum(progress[queue].lag for queue in queues))
