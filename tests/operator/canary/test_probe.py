"""The body of a probe identifies its message and shows if it was altered."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq_operator.canary.probe import AlteredError, Probe, decode
from orderlymq_operator.canary.troubles import Lane

PROBE = Probe("0123456789abcdef", Lane("demo-0", 1), 4711)


def test_a_body_is_read_as_it_was_written() -> None:
    assert decode(PROBE.encode()) == PROBE


@given(st.integers(0, len(PROBE.encode()) - 1), st.integers(1, 255))
def test_a_byte_that_was_altered_is_seen(place: int, change: int) -> None:
    body = bytearray(PROBE.encode())
    body[place] ^= change

    try:
        found = decode(bytes(body))
    except AlteredError:
        return
    assert found == PROBE  # White space only.


@given(st.binary())
def test_any_other_body_is_refused(body: bytes) -> None:
    with pytest.raises(AlteredError):
        decode(body)
