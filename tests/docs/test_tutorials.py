"""The tutorials and how-to guides that need nothing but this project work, command by command."""

from pathlib import Path

import pytest

from tests.docs.tutorial import HOWTO, TUTORIALS, Reader

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(150)]


@pytest.mark.parametrize("name", ["laptop", "python"])
def test_a_tutorial_does_what_it_says(name: str, tmp_path: Path) -> None:
    """Each command ends well, and prints what the page shows."""
    Reader(tmp_path).follow(TUTORIALS / f"{name}.md")


@pytest.mark.long
@pytest.mark.parametrize("name", ["faststream", "measure", "taskiq"])
def test_a_guide_does_what_it_says(name: str, tmp_path: Path) -> None:
    """As a tutorial; what only Kubernetes has is not on these pages."""
    Reader(tmp_path).follow(HOWTO / f"{name}.md")


UP = "orderlymq up -f examples/quickstart.yaml --detach"


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "section"),
    [
        ("backup", "Try it"),
        ("dead-letters", "Move one dead letter"),
        ("delays", "Try it"),
        ("filters", "Try it"),
        ("plan", "On a laptop"),
        ("replace-node", "On a laptop"),
        ("traces", ""),
        ("upgrade", "On a laptop"),
    ],
)
def test_what_a_guide_says_of_a_laptop_is_what_happens(
    name: str, section: str, tmp_path: Path
) -> None:
    """The parts for Kubernetes are scenarios of e2e/, as far as they can be played on one machine."""
    Reader(tmp_path).follow(HOWTO / f"{name}.md", section=section, before=UP)
