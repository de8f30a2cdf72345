"""Properties that are read once agree with the plain reader, and change alone."""

from hypothesis import given
from hypothesis import strategies as st

from orderlymq_broker.core.properties import Properties, properties_of
from orderlymq_protocol.message.properties import decode_properties, remove_property

NAMES = ["DELAY", "KEYS", "TAGS", "UNIQ_KEY", "WAIT"]
TEXTS = st.lists(
    st.sampled_from(
        ["KEYS", "TAGS", "X_TAGS", "DELAY", "WAIT", "UNIQ_KEY", "\x01", "\x02", "é", "a b", ""]
    ),
    max_size=12,
).map("".join)


@given(TEXTS)
def test_values_are_found_as_the_plain_reader_finds_them(text: str) -> None:
    """Names inside names, repeated, empty and torn entries included."""
    assert Properties(text).by_name == decode_properties(text)


@given(TEXTS, st.sampled_from(NAMES))
def test_removing_leaves_every_other_character(text: str, name: str) -> None:
    """The same text as the plain removal gives, but for a separator at the end."""
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
    """Whether the text before ends with a separator or not, in the text and by name."""
    properties = Properties(text)

    properties.add("TAGS", "new")

    assert properties.by_name["TAGS"] == "new"
    assert properties_of(properties.text.encode()).by_name == properties.by_name


@given(TEXTS, TEXTS)
def test_joined_properties_are_those_of_the_joined_text(text: str, other: str) -> None:
    """By name as if the whole were read again; neither of the two changes when the whole does."""
    own, others = Properties(text), Properties(other)
    parted = f"{text}\x02" if text and not text.endswith("\x02") else text

    joined = own.before(others)

    assert joined.text == parted + other
    assert joined.by_name == decode_properties(parted + other)
    joined.drop(*NAMES)
    assert own.by_name == decode_properties(text)
    assert others.by_name == decode_properties(other)
