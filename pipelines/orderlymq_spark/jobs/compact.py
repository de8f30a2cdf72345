"""
Pipeline compact: merges adjacent small files of an archive into larger ones, with rows in offset order.

Rules: the new file is complete and its rows are counted before one commit of the archive replaces the old files. After
that commit, the next run finishes the work of a run that died. A reader never sees a row twice. A reader that lists
the folder between removal and naming misses the range, and notices it by the names.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from orderlymq_spark.errors import OptionError, SinkConflict, StoreFailed
from orderlymq_spark.locations.location import Location
from orderlymq_spark.offsets import QueueRange
from orderlymq_spark.run.checkpoint import hold_checkpoint
from orderlymq_spark.run.outcome import Outcome, SparkStarter
from orderlymq_spark.specs import CompactSpec
from orderlymq_spark.tables.manifests import PARTS, Added, Manifest, commit, finish
from orderlymq_spark.tables.parquet import (
    PartFile,
    below,
    folder_of,
    path_of,
    published_sizes,
    ranges_in,
)

_APP: Final = "_compact"
_GROUP_ROWS: Final = 131_072  # rows of a row group that readers can load at once
_GROUP_BYTES: Final = 64 << 20  # its decompressed bytes; each core holds one row group


def run(_name: str, spec: CompactSpec, _spark: SparkStarter) -> Outcome:
    """Compact the archive without Spark: Arrow's threads use every core, with one new file each.

    Raises:
        OptionError: The files belong to an Iceberg table.
    """
    _refuse_iceberg(spec.path)
    with hold_checkpoint(spec.path / _APP) as claim:
        _remove_drafts(spec.path)
        before = published_sizes(spec.path)
        chosen = list(groups(before, spec.target_bytes, spec.min_files))
        moved = 0
        failed: list[str] = []
        with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as threads:
            for drafts in threads.map(
                lambda parts: _drafts(spec.path, parts, spec.min_files), chosen
            ):
                claim.check()
                failed += [each for each in drafts if isinstance(each, str)]
                for draft in drafts:
                    if isinstance(draft, Draft) and take_place(spec.path, draft):
                        moved += sum(before[part] for part in draft.old)
    after = published_sizes(spec.path)
    lines = [f"{len(before)} files became {len(after)}; {moved} bytes were read", *failed]
    return Outcome(
        "\n".join(lines),
        {"before": len(before), "after": len(after), "bytes": moved, "failed": failed},
        passed=not failed,
    )


def _refuse_iceberg(path: Location) -> None:
    names = (path / "metadata").names()
    # A run may lack permission to list the parent folder. Only an Iceberg table has its files in a folder `data`.
    if path.name == "data":
        with suppress(StoreFailed, PermissionError):
            names += (path.parent / "metadata").names()
    if any(name.endswith(".metadata.json") for name in names):
        raise OptionError(
            f"{path} belongs to an Iceberg table, and compact is for archives of Parquet files: let Iceberg's Spark "
            "procedure rewrite_data_files compact it, with strategy => 'sort' and "
            "sort_order => 'topic,broker,queue_id,queue_offset', which keeps the order"
        )


def groups(
    sizes: Mapping[QueueRange, int], target_bytes: int, count_min: int
) -> Iterator[list[QueueRange]]:
    """Yield runs of adjacent files of one queue that together fit the target size."""
    chosen: list[QueueRange] = []
    size = 0
    for part in [*sorted(sizes), None]:
        bytes_ = sizes[part] if part is not None else 0
        fits = (
            part is not None
            and chosen
            and part.queue == chosen[-1].queue
            and part.start == chosen[-1].end
            and size + bytes_ <= target_bytes
        )
        if not fits:
            if len(chosen) >= count_min:
                yield chosen
            chosen, size = [], 0
        if part is not None:
            chosen.append(part)
            size += bytes_


@dataclass(frozen=True, slots=True)
class Draft:
    """A complete new file that readers do not see yet.

    Attributes:
        whole: the range under which it will be published.
        old: the files whose rows it holds.
    """

    path: Location
    whole: QueueRange
    old: tuple[QueueRange, ...]


def _drafts(root: Location, parts: Sequence[QueueRange], count_min: int) -> list["Draft | str"]:
    """Merge files that have the same columns; return the drafts, and the reason for each merge that failed."""
    found: list[Draft | str] = []
    try:
        for _, same in groupby(parts, lambda part: pq.read_schema(path_of(root, part).open())):
            chosen = list(same)
            if len(chosen) >= count_min:
                found.append(write_draft(root, chosen))
    # Arrow raises ValueError for files that it cannot read or merge.
    except (SinkConflict, OSError, ValueError) as error:
        found.append(f"{parts[0]} to {parts[-1].end} stay as they are: {error}")
    return found


def write_draft(root: Location, parts: Sequence[QueueRange]) -> Draft:
    """Merge files into a draft.

    Raises:
        SinkConflict: The new file has other rows than the old ones; the old files stay.
    """
    whole = QueueRange(parts[0].queue, parts[0].start, parts[-1].end)
    old = [path_of(root, part) for part in parts]
    path = root / PARTS / _APP / f"{uuid4()}.part"
    with pq.ParquetFile(old[0].open()) as file:
        codec, schema = (
            file.metadata.row_group(0).column(0).compression.lower(),
            file.schema_arrow,
        )
    draft = PartFile(path, whole.queue, schema, "none" if codec == "uncompressed" else codec)
    expected = 0
    try:
        for each in old:
            with pq.ParquetFile(each.open()) as file:
                expected += file.metadata.num_rows
                for batch in _batches(file):
                    draft.write(
                        batch, f"{each} is not in offset order; this pipeline did not write it"
                    )
        written = draft.close()
    except BaseException:
        draft.discard()
        raise
    with pq.ParquetFile(path.open()) as file:
        found = file.metadata.num_rows
    if found != expected or written.rows != expected:
        path.delete()
        raise SinkConflict(
            f"{path} does not have the same rows as its {len(old)} parts; nothing was changed"
        )
    return Draft(path, whole, tuple(parts))


def _batches(file: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file in units for the new row groups: small groups are merged, large ones are split."""
    run: list[int] = []
    rows = size = 0
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        if run and (
            rows + group.num_rows > _GROUP_ROWS or size + group.total_byte_size > _GROUP_BYTES
        ):
            yield from file.iter_batches(_piece_rows(rows, size), run)
            run, rows, size = [], 0, 0
        run.append(number)
        rows, size = rows + group.num_rows, size + group.total_byte_size
    if run:
        yield from file.iter_batches(_piece_rows(rows, size), run)


