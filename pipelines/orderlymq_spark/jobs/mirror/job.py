"""
Pipeline mirror: copies topics of one cluster to another, offset by offset, with the offsets of consumer groups.

It starts no Spark: the work is limited by the ordered requests of each queue, and Spark would retry a task without
knowing the outcome of the first attempt.

Rules: the target's brokers store copies only at the source's offsets. Each queue is therefore a prefix of its source,
even if any process dies or several mirrors run by mistake. The target's end shows where to continue. Before copies
are appended, the last copy is compared with its original, again for each block that was read. The source's topic is
compared with `status.json`, because a copy may have aged out. Offsets of consumer groups follow the messages, only
forwards, and only while the consumer group has no members at the target.
"""

import faulthandler
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, Final

from prometheus_client import Gauge

from orderlymq.errors import TopicNotFound
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.message.record import StoredMessage, iter_records
from orderlymq_protocol.plurals import counted
from orderlymq_runtime.process.ending import CLOSE_MAX_S
from orderlymq_spark.cluster.access import ClusterAccess, Fetched, access_to
from orderlymq_spark.cluster.expansions import Expansion
from orderlymq_spark.errors import CheckpointInUse, DataLost, OptionError, SinkConflict
from orderlymq_spark.jobs.mirror.appends import appended
from orderlymq_spark.jobs.mirror.plan import (
    Bounds,
    Pairs,
    check_list,
    check_topics,
    due,
    is_copy,
    pair,
    translated,
)
from orderlymq_spark.locations.location import Location
from orderlymq_spark.offsets import (
    Offsets,
    QueueRange,
    TopicIds,
    from_json,
    ids_in,
    marks_in,
    to_json,
)
from orderlymq_spark.options import parse_source
from orderlymq_spark.run.checkpoint import Claim, hold_checkpoint, last_batch
from orderlymq_spark.run.lag import lag_behind
from orderlymq_spark.run.outcome import Outcome, SparkStarter
from orderlymq_spark.run.status import Status, gauges_at, kept_status, show
from orderlymq_spark.run.stream import PipelineStopped
from orderlymq_spark.source.bounds import replaced_queues
from orderlymq_spark.specs import MirrorSpec
from orderlymq_spark.times import parse_duration_ms

_QUEUES_AT_ONCE: Final = 8  # a broker syncs the copies of all of them together
_LOOK_AGAIN_S: Final = 0.25  # the pause if nothing could be copied yet


def run(name: str, spec: MirrorSpec, _spark: SparkStarter) -> Outcome:
    """Copy messages until the trigger ends the run, or until a signal arrives.

    Raises:
        CheckpointInUse: As in `hold_checkpoint`, another driver has started, or the checkpoint belongs to a stream.
        OptionError: A topic cannot be mirrored, or the target does not have it.
        DataLost, SinkConflict, QueueListChanged: The target would no longer be a prefix of the source; nothing was
            changed.
        PipelineStopped: A signal ended a run that should have ended by itself.
    """
    mirror = mirror_of(spec)
    status, gauges = Status(name, spec.type, phase="Running"), gauges_at(spec.metrics_port)
    status.source = mirror.known
    with hold_checkpoint(spec.checkpoint) as claim, stopped_by_signals() as stop:
        _check_free(spec.checkpoint)
        try:
            waiting = _follow(mirror, spec, status, gauges, claim, stop)
        except CheckpointInUse:
            raise  # the status belongs to the other driver
        except Exception as error:
            status.fail(claim, str(error))
            raise
        if stop.is_set() and spec.ends:
            status.fail(claim, "stopped by a signal")
            raise PipelineStopped(
                f"{name}: stopped by a signal before its end; run it again, and it continues where the target ends"
            )
        status.phase = "Finished"
        status.write(claim)
    text = (
        f"{counted(status.rows, 'message')} of {', '.join(mirror.topics)} copied to "
        f"{spec.target_bootstrap}; {counted(mirror.moved, 'offset')} of groups moved"
    )
    text += "".join(f"\n  {group}: {reason}" for group, reason in waiting.items())
    data = {"rows": status.rows, "offsets": status.offsets, "groups": waiting}
    return Outcome(text, data | {"moved": mirror.moved})


def _check_free(checkpoint: Location) -> None:
    """Refuse the checkpoint of a stream that has read something; its status names the pipeline.

    Raises:
        CheckpointInUse: The checkpoint belongs to a stream.
    """
    if last_batch(checkpoint / "spark", "offsets") >= 0:
        name = kept_status(checkpoint).get("name", "")
        raise CheckpointInUse(
            f"the checkpoint {checkpoint} belongs to the stream {name}; give this mirror a checkpoint of its own"
        )


