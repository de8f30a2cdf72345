"""
An archive of Parquet files: names by offset range, publication, and what the names alone prove.

Layout: `<topic>/<broker>-<queue>/<first offset>-<end>.parquet`, `_manifests/<number>.json` (module `manifests`), and
`_parts/<app>/<batch>/*.part` for what is not published. Rules: a published file never changes; a batch that
is repeated finds its files published under the same names; two files of one queue never overlap. Inside a
file rows stand in offset order, and files of a queue sort by name.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_spark.errors import SinkConflict
from orderlymq_spark.locations.location import Location
from orderlymq_spark.offsets import QueueRange
from orderlymq_spark.tables.manifests import Added, Manifest, commit

# Whose values repeat; a dictionary of ids, times and bodies would only be thrown away when it has grown.
REPEATING_COLUMNS: Final = ["topic", "broker", "queue_id", "sharding_key", "tags"]
PARTS: Final = "_parts"
_DIGITS: Final = 20  # an offset has at most 19, so that names sort as numbers do
_NAME: Final = re.compile(r"(\d{20})-(\d{20})\.parquet")
_FILE: Final = re.compile(r"(.+)-(\d{5,})/(\d{20})-(\d{20})\.parquet")


@dataclass(frozen=True, slots=True)
class Part:
    """A file that is written and not published: its range is [first, last offset + 1)."""

    path: str
    part: QueueRange
    rows: int
    size_bytes: int


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
        self._last = int(offsets[-1])
        self._rows += len(offsets)
        self._writer.write_batch(rows)

    def close(self) -> Part:
        """Finish the file and make it last."""
        self._writer.close()
        size_bytes = self._output.close()
        part = QueueRange(self._queue, self._first or 0, self._last + 1)
        return Part(str(self._path), part, self._rows, size_bytes)

    def discard(self) -> None:
        """Give the file up and remove it."""
        # A full disk fails the close as well; the batch is repeated, the file is nobody's.
        try:
            self._writer.close()
        except OSError:
            pass
        finally:
            self._output.discard()


def folder_of(root: Location, queue: MessageQueue) -> Location:
    """Return the folder of a queue."""
    return root / queue.topic / f"{queue.broker_name}-{queue.queue_id:05}"


def path_of(root: Location, part: QueueRange) -> Location:
    """Return the name that a range is published under."""
    name = f"{part.start:0{_DIGITS}}-{part.end:0{_DIGITS}}.parquet"
    return folder_of(root, part.queue) / name


def parts_folder(root: Location, app_id: str, batch: int) -> Location:
    """Return where a batch's files stand until they are published."""
    return root / PARTS / app_id / f"{batch:0{_DIGITS}}"


def published(root: Location, topics: Iterable[str] | None = None) -> list[QueueRange]:
    """Return the ranges that are published, by their names."""
    return sorted(published_sizes(root, topics))


def published_sizes(root: Location, topics: Iterable[str] | None = None) -> dict[QueueRange, int]:
    """Return the ranges that are published, by their names, and the bytes of each file."""
    found: dict[QueueRange, int] = {}
    chosen = root.names() if topics is None else sorted(set(topics))
    for topic in chosen:
        if topic.startswith("_"):
            continue
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


def publish(root: Location, app_id: str, batch: int, parts: Sequence[Part]) -> None:
    """Make the files of a batch part of the archive.

    May be repeated after a crash at any point, with parts written again.

    Raises:
        SinkConflict: A file overlaps what is published under another range, or another driver of this pipeline has
            removed a part; nothing was published.
    """
    ordered = sorted(parts, key=lambda each: each.part)

    def make() -> Manifest | None:
        there = root.each(lambda each: _is_there(root, each.part), ordered)
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


def _is_there(root: Location, part: QueueRange) -> bool:
    """Tell whether a range is published.

    Raises:
        SinkConflict: A part of it is.
    """
    others = ranges_in(folder_of(root, part.queue), part.queue)
    # Compaction may have made it part of a larger file.
    if any(each.start <= part.start and part.end <= each.end for each in others):
        return True
    for other in others:
        if other.start < part.end and part.start < other.end:
            raise SinkConflict(
                f"{part} overlaps the published {other}: the archive in {root} was written "
                "from another checkpoint; give this pipeline a path of its own"
            )
    return False


def _parts_until(root: Location, app_id: str, batch: int) -> set[str]:
    """Return what stands for a batch and for those before it, for which a task that was cut off may still have written."""
    folder = root / PARTS / app_id
    # Names have all their digits, so they sort as numbers do.
    own = f"{batch:0{_DIGITS}}"
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
