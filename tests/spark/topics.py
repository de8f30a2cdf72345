"""Topics for tests: they have unique names, are filled in order and read without Spark."""

import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from orderlymq.blocking import AdminClient, LoopThread, PullConsumer
from orderlymq.message import Message, ReceivedMessage
from orderlymq.producer.producer import Producer
from orderlymq.producer.sendoutcome import split_batch
from orderlymq_protocol.body.messagequeue import MessageQueue

_PATIENCE_S = 60  # the broker of a test shares its machine with other work


def numbers_by_key(
    queues: Mapping[MessageQueue, Sequence[ReceivedMessage]],
) -> dict[str | None, list[str]]:
    """Return the values of the property `n` of each key's messages, in order."""
    found: dict[str | None, list[str]] = {}
    for messages in queues.values():
        for message in messages:
            found.setdefault(message.key, []).append(message.properties["n"])
    return found


@dataclass
class Topics:
    """The topics of one cluster."""

    bootstrap: str
    admin: AdminClient
    prefix: str = "orders"
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def make(self, *, queues: int = 2, ordered: bool = True) -> str:
        """Create a topic and return its name."""
        name = f"{self.prefix}-{next(self._numbers)}"
        self.admin.create_topic(name, queues=queues, ordered=ordered)
        return name

    def resize(self, topic: str, queues: int) -> None:
        """Change a topic's number of queues; name servers hear of it a little later."""
        self.admin.create_topic(topic, queues=queues)
        end = time.monotonic() + _PATIENCE_S
        while (count := len(self.queues(topic))) != queues:
            assert time.monotonic() < end, f"{topic} still has {count} queues"
            time.sleep(0.05)

    def fill(self, topic: str, messages: Iterable[Message], queue: int | None = None) -> None:
        """Send messages in order, each to its key's queue or all to one."""
        thread = LoopThread()

        async def send() -> None:
            async with Producer("tests", self.bootstrap) as producer:
                for message in messages:
                    await producer.send(message, queue=queue, timeout=_PATIENCE_S)

        thread.run(send())
        thread.close()

    def numbered(self, topic: str, count: int, *, keys: int = 5, start: int = 0) -> None:
        """Send this many messages with the property `n`, which counts per key from 0."""
        self.fill(
            topic,
            (
                Message(
                    topic=topic,
                    body=f'{{"number": {number}}}'.encode(),
                    key=f"key-{number % keys}",
                    tags="odd" if number % 2 else "even",
                    keys=f"id-{number}",
                    properties={"n": str(number // keys)},
                )
                for number in range(start, start + count)
            ),
        )

    def bulk(
        self, topic: str, count: int, *, size: int = 1024, keys: int = 1000, text: bool = False
    ) -> None:
        """Send many messages fast, in batches per queue; their text bodies compress to a half."""
        thread = LoopThread()

        async def send() -> None:
            async with Producer("tests", self.bootstrap) as producer:
                queues = await producer.queues(topic)
                chance = Random(0)
                for number, queue in enumerate(queues):
                    messages = [
                        Message(
                            topic=topic,
                            body=chance.randbytes(size // 2).hex().encode()
                            if text
                            else b"x" * size,
                            key=f"key-{number}-{each % keys}",
                            properties={"n": str(each // keys)},
                        )
                        for each in range(count // len(queues))
                    ]
                    for part in split_batch(messages, 1 << 18):
                        await producer.send_batch(part, queue=queue, timeout=_PATIENCE_S)

        thread.run(send())
        thread.close()

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return a topic's queues."""
        return self.admin.route(topic).subscribe

    def read(self, topic: str) -> dict[MessageQueue, list[ReceivedMessage]]:
        """Return all messages of a topic, by queue."""
        found: dict[MessageQueue, list[ReceivedMessage]] = {}
        with PullConsumer("tests-reader", self.bootstrap) as consumer:
            for queue in self.queues(topic):
                messages = found.setdefault(queue, [])
                end, position = consumer.max_offset(queue), consumer.min_offset(queue)
                while position < end:
                    result = consumer.pull(queue, None, position)
                    messages += result.messages
                    position = result.next_offset
        return found