def _follow(
    mirror: "Mirror",
    spec: MirrorSpec,
    status: Status,
    gauges: Mapping[str, Gauge],
    claim: Claim,
    stop: threading.Event,
) -> dict[str, str]:
    """Copy until the trigger ends the run or *stop* is set; return why offsets of consumer groups were not moved."""
    goal: Offsets | None = None
    while True:
        began_s = time.monotonic()
        parts = mirror.look()
        if not status.updated_at_ms:
            # The target's topic may be new, so the stored status may not apply to it.
            _note(status, mirror, claim)
        goal = mirror.source_ends() if goal is None or not spec.ends else goal
        copied = mirror.copy(parts, stop)
        waiting = mirror.move_groups(spec.groups)
        status.rows += copied
        if copied:
            status.batches += 1
            status.last_batch = status.batches - 1
            seconds = max(0.001, time.monotonic() - began_s)
            status.rows_per_second = round(copied / seconds, 1)
        _note(status, mirror, claim)
        show(status, gauges)
        if stop.is_set() or (spec.ends and mirror.has_reached(goal)):
            return waiting
        if not spec.ends:
            stop.wait(parse_duration_ms(spec.trigger, "trigger") / 1000)
        elif not copied:
            stop.wait(_LOOK_AGAIN_S)


def mirror_of(spec: MirrorSpec) -> "Mirror":
    """Return the mirror of a spec; nothing is copied yet.

    Raises:
        OptionError: A topic cannot be mirrored.
    """
    options = parse_source(spec.source.all_options())
    if set(options.connect.bootstrap.split(";")) & set(spec.target_connect.bootstrap.split(";")):
        raise OptionError(
            "targetBootstrap names a name server of the source; a mirror copies to another cluster, under the same names"
        )
    source = access_to(options.connect)
    topics = source.topics(options.topics, options.pattern)
    check_topics(topics)
    known = kept_status(spec.checkpoint).get("source") or {}
    return Mirror(source, access_to(spec.target_connect), topics, known)


