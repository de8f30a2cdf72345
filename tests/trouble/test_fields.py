"""Well-formed requests with senseless values get the right code and a remark, and store nothing."""

import dataclasses
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from orderlymq_protocol.body.declaration import wire_name_of
from orderlymq_protocol.codes import RequestCode, ResponseCode, SerializeType
from orderlymq_protocol.frame.codec import encode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_protocol.header.catalogue import REQUEST_HEADERS, SendMessageHeader
from tests.cluster.bareclient import send_command
from tests.cluster.processes import Group
from tests.trouble.rawsocket import RawSocket

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(60)]

BODY_SIZE_MAX = 4 << 20
PROPERTIES_SIZE_MAX = 32_767
QUEUES = 8

ILLEGAL = ResponseCode.MESSAGE_ILLEGAL
ERROR = ResponseCode.SYSTEM_ERROR


@pytest.fixture(scope="module")
def group(make_group: Callable[..., Group]) -> Iterator[Group]:
    """Return a group. All refusals of this module are expected, so no log may hold a traceback at the end."""
    made = make_group(1)
    yield made
    logs = made.logs(lines=100_000)

    assert "Traceback" not in logs


@pytest.fixture
def good(group: Group) -> Iterator[RawSocket]:
    """Return a connection whose client must be served before, between and after the bad requests."""
    with RawSocket(group.port) as made:
        stored(made)
        yield made
        stored(made)
    assert group.brokers[1].is_running


def stored(connection: RawSocket, command: RemotingCommand | None = None) -> dict[str, str]:
    """Send a good message and return its place."""
    answer = connection.call(command or send_command("orders", 0, b"good"))
    assert answer is not None
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
    return answer.ext


def end_of(connection: RawSocket, topic: str = "orders", queue_id: int = 0) -> int:
    answer = connection.call(
        request(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue_id)})
    )
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS
    return int(answer.ext["offset"])


def topics(connection: RawSocket) -> bytes:
    answer = connection.call(request(RequestCode.GET_ALL_TOPIC_CONFIG))
    assert answer is not None
    return answer.body


def refusal(connection: RawSocket, command: RemotingCommand) -> tuple[int, str]:
    """Return the code and the remark of an answer that is an error."""
    answer = connection.call(command)
    assert answer is not None, "the connection was closed"
    assert answer.code != ResponseCode.SUCCESS
    assert answer.remark
    return answer.code, answer.remark


def send(body: bytes = b"paid", /, **letters: Any) -> RemotingCommand:
    """Return a send with these header fields; None removes a field."""
    command = send_command("orders", 0, body)
    for letter, value in letters.items():
        if value is None:
            del command.ext[letter]
        else:
            command.ext[letter] = str(value)
    return command


# -- codes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 9, 99, 9_999, 99_999, 2**31 - 1, -1, -(2**31)])
def test_an_unknown_code_is_answered_3(code: int, group: Group, good: RawSocket) -> None:
    """An unknown code gets 3, the remark names it, and the connection stays open."""
    for port in (group.port, group.name_server_port):
        with RawSocket(port) as connection:
            assert refusal(connection, request(code, {"topic": "orders"}, b"x")) == (
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f" request type {code} not supported",
            )
            assert connection.call(request(code)) is not None


def test_an_unknown_code_in_a_oneway_request_is_not_answered(good: RawSocket) -> None:
    """A oneway request gets no answer, not even an error: the next answer belongs to the next call."""
    for code in (9_999, -5, RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE):
        good.send(encode(request(code, {"e": "x"}, b"\xff", oneway=True)))
    unasked = request(RequestCode.GET_MAX_OFFSET, {"topic": "orders", "queueId": "0"})
    unasked.opaque = 4711
    good.send(encode(unasked))

    answer = good.receive()
    assert answer is not None
    assert answer.opaque == 4711


# -- numbers -------------------------------------------------------------------------------------


