"""The tutorial for Java works, command by command."""

from pathlib import Path

import pytest

from tests.clients.programs import missing
from tests.docs.tutorial import TUTORIALS, Reader


@pytest.mark.java
@pytest.mark.timeout(300)
def test_the_java_tutorial_does_what_it_says(tmp_path: Path) -> None:
    """Maven builds the program of the page, and its output is that on the page."""
    reason = missing("java", "mvn")
    if reason:
        pytest.skip(reason)

    Reader(tmp_path).follow(TUTORIALS / "java.md")
