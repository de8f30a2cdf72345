"""
Held keys of one queue, as its ordered consumer knows them: what goes to the dead letters unseen.

The rules: a held key keeps back every message from its first dead letter on, which is itself handed over
once more when nobody knows whether it was; of each the broker is asked again before it is sent, so
that a key that was let go is consumed from the next message on; a hold whose answer was lost counts as
held. Pure; used by `ordering`. The broker's half decides: who holds, and whether at all.
"""

from orderlymq.consumer.core.events import CopySent, DeadLetter, Hold, Report
from orderlymq.consumer.core.queuestate import QueueState, message_ids
from orderlymq.message import ReceivedMessage


def hold_of(state: QueueState, message: ReceivedMessage) -> Hold | None:
    """Return what keeps this message from the listener."""
    hold = state.held.get(message.key) if state.held and message.key else None

    return hold if hold is not None and message.queue_offset >= hold.offset else None


def passing(state: QueueState, limit: int) -> int:
    """Return how many of the next *limit* messages may be handed out together; 0 when the first is held."""
    if not state.held:
        return limit
    head = state.intake.cache.peek(limit)

    return next((n for n, message in enumerate(head) if hold_of(state, message)), limit)


def divert(state: QueueState, reconsume_max: int) -> DeadLetter:
    """Take the first message, which is held, and return what hands it over."""
    state.copying = True
    state.delivered = state.intake.cache.take(1)

    return hand_over(state, state.delivered[0], reconsume_max)


def hand_over(state: QueueState, message: ReceivedMessage, reconsume_max: int) -> DeadLetter:
    """Return what hands a message over."""
    generation, hold = state.intake.generation, hold_of(state, message)

    return DeadLetter(state.queue, generation, message, reconsume_max, state.epoch, hold)


def note_copy(
    group: str, state: QueueState, event: CopySent, message: ReceivedMessage
) -> list[Report]:
    """Learn from a hand-over what is held; return what the log is to say."""
    key = message.key or ""
    was = state.held.pop(key, None)
    if event.hold is not None:
        state.held[key] = event.hold
    if event.ok:
        if event.hold is None or was is not None:
            return []
        text = f"key {key} of {state.queue} is held behind {message.message_id}, group: {group}"
        return [Report("warning", text)]
    if event.let_go:
        text = f"key {key} of {state.queue} is let go, group: {group}; {message.message_id} is next"
        return [Report("info", text)]
    if event.hold is None:
        message.reconsume_times += 1
    facts = f"group: {group} msg: {message_ids([message])} {event.reason}"

    return [Report("error", f"sendMessageBack exception, {facts}")]