def test_a_negative_queue_lets_the_broker_choose(good: RawSocket) -> None:
    """For queue -1, or any negative one, the broker chooses a queue of the topic and returns its number."""
    chosen = {int(stored(good, send(e=number))["queueId"]) for number in (-1, -7, -(2**31))}

    assert chosen <= set(range(QUEUES))


@pytest.mark.parametrize("queue_id", [QUEUES, 1_000_000, 2**31 - 1])
def test_a_queue_beyond_the_topic_is_refused(queue_id: int, good: RawSocket) -> None:
    """For a queue that the topic does not have, the answer is 1, and the remark says how many there are."""
    code, remark = refusal(good, send(e=queue_id))

    assert code == ERROR
    assert str(queue_id) in remark
    assert f"{QUEUES} queues" in remark


@pytest.mark.parametrize("value", ["", "x", "1.5", "0x10", "--1", str(2**31), "9" * 5_000, "\x00"])
def test_a_number_that_is_none_is_refused_by_name(value: str, good: RawSocket) -> None:
    """A field that is no int32 gets 1, the remark names the field and stays short, and nothing is stored."""
    before = end_of(good)

    code, remark = refusal(good, send(e=value))

    assert code == ERROR
    assert "<e>" in remark
    assert len(remark) < 1_000
    assert end_of(good) == before


@pytest.mark.parametrize("letter", "acd")
def test_a_send_needs_no_field_that_rocketmq_does_without(letter: str, good: RawSocket) -> None:
    """As in RocketMQ, producer group, default topic and its queue count may be absent; the message is stored once."""
    before = end_of(good)

    answer = good.call(send(**{letter: None}))

    assert answer is not None, "the connection was closed"
    assert answer.code == ResponseCode.SUCCESS
    assert end_of(good) == before + 1


@pytest.mark.parametrize("letter", "befgh")
def test_a_missing_field_is_refused_by_name(letter: str, good: RawSocket) -> None:
    """Without a required field, the answer is 1, the remark names the field, and nothing is stored."""
    before = end_of(good)

    code, remark = refusal(good, send(**{letter: None}))

    assert code == ERROR
    assert f"<{letter}>" in remark
    assert end_of(good) == before


def test_an_offset_outside_the_queue_is_moved_not_failed(good: RawSocket) -> None:
    """A pull below, above or far beyond the queue gets 21 and the offset at which to continue."""
    end = end_of(good)
    for offset, begin in ((-1, 0), (-(2**63), 0), (2**62, end), (2**63 - 1, end)):
        answer = good.call(pull(queueOffset=offset))

        assert answer is not None
        assert (answer.code, int(answer.ext["nextBeginOffset"])) == (
            ResponseCode.PULL_OFFSET_MOVED,
            begin,
        )


@pytest.mark.parametrize("queue_id", [-1, QUEUES, 2**31 - 1, -(2**31)])
def test_a_pull_of_no_queue_is_refused(queue_id: int, good: RawSocket) -> None:
    """Only a send lets the broker choose a queue: a pull with a negative queue gets 1 and a remark."""
    code, remark = refusal(good, pull(queueId=queue_id))

    assert code == ERROR
    assert str(queue_id) in remark


@pytest.mark.parametrize("count", [0, -1, -(2**31), 2**31 - 1])
def test_a_pull_of_an_absurd_number_of_messages_is_bounded(count: int, good: RawSocket) -> None:
    """An answer holds at least one message and a bounded number, however many the pull asks for."""
    answer = good.call(pull(maxMsgNums=count))

    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS
    assert 0 < len(answer.body) < 1 << 20


def pull(**fields: Any) -> RemotingCommand:
    header = {
        "consumerGroup": "TOOLS_CONSUMER",
        "topic": "orders",
        "queueId": 0,
        "queueOffset": 0,
        "maxMsgNums": 32,
        "sysFlag": 4,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subVersion": 0,
        "subscription": "*",
    }
    return request(
        RequestCode.PULL_MESSAGE, {key: str(value) for key, value in (header | fields).items()}
    )


# -- sizes ---------------------------------------------------------------------------------------


