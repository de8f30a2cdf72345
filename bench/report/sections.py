"""
Sections of docs/explanation/benchmarks.md that programs other than the comparison write, each between two comments.

Rules: rewriting the page keeps these sections, and rewriting one section keeps the rest of the page. A program that
has measured less than the page shows does not write it.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path


def put(path: Path, name: str, text: str) -> None:
    """Replace the section of this name, or append it to the page."""
    page = path.read_text() if path.exists() else ""
    begin, end = _marks(name)
    section = f"{begin}\n{text.strip()}\n{end}\n"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}\n", re.DOTALL)
    if pattern.search(page):
        page = pattern.sub(lambda _: section, page)
    else:
        page = f"{page.rstrip()}\n\n{section}".lstrip()
    path.write_text(page)


def kept(path: Path) -> str:
    """Return all sections of a page unchanged."""
    page = path.read_text() if path.exists() else ""
    found = re.finditer(r"<!-- section (\S+) -->.*?<!-- end of \1 -->\n", page, re.DOTALL)
    return "\n".join(each.group() for each in found)


def rows(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the rows of all tables of a page: the heading above the table, and the cells."""
    heading = ""
    for line in path.read_text().splitlines() if path.exists() else ():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif line.startswith("| "):
            yield heading, [cell.strip() for cell in line.strip("| ").split(" | ")]


def refusal(path: Path, lacking: Sequence[str]) -> str:
    """Return the reason why a page is not written."""
    return (
        f"{path} is not written: it has rows that these results lack, and would lose them: {', '.join(lacking)}."
        " Measure them at this commit too, or leave out --write"
    )


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- section {name} -->", f"<!-- end of {name} -->"
