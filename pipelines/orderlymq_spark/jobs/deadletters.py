"""
Pipeline dead-letters: why messages of a consumer group became dead letters, by key, and which were overtaken.

The redrive pipeline also finds its letters here. Rules: a letter's origin is found by its message id in the brokers'
index, and must have the same content, because clients can also write letters. It is never guessed. An origin that has
aged out is older than all that are found. Such letters and their copies therefore come first in their key.

A redriven letter is found by the identity of its copy. The copy counts as a message at the place of the letter's
origin, so it overtakes only letters with earlier origins. The same holds for the letter that the copy becomes if it
fails again.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from orderlymq.admin.messages import origin_ids
from orderlymq.blocking import AdminClient
from orderlymq.cli.session import iso
from orderlymq.connection.wire import read_or_flag
from orderlymq.errors import TopicNotFound
from orderlymq.message import ReceivedMessage
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.message import properties as names
from orderlymq_protocol.message.record import iter_records
from orderlymq_protocol.names import dlq_topic, redrive_key
from orderlymq_protocol.plurals import counted
from orderlymq_spark.cluster.access import ClusterAccess, access_to
from orderlymq_spark.frames import FILTER_PUSHDOWN, read_batch
from orderlymq_spark.offsets import ranges, to_json
from orderlymq_spark.run.outcome import Outcome, SparkStarter
from orderlymq_spark.specs import DeadLetterSpec

_TOP: Final = 10
_PLACE: Final = "broker string, queue_id int"


def run(_name: str, spec: DeadLetterSpec, spark: SparkStarter) -> Outcome:
    """Create the report."""
    letters = marked_letters(access_to(spec.connect), spec.group, spark)
    topics = Counter(letter.topic for letter in letters)
    tries = Counter(letter.message.reconsume_times for letter in letters)
    keys = Counter(letter.key for letter in letters)
    times = [letter.message.store_timestamp for letter in letters]
    data: dict[str, Any] = {
        "group": spec.group,
        "deadLetters": len(letters),
        "byTopic": dict(topics),
        "byTries": {str(number): count for number, count in sorted(tries.items())},
        "byKey": [{"key": key, "count": count} for key, count in keys.most_common(_TOP)],
        "overtaken": sum(letter.overtaken is True for letter in letters),
        "originGone": sum(letter.is_doubtful for letter in letters),
        "redriven": sum(letter.copy is not None for letter in letters),
        "firstAt": iso(min(times)) if times else None,
        "lastAt": iso(max(times)) if times else None,
        "letters": [
            {
                "place": f"{m.queue.broker_name}:{m.queue.queue_id}@{m.queue_offset}",
                "topic": letter.topic,
                "key": letter.key,
                "messageId": m.message_id,
                "origin": None if letter.origin is None else [*letter.origin[0], letter.origin[1]],
                "overtaken": letter.overtaken,
                "tries": m.reconsume_times,
            }
            for letter in letters
            for m in (letter.message,)
        ],
    }
    lines = [f"{counted(len(letters), 'dead letter')} of {spec.group}"]
    lines += [f"  from {topic}: {count}" for topic, count in topics.most_common()]
    lines += [
        f"  after {counted(number, 'try', 'tries')}: {count}"
        for number, count in sorted(tries.items())
    ]
    lines += [f"  key {key}: {count}" for key, count in keys.most_common(_TOP)]
    lines.append(f"  overtaken by a later message of their key: {data['overtaken']}")
    if data["redriven"]:
        lines.append(f"  redriven to their topic: {data['redriven']}")
    if data["originGone"]:
        lines.append(f"  whose topic has no message with the same content: {data['originGone']}")
    return Outcome("\n".join(lines), data)


@dataclass(slots=True)
class DeadLetter:
    """A dead letter with its origin.

    Attributes:
        origin: queue and offset of the original message; None if it has aged out.
        stored_ms: when the original message was stored.
        overtaken: a later message of the key has been consumed; None if this is unknown.
        copy: queue and offset of its redriven copy in the topic; None if it was not redriven.
        first: the first letter of the chain of failed copies that led to this one; None if this is the first.
        is_doubtful: its topic has no message with the same content: it has aged out, or a client made up the letter.
        key_property: the property that holds the key whose order the consumer group keeps.
    """

    message: ReceivedMessage
    topic: str
    origin: tuple[MessageQueue, int] | None = None
    overtaken: bool | None = None
    stored_ms: int = 0
    copy: tuple[MessageQueue, int] | None = None
    first: "DeadLetter | None" = None
    is_doubtful: bool = False
    key_property: str = names.SHARDING_KEY

    @property
    def key(self) -> str | None:
        """The key in whose order the letter has a place."""
        return self.message.properties.get(self.key_property)

    def identity(self, topic: str) -> str:
        """Return the unique key of the letter's copy in a topic; all plans and consoles use the same one."""
        said = self.message
        return redrive_key(said.queue, said.queue_offset, message_id=said.message_id, target=topic)


