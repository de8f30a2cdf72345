"""Bytes that are not the protocol end their own connection and disturb no other, at every port."""

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.codec import FRAME_SIZE_MAX, encode
from orderlymq_protocol.frame.command import RemotingCommand, request
from tests.cluster.bareclient import send_command
from tests.cluster.processes import Child, Group
from tests.trouble.rawsocket import RawSocket, memory_bytes

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(60)]

MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Port:
    """A port that speaks the protocol, and a request that its server answers with success."""

    number: int
    process: Child
    question: Callable[[], RemotingCommand]


@pytest.fixture(scope="module")
def group(make_group: Callable[..., Group]) -> Group:
    made = make_group(1)
    with RawSocket(made.port) as bystander:
        for _ in range(3):  # the first send creates the topic
            answer = bystander.call(send_command("orders", 0, b"first"))
        assert answer is not None
        assert answer.code == ResponseCode.SUCCESS
    return made


@pytest.fixture(params=["broker", "vip port", "name server"])
def port(request: pytest.FixtureRequest, group: Group) -> Port:
    broker = group.brokers[1]
    match request.param:
        case "broker":
            return Port(group.port, broker, _send)
        case "vip port":
            return Port(group.port - 2, broker, _send)
        case _:
            return Port(group.name_server_port, group.name_server, _cluster_info)


@pytest.fixture
def bystander(port: Port) -> Iterator[RawSocket]:
    """Return a connection that exists before the trouble and must be served after it."""
    with RawSocket(port.number) as made:
        assert_serves(made, port)
        yield made
        assert_serves(made, port)
    with RawSocket(port.number) as newcomer:
        assert_serves(newcomer, port)
    assert port.process.is_running


def assert_serves(connection: RawSocket, port: Port) -> None:
    answer = connection.call(port.question())
    assert answer is not None
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)


def _send() -> RemotingCommand:
    return send_command("orders", 0, b"bystander")


def _cluster_info() -> RemotingCommand:
    return request(RequestCode.GET_BROKER_CLUSTER_INFO)


def frame(header: bytes, body: bytes = b"", *, serialize_type: int = 0) -> bytes:
    mark = serialize_type << 24 | len(header)
    return struct.pack(">II", 4 + len(header) + len(body), mark) + header + body


def binary_header(ext: bytes, *, code: int = RequestCode.SEND_MESSAGE_V2) -> bytes:
    return struct.pack(">hBhiiii", code, 0, 409, 1, 0, 0, len(ext)) + ext


def pair(key: bytes, value: bytes) -> bytes:
    return struct.pack(">h", len(key)) + key + struct.pack(">i", len(value)) + value


GOOD_JSON = {"code": 310, "language": "JAVA", "version": 409, "opaque": 1, "flag": 0}

NOT_THE_PROTOCOL = {
    "a web browser": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a TLS greeting": bytes.fromhex("16030100f8010000f40303") + bytes(range(200)),
    "noise": bytes((37 * number * number + 11) % 256 for number in range(100_000)),
    "ones": b"\xff" * 4096,
    "a frame of 2 GiB": struct.pack(">iI", 2**31 - 1, 100) + b"{",
    "a negative length": struct.pack(">iI", -1, 10) + b"x" * 64,
    "one byte over the limit": struct.pack(">II", FRAME_SIZE_MAX - 3, 10) + b"x" * 64,
    "a header larger than its frame": struct.pack(">II", 14, 1000) + b"x" * 64,
    "a frame without room for its mark": struct.pack(">II", 0, 0) * 8,
    "an unknown way to write headers": frame(b"{}", serialize_type=7),
    "an empty header": frame(b""),
    "a header that is not JSON": frame(b"code=310, opaque=1"),
    "a header cut in two": frame(json.dumps(GOOD_JSON).encode()[:-20]),
    "a header that is a list": frame(b"[310, 1]"),
    "a header nested very deeply": frame(b"[" * 200_000),
    "a header without a code": frame(b'{"opaque": 1}'),
    "a code that is a word": frame(b'{"code": "send", "opaque": 1}'),
    "a code beyond int32": frame(b'{"code": 4294967296, "opaque": 1}'),
    "an opaque that is a fraction": frame(b'{"code": 310, "opaque": 1.5}'),
    "a header that is not UTF-8": frame(b'{"code": 310, "opaque": 1, "remark": "\xc3\x28"}'),
    "half a surrogate": frame(b'{"code": 310, "opaque": 1, "extFields": {"b": "\\ud800"}}'),
    "ext that is a list": frame(b'{"code": 310, "opaque": 1, "extFields": ["a", "b"]}'),
    "a binary header that is too short": frame(b"\x01\x36\x00", serialize_type=1),
    "a binary topic that is not UTF-8": frame(
        binary_header(pair(b"b", b"\xff\xfe\xfd")), serialize_type=1
    ),
    "a binary key that is not UTF-8": frame(
        binary_header(pair(b"\xc3\x28", b"x")), serialize_type=1
    ),
    "a binary length outside the header": frame(
        binary_header(struct.pack(">h", 1) + b"b" + struct.pack(">i", 2**31 - 1)), serialize_type=1
    ),
    "a negative binary length": frame(binary_header(struct.pack(">h", -5)), serialize_type=1),
}


