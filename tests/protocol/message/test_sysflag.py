"""The bits of the two sysFlag numbers."""

from hypothesis import given
from hypothesis import strategies as st

from orderlymq_protocol.message import sysflag
from tests.protocol import golden


def test_the_pull_flags_of_real_clients() -> None:
    """A push consumer sends 2 and 3, a pull consumer 4 and 6, a lite pull consumer 22 and 23."""
    flags = [
        sysflag.pull_flag(commit_offset=False, suspend=True, subscription=False),
        sysflag.pull_flag(commit_offset=True, suspend=True, subscription=False),
        sysflag.pull_flag(commit_offset=False, suspend=False, subscription=True),
        sysflag.pull_flag(commit_offset=False, suspend=True, subscription=True),
        sysflag.pull_flag(commit_offset=False, suspend=True, subscription=True, lite=True),
        sysflag.pull_flag(commit_offset=True, suspend=True, subscription=True, lite=True),
    ]

    assert flags == [2, 3, 4, 6, 22, 23]
    seen = {
        int(frame.fields["extFields"]["sysFlag"])
        for frame in golden.frames()
        if frame.is_request and frame.code in (11, 361)
    }
    assert seen <= set(flags)


def test_the_marks_of_compressed_bodies() -> None:
    """Current Java clients send 769 for zlib."""
    assert sysflag.with_compression(0, 3) == 769
    assert sysflag.compression_type(769) == 3
    assert sysflag.without_compression(769 | 4) == 4


@given(st.integers(0, 2**31 - 1), st.sampled_from([0, 4, 8, 12]), st.integers(0, 7))
def test_setting_one_field_leaves_the_others(flag: int, state: int, kind: int) -> None:
    """Transaction state, compression and host bits are stored in one number."""
    changed = sysflag.with_compression(sysflag.with_transaction_state(flag, state), kind)

    assert sysflag.transaction_state(changed) == state
    assert sysflag.compression_type(changed) == kind
    others = ~(sysflag.TRANSACTION_MASK | sysflag.COMPRESSION_TYPE_MASK | sysflag.COMPRESSED)
    assert changed & others == flag & others
