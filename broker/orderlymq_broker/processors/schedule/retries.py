"""
Messages that a consumer sends back (36): they are tried again after a delay, or become dead letters.

The rules are RocketMQ's (SendMessageProcessor.consumerSendMsgBack). The copy keeps body, birth and UNIQ_KEY. It goes
to the group's retry topic through a delay level that grows with each try, and to the dead-letter topic when the tries
are used up (``deadletters.py``). If the reply is lost, a copy arrives twice: by 36 and then by the client's own send.
It is stored once, because both have the same identity. Two messages stay two, even with the same UNIQ_KEY and the
same body: Java gives a Message object its key once, even if it is sent several times.
"""

from collections.abc import Sequence
from typing import Final

from orderlymq_broker.core.capacity import check_room, check_writable
from orderlymq_broker.core.effects import Caller, Effect, Now, Propose, Refusal
from orderlymq_broker.core.messagedraft import MessageDraft, properties_of
from orderlymq_broker.core.repeats import when_known
from orderlymq_broker.core.requestcontext import Context, RequestRefused, answer, unanswered
from orderlymq_broker.core.uncommitted import KnownSend, PendingSend, Place, count_down
from orderlymq_broker.processors.fetch.read import read_applied, read_message
from orderlymq_broker.processors.groups.fence import refuse_by_key
from orderlymq_broker.processors.groups.groupcreation import find_group
from orderlymq_broker.processors.schedule.deadletters import (
    check_failed,
    target_topic,
    tries_max,
)
from orderlymq_broker.processors.schedule.delays import delay
from orderlymq_broker.state.records import Append, Outcome, Refused
from orderlymq_broker.state.send.duplicates import origin_of, send_identity, with_origin
from orderlymq_broker.state.topics.topics import Topic
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.header.catalogue import ConsumerSendMsgBackHeader
from orderlymq_protocol.integers import INT32_MAX
from orderlymq_protocol.message.properties import (
    DELAY,
    ORIGIN_MESSAGE_ID,
    REAL_QID,
    REAL_TOPIC,
    RETRY_TOPIC,
    WAIT,
)
from orderlymq_protocol.message.record import PROPERTIES_BYTES_MAX, StoredMessage, decode_record
from orderlymq_protocol.names import UNSENDABLE_TOPICS, dlq_topic, retry_topic

# The first retry waits 10 s (level 3), each further retry one level longer.
FIRST_RETRY_LEVEL: Final = 3
# The end of an offset id, which is the physical offset; before it is the address of the leader at that time.
_OFFSET_DIGITS: Final = 16
# The separators before, within and after a property.
_SEPARATORS: Final = 3

_LOST: Final = "the leader changed before the message was stored; send it back again"

_NO_ROOM: Final = (
    "the properties of the message leave no room for those of a retry: retry it in the consumer, "
    "or make it a dead letter (delayLevel -1)"
)


class RetryProcessor:
    """Serves send-backs."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def send_back(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 36: a message is sent back."""
        context = self._context
        header = ConsumerSendMsgBackHeader.from_ext(request.ext)
        config = find_group(context, header.group)
        if config.retry_queues <= 0:
            # A group without retry queues wants failed messages dropped.
            return answer(request, caller)
        message = self._load(header.offset)
        maximum = tries_max(config, header.max_reconsume_times, request.version)
        dead = message.reconsume_times >= maximum or header.delay_level < 0
        name = dlq_topic(header.group) if dead else retry_topic(header.group)
        if name not in context.state.topics.by_name:
            refuse_by_key(config)  # before it is created
        target = self._target(name, 1 if dead else config.retry_queues)
        queue_id = 0 if dead else context.view.choose_queue(target)
        draft = copy_of_failed(context, message, target, queue_id)
        own = own_identity(draft, message)
        first = find_copy(context, draft, own)
        if first is not None:
            context.counters["duplicate_sends"] += 1
            kept = unanswered(request)
            return when_known(context, [first], lambda: _answer(first, kept, caller))
        # Check this only now, because a copy that is already stored must never be reported as refused.
        check_writable(context)
        check_room(context)
        check_failed(context, header.group)
        if not dead:
            level = header.delay_level or FIRST_RETRY_LEVEL + draft.reconsume_times - 1
            draft.properties.add(DELAY, str(level))
            delay(context, draft, level)
            if context.entries.lay_out(draft) is not None:
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, _NO_ROOM)

        return [self._propose(draft, own, header.group, request, caller)]

    # -- parts -------------------------------------------------------------------------------------

    def _propose(
        self, draft: MessageDraft, own: bytes, group: str, request: RemotingCommand, caller: Caller
    ) -> Propose:
        view = self._context.view
        pending = PendingSend()
        if draft.identity:
            view.sends[draft.identity] = view.sends[own] = pending
        if draft.topic.is_retry:
            view.retrying[draft.topic.name] += 1

        def ended(outcome: Append | Refused) -> list[Effect]:
            view.sends.pop(draft.identity, None)
            view.sends.pop(own, None)
            if draft.topic.is_retry:
                count_down(view.retrying, (draft.topic.name,))
            origin = draft.properties.by_name.get(RETRY_TOPIC)
            # A message that a client itself sent to a retry topic may name any text, and such clients may use many texts.
            if type(outcome) is Append and origin in self._context.state.topics.by_name:
                self._context.sent_back[origin, group] += 1
            repeats = pending.end(outcome)
            return _answer(pending, request, caller) + repeats

        def applied(outcomes: Sequence[Outcome], _: Now) -> list[Effect]:
            outcome = outcomes[0]
            assert type(outcome) is Append or type(outcome) is Refused
            return ended(outcome)

        def lost(refusal: Refusal | None) -> list[Effect]:
            return ended(Refused(_LOST if refusal is None else refusal.remark))

        return Propose([draft], applied, lost)

    def _load(self, physical: int) -> StoredMessage:
        stored = read_applied(self._context, physical)
        if stored is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {physical}"
            )
        message = decode_record(stored)
        if message.topic in UNSENDABLE_TOPICS:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"the message at {physical} waits in {message.topic} and was never delivered; "
                "send back only messages that were pulled",
            )

        return message

    def _target(self, name: str, queues: int) -> Topic:
        topic = target_topic(self._context, name, queues)
        if not topic.writable:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"the topic[{name}] sending message is forbidden"
            )

        return topic


