"""`orderlymq consume`: join a group and print what comes."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime

import click

from orderlymq.admin.client import AdminClient
from orderlymq.cli.printer import print_message
from orderlymq.cli.session import SPAN, connected, parse_moment, say
from orderlymq.connection import troubles
from orderlymq.consumer.core.events import ConcurrentResult, OrderedResult
from orderlymq.consumer.listeners.context import ConcurrentContext, OrderedContext
from orderlymq.consumer.push.consumer import Consumer
from orderlymq.consumer.settings import ConsumeFrom, ConsumerSettings
from orderlymq.errors import BrokerError
from orderlymq.message import ReceivedMessage
from orderlymq_protocol.plurals import counted
from orderlymq_runtime.process.waits import wait_for


class Printer:
    """Prints messages until enough have come; later messages stay for the next consumer.

    Attributes:
        failure: why no more messages can be printed, or will come; messages that were not printed stay, too.
    """

    def __init__(self, limit: int | None, *, json: bool) -> None:
        self.enough = asyncio.Event()
        self.failure: Exception | None = None
        self.count = 0
        self._limit = limit
        self._json = json

    async def ordered(
        self, messages: Sequence[ReceivedMessage], _context: OrderedContext
    ) -> OrderedResult:
        """Listen in order."""
        return OrderedResult.SUCCESS if self._take(messages) else OrderedResult.SUSPEND

    async def by_key(
        self, messages: Sequence[ReceivedMessage], _context: OrderedContext
    ) -> OrderedResult:
        """Listen key by key."""
        if not self._take(messages):
            # Not taken, but not failed either: its lane is given back when the consumer closes.
            await asyncio.Event().wait()
        return OrderedResult.SUCCESS

    async def concurrent(
        self, messages: Sequence[ReceivedMessage], context: ConcurrentContext
    ) -> ConcurrentResult:
        """Listen in parallel."""
        if self._take(messages):
            return ConcurrentResult.SUCCESS
        # Not taken: the offset must not pass it, and it must not be sent back before the consumer closes.
        await asyncio.Event().wait()
        return ConcurrentResult.RECONSUME_LATER

    def refused(self, error: BrokerError) -> None:
        """End: no message will come before a user changes a permission, the topic or the group."""
        self.failure = self.failure or error
        self.enough.set()

    def _take(self, messages: Sequence[ReceivedMessage]) -> bool:
        for message in messages:
            if self.failure or (self._limit is not None and self.count >= self._limit):
                return False
            try:
                print_message(message, as_json=self._json)
            except (
                OSError,
                UnicodeError,
            ) as error:  # the reader has gone, as with `| head`, or the disk is full
                self.failure = error
                self.enough.set()
                return False
            self.count += 1
        if self.count == self._limit:
            self.enough.set()
        return True


@click.command()
@click.argument("topic")
@click.option("--group", default="orderlymq-cli", show_default=True, help="The consumer group.")
@click.option("--ordered", is_flag=True, help="In order per queue, under queue locks.")
@click.option(
    "--by-key",
    is_flag=True,
    help="In order per key; different keys are consumed in parallel lanes.",
)
@click.option(
    "--from",
    "start",
    default="latest",
    show_default=True,
    metavar="MOMENT",
    help="Where a group without committed offsets begins: earliest, latest or a time.",
)
@click.option("--filter", "tags", default="*", show_default=True, help="Tags: 'A || B'.")
@click.option("--sql", metavar="CONDITION", help='SQL92 on properties: "amount > 5".')
@click.option("--max", "limit", type=click.IntRange(1), help="Stop after this many messages.")
@click.option("--for", "seconds", type=SPAN, help="Stop after this time, such as 30s.")
@connected
async def consume(  # noqa: PLR0913, PLR0917 - click passes every option as an argument
    topic: str,
    group: str,
    ordered: bool,
    by_key: bool,
    start: str,
    tags: str,
    sql: str | None,
    limit: int | None,
    seconds: float | None,
    name_server: str,
    output: str,
) -> None:
    """Join the consumer group and print the messages of TOPIC as they arrive, until Ctrl-C, --max or --for.

    Printed messages are committed. With --output json, each message is one line of JSON.
    """
    if sql is not None and tags != "*":
        raise click.UsageError("use --filter or --sql, not both; in --sql, write TAGS = 'A'")
    if ordered and by_key:
        raise click.UsageError("use --ordered (by queue) or --by-key, not both")
    printer = Printer(limit, json=output == "json")
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, printer.enough.set)
    consumer = Consumer(
        group,
        name_server,
        ordered="key" if by_key else ordered,
        listener=printer.by_key if by_key else printer.ordered if ordered else printer.concurrent,
        settings=_settings(start),
    )
    if sql is None:
        consumer.subscribe(topic, tags)
    else:
        consumer.subscribe(topic, sql, kind="SQL92")
    # A missing topic is an error here; a program would wait until it exists.
    async with AdminClient(name_server) as admin:
        await admin.route(topic)  # the consumer alone would wait for it
    consumer.instance.troubles.on_refused = printer.refused
    with _warnings():
        async with consumer:
            await wait_for(printer.enough, seconds)
    if printer.failure is not None:
        raise printer.failure
    if output != "json":
        say(counted(printer.count, "message"), err=True)


class _Warnings(logging.Handler):
    """Prints the consumer's warnings: lasting trouble must not look like a topic without messages."""

    def emit(self, record: logging.LogRecord) -> None:
        say(f"Warning: {record.getMessage()}", err=True)


@contextlib.contextmanager
def _warnings() -> Iterator[None]:
    handler, log = _Warnings(), logging.getLogger(troubles.__name__)
    log.addHandler(handler)
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(logging.NOTSET)
        log.removeHandler(handler)


def _settings(start: str) -> ConsumerSettings:
    # Closing must not wait for listeners that wait on purpose.
    settings = ConsumerSettings(shutdown_timeout=0.5)
    match parse_moment(start):
        case "earliest":
            return replace(settings, consume_from=ConsumeFrom.FIRST)
        case int(timestamp_ms):
            # RocketMQ's settings have this moment as local time in seconds.
            text = datetime.fromtimestamp(timestamp_ms / 1000).astimezone().strftime("%Y%m%d%H%M%S")
            return replace(settings, consume_from=ConsumeFrom.TIMESTAMP, consume_timestamp=text)
        case _:
            return replace(settings, consume_from=ConsumeFrom.LAST)
