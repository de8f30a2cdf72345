"""The fast scan of properties agrees with the plain one."""

from hypothesis import given
from hypothesis import strategies as st

from orderlymq_broker.processors.scanning import (
    DELAY,
    KEYS,
    TAGS,
    UNIQ_KEY,
    WAIT,
    PropertyName,
    extended,
    find_text,
    without,
)
from orderlymq_protocol.message.properties import decode_properties, remove_property

NAMES = [DELAY, KEYS, TAGS, UNIQ_KEY, WAIT]
TEXTS = st.lists(
    st.sampled_from(
        ["KEYS", "TAGS", "X_TAGS", "DELAY", "WAIT", "UNIQ_KEY", "\x01", "\x02", "é", "a b", ""]
    ),
    max_size=12,
).map("".join)


@given(TEXTS, st.sampled_from(NAMES))
def test_a_value_is_found_as_if_all_were_read(text: str, name: PropertyName) -> None:
    """Names inside names, repeated, empty and torn entries included."""
    assert find_text(text, name) == decode_properties(text).get(name.name)


@given(TEXTS, st.sampled_from(NAMES))
def test_removing_leaves_every_other_character(text: str, name: PropertyName) -> None:
    """The same text as the plain removal gives, but for a separator at the end."""
    plain = remove_property(text.encode(), name.name).decode()

    assert without(text, name).rstrip("\x02") == plain.rstrip("\x02")


@given(TEXTS)
def test_what_is_added_is_found(text: str) -> None:
    """Whether the text before ends with a separator or not."""
    assert find_text(extended(text, "TAGS", "new"), TAGS) == "new"
