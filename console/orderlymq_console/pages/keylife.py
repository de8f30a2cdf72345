"""
The life of a key on a timeline: its newest messages, and what happened to each in every consumer group.

Rules: it reads what the pages of messages, of one message and of groups read, within their limits, and within `TIMEOUT_S`. Each time
comes from its source: the clock of a producer, a broker or a consumer. A missing part is named with the reason.
"""

import asyncio
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from orderlymq.admin.explanation import READ_MAX, GroupAndKey, KeyExplanation
from orderlymq.connection.tracerecords import (
    ConsumeBegan,
    ConsumeEnded,
    Published,
    Trace,
    life,
    parse_traces,
)
from orderlymq.message import ReceivedMessage
from orderlymq_console.cluster import Answers, ClusterReader
from orderlymq_console.collector import Reading
from orderlymq_console.journal import Change, Journal
from orderlymq_console.keymodels import KeyEvent, KeyMessage
from orderlymq_console.links import message_link
from orderlymq_console.messagemodels import MessageGroup
from orderlymq_console.models import Source
from orderlymq_console.pages.message import ANY_LANE, of_group
from orderlymq_console.pages.messages import LOOKED_AT_MAX, newest_of
from orderlymq_console.status import StatusReport
from orderlymq_protocol.names import TRACE_TOPIC

MESSAGES_MAX: Final = 20
#: Pairs of a message and a consumer group for which the index is asked for copies: dead letters and retries.
PLACES_MAX: Final = 100
EVENTS_MAX: Final = 200
#: Clients put at most 128,000 bytes of traces into a message, but a stranger's message may inflate to 64 MiB.
TRACES_SIZE_MAX: Final = 128_000
# If the birth is at most this long before the storing, the clocks agree and one event shows both.
_MOMENT_MS: Final = 1_000
#: How long the page waits for the rest after it knows where the key is.
TIMEOUT_S: Final = 2.5


@dataclass(frozen=True, slots=True)
class Life:
    """The timeline of a key, as the page shows it."""

    messages: tuple[KeyMessage, ...] = ()
    events: tuple[KeyEvent, ...] = ()
    unsure: tuple[str, ...] = ()
    sources: tuple[Source, ...] = ()


async def life_of(reader: ClusterReader, explanation: KeyExplanation) -> Life:
    """Return the timeline of a key that was explained."""
    newest = await reader.collector.read(
        ("newest", explanation.queue, explanation.key),
        functools.partial(_newest, reader, explanation),
        timeout_s=TIMEOUT_S,
    )
    source = Source(
        name=f"messages of {explanation.queue.broker_name}",
        age_seconds=round(reader.collector.age_s(newest), 1),
        unknown=newest.unknown,
    )
    if newest.value is None:
        return Life(unsure=(f"Its messages are unknown: {newest.unknown}.",), sources=(source,))
    found, begin = newest.value
    unsure = list(_unread(explanation, len(found), begin))
    statuses, (traces, untraced), (places, unasked) = await asyncio.gather(
        reader.statuses(), _traces(reader, found), _places(reader, explanation, found)
    )
    unsure += [*untraced, *unasked]
    unsure.append(
        "Brokers keep no history of locks, parked keys and releases: this page shows what the console has seen since it started."
    )
    events = sorted(
        [
            *(event for each in found for event in _of_message(each, traces.get(each.message_id))),
            *(event for each in found for event in _of_places(each, places[each.queue_offset])),
            *_seen(reader.journal, explanation, found),
            *standstills(statuses, explanation),
        ],
        key=lambda event: event.at_ms,
    )

    return Life(
        messages=tuple(_row(each, places[each.queue_offset]) for each in found),
        events=tuple(reversed(events[-EVENTS_MAX:])),
        unsure=tuple(unsure),
        sources=(source,),
    )


async def _newest(
    reader: ClusterReader, explanation: KeyExplanation
) -> tuple[list[ReceivedMessage], int]:
    return await newest_of(
        reader.pulls,
        explanation.queue,
        explanation.key,
        head=explanation.min_offset,
        end=explanation.max_offset,
        count=MESSAGES_MAX,
    )


def _unread(explanation: KeyExplanation, count: int, begin: int) -> Iterator[str]:
    if begin <= explanation.min_offset:
        if explanation.min_offset:
            yield f"Messages before offset {explanation.min_offset:,} are no longer stored."
    elif count < MESSAGES_MAX:
        yield f"The last {LOOKED_AT_MAX:,} messages of its queue were read; those before offset {begin:,} were not."
    else:
        yield f"Its newest {MESSAGES_MAX} messages are shown; earlier ones were not read."


