"""
Requests and replies over topics: a send that waits for an answer, and the answer.

Rules: a request is a plain message with three marks: its own number, the client that waits, and the time-out. The
reply goes through the broker that carried the request, which pushes it to that client. A reply that comes too late is
refused, so that the replier knows. Requests are not kept for a caller that is gone, and a fail-over may lose an
answer. The caller then gets a time-out and decides.
"""

import asyncio
import logging
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from orderlymq.connection.instance import ClientInstance
from orderlymq.connection.wire import INFLATED_SIZE_MAX
from orderlymq.durations import milliseconds
from orderlymq.errors import ReplyTimeout, SettingError, StateError
from orderlymq.message import BodyLike, Message, ReceivedMessage, body_bytes
from orderlymq.producer.requests import REPLY
from orderlymq_protocol import names
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.header.catalogue import ReplyMessageHeader
from orderlymq_protocol.header.declaration import HeaderError
from orderlymq_protocol.message import properties
from orderlymq_protocol.message.compression import CompressionError, decompress
from orderlymq_runtime.remoting.connection import Connection

_log = logging.getLogger(__name__)

DEFAULT_TIMEOUT_S: Final = 3.0
_TIMEOUT_MIN_S: Final = 0.001
# The most unanswered requests of a producer; a program with more does not wait for them.
OPEN_MAX: Final = 65_535


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a request.

    Attributes:
        properties: all of them, the protocol's included, except the checksums of a compressed body.
        store_timestamp: when the broker got it, ms since the epoch.
    """

    body: bytes
    properties: Mapping[str, str]
    store_timestamp: int

    @property
    def text(self) -> str:
        """The body as UTF-8 text."""
        return self.body.decode()


class OpenRequests:
    """The requests of one producer that wait for their answers."""

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance
        self._waiting: dict[str, asyncio.Future[Reply]] = {}
        self._known: set[str] = set()
        self._stop = instance.serve(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._on_reply)

    def close(self) -> None:
        """Take no more answers; callers that still wait get `StateError`."""
        self._stop()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(
                    StateError(
                        "the producer was closed before the reply came; the request was sent"
                    )
                )

    def open(self, message: Message, timeout_s: float) -> str:
        """Mark a message as a request and return its number.

        Raises:
            SettingError: the time-out is not positive, or too many requests are open.
        """
        if timeout_s < _TIMEOUT_MIN_S:
            raise SettingError(f"timeout is {timeout_s} seconds; it must be at least 1 ms")
        if len(self._waiting) >= OPEN_MAX:
            raise SettingError(f"{OPEN_MAX} requests are open; await some of their replies first")
        number = str(uuid.uuid4())
        message.marks = {
            properties.CORRELATION_ID: number,
            properties.REPLY_TO_CLIENT: self._instance.client_id,
            properties.TTL: str(milliseconds(timeout_s)),
        }
        self._waiting[number] = asyncio.get_running_loop().create_future()
        return number

    async def identify(self, within_s: float) -> None:
        """Make every broker know this client before a reply can arrive; wait at most *within_s* for them."""
        addresses = self._instance.routes.addresses()
        if not addresses <= self._known:
            with suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await self._instance.heartbeats.beat_all()
            self._known |= addresses

    async def answer(self, number: str, left_s: float, timeout_s: float) -> Reply:
        """Wait for the reply.

        Raises:
            ReplyTimeout: No reply arrived in time.
            StateError: the producer was closed.
        """
        try:
            async with asyncio.timeout(left_s):
                return await self._waiting[number]
        except TimeoutError as error:
            raise ReplyTimeout(
                f"no reply within {timeout_s} s; does a consumer of the topic reply, and does "
                "this client reach the same brokers?"
            ) from error

    def forget(self, number: str) -> None:
        """Stop waiting for a request's reply."""
        self._waiting.pop(number, None)

    def _on_reply(self, command: RemotingCommand, conn: Connection) -> bool:
        try:
            header = ReplyMessageHeader.from_ext(command.ext)
            found = properties.decode_properties((header.properties or "").encode())
            future = self._waiting.get(found.get(properties.CORRELATION_ID, ""))
            if future is None:
                return False
            body = decompress(command.body, header.sys_flag, INFLATED_SIZE_MAX)
        except (HeaderError, CompressionError) as error:
            _log.error("a reply cannot be read: %s", error)
            conn.send(command.reply(ResponseCode.SYSTEM_ERROR, remark=str(error)))
            return True
        found.pop(properties.BODY_CHECKSUMS, None)
        if not future.done():
            future.set_result(Reply(body, found, header.store_timestamp))
        conn.send(command.reply())
        return True


def reply_message(
    request: ReceivedMessage, body: BodyLike, user_properties: Mapping[str, str] | None
) -> Message:
    """Return the message that answers *request*.

    Raises:
        SettingError: *request* is not a request.
    """
    found = request.properties
    cluster = found.get(properties.CLUSTER)
    missing = [
        name
        for name in (properties.CORRELATION_ID, properties.REPLY_TO_CLIENT)
        if name not in found
    ]
    if missing or not cluster:
        raise SettingError(
            f"{request} is not a request: it lacks {', '.join(missing) or properties.CLUSTER}; "
            "requests are sent with Producer.request()"
        )
    return Message(
        topic=names.reply_topic(cluster),
        body=body_bytes(body),
        properties=user_properties or {},
        marks={
            properties.MSG_TYPE: REPLY,
            properties.CORRELATION_ID: found[properties.CORRELATION_ID],
            properties.REPLY_TO_CLIENT: found[properties.REPLY_TO_CLIENT],
            properties.TTL: found.get(properties.TTL, "0"),
        },
    )
