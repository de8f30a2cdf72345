"""Trace bodies, as clients write them, and the life of one message."""

from orderlymq.connection.tracerecords import (
    ConsumeBegan,
    ConsumeEnded,
    Published,
    Trace,
    TransactionEnded,
    encode_traces,
    life,
    parse_traces,
)
from orderlymq_protocol.frame.codec import FrameDecoder
from tests.protocol.golden import frames

SENT = Published(
    1_000, "DefaultRegion", "pg", "orders", "M1", "TagT", "k1 k2", "127.0.0.1:10911", 6, 41,
    "Normal", "OFF1", True,
)  # fmt: skip
BEGAN = ConsumeBegan(1_100, "DefaultRegion", "cg", "R1", "M1", 0, "k1 k2")
FAILED = ConsumeEnded("R1", "M1", 30, False, "k1 k2", "EXCEPTION", 1_130, "cg")
AGAIN = ConsumeBegan(2_100, "DefaultRegion", "cg", "R2", "M1", 1, "k1 k2")
DONE = ConsumeEnded("R2", "M1", 5, True, "k1 k2", "SUCCESS", 2_105, "cg")


def test_what_is_written_is_read_back() -> None:
    """Law: all kinds of traces are read as they were written."""
    traces: list[Published | ConsumeBegan | ConsumeEnded] = [SENT, BEGAN, FAILED, AGAIN, DONE]

    assert parse_traces(encode_traces(traces)) == traces


def test_captured_traces_of_java_clients_are_read() -> None:
    """Law: every record in captured traces of Java clients is read."""
    bodies = []
    for frame in frames():
        if frame.is_request and frame.code == 310:
            (command,) = FrameDecoder().receive_data(frame.wire)
            if command.ext["b"] == "RMQ_SYS_TRACE_TOPIC":
                bodies.append(command.body)
    assert bodies

    for body in bodies:
        traces = parse_traces(body)
        assert len(traces) == body.count(b"\x02")
        assert all(trace.message_id for trace in traces)


def test_older_and_newer_forms_are_read() -> None:
    """Law: older and newer forms of traces are read (4.4, CLOUD, 5.x)."""
    old = b"Pub\x011\x01r\x01g\x01t\x01M\x01\x01\x01h\x016\x014\x010\x01true\x02"
    new = b"Pub\x011\x01r\x01g\x01t\x01M\x01\x01\x01h\x016\x014\x013\x01O\x01false\x01more\x02"
    cloud = b"SubAfter\x01R\x01M\x015\x01true\x01k\x014\x02"
    half = b"EndTransaction\x011\x01r\x01g\x01t\x01M\x01\x01\x01h\x012\x01X\x01COMMIT_MESSAGE\x01true\x02"

    assert parse_traces(old + new + cloud + half) == [
        Published(1, "r", "g", "t", "M", store_host="h", body_length=6, cost_ms=4),
        Published(1, "r", "g", "t", "M", "", "", "h", 6, 4, "Delay", "O", False),
        ConsumeEnded("R", "M", 5, True, "k", "FAILED"),
        TransactionEnded(1, "r", "g", "t", "M", "COMMIT_MESSAGE", True),
    ]


def test_garbage_is_passed_over() -> None:
    """Law: a bad record is skipped and does not hide others."""
    body = b"Recall\x011\x02Pub\x01x\x02\x02Pub\x01\x02\xff\x02" + encode_traces([SENT])

    assert parse_traces(body) == [SENT]


def test_the_life_of_a_message_is_in_the_order_of_time() -> None:
    """Law: a message's life is in order of time; an end comes after its own begin, even without a time."""
    without_time = ConsumeEnded("R1", "M1", 30, False, "k1 k2", "EXCEPTION")
    other = ConsumeBegan(1_050, "DefaultRegion", "cg", "R9", "M2")
    mixed: list[Trace] = [DONE, without_time, other, AGAIN, SENT, BEGAN, SENT]

    assert life(mixed, "M1") == [SENT, BEGAN, without_time, AGAIN, DONE]
    assert life(mixed, "OFF1") == [SENT]


def test_numbers_that_no_client_writes_are_malformed() -> None:
    """Law: impossible numbers make a record invalid."""
    huge = f"SubBefore\x01{10**30}\x01r\x01g\x01R\x01M\x010\x02"
    kind = "Pub\x011\x01r\x01g\x01t\x01M\x01\x01\x01h\x016\x014\x01-1\x01O\x01true\x02"
    outcome = "SubAfter\x01R\x01M\x015\x01true\x01k\x01-1\x02"

    assert parse_traces((huge + kind + outcome).encode() + encode_traces([SENT])) == [SENT]
