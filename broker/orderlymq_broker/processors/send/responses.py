"""
The answer to the sender of a message: its place, the place of the first send, or the reason why it is not stored.

The rule: an answer leaves when the outcome is certain. If a batch is stored in part, neither "stored" nor "not
stored" is true, so its connection is closed. Answers of request-reply calls are in ``replies.py``.
"""

from collections.abc import Sequence
from typing import Final

from orderlymq_broker.core.effects import Caller, Close, Effect, Refusal
from orderlymq_broker.core.messagedraft import MessageDraft
from orderlymq_broker.core.requestcontext import Context, answer, answer_lost
from orderlymq_broker.core.uncommitted import KnownSend, PendingSend, Place
from orderlymq_broker.processors.fetch.read import read_message
from orderlymq_broker.processors.schedule.delays import Wait
from orderlymq_broker.state.records import Append, Refused
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.message.properties import (
    TIMER_OUT_MS,
    decode_properties,
)
from orderlymq_protocol.message.recallhandle import RecallHandle
from orderlymq_protocol.message.record import decode_record

# Sent with every answer and stored with every message, as brokers of 5.x do: clients do not trace a message
# whose answer lacks the region.
REGION: Final = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}

_LOST: Final = "the leader changed before the message was stored; send it again"


def answer_places(
    context: Context,
    firsts: Sequence[KnownSend],
    more: dict[str, str],
    request: RemotingCommand,
    caller: Caller,
) -> list[Effect]:
    """Answer a send with the places of its messages, all of which have an outcome, and the fields in *more*."""
    places: list[Place] = []
    in_part = len(firsts) > 1 and may_be_stored(firsts)
    for first in firsts:
        if type(first) is Place:
            places.append(first)
            continue
        assert type(first) is PendingSend
        stored = first.outcome
        if type(stored) is not Append and in_part:
            return close_in_part(request, caller)
        if type(stored) is not Append:
            remark = stored.reason if type(stored) is Refused else _LOST
            return answer(request, caller, ResponseCode.SERVICE_NOT_AVAILABLE, remark=remark)
        places.append(Place(stored.reply_queue, stored.queue_offset, stored.physical))
    ext = {
        "msgId": ",".join([context.message_id(place.physical) for place in places]),
        "queueId": str(places[0].queue_id),
        "queueOffset": str(places[0].queue_offset),
        **REGION,
        **more,
    }
    queue_id, offset = places[0].queue_id, places[0].queue_offset
    if len(places) > 1 and any(
        (place.queue_id, place.queue_offset) != (queue_id, offset + at)
        for at, place in enumerate(places)
    ):
        # Our own field: if a part of the batch was known, the places do not follow from the first one.
        ext["places"] = ",".join([f"{place.queue_id}:{place.queue_offset}" for place in places])

    return answer(request, caller, ext=ext)


def may_be_stored(firsts: Sequence[KnownSend]) -> bool:
    """Return whether some of these messages are stored, or may still be."""
    return any(
        type(first) is Place or (type(first) is PendingSend and type(first.outcome) is not Refused)
        for first in firsts
    )


def close_in_part(request: RemotingCommand, caller: Caller) -> list[Effect]:
    """Close the connection of a batch that is or may be stored in part; the next try stores only the missing messages."""
    if request.is_oneway:
        return []
    return [Close(caller.connection, "a part of a batch may be stored, the rest is not")]


def answer_unstored(
    request: RemotingCommand, caller: Caller, refusal: Refusal | None
) -> list[Effect]:
    """Answer a send that was lost or refused on its way into the log; it is not stored."""
    return answer_lost(request, caller, refusal, _LOST, ResponseCode.SERVICE_NOT_AVAILABLE)


def unstored(refusal: Refusal | None) -> Refused:
    """Return the outcome, for its repeats, of a send that was lost or refused."""
    return Refused(_LOST if refusal is None else refusal.remark)


def recall_handle(context: Context, draft: MessageDraft, wait: Wait) -> dict[str, str]:
    """Return the handle by which a timer message can be recalled (370); empty for other messages."""
    if not wait.due_ms or wait.cancels or draft.topic.is_retry or not draft.unique_key:
        return {}

    return _handle(context, draft.topic.name, draft.unique_key, wait.due_ms)


def _handle(context: Context, topic: str, unique_key: str, due_ms: int) -> dict[str, str]:
    handle = RecallHandle(topic, context.settings.group, due_ms, unique_key)

    return {"recallHandle": handle.encode()}


def first_handle(context: Context, topic: str, unique_key: str, first: KnownSend) -> dict[str, str]:
    """Return the handle of the first send of a timer message, for a repeat.

    A repeat may state its delay again, counted from a later time; a recall with that time could succeed after the
    delivery.
    """
    place = first.outcome if type(first) is PendingSend else first
    stored = (
        read_message(context.reader, place.physical) if isinstance(place, Append | Place) else None
    )
    said = {} if stored is None else decode_properties(decode_record(stored).properties)
    if TIMER_OUT_MS not in said:
        return {}  # the message is gone, or it did not have to wait by its leader's clock
    return _handle(context, topic, unique_key, int(said[TIMER_OUT_MS]))
