"""A message before it has its place: its properties are read once, and its record is laid out, for any content."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from orderlymq_broker.core.entrybuilder import EntryBuilder
from orderlymq_broker.core.messagedraft import APPEND_SIZE, MessageDraft, Properties, properties_of
from orderlymq_broker.state.broker import BrokerState
from orderlymq_broker.state.records import Append, TopicSet
from orderlymq_broker.state.topics.topics import Topic
from orderlymq_protocol.message.properties import decode_properties, remove_property
from orderlymq_protocol.message.record import (
    PROPERTIES_BYTES_MAX,
    RecordError,
    RecordTemplate,
    body_crc,
    decode_record,
    encode_with_positions,
    pack_host,
)
from orderlymq_protocol.message.sysflag import BORN_HOST_IPV6, STORE_HOST_IPV6
from orderlymq_protocol.message.tags import tags_code
from tests.broker.store.memory import MemoryStore

BORN, OWN = pack_host("192.0.2.7", 4711), pack_host("192.0.2.100", 10911)
# A compiled class takes no value of another type.
NO_INT = pytest.mark.interpreted
BODY = b"paid"
NAMES = ["DELAY", "KEYS", "TAGS", "UNIQ_KEY", "WAIT"]
TEXTS = st.lists(
    st.sampled_from(
        ["KEYS", "TAGS", "X_TAGS", "DELAY", "WAIT", "UNIQ_KEY", "\x01", "\x02", "é", "a b", ""]
    ),
    max_size=12,
).map("".join)


def draft(
    *, name: str = "orders", properties: str = "", flag: int = 0, body_crc: int = -1
) -> MessageDraft:
    topic = Topic(3, TopicSet(name, 4, 4))
    return MessageDraft(topic, 2, BODY, Properties(properties), flag, 0, 1, BORN, body_crc=body_crc)


def laid_out(message: MessageDraft) -> bytes:
    message.lay_out(OWN)
    return bytes(message.stored)


def plain(name: str, properties: str = "") -> bytes:
    """Return the record of a message as the simple encoder makes it."""
    template = RecordTemplate(
        topic=name.encode(),
        queue_id=2,
        body=BODY,
        properties=properties.encode(),
        flag=0,
        sys_flag=0,
        born_timestamp=1,
        born_host=BORN,
        store_timestamp=0,
        store_host=OWN,
    )
    return encode_with_positions(template, 0, 0)


@pytest.mark.parametrize("size", [1, 127, 128, 255])
def test_a_topic_of_any_length_is_laid_out(size: int) -> None:
    """Law: a long topic name makes the second version of the record, as in RocketMQ's broker."""
    name = "T" * size

    assert laid_out(draft(name=name)) == plain(name)


@pytest.mark.parametrize("name", ["t", "T" * 200])
def test_properties_may_be_as_long_as_their_field_can_say(name: str) -> None:
    """Law: properties may have as many bytes as their length field allows;
    more are refused before the message enters the log.
    """
    longest = "p" * PROPERTIES_BYTES_MAX

    assert laid_out(draft(name=name, properties=longest)) == plain(name, longest)
    with pytest.raises(RecordError):
        laid_out(draft(name=name, properties=longest + "p"))


@pytest.mark.parametrize(
    ("known", "stored"), [(-1, body_crc(BODY)), (0, 0), (1, 1), (12345, 12345)]
)
def test_a_checksum_that_is_known_is_not_made_again(known: int, stored: int) -> None:
    """Law: a copy keeps the original's checksum, so that damage before the copy stays visible."""
    assert int.from_bytes(laid_out(draft(body_crc=known))[8:12], "big") == stored


def test_a_place_is_written_into_the_record_and_returned() -> None:
    """Law: the stored message and the returned record say the same place."""
    message = draft(properties="TAGS\x01paid\x02KEYS\x01k1 k2")
    message.unique_key, message.identity = "U", b"id"
    size = message.lay_out(OWN) - len("U") - len("k1 k2") - len(b"id") - APPEND_SIZE

    record = message.place(message.into, 7, 1_000, 5_000)

    assert record == Append(
        3, 2, 7, 1_000, size, message.code, 5_000, "U", "k1 k2", b"id", reply_queue=2
    )
    found = decode_record(bytes(message.stored))
    assert (found.queue_offset, found.physical_offset, found.store_timestamp) == (7, 1_000, 5_000)
    assert (found.born_host, found.store_host) == (("192.0.2.7", 4711), ("192.0.2.100", 10911))


def test_a_place_is_written_again_when_the_first_was_not_proposed() -> None:
    """Law: if the first place was not proposed, a new place replaces all of it."""
    message, other = draft(), draft()
    for each in (message, other):
        each.lay_out(OWN)
    message.place(message.into, 2**40, 2**41, 2**42)

    again = message.place(message.into, 1, 2, 3)

    assert again == other.place(other.into, 1, 2, 3)
    assert message.stored == other.stored


