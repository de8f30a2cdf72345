"""A listener that records, and consumers for tests against the fake cluster."""

from collections.abc import Sequence

from orderlymq.consumer.core.events import ConcurrentResult, OrderedResult
from orderlymq.consumer.listeners.context import ConcurrentContext, OrderedContext
from orderlymq.consumer.push.consumer import Consumer
from orderlymq.consumer.settings import ConsumerSettings
from orderlymq.message import ReceivedMessage
from tests.client.fakecluster import FakeCluster


class Inbox:
    """A listener that records its messages and returns what the test wants."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, str]] = []
        self.messages: list[ReceivedMessage] = []
        self.answers: list[object] = []

    def _take(self, messages: Sequence[ReceivedMessage]) -> object:
        for message in messages:
            self.messages.append(message)
            self.seen.append((message.queue.queue_id, message.queue_offset, message.text))
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def ordered(
        self, messages: Sequence[ReceivedMessage], _context: OrderedContext
    ) -> OrderedResult | None:
        answer = self._take(messages)
        return OrderedResult.SUCCESS if answer is None else answer  # type: ignore[return-value]  # scripted

    async def concurrent(
        self, messages: Sequence[ReceivedMessage], _context: ConcurrentContext
    ) -> ConcurrentResult | None:
        answer = self._take(messages)
        return ConcurrentResult.SUCCESS if answer is None else answer  # type: ignore[return-value]  # scripted

    @property
    def texts(self) -> list[str]:
        return [text for _, _, text in self.seen]


def ordered_consumer(cluster: FakeCluster, inbox: Inbox, **settings: float) -> Consumer:
    return Consumer(
        "G",
        cluster.address,
        topics="T",
        ordered=True,
        consume_from="first",
        listener=inbox.ordered,
        settings=ConsumerSettings(**settings),  # type: ignore[arg-type]  # numbers all
    )


def fill(cluster: FakeCluster, count: int, queues: int = 2) -> None:
    for number in range(count):
        cluster.append("T", number % queues, f"m{number}".encode())
