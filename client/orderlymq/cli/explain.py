"""`orderlymq explain`: where a key's messages are, who consumes them, and what is ahead of them."""

from typing import Any, Final

import click

from orderlymq.admin.client import AdminClient
from orderlymq.cli.session import connected, print_json, print_table
from orderlymq.consumer.pull import QueueReader
from orderlymq.errors import BrokerError
from orderlymq.message import Message, ReceivedMessage
from orderlymq.producer.selectors import by_hash
from orderlymq_protocol.body.messagequeue import MessageQueue

# More waiting messages than this are counted, and not read.
READ_MAX: Final = 1_000


@click.command()
@click.argument("topic")
@click.argument("key")
@connected
async def explain(topic: str, key: str, name_server: str, output: str) -> None:
    """Show the queue of KEY in TOPIC, who holds it in each group, and what is ahead of its next message.

    Exit code 3 when there is no such topic.
    """
    async with AdminClient(name_server) as admin:
        route = await admin.route(topic)
        queue = by_hash(route.publish, Message(topic=topic, body=b"?", key=key), key)
        offsets = (await admin.topic_stats(topic))[queue]
        reader = QueueReader(admin.instance, "TOOLS_CONSUMER")
        groups = [
            await _of_group(admin, reader, name, queue, key, offsets.max_offset)
            for name in await admin.topic_groups(topic)
        ]
    found = {
        "topic": topic,
        "key": key,
        "ordered": route.is_ordered,
        "brokerGroup": queue.broker_name,
        "queue": queue.queue_id,
        "queues": len(route.publish),
        "minOffset": offsets.min_offset,
        "maxOffset": offsets.max_offset,
        "groups": groups,
    }
    if output == "json":
        print_json(found)
        return
    click.echo(
        f"Key {key} of {topic} is in queue {queue.broker_name}:{queue.queue_id}, one of "
        f"{len(route.publish)}; offsets {offsets.min_offset} to {offsets.max_offset}."
    )
    if not route.is_ordered:
        click.echo("The topic is not ordered: its list of queues may change with its brokers.")
    if not groups:
        click.echo("No group consumes it.")
        return
    click.echo()
    columns = [
        "GROUP",
        "HOLDER",
        "COMMITTED",
        "WAITING",
        "NEXT OF THE KEY",
        "AHEAD OF IT",
        "PARKED",
    ]
    names = ("group", "holder", "committed", "waiting", "nextOfKey", "ahead", "parked")
    print_table("", columns, [[each[name] for name in names] for each in groups])


async def _of_group(
    admin: AdminClient,
    reader: QueueReader,
    group: str,
    queue: MessageQueue,
    key: str,
    end: int,
) -> dict[str, Any]:
    progress = (await admin.progress(group)).get(queue)
    committed = None if progress is None else progress.consumer_offset
    try:
        lock = (await admin.locks(group)).get(queue)
        parked = any(
            each.queue == queue and each.key == key for each in await admin.parked_keys(group)
        )
    except BrokerError:
        lock, parked = None, False  # a broker of RocketMQ shows neither
    waiting = None if committed is None else end - committed
    following = None if committed is None else await _next_of(reader, queue, key, committed, end)
    return {
        "group": group,
        "holder": None if lock is None else lock.client_id,
        "epoch": None if lock is None else lock.epoch,
        "committed": committed,
        "waiting": waiting,
        "nextOfKey": None if following is None else following.queue_offset,
        "ahead": None
        if following is None or committed is None
        else following.queue_offset - committed,
        "parked": "yes" if parked else "no",
    }


async def _next_of(
    reader: QueueReader, queue: MessageQueue, key: str, begin: int, end: int
) -> ReceivedMessage | None:
    """Return the next waiting message of the key, among the first READ_MAX that wait."""
    offset = begin
    while offset < min(end, begin + READ_MAX):
        result = await reader.pull(queue, offset)
        for message in result.messages:
            if message.key == key:
                return message
        offset = max(result.next_offset, offset + 1)
    return None
