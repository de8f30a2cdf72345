"""`orderlymq send`: send one message, or the same several times."""

import sys
import time

import click

from orderlymq.cli.session import SPAN, CommandFailed, ExitCode, connected, print_json, say
from orderlymq.message import Message, SendResult
from orderlymq.producer.producer import Producer


@click.command()
@click.argument("topic")
@click.argument("body")
@click.option("--key", help="Sharding key: messages of one key stay in order.")
@click.option("--tag", default="", help="Tag that subscriptions may select by.")
@click.option("--keys", default="", help="Index keys for `message find`, separated by blanks.")
@click.option("--property", "pairs", multiple=True, metavar="NAME=VALUE", help="Repeatable.")
@click.option("--queue", type=click.IntRange(0), help="Number in the topic's list of queues.")
@click.option(
    "--delay-level",
    type=click.IntRange(0, 18),
    default=0,
    help="1 to 18: 1s 5s 10s 30s 1m 2m ... 10m 20m 30m 1h 2h.",
)
@click.option(
    "--delay",
    type=SPAN,
    default=0.0,
    help="Deliver after this time, such as 90s or 2h, up to three days.",
)
@click.option(
    "--cancel",
    default="",
    metavar="MESSAGE_ID",
    help="Cancel this waiting message; needs a --delay of its own.",
)
@click.option(
    "--count",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Send it this often, one after the other.",
)
@click.option(
    "--timeout",
    type=SPAN,
    default="3s",
    show_default=True,
    help="For all tries of one send.",
)
@connected
async def send(  # noqa: PLR0913, PLR0917 - click passes every option as an argument
    topic: str,
    body: str,
    key: str | None,
    tag: str,
    keys: str,
    pairs: tuple[str, ...],
    queue: int | None,
    delay_level: int,
    delay: float,
    cancel: str,
    count: int,
    timeout: float,
    name_server: str,
    output: str,
) -> None:
    """Send BODY to TOPIC; `-` reads it from standard input.

    Exit code 1: refused, the message is not stored. 5: nobody said; it may be stored.
    """
    content = sys.stdin.buffer.read() if body == "-" else body.encode()
    properties = dict(_pair(text) for text in pairs)
    results: list[SendResult] = []
    began = time.monotonic()
    async with Producer("orderlymq-cli", name_server) as producer:
        for _ in range(count):
            message = Message(
                topic=topic,
                body=content,
                tags=tag,
                keys=keys,
                key=key,
                properties=properties,
                delay_level=delay_level,
                delay=delay,
                cancels=cancel,
            )
            results.append(await producer.send(message, queue=queue, timeout=timeout))
    elapsed_s = time.monotonic() - began
    if output == "json":
        shown = [_shown(result) for result in results]
        print_json(shown[0] if count == 1 else {"results": shown, "seconds": round(elapsed_s, 3)})
        return
    last = results[-1]
    say(
        f"{last.status.name} {last.queue.topic} {last.queue.broker_name}:{last.queue.queue_id} "
        f"offset {last.queue_offset} id {last.offset_message_id}"
    )
    if last.recall_handle:
        say(f"take it back: orderlymq message recall {topic} {last.recall_handle}")
    if count > 1:
        say(f"{count} messages in {elapsed_s:.2f} s, {count / elapsed_s:,.0f} per second")


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise CommandFailed(ExitCode.USAGE, f"--property {text!r} is not NAME=VALUE")
    return name, value


def _shown(result: SendResult) -> dict[str, object]:
    return {
        "status": result.status.name,
        "messageId": result.message_id,
        "offsetMessageId": result.offset_message_id,
        "topic": result.queue.topic,
        "group": result.queue.broker_name,
        "queue": result.queue.queue_id,
        "queueOffset": result.queue_offset,
        **({"recallHandle": result.recall_handle} if result.recall_handle else {}),
    }
