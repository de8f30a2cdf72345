"""Integers from outside: they are bounded, and read as Java reads them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq_protocol.body.clients import HeartbeatData, LockBatchRequest
from orderlymq_protocol.body.declaration import ModelError
from orderlymq_protocol.header.declaration import HeaderError
from orderlymq_protocol.header.pull import PullMessageHeader, UpdateConsumerOffsetHeader
from orderlymq_protocol.header.send import SendMessageHeader
from orderlymq_protocol.integers import INT32_MAX, INT32_MIN, read_integer

NOT_JAVA = [
    "",
    "+",
    "-",
    "1_0",
    " 1",
    "1 ",
    "\t1",
    "1.0",
    "1e3",
    "0x10",
    "--1",
    "²",
    "true",
    "9" * 30,
]


@given(number=st.integers(INT32_MIN, INT32_MAX), signed=st.booleans())
def test_a_number_within_the_range_is_read(number: int, signed: bool) -> None:
    """A sign is accepted, as by `Integer.parseInt`."""
    text = f"{number:+d}" if signed else str(number)

    assert read_integer(text, INT32_MIN, INT32_MAX) == number


@pytest.mark.parametrize("text", [*NOT_JAVA, "2147483648", "-2147483649", "9" * 5_000])
def test_what_java_takes_for_no_number_is_none(text: str) -> None:
    """Underscores, blanks and numbers beyond the type are refused; refusing a huge text costs no time."""
    with pytest.raises(ValueError, match=r"is not a whole number|is not between"):
        read_integer(text, INT32_MIN, INT32_MAX)


@pytest.mark.parametrize("text", NOT_JAVA)
def test_headers_take_no_other_numbers(text: str) -> None:
    """The fast readers of sends, pulls and commits refuse the same numbers as the slow reader."""
    send = dict(
        zip("abcdefghijk", ["g", "t", "T", "4", "0", "0", "0", "0", "", "0", ""], strict=True)
    )
    pull = dict.fromkeys(
        ("queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "suspendTimeoutMillis"),
        "1",
    )
    pull |= {"subVersion": "1", "consumerGroup": "g", "topic": "t"}
    for letter in "defghjl":
        with pytest.raises(HeaderError):
            SendMessageHeader.from_ext_v2({**send, letter: text})
    for name in (*(name for name, value in pull.items() if value == "1"), "maxMsgBytes"):
        with pytest.raises(HeaderError):
            PullMessageHeader.from_ext({**pull, name: text})
    with pytest.raises(HeaderError):
        UpdateConsumerOffsetHeader.from_ext({**pull, "commitOffset": text})


@pytest.mark.parametrize("value", [*NOT_JAVA, True, 1.5, 2**63, -(2**63) - 1, 10**30, [], {}])
def test_bodies_take_no_other_numbers(value: object) -> None:
    """A body with such a number is refused with an error that names the member."""
    subscription = {"topic": "t", "subVersion": value}
    consumer = {"groupName": "g", "subscriptionDataSet": [subscription]}
    body = {"clientID": "c", "consumerDataSet": [consumer], "producerDataSet": []}

    with pytest.raises(ModelError, match="subVersion"):
        HeartbeatData.from_json(json.dumps(body).encode())


@pytest.mark.parametrize("queue_id", [True, 2**31, -(2**31) - 1, 1.0, "1"])
def test_a_queue_has_a_number_of_32_bits(queue_id: object) -> None:
    """As in Java's MessageQueue, a queue id has 32 bits; any other value is refused."""
    queue = {"topic": "t", "brokerName": "b", "queueId": queue_id}
    body = {"clientId": "c", "consumerGroup": "g", "mqSet": [queue]}

    with pytest.raises(ModelError, match="mqSet: not a queue"):
        LockBatchRequest.from_json(json.dumps(body).encode())