def in_origin_order(letters: Iterable[DeadLetter]) -> list[DeadLetter]:
    """Sort letters by the origin of the first letter of their chain: by offset within a queue, by time between queues.

    Time matters because keys move between queues when a topic grows. Letters whose origin has aged out keep the order
    of the dead letter queue.
    """
    gone, known = [], []
    for letter in letters:
        first = letter.first or letter
        said = first.message
        if first.origin is None:
            gone.append((said.queue, said.queue_offset, said.store_timestamp, letter))
        else:
            known.append((*first.origin, first.stored_ms, letter))

    return [*_merged(gone), *_merged(known)]


def _merged(placed: Iterable[tuple[MessageQueue, int, int, DeadLetter]]) -> list[DeadLetter]:
    """Sort by queue and offset, and merge the queues by time in ms; letters of one place sort by their own place."""
    # A clock that was set back must not reverse the order of a queue.
    latest: dict[MessageQueue, int] = {}
    ranked: list[tuple[int, DeadLetter]] = []
    for queue, _, at_ms, letter in sorted(
        placed, key=lambda each: (each[:2], each[3].message.queue, each[3].message.queue_offset)
    ):
        latest[queue] = max(latest.get(queue, 0), at_ms)
        ranked.append((latest[queue], letter))
    return [letter for _, letter in sorted(ranked, key=lambda pair: pair[0])]


def dead_letters(access: ClusterAccess, group: str) -> list[DeadLetter]:
    """Return the dead letters of a consumer group with their origins; empty if it never had one."""
    found: list[DeadLetter] = []
    try:
        access.queues([dlq_topic(group)])
    except TopicNotFound:
        return found
    key_property = access.lanes(group, dlq_topic(group)).lane_key_property
    with AdminClient(access.connect.bootstrap, client_settings=access.connect.settings()) as admin:
        for message in messages(access, dlq_topic(group)):
            topic = names.origin_topic(message.properties)
            origin = admin.find_origin(message, topic)
            message.body = b""  # the body is not needed any more, and there may be many letters
            letter = DeadLetter(
                message, topic, is_doubtful=origin is None, key_property=key_property
            )
            if origin is not None:
                letter.origin = origin.queue, origin.queue_offset
                letter.stored_ms = origin.store_timestamp
            found.append(letter)
        for topic in {letter.topic for letter in found if letter.topic}:
            mine = [letter for letter in found if letter.topic == topic]
            redriven = redriven_to(access, topic, mine)
            for letter in mine:
                if letter.identity(topic) in redriven:
                    copy = _find(admin, topic, letter.identity(topic))
                    letter.copy = (copy.queue, copy.queue_offset) if copy is not None else None
    take_first_origins(found)
    return found


def redriven_to(access: ClusterAccess, topic: str, letters: Sequence[DeadLetter]) -> set[str]:
    """Return the identities of those letters whose copies a topic has."""
    asked = [letter.identity(topic) for letter in letters]
    try:
        stored = access.thread.run(access.are_stored(topic, asked))
    except TopicNotFound:
        return set()
    return set(compress(asked, stored))


def take_first_origins(letters: Sequence[DeadLetter]) -> None:
    """Link repeated letters to the first letter of their chain, and give them its origin unless that has aged out."""
    copies = {letter.identity(letter.topic): letter for letter in letters}
    for letter in letters:
        first = letter
        while before := next(
            (copies[each] for each in origin_ids(first.message) if each in copies), None
        ):
            first = before
        letter.first = None if first is letter else first
        if first.origin is not None:
            letter.origin, letter.stored_ms = first.origin, first.stored_ms


