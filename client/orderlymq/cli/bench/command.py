"""The command `orderlymq bench`: its options, its topic, and how progress and result are shown."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import click

from orderlymq.admin.client import AdminClient
from orderlymq.cli.bench.load import SIZE_MIN_BYTES, Load, Progress, Run
from orderlymq.cli.exitcodes import ExitCode
from orderlymq.cli.session import (
    SPAN,
    CommandFailed,
    connected,
    print_json,
    print_table,
    say,
)
from orderlymq.errors import OrderlyMQError, TopicNotFound
from orderlymq_protocol.body.config import SubscriptionGroupConfig
from orderlymq_protocol.names import retry_topic
from orderlymq_protocol.plurals import counted

OWN: Final = "orderlymq-bench"
_SIZE_MAX_BYTES: Final = 4_000_000


@click.command()
@click.option(
    "--topic",
    help="Send to this topic and keep it. Without it, bench creates a topic and deletes it at the end.",
)
@click.option(
    "--allow-foreign",
    is_flag=True,
    help=f"With --topic: send even if its name does not begin with {OWN}.",
)
@click.option(
    "--queues",
    type=click.IntRange(1, 1_024),
    default=8,
    show_default=True,
    help="Queues of the topic that bench creates.",
)
@click.option(
    "--senders",
    type=click.IntRange(1, 1_024),
    default=16,
    show_default=True,
    help="Concurrent senders. Each waits for an acknowledgement before it sends its next message.",
)
@click.option(
    "--keys",
    type=click.IntRange(1, 1_000_000),
    default=64,
    show_default=True,
    help="Sharding keys, divided among the senders.",
)
@click.option(
    "--size",
    type=click.IntRange(SIZE_MIN_BYTES, _SIZE_MAX_BYTES),
    default=1_024,
    show_default=True,
    help="Size of a message body in bytes.",
)
@click.option("--seconds", type=SPAN, default="10s", show_default=True, help="How long to send.")
@connected
async def bench(  # noqa: PLR0913, PLR0917 - click passes every option as an argument
    topic: str | None,
    allow_foreign: bool,
    queues: int,
    senders: int,
    keys: int,
    size: int,
    seconds: float,
    name_server: str,
    output: str,
) -> None:
    """Measure a cluster: send, consume, show rates and latencies, check the order.

    Progress goes to standard error, one line per second; the result goes to standard output.
    Exit code 1: the order was broken, or an acknowledged message was not delivered.
    """
    if keys < senders:
        raise CommandFailed(
            ExitCode.USAGE,
            f"{senders} senders need at least as many keys, but --keys is {keys}: each key has one sender",
        )
    if topic is not None and not topic.startswith(OWN) and not allow_foreign:
        raise CommandFailed(
            ExitCode.USAGE,
            f"the consumers of {topic} would get the messages of this run; leave --topic out, or "
            "add --allow-foreign",
        )
    async with AdminClient(name_server) as admin, _place(admin, topic, queues) as (name, group):
        ordered = (await admin.route(name)).is_ordered
        run = Run(Load(name, senders, keys, size, seconds), group, name_server)
        await run.go(_tell)
    if not run.sent:
        why = f": {run.failure}" if run.failure else ""
        place = f"; look at `orderlymq topic show {topic}`" if topic else ""
        raise CommandFailed(ExitCode.FAILED, f"no send was acknowledged{why}{place}")
    result = {
        "topic": name,
        "ordered": ordered,
        "senders": senders,
        "keys": keys,
        "sizeBytes": size,
        "seconds": seconds,
        **run.result(),
    }
    if output == "json":
        print_json(result)
    else:
        _show(result)
    if not result["kept"]:
        raise click.exceptions.Exit(ExitCode.FAILED)


@asynccontextmanager
async def _place(
    admin: AdminClient, topic: str | None, queues: int
) -> AsyncIterator[tuple[str, str]]:
    """Provide a topic, and a group whose offsets are at its end; remove what was created here."""
    group = f"{OWN}-{secrets.token_hex(4)}"
    name = topic or group
    if topic is None:
        await admin.create_topic(name, queues=queues, ordered=True)
    try:
        await admin.set_group(SubscriptionGroupConfig(group))
        await admin.reset_offsets(group, name, "latest")
        yield name, group
    finally:
        try:
            await admin.delete_group(group)
            with suppress(TopicNotFound):  # the heartbeat of a member may have created it
                await admin.delete_topic(retry_topic(group))
            if topic is None:
                await admin.delete_topic(name)
        except OrderlyMQError as error:
            kept = f"the group {group}" + ("" if topic else f" and the topic {name}")
            say(f"Warning: {kept} could not be removed: {error}", err=True)


def _tell(progress: Progress) -> None:
    p50, p99 = ("-" if ms is None else f"{ms:.2f} ms" for ms in (progress.p50_ms, progress.p99_ms))
    failed = f"  failed {progress.failed}" if progress.failed else ""
    say(
        f"{progress.second:4} s  sends {progress.sends_per_second:,.0f}/s  p50 {p50}  p99 {p99}  "
        f"consumed {progress.consumed_per_second:,.0f}/s  behind {progress.behind}{failed}",
        err=True,
    )


def _show(result: dict[str, Any]) -> None:
    rows: list[list[object]] = [
        [
            name,
            f"{result[rate]:,.0f}",
            *("-" if ms is None else f"{ms:.2f}" for ms in result[latency].values()),
        ]
        for name, rate, latency in (
            ("sends", "sendsPerSecond", "sendLatencyMs"),
            ("deliveries", "consumedPerSecond", "endToEndLatencyMs"),
        )
    ]
    print_table("", ["", "PER SECOND", "P50 MS", "P99 MS", "P99.9 MS", "MAX MS"], rows)
    say(
        f"{result['sent']} sent, {result['failed']} failed tries, {result['consumed']} consumed, "
        f"{result['repeated']} repeated."
    )
    for finding in result["findings"]:
        say(finding)
    if result["kept"]:
        say("The order was kept, and nothing is missing.")
    else:
        say(
            f"{counted(result['outOfOrder'], 'delivery', 'deliveries')} broke the order; missing: "
            f"{counted(result['missing'], 'message')}."
        )
