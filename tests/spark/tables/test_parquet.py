"""Publication of an archive's files: what is there afterwards, and what is not."""

from pathlib import Path

from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_spark.locations.location import Location, location
from orderlymq_spark.offsets import QueueRange
from orderlymq_spark.tables.parquet import PARTS, Part, parts_folder, path_of, publish

QUEUE = MessageQueue("orders", "demo-0", 0)


def part(root: Location, batch: int, name: str, where: QueueRange, app: str = "kept") -> Part:
    path = parts_folder(root, app, batch) / f"{name}.part"
    path.write(name)
    return Part(str(path), where, where.size, path.size())


def test_what_a_cut_off_task_wrote_for_a_batch_of_before_goes_with_the_next_batch(
    tmp_path: Path,
) -> None:
    """A worker may outlive its driver: its batch is published by the next one, and nobody asks for its file again."""
    root = location(tmp_path)
    publish(root, "kept", 0, [part(root, 0, "first", QueueRange(QUEUE, 0, 5))])
    part(root, 0, "late", QueueRange(QUEUE, 0, 5))
    other = part(root, 0, "another pipeline's", QueueRange(QUEUE, 0, 5), app="other")
    planned = part(root, 2, "next", QueueRange(QUEUE, 9, 12))

    publish(root, "kept", 1, [part(root, 1, "second", QueueRange(QUEUE, 5, 9))])

    left = sorted(str(path) for path in (tmp_path / PARTS).rglob("*") if path.is_file())
    assert left == sorted([other.path, planned.path])
    assert path_of(root, QueueRange(QUEUE, 0, 5)).read_text() == "first"
