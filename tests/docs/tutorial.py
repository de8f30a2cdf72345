"""
Run a tutorial as a reader would: save its files, run its commands, and compare their output.

The working folder is a copy of those parts of the checkout that pages use (examples, Makefile, environment), with its
own ports, so that a cluster on the usual ports does not matter. Fenced blocks are treated by their language:

* ``sh`` is run, in one shell for the page; after ``<!-- background -->`` it runs in parallel until the end, when it must
  have printed something and still run;
* ``text`` right after it: each line must occur in the command's output, in this order; ``...`` in it stands for any text; after
  ``<!-- of the background -->`` in the output of the parallel command;
* a block with a title is saved under that name.

Blocks in `tests/docs/runners.py` are run elsewhere and left out here.
"""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from tests.docs.runners import command_lines, elsewhere, is_typed
from tests.ports import free_row

ROOT: Final = Path(__file__).parents[2]
TUTORIALS: Final = ROOT / "docs" / "tutorials"
HOWTO: Final = ROOT / "docs" / "howto"
FACES: Final = ("Makefile", "requirements", "pyproject.toml", "README.md", ".venv", "charts")
_BLOCK: Final = re.compile(
    r'^(?: *(<!-- (?:background|of the background) -->)\n)?( *)```(\w*)(?: title="([^"]+)")?\n(.*?)^\2```$',
    re.DOTALL | re.MULTILINE,
)
# Tests run with these already installed.
_INSTALLED: Final = (
    "pip install -e '.[spark]'",
    "pip install -e '.[s3]'",
    ".venv/bin/pip install -e '.[faststream]'",
    ".venv/bin/pip install -e '.[taskiq]'",
    "git pull",
    "make .venv/.run",
)
# The command to run before a page that expects a running cluster.
UP: Final = "orderlymq up -f examples/quickstart.yaml --detach"
_NAME_SERVER: Final = "127.0.0.1:9876"
# Addresses of pages that another cluster may use; the port 0 stands for a free one.
_ADDRESSES: Final = (
    ("0.0.0.0:9870", "127.0.0.1:0"),
    ("orderlymq canary", "orderlymq canary --port 0"),
)
_WAIT_S: Final = 40.0


@dataclass(frozen=True)
class Block:
    """A fenced block: language, text, the name under which it is saved, and whether it runs in parallel."""

    language: str
    text: str
    title: str = ""
    background: bool = False

    @property
    def opening(self) -> str:
        """The first line, which identifies the block on its page."""
        return self.text.strip().partition("\n")[0].strip()


def blocks(page: Path, section: str = "") -> Iterator[Block]:
    """Yield the fenced blocks of a page, or of one of its sections."""
    whole = page.read_text()
    if section:
        _, _, whole = whole.partition(f"\n## {section}\n")
        whole = whole.partition("\n## ")[0]
        assert whole, f"{page.name} has no section {section}"
    for background, _, language, title, text in _BLOCK.findall(whole):
        yield Block(language, textwrap.dedent(text), title, bool(background))


def commands(page: Path, section: str = "") -> Iterator[str]:
    """Yield the command lines of a page, or of one of its sections."""
    for block in blocks(page, section):
        if block.language in {"sh", "bash"}:
            yield from command_lines(block.text)