class Mirror:
    """A copier of topics from a source to a target.

    Attributes:
        topics: the topics that are copied.
        source: the cluster from which they are copied.
        known: what was copied from it, as `to_json` returns it: ends, with ids of topics and marks of messages.
        ends: the last seen ends of the target's queues, by the source's queue.
        sources: the last seen bounds of the source's queues.
        moved: how many offsets of consumer groups were written.
    """

    def __init__(
        self,
        source: ClusterAccess,
        target: ClusterAccess,
        topics: tuple[str, ...],
        known: Mapping[str, Any],
    ) -> None:
        self.topics = topics
        self.source = source
        self.known = known
        self._target = target
        self.ends: dict[MessageQueue, int] = {}
        self.sources: dict[MessageQueue, Bounds] = {}
        self.moved = 0
        self._ids: TopicIds = {}
        self._pairs: dict[MessageQueue, MessageQueue] = {}
        # The offset up to which a queue is known to be a copy.
        self._copied: dict[MessageQueue, int] = {}
        # The last copies, by the source's queue, except those that have aged out.
        self._last: dict[MessageQueue, StoredMessage] = {}

    def look(self) -> list[QueueRange]:
        """Read the state of both clusters; return the ranges to copy now.

        Raises:
            OptionError: The target lacks a topic.
            DataLost, SinkConflict, QueueListChanged: As in `plan`.
        """
        ids = self.source.topic_ids(self.topics)
        found: list[QueueRange] = []
        self._pairs, self.ends, self.sources, self._last = {}, {}, {}, {}
        for topic in self.topics:
            queues = self.source.listed(topic)
            pairs = pair(topic, queues, self._queues(topic))
            # Read the target first, because the source had its messages before.
            _, ends = self._target.bounds(pairs.values())
            lows, highs = self.source.bounds(queues)
            sources = {queue: Bounds(lows[queue], highs[queue]) for queue in queues}
            parts = due(pairs, sources, ends)
            found += self._of_one_list(topic, parts, len(queues), pairs)
            self.sources |= sources
            self._pairs |= pairs
            self.ends |= {queue: ends[copy] for queue, copy in pairs.items()}
            self._check_source(topic, ids, highs)
            waiting = {part.queue for part in parts}
            for queue, copy in pairs.items():
                if queue in waiting or self._copied.get(copy, 0) != ends[copy]:
                    self._verify(queue, copy, sources[queue], ends[copy])
        self._ids = {**ids_in(self.known), **ids}
        return found

    def copy(self, parts: Sequence[QueueRange], stop: threading.Event) -> int:
        """Copy the ranges that `look` returned; return how many messages were copied."""
        with ThreadPoolExecutor(_QUEUES_AT_ONCE, "mirror") as pool:
            return sum(pool.map(lambda part: self._copy(part, stop), parts))

    def note(self) -> None:
        """Record the target's messages as copies of the current source."""
        before = from_json(self.known, "source")
        moved = {queue: end for queue, end in self.ends.items() if before.get(queue) != end}
        marks = {queue: mark for queue, mark in marks_in(self.known).items() if queue not in moved}
        self.known = to_json(self.ends, self._ids, marks | self.source.marks(moved))

    def source_ends(self) -> dict[MessageQueue, int]:
        """Return the last seen ends of the source's queues."""
        return {queue: has.high for queue, has in self.sources.items()}

    def has_reached(self, goal: Offsets) -> bool:
        """Return whether the target has all messages before the goal that the source keeps, also those of other mirrors."""
        sources = self.sources
        return all(
            queue in sources and sources[queue].next_after(self.ends.get(queue, 0)) >= end
            for queue, end in goal.items()
        )

    def move_groups(self, groups: list[str]) -> dict[str, str]:
        """Copy the offsets of consumer groups to the target; return why some were not moved."""
        left: dict[str, str] = {}
        for group in groups:
            # Read the source first: the consumer group has consumed everything before these offsets, and begins no later.
            committed = self.source.committed(group, self._pairs)
            if self._target.has_members(group):
                left[group] = "it has members at the target, so its offsets there are its own"
                continue
            copies = list(self._pairs.values())
            present = self._target.committed(group, copies)
            _, ends = self._target.bounds(copies)
            wanted = {
                copy: offset
                for queue, copy in self._pairs.items()
                if (at := committed[queue]) is not None
                and (offset := translated(at, ends[copy], present[copy])) is not None
            }
            self._target.commit(group, wanted)
            after = self._target.committed(group, wanted)
            done = [copy for copy, offset in wanted.items() if (after[copy] or 0) >= offset]
            self.moved += len(done)
            if len(done) < len(wanted):
                left[group] = (
                    f"{counted(len(wanted) - len(done), 'offset')} refused by the target; it accepts offsets of groups "
                    "by queue while none of their queues is locked, so declare a group by key with concurrency: Queue there until its "
                    "consumers move; the log has the details"
                )
        return left

    # -- parts

    def _check_source(self, topic: str, ids: TopicIds, highs: Offsets) -> None:
        """Compare a topic of the source with what was copied.

        Raises:
            SinkConflict: It is a different topic, and the target has messages of the previous one.
        """
        known = {topic: self.known.get(topic, {})}
        copied = from_json(known, "source")
        for queue in sorted(replaced_queues(self.source, known, ids, highs)):
            # If the target has less, it was also recreated.
            if self.ends.get(queue, 0) >= max(1, copied[queue]):
                raise SinkConflict(
                    f"{QueueRange(queue, 0, copied[queue])} no longer exists as it was copied: the topic was created "
                    "again, or the source was wiped or restored; delete the target's topic and begin again"
                )

    def _queues(self, topic: str) -> tuple[MessageQueue, ...]:
        try:
            return self._target.listed(topic)
        except TopicNotFound as error:
            raise OptionError(
                f"the target has no topic {topic}; create it there with the queues that it has at the source, "
                "ordered if it is so there, and read-only so that no other client writes to it"
            ) from error

    def _of_one_list(
        self, topic: str, parts: list[QueueRange], seen: int, pairs: Pairs
    ) -> list[QueueRange]:
        """Return the parts of the queue list before the first uncopied expansion; all of *parts* if there is none.

        They must be copied before anything after the expansion, where keys have other queues.

        Args:
            topic: the topic of the ranges.
            parts: the current ranges of its queues.
            seen: how many queues the source had before that.
            pairs: of these queues.

        Raises:
            QueueListChanged: As in `check_list`.
        """
        expansions = self.source.expansions(topic) if parts or len(pairs) < seen else []
        for expansion in expansions:
            found = [
                QueueRange(
                    part.queue, part.start, min(part.end, self._list_begins(expansion, part))
                )
                for part in parts
            ]
            before = [each for each in found if each.size > 0]
            # The list may have grown since the queues were read, or name servers may not know all queues yet.
            if before or seen < sum(expansion.queues.values()):
                return before
            check_list(topic, expansion.total, pairs)
        check_list(topic, seen, pairs)
        return parts

    def _list_begins(self, expansion: Expansion, part: QueueRange) -> int:
        """Return the first offset of a range whose messages belong to the queue list after an expansion."""
        known = expansion.begins_at(part.queue)
        if known is not None:
            return known
        stored_ms = self.source.stored_at(part.queue, part.start)
        if stored_ms is None or stored_ms >= expansion.at_ms:
            return part.start
        at = self.source.offset_at(part.queue, part.start, part.end, expansion.at_ms)
        return part.end if at is None else at

    def _verify(self, queue: MessageQueue, copy: MessageQueue, has: Bounds, end: int) -> None:
        """Compare the target's last message with the source's, because the source may have been replaced a moment ago.

        Raises:
            SinkConflict: They differ, or only the target's message has aged out and no record shows which source it
                came from.
        """
        if end > has.low:
            original, message = (
                each if each is not None and each.queue_offset == end - 1 else None
                for each in (
                    self.source.first_from(queue, end - 1),
                    self._target.first_from(copy, end - 1),
                )
            )
            if original is not None and message is None and not self._is_known(queue):
                raise SinkConflict(
                    f"offset {end - 1} of the target's {copy} has aged out and cannot be compared with the message that the source "
                    "has there, and status.json does not say which source it came from; delete the target's topic and begin "
                    "again, and keep messages longer at the target"
                )
            if original is not None and message is not None and not is_copy(message, original):
                raise SinkConflict(
                    f"offset {end - 1} of the target's {copy} is not the message that the source has there: another "
                    "client has written to it, it is another topic's mirror, or the source was wiped or restored; delete the target's topic "
                    "and begin again"
                )
            if message is not None:
                self._last[queue] = message
        self._copied[copy] = end

    def _is_known(self, queue: MessageQueue) -> bool:
        """Return whether `_check_source` has compared the source of a queue."""
        has_id = (queue.topic, queue.broker_name) in ids_in(self.known)
        return has_id or queue in marks_in(self.known)

    def _check_same(self, queue: MessageQueue, last: StoredMessage | None) -> None:
        """Compare the last message before a block with the source's current one, because copying a range may take hours.

        Raises:
            SinkConflict: The messages differ.
        """
        found = None if last is None else self.source.first_from(queue, last.queue_offset)
        if last is None or found is None or found.queue_offset != last.queue_offset:
            return
        if not is_copy(last, found):
            raise SinkConflict(
                f"offset {last.queue_offset} of the source's {queue} is not the message that was copied: the source was wiped or "
                "restored meanwhile; delete the target's topic and begin again"
            )

    def _copy(self, part: QueueRange, stop: threading.Event) -> int:
        """Copy a range while the target's queue ends where the next copy begins; return how many messages were copied."""
        copy, done = self._pairs[part.queue], part.start
        read: list[Fetched] = []

        def chunks() -> Iterator[bytes]:
            last = self._last.get(part.queue)
            for block in self.source.read(part):
                self._check_same(part.queue, last)
                read[:] = [block]
                for message in iter_records(block.chunks[-1] if block.chunks else b""):
                    last = message
                for chunk in block.chunks:
                    if stop.is_set():
                        return
                    yield chunk

        append = partial(self._target.append, copy)
        for end in appended(chunks(), append, is_empty=self.ends[part.queue] == 0):
            self._copied[copy] = self.ends[part.queue] = done = end
        for block in read:
            # If the target's queue never had a message, it begins at the source's first message after the next look.
            if block.moved_to is not None and block.next_offset == done and self.ends[part.queue]:
                raise DataLost(
                    f"{QueueRange(part.queue, done, block.moved_to)} aged out at the source before it was copied; delete the "
                    "target's topic and begin again"
                )
        return done - part.start


def _note(status: Status, mirror: Mirror, claim: Claim) -> None:
    """Store the target's position, its source and the lag in the status; raises the errors of `Status.write`."""
    mirror.note()
    status.offsets, status.source = to_json(mirror.ends), mirror.known
    lag = lag_behind(mirror.source.connect, mirror.ends)
    status.lag, status.lag_seconds = (lag.messages, lag.seconds) if lag else (None, None)
    status.write(claim)


@contextmanager
def stopped_by_signals(close_max_s: float = CLOSE_MAX_S) -> Iterator[threading.Event]:
    """Return an event that SIGTERM and SIGINT set; in another thread than the main one, it is never set.

    If a cluster never answers, the process ends after *close_max_s* and prints its stack. A mirror that dies loses
    nothing.
    """
    stop = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        if not stop.is_set():  # a second signal would restart the time-out
            stop.set()
            faulthandler.dump_traceback_later(close_max_s, exit=True)

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield stop
    finally:
        faulthandler.cancel_dump_traceback_later()
        for number, handler in before.items():
            signal.signal(number, handler)
