"""
The doctor: checks whether everything in a replica's directory agrees with everything else.

The rule: it only reads and never repairs; a replica with findings is restored from its peers. It reads each family
once: raft log and messages (``doctor/log.py``), then consume queues, index, duplicate window and tables. It compares
the consume queues with the messages in both directions. Missing index entries can be found only for messages whose
entry is still in the raft log, because for older ones there is nothing to compare with.
"""

from pathlib import Path

from orderlymq_broker.doctor.log import (
    LogExamination,
    Report,
    examine_messages,
    examine_positions,
    read_pages,
    reading_copy,
)
from orderlymq_broker.state.broker import BrokerState
from orderlymq_broker.state.records import Append, decode_records
from orderlymq_broker.state.schedule.timers import read_timers
from orderlymq_broker.state.statemachine import KEYS_MAX
from orderlymq_broker.state.tables import read_as
from orderlymq_broker.state.topics.rows import FloorRow
from orderlymq_broker.state.topics.topics import Topic
from orderlymq_broker.store import layout
from orderlymq_broker.store.entry import EntryParts
from orderlymq_broker.store.kv import Family, Reader, StoreError, StoreFailed
from orderlymq_broker.store.layout import IndexKind, KeyCorrupt, QueueEntry
from orderlymq_broker.store.snapshot import effective_store
from orderlymq_broker.store.writeaheadlog import refuse_gap
from orderlymq_protocol.decodeerrors import UNREADABLE
from orderlymq_protocol.message.properties import KEYS, TAGS, UNIQ_KEY, find_property
from orderlymq_protocol.message.record import RecordError, StoredMessage, decode_record
from orderlymq_protocol.message.tags import tags_code
from orderlymq_protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC


def examine(path: Path) -> Report:
    """Examine the replica in *path* and report what is wrong with it.

    Raises:
        StoreError: there is nothing that can be examined (`NoReplica`, `DirectoryInUse`,
            `FormatTooNew`); damage is a finding and not an error.
    """
    report = Report(str(path))
    try:
        with reading_copy(path) as store:
            try:
                refuse_gap(effective_store(path))
            except StoreFailed as error:
                report.add("files", path, error)
            _Examination(store, report).run()
    except (StoreFailed, KeyCorrupt) as error:
        report.add("files", path, error)

    return report


