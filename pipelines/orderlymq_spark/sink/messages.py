"""
Converts rows to messages: the message of each row, its queue, its place in the order, and its unique key.

Rules: the queue of a key is the one that any RocketMQ producer with the hash selector chooses. The rows of a queue are
sent in the order of `orderBy`. Rows with equal values keep their order at the source queue; without a source, their
content decides. Without `orderBy`, rows are sent as they arrived.

A row's identity does not depend on its place among the other rows. The same rows are the same messages to the broker,
in any order and in any division among tasks that keeps a key together. A task holds only some of its rows in
memory (`externalsort`). It sorts them by key and content to assign identities, then by queue and order. `writer`
sends.
"""

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from itertools import chain, groupby, pairwise
from operator import attrgetter
from typing import Any, Final, NamedTuple

from orderlymq.message import Message
from orderlymq.producer.selectors import hash_index
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.message.properties import RESERVED_NAMES, SHARDING_KEY
from orderlymq_spark.errors import OptionError
from orderlymq_spark.options import ContentMode
from orderlymq_spark.sink.externalsort import RUN_ITEMS, ExternalSort, SpillFile
from orderlymq_spark.values.cloudevents import PREFIX, VERSION, message_of
from orderlymq_spark.values.conversion import ValueMisfit

_TEXT: Final = r"(string|(var)?char\(\d+\)|void)( collate \w+)?"
_WHOLE: Final = "tinyint|smallint|int|bigint|void"
# The columns that make up a message: the Spark types that each may have, and their name in errors.
_TYPES: Final = {
    "topic": (_TEXT, "a text"),
    "body": (f"{_TEXT}|binary", "a text or binary"),
    "sharding_key": (f"{_TEXT}|{_WHOLE}", "a text or a whole number"),
    "tags": (_TEXT, "a text"),
    "keys": (f"{_TEXT}|array<{_TEXT}>", "a text or an array of texts"),
    "properties": (f"void|map<{_TEXT},{_TEXT}>", "a map of texts"),
    "flag": (_WHOLE, "a whole number"),
    "message_id": (_TEXT, "a text"),
    "target_queue": (_WHOLE, "a whole number"),
}
_READ: Final = frozenset((*_TYPES, "broker", "queue_id", "queue_offset", "store_ts", "body_error"))
_WITHOUT_ORDER: Final = ("array", "map", "struct", "variant")


@dataclass(frozen=True, slots=True)
class QueueMessages:
    """The messages for one queue, in order; they can be read once."""

    queue: MessageQueue
    messages: Iterable[Message]


@dataclass(slots=True)
class Load:
    """The rows of one task.

    Attributes:
        parts: by queue.
        place: builds the parts again with the current queues; the previous parts can no longer be read.
        keys: values that no two tasks of a load may share: the keys of the rows, and one mark per topic for rows
            without a key and without a source.
    """

    parts: Sequence[QueueMessages]
    keys: "array[int]"
    place: Callable[[], Sequence[QueueMessages]]


def check_columns(
    columns: Mapping[str, str], topic: str, order_by: Sequence[str], content: str = "body"
) -> None:
    """Refuse a frame that cannot be sent.

    Args:
        columns: the Spark type of each column.
        topic: the target of all rows; empty if each row names its own.
        order_by: columns that give the order within a queue.
        content: the column from which messages are made.

    Raises:
        OptionError: A column is missing or has an unusable type; the text names it.
    """
    if content not in columns:
        raise OptionError(f"the rows have no column {content}; they have {', '.join(columns)}")
    if not topic and "topic" not in columns:
        raise OptionError("give the option topic, or rows with a column topic")
    unread = "body" if content != "body" else ""
    for name, kind in columns.items():
        if name.lower() != name and name.lower() in _READ:
            raise OptionError(
                f"the rows have a column {name}, which would be ignored; rename it to {name.lower()}, or leave it out"
            )
        types, said = _TYPES.get(name, ("", ""))
        if said and name != unread and not re.fullmatch(types, kind):
            raise OptionError(
                f"{name} is {kind}, and it must be {said}: cast it to string, or as you need it"
            )
    for name in order_by:
        if name not in columns:
            raise OptionError(f"orderBy names {name}; the rows have {', '.join(columns)}")
        if columns[name].startswith(_WITHOUT_ORDER):
            raise OptionError(
                f"orderBy names {name}, but values of type {columns[name]} have no order here"
            )


