"""`orderlymq tail`: print what comes to a topic, independently of all consumer groups."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

import click

from orderlymq.admin.client import AdminClient
from orderlymq.cli.printer import print_message
from orderlymq.cli.session import SPAN, connected, say
from orderlymq.connection.troubles import passes
from orderlymq.consumer.group.queuereader import QueueReader
from orderlymq.errors import BodyUnreadable, BrokerError, PullError
from orderlymq.message import ReceivedMessage
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.names import TOOLS_GROUP
from orderlymq_protocol.plurals import counted

_HELD_S: Final = 15.0
_MARGIN_S: Final = 5.0
_AGAIN_S: Final = 0.5
_STEP: Final = 1_000
# A key may have no message at all: to find the last N matches, at most so many messages of each queue are read.
READ_MAX: Final = 10_000


@click.command()
@click.argument("topic")
@click.option(
    "-n",
    "--lines",
    default=10,
    show_default=True,
    type=click.IntRange(0),
    metavar="N",
    help="Begin with the last N messages of each queue; with --key or --filter, the last N matching ones.",
)
@click.option("--key", help="Only messages with this sharding key.")
@click.option("--filter", "tags", default="*", show_default=True, help="Tags: 'A || B'.")
@click.option("--follow/--no-follow", "-f", default=True, help="Keep printing new messages.")
@click.option("--for", "span", type=SPAN, help="Stop after this time, such as 30s.")
@connected
async def tail(
    topic: str,
    lines: int,
    key: str | None,
    tags: str,
    follow: bool,
    span: float | None,
    name_server: str,
    output: str,
) -> None:
    """Print the last N messages of each queue of TOPIC, then new messages as they arrive.

    It commits no offset and takes no lock, so consumers are not affected. The messages of each queue are in order.
    """
    async with AdminClient(name_server) as admin:
        source = _Tail(QueueReader(admin.instance, TOOLS_GROUP), key, tags, follow=follow)

        async def read(queue: MessageQueue) -> None:
            end = await source.reader.max_offset(queue)
            begin = await source.reader.min_offset(queue)
            start = max(begin, end - lines)
            if key is not None or tags != "*":
                for message in await source.last(queue, begin, end, lines):
                    print_message(message, as_json=output == "json")
                start = end
            async for message in source.messages(queue, start, None if follow else end):
                print_message(message, as_json=output == "json")

        queues = (await admin.route(topic)).subscribe
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(span), asyncio.TaskGroup() as tasks:
                for queue in queues:
                    tasks.create_task(read(queue))


class _Tail:
    """Reads those messages of queues that match a key and tags."""

    def __init__(
        self, reader: QueueReader, key: str | None, expression: str, *, follow: bool
    ) -> None:
        self.reader = reader
        self._key = key
        self._expression = expression
        self._follow = follow
        self._away: set[str] = set()

    async def messages(
        self, queue: MessageQueue, offset: int, end: int | None
    ) -> AsyncIterator[ReceivedMessage]:
        """Yield matching messages from *offset* on; without *end*, wait for later ones, too."""
        while end is None or offset < end:
            try:
                result = await self.reader.pull(
                    queue,
                    offset,
                    expression=self._expression,
                    suspend_ms=int(_HELD_S * 1000) if end is None else 0,
                    timeout_s=_HELD_S + _MARGIN_S,
                )
            except BodyUnreadable as error:
                say(f"Warning: {error}", err=True)
                offset = error.offset + 1
                continue
            except PullError as error:
                if not self._follow or not _is_passing(error):
                    raise
                if queue.broker_name not in self._away:
                    self._away.add(queue.broker_name)
                    say(f"Warning: {error}; it is tried again until it succeeds", err=True)
                await asyncio.sleep(_AGAIN_S)  # a new leader is found by then
                continue
            self._away.discard(queue.broker_name)
            for message in result.messages:
                if end is not None and message.queue_offset >= end:
                    return
                if self._key is None or message.key == self._key:
                    yield message
            offset = result.next_offset

    async def last(
        self, queue: MessageQueue, begin: int, end: int, count: int
    ) -> list[ReceivedMessage]:
        """Return the last *count* matches before *end*; search backwards through at most `READ_MAX` or *count* messages."""
        floor, at = max(begin, end - max(READ_MAX, count)), end
        found: list[ReceivedMessage] = []
        while at > floor and len(found) < count:
            start = max(floor, at - _STEP)
            found = [each async for each in self.messages(queue, start, at)] + found
            at = start
        if len(found) < count and at > begin:
            say(
                f"Note: in queue {queue.queue_id} of {queue.broker_name} {counted(len(found), 'message')} "
                f"match from offset {at} on; the {at - begin} before it were not read: "
                f"an -n over {READ_MAX} reads that many.",
                err=True,
            )
        return found[max(0, len(found) - count) :]


def _is_passing(error: PullError) -> bool:
    """Return whether a pull failed only for now: no answer, no leader, or too many requests."""
    cause = error.__cause__
    return not isinstance(cause, BrokerError) or passes(cause)
