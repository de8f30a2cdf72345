"""The how-to guides that need only this project work, command by command."""

from pathlib import Path

import pytest

from tests.docs.runners import GUIDES, each
from tests.docs.tutorial import Reader

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(400)]


@pytest.mark.parametrize(("page", "section"), each(GUIDES))
def test_a_guide_does_what_it_says(page: Path, section: str, tmp_path: Path) -> None:
    """As in a tutorial, the guide makes its own cluster."""
    Reader(tmp_path).follow(page, section=section)
