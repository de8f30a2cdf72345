"""The output of `orderlymq up` while it waits."""

import io

from rich.console import Console

from orderlymq_operator.local.progress import Progress


def test_a_problem_is_shown_as_it_is() -> None:
    """Law: a problem is shown literally; brackets in a path are not markup."""
    text = "cannot store the wanted state: '/tmp/x[/b]'"
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=80)
    with Progress(console=console) as progress:
        progress.show({"events": [], "problem": text, "resources": [], "settled": False})
        console.print("")

    assert text in shown.getvalue()
