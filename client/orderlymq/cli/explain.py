"""`orderlymq explain`: where a key's messages are, who consumes them, and what is ahead of them."""

import time
from typing import Any

import click

from orderlymq.admin.client import AdminClient
from orderlymq.admin.explanation import GroupAndKey, explain_key
from orderlymq.cli.lanes import TROUBLED, lane_fields, lane_line
from orderlymq.cli.session import connected, print_json, print_table, say
from orderlymq_protocol.body.lanes import BY_KEY, BY_QUEUE
from orderlymq_protocol.plurals import counted


@click.command()
@click.argument("topic")
@click.argument("key")
@connected
async def explain(topic: str, key: str, name_server: str, output: str) -> None:
    """Show the queue of KEY in TOPIC, the member of each consumer group that holds it, and the backlog ahead of its next message.

    Exit code 3: the topic does not exist.
    """
    async with AdminClient(name_server) as admin:
        explanation = await explain_key(admin, topic, key)
    groups = [_shown(each, explanation.max_offset) for each in explanation.groups]
    found = {
        "topic": topic,
        "key": key,
        "ordered": explanation.is_ordered,
        "brokerGroup": explanation.queue.broker_name,
        "queue": explanation.queue.queue_id,
        "queues": explanation.queues,
        "minOffset": explanation.min_offset,
        "maxOffset": explanation.max_offset,
        "groups": groups,
    }
    if output == "json":
        print_json(found)
        return
    say(
        f"Key {key} of {topic} is in queue {explanation.queue.broker_name}:{explanation.queue.queue_id}, one of "
        f"{explanation.queues}; the queue stores {_kept(explanation.min_offset, explanation.max_offset)}."
    )
    if not explanation.is_ordered:
        say("The topic is not ordered: its list of queues may change when brokers come and go.")
    if not groups:
        say("No consumer group consumes it.")
        return
    say()
    columns = [
        "CONSUMER GROUP",
        "HOLDER",
        "COMMITTED",
        "WAITING",
        "NEXT OF THE KEY",
        "AHEAD OF IT",
        "PARKED",
    ]
    names = ("group", "holder", "committed", "waiting", "nextOfKey", "ahead", "parked")
    print_table("", columns, [[each[name] for name in names] for each in groups])
    for each in groups:
        if each["concurrency"] == BY_KEY:
            say(f"{each['group']} consumes by key: {_lane_said(each)}.")


def _lane_said(each: dict[str, Any]) -> str:
    """Return the state of the key's lane in a group."""
    if each["laneProperty"]:
        return (
            f"its lanes are assigned by the message property {each['laneProperty']} and not by this key; "
            f"`orderlymq group show {each['group']}` lists the lanes that have problems"
        )
    lane = each["lane"]

    return "the lane is idle" if lane is None else lane_line(lane)


def _kept(begin: int, end: int) -> str:
    """Return how many messages are stored from offset *begin* to before *end*, the offset of the next message."""
    if begin == end:
        return "no message"
    return f"{counted(end - begin, 'message')}, offsets {begin} to {end - 1}"


def _shown(each: GroupAndKey, end: int) -> dict[str, Any]:
    committed, lane = each.committed, each.lane
    holder = None if each.lock is None else each.lock.client_id
    is_parked = each.parked is not None
    if lane is not None:
        holder, is_parked = lane.holder or None, lane.state in TROUBLED
    return {
        "group": each.group,
        "concurrency": BY_KEY if each.by_key else BY_QUEUE,
        "holder": holder,
        "epoch": None if each.lock is None else each.lock.epoch,
        "committed": committed,
        "waiting": None if committed is None else end - committed,
        "nextOfKey": each.following,
        "ahead": each.ahead,
        "parked": None if each.lane_property else "yes" if is_parked else "no",
        "lane": None if lane is None else lane_fields(lane, round(time.time() * 1000)),
        "laneProperty": each.lane_property or None,
    }
