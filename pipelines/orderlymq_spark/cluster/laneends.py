"""How far a consumer group by key has consumed, according to the lanes that brokers report. Pure."""

from dataclasses import dataclass

from orderlymq_protocol.body.lanes import LaneTable
from orderlymq_protocol.body.messagequeue import MessageQueue


@dataclass(frozen=True, slots=True)
class LaneEnds:
    """The progress of a consumer group by key.

    Attributes:
        scanned: for each queue that the consumer group has begun: all offsets below it were scanned.
        owed: the first message of a key still to be consumed, by queue and key; the scanned messages of other keys are
            consumed.
    """

    scanned: dict[MessageQueue, int]
    owed: dict[tuple[MessageQueue, str], int]

    def add(self, key: str, table: LaneTable) -> None:
        """Add the table that brokers report for one key."""
        for row in table.queues:
            queue = MessageQueue(row.topic, row.broker_name, row.queue_id)
            # The queue may advance between two requests.
            self.scanned[queue] = min(row.scanned, self.scanned.get(queue, row.scanned))
        for lane in table.lanes:
            if lane.waiting:
                queue = MessageQueue(lane.topic, lane.broker_name, lane.queue_id)
                self.owed[queue, key] = lane.offset
