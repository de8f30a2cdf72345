"""`orderlymq completion`: the script with which a shell completes our commands."""

import click
from click.shell_completion import get_completion_class

_VARIABLE = "_ORDERLYMQ_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    For bash: `orderlymq completion bash >> ~/.bashrc`.
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click knows the three shells above"
    click.echo(kind(ctx.find_root().command, {}, "orderlymq", _VARIABLE).source())
