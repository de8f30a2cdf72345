"""The backlog of a pipeline: ranges of queues and the size of their messages, or the files of an archive."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_spark.cluster.access import ClusterAccess, access_to
from orderlymq_spark.jobs.mirror.job import mirror_of
from orderlymq_spark.locations.location import Location
from orderlymq_spark.offsets import (
    QueueRange,
    continued,
    from_json,
    ranges,
    split,
)
from orderlymq_spark.options import START_FILE, SourceOptions
from orderlymq_spark.run.checkpoint import last_end
from orderlymq_spark.source.bounds import chosen_queues, replaced_queues, resolve, start_in
from orderlymq_spark.source.records import parse_records
from orderlymq_spark.specs import MirrorSpec
from orderlymq_spark.tables.parquet import path_of, published

_SAMPLE_ROWS: Final = 32
_SAMPLE_QUEUES: Final = 8


@dataclass(frozen=True, slots=True)
class Backlog:
    """The work left for a pipeline.

    Attributes:
        what: a readable description.
        messages: how many; None if only files are counted.
        size_bytes: estimated from a sample of messages.
        parts: the number of parts that tasks process one by one.
        missing: ranges that should exist but are gone.
        removed: queues in the checkpoint that no longer exist.
    """

    what: str
    messages: int | None
    size_bytes: int
    parts: int
    missing: tuple[QueueRange, ...] = ()
    removed: tuple[MessageQueue, ...] = ()


def of_topic(options: SourceOptions, checkpoint: Location | None) -> Backlog:
    """Return the messages that wait in the queues of a source, after those that a checkpoint records as done.

    Raises:
        TopicNotFound, OptionError, SourceUnavailable: As when the pipeline runs.
    """
    access = access_to(options.connect)
    queues = chosen_queues(access, options)
    done = _done(checkpoint) if checkpoint is not None else None
    if done is None:
        start = resolve(access, options, options.start, "starting", queues)
    else:
        start = from_json(done)
    end = resolve(access, options, options.end, "ending", queues)
    ids = access.topic_ids({queue.topic for queue in queues})
    lows, highs = access.bounds(queues)
    replaced = replaced_queues(access, done or {}, ids, highs, at_rest=True)
    found = continued(start, lows, highs, replaced)
    parts = ranges(found.start, end)
    messages = sum(part.size for part in parts)
    where = "the start that the manifest sets" if done is None else "where the checkpoint ends"
    topics = ", ".join(sorted({queue.topic for queue in queues}))
    return Backlog(
        f"{messages} messages of {topics} in {len(queues)} queues, from {where}",
        messages,
        round(messages * _mean_bytes(access, parts)),
        len(split(parts, options.partitions_min, options.records_max)),
        found.missing,
        found.removed,
    )


def of_mirror(spec: MirrorSpec) -> Backlog:
    """Return the messages that the target of a mirror lacks.

    Raises:
        OptionError, DataLost, SinkConflict, QueueListChanged: As when the pipeline runs.
    """
    mirror = mirror_of(spec)
    parts = mirror.look()
    messages = sum(part.size for part in parts)
    return Backlog(
        f"{messages} messages of {', '.join(mirror.topics)} in {len(mirror.ends)} queues, from where the target ends",
        messages,
        round(messages * _mean_bytes(mirror.source, parts)),
        len(parts),
    )


def of_archive(path: Location) -> Backlog:
    """Return the backlog of an archive: its files."""
    files = published(path)
    sizes = path.each(lambda each: path_of(path, each).size(), files)
    messages = sum(each.size for each in files)
    text = f"{len(files)} files with {messages} offsets in {path}"
    return Backlog(text, messages, sum(sizes), len({each.queue for each in files}))


def _done(checkpoint: Location) -> Any:
    """Return the end of a stream's last batch, or where the stream began; None if it never ran."""
    ended, start = last_end(checkpoint / "spark"), checkpoint / START_FILE
    return start_in(start) if ended is None and start.exists() else ended


def _mean_bytes(access: ClusterAccess, parts: Sequence[QueueRange]) -> float:
    """Return the mean stored size of the first messages of some queues."""
    size = count = 0
    for part in parts[:_SAMPLE_QUEUES]:
        end = min(part.end, part.start + _SAMPLE_ROWS)
        for fetched in access.read(QueueRange(part.queue, part.start, end)):
            size += sum(map(len, fetched.chunks))
            count += len(parse_records(fetched.chunks, 0, 1 << 62))
    return size / count if count else 0.0