class _Draft(NamedTuple):
    """A row converted to a message without an identity; its fields are in the sort order that `_identified` needs.

    Attributes:
        source: the origin of the row: a place in a topic or a message id; empty for any other row.
        content: a hash of the message's content.
        order: its values of `orderBy`, and its place at the source.
        number: its position among the arriving rows of the task.
        key: None if it has none.
        target: the queue that the row names.
        place: of the message in the spill file.
    """

    topic: str
    key_text: str
    source: str
    content: str
    order: tuple[Any, ...]
    number: int
    key: str | None
    target: int | None
    place: range

    @property
    def origin(self) -> tuple[str, str, str]:
        """The fields that distinguish a row from rows of another origin."""
        return self[:3]


class _Placed(NamedTuple):
    """A row with its identity; its fields are in the sort order in which messages are sent."""

    queue: MessageQueue
    rank: tuple[Any, ...]
    number: int
    unique_key: str
    draft: _Draft


@contextmanager
def queue_messages(
    rows: Iterable[Mapping[str, Any]],
    queues: Callable[[str], Sequence[MessageQueue]],
    *,
    topic: str,
    order_by: Sequence[str],
    app_id: str,
    batch: str,
    task: int | None = None,
    held_max: int = RUN_ITEMS,
) -> Iterator[Load]:
    """Return the messages of rows by queue.

    Args:
        rows: of one task, by column; read to the end before this returns.
        queues: returns the queues of a topic, in the order over which keys are hashed.
        topic: overrides the column.
        order_by: columns that give the order within a queue.
        app_id: names the job.
        batch: the load to which the rows belong; part of the identity of rows that were not made of a message.
        task: the number of the task if other tasks may have rows of the same key; otherwise None.
        held_max: how many rows are held in memory for sorting; the others are in files.

    Raises:
        OptionError: A row has no topic, no body or an empty key, or names a queue that does not exist.
        SpillFailed: The disk has no room for the files.
    """
    with closing(SpillFile[Message]()) as messages, closing(SpillFile[Any]()) as places:
        drafts = ExternalSort[_Draft](places, held_max)
        for number, row in enumerate(rows):
            drafts.add(_draft(row, topic, order_by, number, messages))
        keys = array("q")
        runs: list[tuple[MessageQueue, range]] = []

        def place(identified: Iterable[tuple[_Draft, str]]) -> list[QueueMessages]:
            placed = ExternalSort[_Placed](places, held_max)
            list_of = cache(queues)
            for draft, identity in identified:
                queue = _queue(draft, identity, list_of(draft.topic))
                rank = (
                    (*draft.order, draft.content, draft.source, draft.key_text) if order_by else ()
                )
                placed.add(_Placed(queue, rank, draft.number, identity, draft))
            runs[:] = [
                (queue, places.write((each.draft, each.unique_key) for each in group))
                for queue, group in groupby(placed.in_order(), attrgetter("queue"))
            ]
            return [QueueMessages(queue, leaving(run)) for queue, run in runs]

        def leaving(run: range) -> Iterator[Message]:
            for draft, identity in places.read(run):
                (message,) = messages.read(draft.place)
                message.unique_key = identity
                yield message

        def place_again() -> list[QueueMessages]:
            return place(chain.from_iterable(places.read(run) for _, run in [*runs]))

        parts = place(_identified(drafts.in_order(), app_id, batch, task, keys))
        yield Load(parts, keys, place_again)


def _identified(
    drafts: Iterator[_Draft], app_id: str, batch: str, task: int | None, keys: "array[int]"
) -> Iterator[tuple[_Draft, str]]:
    """Yield drafts with their unique keys, in order; add the values that no other task may have to *keys*."""
    base_before, number = "", 0
    before: _Draft | None = None
    marked: tuple[str, str] | None = None
    for draft, following in pairwise(chain(drafts, (None,))):
        assert draft is not None  # only the second of a pair can be the end
        alone = all(each is None or each.origin != draft.origin for each in (before, following))
        base = f"{app_id}\x00{draft.topic}\x00{draft.source or batch}\x00{draft.key_text}"
        whole = task is None and draft.key is not None
        if not (draft.source and whole and alone):
            # Several rows may have this source and key. The content distinguishes them, and only equal rows are
            # numbered, because they are interchangeable.
            base += f"\x00{draft.content}"
            if task is not None and not draft.source:
                base += f"\x00{task}"
        number = number + 1 if base == base_before else 0
        identity = f"{base}\x00{number}".encode()
        if (draft.key is not None or not draft.source) and draft[:2] != marked:
            marked = draft[:2]
            keys.append(_key_hash(*marked))
        yield draft, blake2b(identity, digest_size=16).hexdigest().upper()
        before, base_before = draft, base


