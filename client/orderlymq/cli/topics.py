"""`orderlymq topic`: list, show, create, delete."""

from collections.abc import Iterator, Mapping
from typing import Any

import click

from orderlymq.admin.client import AdminClient
from orderlymq.cli.session import (
    connected,
    iso,
    print_json,
    print_outcome,
    print_rows,
    print_table,
    say,
)
from orderlymq.cli.table import Subcommands
from orderlymq.errors import BrokerError
from orderlymq_protocol.names import is_hidden_topic
from orderlymq_protocol.plurals import counted


@click.group(cls=Subcommands)
def topic() -> None:
    """List, show, create and delete topics."""


@topic.command("list")
@click.option("--all", "with_system", is_flag=True, help="Include system topics and retry topics.")
@connected
async def list_topics(with_system: bool, name_server: str, output: str) -> None:
    """List the topics."""
    async with AdminClient(name_server) as admin:
        configs = await admin.topic_configs()
        info = await admin.cluster_info()
    own = {*info.broker_addr_table, *info.cluster_addr_table}
    found = [
        {
            "topic": name,
            "queues": sum(config.write_queue_nums for config in parts.values()),
            "ordered": any(config.order for config in parts.values()),
            "brokerGroups": sorted(parts),
        }
        for name, parts in sorted(configs.items())
        if with_system or not is_hidden_topic(name, own)
    ]
    rows = [
        [
            each["topic"],
            each["queues"],
            "ordered" if each["ordered"] else "normal",
            ", ".join(str(name) for name in sorted(configs[str(each["topic"])])),
        ]
        for each in found
    ]
    print_rows(output, found, ["TOPIC", "QUEUES", "TYPE", "BROKER GROUPS"], rows)


@topic.command()
@click.argument("name")
@connected
async def show(name: str, name_server: str, output: str) -> None:
    """Show the queues of a topic, their broker groups and their offsets."""
    async with AdminClient(name_server) as admin:
        route = await admin.route(name)
        stats = await admin.topic_stats(name)
        try:
            groups: list[str] | None = await admin.topic_groups(name)
        except BrokerError:
            groups = None  # the broker cannot answer this; show the rest
        try:
            expansion = await admin.expansion(name) if route.is_ordered else {}
        except BrokerError:
            expansion = {}  # as above
    queues = [
        {
            "brokerGroup": queue.broker_name,
            "queue": queue.queue_id,
            "minOffset": offsets.min_offset,
            "maxOffset": offsets.max_offset,
            "messages": offsets.max_offset - offsets.min_offset,
            "lastMessage": iso(offsets.last_update_timestamp),
        }
        for queue, offsets in stats.items()
    ]
    if output == "json":
        print_json(
            {
                "topic": name,
                "ordered": route.is_ordered,
                "queues": queues,
                "consumers": groups,
                "expansion": expansion,
            }
        )
        return
    kind = "ordered" if route.is_ordered else "normal"
    consumers = "not known" if groups is None else ", ".join(groups) or "none"
    say(f"{name}: {kind}, {counted(len(queues), 'queue')}; consumer groups: {consumers}\n")
    columns = ["BROKER GROUP", "QUEUE", "MIN", "MAX", "MESSAGES", "LAST MESSAGE"]
    print_table("", columns, [list(each.values()) for each in queues])
    for group, found in expansion.items():
        for line in expansion_lines(group, found):
            say(line)


def expansion_lines(group: str, found: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines about the queue expansion of a topic on one broker group; none if there is no expansion."""
    if found["phase"] != "open":
        total = found["nextTotal"] or found["total"]
        since = f"for {found['ageMillis'] / 1000:.1f} s"
        yield f"\n{group}: expanding to {counted(total, 'queue')}, {found['phase']} {since}"
        yield from (f"  in the way: {each['reason']}" for each in found["blockers"])
    elif found["reason"]:
        yield f"\n{group}: expansion {found['attempt']} was aborted {found['reason']}"


@topic.command()
@click.argument("name")
@click.option(
    "--queues",
    type=click.IntRange(1, 65_535),
    default=8,
    show_default=True,
    help="Total number of queues, spread over the broker groups.",
)
@click.option(
    "--ordered",
    is_flag=True,
    help="Declare the list of queues, so that it does not shrink when a broker fails.",
)
@click.option(
    "--group",
    "brokers",
    multiple=True,
    help="Put queues only on this broker group; may be given several times.",
)
@connected
async def create(
    name: str, queues: int, ordered: bool, brokers: tuple[str, ...], name_server: str, output: str
) -> None:
    """Create a topic, or change its number of queues.

    In an ordered topic, each key keeps its queue only while the number of queues stays: choose enough from the start.
    """
    async with AdminClient(name_server) as admin:
        counts = await admin.create_topic(
            name, queues=queues, ordered=ordered, brokers=brokers or None
        )
    where = ", ".join(f"{count} on {group}" for group, count in counts.items())
    data = {"topic": name, "ordered": ordered, "queues": counts}
    print_outcome(output, data, f"Created {name}: {where}.")


@topic.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@connected
async def delete(name: str, yes: bool, name_server: str, output: str) -> None:
    """Delete a topic with all its messages."""
    if not yes:
        click.confirm(f"Delete {name} and every message in it?", abort=True, err=True)
    async with AdminClient(name_server) as admin:
        await admin.delete_topic(name)
    print_outcome(output, {"topic": name, "deleted": True}, f"Deleted {name}.")
