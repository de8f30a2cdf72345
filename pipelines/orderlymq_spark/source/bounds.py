"""
Converts where a read begins and ends (words, times, consumer groups) to offsets, once.

Rule: a stream's first offsets are stored next to its checkpoint before anything is read. Spark asks for them again
when it repeats its first batch; without the file, "latest" would then silently be another place.
"""

import json
import logging
import re
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from orderlymq.errors import TopicNotFound
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.message.record import StoredMessage
from orderlymq_spark.cluster.access import ClusterAccess
from orderlymq_spark.cluster.expansions import Expansion
from orderlymq_spark.errors import DataLost, OptionError, QueueListChanged, SourceUnavailable
from orderlymq_spark.locations.addresses import location
from orderlymq_spark.locations.location import Location
from orderlymq_spark.offsets import (
    EARLIEST,
    LATEST,
    NO_OFFSETS,
    Offsets,
    QueueRange,
    TopicIds,
    created_again,
    describe_missing,
    from_json,
    ids_in,
    marks_in,
    to_json,
)
from orderlymq_spark.options import Bound, SourceOptions, Word

_log = logging.getLogger(__name__)

# Field names of a start file.
_ASKED: Final = "what was asked for"
_BEGAN: Final = "where it began"
_LOOK_AGAIN_S: Final = 0.25  # brokers register every 10 to 30 s


def chosen_queues(access: ClusterAccess, options: SourceOptions) -> tuple[MessageQueue, ...]:
    """Return the queues that the options select.

    Raises:
        TopicNotFound: No broker has a topic.
        OptionError: A named queue does not exist, or no topic matches.
    """
    topics = access.topics(options.topics, options.pattern)
    if not topics:
        raise OptionError(f"no topic matches topicsPattern={options.pattern}")
    found = access.queues(topics)
    if not options.queues:
        return found
    absent = sorted(options.queues - set(found))
    if absent:
        raise OptionError(f"queues names {absent[0]}, which does not exist; there are {found}")
    return tuple(queue for queue in found if queue in options.queues)


def awaited_queues(
    access: ClusterAccess, options: SourceOptions, awaited: Set[MessageQueue]
) -> tuple[MessageQueue, ...]:
    """Return the queues that the options select; wait for those that the stream has read before.

    A restarted name server learns of its brokers one by one, and RocketMQ's knows no topic until then. *awaited*
    queues that are missing are therefore waited for as long as `retryTimeout`.

    Raises:
        TopicNotFound, OptionError: As in `chosen_queues`.
        SourceUnavailable: Queues that the options name existed before and have not come back.
    """
    end = time.monotonic() + access.connect.retry_timeout_ms / 1000
    while True:
        late = time.monotonic() + _LOOK_AGAIN_S > end
        try:
            found = chosen_queues(access, options)
        except (TopicNotFound, OptionError) as error:
            if not awaited or (late and isinstance(error, TopicNotFound)):
                raise
            if late:
                raise SourceUnavailable(
                    f"{error}; waited {access.connect.retry_timeout_ms / 1000:g} s (retryTimeout) for topics that existed before"
                ) from error
        else:
            if late or awaited <= set(found):
                return found
        time.sleep(_LOOK_AGAIN_S)


def resolve(
    access: ClusterAccess,
    options: SourceOptions,
    bound: Bound,
    name: str,
    queues: tuple[MessageQueue, ...],
) -> dict[MessageQueue, int]:
    """Return an offset for every queue; *name* is "starting" or "ending".

    Raises:
        OptionError: An offset lies outside its queue, a queue is unknown, or all messages are older than the given
            time.
    """
    lows, highs = access.bounds(queues)
    match bound.word:
        case "earliest":
            return lows
        case "latest":
            return highs
        case "group":
            committed = access.committed(options.group, queues)
            return {
                queue: lows[queue] if offset is None else offset
                for queue, offset in committed.items()
            }
        case "timestamp":
            times = dict.fromkeys(lows, bound.timestamp_ms)
            return _at_times(access, replace(bound, offsets=times), name, lows, highs)
        case "timestamps":
            return _at_times(access, bound, name, lows, highs)
        case "offsets":
            return _explicit(bound, name, lows, highs)


def _at_times(
    access: ClusterAccess,
    bound: Bound,
    name: str,
    lows: Mapping[MessageQueue, int],
    highs: Mapping[MessageQueue, int],
) -> dict[MessageQueue, int]:
    """Return the offset of each queue's time; a queue without a time is read from its first message or to its end."""
    _check_known(bound, f"{name}OffsetsByTimestamp", lows)
    found: dict[MessageQueue, int] = {}
    for queue, low in lows.items():
        if queue not in bound.offsets:
            found[queue] = low if name == "starting" else highs[queue]
            continue
        offset = access.offset_at(queue, low, highs[queue], bound.offsets[queue])
        if offset is None and bound.strategy == "error":
            raise OptionError(
                f"{name}Timestamp: {queue.topic} {queue.broker_name}:{queue.queue_id} has no "
                f"message that was stored then or later; {name}TimestampStrategy=latest uses its end"
            )
        found[queue] = highs[queue] if offset is None else offset
    return found


