"""
The way through the dead letters of one consumer group, key by key: repair, wait until the group has no lag, release, redrive.

Rules: the steps keep the order of the key. Letters that are redriven before the release come back as dead letters. Messages that are
sent between the two are consumed before the letters. So each step says what it waits for. A part that could not be asked or was not
read makes a step unknown, never done. Of a letter, its place is kept, not its body.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from orderlymq.admin.operations import ParkedKey
from orderlymq.connection.instance import unless_missing
from orderlymq.connection.routes import NO_ROUTE
from orderlymq.consumer.group.queuereader import QueueReader
from orderlymq.errors import OrderlyMQError, TopicNotFound
from orderlymq.message import ReceivedMessage
from orderlymq_console.cluster import NOT_REGISTERED, Answers, ClusterReader
from orderlymq_console.collector import Reading
from orderlymq_console.messagemodels import LetterKey, LettersPage, Step
from orderlymq_console.models import Figure, bounded
from orderlymq_console.pages.notfound import NotThere
from orderlymq_console.parameters import Parameters
from orderlymq_console.sentletters import Begin, SentLetters
from orderlymq_protocol.body.lanes import BY_KEY
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.body.stats import OffsetWrapper
from orderlymq_protocol.message import properties
from orderlymq_protocol.names import dlq_topic, redrive_key

#: Letters that are read at a time; the next reading begins behind those that were sent again.
READ_MAX: Final = 1_000
KEYS_MAX: Final = 100
_BLOCK: Final = 32
_TIMEOUT_S: Final = 8.0
# Whether letters were sent again is asked once in a while, and does not delay the page.
_SENT_EVERY_S: Final = 10.0
_SENT_TIMEOUT_S: Final = 3.0
_MORE: Final = "only some of the letters are read; the rest may include letters of the key"

Key = tuple[str, str]
Progress = Answers[dict[MessageQueue, OffsetWrapper]]


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter without its body.

    Attributes:
        topic: the topic to which it was sent; empty if the letter does not name it.
        key: empty if it has none.
        unreadable: why its body could not be inflated; such a letter is not sent again.
    """

    queue: MessageQueue
    offset: int
    topic: str
    key: str
    stored_ms: int
    tries: int
    message_id: str
    unreadable: str = ""

    @property
    def identity(self) -> str:
        """The unique key of the message as which it is redriven; with it the brokers' index shows whether the letter was sent."""
        return redrive_key(self.queue, self.offset, message_id=self.message_id, target=self.topic)


@dataclass(frozen=True, slots=True)
class Letters:
    """Dead letters of a consumer group, in the order in which they were given up.

    Attributes:
        total: number of letters that are kept.
        passed: how many of these come before the ones that were read; all of them were sent again.
        unknown: why some could not be read.
    """

    found: tuple[Letter, ...] = ()
    total: int = 0
    passed: int = 0
    unknown: str = ""

    @property
    def rest(self) -> str:
        """Why a key may have more letters than were read; empty if it has not."""
        return self.unknown or (_MORE if self.passed + len(self.found) < self.total else "")


async def letters(reader: ClusterReader, parameters: Parameters) -> LettersPage:
    """Return the keys of a consumer group that have dead letters or are parked, each with its next step."""
    group = parameters.name("group")
    parked, progress, configs = await asyncio.gather(
        reader.of_each(("parked", group), lambda client: client.parked_keys(group)),
        reader.of_each(("progress", group), lambda client: client.progress(group, whole=True)),
        reader.groups(),
    )
    # Read after the lag: if the lag is 0, all letters are stored.
    reading = await reader.collector.read(
        ("dead letters", group),
        lambda: read_letters(reader, group),
        timeout_s=_TIMEOUT_S,
    )
    found = reading.value or Letters(unknown=reading.unknown)
    # One broker group may have refused a configuration that another accepted, and hand out queues.
    by_lane = {
        name
        for name, table in configs.known()
        if group in table and table[group].concurrency == BY_KEY
    }
    held = {
        (each.queue.topic, each.key): each
        for _, parked_there in sorted(parked.known(), key=lambda pair: pair[0] not in by_lane)
        for each in parked_there
    }
    keys = by_key(found.found)
    # At a broker group that hands out keys, the parked keys are its held lanes, which have no letter yet.
    shown = [
        *keys,
        *(
            key
            for key, each in held.items()
            if key not in keys and each.queue.broker_name not in by_lane
        ),
    ]
    sent = await _sent_of(reader, {key: keys[key][-1] for key in shown[:KEYS_MAX] if key in keys})
    if found.rest:
        _pass(reader.sent, found.found, {key for key, each in sent.items() if each.value})

    return LettersPage(
        sources=reader.sources(parked, progress),
        group=group,
        total=bounded(found.total, found.unknown or parked.unknown),
        looked_at=len(found.found),
        passed=found.passed,
        unread=found.rest,
        rows=tuple(
            _row(
                key,
                keys.get(key, []),
                held.get(key),
                progress,
                sent=sent.get(key),
                rest=found.rest,
                away=_away(parked, keys.get(key, [])),
            )
            for key in shown[:KEYS_MAX]
        ),
        keys_left_out=max(0, len(shown) - KEYS_MAX),
    )


