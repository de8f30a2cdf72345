"""Volumes grow before they are full: in steps, all of a group alike, never above the limit, never back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq_operator.plan.volumes import Volume, is_exhausted, size_text, wanted_size
from orderlymq_operator.resources.autogrow import AutoGrow

GI = 2**30
GROWTH = AutoGrow.model_validate({"threshold": 80, "step": "10Gi", "limit": "50Gi"})


def volume(size: int, used: float | None, capacity: int | None = None) -> Volume:
    return Volume(size * GI, (size if capacity is None else capacity) * GI, used)


@pytest.mark.parametrize(
    ("volumes", "wanted"),
    [
        ([volume(20, 0.5)] * 3, 20),
        ([volume(20, 0.5), volume(20, 0.8), volume(20, None)], 30),
        # One of them has not grown yet, or was not asked to.
        ([volume(30, 0.9), volume(30, 0.9, capacity=20)], 30),
        ([volume(30, 0.9), volume(20, 0.9)], 30),
        ([volume(45, 0.9)] * 3, 50),
        ([volume(50, 0.99)] * 3, 50),
        # A person made them larger than the limit.
        ([volume(70, 0.99)] * 3, 70),
        ([], 20),
    ],
)
def test_a_group_grows_by_one_step_when_one_of_its_disks_fills(
    volumes: list[Volume], wanted: int
) -> None:
    """Law: a group's volumes grow by one step when one disk fills, and again only when each has its size."""
    assert wanted_size(20 * GI, GROWTH, volumes) == wanted * GI


def test_without_the_wish_only_the_manifest_counts() -> None:
    """Law: without automatic growth only the manifest's size counts, however full the disks are."""
    assert wanted_size(20 * GI, None, [volume(30, 0.99)]) == 20 * GI


def test_a_group_at_its_limit_says_so_only_while_it_is_full() -> None:
    """Law: a group at its limit says so only while it is full."""
    assert is_exhausted(20 * GI, GROWTH, [volume(50, 0.9)])
    assert not is_exhausted(20 * GI, GROWTH, [volume(50, 0.7)])
    assert not is_exhausted(20 * GI, GROWTH, [volume(30, 0.9)])


volumes_of_any_kind = st.lists(
    st.builds(
        Volume,
        st.integers(1, 100 * GI),
        st.integers(0, 100 * GI),
        st.none() | st.floats(0, 1),
    ),
    max_size=5,
)


@given(st.integers(1, 100 * GI), volumes_of_any_kind)
def test_nothing_shrinks_and_nothing_passes_the_limit_by_itself(
    size: int, volumes: list[Volume]
) -> None:
    """Law: no size shrinks or passes the limit by itself, and a second look at granted sizes wants no more."""
    wanted = wanted_size(size, GROWTH, volumes)
    asked = max([size, *(each.requested for each in volumes)])

    assert asked <= wanted <= max(asked, GROWTH.limit.size_bytes)
    assert wanted - asked <= GROWTH.step.size_bytes
    granted = [Volume(wanted, wanted, 0.0) for _ in volumes]
    assert wanted_size(size, GROWTH, granted) == max(wanted if volumes else 0, size)


def test_sizes_are_written_with_the_greatest_unit_that_fits() -> None:
    """Law: a size is written with the largest unit that fits."""
    assert [size_text(each) for each in (30 * GI, 2048 * GI, 1536 * 2**20, 1000)] == [
        "30Gi",
        "2Ti",
        "1536Mi",
        "1000",
    ]
