"""The byte stream: how commands are cut out of it and written into it, and which bytes break it."""

import json
import string
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orderlymq_protocol.codes import LanguageCode, SerializeType
from orderlymq_protocol.frame import codec
from orderlymq_protocol.frame.binaryheader import HeaderFormatError
from orderlymq_protocol.frame.codec import (
    FRAME_SIZE_MAX,
    FrameDecoder,
    FrameError,
    encode,
    encode_parts,
)
from orderlymq_protocol.frame.command import REMARK_LENGTH_MAX, RemotingCommand, request
from tests.protocol import golden

INT32 = st.integers(-(2**31), 2**31 - 1)
INT16 = st.integers(-(2**15), 2**15 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)

JSON_COMMANDS = st.builds(
    RemotingCommand,
    code=INT32,
    opaque=INT32,
    flag=INT32,
    ext=st.dictionaries(TEXT, TEXT, max_size=6),
    body=st.binary(max_size=200),
    remark=st.none() | TEXT,
    language=st.sampled_from(sorted(LanguageCode)),
    version=INT32,
    serialize_type=st.just(SerializeType.JSON),
)
BINARY_COMMANDS = st.builds(
    RemotingCommand,
    code=INT16,
    opaque=INT32,
    flag=INT32,
    ext=st.dictionaries(TEXT, TEXT, max_size=6),
    body=st.binary(max_size=200),
    remark=st.none() | TEXT.filter(bool),
    language=st.sampled_from(sorted(LanguageCode)),
    version=INT16,
    serialize_type=st.just(SerializeType.ROCKETMQ),
)
COMMANDS = JSON_COMMANDS | BINARY_COMMANDS


def frame(header: bytes, body: bytes = b"", serialize_type: int = 0) -> bytes:
    total = 4 + len(header) + len(body)
    mark = serialize_type << 24 | len(header)
    return total.to_bytes(4, "big") + mark.to_bytes(4, "big") + header + body


def decode_one(data: bytes) -> RemotingCommand:
    (command,) = FrameDecoder().receive_data(data)
    return command


def decode_until_error(chunks: list[bytes]) -> tuple[list[RemotingCommand], bool]:
    """Feed the chunks; return the commands and whether the stream broke."""
    decoder = FrameDecoder()
    commands: list[RemotingCommand] = []
    for chunk in chunks:
        try:
            commands += decoder.receive_data(chunk)
        except FrameError as error:
            return commands + error.commands, True
    return commands, False


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


# -- golden frames -----------------------------------------------------------------------------------


def test_all_golden_frames_are_there() -> None:
    """The capture has 511 frames; if a line were lost, every test that reads all frames would be weaker."""
    assert len(golden.frames()) == 511


def test_golden_headers_decode_to_what_they_say() -> None:
    """Every field of a captured header is decoded; numbers in ext become text."""
    for captured in golden.frames():
        fields = captured.fields

        command = decode_one(captured.wire)

        ext = {
            key: value if isinstance(value, str) else json.dumps(value)
            for key, value in (fields.get("extFields") or {}).items()
        }
        assert command == RemotingCommand(
            fields["code"],
            fields["opaque"],
            fields["flag"],
            ext,
            captured.body,
            fields.get("remark"),
            LanguageCode[fields["language"]] if "language" in fields else LanguageCode.OTHER,
            fields.get("version", 0),
            SerializeType.JSON,
        ), f"line {captured.line}"


def test_golden_headers_are_written_with_the_same_meaning() -> None:
    """Decoding and encoding a captured frame keeps everything that a reader uses."""
    for captured in golden.frames():
        expected = dict(captured.fields)
        expected["serializeTypeCurrentRPC"] = (
            "JSON"  # Node and Go leave it out, Java and Rust do not
        )
        expected.setdefault("extFields", {})
        expected.setdefault("language", "OTHER")
        expected.setdefault("version", 0)
        ext = expected["extFields"]
        expected["extFields"] = {
            k: v if isinstance(v, str) else json.dumps(v) for k, v in ext.items()
        }

        written = encode(decode_one(captured.wire))

        header_size = int.from_bytes(written[4:8], "big")
        assert json.loads(written[8 : 8 + header_size]) == expected
        assert written[8 + header_size :] == captured.body
        assert int.from_bytes(written[:4], "big") == len(written) - 4


