"""
Parses many stored records into arrays of their fields, without a Python object per message.

Rule: the fields equal those that `orderlymq_protocol.message.record.decode_record` reads. Records of any shape (IPv6
hosts, long topics) take the same path. Lengths are checked before any field is cut out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from orderlymq_protocol.message import sysflag
from orderlymq_protocol.message.record import MAGIC_V1, MAGIC_V2, RecordError

Numbers = npt.NDArray[np.int64]

_SIZE: Final = Struct(">i").unpack_from
_INT16: Final = np.dtype(">i2")
# The fields before the first host, at the same place in every record.
_FRONT: Final = np.dtype(
    {
        "names": ["magic", "flag", "queue_offset", "physical_offset", "sys_flag", "born_ms"],
        "formats": [">u4", ">i4", ">i8", ">i8", ">i4", ">i8"],
        "offsets": [4, 16, 20, 28, 36, 40],
        "itemsize": 48,
    }
)
# The fields after it: their places in a record whose hosts are IPv4.
_STORE_MS: Final = np.dtype(">i8")
_STORE_MS_AT: Final = 56
_TAIL_AT: Final = 72
_TAIL: Final = np.dtype(
    {
        "names": ["reconsume_times", "body_size"],
        "formats": [">i4", ">i4"],
        "offsets": [0, 12],
        "itemsize": 16,
    }
)
_BODY_AT: Final = _TAIL_AT + _TAIL.itemsize
_IPV6_MORE: Final = 12  # bytes by which an IPv6 host is longer
_LENGTHS: Final = 3  # the length fields of the topic (one byte) and of the properties
_SMALLEST: Final = _BODY_AT + _LENGTHS


@dataclass(slots=True)
class RecordBlock:
    """Consecutive records of one queue, split into fields; all parts have one entry per record.

    Attributes:
        numbers: queue_offset, physical_offset, flag, sys_flag, born_ms, store_ms, reconsume_times.
        bodies, properties: as stored.
        stored: the bytes of all records.
        starts: the place of each record in `stored`.
    """

    numbers: dict[str, Numbers]
    bodies: pa.Array
    properties: pa.Array
    stored: bytes
    starts: Numbers

    def __len__(self) -> int:
        return len(self.starts)

    def part(self, start: int, end: int, bodies: pa.Array) -> "RecordBlock":
        """Return a slice of the records, with other bodies."""
        numbers = {name: each[start:end] for name, each in self.numbers.items()}
        properties = self.properties[start:end]
        return RecordBlock(numbers, bodies, properties, self.stored, self.starts[start:end])


def parse_records(chunks: Sequence[bytes], start: int, end: int) -> RecordBlock:
    """Return the records of pull bodies whose queue offsets lie in [start, end).

    Raises:
        RecordError: A chunk is not a sequence of records.
    """
    starts, ends = _bounds(chunks)
    stored = b"".join(chunks)
    content = np.frombuffer(stored, np.uint8)
    front = _cut(content, starts, _FRONT)
    born_more = np.where(front["sys_flag"] & sysflag.BORN_HOST_IPV6, _IPV6_MORE, 0)
    more = born_more + np.where(front["sys_flag"] & sysflag.STORE_HOST_IPV6, _IPV6_MORE, 0)
    bodies_at = starts + more + _BODY_AT
    _check(bodies_at + _LENGTHS <= ends, starts)
    store_ms = _cut(content, starts + born_more + _STORE_MS_AT, _STORE_MS)
    tail = _cut(content, starts + more + _TAIL_AT, _TAIL)
    bodies_end = bodies_at + tail["body_size"]
    _check((tail["body_size"] >= 0) & (bodies_end + _LENGTHS <= ends), starts)
    properties_at = bodies_end + _topic_part(content, front["magic"], bodies_end, starts)
    _check(properties_at <= ends, starts)
    _check(properties_at + _cut(content, properties_at - 2, _INT16) == ends, starts)
    # A damaged record outside the range is also an error, because its offset may be the damaged part.
    wanted = (front["queue_offset"] >= start) & (front["queue_offset"] < end)
    if not wanted.all():
        starts, ends, front, store_ms, tail = (
            each[wanted] for each in (starts, ends, front, store_ms, tail)
        )
        bodies_at, bodies_end, properties_at = (
            each[wanted] for each in (bodies_at, bodies_end, properties_at)
        )
    names = ("queue_offset", "physical_offset", "flag", "sys_flag", "born_ms")
    numbers = {name: front[name].astype(np.int64) for name in names}
    numbers["store_ms"] = store_ms.astype(np.int64)
    numbers["reconsume_times"] = tail["reconsume_times"].astype(np.int64)
    return RecordBlock(
        numbers,
        text_slices(stored, bodies_at, bodies_end, pa.binary()),
        text_slices(stored, properties_at, ends, pa.binary()),
        stored,
        starts,
    )


def _bounds(chunks: Sequence[bytes]) -> tuple[Numbers, Numbers]:
    """Return where each record begins and ends in the joined chunks."""
    starts: list[int] = []
    base = 0
    for chunk in chunks:
        position, size = 0, len(chunk)
        while position <= size - _SMALLEST:
            starts.append(base + position)
            (length,) = _SIZE(chunk, position)
            if length < _SMALLEST or position + length > size:
                raise RecordError(f"the record at {starts[-1]} is torn")
            position += length
        if position != size:
            raise RecordError(f"the record at {base + position} is torn")
        base += size
    # A record ends where the next one begins.
    bounds = np.array([*starts, base], np.int64)
    return bounds[:-1], bounds[1:]


def _cut(content: npt.NDArray[np.uint8], starts: Numbers, shape: "np.dtype[Any]") -> Any:
    """Return the fields that begin at the given places."""
    if not len(starts):
        return np.empty(0, shape)
    # The void type copies each record's bytes in one piece; a structured type would copy field by field.
    count, kind = len(content) - shape.itemsize + 1, np.dtype((np.void, shape.itemsize))
    return np.ndarray((count,), kind, content, strides=(1,))[starts].view(shape)


def _topic_part(
    content: npt.NDArray[np.uint8],
    magic: npt.NDArray[np.uint32],
    bodies_end: Numbers,
    starts: Numbers,
) -> Numbers:
    """Return the bytes that the topic and both lengths take after each body."""
    long = magic == MAGIC_V2
    _check(long | (magic == MAGIC_V1), starts)
    first = content[bodies_end].astype(np.int64)
    return np.where(long, (first << 8 | content[bodies_end + 1]) + 1, first) + _LENGTHS


def _check(good: npt.NDArray[np.bool_], starts: Numbers) -> None:
    if not good.all():
        first = int(starts[int(np.argmin(good))])
        raise RecordError(f"the record at {first} has parts that do not fill it")


def text_slices(
    content: bytes | pa.Buffer, starts: Numbers, ends: Numbers, kind: pa.DataType
) -> pa.Array:
    """Return slices of a text as values of *kind*, which is binary or string; the bytes are not checked.

    Args:
        content: less than 2 GiB.
        starts: of the slices, which are in order and do not overlap.
        ends: of the slices.
        kind: of the values.
    """
    count = len(starts)
    if not count:
        return pa.array([], kind)
    # One array without copying holds the slices and the gaps between them; every second value is a slice.
    places = np.empty(2 * count, np.int32)
    places[0::2], places[1::2] = starts, ends
    buffers = [None, pa.py_buffer(places), pa.py_buffer(content)]
    both = pa.Array.from_buffers(kind, 2 * count - 1, buffers)
    return both.take(pa.array(np.arange(0, 2 * count, 2)))
