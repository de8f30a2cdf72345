"""`orderlymq group`: list, show, set, reset, parked, release, delete."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import click

from orderlymq.admin.calls import unless_foreign
from orderlymq.admin.client import AdminClient
from orderlymq.admin.operations import ParkedKey
from orderlymq.cli.exitcodes import ExitCode
from orderlymq.cli.findings import findings, lines
from orderlymq.cli.lanes import lane_data, lane_lines
from orderlymq.cli.session import (
    CommandFailed,
    Span,
    connected,
    iso,
    parse_moment,
    print_json,
    print_outcome,
    print_part,
    print_rows,
    print_table,
    say,
)
from orderlymq.cli.table import Subcommands, nearest
from orderlymq.connection.instance import unless_missing
from orderlymq.connection.routes import NO_ROUTE
from orderlymq.consumer.assignment import uneven_shares
from orderlymq.durations import milliseconds
from orderlymq.errors import BrokerUnreachable
from orderlymq_protocol.body.catalogue import ConsumerConnection, OffsetWrapper
from orderlymq_protocol.body.config import SubscriptionGroupConfig
from orderlymq_protocol.body.lanes import BY_KEY, BY_QUEUE
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.names import is_retry_topic, is_system_group
from orderlymq_protocol.plurals import counted
from orderlymq_runtime.wallclock import machine_ms

_AT_ONCE: Final = 32
_CONCURRENCY: Final = {"key": BY_KEY, "queue": BY_QUEUE}
_ORDERINGS: Final[dict[str, dict[str, Any]]] = {
    "ordered": {"consume_message_orderly": True, "consume_concurrently": None},
    "concurrent": {"consume_message_orderly": False, "consume_concurrently": True},
}
_POLICIES: Final = {"continue": "Continue", "hold-key": "HoldKey", "stop-queue": "StopQueue"}


@click.group(cls=Subcommands)
def group() -> None:
    """Show consumer groups (members, queues, locks, lanes, lag), set or delete them, move offsets, release keys."""


@group.command("list")
@click.option("--all", "with_system", is_flag=True, help="Include the groups of the system.")
@click.option(
    "--match", "part", default="", metavar="TEXT", help="Only groups whose name contains this text."
)
@click.option(
    "--details",
    type=click.IntRange(0),
    default=1_000,
    show_default=True,
    help="How many groups to show with members and lag; each takes requests to the brokers.",
)
@connected
async def list_groups(
    with_system: bool, part: str, details: int, name_server: str, output: str
) -> None:
    """List the consumer groups."""
    async with AdminClient(name_server) as started:
        admin = AdminClient(instance=started.instance, only=await started.brokers())
        locking = await unless_foreign(admin.locking_groups(), set())
        at_once = asyncio.Semaphore(_AT_ONCE)

        async def detail(name: str) -> dict[str, Any]:
            async with at_once:
                connections = await admin.connections(name)
                progress = await unless_foreign(admin.progress(name), {})
            members = {each.client_id for one in connections for each in one.connection_set}
            return {
                "members": len(members),
                "lag": total_lag(progress, _subscriptions(connections)),
            }

        configs = {
            name: config
            for name, config in (await admin.groups()).items()
            if part in name and (with_system or not is_system_group(name))
        }
        asked = list(configs)[:details]
        detailed = dict(zip(asked, await asyncio.gather(*map(detail, asked)), strict=True))
    found = [
        {
            "group": name,
            "ordered": config.consume_message_orderly or name in locking,
            "concurrency": config.concurrency,
            **detailed.get(name, {"members": None, "lag": None}),
        }
        for name, config in configs.items()
    ]
    rows = [[each["group"], _ordering(each), each["members"], each["lag"]] for each in found]
    print_rows(output, found, ["GROUP", "ORDERING", "MEMBERS", "LAG"], rows)
    if len(detailed) < len(configs):
        left = counted(len(configs) - len(detailed), "group")
        text = f"Note: members and lag of {left} are not shown; select groups with --match, or show all with --details {len(configs)}."
        say(text, err=True)


def _ordering(data: dict[str, Any]) -> str:
    if data["concurrency"] == BY_KEY:
        return "by key"
    return "ordered" if data["ordered"] else "any"


def _subscriptions(connections: Iterable[ConsumerConnection]) -> dict[str, str]:
    return {
        topic: data.sub_string
        for connection in connections
        for topic, data in connection.subscription_table.items()
    }


def total_lag(progress: Mapping[MessageQueue, OffsetWrapper], topics: Iterable[str]) -> int | None:
    """Return the lag over all queues; None if the group has no offset in one of *topics*, or none at all."""
    wanted = {topic for topic in topics if not is_retry_topic(topic)}
    if not progress or wanted - {queue.topic for queue in progress}:
        return None
    return sum(each.lag for each in progress.values())


@group.command()
@click.argument("name")
@connected
async def show(name: str, name_server: str, output: str) -> None:
    """Show a consumer group: members, the holder and epoch of each queue lock, and the lag."""
    async with AdminClient(name_server) as admin:
        data = await _describe(admin, name)
    if output == "json":
        print_json(data)
    else:
        _print(data)


async def _describe(admin: AdminClient, name: str) -> dict[str, Any]:
    configs = await admin.groups()
    connections = await admin.connections(name)
    transactions = (await admin.transactions()).get(name)
    if name not in configs and not connections and transactions is None:
        raise await _no_group(
            admin, name, configs, ", and no producer group of that name has open transactions"
        )
    subscriptions = _subscriptions(connections)
    locks = await admin.locks(name)
    progress = await admin.progress(name)
    queues = {*locks, *progress}
    for topic in subscriptions:
        if not is_retry_topic(topic):
            queues.update((await unless_missing(admin.route(topic), NO_ROUTE)).subscribe)
    members = {
        each.client_id: each for connection in connections for each in connection.connection_set
    }
    rows: list[dict[str, Any]] = []
    for queue in sorted(queues):
        lock, offsets = locks.get(queue), progress.get(queue)
        rows.append(
            {
                "topic": queue.topic,
                "brokerGroup": queue.broker_name,
                "queue": queue.queue_id,
                "holder": None if lock is None else lock.client_id,
                "epoch": None if lock is None else lock.epoch,
                "heldSince": None if lock is None else iso(lock.held_since_ms),
                "committed": None if offsets is None else offsets.consumer_offset,
                "maxOffset": None if offsets is None else offsets.broker_offset,
                "lag": None if offsets is None else offsets.lag,
            }
        )
    config = configs.get(name)
    by_key = config is not None and config.concurrency == BY_KEY
    lanes = await admin.lanes(name) if by_key else None
    return {
        "group": name,
        "ordered": bool(config and config.consume_message_orderly) or bool(locks),
        "concurrency": BY_QUEUE if config is None else config.concurrency,
        "lanes": None if lanes is None else lane_data(lanes, machine_ms()),
        "retryMaxTimes": None if config is None else config.retry_max_times,
        "members": [
            {"clientId": each.client_id, "address": each.client_addr, "language": each.language}
            for _, each in sorted(members.items())
        ],
        "subscriptions": subscriptions,
        "queues": rows,
        "lag": total_lag(progress, subscriptions),
        "transactions": transactions,
        **findings(await _statuses(admin), name),
        "advice": None
        if by_key
        else uneven_shares(len(members), (q.topic for q in queues)) or None,
    }


async def _config(admin: AdminClient, name: str) -> SubscriptionGroupConfig | None:
    """Return the settings of a group; None if it has none, but members.

    Raises:
        CommandFailed: No broker knows the group.
        BrokerUnreachable: As `_check_asked`.
    """
    configs = await admin.groups()
    if name not in configs and not await admin.connections(name):
        raise await _no_group(admin, name, configs)

    return configs.get(name)


async def _no_group(
    admin: AdminClient, name: str, known: Iterable[str], also: str = ""
) -> CommandFailed:
    """Return the error about a group that no broker knows.

    Raises:
        BrokerUnreachable: As `_check_asked`.
    """
    await _check_asked(admin, f"consumer group {name}")
    near = nearest(name, list(known)) or "; `orderlymq group list` shows the groups"
    return CommandFailed(ExitCode.NOT_FOUND, f"there is no consumer group {name}{also}{near}")


async def _check_asked(admin: AdminClient, what: str) -> None:
    """Refuse to report that something does not exist while a broker group was not asked.

    Raises:
        BrokerUnreachable: A broker group is not registered.
    """
    if absent := await admin.absent_groups():
        raise BrokerUnreachable(
            f"{what} may be in the broker group {absent[0]}, which is not registered now"
        )


async def _statuses(admin: AdminClient) -> list[dict[str, Any]]:
    """Return the status of each broker group; RocketMQ's own brokers have none."""
    addresses = (await admin.brokers()).values()
    asked = [await unless_foreign(admin.group_status(each), None) for each in addresses]
    return [dict(status) for status in asked if status is not None]


