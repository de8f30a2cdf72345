"""
Frames: cut the byte stream of a connection into commands, and turn commands into bytes.

A frame is `int32 total | int32 (serialize type << 24 | header length) | header | body`, all big-endian;
`total` does not count itself. Rules: for any bytes that arrive, `FrameDecoder` raises `FrameError`
and nothing else. It holds at most one frame limit plus the last chunk. It allocates nothing only because
a peer announced a length. What `encode` writes can be read: a request by a server, an answer by the process that asked.
`command` describes the content of the header, and the package `header` its types; the binary form of the header is
in `binaryheader`.
"""

import struct
from struct import Struct
from typing import Final

import msgspec
import orjson

from orderlymq_protocol.codes import LanguageCode, SerializeType
from orderlymq_protocol.decodeerrors import UNREADABLE
from orderlymq_protocol.frame import binaryheader
from orderlymq_protocol.frame.binaryheader import FIELDS_MAX, HeaderFormatError, too_many
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.frame.jsonheader import UsualHeader
from orderlymq_protocol.integers import INT32_MAX, INT32_MIN, read_integer

# Java peers close the connection on anything larger (com.rocketmq.remoting.frameMaxLength); the number
# counts the four bytes of the length itself, as Netty's LengthFieldBasedFrameDecoder does.
FRAME_SIZE_MAX: Final = 16_777_216

_EVERY_COMMAND: Final = 1 << 62

_PREFIX: Final = Struct(">II")
_PREFIX_SIZE: Final = 8
# Handlers may go through a field more than once. RocketMQ's largest field holds the properties of a message, 32 KiB; with each
# character escaped these are 192 KiB. The rights of an account, with 1,000 topics and 1,000 groups with long names, take 400 KB.
# Reading as much in small fields takes some 10 ms.
HEADER_SIZE_MAX: Final = 512 << 10
# For an answer, which comes only from a peer that this process chose. A batch of BATCH_COUNT_MAX messages is answered with as many
# ids, of 57 bytes at an IPv6 address, and as many places, of 26.
ANSWER_HEADER_SIZE_MAX: Final = 2 << 20
_HEADER_SIZE_MASK: Final = 0xFFFFFF
_MARK_MAX: Final = SerializeType.ROCKETMQ << 24 | _HEADER_SIZE_MASK
# The first bytes of a TLS handshake, by version; no frame has such a length.
_TLS_HANDSHAKES: Final = range(0x16_03_01, 0x16_03_05)
# Packing is the cheapest way to find out whether four numbers are all int32.
_FOUR_INT32: Final = Struct(">iiii")

_LANGUAGE_BY_NAME: Final[dict[object, int]] = {code.name: int(code) for code in LanguageCode}
_decode_usual: Final = msgspec.json.Decoder(UsualHeader).decode
_NAME_BY_LANGUAGE: Final[dict[int, str]] = {int(code): code.name for code in LanguageCode}


class FrameError(ValueError):
    """The stream is not the remoting protocol: close the connection.

    `commands` are the good commands before the broken frame in the same chunk. They were
    received in full and must be served as if each had come alone.
    """

    def __init__(self, message: str, commands: list[RemotingCommand] | None = None) -> None:
        super().__init__(message)
        self.commands: list[RemotingCommand] = [] if commands is None else commands