# -- what clients have traced


async def _traces(
    reader: ClusterReader, found: list[ReceivedMessage]
) -> tuple[dict[str, list[Trace]], list[str]]:
    """Return the traces by message id, and sentences about what is not known of them."""
    topic = await reader.queues(TRACE_TOPIC)
    if topic.value == set():
        return {}, [f"Deliveries and tries are unknown: there is no topic {TRACE_TOPIC}."]
    if not found:
        return {}, []
    asked = await asyncio.gather(*(_trace(reader, each.message_id) for each in found))
    known = {
        each.message_id: reading.value
        for each, reading in zip(found, asked, strict=True)
        if reading.value
    }
    reasons = sorted({reading.unknown for reading in asked if reading.unknown})
    if reasons:
        return known, [f"Traces may be missing: {'; '.join(reasons)}."]
    if len(known) < len(found):
        which = f"{len(found) - len(known)} of these {len(found)} messages"
        return known, [
            f"{which} left no traces in {TRACE_TOPIC}, so their deliveries and tries are unknown: clients trace only if their settings enable it "
            "(SDK: trace=True; Java: enableMsgTrace)."
        ]
    return known, []


async def _trace(reader: ClusterReader, message_id: str) -> Reading[list[Trace]]:
    async def ask() -> list[Trace]:
        stored = await reader.admin.find_messages(TRACE_TOPIC, message_id, body_max=TRACES_SIZE_MAX)
        return life((each for one in stored for each in parse_traces(one.body)), message_id)

    return await reader.collector.read(("trace", message_id), ask, timeout_s=TIMEOUT_S)


# -- where each message is for each group