def _print(data: dict[str, Any]) -> None:
    ordering = _ordering(data)
    kind = "" if ordering == "any" else f"{ordering}, "
    age = f" ({data['lagSeconds']:.0f} s)" if data["lag"] and data["lagSeconds"] else ""
    lag = "not known" if data["lag"] is None else data["lag"]
    say(f"{data['group']}: {kind}{counted(len(data['members']), 'member')}, lag {lag}{age}")
    members = [list(each.values()) for each in data["members"]]
    print_part(["MEMBER", "ADDRESS", "LANGUAGE"], members)
    columns = [
        "TOPIC",
        "BROKER GROUP",
        "QUEUE",
        "HOLDER",
        "EPOCH",
        "HELD SINCE",
        "COMMITTED",
        "MAX",
        "LAG",
    ]
    print_part(columns, [list(row.values()) for row in data["queues"]])
    if data["lanes"]:
        say("\n" + "\n".join(lane_lines(data["lanes"])))
    if data["transactions"]:
        counts = data["transactions"]
        say(f"\nTransactions: {counts['open']} open, {counts['givenUp']} given up.")
    said = lines(data)
    if said:
        say("\n" + "\n".join(said))
    if data["advice"]:
        say(f"\nNote: {data['advice']}.")


#: Seconds, as `spec.retry` takes them.
_PAUSE: Final = Span(0.001, 86_400)


