"""
An archive of Parquet files: names by offset range, publication, and what the names alone prove.

Layout: `<topic>/<broker>-<queue>/<first offset>-<end>.parquet`, `_manifests/<number>.json` (module `manifests`), and
`_parts/<app>/<batch>/*.part` for what is not published. Rules: a published file never changes; a batch that
is repeated finds its files published under the same names; two files of one queue never overlap. Inside a
file rows stand in offset order, and files of a queue sort by name.
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

# Whose values repeat; a dictionary of ids, times and bodies would only be thrown away when it has grown.
REPEATING_COLUMNS: Final = ["topic", "broker", "queue_id", "sharding_key", "tags"]
# Distinguishes the messages of two lives of a topic, which may have the same offsets.
_MARKS: Final = ("message_id", "store_ts")
_LOOK_ROWS: Final = 8192
_GONE_MAX: Final = 100  # files that go before they are opened; each is a compaction
_NAME: Final = re.compile(r"(\d{20})-(\d{20})\.parquet")
_FILE: Final = re.compile(r"(.+)-(\d{5,})/(\d{20})-(\d{20})\.parquet")

Mark: TypeAlias = dict[str, str]
"""Distinguishes a message from another one with its offset: a hash by column."""


@dataclass(frozen=True, slots=True)
class Part:
    """A file that is written and not published: its range is [first, last offset + 1).

    Attributes:
        ends: distinguishes its first and its last message from others with these offsets.
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
    """Rows of one queue on their way to a file, in offset order; the caller that begins one closes or discards it."""

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
        """Write rows, at least one.

        Raises:
            SinkConflict: They are not in offset order; the text is *disorder*.
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
        """Finish the file and make it last."""
        self._writer.close()
        size_bytes = self._output.close()
        part = QueueRange(self._queue, self._first or 0, self._last + 1)
        return Part(str(self._path), part, self._rows, size_bytes, (self._begin, self._end))

    def discard(self) -> None:
        """Give the file up and remove it."""
        # A full disk fails the close as well; the batch is repeated, the file is nobody's.
        try:
            self._writer.close()
        except OSError:
            pass
        finally:
            self._output.discard()


def _mark(row: pa.RecordBatch) -> Mark:
    """Return the mark of one row; rows without a time and an id are distinguished by all of their content."""
    names = [name for name in _MARKS if name in row.schema.names] or row.schema.names
    return {name: _digest(row, name) for name in names}


def _digest(row: pa.RecordBatch, name: str) -> str:
    return blake2b(repr(row.column(name)[0].as_py()).encode(), digest_size=16).hexdigest()


def folder_of(root: Location, queue: MessageQueue) -> Location:
    """Return the folder of a queue.

    Raises:
        OptionError: An archive has a folder of its own with the name of the topic.
    """
    if queue.topic in OWN:
        raise OptionError(
            f"an archive of files cannot have the topic {queue.topic}; use format: delta or iceberg"
        )
    return root / queue.topic / f"{queue.broker_name}-{queue.queue_id:05}"


def path_of(root: Location, part: QueueRange) -> Location:
    """Return the name that a range is published under."""
    name = f"{part.start:0{DIGITS}}-{part.end:0{DIGITS}}.parquet"
    return folder_of(root, part.queue) / name


def parts_folder(root: Location, app_id: str, batch: int) -> Location:
    """Return where a batch's files stand until they are published."""
    return root / PARTS / app_id / f"{batch:0{DIGITS}}"


def published(root: Location, topics: Iterable[str] | None = None) -> list[QueueRange]:
    """Return the ranges that are published, by their names."""
    return sorted(published_sizes(root, topics))


def published_sizes(root: Location, topics: Iterable[str] | None = None) -> dict[QueueRange, int]:
    """Return the ranges that are published, by their names, and the bytes of each file."""
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
    """Yield the rows of a queue's files in offset order, each once, also when a compaction puts the files together meanwhile.

    *parts* are the files as they were listed, in order; *columns* have the offset among them.

    Raises:
        FileNotFoundError: Files go again and again.
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

    May be repeated after a crash at any point, with parts written again.

    Raises:
        SinkConflict: A file overlaps what is published under another range, or another driver of this pipeline has
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
        # Written again for what is published, or by a task that was cut off.
        useless = sorted(standing - {each.part for each in added})
        return Manifest(app_id, batch, tuple(added), tuple(useless)) if added or useless else None

    commit(root, make)


def _is_there(root: Location, part: Part) -> bool:
    """Return whether the messages of a part are published.

    Raises:
        SinkConflict: Some of them are, or other messages with their offsets.
    """
    where = part.part
    for other in ranges_in(folder_of(root, where.queue), where.queue):
        # Compaction may have made it part of a larger file.
        if other.start <= where.start and where.end <= other.end:
            if _are_same(part, path_of(root, other)):
                return True
            raise SinkConflict(
                f"{where} is published in {root} with other messages: the topic was deleted and created again, or its "
                "cluster restored from a backup, and its offsets are used a second time; nothing was changed; give "
                "this pipeline a path and a checkpoint of its own, and keep the old archive"
            )
        if other.start < where.end and where.start < other.end:
            raise SinkConflict(
                f"{where} overlaps the published {other}: the archive in {root} was written "
                "from another checkpoint, or the topic was created again; give this pipeline a path and a checkpoint of its own"
            )
    return False


def _are_same(part: Part, path: Location) -> bool:
    """Return whether the first and the last message of a part are in a published file.

    Offsets are used again from some place on, so the rest between them is the same, too.
    """
    with pq.ParquetFile(path.open()) as file:
        names = [name for name in file.schema_arrow.names if name in part.ends[0]]
        rows = file.iter_batches(_LOOK_ROWS, columns=[*{"queue_offset", *names}])
        places = compare_ends(part, names, rows)
    return bool(names) and len(places) == len(part.ends_by_place()) and all(places.values())


def compare_ends(
    part: Part, names: Sequence[str], batches: Iterable[pa.RecordBatch]
) -> dict[int, bool]:
    """Return for the first and the last offset of a part, where there are rows with it, whether one says the same."""
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
    """Return what stands for a batch and for those before it, for which a task that was cut off may still have written."""
    folder = root / PARTS / app_id
    # Names have all their digits, so they sort as numbers do.
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
    """Return a path from an archive's folder on."""
    return path.removeprefix(f"{str(root).rstrip('/')}/")


def holes(found: Sequence[QueueRange]) -> list[QueueRange]:
    """Return what is missing between the ranges of each queue."""
    missing: list[QueueRange] = []
    last: QueueRange | None = None
    for each in sorted(found):
        if last is not None and last.queue == each.queue and each.start > last.end:
            missing.append(QueueRange(each.queue, last.end, each.start))
        last = each
    return missing
