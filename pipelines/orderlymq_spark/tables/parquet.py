"""
An archive of Parquet files: names by offset range, publication, manifests, and what the names alone prove.

Layout: `<topic>/<broker>-<queue>/<first offset>-<end>.parquet`, `_manifests/<app>/<batch>.json`, and
`_parts/<app>/<batch>/*.part` for what is not published. Rules: a published file never changes; a batch that
is repeated finds its files published under the same names; two files of one queue never overlap. Inside a
file rows stand in offset order, and files of a queue sort by name.
"""

import json
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_spark.atomicfile import write_atomically
from orderlymq_spark.errors import SinkConflict
from orderlymq_spark.offsets import QueueRange

# Whose values repeat; a dictionary of ids, times and bodies would only be thrown away when it has grown.
REPEATING_COLUMNS: Final = ["topic", "broker", "queue_id", "sharding_key", "tags"]
PARTS: Final = "_parts"
MANIFESTS: Final = "_manifests"
_DIGITS: Final = 20  # an offset has at most 19, so that names sort as numbers do
_NAME: Final = re.compile(r"(\d{20})-(\d{20})\.parquet")
_FOLDER: Final = re.compile(r"(.+)-(\d{5,})")


@dataclass(frozen=True, slots=True)
class Part:
    """A file that is written and not published: its range is [first, last offset + 1)."""

    path: str
    part: QueueRange
    rows: int
    size_bytes: int


class PartFile:
    """Rows of one queue on their way to a file, in offset order; the caller that begins one closes or discards it."""

    def __init__(self, path: Path, queue: MessageQueue, schema: pa.Schema, codec: str) -> None:
        self._path = path
        self._queue = queue
        self._writer = pq.ParquetWriter(
            path, schema, compression=codec, use_dictionary=REPEATING_COLUMNS
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
        """Finish the file and sync it."""
        self._writer.close()
        with self._path.open("rb") as file:
            os.fsync(file.fileno())
        part = QueueRange(self._queue, self._first or 0, self._last + 1)
        return Part(str(self._path), part, self._rows, self._path.stat().st_size)

    def discard(self) -> None:
        """Give the file up and remove it."""
        # A full disk fails the close as well; the batch is repeated, the file is nobody's.
        try:
            self._writer.close()
        except OSError:
            pass
        finally:
            self._path.unlink(missing_ok=True)


def folder_of(root: Path, queue: MessageQueue) -> Path:
    """Return the folder of a queue."""
    return root / queue.topic / f"{queue.broker_name}-{queue.queue_id:05}"


def path_of(root: Path, part: QueueRange) -> Path:
    """Return the name that a range is published under."""
    name = f"{part.start:0{_DIGITS}}-{part.end:0{_DIGITS}}.parquet"
    return folder_of(root, part.queue) / name


def parts_folder(root: Path, app_id: str, batch: int) -> Path:
    """Return where a batch's files stand until they are published."""
    return root / PARTS / app_id / f"{batch:0{_DIGITS}}"


def published(root: Path, topics: Iterable[str] | None = None) -> list[QueueRange]:
    """Return the ranges that are published, by their names."""
    found: list[QueueRange] = []
    chosen = set(topics) if topics is not None else None
    for folder in sorted(root.glob("*/*")):
        place = _FOLDER.fullmatch(folder.name)
        topic = folder.parent.name
        if place is None or topic.startswith("_") or (chosen is not None and topic not in chosen):
            continue
        found += ranges_in(folder, MessageQueue(topic, place[1], int(place[2])))
    return found


def ranges_in(folder: Path, queue: MessageQueue) -> list[QueueRange]:
    """Return the ranges of one queue's files, in order."""
    names = (_NAME.fullmatch(path.name) for path in folder.glob("*.parquet"))
    return sorted(QueueRange(queue, int(name[1]), int(name[2])) for name in names if name)


def publish(root: Path, app_id: str, batch: int, parts: Sequence[Part]) -> None:
    """Make the files of a batch part of the archive, then write its manifest.

    May be repeated after a crash at any point, with parts written again.

    Raises:
        SinkConflict: A file overlaps what is published under another range; nothing was published.
    """
    fresh: list[tuple[Part, Path]] = []
    for part in sorted(parts, key=lambda each: each.part):
        target = path_of(root, part.part)
        others = ranges_in(target.parent, part.part.queue)
        # Compaction may have made it part of a larger file.
        if any(each.start <= part.part.start and part.part.end <= each.end for each in others):
            continue
        for other in others:
            if other.start < part.part.end and part.part.start < other.end:
                raise SinkConflict(
                    f"{part.part} overlaps the published {other}: the archive in {root} was written "
                    "from another checkpoint; give this pipeline a path of its own"
                )
        fresh.append((part, target))
    for part, target in fresh:
        target.parent.mkdir(parents=True, exist_ok=True)
        Path(part.path).rename(target)
    for folder in {target.parent for _, target in fresh}:
        sync_folder(folder)
    _write_manifest(root, app_id, batch, parts)
    for folder in _parts_until(root, app_id, batch):
        shutil.rmtree(folder, ignore_errors=True)


def _parts_until(root: Path, app_id: str, batch: int) -> list[Path]:
    """Return the folders of a batch and of those before it, for which a task that was cut off may still have written."""
    own = parts_folder(root, app_id, batch)
    found = own.parent.iterdir() if own.parent.is_dir() else iter(())
    # Names have all their digits, so they sort as numbers do.
    return sorted(folder for folder in found if folder.name <= own.name)


def _write_manifest(root: Path, app_id: str, batch: int, parts: Sequence[Part]) -> None:
    path = root / MANIFESTS / app_id / f"{batch:0{_DIGITS}}.json"
    if path.exists():
        return
    files = [
        {
            "path": str(path_of(root, part.part).relative_to(root)),
            "topic": part.part.queue.topic,
            "broker": part.part.queue.broker_name,
            "queue": part.part.queue.queue_id,
            "start": part.part.start,
            "end": part.part.end,
            "rows": part.rows,
            "bytes": part.size_bytes,
        }
        for part in sorted(parts, key=lambda each: each.part)
    ]
    write_atomically(path, json.dumps({"appId": app_id, "batch": batch, "files": files}, indent=1))


def holes(found: Sequence[QueueRange]) -> list[QueueRange]:
    """Return what is missing between the ranges of each queue."""
    missing: list[QueueRange] = []
    last: QueueRange | None = None
    for each in sorted(found):
        if last is not None and last.queue == each.queue and each.start > last.end:
            missing.append(QueueRange(each.queue, last.end, each.start))
        last = each
    return missing


def sync_folder(folder: Path) -> None:
    """Make the names in a folder last."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
