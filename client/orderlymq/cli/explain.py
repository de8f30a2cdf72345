"""`orderlymq explain`: where a key's messages are, who consumes them, and what is ahead of them."""

from typing import Any

import click

from orderlymq.admin.client import AdminClient
from orderlymq.admin.explanation import GroupAndKey, explain_key
from orderlymq.cli.session import connected, print_json, print_table


@click.command()
@click.argument("topic")
@click.argument("key")
@connected
async def explain(topic: str, key: str, name_server: str, output: str) -> None:
    """Show the queue of KEY in TOPIC, who holds it in each group, and what is ahead of its next message.

    Exit code 3 when there is no such topic.
    """
    async with AdminClient(name_server) as admin:
        told = await explain_key(admin, topic, key)
    groups = [_shown(each, told.max_offset) for each in told.groups]
    found = {
        "topic": topic,
        "key": key,
        "ordered": told.is_ordered,
        "brokerGroup": told.queue.broker_name,
        "queue": told.queue.queue_id,
        "queues": told.queues,
        "minOffset": told.min_offset,
        "maxOffset": told.max_offset,
        "groups": groups,
    }
    if output == "json":
        print_json(found)
        return
    click.echo(
        f"Key {key} of {topic} is in queue {told.queue.broker_name}:{told.queue.queue_id}, one of "
        f"{told.queues}; offsets {told.min_offset} to {told.max_offset}."
    )
    if not told.is_ordered:
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


def _shown(each: GroupAndKey, end: int) -> dict[str, Any]:
    following, committed = each.following, each.committed
    return {
        "group": each.group,
        "holder": None if each.lock is None else each.lock.client_id,
        "epoch": None if each.lock is None else each.lock.epoch,
        "committed": committed,
        "waiting": None if committed is None else end - committed,
        "nextOfKey": None if following is None else following.queue_offset,
        "ahead": None
        if following is None or committed is None
        else following.queue_offset - committed,
        "parked": "yes" if each.parked is not None else "no",
    }
