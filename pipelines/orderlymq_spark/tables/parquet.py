"""
An archive of Parquet files: names by offset range, publication, and what the names alone prove.

Layout: `<topic>/<broker>-<queue>/<first offset>-<end>.parquet`, `_manifests/<number>.json` (module `manifests`), and
`_parts/<app>/<batch>/*.part` for unpublished files. Rules: a published file never changes. A repeated batch finds its
files published under the same names. Two files of one queue never overlap. The rows of a file are in offset order, and
the files of a queue sort by name.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_spark.errors import OptionError, SinkConflict
from orderlymq_spark.locations.location import Location
from orderlymq_spark.offsets import QueueRange
from orderlymq_spark.tables.manifests import DIGITS, OWN, PARTS, Added, Manifest, commit, settled

# The columns with repeated values. A dictionary of ids, times or bodies would grow and then be discarded.
REPEATING_COLUMNS: Final = ["topic", "broker", "queue_id", "sharding_key", "tags"]
# The columns that distinguish messages of a topic and of its recreated successor, which may have the same offsets.
_MARKS: Final = ("message_id", "store_ts")
_LOOK_ROWS: Final = 8192
_GONE_MAX: Final = 100  # times that a file disappears before it is opened; each is a compaction
_NAME: Final = re.compile(r"(\d{20})-(\d{20})\.parquet")
_FILE: Final = re.compile(r"(.+)-(\d{5,})/(\d{20})-(\d{20})\.parquet")

Mark: TypeAlias = dict[str, str]
"""What distinguishes a message from another one at the same offset: a hash of each column."""


@dataclass(frozen=True, slots=True)
class Part:
    """A written but unpublished file; its range is [first, last offset + 1).

    Attributes:
        ends: marks that distinguish its first and last message from others with these offsets.
    """

    path: str
    part: QueueRange
    rows: int
    size_bytes: int
    ends: tuple[Mark, Mark]

    def ends_by_place(self) -> dict[int, Mark]:
        """Return `ends` by offset."""
        return dict(zip((self.part.start, self.part.end - 1), self.ends, strict=True))


class PartFile:
    """A file being written with rows of one queue in offset order; the caller that creates it must close or discard it."""

    def __init__(self, path: Location, queue: MessageQueue, schema: pa.Schema, codec: str) -> None:
        self._path = path
        self._queue = queue
        self._output = path.begin()
        self._writer = pq.ParquetWriter(
            self._output.target, schema, compression=codec, use_dictionary=REPEATING_COLUMNS
        )
        self._first: int | None = None
        self._last = -1
        self._rows = 0
        self._begin: Mark = {}
        self._end: Mark = {}

    def write(self, rows: pa.RecordBatch, disorder: str) -> None:
        """Write at least one row.

        Raises:
            SinkConflict: The rows are not in offset order; the text is *disorder*.
        """
        offsets = rows.column("queue_offset").to_numpy()
        if offsets[0] <= self._last or (offsets[1:] <= offsets[:-1]).any():
            raise SinkConflict(disorder)
        if self._first is None:
            self._first = int(offsets[0])
            self._begin = _mark(rows.slice(0, 1))
        self._last = int(offsets[-1])
        self._end = _mark(rows.slice(len(offsets) - 1))
        self._rows += len(offsets)
        self._writer.write_batch(rows)

    def close(self) -> Part:
        """Finish the file and make it durable."""
        self._writer.close()
        size_bytes = self._output.close()
        part = QueueRange(self._queue, self._first or 0, self._last + 1)
        return Part(str(self._path), part, self._rows, size_bytes, (self._begin, self._end))

    def discard(self) -> None:
        """Abandon the file and remove it."""
        # On a full disk the close fails, too. That does not matter, because the batch is repeated and the file is unused.
        try:
            self._writer.close()
        except OSError:
            pass
        finally:
            self._output.discard()


def _mark(row: pa.RecordBatch) -> Mark:
    """Return the mark of one row; a row without a time and an id is marked by all of its content."""
    names = [name for name in _MARKS if name in row.schema.names] or row.schema.names
    return {name: _digest(row, name) for name in names}


def _digest(row: pa.RecordBatch, name: str) -> str:
    return blake2b(repr(row.column(name)[0].as_py()).encode(), digest_size=16).hexdigest()


def folder_of(root: Location, queue: MessageQueue) -> Location:
    """Return the folder of a queue.

    Raises:
        OptionError: The topic has the name of one of the archive's own folders.
    """
    if queue.topic in OWN:
        raise OptionError(
            f"an archive of files cannot have the topic {queue.topic}; use format: delta or iceberg"
        )
    return root / queue.topic / f"{queue.broker_name}-{queue.queue_id:05}"


def path_of(root: Location, part: QueueRange) -> Location:
    """Return the path under which a range is published."""
    name = f"{part.start:0{DIGITS}}-{part.end:0{DIGITS}}.parquet"
    return folder_of(root, part.queue) / name


def parts_folder(root: Location, app_id: str, batch: int) -> Location:
    """Return the folder of a batch's files until they are published."""
    return root / PARTS / app_id / f"{batch:0{DIGITS}}"