class _Examination:
    """One walk over all families, in an order in which each step can use what earlier steps found."""

    def __init__(self, reader: Reader, report: Report) -> None:
        self._reader = reader
        self._report = report
        self._positions = examine_positions(reader, report)
        self._state = _load_state(reader, report)
        self._floors = _load_floors(reader, report)
        # Per topic: the place of its first queued message. Messages before it belong to a deleted
        # topic of the same name.
        self._first_physical: dict[int, int] = {}

    def run(self) -> None:
        """Go through all families; if one is damaged, the others are still read."""
        log = LogExamination(self._reader, self._report, self._positions, self._entry)
        end = self._positions.applied.physical_end
        for check, step in (
            ("consume queues", self._queues),
            ("raft log", log.run),
            (
                "messages",
                lambda: examine_messages(
                    self._reader,
                    self._report,
                    self._positions,
                    max(log.physical_end, end),
                    self._message,
                ),
            ),
            ("index", self._index),
            ("duplicate window", self._window),
            ("tables", self._tables),
        ):
            try:
                step()
            except StoreError as error:
                self._report.add(check, "files", error)

    # -- consume queues ------------------------------------------------------------------------

    def _queues(self) -> None:
        former: tuple[int, int, int] | None = None
        stamp = 0
        for key, value in read_pages(self._reader, Family.CONSUME_QUEUE):
            self._report.count("queue entries")
            try:
                topic_id, queue_id, offset = layout.decode_queue_key(key)
                entry = layout.decode_queue_entry(value)
            except KeyCorrupt as error:
                self._report.add("consume queues", key.hex(), error)
                continue
            place = f"{self._topic_name(topic_id)} queue {queue_id} offset {offset}"
            if former is None or former[:2] != (topic_id, queue_id):
                stamp = 0
                self._queue_start(place, topic_id, queue_id, offset)
            elif offset != former[2] + 1:
                self._report.add("consume queues", place, f"comes after offset {former[2]}")
            if entry.store_timestamp < stamp:
                self._report.add("consume queues", place, "is older than the message before it")
            former, stamp = (topic_id, queue_id, offset), entry.store_timestamp
            first = self._first_physical.get(topic_id)
            if first is None or entry.physical < first:
                self._first_physical[topic_id] = entry.physical
            self._queue_entry(place, (topic_id, queue_id, offset), entry)

    def _queue_start(self, place: str, topic_id: int, queue_id: int, offset: int) -> None:
        floor = self._floors.get((topic_id, queue_id), 0)
        if self._topic(topic_id) is None:
            self._report.add("consume queues", place, "no table has this topic")
        elif floor != offset:
            self._report.add(
                "consume queues",
                place,
                f"is the first entry, but the queue begins at {floor}",
            )

    def _queue_entry(self, place: str, key: tuple[int, int, int], entry: QueueEntry) -> None:
        applied = self._positions.applied
        if not applied.floor <= entry.physical < applied.physical_end:
            self._report.add(
                "consume queues",
                place,
                f"points to physical offset {entry.physical}, but the applied messages are in "
                f"[{applied.floor}, {applied.physical_end})",
            )
            return
        found = self._read_message(entry.physical)
        if found is None:
            self._report.add(
                "consume queues", place, f"points to {entry.physical}, where no message is"
            )
            return
        size, message = found
        topic = self._topic(key[0])
        expected = QueueEntry(
            message.physical_offset, size, entry.tags_code, message.store_timestamp
        )
        if (
            expected != entry
            or (message.queue_id, message.queue_offset) != key[1:]
            or (topic is not None and topic.name != message.topic)
        ):
            self._report.add(
                "consume queues",
                place,
                f"says {entry}, but the message there is {message.topic} queue {message.queue_id} "
                f"offset {message.queue_offset}, {size} bytes",
            )
        # In these topics, the code is the time when the message is due.
        if message.topic not in (SCHEDULE_TOPIC, TIMER_TOPIC):
            # No consumer reads a half message by its tag; the message gets the code when it is committed.
            half = message.topic == TRANS_HALF_TOPIC
            code = 0 if half else tags_code(find_property(message.properties, TAGS))
            if code != entry.tags_code:
                self._report.add(
                    "consume queues",
                    place,
                    f"has tags code {entry.tags_code}, but its tag has {code}",
                )

    # -- raft log and messages -----------------------------------------------------------------

    def _entry(self, index: int, parts: EntryParts) -> None:
        try:
            records = decode_records(bytes(parts.meta))
        except UNREADABLE as error:
            self._report.add(
                "raft log", f"entry {index}", f"its records cannot be decoded: {error}"
            )
            return
        physical = parts.physical_start
        for record in records:
            if isinstance(record, Append):
                if record.physical != physical:
                    self._report.add(
                        "raft log", f"entry {index}", f"{record} should be at {physical}"
                    )
                physical += record.size
                if index <= self._positions.applied.index:
                    self._append(index, record)
        if physical != parts.physical_end:
            self._report.add("raft log", f"entry {index}", "its records do not match its messages")

    def _append(self, index: int, record: Append) -> None:
        topic = self._topic(record.topic_id)
        floor = self._floors.get((record.topic_id, record.queue_id), 0)
        if topic is None or record.queue_offset < floor:
            return  # deleted, or dropped by retention
        key = layout.queue_key(record.topic_id, record.queue_id, record.queue_offset)
        entry = layout.encode_queue_entry(
            QueueEntry(record.physical, record.size, record.tags_code, record.store_timestamp)
        )
        if self._reader.get(Family.CONSUME_QUEUE, key) != entry:
            self._report.add(
                "consume queues",
                f"{topic.name} queue {record.queue_id} offset {record.queue_offset}",
                f"differs from the message that raft entry {index} put there",
            )
        # Further keys are indexed only while an entry has spare ones.
        tokens = [(IndexKind.KEY, token) for token in record.keys.split(" ")[:KEYS_MAX] if token]
        if record.unique_key:
            tokens.append((IndexKind.UNIQUE, record.unique_key))
        for kind, text in tokens:
            index_key = layout.index_key(
                record.topic_id, kind, text[: layout.INDEX_TEXT_SIZE_MAX], record.physical
            )
            if self._reader.get(Family.KEY_INDEX, index_key) is None:
                self._report.add(
                    "index",
                    f"{topic.name} physical offset {record.physical}",
                    f"the {kind.name.lower()} {text!r} is missing",
                )

    def _message(self, physical: int, message: StoredMessage) -> None:
        topic = self._state.topics.get(message.topic) if self._state else None
        if topic is None or physical >= self._positions.applied.physical_end:
            return
        if message.queue_offset < self._floors.get((topic.id, message.queue_id), 0):
            return
        if self._may_be_deleted(topic, physical):
            return
        key = layout.queue_key(topic.id, message.queue_id, message.queue_offset)
        value = self._reader.get(Family.CONSUME_QUEUE, key)
        if value is None or value[:8] != layout.encode_u64(physical):
            self._report.add(
                "messages",
                f"physical offset {physical}",
                f"{message.topic} queue {message.queue_id} offset {message.queue_offset} does not "
                "lead to it",
            )

    def _may_be_deleted(self, topic: Topic, physical: int) -> bool:
        """Return whether the message may belong to a former topic of the same name."""
        assert self._state is not None, "the caller found the topic in it"
        none_deleted = self._state.topics.next_id - 1 == len(self._state.topics.by_id)
        first = self._first_physical.get(topic.id)

        return not none_deleted and (first is None or physical < first)

    # -- index, window, tables -----------------------------------------------------------------

    def _index(self) -> None:
        applied = self._positions.applied
        for key, value in read_pages(self._reader, Family.KEY_INDEX):
            self._report.count("index entries")
            try:
                topic_id, kind, text, physical = layout.decode_index_key(key)
                stamp = layout.decode_timestamp(value)
            except KeyCorrupt as error:
                self._report.add("index", key.hex(), error)
                continue
            if physical < applied.floor:
                continue  # dropped by retention, but not yet swept here
            place = f"{self._topic_name(topic_id)} {kind.name.lower()} {text.decode(errors='replace')!r}"
            found = self._read_message(physical)
            if found is None:
                self._report.add("index", place, f"points to {physical}, where no message is")
                continue
            message = found[1]
            topic = self._topic(topic_id)
            if (
                topic is None
                or topic.name != message.topic
                or stamp != message.store_timestamp
                or key[:-8] not in _index_prefixes(topic_id, kind, message)
            ):
                self._report.add(
                    "index", place, f"does not match the message at physical offset {physical}"
                )

    def _window(self) -> None:
        applied = self._positions.applied
        for key, _ in read_pages(self._reader, Family.DEDUP):
            self._report.count("known sends")
            physical = layout.decode_u64(key)
            if physical >= applied.physical_end or (
                physical >= applied.floor and self._read_message(physical) is None
            ):
                self._report.add("duplicate window", f"physical offset {physical}", "no message")

    def _tables(self) -> None:
        for key, _ in read_pages(self._reader, Family.TABLES):
            self._report.count("table rows")
            if not key or key[0] not in {int(table) for table in layout.Table}:
                self._report.add("tables", key.hex(), "the table is unknown")
        if self._state is None:
            return
        timers = read_timers(self._reader)
        if list(timers.rows()) != list(self._state.timers.rows()):
            self._report.add(
                "tables",
                "timers",
                f"{timers.count} timers have a place, but {self._state.timers.count} are counted; "
                "or they are different timers",
            )
        for group, topic_name, queue_id, offset in self._state.offsets.rows():
            topic = self._state.topics.get(topic_name)
            queue = topic.queues.get(queue_id) if topic else None
            end = queue.next_offset if queue else 0
            if offset < 0 or (topic is not None and offset > end):
                self._report.add(
                    "tables",
                    f"group {group} topic {topic_name} queue {queue_id}",
                    f"offset {offset} is outside the queue, which ends at {end}",
                )

    # -- parts ---------------------------------------------------------------------------------

    def _topic(self, topic_id: int) -> Topic | None:
        return self._state.topics.by_id.get(topic_id) if self._state else None

    def _topic_name(self, topic_id: int) -> str:
        topic = self._topic(topic_id)

        return topic.name if topic else f"topic id {topic_id}"

    def _read_message(self, physical: int) -> tuple[int, StoredMessage] | None:
        """Return size and message, or None if there is none or if `examine_messages` reports it."""
        value = self._reader.get(Family.MESSAGES, layout.message_key(physical))
        if value is None:
            return None
        try:
            return len(value), decode_record(value)
        except RecordError:
            return None


