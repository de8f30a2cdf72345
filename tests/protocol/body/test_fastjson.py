"""JSON as fastjson writes it: both forms are read, and the form that old clients accept is written."""

import json
from collections.abc import Mapping
from types import MappingProxyType

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orderlymq_protocol.body.clients import ProducerData
from orderlymq_protocol.body.fastjson import DEPTH_MAX, JsonError, dumps, loads
from orderlymq_protocol.body.messagequeue import MessageQueue
from tests.protocol import golden

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
QUEUES = st.builds(MessageQueue, TEXT, TEXT, st.integers(-1, 2**31 - 1))
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(TEXT, inner, max_size=4)
        | st.dictionaries(QUEUES, inner, max_size=3)
    ),
    max_leaves=12,
)


# -- reading -----------------------------------------------------------------------------------------


def test_queues_as_keys_are_read() -> None:
    """The form that every Java broker and client uses for maps by queue."""
    text = (
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{"maxOffset":6},'
        b'{"topic":"T","queueId":1,"brokerName":"b"}:{"maxOffset":7}}}'
    )

    assert loads(text) == {
        "offsetTable": {
            MessageQueue("T", "b", 0): {"maxOffset": 6},
            MessageQueue("T", "b", 1): {"maxOffset": 7},
        }
    }


def test_number_keys_are_read_as_text() -> None:
    """A broker id is the same key, quoted or not."""
    assert loads(b'{0:"x",-1:"y"}') == loads(b'{"0":"x","-1":"y"}') == {"0": "x", "-1": "y"}


def test_objects_that_are_no_queues_become_their_text_as_keys() -> None:
    """An object that is not a queue becomes a key as text: nothing is lost, and the key is hashable."""
    assert loads(b'{{"a":1,"b":null}:2,{}:3}') == {'{"a":1,"b":null}': 2, "{}": 3}


def test_everything_else_of_json_is_read_by_the_tolerant_parser_too() -> None:
    """One key in fastjson's form must not change how the rest of the text is read."""
    text = (
        ' {{}:[ ] , 1 : [1, -2.5e3 ,true,false,null,"\\u00e9\\n\\"",{"a":{}}],'
        '"big":9223372036854775807, "huge":123456789012345678901234567890}\n'
    )

    assert loads(text.encode()) == {
        "{}": [],
        "1": [1, -2500.0, True, False, None, 'é\n"', {"a": {}}],
        "big": 9223372036854775807,
        "huge": 1.2345678901234568e29,
    }


@pytest.mark.parametrize("number", [2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**25])
def test_large_numbers_are_read_alike_by_both_parsers(number: int) -> None:
    """Both parsers read integers of up to 64 bits as integers and larger ones as floats, in values and in keys."""
    standard = loads(b'{"a":%d}' % number)
    tolerant = loads(b'{{"k":%d}:0,"a":%d}' % (number, number))

    assert repr(tolerant["a"]) == repr(standard["a"])
    assert list(tolerant) == [dumps({"k": standard["a"]}).decode(), "a"]


def test_every_golden_json_body_is_read() -> None:
    """All captured JSON bodies are read, although some of them are not standard JSON."""
    odd = 0
    for frame in golden.frames():
        if not frame.body.startswith(b"{"):
            continue
        value = loads(frame.body)
        try:
            standard = orjson.loads(frame.body)
        except orjson.JSONDecodeError:
            odd += 1
        else:
            assert value == standard
        assert loads(dumps(value)) == value
    assert odd >= 10


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" ",
        b"{",
        b"{{",
        b"{{}",
        b"{{}:}",
        b"{{}:1",
        b"{{}:1,}",
        b"{{}:1}x",
        b"{{}:1}{{}:1}",
        b'{{"a":[]}:1}',
        b'{{"a":{}}:1}',
        b'{{{"a":1}:2}:3}',
        b"{{}:tru}",
        b"{{}:nul",
        b"{{}:01x}",
        b"{{}:-}",
        b"{{}:.5}",
        b"{{}:1e999}",
        b'{{}:"}',
        b'{{}:"\\x"}',
        b'{{}:"\\ud800"}',
        b'{{}:"\x01"}',
        b'{{}:"\xff"}',
        b"{{}:[1,]}",
        b"{{}:[1 2]}",
        b"{a:1}",
        b"{1.5:1}",
        b"{'a':1}",
    ],
)
def test_text_that_nobody_writes_is_refused(text: bytes) -> None:
    """The tolerant parser accepts two further forms of keys and no other deviation from JSON."""
    with pytest.raises(JsonError):
        loads(text)


@pytest.mark.parametrize(
    "text",
    [
        b"{{}:" + b"[" * 100_000,
        b"{{}:" + b'{"a":' * 100_000,
        b"{" * 100_000,
        b"{{}:" + b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1) + b"}",
    ],
    ids=["arrays", "objects", "keys", "one too many"],
)
def test_depth_is_bounded(text: bytes) -> None:
    """Deeply nested text of an attacker costs neither stack nor time."""
    with pytest.raises(JsonError):
        loads(text)


