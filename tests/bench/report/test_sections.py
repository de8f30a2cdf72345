"""Sections of the page of results that different programs write."""

from pathlib import Path

from bench.report.sections import kept, put


def test_a_section_takes_the_place_of_the_one_before_and_the_rest_stays(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\nbefore\n")

    put(page, "one", "a\\1 first")
    put(page, "two", "b")
    put(page, "one", "a\\2 second\n")

    assert page.read_text() == (
        "# Page\n\nbefore\n\n"
        "<!-- section one -->\na\\2 second\n<!-- end of one -->\n\n"
        "<!-- section two -->\nb\n<!-- end of two -->\n"
    )
    assert kept(page) == page.read_text().removeprefix("# Page\n\nbefore\n\n")


def test_a_page_that_is_not_there_has_no_sections(tmp_path: Path) -> None:
    assert kept(tmp_path / "page.md") == ""
