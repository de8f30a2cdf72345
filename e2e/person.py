"""A reader who types lines of the guides, exactly as they are on the pages, in the namespace of a scenario."""

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.docs.tutorial import ROOT as TREE
from tests.docs.tutorial import commands

from e2e.machine import MachineError
from e2e.space import Space

_FACES: Final = ("charts",)
_LINE_S: Final = 240.0


@dataclass
class Person:
    """A reader at a shell in *folder*.

    Attributes:
        words: of pages, and what stands for them here, such as the name of a node.
        typed: the lines that were run, by page.
    """

    space: Space
    folder: Path
    words: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Set kubectl's namespace to the scenario's, and copy the files that pages use into the folder."""
        for face in _FACES:
            (self.folder / face).symlink_to(TREE / face)
        known = self.space.machine.environment
        own = self.folder / "kubeconfig"
        own.write_text(Path(known["KUBECONFIG"]).read_text())
        self._environment = {
            **known,
            "KUBECONFIG": str(own),
            "PATH": f"{Path(sys.executable).parent}:{known['PATH']}",
        }
        self._run(f"kubectl config set-context --current --namespace={self.space.name}")
        self.words = {"orderlymq:dev": self.space.image, **self.words}

    def types(self, page: str, *begins: str, code: int = 0, **variables: str) -> str:
        """Run lines of *page* (below `docs/`), each identified by its beginning; return their output.

        Args:
            page: its path below `docs/`, without its ending.
            begins: how each line begins.
            code: the exit code that they must have.
            variables: of the shell.

        Raises:
            MachineError: one has another, or does not end; the text has what it printed.
        """
        known = set(commands(TREE / "docs" / f"{page}.md"))
        printed = ""
        for begun in begins:
            found = [line for line in known if line.startswith(begun)]
            assert len(found) == 1, f"{page} has {found} for {begun}"
            printed += self._run(self._here(found[0]), code, variables)
        return printed

    def _here(self, line: str) -> str:
        for word, here in self.words.items():
            line = line.replace(word, here)
        return line

    def _run(self, line: str, code: int = 0, variables: Mapping[str, str] = {}) -> str:
        try:
            done = subprocess.run(
                ["bash", "-c", f"set -o pipefail\n{line}"],
                cwd=self.folder,
                env={**self._environment, **variables},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_LINE_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise MachineError(f"{line}: no end in {_LINE_S:g} s") from error
        if done.returncode != code:
            raise MachineError(f"{line}: {done.returncode}\n{done.stdout}")
        return done.stdout
