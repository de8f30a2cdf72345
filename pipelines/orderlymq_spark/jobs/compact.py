"""
Pipeline compact: adjoining small files of an archive become one, rows in offset order.

Rules: the new file is complete, synced and counted before a journal says that it takes the old ones' place;
from there a run that died is finished by the next. Nobody ever sees a row twice; who lists the folder in the
moment between the two steps misses the range, and sees by the names that it does.
"""

import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

from orderlymq_spark.atomicfile import write_atomically
from orderlymq_spark.errors import SinkConflict
from orderlymq_spark.offsets import QueueRange
from orderlymq_spark.run.outcome import Outcome, SparkStarter
from orderlymq_spark.run.stream import hold_checkpoint
from orderlymq_spark.specs import CompactSpec
from orderlymq_spark.tables.parquet import PartFile, path_of, published, sync_folder

JOURNAL: Final = "_compacting.json"
_GROUP_ROWS: Final = 131_072  # a row group that readers can take in one piece


def run(_name: str, spec: CompactSpec, _spark: SparkStarter) -> Outcome:
    """Compact; Spark is not needed: Arrow's threads use every core, one new file each."""
    with hold_checkpoint(spec.path / "_compact"):
        finish(spec.path)
        before = published(spec.path)
        chosen = list(groups(spec.path, before, spec.target_bytes, spec.min_files))
        moved = 0
        with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as threads:
            for draft in threads.map(lambda parts: write_draft(spec.path, parts), chosen):
                moved += draft.size_bytes
                take_place(spec.path, draft)
    after = published(spec.path)
    return Outcome(
        f"{len(before)} files became {len(after)}; {moved} bytes were read",
        {"before": len(before), "after": len(after), "bytes": moved},
    )


def groups(
    root: Path, parts: Sequence[QueueRange], target_bytes: int, count_min: int
) -> Iterator[list[QueueRange]]:
    """Yield adjoining files of one queue that together reach the target size."""
    chosen: list[QueueRange] = []
    size = 0
    for part in [*sorted(parts), None]:
        bytes_ = path_of(root, part).stat().st_size if part is not None else 0
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
        target: the name it will have.
        old: the files whose rows it holds.
        size_bytes: what was read for it.
    """

    path: Path
    target: Path
    old: tuple[Path, ...]
    size_bytes: int


def write_draft(root: Path, parts: Sequence[QueueRange]) -> Draft:
    """Put files together.

    Raises:
        SinkConflict: The new file does not hold what the old ones hold; they stay.
    """
    whole = QueueRange(parts[0].queue, parts[0].start, parts[-1].end)
    old = tuple(path_of(root, part) for part in parts)
    target = path_of(root, whole)
    path = target.with_name(f"_{target.name}.draft")
    codec = pq.read_metadata(old[0]).row_group(0).column(0).compression.lower()
    draft = PartFile(
        path, whole.queue, pq.read_schema(old[0]), "none" if codec == "uncompressed" else codec
    )
    try:
        for each in old:
            with pq.ParquetFile(each) as file:
                for batch in file.iter_batches(batch_size=_GROUP_ROWS):
                    draft.write(batch, f"{each} is not in offset order; it was not written here")
        written = draft.close()
    except BaseException:
        draft.discard()
        raise
    expected = sum(pq.read_metadata(each).num_rows for each in old)
    if pq.read_metadata(path).num_rows != expected or written.rows != expected:
        path.unlink()
        raise SinkConflict(f"{path} has other rows than its {len(old)} parts; nothing was changed")
    return Draft(path, target, old, sum(each.stat().st_size for each in old))


def take_place(root: Path, draft: Draft) -> None:
    """Let a draft take the place of the files that it holds."""
    plan = {
        "draft": str(draft.path.relative_to(root)),
        "target": str(draft.target.relative_to(root)),
        "old": [str(path.relative_to(root)) for path in draft.old],
    }
    write_atomically(root / JOURNAL, json.dumps(plan))
    finish(root)


def finish(root: Path) -> None:
    """Carry out what the journal says; repeating it changes nothing."""
    journal = root / JOURNAL
    if not journal.exists():
        for draft in root.glob("*/*/_*.draft"):
            draft.unlink()
        return
    plan = json.loads(journal.read_text())
    draft, target = root / plan["draft"], root / plan["target"]
    # Old ones first: a hole for a moment is less than rows that are counted twice.
    for name in plan["old"]:
        (root / name).unlink(missing_ok=True)
    if draft.exists():
        draft.rename(target)
    sync_folder(target.parent)
    journal.unlink()
