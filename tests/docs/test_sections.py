"""Sections of guides about a laptop work, command by command."""

from pathlib import Path

import pytest

from tests.docs.runners import SECTIONS, each
from tests.docs.tutorial import UP, Reader

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(400)]


@pytest.mark.parametrize(("page", "section"), each(SECTIONS))
def test_what_a_guide_says_of_a_laptop_is_what_happens(
    page: Path, section: str, tmp_path: Path
) -> None:
    """The parts for Kubernetes are scenarios of e2e/, as far as one machine can run them."""
    Reader(tmp_path).follow(page, section=section, before=UP)