def _check_known(bound: Bound, option: str, known: Mapping[MessageQueue, int]) -> None:
    unknown = sorted(set(bound.offsets) - set(known))
    if unknown:
        raise OptionError(f"{option} names {unknown[0]}, which is not read; known: {list(known)}")


def _explicit(
    bound: Bound,
    name: str,
    lows: Mapping[MessageQueue, int],
    highs: Mapping[MessageQueue, int],
) -> dict[MessageQueue, int]:
    _check_known(bound, f"{name}Offsets", lows)
    found: dict[MessageQueue, int] = {}
    for queue, low in lows.items():
        offset = bound.offsets.get(queue, EARLIEST if name == "starting" else LATEST)
        if offset == EARLIEST:
            offset = low
        elif offset == LATEST:
            offset = highs[queue]
        elif offset > highs[queue]:
            raise OptionError(
                f"{name}Offsets: {offset} of {queue.topic} {queue.broker_name}:{queue.queue_id} is "
                f"beyond its end {highs[queue]}"
            )
        found[queue] = offset
    return found


def first_offsets(access: ClusterAccess, options: SourceOptions) -> dict[str, Any]:
    """Return where a stream begins in the form of `to_json`, from its start file if that exists.

    Raises:
        OptionError: There is no file and the start would change if asked for again, or the file belongs to another
            stream.
    """
    path = location(options.start_path) if options.start_path else None
    if path is not None and path.exists():
        return _kept_for(options, path)
    queues, named = chosen_queues(access, options), options.start.offsets
    moves = [queue for queue in queues if named.get(queue, EARLIEST) < 0]
    if path is None and (options.start.word != "offsets" or moves):
        what = f"offsets without one of {moves[0]}" if named else options.start.word
        raise OptionError(
            f"a stream that begins at {what} needs startPath=<file next to the "
            "checkpoint>, which records where it began; orderlymq_spark.read_stream() sets it"
        )
    ids = access.topic_ids({queue.topic for queue in queues})
    found = to_json(resolve(access, options, options.start, "starting", queues), ids)
    kept = json.dumps({_ASKED: _asked(options), _BEGAN: found})
    if path is not None and not path.create(kept):
        # Another driver created the file first; both begin where it says.
        return _kept_for(options, path)
    return found


def _kept_for(options: SourceOptions, path: Location) -> dict[str, Any]:
    asked, found = _kept(path)
    wanted = re.compile(options.pattern) if options.pattern else None
    if found and not any(
        each in options.topics or (wanted and wanted.fullmatch(each)) for each in found
    ):
        raise _of_another(path, f"of {', '.join(found)} began")
    for name, now in _asked(options).items():
        if asked.get(name) != now:
            raise _of_another(
                path,
                f"with {name}={asked.get(name)} began, but this one asks for {now}, which would be ignored",
            )
    return found


def _of_another(path: Location, what: str) -> OptionError:
    return OptionError(
        f"{path} keeps where a stream {what}; if a query reads several streams, give each its own startPath; if "
        "a stream begins elsewhere, give it a new checkpoint"
    )


def _asked(options: SourceOptions) -> dict[str, str]:
    """Return the options that decide where a stream of a topic begins."""
    start = options.start
    begin: dict[Word, str] = {
        "group": f"group {options.group}",
        "timestamp": f"{start.timestamp_ms} ms",
        "timestamps": f"{json.dumps(to_json(start.offsets))} ms",
        "offsets": json.dumps(to_json(start.offsets)),
    }
    queues = [f"{each.topic} {each.broker_name}:{each.queue_id}" for each in sorted(options.queues)]
    return {
        "queues": ", ".join(queues) or "all",
        "starting": begin.get(start.word, start.word),
    }


def kept_offsets(options: SourceOptions) -> dict[str, Any]:
    """Return where a stream began, from its start file; empty if there is no file."""
    path = location(options.start_path) if options.start_path else None
    return start_in(path) if path is not None and path.exists() else {}


def start_in(path: Location) -> dict[str, Any]:
    """Return the offsets in a start file.

    Raises:
        OptionError: The file has another form.
    """
    return _kept(path)[1]


