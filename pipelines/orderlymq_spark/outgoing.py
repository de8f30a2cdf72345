"""
Rows on their way out: what each row becomes, in which queue, in which order, under which identity.

Rules: a key's queue is the one that any RocketMQ producer with the hash selector chooses; rows of a queue leave
in the order of `orderBy`, then as they came; a row's identity depends on nothing but the job's name, the batch
and the row, so that the same row sent again is the same message to the broker. The batch of a plain frame is what its
rows say, so that tomorrow's frame is another one. `sink` sends.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from orderlymq.message import Message
from orderlymq.selectors import hash_index
from orderlymq_protocol.messagequeue import MessageQueue
from orderlymq_protocol.properties import RESERVED_NAMES, SHARDING_KEY
from orderlymq_spark.errors import OptionError

KNOWN: Final = (
    *("topic", "sharding_key", "body", "tags", "keys", "properties", "target_queue", "flag"),
    *("message_id", "broker", "queue_id", "queue_offset"),
)


@dataclass(frozen=True, slots=True)
class Run:
    """What goes to one queue, in order."""

    queue: MessageQueue
    messages: list[Message]


def check_columns(names: Sequence[str], topic: str, order_by: Sequence[str]) -> None:
    """Refuse a frame that cannot be sent.

    Raises:
        OptionError: A column is missing; the text names it.
    """
    if "body" not in names:
        raise OptionError(f"the rows have no column body; they have {', '.join(names)}")
    if not topic and "topic" not in names:
        raise OptionError("give the option topic, or rows with a column topic")
    for name in order_by:
        if name not in names:
            raise OptionError(f"orderBy names {name}; the rows have {', '.join(names)}")


def runs(
    rows: Iterable[Mapping[str, Any]],
    queues: Mapping[str, Sequence[MessageQueue]],
    *,
    topic: str,
    order_by: Sequence[str],
    app_id: str,
    batch: str = "",
) -> list[Run]:
    """Return the messages of rows by queue.

    Args:
        rows: of one task, by column.
        queues: of each topic, in the order that keys are hashed over.
        topic: beats the column.
        order_by: columns that give the order within a queue.
        app_id: names the job.
        batch: of the job, empty for a plain frame. A row that was read from a topic is known by its place there,
            one with a message_id by that, any other by its batch; and by key and number among those alike.

    Raises:
        OptionError: A row has no body, or names a queue that does not exist.
    """
    placed: dict[MessageQueue, list[tuple[tuple[Any, ...], Message]]] = {}
    counters: dict[str, int] = {}
    ordered = sorted(rows, key=lambda row: _order(row, order_by)) if order_by else list(rows)
    batch = batch or _said(row for row in ordered if not _identity(row))
    for row in ordered:
        target = topic or row["topic"]
        key = row.get("sharding_key")
        identity = f"{app_id}\x00{target}\x00{_identity(row) or batch}\x00{key!r}"
        number = counters.get(identity, 0)
        counters[identity] = number + 1
        message = _message(row, target, f"{identity}\x00{number}")
        queue = _queue(row, key, message.unique_key, queues[target])
        placed.setdefault(queue, []).append((_order(row, order_by), message))
    return [Run(queue, [message for _, message in placed[queue]]) for queue in sorted(placed)]


def _identity(row: Mapping[str, Any]) -> str:
    if row.get("queue_offset") is not None and row.get("broker") is not None:
        place = row.get("topic"), row["broker"], row.get("queue_id"), row["queue_offset"]
        return repr(place)
    return row.get("message_id") or ""


def _said(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a text that stands for what rows say, in their order."""
    digest = blake2b(digest_size=16)
    for row in rows:
        digest.update(repr((row.get("topic"), row.get("sharding_key"), row["body"])).encode())
    return digest.hexdigest()


def key_hash(topic: str, key: object) -> int:
    """Return 64 bits that stand for a key when tasks compare what they sent."""
    text = f"{topic}\x00{key!r}".encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big", signed=True)


def _order(row: Mapping[str, Any], order_by: Sequence[str]) -> tuple[Any, ...]:
    # Nulls first, as Spark's ascending order has them.
    return tuple((row[name] is not None, row[name]) for name in order_by)


def _message(row: Mapping[str, Any], topic: str, identity: str) -> Message:
    body = row["body"]
    if not body:
        raise OptionError(f"a row for {topic} has no body; a message needs at least one byte")
    key = row.get("sharding_key")
    keys = row.get("keys")
    properties = row.get("properties") or {}
    return Message(
        topic=topic,
        body=body.encode() if isinstance(body, str) else bytes(body),
        tags=row.get("tags") or "",
        keys=(keys if isinstance(keys, str) else tuple(keys)) if keys else "",
        key=None if key is None else str(key),
        # What the protocol sets itself is set anew.
        properties={
            name: value
            for name, value in dict(properties).items()
            if name not in RESERVED_NAMES and name != SHARDING_KEY and value
        },
        flag=row.get("flag") or 0,
        unique_key=blake2b(identity.encode(), digest_size=16).hexdigest().upper(),
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
