"""`orderlymq canary`: check order, delivery and take-over of a cluster until Ctrl-C."""

import asyncio
from typing import TYPE_CHECKING, Final

import click

from orderlymq.cli.exitcodes import ExitCode
from orderlymq.cli.session import (
    SPAN,
    CommandFailed,
    name_server_option,
    print_json_line,
    reporting,
)
from orderlymq_operator.resources.cluster.canary import CANARY_PORT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orderlymq_operator.canary.probes import Plan
    from orderlymq_operator.canary.process import Address
    from orderlymq_operator.canary.verdict import Limits, Verdict

_BY_HAND: Final = "orderlymq_canary_by_hand"


@click.command()
@name_server_option
@click.option(
    "--broker-group",
    "groups",
    multiple=True,
    metavar="NAME",
    help="A broker group to check; may be given several times. Default: every registered one.",
)
@click.option(
    "--interval",
    type=SPAN,
    default="1s",
    show_default=True,
    help="Interval between two probes.",
)
@click.option(
    "--target",
    type=SPAN,
    default="1s",
    show_default=True,
    help="A probe that takes longer counts as late and uses up error budget.",
)
@click.option(
    "--objective",
    type=click.FloatRange(0.5, 1, max_open=True),
    default=0.999,
    show_default=True,
    help="Share of the probes that must succeed in time.",
)
@click.option(
    "--takeover",
    type=SPAN,
    default="60s",
    show_default=True,
    help="How often one of the two consumers stops, so that the other takes over its queues.",
)
@click.option(
    "--hold",
    type=SPAN,
    default="15m",
    show_default=True,
    help="How long a violation is reported after it was seen.",
)
@click.option(
    "--prefix",
    default=_BY_HAND,
    show_default=True,
    help="Prefix of its topic names, and the name of its consumer group. Each canary needs its own.",
)
@click.option(
    "--listen", default="127.0.0.1", show_default=True, help="Address on which it serves its pages."
)
@click.option("--port", type=click.IntRange(0, 65535), default=CANARY_PORT, show_default=True)
@click.option("--operated", is_flag=True, hidden=True)
@click.option("--remove", is_flag=True, help="Delete its topics and its consumer group, and exit.")
@click.option("--yes", is_flag=True, help="With --remove: do not ask for confirmation.")
@reporting
def canary(  # noqa: PLR0913 - what a user may say
    *,
    name_server: str,
    groups: tuple[str, ...],
    interval: float,
    target: float,
    objective: float,
    takeover: float,
    hold: float,
    prefix: str,
    listen: str,
    port: int,
    operated: bool,
    remove: bool,
    yes: bool,
    output: str,
) -> None:
    """Check order, delivery and take-over continuously, with messages of its own.

    It sends one message per interval to each of two queues of each broker group, and checks what two consumers receive. It
    serves the pages /status, /metrics and /readyz.
    """
    # Imported here, so that help and completion do not load the SDK and the pages.
    from orderlymq.errors import OrderlyMQError  # noqa: PLC0415 - see above
    from orderlymq_operator.canary.probes import Plan  # noqa: PLC0415 - the same
    from orderlymq_operator.canary.process import Address  # noqa: PLC0415 - the same
    from orderlymq_operator.canary.verdict import Limits, stale_after_s  # noqa: PLC0415 - the same
    from orderlymq_runtime.process import loop  # noqa: PLC0415 - the same

    if interval <= 0 or target <= 0 or takeover <= 0:
        raise click.UsageError("--interval, --target and --takeover must be greater than 0")
    limits = Limits(
        interval_s=interval,
        target_s=target,
        stale_s=stale_after_s(interval),
        hold_s=hold,
        objective=objective,
    )
    plan = Plan(groups, prefix, name_server, takeover, makes_topics=not operated)
    as_json = output == "json"
    if remove:
        asyncio.run(_remove(plan, ask=not yes, as_json=as_json))
        return
    address = Address(listen, port)
    try:
        loop.run(_run(plan, limits, address, _say_json if as_json else _say))
    except OrderlyMQError:  # some of them are OSErrors too
        raise
    except OSError as error:
        raise CommandFailed(ExitCode.FAILED, f"the pages cannot be served: {error}") from error


async def _run(
    plan: "Plan", limits: "Limits", address: "Address", say: "Callable[[Verdict], None]"
) -> None:
    from orderlymq_operator.canary.process import CanaryProcess  # noqa: PLC0415 - as above

    whole = plan if plan.groups else await _with_groups(plan)
    await CanaryProcess(whole, limits, address, say).run()


async def _with_groups(plan: "Plan") -> "Plan":
    """Return *plan* with every broker group that is registered now."""
    from dataclasses import replace  # noqa: PLC0415 - as above

    from orderlymq.admin.client import AdminClient  # noqa: PLC0415 - as above
    from orderlymq.errors import BrokerUnreachable  # noqa: PLC0415 - as above

    async with AdminClient(plan.name_servers) as admin:
        found = tuple(await admin.brokers())
    if not found:
        raise BrokerUnreachable("no broker group is registered; try `orderlymq status`")
    return replace(plan, groups=found)


async def _remove(plan: "Plan", *, ask: bool, as_json: bool) -> None:
    from orderlymq.admin.client import AdminClient  # noqa: PLC0415 - as above
    from orderlymq_operator.canary.probes import remove  # noqa: PLC0415 - as above

    def agree(names: "Sequence[str]") -> None:
        if ask:
            text = f"Delete {', '.join(names)} and every message in it?"
            click.confirm(text, abort=True, err=True)

    async with AdminClient(plan.name_servers) as admin:
        topics = await remove(admin, plan, agree)
    if as_json:
        print_json_line({"deleted": topics})
        return
    click.echo(f"Deleted: {', '.join(topics)}" if topics else "There was nothing to delete.")


def _say(verdict: "Verdict") -> None:
    click.echo(f"order verified: {verdict.status}  {verdict.reason}: {verdict.message}")


def _say_json(verdict: "Verdict") -> None:
    print_json_line(
        {"status": verdict.status, "reason": verdict.reason, "message": verdict.message}
    )
