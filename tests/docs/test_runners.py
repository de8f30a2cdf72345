"""Each command block and each program of the pages has a test that runs it, or the nearest test and a reason."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.docs.runners import (
    ELSEWHERE,
    FOLLOWED,
    FRAGMENTS,
    ROOT,
    elsewhere,
    is_typed,
    typed_at_kubernetes,
)
from tests.docs.tutorial import TUTORIALS, Block, blocks, commands

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "examples").rglob("*.md")),
    *sorted((ROOT / "charts").rglob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
# Manifests, outputs and settings files are checked by other tests.
SHOWN = {"text", "yaml", "json", "xml", "toml"}
COMMAND = re.compile(r"(\$ )?(orderlymq|kubectl|helm|docker|kind|make|python3?|pip|curl|mvn|go) ")


def is_run(block: Block) -> bool:
    """Return whether a text tells the reader to run it."""
    if block.language:
        return block.language not in SHOWN
    return COMMAND.match(block.opening) is not None


def followed(page: Path, name: str) -> set[Block]:
    """Return the parts that tests of the page or its sections run: programs, or commands and the files that they name."""
    return {
        block
        for (followed_page, section), runner in FOLLOWED.items()
        if followed_page == name
        for block in blocks(page, section)
        if (runner == FRAGMENTS) == (block.language == "python" and not block.title)
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_has_one_runner(page: Path) -> None:
    """A new block fails here until a reader follows it, a scenario types it, or the list names its runner."""
    name = page.relative_to(ROOT).as_posix()
    read = followed(page, name)

    without = [
        block.opening
        for block in blocks(page)
        if is_run(block)
        and block not in read
        and not is_typed(name, block.text)
        and not elsewhere(name, block.opening)
    ]

    assert without == []


def test_every_runner_and_every_block_of_the_list_exists() -> None:
    """A removed block or test may not stay in the list."""
    pages = {page.relative_to(ROOT).as_posix(): page for page in PAGES}
    named = [
        row
        for name, page in pages.items()
        for block in blocks(page)
        for row in elsewhere(name, block.opening)
    ]
    for where in (*FOLLOWED.values(), *(runner.where for runner in ELSEWHERE.values())):
        file, _, name = where.partition("::")
        assert name in (ROOT / file).read_text(), where
    for name, section in FOLLOWED:
        assert any(is_run(block) for block in blocks(pages[name], section)), (name, section)
    assert sorted(named) == sorted(ELSEWHERE)


def test_every_line_that_a_scenario_types_is_one_of_its_page() -> None:
    """Lines are identified by their beginnings, so a beginning may not name two of them."""
    for page, begun in typed_at_kubernetes().items():
        lines = set(commands(ROOT / page))
        named = {each: [line for line in lines if line.startswith(each)] for each in begun}
        assert {each: found for each, found in named.items() if len(found) != 1} == {}


def test_every_scenario_that_types_is_one_of_ci() -> None:
    """Otherwise the page and its effect could differ without notice."""
    scenarios = [file.read_text() for file in (ROOT / "e2e/scenarios").rglob("*.py")]
    typing = [text for text in scenarios if "Person(" in text]

    assert typing
    assert [text for text in typing if "pytest.mark.ci" not in text] == []


def test_every_line_that_a_scenario_types_is_a_whole_one() -> None:
    """A shell can read the line: one that continues in the next line would be incomplete."""
    typed = [
        line
        for page, begun in typed_at_kubernetes().items()
        for line in commands(ROOT / page)
        if line.startswith(tuple(begun))
    ]

    read = [
        subprocess.run(["bash", "-n", "-c", line], capture_output=True, text=True, check=False)
        for line in typed
    ]

    assert typed
    assert [each.stderr for each in read if each.returncode != 0 or each.stderr] == []


def test_the_notes_of_the_chart_are_the_tutorial_that_a_scenario_runs() -> None:
    """The notes name the release's namespace where the tutorial has the default one."""
    notes = (ROOT / "charts/orderlymq/templates/NOTES.txt").read_text().replace("{{ $in }}", "")
    told = re.findall(
        r"^  (kubectl (?:apply|wait|get) .+)$", notes.replace("\\\n", " "), re.MULTILINE
    )
    run = {" ".join(line.split()) for line in commands(TUTORIALS / "kubernetes.md")}

    assert len(told) == 3
    assert {" ".join(line.split()) for line in told} <= run