def _piece_rows(rows: int, size: int) -> int:
    """Return how many rows to read at a time, for row groups of this many rows and bytes."""
    return max(1, min(_GROUP_ROWS, rows * _GROUP_BYTES // max(size, _GROUP_BYTES)))


def take_place(root: Location, draft: Draft) -> bool:
    """Replace the old files by a draft; return False if another compaction was faster.

    In that case the next compaction removes the draft.
    """
    taken = False

    def make() -> Manifest | None:
        nonlocal taken
        standing = ranges_in(folder_of(root, draft.whole.queue), draft.whole.queue)
        taken = draft.path.exists() and set(draft.old) <= set(standing)
        if not taken:
            return None
        added = Added(below(root, str(path_of(root, draft.whole))), below(root, str(draft.path)))
        removed = tuple(below(root, str(path_of(root, part))) for part in draft.old)
        return Manifest(_APP, None, (added,), removed)

    commit(root, make)
    return taken


def _remove_drafts(root: Location) -> None:
    """Remove the drafts of dead compactions, after their commits have been carried out."""
    finish(root)
    folder = root / PARTS / _APP
    drafts = tuple(below(root, str(folder / name)) for name in folder.names())
    if drafts:
        commit(root, lambda: Manifest(_APP, None, (), drafts))
