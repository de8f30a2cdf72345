"""
docs/reference/tables.md has every column that a pipeline writes, with its type from the code.

`python -m tests.docs.test_tables_page` writes the page again.
"""

from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "tables.md"


def page() -> str:
    """Return the whole page."""
    from tests.docs import tables  # noqa: PLC0415 every worker would load Spark, Arrow and pandas

    return tables.page()


def test_the_page_is_what_the_code_writes() -> None:
    """If this fails, run `python -m tests.docs.test_tables_page`."""
    assert PAGE.read_text() == page()


if __name__ == "__main__":
    PAGE.write_text(page())