# -- binary headers ----------------------------------------------------------------------------------

BINARY_REQUEST = bytes.fromhex(
    "0000002d 01000029 0069 00 0199 00000001 00000000 00000000 00000014"
    " 0005 746f706963 00000009 546f70696354657374"
)
BINARY_RESPONSE = bytes.fromhex(
    "00000021 0100001d 0011 00 0199 00000001 00000001 00000008 6e6f20726f757465 00000000"
)


def test_a_binary_request_is_read_and_written_byte_by_byte() -> None:
    """The bytes come from Java's own encoder."""
    command = decode_one(BINARY_REQUEST)

    assert command == RemotingCommand(
        105,
        1,
        ext={"topic": "TopicTest"},
        language=LanguageCode.JAVA,
        version=409,
        serialize_type=SerializeType.ROCKETMQ,
    )
    assert encode(command) == BINARY_REQUEST


def test_a_binary_response_is_read_and_written_byte_by_byte() -> None:
    """The bytes come from Java's own encoder."""
    command = decode_one(BINARY_RESPONSE)

    assert command == RemotingCommand(
        17,
        1,
        1,
        remark="no route",
        language=LanguageCode.JAVA,
        version=409,
        serialize_type=SerializeType.ROCKETMQ,
    )
    assert encode(command) == BINARY_RESPONSE


def test_a_reply_uses_the_header_form_of_its_request() -> None:
    """A client that writes binary headers gets binary headers back, with the opaque of its request."""
    asked = decode_one(BINARY_REQUEST)

    reply = decode_one(encode(asked.reply(17, {"a": "b"}, b"body", "no route")))

    assert reply == RemotingCommand(
        17, 1, 1, {"a": "b"}, b"body", "no route", serialize_type=SerializeType.ROCKETMQ
    )
    assert reply.is_response
    assert not reply.is_oneway


@pytest.mark.parametrize(
    "header",
    [
        b"",
        BINARY_REQUEST[8:-1],
        BINARY_REQUEST[8:21] + b"\xff\xff\xff\xff" + BINARY_REQUEST[25:],
        BINARY_REQUEST[8:25] + b"\x7f\xff\xff\xff" + BINARY_REQUEST[29:],
        BINARY_REQUEST[8:29] + b"\xff\xff" + BINARY_REQUEST[31:],
        BINARY_REQUEST[8:-9] + b"\xff" * 9,
    ],
    ids=["empty", "short", "negative remark", "ext too long", "negative key", "not UTF-8"],
)
def test_a_broken_binary_header_is_a_frame_error(header: bytes) -> None:
    """The decoder checks the lengths in a binary header."""
    with pytest.raises(FrameError):
        decode_one(frame(header, serialize_type=1))


def test_a_code_too_large_for_a_binary_header_is_refused() -> None:
    """A binary header carries the code as int16."""
    command = request(200_050)
    command.serialize_type = SerializeType.ROCKETMQ

    with pytest.raises(FrameError, match="200050"):
        encode(command)


# -- JSON headers ------------------------------------------------------------------------------------


def test_numbers_and_flags_in_ext_become_text() -> None:
    """Node clients send raw numbers and booleans; null counts as absent."""
    header = (
        b'{"code":310,"opaque":1,"extFields":{"e":2,"k":false,"m":true,"n":null,"f":1.5,"b":"x"}}'
    )

    command = decode_one(frame(header))

    assert command.ext == {"e": "2", "k": "false", "m": "true", "f": "1.5", "b": "x"}


def test_text_values_are_kept_untouched() -> None:
    """Signatures are computed over the text exactly as it was sent."""
    text = "  -01\u0001\u0002\U0001f600 "

    command = decode_one(encode(request(310, {"i": text})))

    assert command.ext == {"i": text}


