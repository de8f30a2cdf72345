"""Messages between replicas are decoded as they were encoded; garbage raises one error."""

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orderlymq_broker.replication.transport.frameheaders import Clock, Forward, Hello
from orderlymq_broker.replication.transport.frames import (
    FRAME_SIZE_MAX,
    Frame,
    FrameCorrupt,
    FrameKind,
    FrameReader,
    decode_header,
    decode_messages,
    encode_frame,
    encode_messages,
)
from orderlymq_broker.settings import RaftSettings
from orderlymq_raft import (
    Append,
    AppendResponse,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshotResponse,
    Membership,
    Message,
    PreVote,
    PreVoteResponse,
    TimeoutNow,
    Vote,
    VoteResponse,
)
from orderlymq_raft.types import Index, NodeId, Term

ONE, TWO = NodeId(1), NodeId(2)
TERM = Term(3)
MEMBERS = Membership(frozenset({ONE, TWO}), frozenset({NodeId(9)}))

EVERY_MESSAGE: list[Message] = [
    PreVote(ONE, TWO, TERM, Index(7), Term(2)),
    PreVoteResponse(TWO, ONE, TERM, granted=True),
    Vote(ONE, TWO, TERM, Index(7), Term(2), transfer=True),
    VoteResponse(TWO, ONE, TERM, granted=False),
    Append(
        *(ONE, TWO, TERM, Index(7), Term(2), Index(5)),
        (
            Entry(TERM, Index(8), b"", EntryKind.NOOP),
            Entry(TERM, Index(9), b"\x00" * 1000),
            Entry(TERM, Index(10), MEMBERS.encode(), EntryKind.CONFIG),
        ),
    ),
    AppendResponse(TWO, ONE, TERM, Index(7), True, Index(4), Term(1)),
    Heartbeat(ONE, TWO, TERM, Index(5), 77),
    HeartbeatResponse(TWO, ONE, TERM, 77),
    InstallSnapshotResponse(TWO, ONE, TERM, Index(5)),
    TimeoutNow(ONE, TWO, TERM),
]


def read(pieces: list[bytes]) -> list[Frame]:
    return FrameReader().receive_data(b"".join(pieces))


def test_every_message_comes_out_as_it_went_in() -> None:
    """Law: all kinds of raft messages can share a frame and keep their order."""
    (frame,) = read(encode_messages(EVERY_MESSAGE))

    assert frame.kind is FrameKind.RAFT
    assert decode_messages(frame) == EVERY_MESSAGE


def test_the_data_of_entries_is_not_copied_when_it_is_written() -> None:
    """Law: the data of an entry is written without a copy."""
    data = b"x" * 100_000
    entry = Entry(TERM, Index(8), data)
    append = Append(ONE, TWO, TERM, Index(7), Term(2), Index(5), (entry,))

    pieces = encode_messages([append])

    assert any(piece is data for piece in pieces)


@given(st.integers(1, 40), st.binary(max_size=300))
def test_frames_survive_any_cutting(step: int, body: bytes) -> None:
    """Law: the frames are the same however the network cuts the stream."""
    forward = Forward(4, "192.0.2.1", 99)
    stream = b"".join(
        [*encode_messages(EVERY_MESSAGE), *encode_frame(FrameKind.FORWARD, forward, [body])]
    )
    reader = FrameReader()

    frames = [
        frame
        for start in range(0, len(stream), step)
        for frame in reader.receive_data(stream[start : start + step])
    ]

    assert [frame.kind for frame in frames] == [FrameKind.RAFT, FrameKind.FORWARD]
    assert decode_messages(frames[0]) == EVERY_MESSAGE
    assert (decode_header(frames[1], Forward), frames[1].payload) == (forward, body)


