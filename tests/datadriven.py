"""
Conversations as tests: files of blocks, each a command, a line ----, and what it prints.

Blocks are separated by an empty line; lines that begin with # are comments and stay. Run
pytest with --rewrite to accept what is printed, and review the diff.
"""

from collections.abc import Callable
from pathlib import Path

_SEPARATOR = "----"


def run(path: Path, handle: Callable[[str], str], *, rewrite: bool) -> None:
    """Compare every block of *path* with what *handle* prints; rewrite on request."""
    expected = path.read_text(encoding="utf-8")
    blocks = [block for block in expected.split("\n\n") if block.strip()]
    actual = "\n\n".join(_play(block.strip("\n"), handle) for block in blocks) + "\n"

    if rewrite:
        path.write_text(actual, encoding="utf-8")
        return

    assert actual == expected, f"{path.name}: run with --rewrite and review the diff"


def _play(block: str, handle: Callable[[str], str]) -> str:
    """Return *block* with its expectation replaced by what its commands print."""
    lines = block.split("\n")
    end = lines.index(_SEPARATOR) if _SEPARATOR in lines else len(lines)
    asked = lines[:end]
    commands = [line for line in asked if not line.startswith("#")]
    printed = [text for command in commands for text in handle(command).splitlines() if text]
    if not commands:
        return "\n".join(asked)
    return "\n".join([*asked, _SEPARATOR, *(printed or ["ok"])])