async def read_letters(reader: ClusterReader, group: str) -> Letters:
    """Read the dead letters of a consumer group behind those that were sent again, at most `READ_MAX` of them.

    A broker group that is known to be silent is not asked. If a broker does not answer, the result says why letters are missing.

    Raises:
        OrderlyMQError: The route of the letters cannot be read.
    """
    admin, pulls, sent = reader.admin, reader.pulls, reader.sent
    queues = sorted((await unless_missing(admin.route(dlq_topic(group)), NO_ROUTE)).subscribe)

    async def bounds(queue: MessageQueue) -> tuple[int, int] | str:
        if away := reader.silence(queue.broker_name):
            return f"{queue.broker_name}: {away.unknown}"
        try:
            return await pulls.min_offset(queue), await pulls.max_offset(queue)
        except OrderlyMQError as error:
            return str(error)

    found: list[Letter] = []
    total = passed = 0
    # The route of the letters lacks the queues of a broker group that is away.
    unknown = next((f"{name}: {NOT_REGISTERED}" for name in reader.unregistered), "")
    kept = await asyncio.gather(*map(bounds, queues))
    for queue, here in zip(queues, kept, strict=True):
        if isinstance(here, str):
            unknown = unknown or here
            continue
        head, end = here
        try:
            begin = await _begin(pulls, sent, queue, head, end)
            total += end - head
            passed += begin - head
            found += await _read(pulls, queue, begin, end, READ_MAX - len(found))
        except OrderlyMQError as error:
            unknown = unknown or str(error)
    found.sort(key=lambda each: (each.stored_ms, each.queue, each.offset))

    return Letters(tuple(found), total, passed, unknown)


async def letter_at(
    pulls: QueueReader, letter: Letter, body_max: int | None = None
) -> ReceivedMessage:
    """Return a letter with its body, or with the first *body_max* bytes of it.

    Raises:
        NotThere: It is not kept any more.
        OrderlyMQError: A broker refused or did not answer.
    """
    pulled = await pulls.pull(
        letter.queue, letter.offset, count=1, unreadable=True, body_max=body_max
    )
    for message in pulled.messages:
        if message.queue_offset == letter.offset:
            return message
    raise NotThere(f"the dead letter at offset {letter.offset} is no longer stored")


def by_key(found: Iterable[Letter]) -> dict[Key, list[Letter]]:
    """Return letters by the topic to which they were sent and by their key; the key is empty if a letter has none."""
    keys: dict[Key, list[Letter]] = {}
    for letter in found:
        keys.setdefault((letter.topic, letter.key), []).append(letter)

    return keys


async def is_sent(reader: ClusterReader, letter: Letter) -> bool:
    """Return whether a letter was redriven to its topic.

    Raises:
        OrderlyMQError: A broker refused or did not answer.
    """
    if not letter.topic or letter.identity in reader.sent:
        return bool(letter.topic)
    try:
        found = await reader.admin.find_messages(
            letter.topic, letter.identity, unique=True, count=1, unreadable=True, body_max=0
        )
    except TopicNotFound:
        return False
    if found:
        reader.sent.add(letter.identity)

    return bool(found)


async def _begin(
    pulls: QueueReader, sent: SentLetters, queue: MessageQueue, head: int, end: int
) -> int:
    """Return the offset behind the letters that were sent; the head of the queue if another letter now stands before that offset."""
    begin, before = sent.begin(queue)
    if not head < begin <= end:
        return head
    last = await _read(pulls, queue, begin - 1, begin, 1)

    return begin if [each.identity for each in last] == [before] else head


async def _read(
    pulls: QueueReader, queue: MessageQueue, begin: int, end: int, count: int
) -> list[Letter]:
    found: list[Letter] = []
    offset = begin
    while offset < end and len(found) < count:
        wanted = min(_BLOCK, count - len(found))
        result = await pulls.pull(queue, offset, count=wanted, unreadable=True)
        found += [_letter(queue, message) for message in result.messages]
        offset = max(result.next_offset, offset + 1)

    return found


