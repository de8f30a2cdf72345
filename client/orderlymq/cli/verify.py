"""`orderlymq verify`: let the order oracle judge a recorded history."""

from pathlib import Path

import click

from orderlymq.cli.exitcodes import ExitCode
from orderlymq.cli.session import CommandFailed, print_json, print_table, reporting, say
from orderlymq.oracle.history import HistoryError, read
from orderlymq.oracle.verdict import judge
from orderlymq_protocol.plurals import counted


@click.command()
@click.argument("history", type=click.Path(path_type=Path, dir_okay=False))
@reporting
def verify(history: Path, output: str) -> None:
    """Check HISTORY, a file of JSON lines that producers and consumers recorded, for lost or reordered messages.

    Exit code 0: nothing shows that the order was broken or a message lost; 1: the findings say where. The output also
    names what the history is too incomplete to check; that does not change the exit code.
    """
    try:
        events = list(read(history))
    except FileNotFoundError as error:
        raise CommandFailed(ExitCode.NOT_FOUND, f"there is no file {history}") from error
    except (OSError, HistoryError) as error:
        raise CommandFailed(ExitCode.USAGE, str(error)) from error
    if not events:
        raise CommandFailed(
            ExitCode.USAGE, f"{history} holds no event, so nothing can be checked; was it recorded?"
        )
    verdict = judge(events)
    findings: list[dict[str, object]] = [
        {
            "defect": str(finding.defect),
            "message": finding.message,
            "queue": finding.queue,
            "explanation": finding.explanation,
            "evidence": finding.lines(),
        }
        for finding in verdict.findings
    ]
    if output == "json":
        print_json(
            {
                "kept": verdict.kept,
                "findings": findings,
                "counts": verdict.counts,
                "notJudged": verdict.not_judged,
                "seconds": verdict.duration_s,
                "ackGapMs": verdict.ack_gap_ms,
            }
        )
    else:
        print_table("", ["COUNT", "OF"], [[count, name] for name, count in verdict.counts.items()])
        for finding in verdict.findings:
            where = f"message {finding.message}, queue {finding.queue}"
            say(f"{finding.defect}: {where}: {finding.explanation}")
            for line in finding.lines():
                say(f"    {line}")
        for text in verdict.not_judged:
            say(f"not judged: {text}")
        if not verdict.kept:
            say(f"{counted(len(findings), 'finding')}.")
        elif verdict.not_judged:
            say("No violation was found in what could be checked.")
        else:
            say("The order was kept.")
    raise click.exceptions.Exit(ExitCode.OK if verdict.kept else ExitCode.FAILED)
