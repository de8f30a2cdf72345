"""
Sections of docs/explanation/benchmarks.md that other programs than the comparison measure; each stands between two comments.

Rule: who writes the page again leaves them as they are, and who writes one leaves the rest of the page.
"""

import re
from pathlib import Path


def put(path: Path, name: str, text: str) -> None:
    """Write a section in place of the one of this name, or at the end of the page."""
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
    """Return all sections of a page, as they stand in it."""
    page = path.read_text() if path.exists() else ""
    found = re.finditer(r"<!-- section (\S+) -->.*?<!-- end of \1 -->\n", page, re.DOTALL)
    return "\n".join(each.group() for each in found)


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- section {name} -->", f"<!-- end of {name} -->"
