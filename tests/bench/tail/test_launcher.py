"""The timestamps of real brokers."""

from pathlib import Path

import pytest
from bench.tail.__main__ import run, section


@pytest.mark.cluster
def test_every_send_has_all_its_stamps(tmp_path: Path) -> None:
    """The launcher hooks into the broker between loop and I/O; after a change of that structure it would record nothing."""
    stamps, leader = run(tmp_path, 20)

    text = section(tmp_path, stamps, leader, 5)
    assert "0 of 20 sends lack a stamp." in text
    assert list(tmp_path.glob("node-*/**/LOG"))