@pytest.mark.parametrize("name", ["KOTLIN", 3, None, ["JAVA"], {}])
def test_an_unknown_language_is_no_error(name: object) -> None:
    """A server accepts languages that it does not know; otherwise clients in new languages could not connect."""
    command = decode_one(frame(json.dumps({"code": 34, "language": name}).encode()))

    assert command.language == LanguageCode.OTHER


def test_absent_and_textual_numbers_of_a_header_are_read() -> None:
    """As Java does, the decoder reads a header with missing members and with numbers as text."""
    command = decode_one(frame(b'{"code":"105","opaque":"7","extFields":null,"remark":5}'))

    assert command == RemotingCommand(105, 7, language=LanguageCode.OTHER, version=0, remark="5")


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"310",
        b"{}",
        b'{"code":null}',
        b'{"code":"x"}',
        b'{"code":1.5}',
        b'{"code":true}',
        b'{"code":1,"opaque":[]}',
        b'{"code":2147483648}',
        b'{"code":1,"opaque":-2147483649}',
        b'{"code":1,"flag":99999999999999999999999}',
        b'{"code":1,"extFields":[]}',
        b'{"code":1,"extFields":"x"}',
        b'{"code":1,"remark":"\xff"}',
        b"[" * 5000,
    ],
)
def test_a_header_that_is_no_command_is_a_frame_error(header: bytes) -> None:
    """Garbage in place of a header closes the connection and has no other effect."""
    with pytest.raises(FrameError):
        decode_one(frame(header))


def test_a_command_with_broken_unicode_is_refused_before_it_is_sent() -> None:
    """A lone surrogate cannot be encoded as UTF-8, and the peer must not get half a header."""
    with pytest.raises(FrameError):
        encode(request(310, {"b": "\ud800"}))
    binary = request(310, {"b": "\ud800"})
    binary.serialize_type = SerializeType.ROCKETMQ
    with pytest.raises(FrameError):
        encode_parts(binary)


# -- limits and broken frames ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x00\x00\x00\x00\x00\x00\x00",
        b"\xff\xff\xff\xff\x00\x00\x00\x00",
        b"\x00\x00\x00\x00\x00\x00\x00\x00",
        b"\x00\x00\x00\x03\x00\x00\x00\x00",
        b"\x00\x00\x00\x08\x00\x00\x00\x05",
        b"\x00\x00\x00\x08\x02\x00\x00\x02",
        b"\x00\x00\x00\x08\xff\x00\x00\x02",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["2 GiB", "negative", "zero", "three", "header too long", "type 2", "type 255", "HTTP"],
)
def test_a_frame_that_cannot_be_is_refused_at_its_first_eight_bytes(data: bytes) -> None:
    """A frame that will be refused is refused by its first eight bytes, before the rest has arrived."""
    with pytest.raises(FrameError):
        FrameDecoder().receive_data(data)


def test_a_broken_decoder_stays_broken() -> None:
    """After a broken frame the decoder cannot find the next one, so it must not decode later good bytes."""
    decoder = FrameDecoder()
    with pytest.raises(FrameError):
        decoder.receive_data(b"\xff" * 8)

    with pytest.raises(FrameError):
        decoder.receive_data(BINARY_REQUEST)
    assert decoder.buffered_bytes == 0


def test_commands_before_a_broken_frame_are_not_lost() -> None:
    """A request is served even if garbage follows it in the same chunk."""
    with pytest.raises(FrameError) as caught:
        FrameDecoder().receive_data(BINARY_REQUEST + BINARY_RESPONSE + b"\xff" * 8)

    assert caught.value.commands == [decode_one(BINARY_REQUEST), decode_one(BINARY_RESPONSE)]


def test_a_decoder_knows_whether_it_keeps_a_whole_frame() -> None:
    """Law: the answer is right even if the decoder was asked for no command, or for fewer than it has."""
    one = encode(request(10, body=bytes(100)))
    decoder = FrameDecoder()
    told = []

    for data, count in ((one[:50], 0), (one[50:], 0), (one + one[:7], 1), (b"", 9), (one[7:50], 9)):
        decoder.receive_data(data, count)
        told.append(decoder.has_frame)

    assert told == [False, True, True, False, False]


