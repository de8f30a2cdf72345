"""
Pipeline compact: adjoining small files of an archive become one, rows in offset order.

Rules: the new file is complete and counted before one commit of the archive says that it takes the old ones' place; from
there a run that died is finished by the next. Nobody ever sees a row twice; who lists the folder in the moment
between the two steps misses the range, and sees by the names that it does.
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
_GROUP_ROWS: Final = 131_072  # a row group that readers can take in one piece
_GROUP_BYTES: Final = 64 << 20  # likewise, decompressed; each core holds one


def run(_name: str, spec: CompactSpec, _spark: SparkStarter) -> Outcome:
    """Compact; Spark is not needed: Arrow's threads use every core, one new file each.

    Raises:
        OptionError: The files are those of an Iceberg table.
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
    # Above an archive a run needs no right to list; only an Iceberg table has its files in such a folder.
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
    """Yield adjoining files of one queue that together reach the target size."""
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
    """A new file that is complete, and that nobody sees yet.

    Attributes:
        whole: the range it will be published under.
        old: the files whose rows it holds.
    """

    path: Location
    whole: QueueRange
    old: tuple[QueueRange, ...]


def _drafts(root: Location, parts: Sequence[QueueRange], count_min: int) -> list["Draft | str"]:
    """Put files together, those with the same columns; return for what could not be done the reason."""
    found: list[Draft | str] = []
    try:
        for _, same in groupby(parts, lambda part: pq.read_schema(path_of(root, part).open())):
            chosen = list(same)
            if len(chosen) >= count_min:
                found.append(write_draft(root, chosen))
    # ValueError is what Arrow raises of files that it cannot read or put together.
    except (SinkConflict, OSError, ValueError) as error:
        found.append(f"{parts[0]} to {parts[-1].end} stay as they are: {error}")
    return found


def write_draft(root: Location, parts: Sequence[QueueRange]) -> Draft:
    """Put files together.

    Raises:
        SinkConflict: The new file does not hold what the old ones hold; they stay.
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
                    draft.write(batch, f"{each} is not in offset order; it was not written here")
        written = draft.close()
    except BaseException:
        draft.discard()
        raise
    with pq.ParquetFile(path.open()) as file:
        found = file.metadata.num_rows
    if found != expected or written.rows != expected:
        path.delete()
        raise SinkConflict(f"{path} has other rows than its {len(old)} parts; nothing was changed")
    return Draft(path, whole, tuple(parts))


def _batches(file: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file in what becomes its row groups: small ones together, large ones in pieces."""
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
    """Return how many of some rows are read at a time."""
    return max(1, min(_GROUP_ROWS, rows * _GROUP_BYTES // max(size, _GROUP_BYTES)))


def take_place(root: Location, draft: Draft) -> bool:
    """Let a draft take the place of the files that it holds; false when another compaction was faster.

    The draft is removed by the next compaction then.
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
    """Remove what compactions that died have left, after what they had committed is done."""
    finish(root)
    folder = root / PARTS / _APP
    drafts = tuple(below(root, str(folder / name)) for name in folder.names())
    if drafts:
        commit(root, lambda: Manifest(_APP, None, (), drafts))
