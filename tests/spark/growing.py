"""An ordered topic that grows step by step, as the operator does it."""

import time

from orderlymq_protocol.codes import RequestCode
from orderlymq_spark.cluster.access import access_to
from orderlymq_spark.options import Connect
from tests.spark.topics import Topics


class Growing:
    """The expansion of a topic, step by step, as the operator does it."""

    def __init__(self, topics: Topics, topic: str) -> None:
        self.topic = topic
        self._topics = topics
        self._access = access_to(Connect(topics.bootstrap))

    def call(self, address: str, code: RequestCode, **ext: str) -> None:
        self._access.wait(lambda: self._access.instance.call(address, code, ext))

    def step(self, action: str, **fields: int) -> None:
        ext = {name: str(value) for name, value in fields.items()}
        self._access.queues([self.topic])
        address = self._access.instance.routes.address("g")
        assert address is not None
        code = RequestCode.ORDERLYMQ_CHANGE_QUEUES
        self.call(address, code, action=action, topic=self.topic, operatorToken="1", **ext)

    def declare(self, queues: int) -> None:
        """Send the queue list to the name server."""
        ext = {"namespace": "ORDER_TOPIC_CONFIG", "key": self.topic, "value": f"g:{queues}"}
        self.call(self._topics.bootstrap, RequestCode.PUT_KV_CONFIG, **ext)

    def grow(self, queues: int) -> None:
        """Carry out all steps of a first expansion."""
        self.step("fence", attempt=1, total=queues, queues=queues, limitMillis=60_000)
        self.step("switch", attempt=1, total=queues, queues=queues)
        self.declare(queues)
        self.step("publish", total=queues, settleMillis=1)
        self.until("open", queues)

    def until(self, phase: str, readable: int) -> None:
        """Wait until brokers and routes have reached this step."""
        for _ in range(600):
            there = len(self._access.queues([self.topic]))
            if (self._topics.admin.expansion(self.topic)["g"]["phase"], there) == (phase, readable):
                return
            time.sleep(0.05)
        raise AssertionError(f"{self.topic} never was {phase} with {readable} queues")