@hypothesis_settings(max_examples=40, deadline=None)
@given(
    flag=st.integers(-(2**31), 2**31 - 1), tags=st.sampled_from(["", "paid", "ü"]), to=st.booleans()
)
def test_a_copy_of_a_stored_message_is_the_message(flag: int, tags: str, to: bool) -> None:
    """Law: a copy to another queue keeps the body, the birth and the first store of the message."""
    properties = f"TAGS\x01{tags}\x02UNIQ_KEY\x01U\x02"
    first = draft(properties=properties, flag=flag)
    first.lay_out(OWN)
    original = decode_record(bytes(first.stored))
    other = Topic(4, TopicSet("later", 1, 1))

    copy = MessageDraft.of_stored(original, first.topic, 2, Properties(properties))
    if to:
        copy.wait_in(other, 0, 9)
    copy.lay_out(pack_host("198.51.100.1", 1))

    assert copy.unique_key == "U"
    if to:
        assert (copy.into, copy.into_queue, copy.code, copy.queue_id) == (other, 0, 9, 2)
    else:
        assert copy.stored == first.stored
        assert (copy.into, copy.into_queue, copy.code) == (first.topic, 2, first.code)


def test_a_builder_has_given_no_place_before_its_first_leadership() -> None:
    """Law: before its first leadership a builder has given no place and has nothing uncommitted."""
    entries = EntryBuilder(OWN, BrokerState(MemoryStore()))

    assert (entries.physical_next, entries.uncommitted) == (0, 0)


def test_a_copy_of_a_message_without_a_unique_key_has_none() -> None:
    """Law: a copy keeps the unique key, by which a repeat is known; without one it has none."""
    topic = Topic(3, TopicSet("orders", 4, 4))
    original = decode_record(laid_out(draft()))

    keys = [
        MessageDraft.of_stored(original, topic, 1, Properties(properties)).unique_key
        for properties in ("", "UNIQ_KEY\x01A1\x02")
    ]

    assert keys == ["", "A1"]


@given(TEXTS)
def test_values_are_found_as_the_plain_reader_finds_them(text: str) -> None:
    """Law: properties are read as the simple reader reads them, also for repeated,
    empty and torn entries and names inside names.
    """
    assert Properties(text).by_name == decode_properties(text)


@given(TEXTS, st.sampled_from(NAMES))
def test_removing_leaves_every_other_character(text: str, name: str) -> None:
    """Law: removing a property leaves the same text as the simple removal, except for a separator at the end."""
    properties = Properties(text)
    plain = remove_property(text.encode(), name).decode()

    properties.drop(name)

    assert name not in properties.by_name
    if name in decode_properties(text):
        assert properties.text.rstrip("\x02") == plain.rstrip("\x02")
    else:
        assert properties.text == text


@given(TEXTS)
def test_what_is_added_is_found(text: str) -> None:
    """Law: an added property is found by name and in the text, with or without a separator at the text's end."""
    properties = Properties(text)

    properties.add("TAGS", "new")

    assert properties.by_name["TAGS"] == "new"
    assert properties_of(properties.text.encode()).by_name == properties.by_name


@given(TEXTS, TEXTS)
def test_joined_properties_are_those_of_the_joined_text(text: str, other: str) -> None:
    """Law: joined properties equal those of the joined text; changes of the whole do not change its two parts."""
    own, others = Properties(text), Properties(other)
    parted = f"{text}\x02" if text and not text.endswith("\x02") else text

    joined = own.before(others)

    assert joined.text == parted + other
    assert joined.by_name == decode_properties(parted + other)
    joined.drop(*NAMES)
    assert own.by_name == decode_properties(text)
    assert others.by_name == decode_properties(other)


@pytest.mark.parametrize("name", ["TAGS", "KEYS", "X_TAGS", "nobody"])
@pytest.mark.parametrize(
    "text",
    [
        "",
        "TAGS\x01a\x02",
        "TAGS\x01a",
        "KEYS\x01k\x02TAGS\x01a\x02WAIT\x01w\x02",
        "KEYS\x01k\x02TAGS\x01a",
        "TAGS\x01a\x02KEYS\x01k\x02TAGS\x01b\x02WAIT\x01w\x02TAGS\x01c\x02",
        "X_TAGS\x01x\x02TAGS\x01a\x02KEYS\x01k\x02",
        "TAGS\x01a\x02X_TAGS\x01x\x02KEYS\x01k",
        "KEYS\x01TAGS\x01a\x02TAGS\x01b\x02WAIT\x01w\x02",
        "TAGS\x01\x02TAGS\x01a\x02KEYS\x01k\x02",
    ],
)
def test_what_is_dropped_is_gone_and_nothing_else(text: str, name: str) -> None:
    """Law: all entries of a dropped name go; all other characters stay."""
    properties, others = Properties(text), Properties(text).by_name
    there = others.pop(name, None) is not None

    properties.drop(name)

    expected = remove_property(text.encode(), name).decode() if there else text
    assert (properties.text, properties.by_name) == (expected, others)


