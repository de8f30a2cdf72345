"""`orderlymq tail`: print what comes to a topic, beside all consumer groups."""

import asyncio
import contextlib
from typing import Final

import click

from orderlymq.admin.client import AdminClient
from orderlymq.cli.printing import print_message
from orderlymq.cli.session import SPAN, connected, say
from orderlymq.consumer.group.queuereader import QueueReader
from orderlymq.errors import BodyUnreadable, BrokerError, PullError
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import ResponseCode

_HELD_S: Final = 15.0
_MARGIN_S: Final = 5.0
_AGAIN_S: Final = 0.5
_BUSY: Final = (
    ResponseCode.SYSTEM_BUSY,
    ResponseCode.SERVICE_NOT_AVAILABLE,
    ResponseCode.FLOW_CONTROL,
    ResponseCode.NOT_LEADER_FOR_QUEUE,
    ResponseCode.GO_AWAY,
)


@click.command()
@click.argument("topic")
@click.option("-n", "--lines", default=10, show_default=True, type=click.IntRange(0), metavar="N")
@click.option("--key", help="Only messages with this sharding key.")
@click.option("--filter", "tags", default="*", show_default=True, help="Tags: 'A || B'.")
@click.option("--follow/--no-follow", "-f", default=True, help="Go on with what comes.")
@click.option("--for", "span", type=SPAN, help="End after this time, such as 30s.")
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
    """Print the last N messages of each queue of TOPIC, and what comes from now on.

    Nothing is committed and no lock is taken: consumers do not notice. Order is that of each queue.
    """
    async with AdminClient(name_server) as admin:
        reader = QueueReader(admin.instance, "TOOLS_CONSUMER")
        away: set[str] = set()

        async def read(queue: MessageQueue) -> None:
            end = await reader.max_offset(queue)
            offset = max(await reader.min_offset(queue), end - lines)
            while follow or offset < end:
                try:
                    result = await reader.pull(
                        queue,
                        offset,
                        expression=tags,
                        suspend_ms=int(_HELD_S * 1000) if follow else 0,
                        timeout_s=_HELD_S + _MARGIN_S,
                    )
                except BodyUnreadable as error:
                    say(f"Warning: {error}", err=True)
                    offset = error.offset + 1
                    continue
                except PullError as error:
                    if not follow or not _is_passing(error):
                        raise
                    if queue.broker_name not in away:
                        away.add(queue.broker_name)
                        say(f"Warning: {error}; it is tried again until it succeeds", err=True)
                    await asyncio.sleep(_AGAIN_S)  # a new leader is found by then
                    continue
                away.discard(queue.broker_name)
                for message in result.messages:
                    if key is None or message.key == key:
                        print_message(message, as_json=output == "json")
                offset = result.next_offset

        queues = (await admin.route(topic)).subscribe
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(span), asyncio.TaskGroup() as tasks:
                for queue in queues:
                    tasks.create_task(read(queue))


def _is_passing(error: PullError) -> bool:
    """Tell whether a pull failed because nobody answered, nobody leads or too much is asked."""
    cause = error.__cause__
    if not isinstance(cause, BrokerError):
        return True
    return cause.code in _BUSY or (
        cause.code == ResponseCode.SYSTEM_ERROR and "does not lead" in cause.remark
    )