def published(root: Location, topics: Iterable[str] | None = None) -> list[QueueRange]:
    """Return the published ranges, by the file names."""
    return sorted(published_sizes(root, topics))


def published_sizes(root: Location, topics: Iterable[str] | None = None) -> dict[QueueRange, int]:
    """Return the published ranges, by the file names, with the bytes of each file."""
    found: dict[QueueRange, int] = {}
    chosen = root.names() if topics is None else topics
    for topic in sorted({*chosen} - {*OWN}):
        for path, size_bytes in (root / topic).files():
            name = _FILE.fullmatch(path)
            if name is not None:
                queue = MessageQueue(topic, name[1], int(name[2]))
                found[QueueRange(queue, int(name[3]), int(name[4]))] = size_bytes
    return found


def ranges_in(folder: Location, queue: MessageQueue) -> list[QueueRange]:
    """Return the ranges of one queue's files, in order."""
    names = map(_NAME.fullmatch, folder.names())
    return [QueueRange(queue, int(name[1]), int(name[2])) for name in names if name]


def rows_of(
    root: Location, parts: Sequence[QueueRange], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a queue's files in offset order, each once, even if a compaction merges the files meanwhile.

    *parts* are the files as listed, in order; *columns* must include the offset.

    Raises:
        FileNotFoundError: Files disappear again and again.
    """
    queue, at, gone = parts[0].queue, 0, 0
    while parts:
        try:
            for rows in _rows_from(path_of(root, parts[0]), at, columns):
                at = rows.column("queue_offset")[-1].as_py() + 1
                yield rows
        except FileNotFoundError:
            gone += 1
            if gone > _GONE_MAX:
                raise
            listed = settled(root, lambda: ranges_in(folder_of(root, queue), queue))
            parts = [each for each in listed if each.end > at]
        else:
            parts = parts[1:]


def _rows_from(path: Location, at: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path.open()) as file:
        for rows in file.iter_batches(columns=list(columns)):
            wanted = rows.filter(pc.greater_equal(rows.column("queue_offset"), at))
            if wanted.num_rows:
                yield wanted


def publish(root: Location, app_id: str, batch: int, parts: Sequence[Part]) -> None:
    """Make the files of a batch part of the archive.

    This may be repeated after a crash at any point, with parts written again.

    Raises:
        SinkConflict: A file overlaps a published one with another range, or another driver of this pipeline has
            removed a part; nothing was published.
    """
    ordered = sorted(parts, key=lambda each: each.part)

    def make() -> Manifest | None:
        there = root.each(lambda each: _is_there(root, each), ordered)
        fresh = [part for part, is_there in zip(ordered, there, strict=True) if not is_there]
        standing = _parts_until(root, app_id, batch)
        added = [_added(root, part) for part in fresh]
        absent = [each.part for each in added if each.part not in standing]
        if absent:
            raise SinkConflict(
                f"{absent[0]} was removed: another driver of {app_id} writes to the archive in {root}; stop one of them"
            )
        # These parts repeat published files, or come from a task that was cut off.
        useless = sorted(standing - {each.part for each in added})
        return Manifest(app_id, batch, tuple(added), tuple(useless)) if added or useless else None

    commit(root, make)


def _is_there(root: Location, part: Part) -> bool:
    """Return whether the messages of a part are published.

    Raises:
        SinkConflict: Only some of them are published, or other messages with their offsets are.
    """
    where = part.part
    for other in ranges_in(folder_of(root, where.queue), where.queue):
        # A compaction may have merged it into a larger file.
        if other.start <= where.start and where.end <= other.end:
            if _are_same(part, path_of(root, other)):
                return True
            raise SinkConflict(
                f"{where} is published in {root} with other messages: the topic was deleted and created again, or its "
                "cluster restored from a backup, so its offsets are used a second time; nothing was changed; give "
                "this pipeline a path and a checkpoint of its own, and keep the old archive"
            )
        if other.start < where.end and where.start < other.end:
            raise SinkConflict(
                f"{where} overlaps the published {other}: the archive in {root} was written "
                "from another checkpoint, or the topic was created again; give this pipeline a path and a checkpoint of its own"
            )
    return False


def _are_same(part: Part, path: Location) -> bool:
    """Return whether a published file has the first and the last message of a part.

    If offsets are reused, all offsets from some point on are reused, so the messages between the two are also the
    same.
    """
    with pq.ParquetFile(path.open()) as file:
        names = [name for name in file.schema_arrow.names if name in part.ends[0]]
        rows = file.iter_batches(_LOOK_ROWS, columns=[*{"queue_offset", *names}])
        places = compare_ends(part, names, rows)
    return bool(names) and len(places) == len(part.ends_by_place()) and all(places.values())


def compare_ends(
    part: Part, names: Sequence[str], batches: Iterable[pa.RecordBatch]
) -> dict[int, bool]:
    """Return for a part's first and last offset, where rows have it, whether one of these rows matches the mark."""
    found: dict[int, bool] = {}
    for rows in batches:
        offsets = rows.column("queue_offset")
        for place, mark in part.ends_by_place().items():
            at = pc.index(offsets, place).as_py()
            while at >= 0 and not found.get(place):
                found[place] = all(_digest(rows.slice(at, 1), name) == mark[name] for name in names)
                after = pc.index(offsets.slice(at + 1), place).as_py()
                at = at + 1 + after if after >= 0 else -1
    return found


def _parts_until(root: Location, app_id: str, batch: int) -> set[str]:
    """Return the part files of a batch and of earlier ones, for which a task that was cut off may still have written."""
    folder = root / PARTS / app_id
    # Names have leading zeros, so they sort like numbers.
    own = f"{batch:0{DIGITS}}"
    return {
        below(root, str(folder / path))
        for path, _ in folder.files()
        if path.partition("/")[0] <= own
    }


def _added(root: Location, part: Part) -> Added:
    about = {
        "topic": part.part.queue.topic,
        "broker": part.part.queue.broker_name,
        "queue": part.part.queue.queue_id,
        "start": part.part.start,
        "end": part.part.end,
        "rows": part.rows,
        "bytes": part.size_bytes,
    }
    return Added(below(root, str(path_of(root, part.part))), below(root, part.path), about)


def below(root: Location, path: str) -> str:
    """Return a path relative to the archive's folder."""
    return path.removeprefix(f"{str(root).rstrip('/')}/")


def holes(found: Sequence[QueueRange]) -> list[QueueRange]:
    """Return the gaps between the ranges of each queue."""
    missing: list[QueueRange] = []
    last: QueueRange | None = None
    for each in sorted(found):
        if last is not None and last.queue == each.queue and each.start > last.end:
            missing.append(QueueRange(each.queue, last.end, each.start))
        last = each
    return missing
