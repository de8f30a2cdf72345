"""
Messages that a consumer hands back (36): tried again after a delay, or dead letters.

The rules are RocketMQ's (SendMessageProcessor.consumerSendMsgBack): the copy keeps body, birth and
UNIQ_KEY, goes to the group's retry topic by way of a delay level that grows with each try, and to
the dead-letter topic when the tries are used up. A copy that is handed over twice, by 36 and then
by the client's own send because the reply was lost, is stored once: both have the same identity.
"""

from collections.abc import Sequence
from typing import Final

from orderlymq_broker.processors.appending import Appender
from orderlymq_broker.processors.context import (
    Context,
    CreateFirst,
    RequestRefused,
    answer,
)
from orderlymq_broker.processors.draft import Draft
from orderlymq_broker.processors.effects import Effect, Now, Peer, Propose, Refusal
from orderlymq_broker.processors.reading import read_message
from orderlymq_broker.processors.scanning import (
    DELAY,
    ORIGIN_MESSAGE_ID,
    REAL_QID,
    REAL_TOPIC,
    RETRY_TOPIC,
    WAIT,
    extended,
    find_text,
    without,
)
from orderlymq_broker.processors.sending import VERSION_WITH_MAX_RECONSUME
from orderlymq_broker.processors.view import Flight
from orderlymq_broker.state.dedup import send_identity
from orderlymq_broker.state.records import Append, Outcome, Refused, TopicSet
from orderlymq_broker.state.topics import Topic
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.header.catalogue import ConsumerSendMsgBackHeader
from orderlymq_protocol.message.record import StoredMessage, decode_record
from orderlymq_protocol.names import dlq_topic, retry_topic

# The first retry waits 10 s (level 3), each further one a level longer.
FIRST_RETRY_LEVEL: Final = 3

_LOST: Final = "the leader changed before the message was stored; send it back again"


class RetryProcessor:
    """Serves send-backs."""

    def __init__(self, context: Context, appender: Appender) -> None:
        self._context = context
        self._appender = appender

    def send_back(self, request: RemotingCommand, peer: Peer, now: Now) -> list[Effect]:
        """Serve 36."""
        context = self._context
        header = ConsumerSendMsgBackHeader.from_ext(request.ext)
        context.check_room()
        config = context.state.groups.get(header.group)
        if config is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {header.group}; create it first",
            )
        if config.retry_queues <= 0:
            # A group without retry queues wants its failures dropped.
            return answer(request, peer)
        message = self._load(header.offset)
        maximum = config.retry_max_times
        if header.max_reconsume_times is not None and request.version >= VERSION_WITH_MAX_RECONSUME:
            maximum = header.max_reconsume_times
        dead = message.reconsume_times >= maximum or header.delay_level < 0
        if dead:
            target = self._topic(dlq_topic(header.group), 1)
            queue_id = 0
        else:
            target = self._topic(retry_topic(header.group), config.retry_queues)
            queue_id = context.view.choose_queue(target)
        draft = self._copy(message, target, queue_id)
        if self._is_known(draft.identity):
            context.counters["duplicate_sends"] += 1
            return self._answer_repeat(draft.identity, request, peer)
        level = header.delay_level or FIRST_RETRY_LEVEL + message.reconsume_times
        if dead:
            context.counters["dead_letters"] += 1
            self._appender.append(draft)
        else:
            draft.properties = extended(draft.properties, "DELAY", str(level))
            self._appender.append_delayed(draft, level)
        view = context.view
        flight = Flight()
        if draft.identity:
            view.flights[draft.identity] = flight

        def settled(landed: Append | Refused) -> list[Effect]:
            view.flights.pop(draft.identity, None)
            repeats = flight.land(landed)
            return _answer_landed(flight, request, peer) + repeats

        def applied(outcomes: Sequence[Outcome], _: Now) -> list[Effect]:
            outcome = outcomes[0]
            assert type(outcome) is Append or type(outcome) is Refused
            return settled(outcome)

        def lost(refusal: Refusal | None) -> list[Effect]:
            return settled(Refused(_LOST if refusal is None else refusal.remark))

        return [Propose([draft], applied, lost)]

    # -- parts -------------------------------------------------------------------------------------

    def _load(self, physical: int) -> StoredMessage:
        stored = None
        if physical < self._context.state.physical_end:
            stored = read_message(self._context.reader, physical)
        if stored is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {physical}"
            )

        return decode_record(stored)

    def _topic(self, name: str, queues: int) -> Topic:
        topic = self._context.state.topics.get(name)
        if topic is None:
            raise CreateFirst(TopicSet(name, queues, queues, only_if_absent=True))
        if not topic.writable:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"the topic[{name}] sending message is forbidden"
            )

        return topic

    def _copy(self, message: StoredMessage, target: Topic, queue_id: int) -> Draft:
        """Return the message as it goes to *target*, one try older."""
        text = message.properties.decode(errors="replace")
        for name in (DELAY, REAL_TOPIC, REAL_QID, WAIT):
            text = without(text, name)
        if find_text(text, RETRY_TOPIC) is None:
            text = extended(text, "RETRY_TOPIC", message.topic)
        if find_text(text, ORIGIN_MESSAGE_ID) is None:
            first_id = self._context.message_id(message.physical_offset)
            text = extended(text, "ORIGIN_MESSAGE_ID", first_id)
        text = extended(text, "WAIT", "false")
        draft = Draft.of_stored(message, target, queue_id, text)
        draft.reconsume_times += 1
        # A dead letter is the same one whichever try it comes from.
        counted = draft.reconsume_times if target.is_retry else 0
        draft.identity = send_identity(target.id, draft.unique_key, counted, message.body_crc)

        return draft

    def _is_known(self, identity: bytes) -> bool:
        if not identity:
            return False

        return (
            self._context.state.dedup.get(identity) is not None
            or identity in self._context.view.flights
        )

    def _answer_repeat(self, identity: bytes, request: RemotingCommand, peer: Peer) -> list[Effect]:
        flight = self._context.view.flights.get(identity)
        if flight is None:
            return answer(request, peer)

        flight.waiters.append(lambda: _answer_landed(flight, request, peer))

        return []


def _answer_landed(flight: Flight, request: RemotingCommand, peer: Peer) -> list[Effect]:
    if type(flight.landed) is Refused:
        return answer(request, peer, ResponseCode.SYSTEM_ERROR, remark=flight.landed.reason)

    return answer(request, peer)