def with_event(row: Mapping[str, Any], mode: ContentMode) -> dict[str, Any]:
    """Return a row with the body and properties of the event in its column `value`.

    Raises:
        OptionError: The row has no event, or one that breaks the specification.
    """
    value = row.get("value")
    if value is None:
        reason = row.get("value_error") or "the column value is null"
        raise OptionError(
            f"a row has no event: {reason}; leave such rows out (where value is not null)"
        )
    try:
        body, properties = message_of(value, mode)
    except ValueMisfit as error:
        raise OptionError(f"a row is not an event of CloudEvents {VERSION}: {error}") from error
    others = {
        name: each
        for name, each in dict(row.get("properties") or {}).items()
        if not name.startswith(PREFIX)
    }
    return {**row, "body": body, "body_error": None, "properties": others | properties}


def _draft(
    row: Mapping[str, Any],
    topic: str,
    order_by: Sequence[str],
    number: int,
    messages: SpillFile[Message],
) -> _Draft:
    name = topic or row["topic"]
    if name is None:
        raise OptionError("a row has no topic, and the option topic is not set")
    message = _message(row, name)
    key = row.get("sharding_key")
    return _Draft(
        name,
        repr(key),
        _source(row),
        _content(row, message),
        _order(row, order_by),
        number,
        None if key is None else str(key),
        row.get("target_queue"),
        messages.write((message,)),
    )


def _place(row: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Return the source position of a row; None unless it is complete."""
    place = tuple(row.get(name) for name in ("topic", "broker", "queue_id", "queue_offset"))
    return None if None in place else place


def _source(row: Mapping[str, Any]) -> str:
    place = _place(row)
    if place is not None:
        stored = row.get("store_ts")
        # A recreated topic has other messages at the same offsets.
        life = row.get("message_id") or (stored and stored.timestamp())
        return repr((*place, life) if life else place)
    return row.get("message_id") or ""


def _content(row: Mapping[str, Any], message: Message) -> str:
    """Return a hash that two rows share only if they are interchangeable."""
    beside = (
        message.tags,
        message.keys,
        sorted(message.properties.items()),
        message.flag,
        # The target queue of a row with a position may change between two attempts, because the topic may grow.
        row.get("target_queue") if _place(row) is None else None,
    )
    digest = blake2b(message.body, digest_size=16)
    digest.update(repr((len(message.body), *beside)).encode())
    return digest.hexdigest()


def _key_hash(topic: str, key_text: str) -> int:
    """Return a 64-bit hash of a key, by which tasks compare what they sent."""
    text = f"{topic}\x00{key_text}".encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big", signed=True)


def _order(row: Mapping[str, Any], order_by: Sequence[str]) -> tuple[Any, ...]:
    """Return the sort key of a row within its queue.

    Messages that were sent together have the same store time, so the place at the source decides between them.
    """
    place = _place(row)
    stands = () if place is None or not isinstance(place[3], int) else (repr(place[:3]), place[3])
    return *map(_rank, (row[name] for name in order_by)), stands


def _rank(value: Any) -> tuple[bool, bool, Any]:
    """Return a sort key that puts nulls first and NaN last, as in Spark's ascending order; NaN itself has no order."""
    is_nan = value != value  # noqa: PLR0124 - nothing else differs from itself
    return value is not None, is_nan, None if is_nan else value


def _message(row: Mapping[str, Any], topic: str) -> Message:
    body = row["body"]
    if row.get("body_error"):
        raise OptionError(
            f"a row for {topic} has a body that could not be read: {row['body_error']}; repair that at the source, "
            "or leave such rows out (where body_error is null)"
        )
    if not body:
        raise OptionError(f"a row for {topic} has no body; a message needs at least one byte")
    key = row.get("sharding_key")
    if key == "":
        raise OptionError(
            f"a row for {topic} has an empty sharding_key, which is not stored; give null"
        )
    keys = row.get("keys")
    properties = row.get("properties") or {}
    return Message(
        topic=topic,
        body=body.encode() if isinstance(body, str) else bytes(body),
        tags=row.get("tags") or "",
        keys=keys if isinstance(keys, str) else tuple(k for k in keys or () if k is not None) or "",
        key=None if key is None else str(key),
        # The protocol sets its own properties again.
        properties={
            name: value
            for name, value in dict(properties).items()
            if name not in RESERVED_NAMES and name != SHARDING_KEY and value
        },
        flag=row.get("flag") or 0,
    )


def _queue(draft: _Draft, identity: str, queues: Sequence[MessageQueue]) -> MessageQueue:
    wanted = draft.target if draft.key is None else None
    if wanted is not None:
        if not 0 <= wanted < len(queues):
            raise OptionError(
                f"target_queue is {wanted}; {queues[0].topic} has queues 0 to {len(queues) - 1}"
            )
        return queues[wanted]
    return queues[hash_index(identity if draft.key is None else draft.key, len(queues))]
