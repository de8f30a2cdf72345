"""Waiting until disks are idle."""

from collections.abc import Iterator

import pytest
from bench.rest import rested


def looks(*sizes: int) -> Iterator[int]:
    yield from sizes


def test_a_disk_rests_when_some_looks_in_a_row_are_alike() -> None:
    """A compaction that begins after a pause is waited for, too."""
    left = looks(100_000, 100_000, 100_000, 50_000, 50_010, 50_000, 50_020, 7)

    assert rested(lambda: next(left), every_s=0.0, limit_s=60.0) == 50_020
    assert next(left) == 7


def test_a_disk_that_never_rests_is_said_to() -> None:
    """A measurement on a busy disk would count earlier work."""
    sizes = iter(range(1, 1_000_000, 100))

    with pytest.raises(TimeoutError, match="still grows or shrinks"):
        rested(lambda: next(sizes), every_s=0.001, limit_s=0.05)
