"""
The `orderlymq` command: one program whose subcommands come from several packages.

Exit codes: 0 done; 1 failed or refused; 2 wrong usage; 3 no such topic, group or message; 4 nobody answers;
5 the outcome of a send is unknown; 130 interrupted. Rules: every command has `--output json`; an error is
one sentence that says what to do next, never a traceback; a package whose commands cannot be loaded costs
a warning, not the others' commands.
"""

import logging
import sys
from importlib.metadata import EntryPoint, entry_points
from typing import Final

import click

from orderlymq import __version__

PLUGIN_GROUP: Final = "orderlymq.commands"

_OWN: Final = {
    "status": ("orderlymq.cli.status", "status"),
    "topic": ("orderlymq.cli.topics", "topic"),
    "send": ("orderlymq.cli.send", "send"),
    "consume": ("orderlymq.cli.consume", "consume"),
    "group": ("orderlymq.cli.groups", "group"),
    "message": ("orderlymq.cli.messages", "message"),
    "trace": ("orderlymq.cli.trace", "trace"),
    "verify": ("orderlymq.cli.verify", "verify"),
}


class CommandTable(click.Group):
    """Own commands and those of other packages, loaded when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names; own ones cannot be taken over by a plug-in."""
        return sorted({*_OWN, *_plugins()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a command; None when there is none or it cannot be loaded."""
        own = _OWN.get(cmd_name)
        plugin = _plugins().get(cmd_name)
        if own is not None:
            plugin = EntryPoint(cmd_name, ":".join(own), PLUGIN_GROUP)
        if plugin is None:
            return None
        try:
            command = plugin.load()
        except Exception as error:  # whatever a foreign module raises when it is imported
            click.echo(
                f"Warning: the command {cmd_name} cannot be loaded from {plugin.value}: "
                f"{type(error).__name__}: {error}; reinstall orderlymq to repair it",
                err=True,
            )
            return None
        if not isinstance(command, click.Command):
            click.echo(f"Warning: {plugin.value} is no command", err=True)
            return None
        return command


def _plugins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=PLUGIN_GROUP)}


@click.command(cls=CommandTable, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="orderlymq")
def cli() -> None:
    """Strictly ordered messaging: look at a cluster, send to it, consume from it, run one."""


def main() -> None:
    """Run the command; the entry point of the `orderlymq` script."""
    # The SDK's warnings are for programs; a person gets the error itself.
    logging.getLogger("orderlymq").setLevel(logging.CRITICAL)
    try:
        cli.main(prog_name="orderlymq", standalone_mode=True)
    except KeyboardInterrupt:
        sys.exit(130)
