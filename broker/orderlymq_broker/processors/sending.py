"""
Sends: codes 10, 310 and 320, oneway or not.

The rules: checks in RocketMQ's order (SendMessageProcessor), a refusal means that nothing was stored
and never will be; the reply leaves when the record is applied; a repeat of a known send of an
ordered topic gets the first one's answer and stores nothing; a batch is one proposal, hence stored
as a whole and without gaps, or not at all. How a message gets its place: ``appending.py``.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from orderlymq_broker.processors.appending import NO_WAIT, Appender, Wait
from orderlymq_broker.processors.context import (
    Context,
    CreateFirst,
    RequestRefused,
    answer,
    answer_lost,
)
from orderlymq_broker.processors.draft import Draft
from orderlymq_broker.processors.effects import Effect, Now, Peer, Propose, Refusal
from orderlymq_broker.processors.entrybuilder import PROPOSAL_SIZE_MAX
from orderlymq_broker.processors.growing import check_send
from orderlymq_broker.processors.holding import check_hand_over
from orderlymq_broker.processors.scanning import (
    DELAY,
    UNIQ_KEY,
    WAIT,
    find_text,
    without,
)
from orderlymq_broker.processors.timing import TimerService
from orderlymq_broker.processors.transacting import ADDED_SIZE, TransactionProcessor, is_half
from orderlymq_broker.processors.view import Flight
from orderlymq_broker.state.dedup import send_identity
from orderlymq_broker.state.records import Append, HalfOpened, Outcome, Refused, TopicSet
from orderlymq_broker.state.timerrecords import TimersEnded
from orderlymq_broker.state.topics import PERM_INHERIT, PERM_WRITE, Topic
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.header.send import SendMessageHeader
from orderlymq_protocol.message.batch import BatchEntry, BatchError, decode_batch
from orderlymq_protocol.message.recallhandle import RecallHandle
from orderlymq_protocol.message.record import PROPERTIES_BYTES_MAX, body_crc, pack_host
from orderlymq_protocol.names import (
    AUTO_CREATE_TOPIC,
    RETRY_PREFIX,
    InvalidName,
    check_topic_name,
    dlq_topic,
    is_retry_topic,
)

# Below this version a client's own maximum of deliveries is not to be trusted (MQVersion V3_4_9).
VERSION_WITH_MAX_RECONSUME: Final = 121
# One batch is applied in one go on the event loop; more entries than this would hold up everybody:
# these take some 0.3 s. As many as RocketMQ's own example of splitting puts into its 1 MB.
BATCH_COUNT_MAX: Final = 20_000

# Told with every answer and stored with every message, as brokers of 5.x do: clients trace nothing that
# does not tell its region.
_REGION: Final = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
_LOST_REMARK: Final = "the leader changed before the message was stored; send it again"
_NO_TRANSACTIONS: Final = (
    "the broker[{broker}] sending transaction message is forbidden: rejectTransactionMessage is true; "
    "send it without a transaction, or ask an administrator to set it to false"
)
_ILLEGAL_REMARK: Final = (
    "the message is illegal, maybe msg body or properties length not matched. msg body length "
    "limit {limit}B, msg properties length limit 32KB."
)


class Place(NamedTuple):
    """Where a message is, as its sender is told."""

    queue_id: int
    queue_offset: int
    physical: int


class SendProcessor:
    """Turns sends into appends."""

    def __init__(
        self,
        context: Context,
        appender: Appender,
        transactions: TransactionProcessor,
        timers: TimerService,
    ) -> None:
        self._context = context
        self._appender = appender
        self._transactions = transactions
        self._timers = timers
        added = {"CLUSTER": context.settings.cluster, **_REGION}
        self._stored_with = tuple(f"{name}\x01{value}" for name, value in added.items())

    def send(self, request: RemotingCommand, peer: Peer, now: Now) -> list[Effect]:
        """Serve 10, 310 and 320."""
        context = self._context
        header = SendMessageHeader.from_request(request.code, request.ext)
        if context.disk_full or context.entries.uncommitted:
            context.check_room()
        topic = context.state.topics.by_name.get(header.topic)
        if topic is None:
            raise self._create_first(header)
        self._check_target(header, topic)
        is_batch = header.batch or request.code == RequestCode.SEND_BATCH_MESSAGE
        dead = False
        if topic.is_retry:
            if is_batch:
                raise self._illegal("a batch cannot be sent to a retry topic")
            retry, topic = topic, self._retry_target(header, topic, request.version)
            dead = topic is not retry
        if is_batch:
            return self._send_batch(header, topic, request, peer, now)

        settings = context.settings
        if len(request.body) > settings.storage.body_size_max:
            raise self._illegal()
        draft = self._draft(header, topic, peer, request.body, header.properties)
        half = is_half(topic, header.sys_flag, header.properties)
        wait = self._complete(draft, now, half=half, dead=dead)
        handle = {} if half else self._recall_handle(draft, wait)
        if draft.identity and self._is_known(draft.identity):
            return self._answer_repeat([draft.identity], handle, request, peer)
        # Only now: what was stored before is never said to be refused.
        check_send(context, topic, request.ext)
        beside: HalfOpened | TimersEnded | None = None
        if half:
            if settings.reject_transactions:
                raise RequestRefused(
                    ResponseCode.NO_PERMISSION, _NO_TRANSACTIONS.format(broker=settings.address)
                )
            beside = self._transactions.append_half(draft, header.producer_group, peer.connection)
        elif wait is NO_WAIT:
            self._appender.append(draft)
        else:
            self._appender.append_waiting(draft, wait)
            if wait.cancels:
                beside = self._timers.cancelled(topic.name, wait.cancels)
        return [self._propose_one(draft, handle, request, peer, beside)]

    def append_plain(
        self, request: RemotingCommand, peer: Peer, now: Now
    ) -> tuple[SendMessageHeader, Draft]:
        """Check a message as ``send`` does and aim it; the caller proposes it.

        For messages that are neither delayed nor half, such as replies.
        """
        header = SendMessageHeader.from_request(request.code, request.ext)
        self._context.check_room()
        topic = self._context.state.topics.by_name.get(header.topic)
        if topic is None:
            raise self._create_first(header)
        self._check_target(header, topic)
        if len(request.body) > self._context.settings.storage.body_size_max:
            raise self._illegal()
        draft = self._draft(header, topic, peer, request.body, header.properties)
        self._complete(draft, now)
        check_send(self._context, topic, request.ext)

        return header, self._appender.append(draft)

    def ext_of(self, record: Append) -> dict[str, str]:
        """Return what the sender of a message is told."""
        return {
            "msgId": self._context.message_id(record.physical),
            "queueId": str(record.reply_queue),
            "queueOffset": str(record.queue_offset),
            **_REGION,
        }

    def _send_batch(
        self,
        header: SendMessageHeader,
        topic: Topic,
        request: RemotingCommand,
        peer: Peer,
        now: Now,
    ) -> list[Effect]:
        """Store the messages of one body together; those that are known already are left out."""
        waits: list[Wait] = []
        drafts: list[Draft] = []
        common = header.properties
        header.queue_id = self._queue_id(header, topic)
        entries = self._entries(request.body)
        if len(request.body) + len(entries) * len(common) > PROPOSAL_SIZE_MAX:
            # Every message is stored with the properties of the batch: a small body may be a huge entry.
            raise self._illegal(
                f"{len(entries)} messages with {len(common)} B of common properties each are too much for "
                "one batch: split it"
            )
        for entry in entries:
            try:
                own = entry.properties.decode()
            except UnicodeDecodeError as error:
                raise self._illegal("the properties of a message are not UTF-8") from error
            draft = self._draft(header, topic, peer, entry.body, _joined(own, common))
            draft.flag = entry.flag
            if is_half(topic, header.sys_flag, draft.properties):
                raise self._illegal("a batch cannot be sent in a transaction")
            waits.append(self._complete(draft, now, batch=True))
            if waits[-1].cancels:
                raise self._illegal("a timer message cannot be cancelled in a batch")
            drafts.append(draft)
        fresh = self._fresh(drafts)
        if not fresh:
            identities = [draft.identity for draft in drafts]
            return self._answer_repeat(identities, {}, request, peer)
        check_send(self._context, topic, request.ext)
        for draft, wait in zip(drafts, waits, strict=True):
            self._appender.append_waiting(draft, wait)

        return [self._propose_batch(drafts, fresh, request, peer)]

    def _fresh(self, drafts: list[Draft]) -> list[Draft]:
        """Return the messages of a batch that are not known, each once."""
        fresh: list[Draft] = []
        seen: set[bytes] = set()
        for draft in drafts:
            if draft.identity:
                if draft.identity in seen or self._is_known(draft.identity):
                    continue
                seen.add(draft.identity)
            fresh.append(draft)

        return fresh

    # -- checks ------------------------------------------------------------------------------------

    def _check_target(self, header: SendMessageHeader, topic: Topic) -> None:
        settings = self._context.settings
        if not settings.permission & PERM_WRITE:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"the broker[{settings.address}] sending message is forbidden: brokerPermission is "
                f"{settings.permission}; an administrator can set it to 6",
            )
        if not topic.sendable:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic.name}] is forbidden."
            )
        if not topic.writable:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._context.settings.address}] sending message is forbidden: "
                f"topic[{topic.name}] has no write permission",
            )
        if header.queue_id >= topic.queue_count:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"request queueId[{header.queue_id}] is illegal, topic[{topic.name}] has "
                f"{topic.queue_count} queues",
            )

    def _create_first(self, header: SendMessageHeader) -> CreateFirst:
        """Return what creates an unknown topic, if the rules allow it."""
        name = header.topic
        try:
            check_topic_name(name)
        except InvalidName as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from error
        if is_retry_topic(name):
            return CreateFirst(TopicSet(name, 1, 1, only_if_absent=True))
        default = self._context.state.topics.get(header.default_topic)
        if (
            default is None
            or not default.config.perm & PERM_INHERIT
            or (default.name == AUTO_CREATE_TOPIC and not self._context.settings.auto_create_topic)
        ):
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{name}] not exist, apply first please! Create it, or send with a default "
                "topic that may be inherited while the broker creates topics automatically",
            )
        limit = default.config.write_queues
        if default.name == AUTO_CREATE_TOPIC:
            limit = min(limit, self._context.settings.default_topic_queues)
        queues = max(1, min(header.default_topic_queue_nums, limit))
        perm = default.config.perm & ~PERM_INHERIT

        return CreateFirst(TopicSet(name, queues, queues, perm=perm, only_if_absent=True))

    def _retry_target(self, header: SendMessageHeader, topic: Topic, version: int) -> Topic:
        """Return the retry topic, or the dead-letter topic when the tries are used up."""
        group = topic.name[len(RETRY_PREFIX) :]
        config = self._context.state.groups.get(group)
        if config is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {group}",
            )
        maximum = config.retry_max_times
        if header.max_reconsume_times is not None and version >= VERSION_WITH_MAX_RECONSUME:
            maximum = header.max_reconsume_times
        if header.reconsume_times < maximum:
            return topic
        check_hand_over(self._context, group, header.properties)
        header.queue_id = 0
        dead_letters = self._context.state.topics.get(dlq_topic(group))
        if dead_letters is None:
            raise CreateFirst(TopicSet(dlq_topic(group), 1, 1, only_if_absent=True))

        return dead_letters

    def _illegal(self, detail: str = "") -> RequestRefused:
        remark = _ILLEGAL_REMARK.format(limit=self._context.settings.storage.body_size_max)

        return RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL, f"{remark} {detail}" if detail else remark
        )

    def _entries(self, body: bytes) -> list[BatchEntry]:
        if len(body) > self._context.settings.storage.body_size_max:
            raise self._illegal("split the batch")
        try:
            entries = decode_batch(body)
        except BatchError as error:
            raise self._illegal(str(error)) from error
        if len(entries) > BATCH_COUNT_MAX:
            raise self._illegal(f"a batch holds at most {BATCH_COUNT_MAX} messages")

        return entries

    # -- one message -------------------------------------------------------------------------------

    def _queue_id(self, header: SendMessageHeader, topic: Topic) -> int:
        queue_id = header.queue_id

        return queue_id if queue_id >= 0 else self._context.view.choose_queue(topic)

    def _draft(
        self, header: SendMessageHeader, topic: Topic, peer: Peer, body: bytes, properties: str
    ) -> Draft:
        return Draft(
            topic,
            self._queue_id(header, topic),
            body,
            properties,
            header.flag,
            header.sys_flag,
            header.born_timestamp,
            pack_host(peer.host, peer.port),
            header.reconsume_times,
        )

    def _complete(
        self,
        draft: Draft,
        now: Now,
        *,
        half: bool = False,
        dead: bool = False,
        batch: bool = False,
    ) -> Wait:
        """Complete properties and identity of a message; return for what it waits.

        Raises:
            RequestRefused: the message asks for what this broker does not do, or is too long.
        """
        properties = draft.properties
        wait = NO_WAIT
        if "DELAY\x01" in properties or "TIMER_D" in properties:
            if dead:
                # A dead letter belongs in its queue at once; RocketMQ 4.9 lets it wait first.
                properties = without(properties, DELAY)
            else:
                wait = self._appender.wait_of(draft, now.wall_ms)
                properties = draft.properties
                if half and wait.cancels:
                    raise self._illegal("a timer message cannot be cancelled in a transaction")
        if wait is NO_WAIT and not batch and not half and "WAIT\x01" in properties:
            properties = without(properties, WAIT)
        for entry in self._stored_with:
            if entry not in properties:
                separator = "" if not properties or properties.endswith("\x02") else "\x02"
                properties = properties + separator + entry
        waits = half or wait is not NO_WAIT
        added = self._appender.delayed_size(draft) if waits else 0
        added += ADDED_SIZE if half else 0
        size = len(properties) if properties.isascii() else len(properties.encode())
        if size + added > PROPERTIES_BYTES_MAX:
            raise self._illegal()
        draft.properties = properties
        draft.unique_key = unique_key = find_text(properties, UNIQ_KEY) or ""
        if half:
            self._transactions.check_half(draft)
        elif draft.topic.deduplicated:
            draft.body_crc = crc = body_crc(draft.body)
            # Who hands a dead letter over again, having had no answer, counts it as one try more.
            times = 0 if dead else draft.reconsume_times
            draft.identity = send_identity(draft.topic.id, unique_key, times, crc)

        return wait

    # -- answers -----------------------------------------------------------------------------------

    def _is_known(self, identity: bytes) -> bool:
        context = self._context

        return context.state.dedup.get(identity) is not None or identity in context.view.flights

    def _first(self, identity: bytes) -> Flight | Place:
        """Return where the first send of a known identity is, or its flight."""
        flight = self._context.view.flights.get(identity)
        if flight is not None:
            return flight
        first = self._context.state.dedup.get(identity)
        assert first is not None, "nobody has asked whether the send is known"

        return Place(first.queue_id, first.queue_offset, first.physical)

    def _answer_repeat(
        self, identities: list[bytes], more: dict[str, str], request: RemotingCommand, peer: Peer
    ) -> list[Effect]:
        """Answer what was sent before with *more*, when the last of it has landed."""
        self._context.counters["duplicate_sends"] += 1
        firsts = [self._first(each) for each in identities]
        flights = {id(first): first for first in firsts if type(first) is Flight}

        def landed() -> list[Effect]:
            if any(flight.landed is None for flight in flights.values()):
                return []
            return self._answer_places(firsts, more, request, peer)

        for flight in flights.values():
            flight.waiters.append(landed)

        return [] if flights else landed()

    def _answer_places(
        self,
        firsts: Sequence[Flight | Place],
        more: dict[str, str],
        request: RemotingCommand,
        peer: Peer,
    ) -> list[Effect]:
        """Answer a send with the places of its messages, all of which have landed."""
        places: list[Place] = []
        for first in firsts:
            if type(first) is Place:
                places.append(first)
                continue
            assert type(first) is Flight
            landed = first.landed
            if type(landed) is not Append:
                remark = landed.reason if type(landed) is Refused else _LOST_REMARK
                code = ResponseCode.SERVICE_NOT_AVAILABLE
                return answer(request, peer, code, remark=remark)
            places.append(Place(landed.reply_queue, landed.queue_offset, landed.physical))

        return answer(request, peer, ext={**self._ext(places), **more})

    def _recall_handle(self, draft: Draft, wait: Wait) -> dict[str, str]:
        """Return what a timer message can be recalled by (370), nothing for other messages.

        A repeat that says its delay instead of its time gets a handle of a later time than the first one;
        the message is found by its unique key all the same.
        """
        if not wait.due_ms or wait.cancels or draft.topic.is_retry or not draft.unique_key:
            return {}
        broker_name = self._context.settings.group
        handle = RecallHandle(draft.topic.name, broker_name, wait.due_ms, draft.unique_key)

        return {"recallHandle": handle.encode()}

    def _ext(self, places: list[Place]) -> dict[str, str]:
        context = self._context
        ids = [context.message_id(place.physical) for place in places]

        return {
            "msgId": ",".join(ids),
            "queueId": str(places[0].queue_id),
            "queueOffset": str(places[0].queue_offset),
            **_REGION,
        }

    # -- proposing ---------------------------------------------------------------------------------

    def _propose_one(
        self,
        draft: Draft,
        handle: dict[str, str],
        request: RemotingCommand,
        peer: Peer,
        beside: HalfOpened | TimersEnded | None,
    ) -> Propose:
        # The view of now, not of then: what was lost with a view must not touch the next one.
        view = self._context.view
        identity = draft.identity
        if identity:
            view.flights[identity] = Flight()

        def applied(outcomes: Sequence[Outcome], _: Now) -> list[Effect]:
            stored = outcomes[0]
            assert type(stored) is Append or type(stored) is Refused
            if type(beside) is TimersEnded:
                self._timers.ended(beside, view)
            if isinstance(stored, Refused):
                code = ResponseCode.TOPIC_NOT_EXIST
                effects = answer(request, peer, code, remark=stored.reason)
            else:
                if type(beside) is HalfOpened:
                    self._transactions.opened(stored.queue_offset)
                ext = self.ext_of(stored)
                if handle:
                    ext |= handle
                effects = answer(request, peer, ext=ext)
            if identity:
                effects += view.flights.pop(identity).land(stored)
            return effects

        def lost(refusal: Refusal | None) -> list[Effect]:
            if type(beside) is TimersEnded:
                self._timers.ended(beside, view)
            effects = self._answer_lost(request, peer, refusal)
            if identity:
                effects += _fail(view.flights.pop(identity), refusal)
            return effects

        return Propose([draft] if beside is None else [draft, beside], applied, lost)

    def _propose_batch(
        self, drafts: list[Draft], fresh: list[Draft], request: RemotingCommand, peer: Peer
    ) -> Propose:
        """Propose the messages of a batch that are *fresh*; the answer has the places of all."""
        view = self._context.view
        flights: dict[bytes, Flight] = {}
        own: list[Flight] = []
        firsts: list[Flight | Place] = []
        number = 0
        for draft in drafts:
            if number < len(fresh) and draft is fresh[number]:
                number += 1
                flight = Flight()
                own.append(flight)
                firsts.append(flight)
                if draft.identity:
                    flights[draft.identity] = view.flights[draft.identity] = flight
            else:
                firsts.append(self._first(draft.identity))

        def applied(outcomes: Sequence[Outcome], _: Now) -> list[Effect]:
            repeats: list[Effect] = []
            for identity in flights:
                view.flights.pop(identity)
            for flight, stored in zip(own, outcomes, strict=True):
                assert type(stored) is Append or type(stored) is Refused
                repeats += flight.land(stored)
            refused = next((each for each in outcomes if type(each) is Refused), None)
            if refused is None:
                return self._answer_places(firsts, {}, request, peer) + repeats
            code = ResponseCode.TOPIC_NOT_EXIST
            return answer(request, peer, code, remark=refused.reason) + repeats

        def lost(refusal: Refusal | None) -> list[Effect]:
            effects = self._answer_lost(request, peer, refusal)
            for identity, flight in flights.items():
                view.flights.pop(identity)
                effects += _fail(flight, refusal)
            return effects

        return Propose(fresh, applied, lost)

    @staticmethod
    def _answer_lost(request: RemotingCommand, peer: Peer, refusal: Refusal | None) -> list[Effect]:
        code = ResponseCode.SERVICE_NOT_AVAILABLE
        return answer_lost(request, peer, refusal, _LOST_REMARK, code)


def _fail(flight: Flight, refusal: Refusal | None) -> list[Effect]:
    """Let repeats know that the send has not been stored."""
    return flight.land(Refused(_LOST_REMARK if refusal is None else refusal.remark))


def _joined(own: str, common: str) -> str:
    """Return the properties of a batch's message: its own, then those of the batch.

    5.x clients give the batch a UNIQ_KEY of its own, which must not hide the message's.
    """
    if own and not own.endswith("\x02"):
        own += "\x02"
    if "UNIQ_KEY\x01" in own:
        common = without(common, UNIQ_KEY)

    return own + common
