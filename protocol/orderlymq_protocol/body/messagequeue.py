"""
One queue of a topic on a broker: the unit of ordering, assignment and locking.

Rule: queues sort as in Java's `MessageQueue.compareTo`, because producers and consumers in
several languages take "the n-th queue" from the sorted list.
"""

from collections.abc import Mapping
from typing import NamedTuple, TypeGuard

from orderlymq_protocol.integers import INT32_MAX


class MessageQueue(NamedTuple):
    """Topic, broker and number of a queue.

    It is a named tuple because it is the key of nearly every map of a client: hashing and comparing run in C.
    The order is topic, broker name, queue id, as in Java.
    """

    topic: str
    broker_name: str
    queue_id: int

    def to_json_value(self) -> dict[str, object]:
        """Return the JSON object with Java's member names."""
        return {"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic}

    @classmethod
    def from_json_value(cls, value: object) -> "MessageQueue":
        """Read the JSON object; other members than these three are ignored.

        Raises:
            ValueError: A member is missing or has another type.
        """
        if isinstance(value, MessageQueue):
            return value
        if isinstance(value, Mapping):
            topic, broker_name = value.get("topic"), value.get("brokerName")
            queue_id = value.get("queueId")
            if isinstance(topic, str) and isinstance(broker_name, str) and _is_queue_id(queue_id):
                return cls(topic, broker_name, queue_id)
        raise ValueError(f"not a queue (topic, brokerName, queueId): {str(value)[:200]}")


def _is_queue_id(value: object) -> TypeGuard[int]:
    # RocketMQ uses -1 for "any queue" or "all of them".
    return type(value) is int and -1 <= value <= INT32_MAX
