"""What replicas write to each other comes out as it went in, and garbage ends in one named error."""

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orderlymq_broker.replication.frameheaders import Forward, Hello
from orderlymq_broker.replication.frames import (
    Frame,
    FrameCorrupt,
    FrameKind,
    FrameReader,
    decode_header,
    decode_messages,
    encode_frame,
    encode_messages,
)
from orderlymq_raft import (
    Append,
    AppendResponse,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    InstallSnapshotResponse,
    Membership,
    Message,
    PreVote,
    PreVoteResponse,
    SnapshotMeta,
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
    InstallSnapshot(ONE, TWO, TERM, SnapshotMeta(Index(5), Term(2), MEMBERS)),
    InstallSnapshotResponse(TWO, ONE, TERM, Index(5)),
    TimeoutNow(ONE, TWO, TERM),
]


def read(pieces: list[bytes]) -> list[Frame]:
    return FrameReader().receive_data(b"".join(pieces))


def test_every_message_comes_out_as_it_went_in() -> None:
    """All kinds of raft messages share one frame and keep their order."""
    (frame,) = read(encode_messages(EVERY_MESSAGE))

    assert frame.kind is FrameKind.RAFT
    assert decode_messages(frame) == EVERY_MESSAGE


def test_the_data_of_entries_is_not_copied_when_it_is_written() -> None:
    """An entry of megabytes goes to the socket as the object that it is."""
    data = b"x" * 100_000
    entry = Entry(TERM, Index(8), data)
    append = Append(ONE, TWO, TERM, Index(7), Term(2), Index(5), (entry,))

    pieces = encode_messages([append])

    assert any(piece is data for piece in pieces)


@given(st.integers(1, 40), st.binary(max_size=300))
def test_frames_survive_any_cutting(step: int, body: bytes) -> None:
    """However the network cuts the stream, the same frames come out."""
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


@given(st.binary(max_size=200))
def test_garbage_raises_one_error(data: bytes) -> None:
    """No bytes make the reader or the decoders raise anything but their own error."""
    try:
        for frame in FrameReader().receive_data(data):
            decode_messages(frame)
    except FrameCorrupt:
        pass


@given(st.binary(max_size=80), st.binary(max_size=80))
@example(b"\x98\x00\xa4\x00\x00\x00\x80", b"")  # a text that is no UTF-8
@example(b"\x91" * 5_000, b"")  # lists in lists
def test_a_garbage_header_raises_one_error(header: bytes, payload: bytes) -> None:
    """A frame that is whole but means nothing ends the connection, not the process."""
    for decode in (decode_messages, lambda frame: decode_header(frame, Hello)):
        with contextlib.suppress(FrameCorrupt):
            decode(Frame(FrameKind.RAFT, header, payload))


def test_a_frame_beyond_the_limit_is_refused_before_it_is_read() -> None:
    """An announced length allocates nothing."""
    with pytest.raises(FrameCorrupt, match="limit"):
        FrameReader().receive_data(b"\x7f\xff\xff\xff\x00\x00\x00\x00\x04")