def test_the_frame_limit_counts_the_whole_frame() -> None:
    """A frame of exactly the limit is accepted; one with a byte more is refused."""
    header = b'{"code":1}'
    body = b"x" * (100 - 8 - len(header))

    (command,) = FrameDecoder(100).receive_data(frame(header, body))

    assert command.body == body
    with pytest.raises(FrameError, match="101"):
        FrameDecoder(100).receive_data(frame(header, body + b"x"))


def test_a_command_over_the_limit_is_not_sent() -> None:
    """The peer would close the connection, which would fail every other request on it."""
    body = bytes(FRAME_SIZE_MAX)

    with pytest.raises(FrameError, match="cannot be sent"):
        encode(request(310, body=body))
    with pytest.raises(FrameError, match="cannot be sent"):
        encode_parts(request(310, body=body))


def test_an_announced_length_alone_allocates_nothing() -> None:
    """A thousand connections that each announce 16 MiB and then send nothing must cost almost no memory."""
    prefix = (FRAME_SIZE_MAX - 4).to_bytes(4, "big") + b"\x00\x00\x00\x10"
    tracemalloc.start()
    try:
        decoders = [FrameDecoder() for _ in range(100)]
        for decoder in decoders:
            assert decoder.receive_data(prefix) == []

        current, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert current < 100 * 1024
    assert [decoder.buffered_bytes for decoder in decoders] == [8] * 100


def test_what_is_kept_never_exceeds_frame_limit_and_chunk() -> None:
    """The buffer holds at most one unfinished frame, no matter in which pieces the bytes arrive."""
    limit = 4096
    decoder = FrameDecoder(limit)
    stream = frame(b'{"code":1}', bytes(limit - 18)) * 3

    for at in range(0, len(stream), 1000):
        decoder.receive_data(stream[at : at + 1000])

        assert decoder.buffered_bytes <= limit


def test_a_large_frame_in_small_pieces_takes_linear_time() -> None:
    """4 MiB arrive in pieces of 64 bytes: scanning the whole buffer once per piece would take minutes."""
    stream = memoryview(frame(b'{"code":1}', bytes(4 * 1024 * 1024)))
    decoder = FrameDecoder()
    commands: list[RemotingCommand] = []

    for at in range(0, len(stream), 64):
        commands += decoder.receive_data(stream[at : at + 64])

    assert [len(command.body) for command in commands] == [4 * 1024 * 1024]


def test_the_parts_of_a_frame_are_the_frame_and_the_body_is_not_copied() -> None:
    """A pull reply of 256 KiB is written to the socket as it came from the store."""
    command = request(11, {"a": "b"}, bytes(1000))

    head, body = encode_parts(command)

    assert head + body == encode(command)
    assert body is command.body
    assert encode_parts(request(34)) == [encode(request(34))]


# -- properties --------------------------------------------------------------------------------------


@given(COMMANDS)
def test_every_command_survives_the_wire(command: RemotingCommand) -> None:
    """The receiver decodes exactly what the sender encoded, in both header forms."""
    assert decode_one(encode(command)) == command
    assert b"".join(encode_parts(command)) == encode(command)


@given(
    st.lists(COMMANDS, max_size=5),
    st.lists(st.integers(0, 2**16), max_size=12),
    st.sampled_from([bytes, bytearray, memoryview]),
)
def test_chunks_do_not_matter(
    commands: list[RemotingCommand], places: list[int], kind: type[bytes]
) -> None:
    """TCP keeps no boundaries: a stream gives the same commands, no matter where it is cut into chunks."""
    stream = b"".join(map(encode, commands))
    decoder = FrameDecoder()

    received = [
        command for chunk in cut(stream, places) for command in decoder.receive_data(kind(chunk))
    ]

    assert received == commands
    assert decoder.buffered_bytes == 0


@given(st.lists(st.binary(max_size=300), max_size=5))
def test_arbitrary_bytes_raise_nothing_but_frame_errors(chunks: list[bytes]) -> None:
    """The decoder raises only FrameError, which the connection expects, for any bytes."""
    decode_until_error(chunks)


