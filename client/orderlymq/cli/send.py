"""`orderlymq send`: send one message, or the same several times."""

import sys
import time

import click

from orderlymq.cli.exitcodes import ExitCode
from orderlymq.cli.session import (
    SPAN,
    CommandFailed,
    connected,
    iso,
    nearest_topic,
    print_json,
    say,
)
from orderlymq.connection.instance import ClientInstance, unless_missing
from orderlymq.errors import OrderlyMQError
from orderlymq.message import Message, SendResult
from orderlymq.producer.producer import Producer
from orderlymq.settings import check_name
from orderlymq_protocol.names import check_topic_name
from orderlymq_protocol.plurals import counted


@click.command()
@click.argument("topic")
@click.argument("body")
@click.option("--key", help="Sharding key: messages of one key stay in order.")
@click.option("--tag", default="", help="Tag by which subscriptions can filter.")
@click.option("--keys", default="", help="Index keys for `message find`, separated by spaces.")
@click.option(
    "--property",
    "pairs",
    multiple=True,
    metavar="NAME=VALUE",
    help="Property of the message; may be given several times.",
)
@click.option(
    "--queue",
    type=click.IntRange(0),
    help="Send to this queue, by its number in the topic's list of queues.",
)
@click.option(
    "--delay-level",
    type=click.IntRange(0, 18),
    default=0,
    help="Delay level; 1 to 18 mean 1s 5s 10s 30s 1m 2m ... 10m 20m 30m 1h 2h.",
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
    help="Cancel this delayed message; `send` printed its id. Needs a --delay of its own.",
)
@click.option(
    "--count",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="How many times to send the message, one after the other.",
)
@click.option(
    "--timeout",
    type=SPAN,
    default="3s",
    show_default=True,
    help="Time limit of one send with all its tries.",
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

    Exit code 1: refused, the message is not stored. 5: no answer came, the message may be stored.
    """
    if key is not None and queue is not None:
        raise click.UsageError("use --key or --queue, not both: a key selects its queue")
    content = sys.stdin.buffer.read() if body == "-" else body.encode()
    properties = dict(_pair(text) for text in pairs)
    messages = [
        Message(
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
        for _ in range(count)
    ]
    instance = ClientInstance(name_server)
    async with Producer("orderlymq-cli", instance=instance) as producer:
        is_new = await _is_missing(instance, topic)
        began = time.monotonic()
        results = await _sent(producer, messages, queue, timeout)
        elapsed_s = time.monotonic() - began
    if is_new:
        say(await _made(name_server, topic), err=True)
    if output == "json":
        shown = [_shown(result) for result in results]
        print_json(shown[0] if count == 1 else {"results": shown, "seconds": round(elapsed_s, 3)})
        return
    last = results[-1]
    if cancel:
        outcome = f"cancels {cancel} if it still waits"
    elif delay or delay_level:
        # Its offset is in the queue of the timers.
        due = iso(round((time.time() + delay) * 1000))
        outcome = f"waits until {due}" if delay else f"waits by delay level {delay_level}"
        outcome += f" message id {last.message_id}"
    else:
        outcome = f"offset {last.queue_offset} message id {last.message_id} "
        outcome += f"offset message id {last.offset_message_id}"
    place = f"{last.queue.topic} {last.queue.broker_name}:{last.queue.queue_id}"
    say(f"{last.status.name} {place} {outcome}")
    if last.recall_handle:
        say(f"take it back: orderlymq message recall {topic} {last.recall_handle}")
    if count > 1:
        say(f"{count} messages in {elapsed_s:.2f} s, {count / elapsed_s:,.0f} per second")


async def _sent(
    producer: Producer, messages: list[Message], queue: int | None, timeout: float
) -> list[SendResult]:
    """Send one message after the other; if one fails, print how many are stored."""
    results: list[SendResult] = []
    try:
        for each in messages:
            result = await producer.send(each, queue=queue, timeout=timeout)
            results.append(result)
    except OrderlyMQError:
        if len(messages) > 1:
            say(f"{len(results)} of {counted(len(messages), 'message')} are stored", err=True)
        raise
    return results


async def _is_missing(instance: ClientInstance, topic: str) -> bool:
    check_name(check_topic_name, topic)
    return await unless_missing(instance.route(topic), None) is None


async def _made(name_server: str, topic: str) -> str:
    near = await nearest_topic(name_server, topic) or "."
    return (
        f"Note: this created the topic {topic}: normal, without order across failures{near} "
        f"For order delete it and run `orderlymq topic create {topic} --ordered`."
    )


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
        "brokerGroup": result.queue.broker_name,
        "queue": result.queue.queue_id,
        "offset": result.queue_offset,
        **({"recallHandle": result.recall_handle} if result.recall_handle else {}),
    }