def marked_letters(
    access: ClusterAccess, group: str, spark: SparkStarter, keys: Sequence[str] | None = None
) -> list[DeadLetter]:
    """Return the dead letters of a consumer group, or of some keys, and mark the overtaken ones."""
    found = dead_letters(access, group)
    if keys is not None:
        found = [letter for letter in found if letter.key in keys]
    if found:
        mark_overtaken(spark(), access, group, found)
    return found


def messages(access: ClusterAccess, topic: str) -> Iterator[ReceivedMessage]:
    """Yield all messages of a topic, queue by queue; retention may delete the first ones meanwhile."""
    lows, highs = access.bounds(access.queues([topic]))
    for part in ranges(lows, highs):
        at = part.start
        while at < part.end:
            for fetched in access.read(replace(part, start=at)):
                at = fetched.next_offset if fetched.moved_to is None else fetched.moved_to
                for chunk in fetched.chunks:
                    for record in iter_records(chunk):
                        yield read_or_flag(record, part.queue)


def letter_at(access: ClusterAccess, queue: MessageQueue, offset: int) -> ReceivedMessage | None:
    """Return the complete dead letter at an offset; None if it is gone."""
    found = access.first_from(queue, offset)
    return None if found is None or found.queue_offset != offset else read_or_flag(found, queue)


def _find(admin: AdminClient, topic: str, unique_key: str) -> ReceivedMessage | None:
    found = admin.find_messages(topic, unique_key, unique=True, unreadable=True)
    return min(found, key=lambda one: (one.queue, one.queue_offset), default=None)


def mark_overtaken(
    spark: SparkSession, access: ClusterAccess, group: str, letters: Sequence[DeadLetter]
) -> None:
    """Mark the letters that were overtaken: a later message of the key was consumed and is not a dead letter."""
    by_topic: dict[str, list[DeadLetter]] = {}
    for letter in letters:
        if letter.origin is not None and letter.key is not None:
            by_topic.setdefault(letter.topic, []).append(letter)
    for topic, mine in by_topic.items():
        origins = {letter.origin for letter in mine if letter.origin is not None}
        # Only if the topic has grown can other queues have later messages of the key.
        grown = access.expansion(topic) is not None
        others = access.queues([topic]) if grown else ()
        queues = sorted({*others, *(queue for queue, _ in origins)})
        lows, highs = access.bounds(queues)
        first_ms = min(letter.stored_ms for letter in mine)
        starts = {}
        for queue in queues:
            own = [offset for each, offset in origins if each == queue]
            late = access.offset_at(queue, lows[queue], highs[queue], first_ms)
            starts[queue] = min([*own, highs[queue] if late is None else late])
        consumed = consumed_of(access, group, topic, queues, {str(letter.key) for letter in mine})
        newest = _newest(spark, access, topic, starts, consumed, mine)
        add_copies(newest, consumed, mine)
        for letter in mine:
            assert letter.origin is not None
            letter.overtaken = is_overtaken(letter, newest, grown=grown)


Newest = dict[tuple[MessageQueue, str | None], tuple[int, int]]
"""Offset and store time of the newest consumed message of a key, by queue."""


@dataclass(frozen=True, slots=True)
class Consumed:
    """How far a consumer group has consumed a topic.

    Attributes:
        ends: the end of the consumed messages of each queue, except for keys in *owed*.
        owed: the first unconsumed message of a key, by queue and key; only consumer groups by key continue past it.
    """

    ends: Mapping[MessageQueue, int]
    owed: Mapping[tuple[MessageQueue, str], int] = field(default_factory=dict)

    def end(self, queue: MessageQueue, key: str | None) -> int:
        """Return the end of the consumed messages of a key in a queue."""
        end = self.ends.get(queue, 0)
        return end if key is None else min(end, self.owed.get((queue, key), end))