def test_what_is_no_text_is_read_as_far_as_it_is() -> None:
    """Law: a property that is no UTF-8 does not hide the others."""
    found = properties_of(b"TAGS\x01\xff\x02KEYS\x01k\x02")

    assert found.by_name == {"TAGS": "\ufffd", "KEYS": "k"}


NATURAL_MAX, LONG_MAX = 2**31 - 1, 2**63 - 1


@pytest.mark.parametrize(
    ("reply_queue", "queue", "code"),
    [(0, 0, LONG_MAX), (NATURAL_MAX, NATURAL_MAX, -LONG_MAX - 1), (1, 2, 0)],
)
def test_numbers_as_large_as_their_fields_are_laid_out(
    reply_queue: int, queue: int, code: int
) -> None:
    """Law: numbers up to the size of their fields are kept: the answer's queue, the message's queue and its code."""
    message = draft().wait_in(Topic(4, TopicSet("later", 1, 1)), queue, code)
    message.queue_id = reply_queue
    message.lay_out(OWN)

    record = message.place(message.into, 7, 1_000, 5_000)

    assert (record.reply_queue, record.queue_id, record.tags_code) == (reply_queue, queue, code)


@pytest.mark.parametrize(
    ("reply_queue", "queue", "code"),
    [
        *((wrong, 0, 0) for wrong in (-1, NATURAL_MAX + 1)),
        *((0, wrong, 0) for wrong in (-1, NATURAL_MAX + 1)),
        *((0, 0, wrong) for wrong in (LONG_MAX + 1, -LONG_MAX - 2)),
        *(pytest.param(wrong, 0, 0, marks=NO_INT) for wrong in (True, "1")),
        *(pytest.param(0, wrong, 0, marks=NO_INT) for wrong in (True, "1")),
        *(pytest.param(0, 0, wrong, marks=NO_INT) for wrong in (True, "1")),
    ],
)
def test_a_number_that_is_none_is_refused_before_it_is_in_anybodys_way(
    reply_queue: Any, queue: Any, code: Any
) -> None:
    """Law: a number out of range is refused before it is proposed, because a record that holds it stops every replica."""
    message = draft().wait_in(Topic(4, TopicSet("later", 1, 1)), queue, code)
    message.queue_id = reply_queue

    with pytest.raises(ValueError, match="tags code"):
        message.lay_out(OWN)


@pytest.mark.parametrize(("delay_ms", "says"), [(-1, 9), (0, 5_000), (1, 5_001), (60_000, 65_000)])
def test_a_message_that_waits_says_until_when(delay_ms: int, says: int) -> None:
    """Law: a delayed message's code is its due time, counted from its store time; without a delay its code is kept."""
    message = draft().wait_in(Topic(4, TopicSet("later", 1, 1)), 0, 9)
    message.delay_ms = delay_ms
    message.lay_out(OWN)

    assert message.place(message.into, 7, 1_000, 5_000).tags_code == says


def test_tags_become_the_code_by_which_they_are_found() -> None:
    """Law: the tags code is the one that a subscribing client computes."""
    message = draft(properties="TAGS\x01paid\x02")
    message.lay_out(OWN)

    assert message.code == tags_code("paid") != 0


@pytest.mark.parametrize("born", ["192.0.2.7", "2001:db8::7"])
@pytest.mark.parametrize("store", ["192.0.2.100", "2001:db8::100"])
def test_each_host_may_be_of_either_kind(born: str, store: str) -> None:
    """Law: the producer's and the broker's address may be IPv4 or IPv6 independently."""
    message = draft()
    message.born_host = pack_host(born, 1)
    message.lay_out(pack_host(store, 2))
    message.place(message.into, 7, 1_000, 5_000)

    found = decode_record(bytes(message.stored))

    assert (found.born_host, found.store_host) == ((born, 1), (store, 2))
    assert (found.queue_offset, found.physical_offset, found.store_timestamp) == (7, 1_000, 5_000)


def test_the_flags_of_a_message_are_kept_but_for_the_kind_of_its_hosts() -> None:
    """Law: a message keeps its flags (a half message stays one), except for the address flags,
    which follow the real addresses.
    """
    message = draft()
    message.sys_flag = 0b100 | BORN_HOST_IPV6 | STORE_HOST_IPV6
    message.lay_out(OWN)

    assert decode_record(bytes(message.stored)).sys_flag == 0b100
