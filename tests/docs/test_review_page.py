"""docs/evidence/review.md names existing tests."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "evidence" / "review.md"
_LINK: Final = re.compile(r"\[([^\]]+)\]\((\.\./\.\./tests/[^)]+\.py)\)")


def test_each_finding_has_tests_that_exist() -> None:
    """Law: each row names existing test files, and tests in them by words of their names."""
    for row in PAGE.read_text().splitlines()[7:]:
        links = _LINK.findall(row)
        assert links, row
        for words, path in links:
            source = (PAGE.parent / path).read_text()
            assert words.startswith("all of ") or f"def test_{words.replace(' ', '_')}(" in source
