"""The page that compares other operators: each row names an existing test."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]

PAGE: Final = ROOT / "docs" / "explanation" / "operators.md"
_TEST: Final = re.compile(r"`((?:tests|e2e)/[\w/]+\.py)`")


def test_each_row_has_its_test() -> None:
    """Law: every claim of the page has a test."""
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")][1:]
    assert rows
    for row in rows:
        named = _TEST.findall(row)
        assert named, f"no test: {row}"
        assert all((ROOT / name).is_file() for name in named), f"no such file: {row}"
