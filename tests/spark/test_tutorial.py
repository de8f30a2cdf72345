"""The tutorial for Spark works, command by command."""

from pathlib import Path

import pytest

from tests.docs.tutorial import TUTORIALS, Reader


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_spark_tutorial_does_what_it_says(tmp_path: Path) -> None:
    """The archive holds each message once and in order."""
    Reader(tmp_path).follow(TUTORIALS / "spark.md")
