"""A minimal client for tests: it sends and pulls over the remoting protocol, and remembers the acknowledgements."""

import asyncio
import itertools
import sys
import time
import uuid
from collections import defaultdict
from dataclasses import dataclass, field

from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_protocol.header.catalogue import PullMessageHeader, SendMessageHeader
from orderlymq_protocol.message.properties import encode_properties
from orderlymq_protocol.message.record import iter_records
from orderlymq_runtime.remoting.client import RemotingClient, RemotingError

TOPIC = "TBW102"
QUEUES = 8
SEND_TIMEOUT_S = 3.0


def report(text: str) -> None:
    """Print a measured figure, shown by ``pytest -s``."""
    sys.stdout.write(text + "\n")


def send_command(
    topic: str, queue_id: int, body: bytes, *, unique_key: str | None = None
) -> RemotingCommand:
    """Return a send as an SDK writes it."""
    properties = {"UNIQ_KEY": unique_key or uuid.uuid4().hex.upper()}
    header = SendMessageHeader(
        producer_group="PG",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=QUEUES,
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp=int(time.time() * 1000),
        flag=0,
        properties=encode_properties(properties).decode(),
    )
    return request(RequestCode.SEND_MESSAGE_V2, header.to_ext_v2(), body)


@dataclass(slots=True)
class Acknowledged:
    """A send that was acknowledged, and the time of the acknowledgement."""

    body: bytes
    queue_id: int
    offset: int
    at: float


@dataclass(slots=True)
class Sender:
    """Sends numbered messages to one queue, each after the former one is acknowledged.

    A repeated send carries the same unique key, as in Java's producer. No two senders share a name, because a
    test that runs again on the same group finds the messages of its first run.
    """

    client: RemotingClient
    address: str
    name: str
    queue_id: int
    topic: str = "orders"
    acknowledged: list[Acknowledged] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    refused: int = 0
    sent: int = 0

    def __post_init__(self) -> None:
        self.name = f"{self.name}.{uuid.uuid4().hex[:6]}"

    async def send(self, count: int, *, pause_s: float = 0.0) -> None:
        for _ in range(count):
            await self.send_next()
            if pause_s:
                await asyncio.sleep(pause_s)

    async def send_next(self) -> None:
        """Send the next message, and repeat it until it is acknowledged."""
        body = f"{self.name}:{self.sent}".encode()
        self.sent += 1
        command = send_command(self.topic, self.queue_id, body)
        while True:
            try:
                reply = await self.client.invoke(self.address, command, SEND_TIMEOUT_S)
            except RemotingError as error:
                self.failures.append(f"{type(error).__name__}: {error} at {time.time():.3f}")
                await asyncio.sleep(0.005)
                continue
            if reply.code == ResponseCode.SUCCESS:
                offset, queue_id = int(reply.ext["queueOffset"]), int(reply.ext["queueId"])
                self.acknowledged.append(Acknowledged(body, queue_id, offset, time.monotonic()))
                return
            self.refused += 1
            self.failures.append(f"code {reply.code}: {reply.remark}")
            await asyncio.sleep(0.02)

    def longest_gap_s(self) -> float:
        """Return the longest time between two acknowledgements."""
        times = [each.at for each in self.acknowledged]
        return max((later - earlier for earlier, later in itertools.pairwise(times)), default=0.0)


async def invoke(
    client: RemotingClient, address: str, command: RemotingCommand, timeout_s: float = 5.0
) -> RemotingCommand:
    """Return the answer to a request; as any client, repeat the request while there is no leader."""
    async with asyncio.timeout(20.0):
        while True:
            try:
                return await client.invoke(address, command, timeout_s)
            except RemotingError:
                await asyncio.sleep(0.02)


async def pull_all(
    client: RemotingClient, address: str, topic: str, queue_id: int
) -> list[tuple[int, bytes]]:
    """Return offset and body of every message of a queue."""
    found: list[tuple[int, bytes]] = []
    offset = 0
    while True:
        header = PullMessageHeader(
            consumer_group="TOOLS_CONSUMER",
            topic=topic,
            queue_id=queue_id,
            queue_offset=offset,
            max_msg_nums=32,
            sys_flag=4,
            commit_offset=0,
            suspend_timeout_millis=0,
            sub_version=0,
            subscription="*",
        )
        reply = await invoke(client, address, request(RequestCode.PULL_MESSAGE, header.to_ext()))
        if reply.code == ResponseCode.PULL_NOT_FOUND:
            return found
        if reply.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            await asyncio.sleep(0.02)
            continue
        if reply.code == ResponseCode.PULL_OFFSET_MOVED and offset == 0:
            if int(reply.ext["maxOffset"]) == 0:
                return found
            offset = int(reply.ext["nextBeginOffset"])
            continue
        assert reply.code == ResponseCode.SUCCESS, (reply.code, reply.remark)
        found += [(record.queue_offset, record.body) for record in iter_records(reply.body)]
        offset = int(reply.ext["nextBeginOffset"])


def assert_kept_in_order(senders: list[Sender], stored: dict[int, list[tuple[int, bytes]]]) -> None:
    """Check that every acknowledged message is stored once, at its offset, in the order of its sender."""
    for queue_id, messages in stored.items():
        offsets = [offset for offset, _ in messages]
        assert offsets == list(range(len(offsets))), f"queue {queue_id} has holes"
    for sender in senders:
        for acknowledged in sender.acknowledged:
            there = stored[acknowledged.queue_id][acknowledged.offset]
            assert there == (acknowledged.offset, acknowledged.body)
        mine: dict[int, list[int]] = defaultdict(list)
        for queue_id, messages in stored.items():
            for _, body in messages:
                name, _, number = body.decode().partition(":")
                if name == sender.name:
                    mine[queue_id].append(int(number))
        for numbers in mine.values():
            assert numbers == sorted(numbers), f"{sender.name} was reordered, {sender.failures}"
