"""
Stored records to Arrow columns: the hot path of every read.

Rule: what comes out is what `orderlymq_protocol.record` and `.properties` would read; the difference is only
that one record costs one `unpack` and two slices, and properties of a whole block are taken apart by Arrow.
A body that cannot be inflated is kept as it is, with the reason in the column body_error. A block of compressed bodies
becomes as many batches as its inflated bodies need: a task's memory does not depend on how well they were compressed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orderlymq.wire import INFLATED_SIZE_MAX
from orderlymq_protocol import properties as names
from orderlymq_protocol import sysflag
from orderlymq_protocol.compression import CompressionError, decompress
from orderlymq_protocol.message_id import encode_offset_message_id
from orderlymq_protocol.messagequeue import MessageQueue
from orderlymq_protocol.record import MAGIC_V1, RecordError, decode_record

ARROW_TYPES: Final = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "array<string>": pa.list_(pa.field("element", pa.string())),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
    "binary": pa.binary(),
}
# size, magic, flag, queue offset, physical offset, sysFlag, born, store, reconsumeTimes, body length
_HEAD: Final = Struct(">II8xiqqiq8xq8xi8xi")
_HOSTS_IPV6: Final = sysflag.BORN_HOST_IPV6 | sysflag.STORE_HOST_IPV6
_HEAD_SIZE: Final = _HEAD.size
_SEQUENCE: Final = r"^-?\d{1,18}$"
# Of one batch; a single body may be longer. Four times what a block brings: most bodies deflate to a half or a tenth.
_INFLATED_BYTES_MAX: Final = 32 << 20


@dataclass(slots=True)
class Block:
    """Consecutive records of one queue, taken apart.

    Attributes:
        heads: (size, magic, flag, queue offset, physical offset, sysFlag, born ms, store ms,
            reconsume times, body length) of each.
        bodies, properties: as stored.
        at: where each record begins: (number of its body, position).
    """

    heads: list[tuple[int, ...]]
    bodies: list[bytes]
    properties: list[bytes]
    at: list[tuple[bytes, int]]

    def part(self, start: int, end: int, bodies: list[bytes]) -> "Block":
        """Return some of the records, with other bodies."""
        return Block(self.heads[start:end], bodies, self.properties[start:end], self.at[start:end])


def take_apart(chunks: Sequence[bytes], start: int, end: int) -> Block:
    """Return the records of pull bodies whose queue offsets lie in [start, end).

    Raises:
        RecordError: A chunk is no sequence of records.
    """
    block = Block([], [], [], [])
    heads, bodies, properties, places = block.heads, block.bodies, block.properties, block.at
    unpack = _HEAD.unpack_from
    for chunk in chunks:
        position, size = 0, len(chunk)
        while position < size:
            if size - position < _HEAD_SIZE:
                raise RecordError(f"the record at {position} is torn")
            head = unpack(chunk, position)
            if head[1] != MAGIC_V1 or head[5] & _HOSTS_IPV6 or head[9] < 0:
                head, body, raw = _slowly(chunk, position)
            else:
                body_at = position + _HEAD_SIZE
                body_end = body_at + head[9]
                record_end = position + head[0]
                # Behind the body: one byte of length and the topic, two of length and the properties.
                if record_end > size or body_end + 1 > size:
                    raise RecordError(f"the record at {position} is torn")
                properties_at = body_end + 3 + chunk[body_end]
                if properties_at > record_end:
                    raise RecordError(f"the record at {position} has parts that do not fill it")
                body = chunk[body_at:body_end]
                raw = chunk[properties_at:record_end]
            if start <= head[3] < end:
                heads.append(head)
                bodies.append(body)
                properties.append(raw)
                places.append((chunk, position))
            position += head[0]
    return block


def _slowly(chunk: bytes, position: int) -> tuple[tuple[int, ...], bytes, bytes]:
    """Read a record with IPv6 hosts or a long topic."""
    found = decode_record(chunk, position)
    size = int.from_bytes(chunk[position : position + 4], "big")
    head = (
        *(size, 0, found.flag, found.queue_offset, found.physical_offset, found.sys_flag),
        *(found.born_timestamp, found.store_timestamp, found.reconsume_times, len(found.body)),
    )
    return head, found.body, found.properties


class RowMaker:
    """Turns blocks of one queue into record batches.

    Args:
        columns: which, in the order of `columns.COLUMNS`.
        sequence_property, epoch_property: what the columns seq and epoch hold; empty: null.
    """

    def __init__(
        self,
        schema: pa.Schema,
        queue: MessageQueue,
        *,
        sequence_property: str = "",
        epoch_property: str = "",
        keep_tags: frozenset[str] = frozenset(),
    ) -> None:
        self._schema = schema
        self._queue = queue
        self._sequence = sequence_property
        self._epoch = epoch_property
        self._keep_tags = keep_tags
        self._wanted = frozenset(schema.names)

    def batches(self, block: Block) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a block; a tag that only shares its hash with a wanted one is left out."""
        if self._wanted & {"body", "body_error"}:
            for part, errors in _inflated(block):
                yield self._batch(part, errors)
        else:
            yield self._batch(block, [])

    def _batch(self, block: Block, errors: list[str | None]) -> pa.RecordBatch:
        count = len(block.heads)
        fixed = list(zip(*block.heads, strict=True)) or [()] * 10
        props = PropertyTable(block.properties)
        queue = self._queue
        found: dict[str, Any] = {
            "queue_offset": lambda: pa.array(fixed[3], pa.int64()),
            "topic": lambda: _repeated(queue.topic, count, pa.string()),
            "broker": lambda: _repeated(queue.broker_name, count, pa.string()),
            "queue_id": lambda: _repeated(queue.queue_id, count, pa.int32()),
            "message_id": lambda: _with_offset_ids(props.values(names.UNIQ_KEY), block),
            "sharding_key": lambda: props.values(names.SHARDING_KEY),
            "keys": lambda: _words(props.values(names.KEYS)),
            "tags": lambda: props.values(names.TAGS),
            "seq": lambda: as_numbers(props.values(self._sequence)),
            "epoch": lambda: as_numbers(props.values(self._epoch)),
            "born_ts": lambda: _times(fixed[6]),
            "store_ts": lambda: _times(fixed[7]),
            "reconsume_times": lambda: pa.array(fixed[8], pa.int32()),
            "flag": lambda: pa.array(fixed[2], pa.int32()),
            "properties": props.maps,
            "body": lambda: pa.array(block.bodies, pa.binary()),
            "body_error": lambda: pa.array(errors, pa.string()),
        }
        arrays = [
            found[field.name]().cast(field.type)
            if field.name in {"properties", "keys"}
            else found[field.name]()
            for field in self._schema
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        if self._keep_tags:
            kept = pc.is_in(props.values(names.TAGS), pa.array(sorted(self._keep_tags)))
            batch = batch.filter(kept)
        return batch


class PropertyTable:
    """The properties of many messages, taken apart at once."""

    def __init__(self, raws: Sequence[bytes]) -> None:
        self._count = len(raws)
        try:
            text = pa.array(raws, pa.binary()).cast(pa.string())
        except pa.ArrowInvalid:
            text = pa.array([raw.decode(errors="replace") for raw in raws], pa.string())
        entries = pc.split_pattern(text, names.PROPERTY_SEPARATOR)
        parents = pc.list_parent_indices(entries).to_numpy(zero_copy_only=False)
        flat = entries.flatten()
        at = pc.find_substring(flat, names.NAME_VALUE_SEPARATOR).to_numpy(zero_copy_only=False)
        sizes = pc.binary_length(flat).to_numpy(zero_copy_only=False)
        # What has no name or no value is no entry, as Java's parser has it.
        good = (at > 0) & (sizes > at + 1)
        parents, flat = parents[good], flat.filter(pa.array(good))
        pairs = pc.split_pattern(flat, names.NAME_VALUE_SEPARATOR, max_splits=1).flatten()
        codes = pairs.take(pa.array(np.arange(0, len(pairs), 2))).dictionary_encode()
        values = pairs.take(pa.array(np.arange(1, len(pairs), 2)))
        self._parents = parents
        self._codes = codes.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        self._values = values
        self._names = codes.dictionary.to_pylist()
        self._drop_repeated()

    def _drop_repeated(self) -> None:
        """Of two entries with one name the last counts."""
        if not self._names:
            return
        pairs = self._parents * len(self._names) + self._codes
        if len(pairs) and np.bincount(pairs).max() > 1:
            _, last = np.unique(pairs[::-1], return_index=True)
            kept = np.sort(len(pairs) - 1 - last)
            self._parents, self._codes = self._parents[kept], self._codes[kept]
            self._values = self._values.take(pa.array(kept))

    def values(self, name: str) -> pa.Array:
        """Return one property of every message; null where there is none."""
        if name not in self._names:
            return pa.nulls(self._count, pa.string())
        places = np.full(self._count, -1, dtype=np.int64)
        mine = np.nonzero(self._codes == self._names.index(name))[0]
        places[self._parents[mine]] = mine
        return self._values.take(pa.array(places, mask=places < 0))

    def maps(self) -> pa.Array:
        """Return all properties of every message."""
        sizes = np.bincount(self._parents, minlength=self._count)
        offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
        keys = pa.array(self._names, pa.string()).take(pa.array(self._codes))
        return pa.MapArray.from_arrays(pa.array(offsets), keys, self._values)


def _repeated(value: object, count: int, kind: Any) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


def _times(milliseconds: Sequence[int]) -> pa.Array:
    numbers = np.array(milliseconds, dtype=np.int64) * 1000
    return pa.array(numbers, pa.int64()).cast(ARROW_TYPES["timestamp"])


def _words(texts: pa.Array) -> pa.Array:
    return pa.array(
        [None if text is None else text.split() for text in texts.to_pylist()],
        ARROW_TYPES["array<string>"],
    )


def as_numbers(texts: pa.Array) -> pa.Array:
    """Return the texts as numbers; null where a text is none."""
    good = pc.match_substring_regex(texts, _SEQUENCE)
    return pc.if_else(good, texts, pa.scalar(None, pa.string())).cast(pa.int64())


def _with_offset_ids(ids: pa.Array, block: Block) -> pa.Array:
    """Fill the gaps of the unique keys with offset message ids."""
    if ids.null_count == 0:
        return ids
    filled = ids.to_pylist()
    for number, found in enumerate(filled):
        if found is None:
            record = decode_record(*block.at[number])
            filled[number] = encode_offset_message_id(*record.store_host, record.physical_offset)
    return pa.array(filled, pa.string())


def _inflated(block: Block) -> Iterator[tuple[Block, list[str | None]]]:
    """Yield a block in parts whose inflated bodies are not too large together, and why some are not inflated."""
    if not any(head[5] & sysflag.COMPRESSED for head in block.heads):
        yield block, [None] * len(block.heads)
        return
    begun, size = 0, 0
    bodies: list[bytes] = []
    errors: list[str | None] = []
    for number, (head, stored) in enumerate(zip(block.heads, block.bodies, strict=True)):
        try:
            body, reason = decompress(stored, head[5], INFLATED_SIZE_MAX), None
        except CompressionError as error:
            body, reason = stored, str(error)
        if bodies and size + len(body) > _INFLATED_BYTES_MAX:
            yield block.part(begun, number, bodies), errors
            begun, size, bodies, errors = number, 0, [], []
        bodies.append(body)
        errors.append(reason)
        size += len(body)
    yield block.part(begun, len(block.heads), bodies), errors