def _in_milliseconds(
    _context: click.Context, _parameter: click.Parameter, said: float | None
) -> int | None:
    return None if said is None else milliseconds(said)


@group.command("set")
@click.argument("name")
@click.option(
    "--concurrency",
    type=click.Choice(list(_CONCURRENCY)),
    help="key: any number of members share a queue, each key with one member at a time; queue: one member per queue.",
)
@click.option(
    "--ordering",
    type=click.Choice(list(_ORDERINGS)),
    help="ordered: only the holder of a queue's lock consumes it; concurrent: no locks and no order, even if the group "
    "took locks before.",
)
@click.option(
    "--on-dead-letter",
    type=click.Choice(list(_POLICIES)),
    callback=lambda _context, _parameter, said: _POLICIES.get(said),
    help="What happens to the messages behind one that became a dead letter.",
)
@click.option(
    "--retry-max-times",
    type=click.IntRange(-1),
    help="Tries of a message before it becomes a dead letter; -1: no limit. For a group that consumes in order by queue, "
    "each member's max_reconsume_times applies instead.",
)
@click.option(
    "--retry-pause",
    "retry_pause_millis",
    type=_PAUSE,
    callback=_in_milliseconds,
    help="Groups by key: pause before a failed message is tried again; it doubles with each failure.",
)
@click.option(
    "--retry-pause-max",
    "retry_pause_max_millis",
    type=_PAUSE,
    callback=_in_milliseconds,
    help="The longest pause between two tries.",
)
@connected
async def set_group(
    name: str,
    concurrency: str | None,
    ordering: str | None,
    name_server: str,
    output: str,
    **said: Any,
) -> None:
    """Create a consumer group, or change how it consumes; options that are left out keep their values.

    The concurrency can change only while no queue lock is held and no lane is in hand. A group can become
    concurrent only while no queue lock is held and all brokers have this version.
    """
    wanted = {field: value for field, value in said.items() if value is not None}
    if concurrency is not None:
        wanted["concurrency"] = _CONCURRENCY[concurrency]
        if concurrency == "key":
            wanted["consume_concurrently"] = None  # the declaration goes if it is not repeated
    if ordering is not None:
        wanted |= _ORDERINGS[ordering]
    async with AdminClient(name_server) as admin:
        known = await admin.groups()
        config = replace(known.get(name, SubscriptionGroupConfig(name)), **wanted)
        await admin.set_group(config, only=wanted)
        config = (await admin.groups()).get(name, config)  # another user may have changed it, too
        if name not in known:
            say(f"Note: this created the group {name}{nearest(name, list(known)) or '.'}", err=True)
        by_queue = config.concurrency == BY_QUEUE and (
            config.consume_message_orderly or bool(await admin.locks(name))
        )
    data: dict[str, Any] = {
        "group": name,
        "concurrency": config.concurrency,
        "declaredConcurrent": bool(config.consume_concurrently),
        "onDeadLetter": config.on_dead_letter,
        "retryMaxTimes": config.retry_max_times,
        "retryPauseSeconds": config.retry_pause_millis / 1000,
        "retryPauseMaxSeconds": config.retry_pause_max_millis / 1000,
    }
    if by_queue and "retry_max_times" in wanted:
        data["note"] = (
            "the group consumes in order by queue, where retryMaxTimes has no effect: "
            "give its consumers ConsumerSettings(max_reconsume_times=...)"
        )
    if config.concurrency == BY_QUEUE and {"retry_pause_millis", "retry_pause_max_millis"} & {
        *wanted
    }:
        data["note"] = (
            "the group consumes by queue, where each consumer sets its own pauses between tries"
        )
    if output == "json":
        print_json(data)
    else:
        say(
            f"{name}: concurrency {config.concurrency}, onDeadLetter {config.on_dead_letter}, "
            f"retryMaxTimes {config.retry_max_times}"
            + ("" if config.concurrency == BY_QUEUE else f", {_pauses(config)}")
            + (", declared concurrent" if config.consume_concurrently else "")
        )
        if "note" in data:
            say(f"Note: {data['note']}.")


