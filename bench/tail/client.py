"""A sender that records when each send began, was written, was answered and resumed."""

import asyncio
import os
import time
from typing import Final

from bench.tail.phases import Stamps
from tests.cluster.bareclient import send_command

from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.codec import (
    ANSWER_HEADER_SIZE_MAX,
    FRAME_SIZE_MAX,
    FrameDecoder,
    encode,
)
from orderlymq_protocol.frame.command import RemotingCommand

TOPIC: Final = "tail"
QUEUES: Final = 8


class _Answers(asyncio.Protocol):
    """A protocol that passes on each answer with the time at which its last byte arrived."""

    def __init__(self) -> None:
        self._decoder = FrameDecoder(FRAME_SIZE_MAX, ANSWER_HEADER_SIZE_MAX)
        self.next: asyncio.Future[tuple[RemotingCommand, int]] | None = None

    def data_received(self, data: bytes) -> None:
        received = time.monotonic_ns()
        for answer in self._decoder.receive_data(data):
            assert self.next is not None
            self.next.set_result((answer, received))

    def connection_lost(self, error: Exception | None) -> None:
        if self.next is not None and not self.next.done():
            self.next.set_exception(error or ConnectionError("the broker closed the connection"))


async def sends(host: str, port: int, count: int, size: int) -> list[Stamps]:
    """Send messages one after another; return the stamps of each."""
    loop = asyncio.get_running_loop()
    transport, answers = await loop.create_connection(_Answers, host, port)
    body = os.urandom(size // 2).hex().encode()
    found = []
    for number in range(count):
        began = time.monotonic_ns()
        frame = encode(send_command(TOPIC, number % QUEUES, body))
        answers.next = loop.create_future()
        written = time.monotonic_ns()
        transport.write(frame)
        answer, received = await answers.next
        found.append(Stamps(began, written, received, time.monotonic_ns()))
        if answer.code != ResponseCode.SUCCESS:
            raise RuntimeError(f"a send was refused: code {answer.code}, {answer.remark}")
    transport.close()
    return found