async def _places(
    reader: ClusterReader, explanation: KeyExplanation, found: list[ReceivedMessage]
) -> tuple[dict[int, tuple[MessageGroup, ...]], list[str]]:
    """Return where each message stands, by its offset, and sentences about what was not asked."""
    nowhere: dict[int, tuple[MessageGroup, ...]] = {each.queue_offset: () for each in found}
    if not explanation.groups or not found:
        return nowhere, []
    asked = found[: max(1, PLACES_MAX // len(explanation.groups))]
    unsure = []
    if len(asked) < len(found):
        unsure.append(
            f"What became of messages before offset {asked[-1].queue_offset:,} is not shown: the page asks for at most {PLACES_MAX} messages."
        )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            statuses = await reader.statuses()
            rows = await asyncio.gather(
                *(
                    of_group(
                        reader,
                        statuses,
                        each.group,
                        message,
                        lane_state(each, message),
                    )
                    for message in asked
                    for each in explanation.groups
                )
            )
    except TimeoutError:
        unsure.append(f"What became of them is unknown: no answer within {TIMEOUT_S:g} s.")
        return nowhere, unsure
    count = len(explanation.groups)
    places = {
        message.queue_offset: tuple(rows[at * count : (at + 1) * count])
        for at, message in enumerate(asked)
    }
    return nowhere | places, unsure


def lane_state(each: GroupAndKey, message: ReceivedMessage) -> str:
    """Return what the lane of a key does with a message that its consumer group has not committed."""
    offset, lane = message.queue_offset, each.lane
    if each.lane_property:
        return ANY_LANE
    if lane is not None and offset == lane.offset:
        if lane.holder:
            return f"{lane.holder} has it in hand."
        return "It goes to the next member that fetches."
    begin = lane.offset if lane is not None else each.following
    if begin is not None and offset >= begin:
        return f"It waits in the lane of its key, which continues at offset {begin}."
    # A message that was scanned and is not owed is complete, even behind a lane that stands still.
    if begin is None and offset >= (each.begin or 0) + READ_MAX:
        return f"It is behind the first {READ_MAX:,} messages that wait, and none of these has the key."
    return "It is consumed: the lane of its key is past it."


# -- the time line


def _of_message(message: ReceivedMessage, traces: list[Trace] | None) -> Iterator[KeyEvent]:
    offset = message.queue_offset
    host = "{}:{}".format(*message.born_host)
    before_ms = message.store_timestamp - message.born_timestamp
    text = "stored"
    if not any(isinstance(trace, Published) for trace in traces or ()):
        if 0 <= before_ms < _MOMENT_MS:
            text = f"stored, born {before_ms} ms before at {host}"
        else:
            at_ms = message.born_timestamp
            yield KeyEvent(at_ms=at_ms, source="log", text=f"born at {host}", offset=offset)
    link = message_link(message.topic, message.queue.broker_name, message.queue.queue_id, offset)
    yield KeyEvent(at_ms=message.store_timestamp, source="log", text=text, offset=offset, link=link)
    began = {each.request_id: each for each in traces or () if isinstance(each, ConsumeBegan)}
    for trace in traces or ():
        match trace:
            case Published():
                text = f"{'sent' if trace.success else 'send failed'} from {host} in {trace.cost_ms} ms"
                yield KeyEvent(
                    at_ms=trace.at_ms, source="trace", who=trace.group, text=text, offset=offset
                )
            case ConsumeBegan():
                yield KeyEvent(
                    at_ms=trace.at_ms,
                    source="trace",
                    who=trace.group,
                    text=f"delivered, try {trace.retry_times + 1}",
                    offset=offset,
                )
            case ConsumeEnded():
                start = began.get(trace.request_id)
                text = "completed" if trace.success else f"failed ({trace.outcome})"
                at_ms = (trace.at_ms if start is None else start.at_ms) + trace.cost_ms
                yield KeyEvent(
                    at_ms=at_ms,
                    source="trace",
                    who=trace.group or ("" if start is None else start.group),
                    text=f"{text} after {trace.cost_ms} ms",
                    offset=offset,
                )


def _of_places(message: ReceivedMessage, places: tuple[MessageGroup, ...]) -> Iterator[KeyEvent]:
    for place in places:
        if place.event and place.since_ms:
            yield KeyEvent(
                at_ms=place.since_ms,
                source="log",
                who=place.group,
                text=place.event,
                offset=message.queue_offset,
                link=place.link,
            )


def _seen(
    journal: Journal, explanation: KeyExplanation, found: list[ReceivedMessage]
) -> Iterator[KeyEvent]:
    """Yield who held the queue, who led its broker group, and how the key stood, since the oldest message on the page."""
    begin_ms = found[-1].store_timestamp if found else 0
    leaders: dict[Change, None] = {}
    for each in explanation.groups:
        held = [
            change
            for change in journal.locks_of(each.group)
            if change.queue == explanation.queue
            or (change.queue is None and change.broker_group == explanation.queue.broker_name)
        ]
        locks = [change for change in held if change.queue is not None]
        leaders |= dict.fromkeys(
            change for change in held if change.queue is None and change.at_ms >= begin_ms
        )
        # The last change before the oldest message still held when that message came.
        before = next((change for change in locks if change.at_ms < begin_ms), None)
        for change in locks:
            if change.at_ms >= begin_ms or change is before:
                yield _change(change, each.group, f"queue lock {change.text}")
        stood = journal.key_of(each.group, explanation.queue, explanation.key)
        before = next((change for change in reversed(stood) if change.at_ms < begin_ms), None)
        for change in stood:
            if change.at_ms >= begin_ms or change is before:
                yield _change(change, each.group, change.text)
    for change in leaders:
        yield _change(change, change.broker_group, change.text)


def standstills(statuses: Answers[StatusReport], explanation: KeyExplanation) -> Iterator[KeyEvent]:
    """Yield the standstills of consumer groups in the queue of the key."""
    groups = {each.group for each in explanation.groups}
    broker_group, number = explanation.queue.broker_name, explanation.queue.queue_id
    for name, status in statuses.known():
        for row in status.blocked if name == broker_group else ():
            if (row.topic, row.queue) == (explanation.topic, number) and row.group in groups:
                yield KeyEvent(
                    at_ms=row.since,
                    source="seen",
                    who=row.group,
                    text="is blocked, and the queue with it",
                    offset=row.offset,
                    link=message_link(explanation.topic, broker_group, number, row.offset),
                )


def _change(change: Change, who: str, text: str) -> KeyEvent:
    return KeyEvent(at_ms=change.at_ms, source="seen", who=who, text=text)


def _row(message: ReceivedMessage, places: tuple[MessageGroup, ...]) -> KeyMessage:
    return KeyMessage(
        offset=message.queue_offset,
        message_id=message.message_id,
        born_ms=message.born_timestamp,
        born_host="{}:{}".format(*message.born_host),
        stored_ms=message.store_timestamp,
        groups=places,
    )
