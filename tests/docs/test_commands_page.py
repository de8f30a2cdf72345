"""
docs/reference/commands.md equals the help texts of the `orderlymq` command.

`python -m tests.docs.test_commands_page` writes the page again.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from orderlymq.cli import cli
from orderlymq.cli.exitcodes import ExitCode
from orderlymq_broker.doctor.command import EXIT_UNREADABLE
from orderlymq_operator.commands import EXIT_CHANGES, EXIT_REFUSED

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "commands.md"
HEAD: Final = """\
# Commands

Every command of `orderlymq`, as `--help` shows it. This page is generated: `python -m tests.docs.test_commands_page`.

Commands find the cluster by `--name-server`, by `ORDERLYMQ_NAME_SERVER`, or at `127.0.0.1:9876`. Credentials and TLS come
from the environment: [security](../howto/security.md#credentials-of-our-own-clients). `--output json` is for programs.

The exit code says how a command ended; [errors](errors.md#exit-codes) explains each.
"""


OWN_CODES: Final = f"""\
| {EXIT_REFUSED} | of `up`, `apply`, `plan`: something is refused or not confirmed |
| {EXIT_CHANGES} | of `plan`: something will happen |
| {EXIT_UNREADABLE} | of `doctor`: the directory cannot be examined, or it was interrupted |
"""


def walk(
    command: click.Command, parent: click.Context | None, name: str
) -> Iterator[click.Context]:
    """Yield the context of a command and of its subcommands, in alphabetical order."""
    context = click.Context(
        command,
        info_name=name,
        parent=parent,
        max_content_width=100,
        terminal_width=100,
        **command.context_settings,
    )
    # click keeps the help option of the first context that asked, which may be another test's.
    command._help_option = None
    yield context
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            below = command.get_command(context, each)
            assert below is not None
            yield from walk(below, context, each)


def contexts() -> list[click.Context]:
    """Return the contexts of all commands."""
    return list(walk(cli, None, "orderlymq"))


def render() -> str:
    """Return the page."""
    codes = "\n".join(
        f"| {code.value} | {code.name.lower().replace('_', ' ')} |" for code in ExitCode
    )
    parts = [HEAD, f"\n| code | meaning |\n| ---: | --- |\n{codes}\n{OWN_CODES}"]
    for context in contexts():
        level = "##" if context.command_path.count(" ") < 2 else "###"
        parts.append(f"\n{level} {context.command_path}\n\n```text\n{context.get_help()}\n```\n")
    return "".join(parts)


def test_the_page_of_commands_says_what_help_says() -> None:
    """A changed command, option or default changes the page."""
    assert PAGE.read_text() == render(), "run python -m tests.docs.test_commands_page"


def test_every_command_speaks_json() -> None:
    """Except groups, which have subcommands, and `completion`, whose output is for a shell."""
    without = [
        context.command_path
        for context in contexts()
        if not isinstance(context.command, click.Group)
        and not any("--json" in parameter.opts for parameter in context.command.params)
    ]

    assert without == ["orderlymq completion"]


if __name__ == "__main__":
    PAGE.write_text(render())
