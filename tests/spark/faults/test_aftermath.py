"""The checks after kills find their faults: each law is broken once, with hand-made files and messages."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orderlymq.message import ReceivedMessage
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_spark.locations.addresses import location
from orderlymq_spark.offsets import QueueRange
from orderlymq_spark.tables.manifests import MANIFESTS
from orderlymq_spark.tables.parquet import Part, parts_folder, path_of, publish
from tests.spark.faults.aftermath import Archived, broken_laws, load_faults

QUEUE = MessageQueue("orders", "demo-0", 0)
COPY = MessageQueue("copy", "demo-0", 0)
FIRST, SECOND = QueueRange(QUEUE, 0, 2), QueueRange(QUEUE, 2, 4)


def message(offset: int, queue: MessageQueue = QUEUE) -> ReceivedMessage:
    host = ("127.0.0.1", 1)
    about = {"n": str(offset), "__SHARDINGKEY": "k"}
    return ReceivedMessage(
        *(queue.topic, b"body-%d" % offset, queue, offset, about, "", "", 0, 0),
        *(host, host, 0, 0, 0, 0, 0),
    )


TOPIC = {QUEUE: [message(offset) for offset in range(4)]}
AUDITS: dict[str, tuple[bool, dict[str, Any]]] = {
    "stream": (True, {"messages": 4, "defects": {}}),
}


def part(root: Path, batch: int, where: QueueRange) -> Part:
    path = Path(str(parts_folder(location(root), "kept", batch))) / f"{where.start}.part"
    path.parent.mkdir(parents=True)
    offsets = list(range(where.start, where.end))
    table = pa.table({"queue_offset": offsets, "body": [b"body-%d" % each for each in offsets]})
    pq.write_table(table, path)
    return Part(str(path), where, where.size, path.stat().st_size, ({}, {}))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for batch, where in enumerate((FIRST, SECOND)):
        publish(location(tmp_path), "kept", batch, [part(tmp_path, batch, where)])
    return tmp_path


def copied(*offsets: int) -> dict[MessageQueue, list[ReceivedMessage]]:
    return {COPY: [message(offset, COPY) for offset in offsets]}


def test_what_is_right_breaks_no_law(root: Path) -> None:
    assert broken_laws(root, TOPIC, copied(0, 1, 2, 3), AUDITS) == []


@pytest.mark.parametrize("offsets", [(0, 1, 2), (0, 1, 2, 2, 3), (0, 2, 1, 3)])
def test_a_copy_that_lost_repeated_or_reordered_is_found(root: Path, offsets: tuple[int]) -> None:
    (fault,) = broken_laws(root, TOPIC, copied(*offsets), AUDITS)

    assert fault.startswith("the copy of k")


def loaded(*bodies: str) -> dict[MessageQueue, list[ReceivedMessage]]:
    return {
        COPY: [
            replace(message(offset, COPY), body=body.encode()) for offset, body in enumerate(bodies)
        ]
    }


def test_a_load_may_have_its_ties_in_any_order() -> None:
    """The topic has the numbers 0 to 3, which have one rank and two bodies."""
    assert load_faults(TOPIC, loaded("0-1", "0-0", "0-0", "0-1")) == []


@pytest.mark.parametrize(
    ("bodies", "fault"),
    [
        (("0-0", "0-1", "0-0"), "lacks Counter({'0-1': 1})"),
        (("0-0", "0-1", "0-0", "0-1", "0-1"), "too many of Counter({'0-1': 1})"),
        (
            ("0-0", "0-0", "0-0", "0-1"),
            "lacks Counter({'0-1': 1}) and has too many of Counter({'0-0': 1})",
        ),
    ],
)
def test_a_load_that_lost_or_repeated_is_found(bodies: tuple[str], fault: str) -> None:
    (found,) = load_faults(TOPIC, loaded(*bodies))

    assert fault in found


def test_a_load_in_another_order_is_found() -> None:
    topic = {QUEUE: [message(offset) for offset in (3, 4)]}

    assert load_faults(topic, loaded("1-0", "0-1")) == ["the load of k is in the order [1, 0]"]


def file_of(root: Path, where: QueueRange) -> Path:
    return Path(str(path_of(location(root), where)))


def lose_first(root: Path) -> None:
    file_of(root, FIRST).unlink()


def lose_manifest(root: Path) -> None:
    next((root / MANIFESTS).glob("*1.json")).unlink()


def leave_part(root: Path) -> None:
    path = root / "_parts" / "kept" / "7" / "x.part"
    path.parent.mkdir(parents=True)
    path.touch()


def change_row(root: Path) -> None:
    pq.write_table(pa.table({"queue_offset": [2, 2], "body": [b"a", b"b"]}), file_of(root, SECOND))


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lose_first, "the archive of"),
        (lose_manifest, "the manifests name"),
        (leave_part, "never published nor removed"),
        (change_row, "the archive of"),
    ],
)
def test_harm_to_the_archive_is_found(root: Path, harm: Callable[[Path], None], words: str) -> None:
    harm(root)

    assert words in "\n".join(broken_laws(root, TOPIC, copied(0, 1, 2, 3), AUDITS))


@pytest.mark.parametrize(
    "said",
    [
        (False, {"messages": 4, "defects": {"skipped": 1}}),
        (True, {"messages": 3, "defects": {}}),
    ],
)
def test_a_false_finding_and_a_message_that_was_not_looked_at_are_found(
    root: Path, said: tuple[bool, dict[str, Any]]
) -> None:
    (fault,) = broken_laws(root, TOPIC, copied(0, 1, 2, 3), {"audit": said})

    assert fault.startswith("audit: ")


def test_a_published_file_that_was_touched_is_found(root: Path) -> None:
    """The file was replaced by one of the same size, changed in place with its old time, or removed."""
    archived = Archived(root)
    assert archived.look() == []
    assert archived.count == 2

    path = file_of(root, FIRST)
    content = path.read_bytes()
    other = root / "other"
    other.write_bytes(content)
    other.rename(path)
    assert "was changed" in archived.look()[0]

    archived = Archived(root)
    archived.look()
    path.write_bytes(content[:-1] + b"x")
    assert "was changed" in archived.look(whole=True)[0]

    path.unlink()
    assert "is gone" in archived.look()[0]
