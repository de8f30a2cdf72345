"""Laws about archive, copy, load and audits that hold after any number of kills."""

import fnmatch
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from orderlymq.message import ReceivedMessage
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_spark.locations.addresses import location
from orderlymq_spark.locations.location import Location
from orderlymq_spark.tables.manifests import MANIFESTS, PARTS
from orderlymq_spark.tables.parquet import below, holes, path_of, published
from tests.spark.topics import numbers_by_key

#: This many successive rows of a key have the same order value, and every n-th row has the same body.
TIE, ALIKE = 4, 2

Queues = Mapping[MessageQueue, Sequence[ReceivedMessage]]


@dataclass
class Archived:
    """The published files as they were when they were first seen."""

    root: Path
    _seen: dict[Path, tuple[int, int, str]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return len(self._seen)

    def look(self, *, whole: bool = False) -> list[str]:
        """Record new files; return earlier ones that are missing or changed, with *whole* also by their bytes."""
        found = set(self.root.glob("*/*/*.parquet"))
        faults = [f"the published file {path} is gone" for path in self._seen.keys() - found]
        for path in sorted(found):
            about = path.stat()
            known = self._seen.get(path)
            if known is None:
                self._seen[path] = about.st_ino, about.st_mtime_ns, _digest(path)
            elif (about.st_ino, about.st_mtime_ns) != known[:2] or (
                whole and _digest(path) != known[2]
            ):
                faults.append(f"the published file {path} was changed")
        return faults


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def broken_laws(
    root: Path, topic: Queues, copy: Queues, audits: Mapping[str, tuple[bool, Mapping[str, Any]]]
) -> list[str]:
    """Return the broken laws.

    Args:
        root: of the archive.
        topic: the messages that were archived, audited and copied.
        copy: the messages of the copy.
        audits: by name: whether nothing was found, and the audit's text.
    """
    return [
        *archive_faults(location(root), topic),
        *_copy_faults(topic, copy),
        *_audit_faults(sum(map(len, topic.values())), audits),
    ]


def archive_faults(root: Location, topic: Queues) -> list[str]:
    """Check names, rows and manifests: every offset is there once, in order, with its body, and nothing else is."""
    parts = published(root)
    faults = [f"not in the archive: {each}" for each in holes(parts)]
    for queue, messages in topic.items():
        kept: list[tuple[int, bytes]] = []
        for part in parts:
            if part.queue == queue:
                rows = pq.read_table(path_of(root, part).open(), columns=["queue_offset", "body"])
                kept += zip(*(column.to_pylist() for column in rows.columns), strict=True)
        if kept != [(message.queue_offset, message.body) for message in messages]:
            faults.append(f"the archive of {queue} has {len(kept)} rows of {len(messages)}")
    return faults + _manifest_faults(root)


def _manifest_faults(root: Location) -> list[str]:
    """Check that each published file is in one manifest, and that no unpublished file is left."""
    told = [
        file["path"]
        for name in fnmatch.filter((root / MANIFESTS).names(), "*.json")
        for file in json.loads((root / MANIFESTS / name).read_text())["files"]
    ]
    faults = []
    if sorted(told) != sorted(below(root, str(path_of(root, part))) for part in published(root)):
        faults.append(f"the manifests name {len(told)} files that are not those of the archive")
    left = [name for name, _ in (root / PARTS).files()]
    if left:
        faults.append(f"{len(left)} files were never published nor removed, as {left[0]}")
    return faults


def _copy_faults(topic: Queues, copy: Queues) -> list[str]:
    """Check per key that the same messages are there in the same order, none twice."""
    origin, copied = numbers_by_key(topic), numbers_by_key(copy)
    return [
        f"the copy of {key} has {len(copied.get(key, []))} messages, the topic {len(numbers)}, or in another order"
        for key, numbers in origin.items()
        if copied.get(key) != numbers
    ] + [f"the copy has a key of its own: {key}" for key in copied.keys() - origin.keys()]


def load_faults(topic: Queues, loaded: Queues) -> list[str]:
    """Check per key that each body occurs as often as in the rows, and that no lower rank follows a higher one."""
    came: dict[str | None, list[str]] = {}
    for messages in loaded.values():
        for message in messages:
            came.setdefault(message.key, []).append(message.text)
    wanted = {
        key: [f"{int(n) // TIE}-{int(n) % ALIKE}" for n in numbers]
        for key, numbers in numbers_by_key(topic).items()
    }
    faults = [
        f"the load of {key} lacks {lacks or 'nothing'} and has too many of {more or 'nothing'}"
        for key in sorted(wanted.keys() | came.keys(), key=str)
        if (lacks := Counter(wanted.get(key)) - Counter(came.get(key)))
        | (more := Counter(came.get(key)) - Counter(wanted.get(key)))
    ]
    for key, bodies in came.items():
        ranks = [int(body.partition("-")[0]) for body in bodies]
        if ranks != sorted(ranks):
            faults.append(f"the load of {key} is in the order {ranks}")
    return faults


def _audit_faults(count: int, audits: Mapping[str, tuple[bool, Mapping[str, Any]]]) -> list[str]:
    """Check that audits report no false violation and looked at every message once."""
    return [
        f"{name}: {data['messages']} messages of {count}, {data['defects'] or 'no findings'}"
        for name, (passed, data) in audits.items()
        if not passed or data["messages"] != count
    ]
