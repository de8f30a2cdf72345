"""
Rows as messages: what each row becomes, in which queue, in which order, under which unique key.

Rules: a key's queue is the one that any RocketMQ producer with the hash selector chooses; rows of a queue leave
in the order of `orderBy`, rows alike in it in an order of their content, and without `orderBy` as they came. A row's
identity does not depend on where the row stands among the others: the same rows, in any order and divided among
tasks in any way that keeps a key together, are the same messages to the broker. `writer` sends.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from orderlymq.message import Message
from orderlymq.producer.selectors import hash_index
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.message.properties import RESERVED_NAMES, SHARDING_KEY
from orderlymq_spark.errors import OptionError
from orderlymq_spark.options import ContentMode
from orderlymq_spark.values.cloudevents import PREFIX, VERSION, message_of
from orderlymq_spark.values.conversion import ValueMisfit


@dataclass(frozen=True, slots=True)
class QueueMessages:
    """What goes to one queue, in order."""

    queue: MessageQueue
    messages: list[Message]


def check_columns(
    names: Sequence[str], topic: str, order_by: Sequence[str], content: str = "body"
) -> None:
    """Refuse a frame that cannot be sent; *content* is the column that messages are made of.

    Raises:
        OptionError: A column is missing; the text names it.
    """
    if content not in names:
        raise OptionError(f"the rows have no column {content}; they have {', '.join(names)}")
    if not topic and "topic" not in names:
        raise OptionError("give the option topic, or rows with a column topic")
    for name in order_by:
        if name not in names:
            raise OptionError(f"orderBy names {name}; the rows have {', '.join(names)}")


@dataclass(slots=True)
class _Draft:
    """A row that has become a message without an identity.

    Attributes:
        source: what the row was made of: a place in a topic or a message id; empty for any other row.
        content: a hash of everything that the message says.
    """

    row: Mapping[str, Any]
    message: Message
    source: str
    content: str
    order: tuple[Any, ...]


def queue_messages(
    rows: Iterable[Mapping[str, Any]],
    queues: Mapping[str, Sequence[MessageQueue]],
    *,
    topic: str,
    order_by: Sequence[str],
    app_id: str,
    batch: str,
    task: int | None = None,
) -> list[QueueMessages]:
    """Return the messages of rows by queue.

    Args:
        rows: of one task, by column.
        queues: of each topic, in the order that keys are hashed over.
        topic: beats the column.
        order_by: columns that give the order within a queue.
        app_id: names the job.
        batch: the load that the rows are of; names rows that were not made of a message.
        task: the number of the task, where other tasks may have rows of the same key; None where they have not.

    Raises:
        OptionError: A row has no body or an empty key, or names a queue that does not exist.
    """
    drafts = [_draft(row, topic or row["topic"], order_by) for row in rows]
    if order_by:
        drafts.sort(key=_rank)
    alike = Counter(_origin(draft) for draft in drafts)
    counters: Counter[str] = Counter()
    placed: dict[MessageQueue, list[Message]] = {}
    for draft in drafts:
        message, key = draft.message, draft.row.get("sharding_key")
        base = f"{app_id}\x00{message.topic}\x00{draft.source or batch}\x00{key!r}"
        whole = task is None and key is not None
        if not (draft.source and whole and alike[_origin(draft)] == 1):
            # Several rows may have this source and key: the content tells them apart, and only rows that
            # say the same are numbered, for they can stand for each other.
            base += f"\x00{draft.content}"
            if task is not None and not draft.source:
                base += f"\x00{task}"
        number = counters[base]
        counters[base] += 1
        identity = f"{base}\x00{number}".encode()
        message.unique_key = blake2b(identity, digest_size=16).hexdigest().upper()
        queue = _queue(draft.row, key, message.unique_key, queues[message.topic])
        placed.setdefault(queue, []).append(message)
    return [QueueMessages(queue, placed[queue]) for queue in sorted(placed)]


def with_event(row: Mapping[str, Any], mode: ContentMode) -> dict[str, Any]:
    """Return a row whose body and properties are the event in its column `value`.

    Raises:
        OptionError: It has none, or one that breaks the specification.
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
        raise OptionError(f"a row is no event of CloudEvents {VERSION}: {error}") from error
    others = {
        name: each
        for name, each in dict(row.get("properties") or {}).items()
        if not name.startswith(PREFIX)
    }
    return {**row, "body": body, "body_error": None, "properties": others | properties}