class FrameDecoder:
    """Cuts the bytes of one connection into commands; one decoder per connection and direction.

    *header_size_max* is `ANSWER_HEADER_SIZE_MAX` if answers are read.
    After a `FrameError` the decoder stays broken and raises again, because it cannot find the next frame.
    """

    __slots__ = ("_broken", "_buffer", "_frame_size_max", "_header_size_max", "_needed")

    def __init__(
        self, frame_size_max: int = FRAME_SIZE_MAX, header_size_max: int = HEADER_SIZE_MAX
    ) -> None:
        self._frame_size_max = frame_size_max
        self._header_size_max = header_size_max
        self._buffer = bytearray()
        # Bytes that must be there before it pays to look at the buffer again. A large frame that arrives
        # in small pieces is then looked at twice, not once per piece.
        self._needed = _PREFIX_SIZE
        self._broken: str | None = None

    @property
    def buffered_bytes(self) -> int:
        """Bytes that are kept: an unfinished frame, and frames that nobody has asked for yet."""
        return len(self._buffer)

    @property
    def has_frame(self) -> bool:
        """Whether a whole frame is kept."""
        return len(self._buffer) >= self._needed

    def receive_data(
        self, data: bytes | bytearray | memoryview, count_max: int = _EVERY_COMMAND
    ) -> list[RemotingCommand]:
        """Take the next bytes of the stream and return the commands that they complete.

        If there are more than *count_max*, the later ones stay bytes until the next call, which may pass no data.

        Raises:
            FrameError: The stream cannot be understood; `FrameError.commands` are still good.
        """
        if self._broken is not None:
            raise FrameError(self._broken)

        buffer = self._buffer
        if not buffer:
            commands: list[RemotingCommand] = []
            used = self._cut(data, commands, count_max)
            if used < len(data):
                buffer += memoryview(data)[used:]
            return commands

        buffer += data
        if len(buffer) < self._needed:
            return []
        commands = []
        used = self._cut(buffer, commands, count_max)
        # CPython only moves the start of the array here; nothing is copied until it has to grow.
        del buffer[:used]
        return commands

    def _cut(
        self,
        data: bytes | bytearray | memoryview,
        commands: list[RemotingCommand],
        count_max: int,
    ) -> int:
        """Append the first whole frames of *data* to *commands*; return how many bytes they took."""
        # A slice of bytes is bytes; anything else is cut as a view, so that a body is copied once.
        view = data if type(data) is bytes else memoryview(data)
        position = 0
        size = len(view)
        while size - position >= _PREFIX_SIZE:
            total, mark = _PREFIX.unpack_from(view, position)
            header_at = position + _PREFIX_SIZE
            body_at = header_at + (mark & _HEADER_SIZE_MASK)
            end = position + 4 + total
            if (
                end - position > self._frame_size_max
                or body_at > end
                or body_at - header_at > self._header_size_max
                or mark > _MARK_MAX
            ):
                raise self._break(self._refusal(total, mark), commands)
            if end > size:
                self._needed = end - position
                return position
            if len(commands) >= count_max:
                break
            try:
                commands.append(
                    _decode_header(view[header_at:body_at], mark >> 24, view[body_at:end])
                )
            except HeaderFormatError as error:
                raise self._break(str(error), commands) from error
            position = end
        self._needed = _PREFIX_SIZE
        return position

    def _refusal(self, total: int, mark: int) -> str:
        if total + 4 > self._frame_size_max:
            return oversize(total, total + 4, self._frame_size_max)
        if mark > _MARK_MAX:
            return f"unknown header serialize type {mark >> 24}"
        header_size, limit = mark & _HEADER_SIZE_MASK, self._header_size_max
        if header_size > limit:
            return f"a header of {header_size} bytes is announced, the limit is {limit}"
        return f"a header of {header_size} bytes does not fit a frame of {total + 4}"

    def _break(self, message: str, commands: list[RemotingCommand]) -> FrameError:
        self._broken = message
        self._buffer = bytearray()
        return FrameError(message, commands)


def oversize(word: int, size: int, size_max: int) -> str:
    """Say why a frame of *size* bytes is not read; *word* is the number in its first four bytes."""
    if word >> 8 in _TLS_HANDSHAKES:
        return "TLS was received, but TLS is off here"
    return f"a frame of {size} bytes is announced, the limit is {size_max}"


def encode(command: RemotingCommand) -> bytes:
    """Return the whole frame of *command*.

    Raises:
        FrameError: The command cannot be written: too large, or a text that is not valid Unicode.
    """
    return b"".join(encode_parts(command))


def encode_parts(command: RemotingCommand) -> list[bytes]:
    """Return the frame as header part and body, so that a large body is written without a copy.

    Raises:
        FrameError: As `encode`.
    """
    header = _encode_header(command)
    body = command.body
    header_size = len(header)
    total = 4 + header_size + len(body)
    # Refused here because the peer would answer by closing the connection, which fails every other
    # request on it, too.
    if total + 4 > FRAME_SIZE_MAX:
        raise FrameError(
            f"a frame of {total + 4} bytes cannot be sent, the limit is {FRAME_SIZE_MAX}"
        )
    header_size_max = ANSWER_HEADER_SIZE_MAX if command.is_response else HEADER_SIZE_MAX
    if header_size > header_size_max:
        raise FrameError(
            f"a header of {header_size} bytes cannot be sent, the limit is {header_size_max}"
        )
    head = _PREFIX.pack(total, command.serialize_type << 24 | header_size) + header
    return [head, body] if body else [head]


