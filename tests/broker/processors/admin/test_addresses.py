"""White lists of addresses."""

import pytest

from orderlymq_broker.processors.admin.addresses import AddressPatternError, address_matcher


@pytest.mark.parametrize(
    ("pattern", "fits", "fits_not"),
    [
        ("10.0.0.1", ["10.0.0.1"], ["10.0.0.2", "10.0.0.10", "::1", "host"]),
        ("10.0.0.*", ["10.0.0.1", "10.0.0.255"], ["10.0.1.1"]),
        ("10.0.0.{1,2}", ["10.0.0.1", "10.0.0.2"], ["10.0.0.3", "10.0.0.12"]),
        ("10.1-5.*.*", ["10.1.9.9", "10.5.0.0"], ["10.0.9.9", "10.6.0.0"]),
        ("10.0.0.1,10.0.0.7", ["10.0.0.1", "10.0.0.7"], ["10.0.0.2"]),
        ("10.0.0.{1,2}, 192.168.0.*", ["10.0.0.2", "192.168.0.9"], ["10.0.0.3"]),
        ("*", ["10.0.0.1", "2001:db8::1", "host"], []),
        ("*.*.*.*", ["10.0.0.1"], []),
        ("", [], ["10.0.0.1", "host"]),
        ("2001:db8::1", ["2001:db8:0:0:0:0:0:1", "2001:db8::1%eth0"], ["2001:db8::2", "10.0.0.1"]),
        ("2001:db8:0:0:0:0:0:1-f", ["2001:db8::1", "2001:db8::f"], ["2001:db8::10"]),
        ("127.0.0.1", ["::ffff:127.0.0.1"], ["::1"]),
    ],
)
def test_a_pattern_fits_what_rocketmq_lets_pass(
    pattern: str, fits: list[str], fits_not: list[str]
) -> None:
    """Law: patterns have all forms of RocketMQ's white lists and no others."""
    matches = address_matcher(pattern)

    assert [host for host in fits if not matches(host)] == []
    assert [host for host in fits_not if matches(host)] == []


@pytest.mark.parametrize(
    "pattern",
    ["10.0.0", "10.0.0.256", "10.0.0.a", "10.0.5-1.*", "10.0.0.{1;2}", "host", "10.-1.*.*"],
)
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    """Law: a text that is no pattern is refused, so that a typing error neither opens nor closes access silently."""
    with pytest.raises(AddressPatternError):
        address_matcher(pattern)


def test_a_pattern_without_end_is_refused() -> None:
    """Law: a pattern's length is limited; one of 16 MB once blocked a broker's event loop."""
    assert address_matcher("111.1.1.1," * 400)("111.1.1.1")

    with pytest.raises(AddressPatternError, match="at most 4096"):
        address_matcher("1." * 8_000_000)
