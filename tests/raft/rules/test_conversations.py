"""The conversations in testdata; harness/conversation.py describes the commands."""

from pathlib import Path

import pytest

from tests import datadriven
from tests.raft.harness.conversation import Conversation

_FILES = sorted((Path(__file__).parent / "testdata").glob("*.txt"))


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_replicas_say_what_the_script_says(path: Path, rewrite: bool) -> None:
    """Law: replicas do and say exactly what the script holds; a change of behaviour is a diff to review."""
    datadriven.run(path, Conversation().handle, rewrite=rewrite)