def _encode_header(command: RemotingCommand) -> bytes:
    try:
        if len(command.ext) > FIELDS_MAX:
            raise too_many(len(command.ext))
        if command.serialize_type is SerializeType.ROCKETMQ:
            return binaryheader.encode(command)
        header: dict[str, object] = {
            "code": command.code,
            "language": _NAME_BY_LANGUAGE.get(command.language, "OTHER"),
            "version": command.version,
            "opaque": command.opaque,
            "flag": command.flag,
            "extFields": command.ext,
            # Only the Rust client reads it, and it accepts no header without it.
            "serializeTypeCurrentRPC": "JSON",
        }
        if command.remark is not None:
            header["remark"] = command.remark
        return orjson.dumps(header)
    except (orjson.JSONEncodeError, HeaderFormatError) as error:
        raise FrameError(f"the header of code {command.code} cannot be written: {error}") from error


def _decode_header(
    header: bytes | memoryview, serialize_type: int, body: bytes | memoryview
) -> RemotingCommand:
    if serialize_type:
        return binaryheader.decode(bytes(header), bytes(body))
    try:
        usual = _decode_usual(header)
    except UNREADABLE:
        return _decode_unusual(header, body)
    ext = usual.extFields
    if ext is None:
        ext = {}
    elif len(ext) > FIELDS_MAX:
        raise too_many(len(ext))
    return RemotingCommand(
        usual.code,
        usual.opaque,
        usual.flag,
        ext,
        bytes(body),
        usual.remark,
        LanguageCode.OTHER
        if usual.language is None
        else _LANGUAGE_BY_NAME.get(usual.language, LanguageCode.OTHER),
        usual.version,
        SerializeType.JSON,
    )


def _decode_unusual(header: bytes | memoryview, body: bytes | memoryview) -> RemotingCommand:
    """Read a header whose types are not Java's: repair it as fastjson would, or refuse it."""
    try:
        fields = orjson.loads(header)
    except orjson.JSONDecodeError as error:
        raise HeaderFormatError(f"the header is not JSON: {error}") from error
    if type(fields) is not dict:
        raise HeaderFormatError("the header is not a JSON object")

    get = fields.get
    code, opaque, flag, version = get("code"), get("opaque"), get("flag"), get("version")
    if not (type(code) is type(opaque) is type(flag) is type(version) is int):
        code = _integer("code", code, None)
        opaque = _integer("opaque", opaque, 0)
        flag = _integer("flag", flag, 0)
        version = _integer("version", version, 0)
    try:
        _FOUR_INT32.pack(code, opaque, flag, version)
    except struct.error as too_large:
        raise HeaderFormatError("a number in the header is not an int32") from too_large

    ext = get("extFields")
    if ext is None:
        ext = {}
    elif type(ext) is not dict:
        raise HeaderFormatError("extFields is not a JSON object")
    elif len(ext) > FIELDS_MAX:
        raise too_many(len(ext))
    remark = get("remark")
    return RemotingCommand(
        code,
        opaque,
        flag,
        # Node clients send values unquoted that fastjson reads as text into a map of strings.
        {key: _text(value) for key, value in ext.items() if value is not None},
        bytes(body),
        None if remark is None else _text(remark),
        _language(get("language")),
        version,
        SerializeType.JSON,
    )


def _language(name: object) -> int:
    # A name that is not text (a list, say) may not be hashable, so it is not looked up.
    if type(name) is str:
        return _LANGUAGE_BY_NAME.get(name, LanguageCode.OTHER)
    return LanguageCode.OTHER


def _integer(name: str, value: object, default: int | None) -> int:
    """Read a number as fastjson does: text counts as its number, null and a missing value as the default."""
    if type(value) is int and INT32_MIN <= value <= INT32_MAX:
        return value
    if value is None and default is not None:
        return default
    if type(value) is str:
        try:
            return read_integer(value, INT32_MIN, INT32_MAX)
        except ValueError as error:
            raise HeaderFormatError(f"{name} in the header is not a number") from error
    raise HeaderFormatError(f"{name} in the header is missing or not a number")


def _text(value: object) -> str:
    return value if type(value) is str else orjson.dumps(value).decode()
