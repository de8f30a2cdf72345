"""
The subcommands of ``orderlymq`` that need the broker's own files: ``doctor``.

Exit codes of ``doctor``: 0 means no findings, 1 means findings, 2 means that it could not examine the directory.
``state.py`` lists the checks.
"""

from pathlib import Path
from typing import Final

import click
import msgspec

from orderlymq_broker.doctor.log import Report
from orderlymq_broker.doctor.state import examine
from orderlymq_broker.store.kv import StoreError
from orderlymq_protocol.plurals import counted

EXIT_FINDINGS: Final = 1
EXIT_UNREADABLE: Final = 2


@click.command()
@click.argument("data_dir", type=click.Path(path_type=Path))
@click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Format of the report.",
)
@click.option("--json", "as_json", is_flag=True, help="Short for --output json.")
@click.pass_context
def doctor(context: click.Context, data_dir: Path, output: str, *, as_json: bool) -> None:
    """Check the files of a stopped replica; nothing is changed.

    DATA_DIR is the directory of one replica. Every message, queue entry, index entry and raft
    entry is read and compared with the others. Exit code 0: nothing is wrong; 1: findings;
    2: the directory cannot be examined.
    """
    as_json = as_json or output == "json"
    try:
        report = examine(data_dir)
    except (StoreError, OSError, KeyboardInterrupt) as error:
        problem = str(error) or "interrupted; the directory was not checked completely"
        if as_json:
            click.echo(
                msgspec.json.encode(
                    {"path": str(data_dir), "error": problem, "exitCode": EXIT_UNREADABLE}
                )
            )
        else:
            click.echo(f"Error: {problem}", err=True)
        context.exit(EXIT_UNREADABLE)
    if as_json:
        click.echo(msgspec.json.encode({**msgspec.to_builtins(report), "clean": report.clean}))
    else:
        _print(report)
    context.exit(0 if report.clean else EXIT_FINDINGS)


def _print(report: Report) -> None:
    click.echo(f"{report.path}: {report.identity or 'no identity'}")
    examined = ", ".join(f"{count} {what}" for what, count in report.counts.items())
    click.echo(f"examined {examined or 'nothing'}")
    if report.clean:
        click.secho("no problem was found", fg="green")
        return
    for check, count in report.findings_by_check.items():
        click.echo(f"\n{check}: {counted(count, 'finding')}")
        shown = [each for each in report.findings if each.check == check]
        # Plain lines, because a table would fold and cut the names.
        for finding in shown:
            click.echo(f"  {finding.place}: {finding.problem}")
        if count > len(shown):
            click.echo(f"  ... and {count - len(shown)} more")
    click.echo()
    click.echo(
        "If a majority of the group is healthy without this replica, move this directory away "
        "and start the replica on an empty one: it fetches everything from its peers. Otherwise "
        "keep the directory, because its data may be the last that is left: "
        "docs/howto/lost-majority.md"
    )
