"""`orderlymq message`: show one, find by key, track, resend, recall, check-transaction."""

import click

from orderlymq.admin.client import AdminClient
from orderlymq.admin.consumption import message_track
from orderlymq.cli.exitcodes import ExitCode
from orderlymq.cli.session import (
    CommandFailed,
    connected,
    exit_code,
    iso,
    print_json,
    print_outcome,
    print_rows,
    print_table,
    say,
)
from orderlymq.cli.table import Subcommands
from orderlymq.errors import BrokerError, BrokerUnreachable, OrderlyMQError, SettingError
from orderlymq.message import ReceivedMessage
from orderlymq.producer.producer import Producer
from orderlymq_protocol.message.properties import origin_topic


@click.group(cls=Subcommands)
def message() -> None:
    """Find single messages, show which groups consumed them, resend a dead letter, recall a delayed message."""


_topic = click.option(
    "--topic", help="Topic of the message; needed if the id is a message id made by a client."
)


@message.command()
@click.argument("message_id")
@_topic
@connected
async def show(message_id: str, topic: str | None, name_server: str, output: str) -> None:
    """Show the message with this id: an offset message id, or with --topic a client's message id."""
    async with AdminClient(name_server) as admin:
        found = await _find(admin, message_id, topic, unreadable=True)
    if output == "json":
        print_json(_shown(found))
    else:
        _print(found)


async def _find(
    admin: AdminClient, message_id: str, topic: str | None, *, unreadable: bool = False
) -> ReceivedMessage:
    if topic is not None:
        messages = await admin.find_messages(topic, message_id, unique=True, unreadable=unreadable)
        if messages:
            return messages[0]
    try:
        return await admin.view_message(message_id, unreadable=unreadable)
    except (BrokerError, SettingError) as error:
        _check_not_found(error)
        if absent := await admin.absent_groups():
            raise BrokerUnreachable(
                f"message {message_id} may be in the broker group {absent[0]}, which is not registered now"
            ) from error
        raise CommandFailed(
            ExitCode.NOT_FOUND,
            f"there is no message {message_id}; if this is a message id made by a client, add --topic TOPIC",
        ) from error


def _check_not_found(error: OrderlyMQError) -> None:
    """Suppress errors that mean that there is no such message: a not-found code, or an invalid id.

    Raises:
        OrderlyMQError: The error means something else.
    """
    if not isinstance(error, SettingError) and exit_code(error) is not ExitCode.NOT_FOUND:
        raise error


@message.command()
@click.option("--topic", required=True)
@click.option("--key", required=True, help="An index key (see `send --keys`).")
@click.option("--max", "limit", type=click.IntRange(1, 64), default=64, show_default=True)
@connected
async def find(topic: str, key: str, limit: int, name_server: str, output: str) -> None:
    """Find the messages of a topic that carry an index key."""
    async with AdminClient(name_server) as admin:
        messages = await admin.find_messages(topic, key, count=limit, unreadable=True)
    if not messages:
        text = (
            f"no message of {topic} carries the index key {key}; if that is a sharding key (`send --key`), "
            f"`orderlymq tail {topic} --key {key}` shows its messages"
        )
        raise CommandFailed(ExitCode.NOT_FOUND, text)
    rows = [
        [
            f"{each.queue.broker_name}:{each.queue.queue_id}",
            each.queue_offset,
            iso(each.store_timestamp),
            each.key,
            each.tags,
            each.offset_message_id,
        ]
        for each in messages
    ]
    columns = ["QUEUE", "OFFSET", "STORED AT", "KEY", "TAG", "ID"]
    print_rows(output, [_shown(each) for each in messages], columns, rows)


@message.command()
@click.argument("topic")
@click.argument("handle")
@connected
async def recall(topic: str, handle: str, name_server: str, output: str) -> None:
    """Recall a delayed message before it is delivered; `send` printed its HANDLE."""
    async with Producer("orderlymq-cli", name_server) as producer:
        unique_key = await producer.recall(topic, handle)
    sentence = f"recalled: {unique_key} of {topic} will not be delivered"
    print_outcome(output, {"topic": topic, "messageId": unique_key}, sentence)


