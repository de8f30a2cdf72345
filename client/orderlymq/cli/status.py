"""`orderlymq status`: broker groups, leaders, terms, lag of the replicas, disk, rates."""

import re
from collections import Counter
from typing import Any

import click

from orderlymq.admin.client import AdminClient
from orderlymq.cli.exitcodes import ExitCode
from orderlymq.cli.session import connected, print_json, print_part, print_table, say
from orderlymq.connection.troubles import is_denied
from orderlymq.errors import BrokerError, BrokerUnreachable
from orderlymq_protocol.plurals import counted


@click.command()
@connected
async def status(name_server: str, output: str) -> None:
    """Show the broker groups: leader, term, replicas and their lag, disk, rates.

    Exit code 1: a broker group has no leader, or is gone although a topic's list of queues names it. 4: no name server answers.
    """
    async with AdminClient(name_server) as admin:
        groups = [
            await _look(admin, name, address) for name, address in (await admin.brokers()).items()
        ]
        groups += [
            {"group": name, "address": None, "leader": None, "error": "not registered"}
            for name in await admin.absent_groups()
        ]
    healthy = bool(groups) and all(group["leader"] is not None for group in groups)
    if output == "json":
        print_json({"nameServers": name_server.split(";"), "groups": groups, "healthy": healthy})
    else:
        _print(groups)
    if not healthy:
        if output != "json":
            say(f"Error: {_why(groups)}", err=True)
        raise click.exceptions.Exit(ExitCode.FAILED)


async def _look(admin: AdminClient, name: str, address: str) -> dict[str, Any]:
    try:
        found = await admin.group_status(address)
    except (BrokerError, BrokerUnreachable) as error:
        denied = isinstance(error, BrokerError) and is_denied(error)
        return {
            "group": name,
            "address": address,
            "leader": None,
            "error": str(error),
            "denied": denied,
        }
    return {"group": name, "address": address, "leader": None, **found}


def _why(groups: list[dict[str, Any]]) -> str:
    """Return why the status is not that of a healthy cluster, and what to do."""
    leaderless = [each for each in groups if each["leader"] is None]
    why = "; ".join(f"{each['group']}: {each['error']}" for each in leaderless if "error" in each)
    if leaderless and all(each.get("denied") for each in leaderless):
        return (
            f"the brokers do not show their status to this account ({why}); set ORDERLYMQ_ACCESS_KEY and "
            "ORDERLYMQ_SECRET_KEY to those of an account that may read it"
        )
    text = "not every broker group has a leader" + (f" ({why})" if why else "")

    return f"{text}; look at the brokers' logs"


def _print(groups: list[dict[str, Any]]) -> None:
    if not groups:
        say("No broker group is registered; start one with `orderlymq up -f FILE`.")
        return
    rows: list[list[object]] = []
    replicas: list[list[object]] = []
    for group in groups:
        disk = group.get("disk") or {}
        ratio, size = disk.get("ratio"), disk.get("bytes")
        rows.append(
            [
                group["group"],
                group["address"],
                group["leader"],
                group.get("term"),
                group.get("commit"),
                group.get("applied"),
                None if ratio is None else f"{ratio:.0%}",
                None if size is None else f"{size / 2**20:,.1f} MiB",
            ]
        )
        for node, replica in sorted((group.get("replicas") or {}).items()):
            replicas.append(
                [
                    group["group"],
                    node,
                    "leader" if str(node) == str(group["leader"]) else "follower",
                    replica.get("match"),
                    replica.get("lag"),
                    "yes" if replica.get("active") else "no",
                ]
            )
    transactions = [
        [group["group"], name, counts["open"], counts["givenUp"]]
        for group in groups
        for name, counts in ((group.get("transactions") or {}).get("groups") or {}).items()
    ]
    columns = ["BROKER GROUP", "ADDRESS", "LEADER", "TERM", "COMMIT", "APPLIED", "DISK", "SIZE"]
    print_table("", columns, rows)
    _print_rates({group["group"]: group.get("rates") or {} for group in groups})
    print_part(["BROKER GROUP", "REPLICA", "ROLE", "MATCH", "LAG", "ACTIVE"], replicas)
    print_part(["BROKER GROUP", "PRODUCER GROUP", "OPEN TRANSACTIONS", "GIVEN UP"], transactions)
    stands = Counter(
        row["group"] for group in groups for row in (group.get("watch") or {}).get("blocked", ())
    )
    if stands:
        say()
    for name, count in sorted(stands.items()):
        say(f"{counted(count, 'blocked queue')}: `orderlymq group show {name}`")


def _print_rates(rates: dict[str, dict[str, float]]) -> None:
    names = list(dict.fromkeys(name for found in rates.values() for name in found))
    heads = [re.sub("[A-Z]", r" \g<0>", each.removesuffix("PerSecond")) for each in names]
    rows: list[list[object]] = [
        [group, *(found.get(name) for name in names)] for group, found in rates.items()
    ]
    print_part(["BROKER GROUP", *(f"{head.upper()}/s" for head in heads)], rows if names else [])