def shared_keys(rows: Iterable[Mapping[str, Any]], topic: str) -> set[int]:
    """Return what no two tasks of a load may both have.

    These are the keys of the rows, and one mark per topic for rows that neither a key nor a source tells apart.
    """
    return {
        key_hash(topic or row["topic"], row.get("sharding_key"))
        for row in rows
        if row.get("sharding_key") is not None or not _source(row)
    }


def _draft(row: Mapping[str, Any], topic: str, order_by: Sequence[str]) -> _Draft:
    message = _message(row, topic)
    return _Draft(row, message, _source(row), _content(row, message), _order(row, order_by))


def _rank(draft: _Draft) -> tuple[Any, ...]:
    return *draft.order, draft.content, draft.source, repr(draft.row.get("sharding_key"))


def _origin(draft: _Draft) -> tuple[str, str, object]:
    return draft.message.topic, draft.source, draft.row.get("sharding_key")


def _source(row: Mapping[str, Any]) -> str:
    place = tuple(row.get(name) for name in ("topic", "broker", "queue_id", "queue_offset"))
    if None not in place:
        stored = row.get("store_ts")
        # A topic that was created again has other messages at its offsets.
        life = row.get("message_id") or (stored and stored.timestamp())
        return repr((*place, life) if life else place)
    return row.get("message_id") or ""


def _content(row: Mapping[str, Any], message: Message) -> str:
    """Return a hash that two rows share only if either may be sent in the place of the other."""
    beside = (
        message.tags,
        message.keys,
        sorted(message.properties.items()),
        message.flag,
        row.get("target_queue"),
    )
    digest = blake2b(message.body, digest_size=16)
    digest.update(repr((len(message.body), *beside)).encode())
    return digest.hexdigest()


def key_hash(topic: str, key: object) -> int:
    """Return 64 bits that stand for a key when tasks compare what they sent."""
    text = f"{topic}\x00{key!r}".encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big", signed=True)


def _order(row: Mapping[str, Any], order_by: Sequence[str]) -> tuple[Any, ...]:
    # Nulls first, as Spark's ascending order has them.
    return tuple((row[name] is not None, row[name]) for name in order_by)


def _message(row: Mapping[str, Any], topic: str) -> Message:
    body = row["body"]
    if row.get("body_error"):
        raise OptionError(
            f"a row for {topic} has a body that could not be read: {row['body_error']}; cure that where it is read, or "
            "leave such rows out (where body_error is null)"
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
        keys=(keys if isinstance(keys, str) else tuple(keys)) if keys else "",
        key=None if key is None else str(key),
        # What the protocol sets itself is set again.
        properties={
            name: value
            for name, value in dict(properties).items()
            if name not in RESERVED_NAMES and name != SHARDING_KEY and value
        },
        flag=row.get("flag") or 0,
    )


def _queue(
    row: Mapping[str, Any], key: object, identity: str, queues: Sequence[MessageQueue]
) -> MessageQueue:
    wanted: int | None = row.get("target_queue") if key is None else None
    if wanted is not None:
        if not 0 <= wanted < len(queues):
            raise OptionError(
                f"target_queue is {wanted}; {queues[0].topic} has queues 0 to {len(queues) - 1}"
            )
        return queues[wanted]
    return queues[hash_index(identity if key is None else str(key), len(queues))]
