"""
Sends: codes 10, 310 and 320, oneway or not.

The rules: a message is read once, including its properties, into everything that later steps need. A refusal means that
nothing was stored and never will be. The reply leaves when the record is applied. A repeat of a known send to an
ordered topic gets the first one's answer and stores nothing. ``core/entrybuilder.py`` gives a message its place.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from orderlymq_broker.core.capacity import check_room
from orderlymq_broker.core.effects import Caller, Effect, Now, Propose, Refusal
from orderlymq_broker.core.messagedraft import MessageDraft, Properties
from orderlymq_broker.core.repeats import when_known
from orderlymq_broker.core.requestcontext import Context, answer, unanswered
from orderlymq_broker.core.uncommitted import KnownSend, PendingSend, count_down
from orderlymq_broker.processors.schedule.deadletters import check_failed, target_of_send
from orderlymq_broker.processors.schedule.delays import (
    NO_WAIT,
    WAIT_NAMES,
    Wait,
    added_size,
    put,
    wait_of,
)
from orderlymq_broker.processors.schedule.timers import TimerService
from orderlymq_broker.processors.send.batches import BatchProcessor, Kind
from orderlymq_broker.processors.send.checks import (
    check_cancelled,
    check_target,
    check_transactions,
    illegal,
    missing_topic,
    wait_for_creation,
)
from orderlymq_broker.processors.send.responses import (
    REGION,
    answer_places,
    answer_unstored,
    first_handle,
    recall_handle,
    unstored,
)
from orderlymq_broker.processors.topics.expansionrequests import check_send
from orderlymq_broker.processors.transactions.halves import (
    ADDED_SIZE,
    TransactionProcessor,
    is_half,
)
from orderlymq_broker.state.records import Append, Outcome, Refused
from orderlymq_broker.state.schedule.timerrecords import TimersEnded
from orderlymq_broker.state.send.duplicates import origin_of, send_identity, with_origin
from orderlymq_broker.state.topics.topics import Topic
from orderlymq_broker.state.transactions.halfrecords import HalfOpened
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.header.send import SendMessageHeader
from orderlymq_protocol.message.properties import DELAY, TRAN_MSG, UNIQ_KEY, WAIT
from orderlymq_protocol.message.record import PROPERTIES_BYTES_MAX, body_crc, pack_host
from orderlymq_protocol.message.sysflag import TRANSACTION_MASK
from orderlymq_protocol.names import RETRY_PREFIX, TRACE_TOPIC

_BATCH: Final = int(RequestCode.SEND_BATCH_MESSAGE)
# Longer properties are refused unread: some are dropped when a message is stored, but reading those of a whole header
# takes 25 ms.
_PROPERTIES_READ_MAX: Final = 2 * PROPERTIES_BYTES_MAX


class SendProcessor:
    """Turns sends into appends; *check_publish* refuses a sender that may write only traces to a topic."""

    def __init__(
        self,
        context: Context,
        transactions: TransactionProcessor,
        timers: TimerService,
        check_publish: Callable[[Caller, str], None],
    ) -> None:
        self._context = context
        self._check_publish = check_publish
        self._transactions = transactions
        self._timers = timers
        self._batches = BatchProcessor(context, self._read)
        added = {"CLUSTER": context.settings.cluster, **REGION}
        self._stored_with = [(name, value, f"{name}\x01{value}") for name, value in added.items()]

    def send(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 10, 310 and 320: send messages."""
        header, topic = self._target(request)
        if header.batch or request.code == _BATCH:
            return self._batches.send(header, topic, request, caller, now)
        if self._batches.waiting:
            source = (caller.connection, topic.id, header.queue_id)
            if source in self._batches.waiting:
                send = partial(self._send, header, topic, request, caller, waited=True)
                return self._batches.wait(source, send, request, caller)

        return self._send(header, topic, request, caller, now)

    def _send(
        self,
        header: SendMessageHeader,
        topic: Topic,
        request: RemotingCommand,
        caller: Caller,
        now: Now,
        *,
        waited: bool = False,
    ) -> list[Effect]:
        """Store one message; if it has *waited*, check again, because its queue may have been removed since."""
        context = self._context
        properties = Properties(header.properties)
        said = properties.by_name
        asked, queue_id = topic, header.queue_id
        kind: Kind = "single"
        if topic.is_retry:
            retry = topic
            topic = target_of_send(context, header, retry, properties, request.version)
            if topic is not retry:
                # A dead letter goes into its queue immediately; RocketMQ 4.9 lets it wait first.
                kind, header.queue_id = "dead", 0
                properties.drop(DELAY)
        elif (header.sys_flag & TRANSACTION_MASK or TRAN_MSG in said) and is_half(
            topic, header.sys_flag, properties
        ):
            kind = "half"
        draft, wait = self._read(header, topic, caller, request.body, properties, now, kind)
        handle = recall_handle(context, draft, wait) if wait.due_ms and kind != "half" else {}
        identity = draft.identity
        if identity and (identity in context.state.dedup.sends or identity in context.view.sends):
            first = context.view.first_send(identity, context.state.dedup)
            if first is not None:
                return self._answer_repeat(first, draft, request, caller, timed=bool(handle))
            check_cancelled(context, draft)
        # Check this only now, because a message that is already stored must never be reported as refused.
        if waited or _may_repeat(header, asked):
            check_target(context, asked, queue_id)
        if asked.is_retry:
            check_failed(context, asked.name[len(RETRY_PREFIX) :])
        if topic.expansion is not None or context.view.fencing:
            check_send(context, topic, request.ext)
        beside: HalfOpened | TimersEnded | None = None
        if kind == "half":
            check_transactions(context)
            beside = self._transactions.append_half(draft, header.producer_group, caller)
        elif wait is not NO_WAIT:
            put(context, draft, wait)
            if wait.cancels:
                beside = self._timers.cancelled(topic.name, wait.cancels, now.wall_ms)

        return [self._propose(draft, handle, request, caller, beside)]

    def append_plain(
        self, request: RemotingCommand, caller: Caller, now: Now
    ) -> tuple[SendMessageHeader, MessageDraft]:
        """Check a message as ``send`` does and read it; the caller proposes it.

        For messages that are neither delayed nor half messages, such as replies.
        """
        header, topic = self._target(request)
        properties = Properties(header.properties)
        draft, _ = self._read(header, topic, caller, request.body, properties, now, "single")
        if _may_repeat(header, topic):
            check_target(self._context, topic, header.queue_id)
        check_send(self._context, topic, request.ext)

        return header, draft

    def ext_of(self, record: Append) -> dict[str, str]:
        """Return the fields of the answer to the sender of a message."""
        return {
            "msgId": self._context.message_id(record.physical),
            "queueId": str(record.reply_queue),
            "queueOffset": str(record.queue_offset),
            **REGION,
        }

    # -- reading -----------------------------------------------------------------------------------

    def _target(self, request: RemotingCommand) -> tuple[SendMessageHeader, Topic]:
        """Return header and topic of a send that may be stored, or that may be a repeat of a known one.

        Raises:
            RequestRefused: it is neither.
            CreateFirst: its topic does not exist yet.
        """
        context = self._context
        header = SendMessageHeader.from_request(request.code, request.ext)
        # RocketMQ's clients count from 0. The delay of the next try is computed from this count.
        header.reconsume_times = max(0, header.reconsume_times)
        if len(header.properties) > _PROPERTIES_READ_MAX:
            raise illegal(context)
        topic = context.state.topics.by_name.get(header.topic)
        if topic is None:
            check_room(context)
            raise missing_topic(context, header)
        if context.view.creating:
            # Another request created it meanwhile. Sends that still wait for its creation come first.
            wait_for_creation(context, header.topic)
        if header.batch or request.code == _BATCH:
            may_repeat = topic.deduplicated
        else:
            may_repeat = _may_repeat(header, topic)
        if not may_repeat:
            check_target(context, topic, header.queue_id)

        return header, topic

    def _read(
        self,
        header: SendMessageHeader,
        topic: Topic,
        caller: Caller,
        body: bytes,
        properties: Properties,
        now: Now,
        kind: Kind,
    ) -> tuple[MessageDraft, Wait]:
        """Return a message with everything that later steps need, and its delay.

        Raises:
            RequestRefused: the message wants something that this broker does not support or its sender may not use,
                or is too long.
        """
        context, said = self._context, properties.by_name
        half = kind == "half"
        if len(body) > context.settings.storage.body_size_max:
            raise illegal(context)
        wait = NO_WAIT
        if kind != "dead" and not WAIT_NAMES.isdisjoint(said):
            wait = wait_of(context, properties, now.wall_ms)
            if half and wait.cancels:
                raise illegal(context, "a timer message in a transaction cannot be cancelled")
        waits = half or wait is not NO_WAIT
        if waits and topic.name == TRACE_TOPIC:
            self._check_publish(caller, topic.name)
        if kind != "entry" and not waits and WAIT in said:
            properties.drop(WAIT)
        text = properties.text
        for name, value, entry in self._stored_with:
            if said.get(name) != value:
                text += entry if not text or text[-1] == "\x02" else "\x02" + entry
        properties.text = text
        added = (added_size(topic) if waits else 0) + (ADDED_SIZE if half else 0)
        size = len(text) if text.isascii() else len(text.encode())
        if size + added > PROPERTIES_BYTES_MAX:
            raise illegal(context)
        queue_id, unique_key = header.queue_id, said.get(UNIQ_KEY, "")
        draft = MessageDraft(
            topic,
            queue_id if queue_id >= 0 or kind == "entry" else context.view.choose_queue(topic),
            body,
            properties,
            header.flag,
            header.sys_flag,
            header.born_timestamp,
            pack_host(caller.host, caller.port),
            header.reconsume_times,
            unique_key,
        )
        if half:
            self._transactions.check_half(draft)
        elif topic.deduplicated:
            draft.body_crc = crc = body_crc(body)
            # A client that sends a dead letter again, because it got no answer, counts one more try.
            times = 0 if kind == "dead" else draft.reconsume_times
            is_copy = kind == "dead" or topic.is_retry
            named = None if is_copy else queue_id
            draft.identity = send_identity(topic.id, unique_key, times, crc, said, named)
            if is_copy:
                draft.identity = with_origin(draft.identity, origin_of(said))

        return draft, wait

    def _answer_repeat(
        self,
        first: KnownSend,
        again: MessageDraft,
        request: RemotingCommand,
        caller: Caller,
        *,
        timed: bool,
    ) -> list[Effect]:
        """Answer a repeated send like the first one when its outcome is known; *timed* adds the first one's handle."""
        context = self._context
        context.counters["duplicate_sends"] += 1
        # A waiting request keeps no body.
        kept, topic, unique_key = unanswered(request), again.topic.name, again.unique_key

        def answer_first() -> list[Effect]:
            handle = first_handle(context, topic, unique_key, first) if timed else {}
            return answer_places(context, [first], handle, kept, caller)

        return when_known(context, [first], answer_first)

    # -- proposing ---------------------------------------------------------------------------------

    def _propose(
        self,
        draft: MessageDraft,
        handle: dict[str, str],
        request: RemotingCommand,
        caller: Caller,
        beside: HalfOpened | TimersEnded | None,
    ) -> Propose:
        # Keep the present view: what is lost with it must not change the next view.
        view = self._context.view
        identity = draft.identity
        if identity:
            view.sends[identity] = PendingSend()
        retries = (draft.topic.name,) if draft.topic.is_retry else ()
        if retries:
            view.retrying.update(retries)

        def applied(outcomes: Sequence[Outcome], _: Now) -> list[Effect]:
            stored = outcomes[0]
            assert type(stored) is Append or type(stored) is Refused
            count_down(view.retrying, retries)
            if type(beside) is TimersEnded:
                self._timers.ended(beside, view)
            if isinstance(stored, Refused):
                code = ResponseCode.TOPIC_NOT_EXIST
                effects = answer(request, caller, code, remark=stored.reason)
            else:
                if type(beside) is HalfOpened:
                    self._transactions.opened(stored.queue_offset)
                ext = self.ext_of(stored)
                if handle:
                    ext |= handle
                effects = answer(request, caller, ext=ext)
            if identity:
                effects += view.sends.pop(identity).end(stored)
            return effects

        def lost(refusal: Refusal | None) -> list[Effect]:
            count_down(view.retrying, retries)
            if type(beside) is TimersEnded:
                self._timers.ended(beside, view)
            effects = answer_unstored(request, caller, refusal)
            if identity:
                effects += view.sends.pop(identity).end(unstored(refusal))
            return effects

        return Propose([draft] if beside is None else [draft, beside], applied, lost)


def _may_repeat(header: SendMessageHeader, topic: Topic) -> bool:
    """Return whether a single message may be a known one, as far as this can be told before its properties are read."""
    return (
        topic.deduplicated
        or bool(header.sys_flag & TRANSACTION_MASK)
        or TRAN_MSG in header.properties
    )
