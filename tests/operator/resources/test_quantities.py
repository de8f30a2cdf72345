import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from orderlymq_operator.resources.quantities import Duration, Quantity, quantity

_SIZES = TypeAdapter(Quantity)
_TIMES = TypeAdapter(Duration)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("1", 1), ("5k", 5000), ("20Gi", 20 << 30), ("3M", 3_000_000), ("2Pi", 2 << 50)],
)
def test_a_size_means_what_kubernetes_means(text: str, size_bytes: int) -> None:
    """Law: sizes are as in Kubernetes: binary suffixes are powers of 1024, decimal ones of 1000."""
    size = _SIZES.validate_python(text)

    assert (size, size.size_bytes) == (text, size_bytes)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("72h", 259_200_000), ("500ms", 500), ("1h30m", 5_400_000), ("15m", 900_000), ("2s", 2000)],
)
def test_a_time_adds_its_parts(text: str, milliseconds: int) -> None:
    """Law: parts of a time are added; `m` is a minute and `ms` a millisecond."""
    time = _TIMES.validate_python(text)

    assert (time, time.milliseconds) == (text, milliseconds)


@pytest.mark.parametrize("text", ["", "20GB", "-1Gi", "1.5Gi", "Gi", "0", "20 Gi", "1" * 40])
def test_what_is_no_size_is_refused(text: str) -> None:
    """Law: a size that Kubernetes would read otherwise, or not at all, is refused."""
    with pytest.raises(ValidationError):
        _SIZES.validate_python(text)


@pytest.mark.parametrize("text", ["", "72", "3d", "h", "-1h", "0s", "1h 30m"])
def test_what_is_no_time_is_refused(text: str) -> None:
    """Law: what is not a time is refused; days too, because CEL's `duration` does not know them."""
    with pytest.raises(ValidationError):
        _TIMES.validate_python(text)


@given(st.integers(1, 999), st.sampled_from(["k", "M", "G", "Ki", "Mi", "Gi", "Ti"]))
def test_a_larger_number_is_a_larger_size(number: int, unit: str) -> None:
    """Law: within one unit a larger number is a larger size, so shrinking can be found."""
    smaller, larger = Quantity(f"{number}{unit}"), Quantity(f"{number + 1}{unit}")

    assert smaller.size_bytes < larger.size_bytes


def test_a_quantity_is_exact() -> None:
    """Law: quantities are exact: two sizes that differ by one byte differ."""
    assert quantity("9007199254740993") != quantity("9007199254740992")
    assert quantity("not one") is None
