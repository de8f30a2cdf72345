"""
The binary form of a command header (serialize type ROCKETMQ).

Layout: `int16 code | int8 language | int16 version | int32 opaque | int32 flag | int32 n, remark |
int32 n, ext`, where ext repeats `int16 n, key, int32 n, value`. A length of zero means null.
Rule: a reply uses the form of its request, so this form must be able to express everything that JSON can. The exception
is codes above int16, which no client sends this way. `codec` is the only caller.
"""

import struct
from struct import Struct
from typing import Final

from orderlymq_protocol.codes import LanguageCode, SerializeType
from orderlymq_protocol.frame.command import RemotingCommand

# Most fields of a header, in both forms. A check of a signature sorts and hashes all of them before it knows who asks: 90,000
# took a tenth of a second. RocketMQ's largest request has some 30, all properties of a message in one; a program's hook may add some.
FIELDS_MAX: Final = 256

_FIXED: Final = Struct(">hBhiii")
_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_LANGUAGES: Final = frozenset(int(code) for code in LanguageCode)


class HeaderFormatError(ValueError):
    """The header cannot be read or written; `codec` reports it as `FrameError`."""


def too_many(count: int) -> HeaderFormatError:
    """Return the error for a header with too many fields."""
    return HeaderFormatError(f"{count} fields are more than the limit, {FIELDS_MAX}")


def encode(command: RemotingCommand) -> bytes:
    """Return the binary header of *command*.

    Raises:
        HeaderFormatError: A number or a text does not fit its field.
    """
    try:
        ext = b"".join(_pair(key, value) for key, value in command.ext.items())
        remark = (command.remark or "").encode()
        fixed = _FIXED.pack(
            command.code,
            command.language,
            command.version,
            command.opaque,
            command.flag,
            len(remark),
        )
    except (struct.error, UnicodeEncodeError) as error:
        raise HeaderFormatError(
            f"the value cannot be written in a binary header: {error}"
        ) from error
    return b"".join((fixed, remark, _INT32.pack(len(ext)), ext))


def decode(header: bytes, body: bytes) -> RemotingCommand:
    """Return the command of a binary *header* with *body*.

    Raises:
        HeaderFormatError: A length points outside the header or a text is not UTF-8.
    """
    try:
        code, language, version, opaque, flag, remark_size = _FIXED.unpack_from(header)
        remark, position = _take(header, _FIXED.size, remark_size)
        (ext_size,) = _INT32.unpack_from(header, position)
        ext_bytes, _ = _take(header, position + 4, ext_size)
        return RemotingCommand(
            code,
            opaque,
            flag,
            _decode_ext(ext_bytes),
            body,
            remark.decode() if remark else None,
            language if language in _LANGUAGES else LanguageCode.OTHER,
            version,
            SerializeType.ROCKETMQ,
        )
    except (struct.error, UnicodeDecodeError) as error:
        raise HeaderFormatError(f"the binary header cannot be read: {error}") from error


def _pair(key: str, value: str) -> bytes:
    key_bytes, value_bytes = key.encode(), value.encode()
    return b"".join(
        (_INT16.pack(len(key_bytes)), key_bytes, _INT32.pack(len(value_bytes)), value_bytes)
    )


def _decode_ext(data: bytes) -> dict[str, str]:
    ext: dict[str, str] = {}
    position = 0
    # Fields with the same name count, too: each costs as much as another.
    for _ in range(FIELDS_MAX):
        if position == len(data):
            return ext
        (size,) = _INT16.unpack_from(data, position)
        key, position = _take(data, position + 2, size)
        (size,) = _INT32.unpack_from(data, position)
        value, position = _take(data, position + 4, size)
        ext[key.decode()] = value.decode()
    if position < len(data):
        raise HeaderFormatError(f"the binary header has more than {FIELDS_MAX} fields")
    return ext


def _take(data: bytes, start: int, size: int) -> tuple[bytes, int]:
    if size < 0 or start + size > len(data):
        raise HeaderFormatError(f"a length of {size} points outside the binary header")
    return data[start : start + size], start + size
