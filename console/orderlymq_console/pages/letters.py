"""
The way through the dead letters of one group: repair, wait until the group is through, release, redrive; key by key.

Rule: the steps keep the order of the key. A redrive before the release comes back as dead letters, and messages that are sent
between the two are consumed before the letters; so each step says what it waits for.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from orderlymq.admin.client import AdminClient
from orderlymq.consumer.group.queuereader import QueueReader
from orderlymq.errors import TopicNotFound
from orderlymq.message import ReceivedMessage
from orderlymq_console.cluster import Answers, ClusterReader
from orderlymq_console.messagemodels import LetterKey, LettersPage, Step
from orderlymq_console.models import Figure
from orderlymq_console.parameters import Parameters
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.body.stats import OffsetWrapper
from orderlymq_protocol.message import properties
from orderlymq_protocol.names import dlq_topic

#: Letters that one look reads; more of them are work for the pipeline `redrive`.
READ_MAX: Final = 1_000
KEYS_MAX: Final = 100
_TIMEOUT_S: Final = 8.0


@dataclass(frozen=True, slots=True)
class Letters:
    """Dead letters of a group in the order in which they were given up; *total* counts all that are kept."""

    messages: tuple[ReceivedMessage, ...]
    total: int


async def letters(reader: ClusterReader, parameters: Parameters) -> LettersPage:
    """Return the keys of a group that have dead letters, each with its next step."""
    group = parameters.name("group")
    parked, progress = await asyncio.gather(
        reader.of_each(("parked", group), lambda client: client.parked_keys(group)),
        reader.of_each(("progress", group), lambda client: client.progress(group)),
    )
    # After the lag: where that is 0, all letters are stored.
    reading = await reader.collector.read(
        ("dead letters", group),
        lambda: read_letters(reader.admin, group),
        timeout_s=_TIMEOUT_S,
    )
    found = reading.value or Letters((), 0)
    held = {
        (each.queue.topic, each.key): each.since_ms for _, keys in parked.known() for each in keys
    }
    keys = by_key(found.messages)
    shown = list(keys.items())[:KEYS_MAX]
    sent = await asyncio.gather(
        *(is_sent(reader.admin, topic, each[-1]) for (topic, _), each in shown)
    )

    return LettersPage(
        sources=reader.sources(parked, progress),
        group=group,
        total=Figure(unknown=reading.unknown) if reading.unknown else Figure(value=found.total),
        looked_at=len(found.messages),
        rows=tuple(
            _row(topic, key, each, held, _lag(progress, topic), is_done=done)
            for ((topic, key), each), done in zip(shown, sent, strict=True)
        ),
        keys_left_out=max(0, len(keys) - KEYS_MAX),
    )


async def read_letters(admin: AdminClient, group: str) -> Letters:
    """Read the dead letters of a group, `READ_MAX` of them at most.

    Raises:
        OrderlyMQError: A broker refused or did not answer.
    """
    pulls = QueueReader(admin.instance, "TOOLS_CONSUMER")
    try:
        queues = sorted((await admin.route(dlq_topic(group))).subscribe)
    except TopicNotFound:
        return Letters((), 0)
    found: list[ReceivedMessage] = []
    total = 0
    for queue in queues:
        offset, end = await pulls.min_offset(queue), await pulls.max_offset(queue)
        total += end - offset
        while offset < end and len(found) < READ_MAX:
            result = await pulls.pull(queue, offset)
            found += result.messages
            offset = max(result.next_offset, offset + 1)
    found = found[:READ_MAX]
    found.sort(key=lambda each: (each.store_timestamp, each.queue, each.queue_offset))

    return Letters(tuple(found), total)


def by_key(found: tuple[ReceivedMessage, ...]) -> dict[tuple[str, str], list[ReceivedMessage]]:
    """Return letters by the topic that they were sent to and their key; no key is empty."""
    keys: dict[tuple[str, str], list[ReceivedMessage]] = {}
    for letter in found:
        topic = properties.origin_topic(letter.properties)
        keys.setdefault((topic, letter.key or ""), []).append(letter)

    return keys


def identity(letter: ReceivedMessage) -> str:
    """Return the unique key of the message that a letter is redriven as: the brokers' index tells by it whether it was sent."""
    place = f"{letter.topic}\0{letter.queue.broker_name}\0{letter.queue.queue_id}\0{letter.queue_offset}"

    return blake2b(place.encode(), digest_size=16, person=b"console").hexdigest().upper()


async def is_sent(admin: AdminClient, topic: str, letter: ReceivedMessage) -> bool:
    """Whether a letter was redriven to a topic.

    Raises:
        OrderlyMQError: A broker refused or did not answer.
    """
    if not topic:
        return False
    try:
        return bool(await admin.find_messages(topic, identity(letter), unique=True))
    except TopicNotFound:
        return False


def _lag(progress: Answers[dict[MessageQueue, OffsetWrapper]], topic: str) -> Figure:
    def count(table: dict[MessageQueue, OffsetWrapper]) -> int | None:
        behind = [
            max(0, each.broker_offset - each.consumer_offset)
            for queue, each in table.items()
            if queue.topic == topic
        ]
        return sum(behind) if behind else None

    return progress.total(count, "the group has no offset in the topic")


def _row(
    topic: str,
    key: str,
    found: list[ReceivedMessage],
    held: Mapping[tuple[str, str], int],
    lag: Figure,
    *,
    is_done: bool,
) -> LetterKey:
    first = found[0]
    since_ms = held.get((topic, key))
    step: Step
    if since_ms is not None:
        step = "release" if lag.value == 0 and not lag.at_least else "wait"
    else:
        step = "done" if is_done else "redrive"

    return LetterKey(
        topic=topic,
        key=key,
        letters=len(found),
        first_broker_group=first.queue.broker_name,
        first_queue=first.queue.queue_id,
        first_offset=first.queue_offset,
        first_stored_ms=first.store_timestamp,
        tries=first.reconsume_times,
        parked_since_ms=since_ms,
        lag=lag,
        step=step,
    )
