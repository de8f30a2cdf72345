"""
Converts parsed records to Arrow record batches: the hot path of every read, with `records` and `properties`.

A body that cannot be decompressed is kept as stored, with the reason in the column body_error. A time outside the
years 1 to 9999 is null. A block of compressed bodies is split into as many batches as the decompressed bodies need, so
that a task's memory does not depend on the compression ratio.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orderlymq.connection.wire import INFLATED_SIZE_MAX
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.message import properties as names
from orderlymq_protocol.message import sysflag
from orderlymq_protocol.message.compression import CompressionError, decompress
from orderlymq_protocol.message.ids import encode_offset_message_id
from orderlymq_protocol.message.record import decode_record
from orderlymq_spark.columns import OF_BODY, OF_VALUE
from orderlymq_spark.options import ValueFormat
from orderlymq_spark.source.properties import PropertyTable
from orderlymq_spark.source.records import Numbers, RecordBlock
from orderlymq_spark.values.decoder import ValueDecoder

ARROW_TYPES: Final = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "array<string>": pa.list_(pa.field("element", pa.string())),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
    "binary": pa.binary(),
}
_NUMBER: Final = r"^-?\d{1,19}$"
_NUMBER_MAX: Final = str((1 << 63) - 1)
# The years 1 to 9999 in milliseconds: the range of Python's calendar, and the times that Spark can show.
_TIMES: Final = (-62_135_596_800_000, 253_402_300_800_000)
# Bytes of one batch; a single body may be longer. Four times a block: most bodies compress to a half or a tenth.
_INFLATED_BYTES_MAX: Final = 32 << 20


class BatchMaker:
    """Converts blocks of one queue to record batches.

    Args:
        columns: which, in the order of `columns.COLUMNS`.
        sequence_property, epoch_property: the properties for the columns seq and epoch; if empty, the column is null.
    """

    def __init__(
        self,
        schema: pa.Schema,
        queue: MessageQueue,
        *,
        sequence_property: str = "",
        epoch_property: str = "",
        keep_tags: frozenset[str] = frozenset(),
        value: ValueFormat | None = None,
    ) -> None:
        self._schema = schema
        self._queue = queue
        self._sequence = sequence_property
        self._epoch = epoch_property
        self._keep_tags = keep_tags
        self._wanted = frozenset(schema.names)
        self._decoder = None
        if value is not None and not self._wanted.isdisjoint(OF_VALUE):
            self._decoder = ValueDecoder(value, schema.field("value").type)

    def batches(self, block: RecordBlock) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a block; leave out messages whose tag only shares its hash with a wanted tag."""
        if self._wanted & {*OF_BODY, *OF_VALUE}:
            for part, errors in _inflated(block):
                yield self._batch(part, errors)
        else:
            yield self._batch(block, None)

    def _batch(self, block: RecordBlock, errors: list[str | None] | None) -> pa.RecordBatch:
        count = len(block)
        fixed = block.numbers
        props = PropertyTable(block.properties)
        queue = self._queue
        found: dict[str, Any] = {
            "queue_offset": lambda: pa.array(fixed["queue_offset"]),
            "topic": lambda: _repeated(queue.topic, count, pa.string()),
            "broker": lambda: _repeated(queue.broker_name, count, pa.string()),
            "queue_id": lambda: _repeated(queue.queue_id, count, pa.int32()),
            "message_id": lambda: _with_offset_ids(props.values(names.UNIQ_KEY), block),
            "sharding_key": lambda: props.values(names.SHARDING_KEY),
            "keys": lambda: _words(props.values(names.KEYS)),
            "tags": lambda: props.values(names.TAGS),
            "seq": lambda: as_numbers(props.values(self._sequence)),
            "epoch": lambda: as_numbers(props.values(self._epoch)),
            "born_ts": lambda: _times(fixed["born_ms"]),
            "store_ts": lambda: _times(fixed["store_ms"]),
            "reconsume_times": lambda: _small(fixed["reconsume_times"]),
            "flag": lambda: _small(fixed["flag"]),
            "properties": props.maps,
            "body": lambda: block.bodies,
            "body_error": lambda: pa.array(errors or [None] * count, pa.string()),
        }
        if self._decoder is not None:
            maps = props.maps() if self._decoder.needs_properties else None
            columns = self._decoder.decode(block.bodies, errors, maps)
            decoded = dict(zip(OF_VALUE, columns, strict=True))
            found |= {name: partial(decoded.__getitem__, name) for name in OF_VALUE}
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


def _repeated(value: object, count: int, kind: Any) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


def _small(numbers: Numbers) -> pa.Array:
    return pa.array(numbers.astype(np.int32))


def _times(milliseconds: Numbers) -> pa.Array:
    beyond = (milliseconds < _TIMES[0]) | (milliseconds >= _TIMES[1])
    return pa.array(milliseconds * 1000, mask=beyond).cast(ARROW_TYPES["timestamp"])


def _words(texts: pa.Array) -> pa.Array:
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), ARROW_TYPES["array<string>"])
    return pa.array(
        [None if text is None else text.split() for text in texts.to_pylist()],
        ARROW_TYPES["array<string>"],
    )


def as_numbers(texts: pa.Array) -> pa.Array:
    """Return the texts as numbers; null if a text is not a number."""
    digits = pc.utf8_ltrim(texts, "-")
    # Texts of equal length sort like their numbers.
    small = pc.or_(pc.less(pc.utf8_length(digits), 19), pc.less_equal(digits, _NUMBER_MAX))
    good = pc.and_(pc.match_substring_regex(texts, _NUMBER), small)
    return pc.if_else(good, texts, pa.scalar(None, pa.string())).cast(pa.int64())


def _with_offset_ids(ids: pa.Array, block: RecordBlock) -> pa.Array:
    """Fill missing unique keys with offset message ids."""
    if ids.null_count == 0:
        return ids
    filled = ids.to_pylist()
    for number, found in enumerate(filled):
        if found is None:
            record = decode_record(block.stored, int(block.starts[number]))
            filled[number] = encode_offset_message_id(*record.store_host, record.physical_offset)
    return pa.array(filled, pa.string())


def _inflated(block: RecordBlock) -> Iterator[tuple[RecordBlock, list[str | None] | None]]:
    """Yield a block in parts of limited decompressed size, with an error for each body that cannot be decompressed."""
    flags = block.numbers["sys_flag"]
    if not (flags & sysflag.COMPRESSED).any():
        yield block, None
        return
    begun, size = 0, 0
    bodies: list[bytes] = []
    errors: list[str | None] = []
    for number, (flag, stored) in enumerate(zip(flags.tolist(), block.bodies, strict=True)):
        body, reason = stored.as_py(), None
        try:
            body = decompress(body, flag, INFLATED_SIZE_MAX)
        except CompressionError as error:
            reason = str(error)
        if bodies and size + len(body) > _INFLATED_BYTES_MAX:
            yield block.part(begun, number, pa.array(bodies, pa.binary())), errors
            begun, size, bodies, errors = number, 0, [], []
        bodies.append(body)
        errors.append(reason)
        size += len(body)
    yield block.part(begun, len(block), pa.array(bodies, pa.binary())), errors