def copy_of_failed(
    context: Context, message: StoredMessage, target: Topic, queue_id: int
) -> MessageDraft:
    """Return the copy of a failed message for a retry or dead-letter topic, with one more try.

    Properties of an origin that a sender wrote itself are overwritten; in a message from a topic such as a retry
    topic, the broker wrote them. If a sender has left no room for the added properties, a dead letter goes without
    them, because its group waits for it. A retry without them would be useless to its consumer, and is refused.
    """
    properties = properties_of(message.properties)
    properties.drop(DELAY, REAL_TOPIC, REAL_QID, WAIT)
    if not message.topic.startswith("%"):
        properties.drop(RETRY_TOPIC, ORIGIN_MESSAGE_ID)
    size = len(properties.text.encode())
    for name, value in (
        (RETRY_TOPIC, message.topic),
        (ORIGIN_MESSAGE_ID, context.message_id(message.physical_offset)),
        (WAIT, "false"),
    ):
        added = len(name.encode()) + len(value.encode()) + _SEPARATORS
        if name not in properties.by_name and (
            target.is_retry or size + added <= PROPERTIES_BYTES_MAX
        ):
            properties.add(name, value)
            size += added
    draft = MessageDraft.of_stored(message, target, queue_id, properties)
    # A copy from another cluster has its sender's number, which may be any.
    draft.reconsume_times = min(max(0, draft.reconsume_times) + 1, INT32_MAX)
    # A dead letter has the same identity, whichever try it comes from.
    counted = draft.reconsume_times if target.is_retry else 0
    key, crc, said = draft.unique_key, message.body_crc, properties.by_name
    by_key = send_identity(target.id, key, counted, crc, said, None)
    draft.identity = with_origin(by_key, origin_of(said))

    return draft


def own_identity(draft: MessageDraft, message: StoredMessage) -> bytes:
    """Return an identity of a failed message's copy that no copy of another message has."""
    origin = draft.properties.by_name.get(ORIGIN_MESSAGE_ID, "")[-_OFFSET_DIGITS:]

    return with_origin(draft.identity, origin or f"{message.physical_offset:016X}")


def find_copy(context: Context, draft: MessageDraft, own: bytes) -> KnownSend | None:
    """Return the place of an existing copy of a failed message, or None if the copy has to be stored.

    A client's own copy does not name its message. So the first copy with a key has the identity of that copy, and
    copies of other messages with the same key have their *own* identity.
    """
    view, window = context.view, context.state.dedup
    first = view.first_send(own, window)
    if first is None and (known := view.first_send(draft.identity, window)) is not None:
        if type(known) is Place and _is_copy(context, known.physical, own):
            return known
        draft.identity = own

    return first


def _is_copy(context: Context, physical: int, own: bytes) -> bool:
    """Return whether the stored message is the copy with this own identity."""
    stored = read_message(context.reader, physical)
    if stored is None:
        return False
    origin = properties_of(decode_record(stored).properties).by_name.get(ORIGIN_MESSAGE_ID, "")

    return own.endswith(b"\x01" + origin[-_OFFSET_DIGITS:].encode())


def _answer(first: KnownSend, request: RemotingCommand, caller: Caller) -> list[Effect]:
    """Answer a send-back whose message, or the first copy of it, has its outcome."""
    if type(first) is PendingSend and type(first.outcome) is Refused:
        return answer(request, caller, ResponseCode.SYSTEM_ERROR, remark=first.outcome.reason)

    return answer(request, caller)