@given(st.binary(max_size=300), st.sampled_from([0, 1]), st.binary(max_size=50))
def test_arbitrary_headers_raise_nothing_but_frame_errors(
    header: bytes, serialize_type: int, body: bytes
) -> None:
    """A well-framed header may have any contents."""
    decode_until_error([frame(header, body, serialize_type)])


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@given(
    st.dictionaries(
        st.sampled_from(["code", "opaque", "flag", "version", "language", "remark", "extFields"]),
        JSON_VALUES | st.dictionaries(TEXT, JSON_VALUES, max_size=3),
    )
)
def test_arbitrary_json_headers_give_commands_that_can_be_sent(
    fields: dict[str, object],
) -> None:
    """A header with the right names and wrong types is refused, or is read into a command that can be encoded."""
    commands, _ = decode_until_error([frame(json.dumps(fields).encode())])

    for command in commands:
        assert all(type(value) is str for value in command.ext.values())
        assert decode_one(encode(command)) == command


@settings(max_examples=300)
@given(
    st.integers(0, 510),
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=4),
    st.lists(st.integers(0, 2**16), max_size=5),
)
def test_mutated_golden_frames_break_the_same_way_in_any_chunks(
    index: int, mutations: list[tuple[int, int]], places: list[int]
) -> None:
    """Real frames with flipped bytes give the same commands or FrameError, no matter where they are cut."""
    data = bytearray(golden.frames()[index].wire)
    for place, value in mutations:
        # The first bytes decide most, so half of the mutations go there.
        data[place % (24 if place % 2 else len(data))] = value
    stream = bytes(data) + BINARY_REQUEST

    whole = decode_until_error([stream])

    assert decode_until_error(cut(stream, places)) == whole


@given(st.text(string.printable, max_size=40), st.integers(0, 255))
def test_text_protocols_are_refused_or_awaited(text: str, first: int) -> None:
    """The first line that a browser or a shell sends to the port is refused, or the decoder waits for more."""
    _, broken = decode_until_error([bytes([first | 0x20]) + text.encode() + b"\r\n" * 8])

    assert broken


_ODD: Final = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**33), 2**33),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", "7", "-1", "JAVA", "x", "\ud83d", "é"]),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.sampled_from(["a", "b"]), st.one_of(st.none(), st.text(max_size=3))),
)


@given(
    st.dictionaries(
        st.sampled_from(
            ["code", "opaque", "flag", "version", "language", "remark", "extFields", "more"]
        ),
        _ODD,
    )
)
def test_the_short_way_through_a_header_ends_where_the_long_one_does(
    header: dict[str, object],
) -> None:
    """The fast reader accepts and refuses the same headers as the reader that checks the type of each member."""
    raw = json.dumps(header).encode()

    def outcome(read: Callable[[], RemotingCommand]) -> object:
        try:
            return read()
        except HeaderFormatError:
            return "refused"

    assert outcome(lambda: codec._decode_header(raw, 0, b"")) == outcome(
        lambda: codec._decode_unusual(raw, b"")
    )


def test_the_remark_of_an_answer_is_short() -> None:
    """A refusal quotes parts of the request; it must not send megabytes of it back."""
    command = RemotingCommand(11, 7)

    assert command.reply(1, remark="x" * 9_000_000).remark == "x" * REMARK_LENGTH_MAX
    assert command.reply(1, remark="no").remark == "no"
    assert command.reply().remark is None


@pytest.mark.parametrize(("minor", "is_tls"), [(1, True), (3, True), (4, True), (5, False)])
def test_a_tls_greeting_is_called_by_its_name(minor: int, *, is_tls: bool) -> None:
    """The error says that the peer uses TLS, so that readers of the log know what to change."""
    hello = bytes([22, 3, minor, 2, 0, 1, 0, 1, 252])

    with pytest.raises(FrameError) as caught:
        FrameDecoder().receive_data(hello)

    assert (str(caught.value) == "TLS was received, but TLS is off here") is is_tls
