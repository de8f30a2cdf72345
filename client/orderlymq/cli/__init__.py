"""
The `orderlymq` command: one program whose subcommands come from several packages.

Exit codes: 0 done; 1 failed or refused; 2 wrong usage; 3 no such topic, group or message; 4 no answer from a name
server or broker; 5 the outcome of a send is unknown; 130 interrupted. Rules: every command that prints data has
`--json`; an error is one sentence that says what to do next, never a traceback. Begin with `table.py`, which finds and
loads the commands.
"""

import io
import logging
import sys

import click

from orderlymq import __version__
from orderlymq.cli.exitcodes import ExitCode
from orderlymq.cli.table import CommandTable


@click.command(cls=CommandTable, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="orderlymq")
def cli() -> None:
    """Inspect and run OrderlyMQ clusters; send and consume messages in strict order."""


def main() -> None:
    """Run the command; the entry point of the `orderlymq` script."""
    # The SDK's warnings are for programs; the user of a command gets the error itself.
    logging.getLogger("orderlymq").setLevel(logging.CRITICAL)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Characters that the encoding lacks are shown as escapes: text from others must not end a command.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        cli.main(prog_name="orderlymq", standalone_mode=True)
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