@given(st.data(), st.integers(1, 40))
def test_a_flipped_bit_is_never_taken(data: st.DataObject, step: int) -> None:
    """Law: a flipped bit is never accepted as a frame: it ends the connection, or the reader waits for more bytes."""
    sent = [*encode_messages(EVERY_MESSAGE), *encode_frame(FrameKind.FORWARD, [4], [b"body"])]
    stream = bytearray(b"".join(sent))
    bit = data.draw(st.integers(0, 8 * len(stream) - 1))
    stream[bit // 8] ^= 1 << bit % 8
    reader, taken = FrameReader(), list[Frame]()

    with contextlib.suppress(FrameCorrupt):
        for start in range(0, len(stream), step):
            taken += reader.receive_data(bytes(stream[start : start + step]))

    assert taken == read(sent)[: len(taken)]
    assert len(taken) < 2


@given(st.binary(max_size=200))
def test_garbage_raises_one_error(data: bytes) -> None:
    """Law: any bytes make the reader and decoders raise only their own error."""
    try:
        for frame in FrameReader().receive_data(data):
            decode_messages(frame)
    except FrameCorrupt:
        pass


@given(st.binary(max_size=80), st.binary(max_size=80))
@example(b"\x98\x00\xa4\x00\x00\x00\x80", b"")  # A text that is no UTF-8.
@example(b"\x91" * 5_000, b"")  # Lists in lists.
def test_a_garbage_header_raises_one_error(header: bytes, payload: bytes) -> None:
    """Law: a frame with a meaningless header raises the same error, which ends the connection and not the process."""
    for decode in (decode_messages, lambda frame: decode_header(frame, Hello)):
        with contextlib.suppress(FrameCorrupt):
            decode(Frame(FrameKind.RAFT, header, payload))


def test_a_clock_of_an_earlier_version_says_nothing_of_stickiness_and_snapshots() -> None:
    """Law: clock frames of an older version lack stickiness and snapshot; older versions ignore those fields."""

    class Earlier(msgspec.Struct, array_like=True):
        wall_ms: int
        hears: bool

    theirs = Frame(FrameKind.CLOCK, msgspec.msgpack.encode(Earlier(7, True)), b"")
    ours = Frame(FrameKind.CLOCK, msgspec.msgpack.encode(Clock(7, True, 175, 50)), b"")

    assert decode_header(theirs, Clock) == Clock(7, True, 0, 0)
    assert decode_header(ours, Earlier) == Earlier(7, True)


@pytest.mark.parametrize("name", ["append_size_max", "snapshot_chunk_size"])
def test_no_setting_lets_a_replica_send_what_its_peers_refuse(name: str) -> None:
    """Law: no setting allows a frame that peers refuse, because the connection would be closed again and again."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({name: FRAME_SIZE_MAX}, RaftSettings)


def test_a_frame_beyond_the_limit_is_refused_before_it_is_read() -> None:
    """Law: a frame with too large an announced length is refused before memory is allocated."""
    with pytest.raises(FrameCorrupt, match="limit"):
        FrameReader().receive_data(b"\x7f\xff\xff\xff" + bytes(8) + b"\x04")


def raft_frame(*messages: list[object], payload: bytes = b"") -> Frame:
    (frame,) = read(encode_frame(FrameKind.RAFT, messages, [payload]))
    return frame


def fields_of(message: Message) -> list[Any]:
    (frame,) = read(encode_messages([message]))
    ((found),) = msgspec.msgpack.decode(frame.header)
    return list(found)


SPOILS: list[object] = [None, True, -1, 1.0, "1", b"1", 2**63, [], [1], {}]


@pytest.mark.parametrize("message", EVERY_MESSAGE, ids=lambda each: type(each).__name__)
def test_no_field_takes_what_is_not_of_its_type_and_range(message: Message) -> None:
    """Law: a field with a wrong type or range (a bool, a text, too large a number) is refused by the decoder."""
    whole = fields_of(message)
    payload = b"".join(getattr(each, "data", b"") for each in getattr(message, "entries", ()))
    assert decode_messages(raft_frame(whole, payload=payload)) == [message]

    for position, valid in enumerate(whole):
        for spoil in SPOILS:
            if type(spoil) is type(valid) is bool:
                continue
            spoiled = raft_frame(
                [*whole[:position], spoil, *whole[position + 1 :]], payload=payload
            )
            with pytest.raises(FrameCorrupt):
                decode_messages(spoiled)
    with pytest.raises(FrameCorrupt):
        decode_messages(raft_frame(whole[:2], payload=payload))


@pytest.mark.parametrize("position", range(4))
@pytest.mark.parametrize("spoil", SPOILS)
def test_no_field_of_an_entry_takes_what_is_not_of_its_type(position: int, spoil: object) -> None:
    """Law: term, index, kind and size of each entry are checked as strictly as the message's fields."""
    whole = fields_of(EVERY_MESSAGE[4])
    whole[-1][0][position] = spoil

    with pytest.raises(FrameCorrupt):
        decode_messages(raft_frame(whole))


def test_the_data_of_entries_fills_the_frame() -> None:
    """Law: the entries' data must fill the payload exactly."""
    append = EVERY_MESSAGE[4]
    assert isinstance(append, Append)
    payload = b"".join(entry.data for entry in append.entries)

    for spoiled in (payload[:-1], payload + b"x"):
        with pytest.raises(FrameCorrupt):
            decode_messages(raft_frame(fields_of(append), payload=spoiled))


def test_a_snapshot_is_not_announced_among_messages() -> None:
    """Law: a snapshot announced among raft messages is refused, because snapshots have their own connection."""
    with pytest.raises(FrameCorrupt):
        decode_messages(raft_frame([9, 1, 2, 3, [5, 2, MEMBERS.encode()]]))


def test_many_large_appends_are_cut_into_frames_that_are_taken() -> None:
    """Law: many large appends are split into frames below the limit."""
    data = b"x" * (1 << 20)
    appends: list[Message] = [
        Append(ONE, TWO, TERM, Index(n), TERM, Index(0), (Entry(TERM, Index(n + 1), data),))
        for n in range(70)
    ]

    pieces = encode_messages(appends)
    reader = FrameReader()
    frames = [frame for piece in pieces for frame in reader.receive_data(piece)]

    assert [each for frame in frames for each in decode_messages(frame)] == appends
    assert max(len(frame.payload) for frame in frames) <= 6 << 20


def test_a_header_beyond_the_limit_is_refused_before_it_is_read() -> None:
    """Law: too large a header is refused before it is read, because decoding it would block the event loop."""
    with pytest.raises(FrameCorrupt, match="header has"):
        FrameReader().receive_data(b"\x03\x00\x00\x00" + bytes(4) + b"\x02\x00\x00\x00\x04")


@pytest.mark.parametrize("position", [0, 3, 4, 5, 6, 7])
@pytest.mark.parametrize("spoil", [None, -1, 1.0, "x" * 300, 2**63, []])
def test_no_field_of_a_greeting_takes_what_is_not_of_its_type(position: int, spoil: object) -> None:
    """Law: ids, ports and texts of a greeting are checked and bounded."""
    header: list[object] = [1, "C", "g", 1, 2, "raft", "host", 10_911, False]
    header[position] = spoil
    if (position, spoil) in ((0, -1), (0, 2**63), (4, -1), (4, 2**63)):
        return  # These are compared with our own and refused with the reason.

    (frame,) = read(encode_frame(FrameKind.HELLO, header))
    with pytest.raises(FrameCorrupt):
        decode_header(frame, Hello)
