"""
Compressed bodies: producers deflate, consumers inflate, brokers store bodies as they get them.

The sysFlag gives the type: 0 is zlib by clients older than the type bits, 1 LZ4 frames, 2 Zstandard,
3 zlib. Rule: inflating is bounded. For any body, no more than the caller's limit is produced.
Zstandard is imported when a body needs it, because few producers use it and its library is large.
"""

import importlib
import zlib
from enum import IntEnum
from typing import Any, Final

import lz4.frame

from orderlymq_protocol.message import sysflag

# The level at which the Java client compresses.
COMPRESS_LEVEL: Final = 5

# The window of Zstandard's level 19; a body may ask for a window of 2 GiB.
_ZSTD_WINDOW_BYTES_MAX: Final = 8 * 1024 * 1024


class CompressionType(IntEnum):
    """How a body is compressed: the type bits of sysFlag."""

    ZLIB_UNMARKED = 0
    LZ4 = 1
    ZSTD = 2
    ZLIB = 3


class CompressionError(ValueError):
    """The body is not what its flags say, or too large when inflated."""


def compress(
    body: bytes, kind: CompressionType = CompressionType.ZLIB, level: int = COMPRESS_LEVEL
) -> bytes:
    """Return *body* compressed; mark it with `sysflag.with_compression(sys_flag, kind)`."""
    match kind:
        case CompressionType.LZ4:
            packed: bytes = lz4.frame.compress(body, compression_level=level)
            return packed
        case CompressionType.ZSTD:
            frame: bytes = _zstandard().ZstdCompressor(level=level).compress(body)
            return frame
        case CompressionType.ZLIB | CompressionType.ZLIB_UNMARKED:
            return zlib.compress(body, level)


def decompress(body: bytes, sys_flag: int, size_max: int, *, cut: bool = False) -> bytes:
    """Return the body as its producer had it; a body that is not marked as compressed is returned unchanged.

    With *cut*, the first *size_max* bytes of a longer body are returned, marked or not. No more is inflated, and the bytes behind
    them may be broken.

    Raises:
        CompressionError: The body is broken, of an unknown type, longer than *size_max* when inflated, or
            needs the library of Zstandard, which is not installed.
    """
    if not sys_flag & sysflag.COMPRESSED:
        return body[:size_max] if cut else body
    number = sysflag.compression_type(sys_flag)
    try:
        kind = CompressionType(number)
    except ValueError as error:
        raise CompressionError(f"unknown compression type {number}") from error
    match kind:
        case CompressionType.LZ4:
            inflated = _unlz4(body, size_max)
        case CompressionType.ZSTD:
            inflated = _unzstd(body, size_max)
        case CompressionType.ZLIB | CompressionType.ZLIB_UNMARKED:
            inflated = _unzlib(body, size_max)
    if len(inflated) <= size_max:
        return inflated
    if cut:
        return inflated[:size_max]
    raise CompressionError(f"the body has more than {size_max} bytes after decompression")


# One byte more than allowed is asked for, to distinguish "exactly the limit" from "more than it".


def _unzlib(body: bytes, size_max: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(body, size_max + 1)
    except zlib.error as error:
        raise CompressionError(f"the body is not a zlib stream: {error}") from error
    if not inflater.eof and len(inflated) <= size_max:
        raise CompressionError("the zlib stream of the body is cut short")
    return inflated


def _unlz4(body: bytes, size_max: int) -> bytes:
    inflater = lz4.frame.LZ4FrameDecompressor()
    try:
        inflated: bytes = inflater.decompress(body, max_length=size_max + 1)
    except (RuntimeError, EOFError) as error:
        raise CompressionError(f"the body is not an LZ4 frame: {error}") from error
    if not inflater.eof and len(inflated) <= size_max:
        raise CompressionError("the LZ4 frame of the body is cut short")
    return inflated


def _zstandard() -> Any:
    try:
        return importlib.import_module("zstandard")
    except ImportError as error:
        raise CompressionError(
            "decompressing the body needs the Zstandard library: install orderlymq[zstd]"
        ) from error


def _unzstd(body: bytes, size_max: int) -> bytes:
    zstandard = _zstandard()
    inflater = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX)
    size = 0
    parts: list[bytes] = []
    try:
        # Only the reader can be stopped at a size, and only the object knows whether the frame was
        # whole, so there are two passes. Producers use Zstandard only if they are configured to.
        with inflater.stream_reader(body) as reader:
            while size <= size_max and (part := reader.read(size_max + 1 - size)):
                size += len(part)
                parts.append(part)
        if size > size_max:
            return b"".join(parts)
        parts.clear()
        whole = inflater.decompressobj()
        inflated: bytes = whole.decompress(body)
    except zstandard.ZstdError as error:
        raise CompressionError(f"the body is not a Zstandard frame: {error}") from error
    if not whole.eof:
        raise CompressionError("the Zstandard frame of the body is cut short")
    return inflated
