"""Two clusters, and the checks of a mirror from one to the other."""

from dataclasses import dataclass, replace

from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.message.record import StoredMessage, iter_records
from orderlymq_spark.cluster.access import access_to
from orderlymq_spark.offsets import QueueRange
from orderlymq_spark.options import Connect
from tests.spark.topics import Topics


@dataclass
class Clusters:
    """A source and a target."""

    source: Topics
    target: Topics

    def make(self, name: str, *, queues: int = 2, source_queues: int | None = None) -> str:
        """Create a topic at both; only the mirror may send to that of the target."""
        self.source.admin.create_topic(name, queues=source_queues or queues, ordered=True)
        self.target.admin.create_topic(name, queues=queues, ordered=True, perm=4)
        return name

    def check_prefix(self, topic: str) -> int:
        """Check the law: each queue of the target is a prefix of the source's; return the number of its messages."""
        # Read the target first, because the source goes on.
        copies, originals = stored(self.target, topic), stored(self.source, topic)
        for queue, messages in copies.items():
            assert messages == originals.get(queue, [])[: len(messages)], (
                f"queue {queue} is no prefix"
            )
        return sum(map(len, copies.values()))


def stored(side: Topics, topic: str) -> dict[int, list[StoredMessage]]:
    """Return a topic's messages in a cluster, by queue, without the place and time of their storage."""
    access = access_to(Connect(side.bootstrap))
    queues = access.queues([topic])
    lows, highs = access.bounds(queues)
    return {
        queue.queue_id: [
            replace(message, physical_offset=0, store_timestamp=0, store_host=("", 0))
            for block in access.read(QueueRange(queue, lows[queue], highs[queue]))
            for chunk in block.chunks
            for message in iter_records(chunk)
        ]
        for queue in queues
    }


def committed(side: Topics, group: str, topic: str) -> dict[MessageQueue, int]:
    """Return the committed offsets of a consumer group."""
    return {
        queue: each.consumer_offset for queue, each in side.admin.progress(group, topic).items()
    }