@pytest.mark.parametrize(
    "part",
    [
        b',{"a",',
        b'{{"a"',
        b'"\\"',
        b'\\"',
        b",{1",
        b"{ ",
        b"{{} ",
        b'{"a\\"',
        b",1 ",
        b",{}",
        b'{{"a":"',
        b"{{}:",
    ],
)
def test_text_that_is_nearly_right_is_read_in_linear_time(part: bytes) -> None:
    """A parser that started its search again at each part would take hours for a megabyte."""
    for text in (part * (1_000_000 // len(part)), b"{{}:" + part * (1_000_000 // len(part)) + b"}"):
        with pytest.raises(JsonError):
            loads(text)


@given(st.binary(max_size=100) | st.text('{}[]":,0-1.eE\\tfnul ', max_size=60).map(str.encode))
def test_arbitrary_text_raises_nothing_but_json_errors(text: bytes) -> None:
    """Strangers can send any text as a body."""
    try:
        loads(text)
    except JsonError:
        return


@settings(max_examples=200)
@given(
    st.integers(0, 510),
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=3),
)
def test_mutated_golden_bodies_raise_nothing_but_json_errors(
    index: int, mutations: list[tuple[int, int]]
) -> None:
    """The bodies are real ones with flipped bytes."""
    data = bytearray(golden.frames()[index].body or b"{}")
    for place, value in mutations:
        data[place % len(data)] = value
    try:
        loads(bytes(data))
    except JsonError:
        return


# -- writing -----------------------------------------------------------------------------------------


def test_queues_as_keys_are_written_raw() -> None:
    """4.3 clients accept only this form, and blanks would break the Go client."""
    queue = MessageQueue("T", "b", 0)

    assert dumps({"offsetTable": {queue: {"maxOffset": 6}, MessageQueue("T", "b", 1): 7}}) == (
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{"maxOffset":6},'
        b'{"brokerName":"b","queueId":1,"topic":"T"}:7}}'
    )


def test_golden_reset_bodies_are_written_byte_by_byte() -> None:
    """The bodies of 220 and 222 are maps from queue to offset."""
    bodies = golden.bodies(220, "request") + golden.bodies(222, "response")
    assert len(bodies) >= 3
    for body in bodies:
        assert dumps(loads(body)) == body


def test_number_keys_are_quoted() -> None:
    """Quoted keys are accepted by every client."""
    assert (
        dumps({"brokerAddrs": {0: "ip:1", 1: "ip:2"}}) == b'{"brokerAddrs":{"0":"ip:1","1":"ip:2"}}'
    )
    queue = MessageQueue("T", "b", 0)
    assert dumps({0: {queue: 1}}) == b'{"0":{{"brokerName":"b","queueId":0,"topic":"T"}:1}}'


def test_what_is_not_plain_json_is_written_by_its_own_form() -> None:
    """Sets are written in sorted order; read-only maps, bodies and queues as values have forms of their own."""
    queue = MessageQueue("T", "b", 0)
    value = {
        "set": frozenset({"b", "a"}),
        "map": MappingProxyType({"x": 1}),
        "body": ProducerData("g"),
        "queue": queue,
        "tuple": (1, 2),
    }
    plain = (
        b'{"set":["a","b"],"map":{"x":1},"body":{"groupName":"g"},'
        b'"queue":{"brokerName":"b","queueId":0,"topic":"T"},"tuple":[1,2]'
    )

    assert dumps(value) == plain + b"}"
    assert dumps(value | {"odd": {queue: 1}}) == (
        plain + b',"odd":{{"brokerName":"b","queueId":0,"topic":"T"}:1}}'
    )


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {"a": object()},
        {(1, 2): 3},
        {MessageQueue("T", "b", 0): object()},
        {MessageQueue("T", "b", 0): "\ud800"},
        {True: {MessageQueue("T", "b", 0): 1}},
        b"bytes",
        {1, "a"},
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_json_form_is_refused(value: object) -> None:
    """The error is our own, not one of the library that we use."""
    with pytest.raises(JsonError):
        dumps(value)


def test_depth_of_written_values_is_bounded() -> None:
    """A value that contains itself is an error and does not cause an endless loop."""
    value: dict[object, object] = {MessageQueue("T", "b", 0): 1}
    value["self"] = value

    with pytest.raises(JsonError, match="deeper"):
        dumps(value)


@given(VALUES)
def test_every_value_survives(value: object) -> None:
    """Every written value is read back the same, including queues as keys."""
    assert loads(dumps(value)) == value


@given(VALUES)
def test_standard_values_are_standard_json(value: object) -> None:
    """Any JSON reader can read the text if no key is a queue."""
    if not holds_queue_key(value):
        assert json.loads(dumps(value)) == value


def holds_queue_key(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(isinstance(k, MessageQueue) or holds_queue_key(v) for k, v in value.items())
    return isinstance(value, list) and any(map(holds_queue_key, value))


# -- queues ------------------------------------------------------------------------------------------


def test_queues_sort_as_in_java() -> None:
    """Queues sort by topic, then broker, then number, so that every client means the same queue by "the n-th queue"."""
    queues = [
        MessageQueue("T", "broker-b", 0),
        MessageQueue("T", "broker-a", 10),
        MessageQueue("S", "broker-z", 9),
        MessageQueue("T", "broker-a", 9),
    ]

    assert sorted(queues) == [queues[2], queues[3], queues[1], queues[0]]


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"topic": "T", "brokerName": "b"},
        {"topic": 1, "brokerName": "b", "queueId": 0},
    ],
)
def test_half_a_queue_is_refused(value: object) -> None:
    """A queue needs all three members: topic, broker and number."""
    with pytest.raises(ValueError, match="not a queue"):
        MessageQueue.from_json_value(value)
