"""
Parked keys of one queue, as its ordered consumer knows them.

A parked key keeps back all its messages from its first dead letter on. Those messages go to the dead-letter queue and
to no listener. The broker is asked before each of them is sent: after a release, the next message is consumed. If the
answer that parks a key is lost, the key counts as parked, and its first dead letter is handed over again. Pure; used by
`ordered`. The broker decides whether a key is parked.
"""

from orderlymq.consumer.core.events import DeadLetter, ParkedFrom, Report, SendBackResult
from orderlymq.consumer.core.queuestate import QueueState, message_ids
from orderlymq.message import ReceivedMessage


def parked_from(state: QueueState, message: ReceivedMessage) -> ParkedFrom | None:
    """Return the dead letter that keeps this message from the listener, None if its key is not parked."""
    parked = state.parked.get(message.key) if state.parked and message.key else None

    return parked if parked is not None and message.queue_offset >= parked.offset else None


def deliverable(state: QueueState, limit: int) -> int:
    """Return how many of the next *limit* messages may be handed out together; 0 if the key of the first is parked."""
    if not state.parked:
        return limit
    head = state.fetcher.cache.peek(limit)

    return next((n for n, message in enumerate(head) if parked_from(state, message)), limit)


def take_parked(state: QueueState, reconsume_max: int) -> DeadLetter:
    """Take the first message, whose key is parked, and return the instruction that hands it over."""
    state.copying = True
    state.delivered = state.fetcher.cache.take(1)

    return dead_letter_of(state, state.delivered[0], reconsume_max)


def dead_letter_of(state: QueueState, message: ReceivedMessage, reconsume_max: int) -> DeadLetter:
    """Return the instruction that hands a message over to the dead-letter queue."""
    generation, parked = state.fetcher.generation, parked_from(state, message)

    return DeadLetter(state.queue, generation, message, reconsume_max, state.epoch, parked)


def note_handover(
    group: str, state: QueueState, event: SendBackResult, message: ReceivedMessage
) -> list[Report]:
    """Update the parked keys from the result of a hand-over; return the lines for the log."""
    key = message.key or ""
    was = state.parked.pop(key, None)
    if event.parked is not None:
        state.parked[key] = event.parked
    if event.ok:
        if event.parked is None or was is not None:
            return []
        text = f"key {key} of {state.queue} is parked behind {message.message_id}, group: {group}"
        return [Report("warning", text)]
    if event.released:
        text = (
            f"key {key} of {state.queue} is released, group: {group}; {message.message_id} is next"
        )
        return [Report("info", text)]
    if event.parked is None:
        message.reconsume_times += 1
    facts = f"group: {group} msg: {message_ids([message])} {event.reason}"

    return [Report("error", f"sendMessageBack exception, {facts}")]