class Reader:
    """A reader who follows a tutorial in *folder*."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        port = free_row(80)
        self._name_server = f"127.0.0.1:{port}"
        self._ports = (
            f"  groups: 1\n  local: {{nameServerPort: {port}, brokerPort: {port + 12}, "
            f"raftPort: {port + 20}, httpPort: {port + 40}}}\n"
        )
        for face in FACES:
            (folder / face).symlink_to(ROOT / face)
        self._examples()
        paths = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._environment = os.environ | {
            "ORDERLYMQ_NAME_SERVER": self._name_server,
            "ORDERLYMQ_CONSOLE_LISTEN": "127.0.0.1:0",
            "PATH": paths,
            "COLUMNS": "200",
            **environment,
        }
        self._beside: list[tuple[subprocess.Popen[bytes], Path]] = []
        self._cwd = folder

    def _examples(self) -> None:
        for source in sorted((ROOT / "examples").rglob("*.yaml")):
            copy = self.folder / source.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            text = source.read_text()
            if source.name == "quickstart.yaml":
                text = text.replace("  groups: 1\n", self._ports)
                assert self._ports in text
            if "pipelines" in source.parts:
                text = text.replace(
                    "    topic: orders\n",
                    f"    topic: orders\n    bootstrap: {self._name_server}\n",
                    1,
                )
            copy.write_text(text)

    def follow(self, page: Path, *, section: str = "", before: str = "") -> None:
        """Do what *page*, or one *section* of it, says, and always stop the cluster afterwards."""
        with self:
            if before:
                self.run(before)
            self.read(page, section)

    def __enter__(self) -> Self:
        """Read several pages on one cluster, which is stopped at the end."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._runs_beside()
        finally:
            self._end()

    def read(self, page: Path, section: str = "") -> None:
        """Do what *page*, or one *section* of it, says."""
        said = ""
        for block in blocks(page, section):
            name = page.relative_to(ROOT).as_posix()
            if elsewhere(name, block.opening) or is_typed(name, block.text):
                continue
            if block.title:
                (self.folder / block.title).parent.mkdir(parents=True, exist_ok=True)
                text = block.text.replace("  groups: 1\n", self._ports)
                (self.folder / block.title).write_text(text)
            elif block.language == "text":
                self._expect(block.text.splitlines(), "" if block.background else said)
            elif block.background:
                said = self._begin(block.text)
            elif block.language == "sh":
                said = self.run(block.text)

    def run(self, text: str) -> str:
        """Run commands in the shell of the page; return what they print."""
        for line in _INSTALLED:
            text = text.replace(line, "true")
        script = (
            f"set -e\n{self._shell()}\n{self._own(text)}\n"
            f"pwd >'{self.folder}/.cwd'; export -p >'{self.folder}/.exports'"
        )
        ended = subprocess.run(
            ["bash", "-c", script],
            cwd=self._cwd,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
            check=False,
        )
        assert ended.returncode == 0, f"{text}\n{ended.stdout}"
        self._cwd = Path((self.folder / ".cwd").read_text().strip())
        return ended.stdout

    def _shell(self) -> str:
        """Return commands that give a new shell the variables of the former one."""
        return f"[ ! -f '{self.folder}/.exports' ] || . '{self.folder}/.exports'"

    def _own(self, text: str) -> str:
        """Return commands with this reader's own addresses."""
        for address, own in ((_NAME_SERVER, self._name_server), *_ADDRESSES):
            text = text.replace(address, own)
        return text

    def _begin(self, text: str) -> str:
        log = self.folder / f"beside-{len(self._beside)}"
        with log.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", f"{self._shell()}; exec {self._own(text)}"],
                cwd=self._cwd,
                env=self._environment,
                stdout=file,
                stderr=file,
            )
        self._beside.append((process, log))
        return ""

    def _expect(self, lines: list[str], said: str) -> None:
        ends = time.monotonic() + (_WAIT_S if self._beside and not said else 0)
        while True:
            found = said or (self._beside[-1][1].read_text() if self._beside else "")
            missing = missed(lines, found, by_word=not said)
            if not missing or time.monotonic() > ends:
                break
            time.sleep(0.2)
        assert missing == "", f"{missing!r} is not in, or not behind the lines before it:\n{found}"

    def _runs_beside(self) -> None:
        """Wait until every parallel command has printed something; none of them may have ended."""
        ends = time.monotonic() + _WAIT_S
        for process, log in self._beside:
            while not log.read_text() and process.poll() is None and time.monotonic() < ends:
                time.sleep(0.1)
            assert log.read_text(), f"{process.args!r} says nothing"
            assert process.poll() is None, log.read_text()

    def _end(self) -> None:
        for process, _ in self._beside:
            process.send_signal(signal.SIGTERM)
        for process, _ in self._beside:
            try:
                process.wait(_WAIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
        for data in (
            ".orderlymq",
            *{path.parent.name for path in self.folder.glob("*/operator.secret")},
        ):
            subprocess.run(
                ["orderlymq", "down", "--data-dir", data],
                cwd=self.folder,
                env=self._environment,
                capture_output=True,
                check=False,
            )


def missed(lines: list[str], found: str, *, by_word: bool) -> str:
    """Return the first line that is not in *found* after the lines before it, or an empty text.

    Args:
        lines: addresses in them may have other ports there.
        found: what was printed.
        by_word: the output of parallel commands: only lines with the same first word have an order.
    """
    ends: dict[str, int] = {}
    for line in lines:
        word = line.split()[0] if by_word else ""
        any_text = re.escape(line).replace(r"\.\.\.", ".*")
        pattern = re.sub(r"127\\\.0\\\.0\\\.1:\d+", r"127\\.0\\.0\\.1:\\d+", any_text)
        match = re.compile(pattern).search(found, ends.get(word, 0))
        if match is None:
            return line
        ends[word] = match.end()
    return ""