def test_a_body_over_4_mib_is_illegal(good: RawSocket) -> None:
    """A body of 4 MiB is stored; with one byte more, the answer is 13 with the limit, and the connection stays open."""
    end = int(stored(good, send(b"x" * BODY_SIZE_MAX))["queueOffset"]) + 1

    code, remark = refusal(good, send(b"x" * (BODY_SIZE_MAX + 1)))

    assert code == ILLEGAL
    assert f"{BODY_SIZE_MAX}B" in remark
    assert end_of(good) == end


def test_a_frame_just_below_the_limit_is_refused_not_cut(good: RawSocket) -> None:
    """A body of 15 MiB fits into a frame: the answer is 13, and the connection stays open."""
    code, _ = refusal(good, send(b"x" * (15 << 20)))

    assert code == ILLEGAL


@pytest.mark.parametrize("filler", ["x", "\u00e9", "\u6f22", "\U0001f600"])
def test_properties_over_32767_bytes_are_illegal(filler: str, good: RawSocket) -> None:
    """The limit counts bytes, not characters: 32 767 are stored, more get 13, and nothing is cut off."""
    per_character = len(filler.encode())
    too_many = PROPERTIES_SIZE_MAX // per_character + 1
    # The broker adds its cluster's name to the properties.
    few_enough = (PROPERTIES_SIZE_MAX - 100) // per_character
    end = int(stored(good, send(i=f"note\x01{filler * few_enough}"))["queueOffset"]) + 1

    code, remark = refusal(good, send(i=f"note\x01{filler * too_many}"))

    assert code == ILLEGAL
    assert "32KB" in remark
    assert end_of(good) == end


def test_a_batch_with_one_bad_message_stores_none(good: RawSocket) -> None:
    """A batch with non-UTF-8 properties, torn entries, wrong lengths or no entries gets 13, and nothing is stored."""
    whole = batch_entry(b"one")
    bodies = [
        whole + batch_entry(b"two", b"note\x01\xff\xfe"),
        whole + batch_entry(b"two")[:-1],
        whole + batch_entry(b"two")[:9],
        whole + struct.pack(">iiiii", 2**31 - 1, 0, 0, 0, 3) + b"two\x00\x00",
        whole + struct.pack(">iiiii", 22, 0, 0, 0, -3) + b"\x00\x00",
        whole + struct.pack(">iiiii", 0, 0, 0, 0, 0) + b"\x00\x00",
        whole + batch_entry(b"two", b"p" * 40_000),
        b"",
        b"\xff" * 100,
    ]
    before = end_of(good)

    for body in bodies:
        command = send(body, m="true")
        command.code = RequestCode.SEND_BATCH_MESSAGE
        assert refusal(good, command)[0] == ILLEGAL

    assert end_of(good) == before


def batch_entry(body: bytes, properties: bytes = b"") -> bytes:
    size = 22 + len(body) + len(properties)
    return (
        struct.pack(">iiiii", size, 0, 0, 0, len(body))
        + body
        + struct.pack(">H", len(properties))
        + properties
    )


# -- names ---------------------------------------------------------------------------------------

BAD_NAMES = {
    "a path upwards": "../x",
    "a path": "a/b",
    "an absolute path": "/etc/passwd",
    "a Windows path": "a\\b",
    "a dot": "a.b",
    "nothing": "",
    "a space": "a b",
    "128 characters": "x" * 128,
    "a hundred thousand characters": "x" * 100_000,
    "a zero byte": "a\x00b",
    "a line break": "orders\n",
    "other letters": "\u6ce8\u6587",
    "a separator of properties": "a\x01b\x02c",
}


@pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES.keys())
def test_a_topic_with_a_bad_name_is_never_made(name: str, good: RawSocket, group: Group) -> None:
    """Neither a send nor an administrator's request creates a topic with an invalid name."""
    before = topics(good)
    files = sorted(path.name for path in group.directory.rglob("*") if path.is_dir())
    create = {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": "4",
        "writeQueueNums": "4",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }

    refusals = [
        refusal(good, send(b=name)),
        refusal(good, request(RequestCode.UPDATE_AND_CREATE_TOPIC, create)),
    ]

    assert [code for code, _ in refusals] == [ERROR, ERROR]
    assert all(len(remark) < 1_000 for _, remark in refusals)
    assert topics(good) == before
    assert sorted(path.name for path in group.directory.rglob("*") if path.is_dir()) == files


