"""How far a group by key has consumed, by what brokers say about its lanes. Pure."""

from dataclasses import dataclass

from orderlymq_protocol.body.lanes import LaneTable
from orderlymq_protocol.body.messagequeue import MessageQueue


@dataclass(frozen=True, slots=True)
class LaneEnds:
    """How far a group by key has consumed.

    Attributes:
        scanned: of each queue that the group has begun: what is below was looked at.
        owed: the first message that is owed of a key, by queue and key; what was looked at of others is consumed.
    """

    scanned: dict[MessageQueue, int]
    owed: dict[tuple[MessageQueue, str], int]

    def add(self, key: str, table: LaneTable) -> None:
        """Take in what brokers say about one key."""
        for row in table.queues:
            queue = MessageQueue(row.topic, row.broker_name, row.queue_id)
            # The queue may go on from one question to the next.
            self.scanned[queue] = min(row.scanned, self.scanned.get(queue, row.scanned))
        for lane in table.lanes:
            if lane.waiting:
                queue = MessageQueue(lane.topic, lane.broker_name, lane.queue_id)
                self.owed[queue, key] = lane.offset
