"""Message properties: they are read as Java reads them, and a change leaves all other bytes as they are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq_protocol.message import record
from orderlymq_protocol.message.properties import (
    PropertyError,
    append_property,
    decode_properties,
    encode_properties,
    find_property,
    origin_topic,
    remove_property,
)
from tests.protocol import golden

WORD = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=8
)
# Few letters make collisions likely: keys with the same end, values that look like keys, empty entries.
RAW = st.text("AB\x01\x02", max_size=30).map(str.encode)
KEY = st.text("AB", min_size=1, max_size=3)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", {}),
        (b"KEYS\x01k1", {"KEYS": "k1"}),
        (b"KEYS\x01k1 k2\x02TAGS\x01A\x02", {"KEYS": "k1 k2", "TAGS": "A"}),
        (b"\x02\x02a\x01b\x02\x02", {"a": "b"}),
        (b"a\x01\x02b\x01c", {"b": "c"}),
        (b"novalue\x02b\x01c", {"b": "c"}),
        (b"\x01v\x02b\x01c", {"b": "c"}),
        (b"a\x01b\x01c", {"a": "b\x01c"}),
        (b"a\x01first\x02a\x01last", {"a": "last"}),
        ("ключ\x01значение".encode(), {"ключ": "значение"}),
        (b"a\x01\xff\x02b\x01c", {"a": "\ufffd", "b": "c"}),
    ],
)
def test_properties_are_read_as_java_reads_them(raw: bytes, expected: dict[str, str]) -> None:
    """Entries without a separator, key or value are dropped; of equal keys the last one counts."""
    assert decode_properties(raw) == expected
    assert decode_properties(raw.decode(errors="replace")) == expected
    assert {key: find_property(raw, key) for key in expected} == expected


def test_golden_properties_are_found_one_by_one() -> None:
    """The properties come from captured records, with and without the trailing separator."""
    seen = set()
    for frame in golden.frames():
        if frame.body[4:8] != b"\xda\xa3\x20\xa7":
            continue
        for message in record.iter_records(frame.body):
            found = decode_properties(message.properties)
            seen |= set(found)
            for key, value in found.items():
                assert find_property(message.properties, key) == value
                assert find_property(message.properties, key.encode()) == value
                assert find_property(message.properties, key[1:]) is None
    assert {"KEYS", "TAGS", "UNIQ_KEY", "CLUSTER", "REAL_TOPIC"} <= seen


@given(st.dictionaries(WORD, WORD))
def test_properties_survive(properties: dict[str, str]) -> None:
    """Reading gives what was written."""
    raw = encode_properties(properties)

    assert decode_properties(raw) == properties
    assert raw == b"" or raw.endswith(b"\x02")


def test_empty_values_are_left_out() -> None:
    """Empty values are not written, because every reader would drop them."""
    assert encode_properties({"a": "", "b": "c"}) == b"b\x01c\x02"


@pytest.mark.parametrize(
    ("key", "value"),
    [("", "v"), ("a\x01", "v"), ("a\x02", "v"), ("a", "v\x01"), ("a", "\x02v"), ("a", "\ud800")],
)
def test_what_would_change_other_properties_is_not_written(key: str, value: str) -> None:
    """A separator inside a value could add another property."""
    with pytest.raises(PropertyError):
        encode_properties({key: value})
    with pytest.raises(PropertyError):
        append_property(b"x\x01y", key, value)


@given(RAW, KEY)
def test_finding_one_is_reading_all_and_picking(raw: bytes, key: str) -> None:
    """The fast search finds the same value as reading all properties, despite suffixes, look-alikes and empty entries."""
    assert find_property(raw, key) == decode_properties(raw).get(key)


@given(RAW, KEY, WORD)
def test_appending_adds_one_property_and_changes_no_other(raw: bytes, key: str, value: str) -> None:
    """If the trailing separator is missing, it is added first, so that the last entry keeps its value."""
    appended = append_property(raw, key, value)

    assert decode_properties(appended) == decode_properties(raw) | {key: value}
    assert appended.startswith(raw)


@given(RAW, KEY)
def test_removing_takes_one_property_and_changes_no_other(raw: bytes, key: str) -> None:
    """All entries with this name are removed; the bytes of the others stay."""
    removed = remove_property(raw, key)

    expected = decode_properties(raw)
    expected.pop(key, None)
    assert decode_properties(removed) == expected
    kept = [e for e in raw.split(b"\x02") if not e.startswith(key.encode() + b"\x01")]
    assert removed == b"\x02".join(kept)


@given(st.binary(max_size=60))
def test_arbitrary_bytes_raise_nothing(raw: bytes) -> None:
    """A broker must not fail because of the properties of a client's message."""
    properties = decode_properties(raw)

    assert remove_property(raw, "K") is not None
    for key in properties:
        assert "\x02" not in key


@pytest.mark.parametrize(
    ("said", "topic"),
    [
        ({"RETRY_TOPIC": "orders"}, "orders"),
        ({"RETRY_TOPIC": "%RETRY%g", "DLQ_ORIGIN_TOPIC": "orders"}, "orders"),
        ({}, ""),
    ],
)
def test_a_dead_letter_names_its_topic_or_none(said: dict[str, str], topic: str) -> None:
    """Return the topic that a dead letter came from, or an empty text: programs that send it again do not guess."""
    assert origin_topic(said) == topic
