"""Names of topics and consumer groups."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq_protocol.names import (
    InvalidName,
    check_group_name,
    check_topic_name,
    dlq_topic,
    is_dlq_topic,
    is_retry_topic,
    is_system_group,
    is_system_topic,
    reply_topic,
    retry_topic,
)


@pytest.mark.parametrize("name", ["orders", "%RETRY%g", "a|b", "A-1_z", "t" * 127])
def test_ordinary_names_pass(name: str) -> None:
    """Letters, digits, percent, bar, underscore and hyphen are allowed."""
    check_topic_name(name)
    check_group_name(name)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "..", "a\n", "a\x00", "é", "名", "a.b", "a:b"])
def test_other_characters_are_refused(name: str) -> None:
    """Refused are, above all, path characters and line ends."""
    with pytest.raises(InvalidName):
        check_topic_name(name)
    with pytest.raises(InvalidName):
        check_group_name(name)


def test_topics_end_at_127_and_groups_at_255_characters() -> None:
    """RocketMQ's validators have the same limits."""
    check_group_name("g" * 255)

    with pytest.raises(InvalidName, match="128"):
        check_topic_name("t" * 128)
    with pytest.raises(InvalidName, match="256"):
        check_group_name("g" * 256)


@given(st.text(max_size=20))
def test_what_passes_is_plain_ascii(name: str) -> None:
    """An accepted name is safe in a path, a key and a label."""
    try:
        check_topic_name(name)
    except InvalidName:
        return
    assert name.isascii()
    assert not set(name) & set("/\\. \n\t\x00:;")


def test_topics_of_a_group_are_derived_from_its_name() -> None:
    """Clients derive the same topic names from a consumer group."""
    assert [retry_topic("g"), dlq_topic("g"), reply_topic("c")] == [
        "%RETRY%g",
        "%DLQ%g",
        "c_REPLY_TOPIC",
    ]
    assert is_retry_topic("%RETRY%g")
    assert is_dlq_topic("%DLQ%g")
    assert not is_retry_topic("%DLQ%g")
    assert not is_dlq_topic("g%DLQ%")


def test_system_names_are_known() -> None:
    """Tools hide system topics, and clients may not delete them."""
    for topic in ("SCHEDULE_TOPIC_XXXX", "TBW102", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_x"):
        assert is_system_topic(topic)
    for group in ("TOOLS_CONSUMER", "CID_RMQ_SYS_TRANS"):
        assert is_system_group(group)
    assert not is_system_topic("orders")
    assert not is_system_group("billing")
