"""The handle of a timer message, byte for byte as RocketMQ 5.3.1 writes it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq_protocol.message.recallhandle import InvalidHandle, RecallHandle

# RecallMessageHandle.HandleV1.buildHandle("topic", "broker-0", "1700000000001", "7F0000012A"), worked out by hand.
KNOWN = "djEgdG9waWMgYnJva2VyLTAgMTcwMDAwMDAwMDAwMSA3RjAwMDAwMTJB"

_WORDS = st.text("abcXYZ019%_-|", min_size=1, max_size=40)


def test_a_handle_is_rocketmqs() -> None:
    """A handle is version, topic, broker, time and unique key, separated by blanks, in URL-safe base64."""
    handle = RecallHandle("topic", "broker-0", 1_700_000_000_001, "7F0000012A")

    assert handle.encode() == KNOWN
    assert RecallHandle.decode(KNOWN) == handle


@given(_WORDS, _WORDS, st.integers(0, 2**62), st.text("abc 0", min_size=1, max_size=40))
def test_every_handle_survives(topic: str, broker: str, due_ms: int, key: str) -> None:
    """A handle is read with and without padding; Java's decoder needs none."""
    handle = RecallHandle(topic, broker, due_ms, key)

    assert RecallHandle.decode(handle.encode()) == handle
    assert RecallHandle.decode(handle.encode().rstrip("=")) == handle


@pytest.mark.parametrize(
    "text",
    [
        "",
        "====",
        "no handle at all",
        "djIgdCBiIDEgaw==",  # v2
        "djEgdCBiIDE=",  # without an id
        "djEgdCBiIHNvb24gaw==",  # a time that is not a number
        "/w==",
        "A" * 5_000,
    ],
)
def test_what_is_no_handle_is_refused_in_rocketmqs_words(text: str) -> None:
    """Every invalid handle gets the same answer as from RocketMQ, and nothing else happens."""
    with pytest.raises(InvalidHandle, match="recall handle is invalid"):
        RecallHandle.decode(text)
