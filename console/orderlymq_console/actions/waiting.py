"""
What waits in a queue when letters of one of its keys are released or sent again: it would be consumed before them.

Rule: an action that lets messages pass dead letters of their key asks for a second consent, which says how many they may be.
"""

from dataclasses import dataclass

from orderlymq.admin.client import AdminClient
from orderlymq_protocol.body.messagequeue import MessageQueue


@dataclass(frozen=True, slots=True)
class Waiting:
    """Messages of a queue that a group has not consumed; *count* is None where nobody can tell."""

    queue: MessageQueue
    count: int | None

    @property
    def mark(self) -> str:
        """What the stamp of a plan says of it; another one from twice as many on."""
        return "?" if self.count is None else str(self.count.bit_length())

    @property
    def consent(self) -> str:
        """What must be agreed to; empty when nothing waits."""
        if self.count == 0:
            return ""
        place = f"queue {self.queue.broker_name}:{self.queue.queue_id} of {self.queue.topic}"
        if self.count is None:
            waits = f"It is not known how many messages wait in {place}."
        elif self.count == 1:
            waits = f"1 message waits in {place}."
        else:
            waits = f"{self.count:,} messages wait in {place}."
        return (
            f"{waits} Those of the key are consumed before its dead letters, out of their order. "
            "Without that: stop the senders of the key, and wait until the queue has no lag."
        )


async def waiting_in(admin: AdminClient, group: str, queue: MessageQueue) -> Waiting:
    """Return what waits in a queue.

    Raises:
        OrderlyMQError: A broker refused or did not answer.
    """
    progress = (await admin.progress(group, queue.topic)).get(queue)
    if progress is None:
        return Waiting(queue, None)

    return Waiting(queue, max(0, progress.broker_offset - progress.consumer_offset))
