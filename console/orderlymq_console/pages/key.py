"""One key: where it is, who consumes it in each group, what is ahead of its next message."""

from orderlymq.admin.explanation import READ_MAX, GroupAndKey, KeyExplanation, explain_key
from orderlymq_console.cluster import ClusterReader
from orderlymq_console.models import Figure, KeyGroup, KeyPage, Source
from orderlymq_console.parameters import Parameters

_TIMEOUT_S = 8.0


async def key(reader: ClusterReader, parameters: Parameters) -> KeyPage:
    """Return what is known of a key; without one, the page that asks for it."""
    if not parameters.text("topic") or not parameters.text("key"):
        return KeyPage(topic=parameters.text("topic"), key=parameters.text("key"))
    topic, wanted = parameters.name("topic"), parameters.text("key")
    reading = await reader.collector.read(
        ("key", topic, wanted),
        lambda: explain_key(reader.admin, topic, wanted),
        timeout_s=_TIMEOUT_S,
    )
    told = reading.value
    source = Source(
        name=told.queue.broker_name if told is not None else "brokers",
        age_seconds=round(reader.collector.age_s(reading), 1),
        unknown=reading.unknown,
    )
    if told is None:
        return KeyPage(sources=(source,), topic=topic, key=wanted, unknown=reading.unknown)

    return KeyPage(
        sources=(source,),
        topic=topic,
        key=wanted,
        ordered=told.is_ordered,
        broker_group=told.queue.broker_name,
        queue=told.queue.queue_id,
        queues=told.queues,
        head=told.min_offset,
        end=told.max_offset,
        groups=tuple(_group(each, told) for each in told.groups),
    )


def _group(each: GroupAndKey, told: KeyExplanation) -> KeyGroup:
    committed, following, lock = each.committed, each.following, each.lock
    nothing = Figure()
    return KeyGroup(
        group=each.group,
        state=_state(each, told),
        holder=None if lock is None else lock.client_id,
        holder_address=None if lock is None else lock.address or None,
        epoch=None if lock is None else lock.epoch,
        committed=nothing if committed is None else Figure(value=committed),
        waiting=nothing if committed is None else Figure(value=told.max_offset - committed),
        next_of_key=None if following is None else following.queue_offset,
        ahead=None
        if following is None or committed is None
        else following.queue_offset - committed,
        parked_since_ms=None if each.parked is None else each.parked.since_ms,
    )


def _state(each: GroupAndKey, told: KeyExplanation) -> str:
    """Return in one sentence what happens to the key."""
    if each.parked is not None:
        return (
            f"The key is parked since its message at offset {each.parked.first_offset} failed; "
            f"{each.parked.behind} messages are behind it."
        )
    if each.committed is None:
        return "The group has no offset in this queue."
    if each.following is not None:
        ahead = each.following.queue_offset - each.committed
        if not ahead:
            return "Its next message is the first one that the group has not committed."
        return f"{ahead} messages of the queue are ahead of its next one."
    if told.max_offset - each.committed > READ_MAX:
        return f"None of the first {READ_MAX:,} waiting messages is of this key; later ones were not read."
    return "The group has consumed every message of the key."