def _load_state(reader: Reader, report: Report) -> BrokerState | None:
    """Return the tables as a broker would load them, or None if it could not."""
    try:
        state = BrokerState(reader)
        state.check_invariants()
    except StoreError as error:
        report.add("tables", "files", error)
        return None
    except Exception as error:  # damage may break any decoder in any way; the error is the finding
        report.add("tables", "TABLES", f"a broker cannot load the tables: {error!r}")
        return None

    return state


def _load_floors(reader: Reader, report: Report) -> dict[tuple[int, int], int]:
    """Return where trimmed queues begin, according to their rows, because the entries themselves may be lost."""
    floors = {}
    try:
        for row in read_as(reader, layout.Table.QUEUES, FloorRow):
            floors[row.topic_id, row.queue_id] = row.min_offset
    except (StoreError, *UNREADABLE) as error:
        report.add("tables", "queue floors", error)

    return floors


def _index_prefixes(topic_id: int, kind: IndexKind, message: StoredMessage) -> set[bytes]:
    if kind is IndexKind.UNIQUE:
        texts = [find_property(message.properties, UNIQ_KEY) or ""]
    else:
        texts = (find_property(message.properties, KEYS) or "").split(" ")

    return {layout.index_prefix(topic_id, kind, text) for text in texts}