def test_127_characters_are_a_name(good: RawSocket) -> None:
    """RocketMQ's longest permitted name works."""
    stored(good, send(b="x" * 127))


@pytest.mark.parametrize(
    "name",
    # A consumer group's name may have 255 characters.
    ["x" * 256 if name == "x" * 128 else name for name in BAD_NAMES.values()],
    ids=[kind.replace("128", "256") for kind in BAD_NAMES],
)
def test_a_group_with_a_bad_name_is_never_made(name: str, good: RawSocket) -> None:
    """Pulls and commits with an invalid name of a consumer group are refused, and no group is created."""
    code, remark = refusal(good, pull(consumerGroup=name))

    assert code in {ERROR, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST}
    assert len(remark) < 1_000
    commit = {"consumerGroup": name, "topic": "orders", "queueId": "0", "commitOffset": "1"}
    good.call(request(RequestCode.UPDATE_CONSUMER_OFFSET, commit))
    answer = good.call(request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
    assert answer is not None
    if name:
        assert name.encode() not in answer.body


# -- everything else -----------------------------------------------------------------------------

BODIES = [b"", b"{", b"[]", b"\xff\xfe", b'{"clientID": 5}', b"[" * 2_000, b"null"]
VALUES = ["", "x", "-1", "9" * 30, str(2**31 - 1), "../x", "\x00", "\u6f22" * 50, "true"]
# Left out are requests whose purpose is to end a process or its leadership.
PROCESS_CODES = {RequestCode.ORDERLYMQ_TRANSFER_LEADERSHIP, RequestCode.ORDERLYMQ_CHANGE_MEMBERSHIP}


def field_names(code: int) -> list[str]:
    """Return the names of a request's header fields as they are sent."""
    declared = REQUEST_HEADERS.get(code)
    if declared is None:
        return []
    if declared is SendMessageHeader and code not in (10, 324):
        return list("abcdefghijklmn")
    return [wire_name_of(each) for each in dataclasses.fields(declared)]  # type: ignore[arg-type]  # every header is a dataclass


def sweep() -> Iterator[RemotingCommand]:
    """Yield every request of the protocol, each time with one field missing or spoilt."""
    for code in sorted({*RequestCode} - PROCESS_CODES):
        names = field_names(code)
        full = dict.fromkeys(names, "1")
        for body in BODIES:
            yield request(code, {}, body)
            yield request(code, full, body)
        for name in names:
            yield request(code, {key: text for key, text in full.items() if key != name})
            for value in VALUES:
                yield request(code, full | {name: value})


@pytest.mark.parametrize("serialize_type", SerializeType)
def test_no_request_is_left_without_an_answer(
    serialize_type: SerializeType, good: RawSocket, group: Group
) -> None:
    """Every code gets an answer soon, even with missing or spoilt fields and with malformed bodies."""
    for port in (group.port, group.name_server_port):
        with RawSocket(port) as connection:
            for command in sweep():
                if serialize_type is SerializeType.ROCKETMQ and command.code > 32_767:
                    continue  # the binary header has no room for them
                command.serialize_type = serialize_type
                began = time.monotonic()
                answer = connection.call(command)
                assert answer is not None, command
                assert time.monotonic() - began < 10.0, command
                assert not (answer.remark or "").startswith(UNEXPECTED), (command, answer.remark)


# The class name with which the remark of an unexpected error begins.
UNEXPECTED = (
    "KeyError",
    "TypeError",
    "ValueError",
    "AttributeError",
    "IndexError",
    "AssertionError",
    "OverflowError",
    "error:",
    "RecursionError",
    "UnicodeEncodeError",
)