def _letter(queue: MessageQueue, message: ReceivedMessage) -> Letter:
    said = message.properties
    return Letter(
        queue=queue,
        offset=message.queue_offset,
        # A client that may consume for the group can write any topic there; a redrive looks for the original message in that topic.
        topic=said.get(properties.RETRY_TOPIC) or "",
        key=message.key or "",
        stored_ms=message.store_timestamp,
        tries=message.reconsume_times,
        message_id=message.message_id,
        unreadable=message.unreadable,
    )


async def _sent_of(reader: ClusterReader, last: Mapping[Key, Letter]) -> dict[Key, Reading[bool]]:
    """Return for each key whether its last letter was sent again, as far as the answer comes soon."""
    until_s = asyncio.get_running_loop().time() + _SENT_TIMEOUT_S
    collector = reader.collector

    async def ask(letter: Letter) -> Reading[bool]:
        if letter.identity in reader.sent:
            return Reading(True, "", collector.now_s())
        try:
            async with asyncio.timeout_at(until_s):
                return await collector.read(
                    ("sent", letter.identity),
                    lambda: is_sent(reader, letter),
                    every_s=_SENT_EVERY_S,
                    timeout_s=_SENT_TIMEOUT_S,
                )
        except TimeoutError:
            return Reading(None, f"no answer within {_SENT_TIMEOUT_S:g} s", collector.now_s())

    return dict(zip(last, await asyncio.gather(*map(ask, last.values())), strict=True))


def _pass(sent: SentLetters, found: Iterable[Letter], done: set[Key]) -> None:
    """Make the next reading begin behind the letters whose keys were sent again."""
    ended: set[MessageQueue] = set()
    for letter in sorted(found, key=lambda each: (each.queue, each.offset)):
        if (letter.topic, letter.key) not in done:
            ended.add(letter.queue)
        elif letter.queue not in ended:
            sent.begin_at(letter.queue, Begin(letter.offset + 1, letter.identity))


def _away(parked: Answers[list[ParkedKey]], found: Iterable[Letter]) -> str:
    """Say why it is unknown whether a key is parked: the broker group of its letters, which would park it, did not answer. Empty if it did."""
    for letter in found:
        reading = parked.readings.get(letter.queue.broker_name)
        if reading is None or reading.value is None:
            return parked.unknown

    return ""


def _lag(progress: Progress, topic: str, parked: ParkedKey | None) -> Figure:
    """Return how many messages the consumer group has not consumed: in the queue of a parked key, otherwise in the whole topic."""
    if parked is None:
        # A broker group that answers without the topic has no part of it.
        return progress.total(
            lambda table: sum(each.lag for queue, each in table.items() if queue.topic == topic)
        )
    reading = progress.readings.get(parked.queue.broker_name)
    if reading is None or reading.value is None:
        return Figure(unknown=progress.unknown or "its broker group is not registered")
    # Before its first commit the consumer group has no offset, and may have the whole queue before it.
    if parked.queue not in reading.value:
        return Figure(unknown="the group has no offset in the queue yet")

    return Figure(value=reading.value[parked.queue].lag)


def _unreadable(found: Iterable[Letter]) -> str:
    """Say why letters cannot be redriven: the body of one cannot be read, so the ones behind it must wait, too."""
    for letter in found:
        if letter.unreadable:
            return f"the body of its letter at offset {letter.offset} cannot be read: {letter.unreadable}"

    return ""


def _row(
    key: Key,
    found: list[Letter],
    parked: ParkedKey | None,
    progress: Progress,
    *,
    sent: Reading[bool] | None,
    rest: str,
    away: str,
) -> LetterKey:
    topic, name = key
    lag = _lag(progress, topic, parked)
    step: Step
    unknown = ""
    if parked is not None:
        step = "release" if lag.value == 0 and not lag.at_least else "wait"
    elif away:
        step, unknown = "unknown", away
    elif sent is None or sent.value is None:
        step, unknown = "unknown", "it was not asked" if sent is None else sent.unknown
    elif not sent.value:
        step = "unknown" if (unknown := _unreadable(found)) else "redrive"
    else:
        step, unknown = ("unknown" if rest else "done"), rest
    first = found[0] if found else None

    return LetterKey(
        topic=topic,
        key=name,
        letters=Figure(value=len(found), at_least=bool(rest))
        if found or not rest
        else Figure(unknown=rest),
        first_broker_group=None if first is None else first.queue.broker_name,
        first_queue=None if first is None else first.queue.queue_id,
        first_offset=None if first is None else first.offset,
        first_stored_ms=None if first is None else first.stored_ms,
        tries=None if first is None else first.tries,
        parked_since_ms=None if parked is None else parked.since_ms,
        lag=lag,
        step=step,
        step_unknown=unknown,
    )