@pytest.mark.parametrize("data", NOT_THE_PROTOCOL.values(), ids=NOT_THE_PROTOCOL.keys())
def test_what_is_not_the_protocol_ends_its_connection_only(
    data: bytes, port: Port, bystander: RawSocket
) -> None:
    """The server closes a connection after bytes that it cannot understand; others are still served."""
    with RawSocket(port.number) as stranger:
        before = memory_bytes(port.process.pid)

        try:
            stranger.send(data)
            hung_up = stranger.is_hung_up()
        except (BrokenPipeError, ConnectionResetError):
            hung_up = True

        assert hung_up
        assert memory_bytes(port.process.pid) - before < 32 * MEBIBYTE


def test_what_came_whole_before_the_garbage_is_answered(
    port: Port, group: Group, bystander: RawSocket
) -> None:
    """A good request is answered, even if garbage follows in the same packet and ends the connection.

    A send would be stored, but its answer would come too late: the sender correctly does not learn the result.
    """
    good = request(RequestCode.GET_MAX_OFFSET, {"topic": "orders", "queueId": "0"})
    if port.number not in (group.port, group.port - 2):
        good = port.question()
    good.opaque = 77

    with RawSocket(port.number) as stranger:
        stranger.send(encode(good) + b"\xff" * 64)
        answer = stranger.receive()

        assert answer is not None
        assert (answer.opaque, answer.code) == (77, ResponseCode.SUCCESS)
        assert stranger.is_hung_up()


@pytest.mark.parametrize("size", [1, 7, 8, 60])
def test_half_a_frame_then_silence_holds_nobody_up(
    size: int, port: Port, bystander: RawSocket
) -> None:
    """A client that stops in the middle of a frame delays no other client, and may send the rest later."""
    data = encode(port.question())

    with RawSocket(port.number) as stranger:
        stranger.send(data[:size])
        for _ in range(20):
            assert_serves(bystander, port)
        stranger.send(data[size:])

        answer = stranger.receive()
        assert answer is not None
        assert answer.code == ResponseCode.SUCCESS


def test_many_large_halves_cost_what_was_sent_and_no_more(port: Port, bystander: RawSocket) -> None:
    """A frame takes memory only for bytes that have arrived: 200 clients announce 16 MiB each and send 64 KiB."""
    before = memory_bytes(port.process.pid)
    beginning = struct.pack(">II", FRAME_SIZE_MAX - 4, 100) + b" " * 65_536
    strangers = [RawSocket(port.number) for _ in range(200)]
    try:
        for stranger in strangers:
            stranger.send(beginning)
        assert_serves(bystander, port)

        grown = memory_bytes(port.process.pid) - before
    finally:
        for stranger in strangers:
            stranger.close()

    # 200 times 64 KiB are 12.5 MiB; growing buffers may take twice that.
    assert grown < 64 * MEBIBYTE


def test_a_frame_in_single_bytes_is_understood(port: Port, bystander: RawSocket) -> None:
    """Frames may be cut into packets at any byte."""
    data = encode(port.question())

    with RawSocket(port.number) as stranger:
        for position in range(len(data)):
            stranger.send(data[position : position + 1])

        answer = stranger.receive()
        assert answer is not None
        assert answer.code == ResponseCode.SUCCESS


def test_answers_to_nothing_are_ignored(port: Port, bystander: RawSocket) -> None:
    """A response without a request is ignored; the connection stays usable."""
    with RawSocket(port.number) as stranger:
        for code in (0, 1, 34, 310, 999):
            stranger.send(encode(RemotingCommand(code, opaque=5, flag=1, body=b"\xff\x00{")))

        assert_serves(stranger, port)


def test_garbage_left_no_trace_of_an_unexpected_error(group: Group) -> None:
    """All errors of this module were expected ones: no log holds a traceback."""
    logs = group.logs(lines=100_000)

    assert "Traceback" not in logs