def _pauses(config: SubscriptionGroupConfig) -> str:
    first, most = config.retry_pause_millis / 1000, config.retry_pause_max_millis / 1000
    return f"pauses between tries {first:g} to {most:g} s"


@group.command()
@click.argument("name")
@click.option("--topic", required=True, help="The topic whose offsets are moved.")
@click.option("--to", "moment", required=True, metavar="MOMENT", help="earliest, latest or a time.")
@connected
async def reset(name: str, topic: str, moment: str, name_server: str, output: str) -> None:
    """Move the offsets of a consumer group; its connected members are notified and continue there."""
    async with AdminClient(name_server) as admin:
        found = await admin.reset_offsets(name, topic, parse_moment(moment))
    rows = [
        {
            "topic": queue.topic,
            "brokerGroup": queue.broker_name,
            "queue": queue.queue_id,
            "offset": offset,
        }
        for queue, offset in found.items()
    ]
    columns = ["TOPIC", "BROKER GROUP", "QUEUE", "OFFSET"]
    print_rows(output, rows, columns, (list(row.values()) for row in rows))


@group.command()
@click.argument("name")
@connected
async def parked(name: str, name_server: str, output: str) -> None:
    """List the keys that are parked behind a dead letter (onDeadLetter: HoldKey)."""
    async with AdminClient(name_server) as admin:
        found = await admin.parked_keys(name)
        if not found:
            await _config(admin, name)
    rows = _parked_rows(found)
    if output == "json":
        print_json(rows)
    elif found:
        columns = [
            "TOPIC",
            "KEY",
            "BROKER GROUP",
            "QUEUE",
            "SINCE",
            "OFFSET",
            "FIRST LETTER",
            "BEHIND",
        ]
        print_table("", columns, [list(row.values()) for row in rows])
    else:
        say(f"{name} has parked no key behind a dead letter.")


