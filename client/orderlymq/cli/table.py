"""
The table of commands: which exist, what each is for, and the module that has it.

Rules: a command's module is imported only when the command runs, so that help and completion stay fast. The line of
help is read from the source. If the commands of a package cannot be loaded, the user gets a warning, and the other
commands work.
"""

import ast
import difflib
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click
from click.shell_completion import CompletionItem

from orderlymq.cli.exitcodes import ExitCode

PLUGIN_GROUP: Final = "orderlymq.commands"
_OWN: Final = (
    "bench.command:bench",
    "completion:completion",
    "consume:consume",
    "explain:explain",
    "groups:group",
    "messages:message",
    "send:send",
    "status:status",
    "tail:tail",
    "topics:topic",
    "trace:trace",
    "verify:verify",
)
# Commands that other distributions provide.
_ELSEWHERE: Final = {
    "apply": "orderlymq-server",
    "backup": "orderlymq-server",
    "console": "orderlymq-console",
    "canary": "orderlymq-server",
    "demo": "orderlymq-server",
    "doctor": "orderlymq-server",
    "down": "orderlymq-server",
    "pipeline": "orderlymq-spark",
    "plan": "orderlymq-server",
    "up": "orderlymq-server",
}


class CommandTable(click.Group):
    """Own commands and those of other packages, loaded when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names; a plug-in cannot replace an own command."""
        return sorted(_points())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a command; None if it does not exist or cannot be loaded."""
        point = _points().get(cmd_name)
        if point is None:
            return None
        try:
            command = point.load()
        except Exception as error:  # the import of a foreign module may raise anything
            click.echo(
                f"Warning: the command {cmd_name} cannot be loaded from {point.value}: "
                f"{type(error).__name__}: {error}; reinstall orderlymq to repair it",
                err=True,
            )
            return None
        if not isinstance(command, click.Command):
            click.echo(f"Warning: {point.value} is not a command", err=True)
            return None
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the named command; for an unknown name, the error suggests the nearest one."""
        names = self.list_commands(ctx)
        if args and args[0] not in names and args[0] in _ELSEWHERE:
            distribution = _ELSEWHERE[args[0]]
            ctx.fail(f"the command {args[0]} comes with {distribution}; install it too")
        if args and args[0] not in names and not args[0].startswith("-"):
            ctx.fail(f"there is no command {args[0]}{nearest(args[0], names)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; an interrupt ends it with 130, even during loading."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(ExitCode.INTERRUPTED) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with a line about each."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, about(point)) for name, point in sorted(_points().items())])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands whose names begin with *incomplete*."""
        found = [
            CompletionItem(name, help=about(point))
            for name, point in sorted(_points().items())
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)


class Subcommands(click.Group):
    """A command with subcommands; its help shows the whole first sentence of each."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the subcommands with a sentence about each."""
        names = self.list_commands(ctx)
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, _first_sentence(self.commands[name].help)) for name in names]
            )


def nearest(name: str, names: list[str]) -> str:
    """Return a question that suggests the nearest of *names*; empty if none is near."""
    found = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {found[0]}?" if found else ""


def about(point: EntryPoint) -> str:
    """Return the first sentence of a command's docstring, without importing its module."""
    try:
        spec = find_spec(point.module)
        source = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
        nodes = ast.parse(source).body
    except (OSError, ImportError, SyntaxError, UnicodeDecodeError):
        return ""  # running the command shows what is wrong
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == point.attr:
            return _first_sentence(ast.get_docstring(node))
    return ""


def _first_sentence(docstring: str | None) -> str:
    return " ".join((docstring or "").partition("\n\n")[0].split()).rstrip(".")


def _plugins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=PLUGIN_GROUP)}


def _points() -> dict[str, EntryPoint]:
    """Return the entry point of every command, by name."""
    found = _plugins()
    for own in _OWN:
        name = own.partition(":")[2]
        found[name] = EntryPoint(name, f"orderlymq.cli.{own}", PLUGIN_GROUP)
    return found
