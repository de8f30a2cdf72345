"""One key: where it is, who consumes it in each consumer group, what is ahead of its next message, and its life on a timeline."""

import asyncio

from orderlymq.admin.explanation import READ_MAX, GroupAndKey, KeyExplanation, explain_key
from orderlymq_console.cluster import ClusterReader
from orderlymq_console.keymodels import KeyGroup, KeyPage
from orderlymq_console.models import Figure, Source
from orderlymq_console.pages.blocked import STANDING
from orderlymq_console.pages.keylife import life_of
from orderlymq_console.parameters import Parameters
from orderlymq_console.pods import PodNames
from orderlymq_protocol.body.lanes import LaneShown
from orderlymq_protocol.plurals import counted

#: Each consumer group costs some requests to every broker group, and reads of its queue.
GROUPS_MAX = 20
_TIMEOUT_S = 8.0


async def key(reader: ClusterReader, parameters: Parameters) -> KeyPage:
    """Return what is known of a key; without a key or a topic, return the page that asks for it."""
    wanted = parameters.raw("key")
    if not parameters.text("topic") or not wanted:
        return KeyPage(topic=parameters.text("topic"), key=wanted)
    topic = parameters.name("topic")
    reading = await reader.collector.read(
        ("key", topic, wanted),
        lambda: explain_key(reader.admin, topic, wanted, groups_max=GROUPS_MAX),
        timeout_s=_TIMEOUT_S,
    )
    explanation = reading.value
    source = Source(
        name=explanation.queue.broker_name if explanation is not None else "brokers",
        age_seconds=round(reader.collector.age_s(reading), 1),
        unknown=reading.unknown,
    )
    if explanation is None:
        return KeyPage(sources=(source,), topic=topic, key=wanted, unknown=reading.unknown)
    life, pods = await asyncio.gather(life_of(reader, explanation), reader.pods())

    return KeyPage(
        sources=(source, *life.sources),
        topic=topic,
        key=wanted,
        ordered=explanation.is_ordered,
        broker_group=explanation.queue.broker_name,
        queue=explanation.queue.queue_id,
        queues=explanation.queues,
        head=explanation.min_offset,
        end=explanation.max_offset,
        groups=tuple(_group(each, explanation, pods) for each in explanation.groups),
        groups_left_out=explanation.groups_left_out,
        messages=life.messages,
        events=life.events,
        unsure=life.unsure,
    )


def _group(each: GroupAndKey, explanation: KeyExplanation, pods: PodNames | None) -> KeyGroup:
    committed, lock, lane = each.committed, each.lock, each.lane
    holder = None if lock is None else lock.client_id
    parked_since_ms = None if each.parked is None else each.parked.since_ms
    if lane is not None:
        holder = lane.holder or None
        parked_since_ms = lane.since_millis if lane.state in STANDING else None
    nothing = Figure()
    return KeyGroup(
        group=each.group,
        state=sentence(each, explanation),
        holder=holder,
        holder_address=None if lock is None else lock.address or None,
        holder_pod=None if lock is None or pods is None else pods.at(lock.address),
        epoch=None if lock is None else lock.epoch,
        committed=nothing if committed is None else Figure(value=committed),
        waiting=nothing if committed is None else Figure(value=explanation.max_offset - committed),
        next_of_key=each.following,
        ahead=each.ahead,
        parked_since_ms=parked_since_ms,
    )


def sentence(each: GroupAndKey, explanation: KeyExplanation) -> str:
    """Return one sentence about what happens to the key."""
    if each.lane is not None:
        return _lane_state(each.lane)
    if each.parked is not None:
        return (
            f"The key is parked since its message at offset {each.parked.first_offset} failed; "
            f"behind it: {counted(each.parked.behind, 'message')}."
        )
    if each.lane_property:
        return (
            f"The lanes of the group are assigned by the message property {each.lane_property} and not by this key. "
            "The blocked lanes are on the page of the group."
        )
    if each.committed is None:
        return "The group has no offset in this queue."
    if each.following is not None:
        if not each.ahead:
            return "Its next message is the first one that the group has not consumed."
        return f"Ahead of its next message: {counted(each.ahead, 'message')} of the queue."
    begin = each.committed if each.begin is None else each.begin
    if explanation.max_offset - begin > READ_MAX:
        waiting = "messages that the group has not examined" if each.by_key else "waiting messages"
        return f"None of the first {READ_MAX:,} {waiting} is of this key; later ones were not read."
    return "The group has consumed every message of the key."


def _lane_state(lane: LaneShown) -> str:
    behind = f"behind it: {counted(max(0, lane.waiting - 1), 'message')}."
    if lane.state in STANDING:
        return f"The key is parked since its message at offset {lane.offset} failed; {behind}"
    if lane.holder:
        return f"A member has its message at offset {lane.offset} in hand; {behind}"

    return f"Its message at offset {lane.offset} goes to the next member that fetches; {behind}"
