"""
Runs a tutorial as a reader would: its files are saved, its commands are run, its output must come.

The working folder is a copy of the checkout's faces (examples, Makefile, environment) with ports of its own, so that a
cluster on the usual ports does not matter. Fenced blocks count by their language:

* ``sh`` is run, in one shell for the page; after ``<!-- background -->`` it is run beside the rest until the end;
* ``text`` right after it: each line must occur in what the command printed, in this order; after
  ``<!-- of the background -->`` in what the command beside the rest has printed;
* a block with a title is saved under that name.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.ports import free_row

ROOT: Final = Path(__file__).parents[2]
TUTORIALS: Final = ROOT / "docs" / "tutorials"
HOWTO: Final = ROOT / "docs" / "howto"
FACES: Final = ("Makefile", "requirements", "pyproject.toml", "README.md", ".venv", "charts")
_BLOCK: Final = re.compile(
    r'^(<!-- (?:background|of the background) -->\n)?```(\w+)(?: title="([^"]+)")?\n(.*?)^```$',
    re.DOTALL | re.MULTILINE,
)
# Installed already where tests run.
_INSTALLED: Final = (
    "pip install '.[spark]'",
    ".venv/bin/pip install '.[faststream]'",
    ".venv/bin/pip install '.[taskiq]'",
    "git pull",
    "make .venv/.run",
)
_WAIT_S: Final = 40.0


@dataclass(frozen=True)
class Block:
    """One fenced block: language, text, the name to save it under, whether it runs beside the rest."""

    language: str
    text: str
    title: str = ""
    background: bool = False


def blocks(page: Path, section: str = "") -> Iterator[Block]:
    """Yield the fenced blocks of a page, or of one of its sections."""
    whole = page.read_text()
    if section:
        _, _, whole = whole.partition(f"\n## {section}\n")
        whole = whole.partition("\n## ")[0]
        assert whole, f"{page.name} has no section {section}"
    for background, language, title, text in _BLOCK.findall(whole):
        yield Block(language, text, title, bool(background))


def commands(page: Path, section: str = "") -> Iterator[str]:
    """Yield the command lines of a page, or of one of its sections."""
    for block in blocks(page, section):
        if block.language in {"sh", "bash"}:
            yield from block.text.replace("\\\n", " ").splitlines()


class Reader:
    """Somebody who follows a tutorial in *folder*."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        port = free_row(80)
        for face in FACES:
            (folder / face).symlink_to(ROOT / face)
        self._examples(port)
        paths = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._environment = os.environ | {
            "ORDERLYMQ_NAME_SERVER": f"127.0.0.1:{port}",
            "PATH": paths,
            "COLUMNS": "200",
        }
        self._beside: list[tuple[subprocess.Popen[bytes], Path]] = []
        self._cwd = folder

    def _examples(self, port: int) -> None:
        ports = (
            f"  local: {{nameServerPort: {port}, brokerPort: {port + 12}, "
            f"raftPort: {port + 20}, httpPort: {port + 40}}}\n"
        )
        for source in sorted((ROOT / "examples").rglob("*.yaml")):
            copy = self.folder / source.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            text = source.read_text()
            if source.name == "quickstart.yaml":
                text = text.replace("  groups: 1\n", f"  groups: 1\n{ports}")
                assert ports in text
            if "pipelines" in source.parts:
                text = text.replace(
                    "    topic: orders\n",
                    f"    topic: orders\n    bootstrap: 127.0.0.1:{port}\n",
                    1,
                )
            copy.write_text(text)

    def follow(self, page: Path, *, section: str = "", before: str = "") -> None:
        """Do what *page*, or one *section* of it, says, and stop the cluster whatever comes of it."""
        try:
            said = self._run(before) if before else ""
            for block in blocks(page, section):
                if block.title:
                    (self.folder / block.title).parent.mkdir(parents=True, exist_ok=True)
                    (self.folder / block.title).write_text(block.text)
                elif block.language == "text":
                    self._expect(block.text.splitlines(), "" if block.background else said)
                elif block.background:
                    said = self._begin(block.text)
                elif block.language == "sh":
                    said = self._run(block.text)
        finally:
            self._end()

    def _run(self, text: str) -> str:
        for line in _INSTALLED:
            text = text.replace(line, "true")
        script = f"set -e\n{text}\npwd >'{self.folder}/.cwd'"
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

    def _begin(self, text: str) -> str:
        log = self.folder / f"beside-{len(self._beside)}"
        with log.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {text}"],
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
            missing = [line for line in lines if line.split()[0] and not occurs(line, found)]
            if not missing or time.monotonic() > ends:
                break
            time.sleep(0.2)
        # The demo address of the page is that of the usual ports.
        assert missing == [], f"{missing} is not in\n{found}"
        places = [place(line, found) for line in lines]
        keys = {line.split()[0] for line in lines}
        for key in keys:
            of_key = [at for at, line in zip(places, lines, strict=True) if line.split()[0] == key]
            assert of_key == sorted(of_key), found

    def _end(self) -> None:
        for process, _ in self._beside:
            process.send_signal(signal.SIGTERM)
            process.wait(20)
        subprocess.run(
            ["orderlymq", "down"],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            check=False,
        )


def place(line: str, found: str) -> int:
    """Return where *line* stands in *found*, -1 where it does not; addresses may have other ports."""
    pattern = re.sub(r"127\\\.0\\\.0\\\.1:\d+", r"127\\.0\\.0\\.1:\\d+", re.escape(line))
    match = re.search(pattern, found)
    return match.start() if match else -1


def occurs(line: str, found: str) -> bool:
    """Return whether *line* stands in *found*."""
    return place(line, found) >= 0