def consumed_of(
    access: ClusterAccess, group: str, topic: str, queues: Sequence[MessageQueue], keys: set[str]
) -> Consumed:
    """Return how far a consumer group has consumed keys of a topic.

    The committed offset of a consumer group by key is not enough: it is the first unconsumed message of any key.
    """
    committed = access.committed(group, queues)
    lanes = access.lane_ends(group, topic, keys - {""})
    scanned = {} if lanes is None else lanes.scanned
    ends = {queue: scanned.get(queue, committed[queue] or 0) for queue in queues}
    return Consumed(ends, {} if lanes is None else lanes.owed)


def add_copies(newest: Newest, consumed: Consumed, letters: Sequence[DeadLetter]) -> None:
    """Add the letters whose copies were consumed and did not fail again, at the places of their origins."""
    failed = {each for letter in letters for each in origin_ids(letter.message)}
    for letter in letters:
        if letter.origin is None or letter.copy is None or letter.identity(letter.topic) in failed:
            continue
        queue, offset = letter.copy
        if offset < consumed.end(queue, letter.key):
            place = letter.origin[0], letter.key
            known = newest.get(place, (-1, 0))
            newest[place] = max(known[0], letter.origin[1]), max(known[1], letter.stored_ms)


def is_overtaken(letter: DeadLetter, newest: Newest, *, grown: bool) -> bool:
    """Return whether a later message of a letter's key was consumed.

    In the letter's queue, offsets decide. In other queues, times decide; they matter only if the topic has *grown*.
    """
    assert letter.origin is not None
    own, origin = letter.origin
    return any(
        offset > origin if queue == own else grown and stored_ms > letter.stored_ms
        for (queue, key), (offset, stored_ms) in newest.items()
        if key == letter.key
    )


def _newest(
    spark: SparkSession,
    access: ClusterAccess,
    topic: str,
    starts: dict[MessageQueue, int],
    consumed: Consumed,
    letters: Sequence[DeadLetter],
) -> Newest:
    """Return the newest consumed message of each letter's key in each queue, without letters and their copies."""
    own = {
        (place[0].broker_name, place[0].queue_id, place[1])
        for letter in letters
        for place in (letter.origin, letter.copy)
        if place is not None
    }
    ends = {queue: max(consumed.ends[queue], start) for queue, start in starts.items()}
    name = letters[0].key_property
    column = "sharding_key" if name == names.SHARDING_KEY else "properties"
    rows = read_batch(
        spark,
        **access.connect.to_options(),
        queues=json.dumps(_by_broker(starts)),
        startingOffsets=json.dumps(to_json(starts)),
        endingOffsets=json.dumps(to_json(ends)),
        columns=f"broker,queue_id,queue_offset,{column},store_ts",
        pushFilters=spark.conf.get(FILTER_PUSHDOWN, "false") == "true",
    )
    if column == "properties":
        rows = rows.withColumn("sharding_key", F.col("properties")[name])
    rows = rows.where(F.col("sharding_key").isin(sorted({str(letter.key) for letter in letters})))
    known = spark.createDataFrame(sorted(own), f"{_PLACE}, queue_offset bigint")
    owed = spark.createDataFrame(
        [
            (queue.broker_name, queue.queue_id, key, offset)
            for (queue, key), offset in sorted(consumed.owed.items())
        ],
        f"{_PLACE}, sharding_key string, owed bigint",
    )
    found = (
        rows.join(F.broadcast(known), ["broker", "queue_id", "queue_offset"], "left_anti")
        .join(F.broadcast(owed), ["broker", "queue_id", "sharding_key"], "left")
        .where(F.col("owed").isNull() | (F.col("queue_offset") < F.col("owed")))
        .groupBy("broker", "queue_id", "sharding_key")
        .agg(
            F.max("queue_offset").alias("newest"),
            F.unix_millis(F.max("store_ts")).alias("stored_ms"),
        )
        .collect()
    )
    return {
        (MessageQueue(topic, row.broker, row.queue_id), row.sharding_key): (
            row.newest,
            row.stored_ms,
        )
        for row in found
    }


def _by_broker(queues: dict[MessageQueue, int]) -> dict[str, dict[str, list[int]]]:
    found: dict[str, dict[str, list[int]]] = {}
    for queue in queues:
        found.setdefault(queue.topic, {}).setdefault(queue.broker_name, []).append(queue.queue_id)
    return found