def _kept(path: Location) -> tuple[Mapping[str, str], dict[str, Any]]:
    """Return the options and the offsets in a start file; raises the errors of `start_in`."""
    kept = json.loads(path.read_text())
    from_json(kept.get(_BEGAN), str(path))
    return kept[_ASKED], kept[_BEGAN]


def replaced_queues(
    access: ClusterAccess,
    known: Mapping[str, Any],
    ids: TopicIds,
    highs: Mapping[MessageQueue, int],
    *,
    at_rest: bool = False,
) -> set[MessageQueue]:
    """Return the queues whose messages are not those that a stream has read.

    Args:
        access: to the cluster.
        known: the stream's position, as `to_json` returns it.
        ids: the current ids of the topics.
        highs: the ends of the queues.
        at_rest: whether to check the last message also of queues without new messages.
    """
    offsets, marks = from_json(known), marks_in(known)
    asked = {q: offsets[q] for q in marks.keys() & highs.keys() if offsets[q] < highs[q] + at_rest}
    return created_again(offsets, ids_in(known), ids) | access.differing(marks, asked)


def check_one_list(
    access: ClusterAccess, options: SourceOptions, known: Offsets = NO_OFFSETS
) -> None:
    """Refuse a stream that reads messages of two queue lists: a key that moved may have a lower offset in its new queue.

    Args:
        access: to the cluster.
        options: of the stream.
        known: the stream's position; without a start file this is all that is known of its start.

    Raises:
        QueueListChanged: A topic's queue list has grown within the range that the stream reads.
    """
    kept = from_json(kept_offsets(options))
    try:
        queues = chosen_queues(access, options)
    except (TopicNotFound, OptionError):
        # Wait only after an error; otherwise each batch would wait for a queue that was removed permanently.
        queues = awaited_queues(access, options, kept.keys() | known.keys())
    if options.keeps_start:
        starts = kept or from_json(first_offsets(access, options))
    else:
        lows, _ = access.bounds(queues)
        # Retention may have deleted messages that the stream read. But if the
        # stream knew a topic without a queue, that queue is new.
        topics = {queue.topic for queue in known}
        starts = {q: low for q, low in lows.items() if q.topic not in topics} | {**known}
    for topic in sorted({queue.topic for queue in queues}):
        expansion = access.expansion(topic)
        if expansion is None:
            continue
        first = {
            queue: access.first_from(queue, starts.get(queue, 0))
            for queue in queues
            if queue.topic == topic and expansion.has(queue)
        }
        grown = datetime.fromtimestamp(expansion.at_ms / 1000, UTC).isoformat()
        if has_two_lists(starts, first, expansion):
            raise QueueListChanged(
                f"the queue list of {topic} has grown, at {grown} at the latest, within the range that this "
                "pipeline reads, and keys have moved to other queues, so offsets do not show the order of their messages; begin behind "
                f"it (startingTimestamp: {expansion.at_ms}) with a new checkpoint and a new target"
            )


def has_two_lists(
    starts: Mapping[MessageQueue, int],
    first: Mapping[MessageQueue, StoredMessage | None],
    expansion: Expansion,
) -> bool:
    """Return whether a read of a topic includes messages of the queue list before the current one.

    Args:
        starts: where the read began; a queue that is missing here was added later.
        first: for every queue of the current list, the first message that is read.
        expansion: the expansion that created the current list.
    """
    return any(
        queue not in starts or (message is not None and not expansion.is_behind(message, queue))
        for queue, message in first.items()
    )


def write_loss(folder: str, part: QueueRange, reason: str) -> None:
    """Record a missing range; a repeated range creates no second file."""
    if not folder:
        return
    queue = part.queue
    name = f"{queue.topic}-{queue.broker_name}-{queue.queue_id}-{part.start}-{part.end}.json"
    facts = {
        "topic": queue.topic,
        "broker": queue.broker_name,
        "queue": queue.queue_id,
        "start": part.start,
        "end": part.end,
        "reason": reason,
    }
    (location(folder) / name).write(json.dumps(facts))


def report_loss(
    options: SourceOptions, missing: Sequence[QueueRange], removed: Sequence[MessageQueue]
) -> None:
    """Raise an error for missing ranges and queues, or record them.

    Raises:
        DataLost: Something is missing and `failOnDataLoss` is true.
    """
    if not missing and not removed:
        return
    text = describe_missing(missing, removed)
    if options.fail_on_data_loss:
        raise DataLost(
            f"{text}; to go on without it set failOnDataLoss=false (and dataLossPath=<folder> to keep "
            "the list)"
        )
    _log.warning("data loss: %s", text)
    for part in missing:
        write_loss(
            options.data_loss_path,
            part,
            "aged out, lost by the broker, or the queue was created again",
        )
    for queue in removed:
        write_loss(options.data_loss_path, QueueRange(queue, 0, 0), "the queue was removed")
