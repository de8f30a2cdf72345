"""The tutorials and how-to guides that need nothing but this project work, command by command."""

from pathlib import Path

import pytest

from tests.docs.tutorial import HOWTO, TUTORIALS, Reader

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(150)]


@pytest.mark.parametrize("name", ["laptop", "python"])
def test_a_tutorial_does_what_it_says(name: str, tmp_path: Path) -> None:
    """Each command ends well, and prints what the page shows."""
    Reader(tmp_path).follow(TUTORIALS / f"{name}.md")


@pytest.mark.parametrize("name", ["faststream", "measure", "taskiq"])
def test_a_guide_does_what_it_says(name: str, tmp_path: Path) -> None:
    """As a tutorial; what only Kubernetes has is not on these pages."""
    Reader(tmp_path).follow(HOWTO / f"{name}.md")