@message.command()
@click.argument("message_id")
@click.option(
    "--topic",
    help="Target topic; needed if the message names no original topic, or one that no longer holds a message with the same content.",
)
@connected
async def resend(message_id: str, topic: str | None, name_server: str, output: str) -> None:
    """Send a dead letter to its original topic again, as a new message."""
    async with AdminClient(name_server) as admin:
        found = await _find(admin, message_id, None)
        if not (topic or origin_topic(found.properties)):
            raise CommandFailed(
                ExitCode.USAGE,
                f"message {message_id} of {found.topic} names no original topic, so it is not a dead letter; "
                "to send it anyway, add --topic TOPIC",
            )
        result = await admin.resend(found, topic)
    queue, offset = result.queue, result.queue_offset
    place = {"topic": queue.topic, "brokerGroup": queue.broker_name, "queue": queue.queue_id}
    print_outcome(
        output,
        {**place, "offset": offset, "messageId": result.message_id},
        f"Sent to {queue.topic} {queue.broker_name}:{queue.queue_id} at offset {offset}.",
    )


@message.command()
@click.argument("message_id")
@_topic
@connected
async def track(message_id: str, topic: str | None, name_server: str, output: str) -> None:
    """Show for each consumer group whether it consumed the message, filtered it out, or has not reached it."""
    async with AdminClient(name_server) as admin:
        found = await _find(admin, message_id, topic, unreadable=True)
        tracks = await message_track(admin, found)
    data = [
        {"group": each.group, "state": each.state.value, "offset": each.offset, "why": each.why}
        for each in tracks
    ]
    rows = [
        [each.group, each.state.value, each.offset if each.offset >= 0 else None, each.why or None]
        for each in tracks
    ]
    print_rows(output, data, ["CONSUMER GROUP", "STATE", "COMMITTED", "WHY"], rows)
    if not rows and output != "json":
        say(f"No consumer group has committed an offset in {found.topic}.")


@message.command("check-transaction")
@click.argument("message_id")
@connected
async def check_transaction(message_id: str, name_server: str, output: str) -> None:
    """Make the broker ask a producer again to commit or roll back a half message.

    MESSAGE_ID is the offset message id of the half message, or of its copy in
    TRANS_CHECK_MAX_TIME_TOPIC, where the broker puts half messages that no producer decided.
    """
    async with AdminClient(name_server) as admin:
        await admin.check_transaction(message_id)
    sentence = f"{message_id}: the broker asks a producer of its group again"
    print_outcome(output, {"messageId": message_id, "resumed": True}, sentence)


def _shown(found: ReceivedMessage) -> dict[str, object]:
    return {
        "topic": found.topic,
        "brokerGroup": found.queue.broker_name or None,
        "queue": found.queue.queue_id,
        "offset": found.queue_offset,
        "messageId": found.message_id,
        "offsetMessageId": found.offset_message_id,
        "key": found.key,
        "tag": found.tags,
        "keys": found.keys,
        "bornAt": iso(found.born_timestamp),
        "storedAt": iso(found.store_timestamp),
        "reconsumeTimes": found.reconsume_times,
        "properties": found.properties,
        **({"unreadable": found.unreadable} if found.unreadable else {}),
        "body": _body(found),
    }


def _print(found: ReceivedMessage) -> None:
    shown = _shown(found)
    for name in ("properties", "body"):
        shown.pop(name)
    shown["keys"] = " ".join(found.keys) or None
    rows: list[list[object]] = [[name, value] for name, value in shown.items()]
    rows += [[f"property {name}", value] for name, value in sorted(found.properties.items())]
    print_table("", ["FIELD", "VALUE"], rows)
    say()
    say(_body(found))


def _body(found: ReceivedMessage) -> str:
    """Return the body as text, or as hex if it could not be inflated and is still in its stored form."""
    return found.body.hex() if found.unreadable else found.body.decode(errors="replace")