@group.command()
@click.argument("name")
@click.option("--topic", help="The topic of the key; default: every topic of the group.")
@click.option(
    "--key", required=True, help="The sharding key; '' selects the messages without a key."
)
@click.option(
    "--skip/--retry",
    help="For a group by key: make the failed message a dead letter, or try it again (default).",
)
@click.option(
    "--offset",
    type=int,
    help="Release only if the key is parked at this offset, as `group parked` and `group show` print it.",
)
@connected
async def release(
    name: str,
    topic: str | None,
    key: str,
    skip: bool,
    offset: int | None,
    name_server: str,
    output: str,
) -> None:
    """Release a parked key, so that consumers get its next messages again.

    A group by key continues at the failed message (--retry) or behind it (--skip). In any other group, the dead
    letters of the key stay where they are until a redrive. Another user may have released the key since you looked:
    with --offset, a key that is now parked at another message is not released.
    """
    async with AdminClient(name_server) as admin:
        config = await _config(admin, name)
        by_key = config is not None and config.concurrency == BY_KEY
        topics = [topic] if topic is not None else await _topics_of(admin, name)
        found = [
            each for one in topics for each in await _release(admin, name, one, key, skip, offset)
        ]
        named = f"key {key}" if key else "a message without a key"
        if not found:
            await _check_asked(admin, f"{named} that {name} has parked")
    if not found:
        of_topic = f" of topic {topic}" if topic is not None else ""
        of_topic += f" at offset {offset}" if offset is not None else ""
        raise CommandFailed(
            ExitCode.NOT_FOUND,
            f"group {name} has not parked {named}{of_topic}; `orderlymq group parked {name}` and "
            f"`orderlymq group show {name}` list what it has parked",
        )
    if output == "json":
        print_json(_parked_rows(found))
        return
    for each in found:
        going_on = "its next messages are consumed again"
        if by_key:
            going_on = f"the lane continues {'behind' if skip else 'at'} offset {each.first_offset}"
        say(f"Released {named} of {each.queue.topic}: {going_on}.")


@group.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@connected
async def delete(name: str, yes: bool, name_server: str, output: str) -> None:
    """Delete a consumer group with its offsets; stop its members first.

    Brokers refuse while a member holds a queue lock or has a lane in hand. The group's retry topic and dead letters
    stay: `orderlymq topic delete` deletes them.
    """
    if not yes:
        text = f"Delete the consumer group {name} with its offsets?"
        click.confirm(text, abort=True, err=True)
    async with AdminClient(name_server) as admin:
        configs = await admin.groups()
        if name not in configs:
            raise await _no_group(admin, name, configs)
        await admin.delete_group(name)
    print_outcome(output, {"group": name, "deleted": True}, f"Deleted {name}.")


async def _release(
    admin: AdminClient, name: str, topic: str, key: str, skip: bool, offset: int | None
) -> list[ParkedKey]:
    """Release a key of a topic; with an *offset*, only if the key stands at that offset."""
    if offset is None:
        return await admin.release_key(name, topic, key, skip=skip)
    queues = {
        each.queue
        for each in await admin.parked_keys(name)
        if (each.queue.topic, each.key, each.first_offset) == (topic, key, offset)
    }
    # Brokers list only some of the lanes without a key, and show a long key only by its beginning. So they must compare
    # keys themselves.
    queues |= {
        MessageQueue(each.topic, each.broker_name, each.queue_id)
        for each in (await admin.lanes(name, topic, key)).queues
        if each.committed <= offset < each.scanned
    }
    return [
        each
        for queue in sorted(queues)
        for each in await admin.release_key(name, topic, key, skip=skip, at=(queue, offset))
    ]


async def _topics_of(admin: AdminClient, name: str) -> list[str]:
    """Return the topics in which a group may have parked keys."""
    lanes = await admin.lanes(name)
    parked_keys = await admin.parked_keys(name)
    return sorted(
        {each.topic for each in lanes.queues} | {each.queue.topic for each in parked_keys}
    )


def _parked_rows(found: list[ParkedKey]) -> list[dict[str, object]]:
    return [
        {
            "topic": each.queue.topic,
            "key": each.key,
            "brokerGroup": each.queue.broker_name,
            "queue": each.queue.queue_id,
            "since": iso(each.since_ms),
            "firstOffset": each.first_offset,
            "firstLetter": each.first_message_id,
            "behind": each.behind,
        }
        for each in found
    ]
