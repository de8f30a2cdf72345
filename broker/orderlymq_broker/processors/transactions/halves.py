"""
Transactions: half messages, their end (37), and new checks of those given up (323).

The rules: a half message is stored where no consumer reads. Its commit appends the message to its own topic and ends
the transaction in one proposal. So there is one visible copy, however often the end is requested and under any
leader. The message is placed at its commit, after everything acknowledged before. A request to end a half message
must name its group and both of its offsets; if it also names a message, that must match. ``checks.py`` handles half
messages that no producer ends.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from orderlymq_broker.core.capacity import check_room
from orderlymq_broker.core.effects import Caller, Effect, Now, Propose, Refusal
from orderlymq_broker.core.messagedraft import MessageDraft, Properties
from orderlymq_broker.core.repeats import answer_soon, wait
from orderlymq_broker.core.requestcontext import Context, RequestRefused, answer, unanswered
from orderlymq_broker.core.responses import answer_when_applied
from orderlymq_broker.core.uncommitted import Place
from orderlymq_broker.processors.fetch.read import read_applied, read_message
from orderlymq_broker.processors.schedule.delays import name_target, put, real_queue, wait_of
from orderlymq_broker.processors.transactions.checks import CheckService, with_checks
from orderlymq_broker.state.records import Outcome, Refused
from orderlymq_broker.state.send.duplicates import (
    UNIQUE_KEY_LENGTH_MAX,
    send_identity,
    with_origin,
)
from orderlymq_broker.state.topics.topics import Topic
from orderlymq_broker.state.transactions.halfrecords import HalfEnded, HalfOpened, HalfResumed
from orderlymq_broker.state.transactions.halves import OPEN_OF_GROUP_MAX, Half
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.header.catalogue import EndTransactionHeader, ResumeCheckHalfMessageHeader
from orderlymq_protocol.message.ids import MessageIdError, decode_offset_message_id
from orderlymq_protocol.message.properties import (
    CHECK_IMMUNITY_TIME_IN_SECONDS,
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    TRAN_MSG,
    TRAN_PREPARED_QUEUE_OFFSET,
    decode_properties,
)
from orderlymq_protocol.message.record import StoredMessage, body_crc, decode_record
from orderlymq_protocol.message.sysflag import (
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NOT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    transaction_state,
    with_transaction_state,
)
from orderlymq_protocol.names import (
    GROUP_LENGTH_MAX,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
)

# The size of the properties that a check and giving up add: TRANSACTION_CHECK_TIMES and TRAN_PREPARED_QUEUE_OFFSET
# with separators and numbers of 10 and 20 digits.
ADDED_SIZE: Final = len("TRANSACTION_CHECK_TIMES") + len("TRAN_PREPARED_QUEUE_OFFSET") + 36

_COMMITTED: Final = (
    "the transaction of message {key} has ended, and topic[{topic}] keeps one copy of a message: "
    "send a new message in the next transaction"
)
_LOST: Final = "the leader changed before the end of the transaction was stored; send it again"
_ENDED: Final = "the transaction has ended already; nothing changed"
_SLAVE: Final = "this replica does not lead group {group}; end the transaction at {address}"


def is_half(topic: Topic, sys_flag: int, properties: Properties) -> bool:
    """Return whether a send is a half message.

    RocketMQ checks the property; a send with only the bit would be stored as a message that no consumer ever sees.
    """
    if topic.is_retry:
        return False
    prepared = transaction_state(sys_flag) == TRANSACTION_PREPARED

    return prepared or properties.by_name.get(TRAN_MSG, "").lower() == "true"


class TransactionProcessor:
    """Opens and ends transactions."""

    def __init__(self, context: Context, checks: CheckService) -> None:
        self._context = context
        self._checks = checks

    # -- half messages -----------------------------------------------------------------------------

    def check_half(self, draft: MessageDraft) -> None:
        """Give a half message its identity; a repeated one gets the place of the first while the first has not ended.

        The chosen queue does not count: for each try RocketMQ's clients choose another, and they let no program name
        one.

        Raises:
            RequestRefused: the first was committed, and the topic keeps one copy of it (13).
        """
        context = self._context
        draft.body_crc = body_crc(draft.body)
        halves = context.state.topics.by_name[TRANS_HALF_TOPIC]
        key, times, said = draft.unique_key, draft.reconsume_times, draft.properties.by_name
        by_key = send_identity(halves.id, key, times, draft.body_crc, said, -1)
        # Use the topic's id, because a topic created again under the same name has no messages of the former one.
        draft.identity = with_origin(by_key, str(draft.topic.id))
        first = context.view.first_send(draft.identity, context.state.dedup)
        if type(first) is not Place or not self._ends(first.queue_offset):
            return
        # The program sent a Message object again: Java keeps its key, so the end of the first would count as the end
        # of both.
        if draft.topic.deduplicated:
            remark = _COMMITTED.format(key=draft.unique_key, topic=draft.topic.name)
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, remark)
        draft.identity = b""

    def _ends(self, offset: int) -> bool:
        """Return whether a transaction has ended, or its end is proposed."""
        return (
            offset in self._context.view.ending
            or self._context.state.transactions.get(offset) is None
        )

    def append_half(self, draft: MessageDraft, producer_group: str, caller: Caller) -> HalfOpened:
        """Put a half message into its waiting queue; return the record that opens its transaction, without the place.

        As with a delay, the message names its own topic and queue. The transaction bits are removed,
        as RocketMQ does (TransactionalMessageBridge.parseHalfMessageInner).

        Raises:
            RequestRefused: too many transactions have not ended, of this group and topic, or of the topic in relation
                to all (2), or the name of the group is longer than names of groups may be (13).
        """
        said = draft.properties.by_name
        group = said.get(PGROUP, producer_group)
        if len(group) > GROUP_LENGTH_MAX:
            remark = (
                f"the producer group has {len(group)} characters, {GROUP_LENGTH_MAX} are allowed"
            )
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, remark)
        self._check_room(group, draft.topic.name)
        immunity_ms = _immunity_ms(said.get(CHECK_IMMUNITY_TIME_IN_SECONDS, ""))
        name_target(draft)
        draft.sys_flag &= ~TRANSACTION_MASK
        draft.wait_in(self._context.state.topics.by_name[TRANS_HALF_TOPIC], 0, 0)
        # A client that sends half messages of a group can be asked about them, even before its first heartbeat.
        self._context.sessions.produced(group, caller)

        # The message contains the whole key; this shortened key stays in the memory of every replica.
        key = draft.unique_key[:UNIQUE_KEY_LENGTH_MAX]

        return HalfOpened(0, 0, group, draft.topic.name, key, 0, immunity_ms)

    def _check_room(self, group: str, topic: str) -> None:
        table, pending = self._context.state.transactions, self._context.entries.pending_rows
        advice = (
            "end some transactions before you begin others, including those that were given up "
            f"({TRANS_CHECK_MAX_TIME_TOPIC} has them)"
        )
        if table.of_group(group, topic) + pending["halves", group, topic] >= OPEN_OF_GROUP_MAX:
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                f"{OPEN_OF_GROUP_MAX} transactions of producer group {group} have not ended in topic[{topic}]; {advice}",
            )
        own, all_of_them = pending["halves", topic], pending["halves",]
        if not table.room.has_room(topic, 1, pending=own, pending_of_all=all_of_them):
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                f"{table.room.used} transactions have not ended, {table.room.part(topic)} of them "
                f"in topic[{topic}]; {advice}",
            )

    def opened(self, offset: int) -> None:
        """Count a stored half message and schedule its check."""
        half = self._context.state.transactions.open.get(offset)
        if half is not None:
            self._context.counters["transactions_opened"] += 1
            self._checks.watch(half)

    # -- the end -----------------------------------------------------------------------------------

    def end(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 37: end a transaction."""
        context = self._context
        header = EndTransactionHeader.from_ext(request.ext)
        choice = header.commit_or_rollback
        if choice == TRANSACTION_NOT:
            # The producer does not know the outcome yet: it will be asked later.
            return answer(request, caller)
        if choice not in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"commitOrRollback {choice}: use {TRANSACTION_COMMIT} to commit, "
                f"{TRANSACTION_ROLLBACK} to roll back or {TRANSACTION_NOT} if the outcome is not "
                "known yet",
            )
        offset = header.tran_state_table_offset
        half = context.state.transactions.get(offset)
        if half is None:
            return self._answer_ended(offset, request, caller)
        _check_end(half, header)
        waiting = context.view.ending.get(offset)
        if waiting is not None:
            context.counters["transactions_ended_again"] += 1
            if not request.is_oneway:
                wait(context)
                waiting.append((unanswered(request), caller))
            return []
        if choice == TRANSACTION_ROLLBACK:
            return [self._propose(half, None, request, caller)]

        check_room(context)

        return [self._propose(half, self._append_commit(half, now), request, caller)]

    def refuse_end(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Refuse 37 on a replica that does not lead, with RocketMQ's code for slaves."""
        context = self._context
        remark = _SLAVE.format(group=context.settings.group, address=context.address_for(caller))

        return answer(request, caller, ResponseCode.SLAVE_NOT_AVAILABLE, remark=remark)

    def _answer_ended(self, offset: int, request: RemotingCommand, caller: Caller) -> list[Effect]:
        halves = self._context.state.topics.by_name[TRANS_HALF_TOPIC]
        if not 0 <= offset < halves.queue(0).next_offset:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"find prepared transaction message failed: no half message has offset {offset}",
            )
        if offset < halves.queue(0).min_offset:
            # It may have been given up and removed without an end; "it is committed" would be a guess.
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"find prepared transaction message failed: half {offset} is older than the "
                "messages that are kept; the outcome of its transaction is no longer known",
            )
        self._context.counters["transactions_ended_again"] += 1

        return answer(request, caller, remark=_ENDED)

    def _append_commit(self, half: Half, now: Now) -> MessageDraft:
        """Append the visible copy of a half message to its own topic."""
        context = self._context
        stored = read_message(context.reader, half.opened.physical)
        if stored is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"find prepared transaction message failed at {half.opened.physical}",
            )
        topic = context.state.topics.get(half.opened.topic)
        if topic is None:
            # The half message stays open: if the topic is created again, it can still get its message.
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{half.opened.topic}] not exist, it was deleted while the transaction was "
                "open; create it and commit again, or roll back",
            )
        if topic.name in context.view.fencing:
            # The topic may have fewer queues when the copy is in the log; a copy in a removed queue would never be read.
            raise RequestRefused(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"topic[{topic.name}] is being changed; end the transaction again",
            )
        draft = self._draft(half, topic, decode_record(stored))

        return put(context, draft, wait_of(context, draft.properties, now.wall_ms))

    def _draft(self, half: Half, topic: Topic, message: StoredMessage) -> MessageDraft:
        properties = with_checks(message, half.checks)
        queue_id = real_queue(topic, properties)
        properties.drop(TRAN_MSG, REAL_TOPIC, REAL_QID)
        draft = MessageDraft.of_stored(message, topic, queue_id, properties)
        draft.sys_flag = with_transaction_state(message.sys_flag, TRANSACTION_COMMIT)
        draft.prepared_offset = half.opened.physical

        return draft

    def _propose(
        self, half: Half, copy: MessageDraft | None, request: RemotingCommand, caller: Caller
    ) -> Propose:
        context, view, offset = self._context, self._context.view, half.offset
        view.ending[offset] = []
        kind = "committed" if copy is not None else "rolled_back"
        if copy is None:
            view.taken_back[half.opened.physical] = 0

        def settled(code: int, remark: str | None) -> list[Effect]:
            effects = answer(request, caller, code, remark=remark)
            view.taken_back.pop(half.opened.physical, None)
            again = remark if code else _ENDED
            for other, other_peer in view.ending.pop(offset):
                then = partial(answer, other, other_peer, code, remark=again)
                effects += answer_soon(view, 1, then)
            return effects

        def applied(outcomes: Sequence[Outcome], _: Now) -> list[Effect]:
            refused = next((each for each in outcomes if type(each) is Refused), None)
            if refused is not None:
                return settled(ResponseCode.TOPIC_NOT_EXIST, refused.reason)
            context.counters[f"transactions_{kind}"] += 1
            return settled(ResponseCode.SUCCESS, None)

        def lost(refusal: Refusal | None) -> list[Effect]:
            if refusal is not None:
                return settled(refusal.code, refusal.remark)
            return settled(ResponseCode.SYSTEM_ERROR, _LOST)

        end = HalfEnded(offset, committed=copy is not None)

        return Propose([end] if copy is None else [copy, end], applied, lost)

    # -- asking again ------------------------------------------------------------------------------

    def resume(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 323: check a half message again as if it were new."""
        context = self._context
        message_id = ResumeCheckHalfMessageHeader.from_ext(request.ext).msg_id or ""
        offset = self._find(message_id)
        ended = f"the transaction of {message_id} has ended; its producer need not be asked"
        if context.state.transactions.get(offset) is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, ended)

        def applied(_: Sequence[Outcome], __: Now) -> list[Effect]:
            half = context.state.transactions.open.get(offset)
            if half is None:
                return answer(request, caller, ResponseCode.SYSTEM_ERROR, remark=ended)
            self._checks.watch(half)
            return answer(request, caller)

        return answer_when_applied(request, caller, [HalfResumed(offset)], then=applied)

    def _find(self, message_id: str) -> int:
        """Return the offset of the half message that an offset id names directly or through its given up copy."""
        try:
            physical = decode_offset_message_id(message_id)[2]
        except MessageIdError as error:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"msgId {message_id[:64]!r} is not an offset message id: {error}",
            ) from error
        stored = read_applied(self._context, physical)
        if stored is not None:
            message = decode_record(stored)
            if message.topic == TRANS_HALF_TOPIC:
                return message.queue_offset
            number = decode_properties(message.properties).get(TRAN_PREPARED_QUEUE_OFFSET, "")
            if message.topic == TRANS_CHECK_MAX_TIME_TOPIC and number.isdecimal():
                return int(number)
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"{message_id} is not a half message; give the id of one in "
            f"{TRANS_CHECK_MAX_TIME_TOPIC}",
        )


def _check_end(half: Half, header: EndTransactionHeader) -> None:
    """Refuse an end that does not match its half message (EndTransactionProcessor.checkPrepareMessage); reveal nothing."""
    if header.producer_group != half.opened.group:
        what = (
            f"producer group wrong: half {half.offset} does not belong to {header.producer_group}"
        )
    elif header.commit_log_offset != half.opened.physical:
        what = f"commit log offset wrong: half {half.offset} is not at {header.commit_log_offset}"
    elif not _is_named(half, header.msg_id):
        # After a restore from a backup, the same group and offsets can occur again with another message.
        what = f"message id wrong: half {half.offset} is not {header.msg_id[:64]!r}"
    else:
        return
    raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the {what}")


def _is_named(half: Half, message_id: str) -> bool:
    """Return whether *message_id* may mean *half*: clients name the unique key, or the offset id where it is stored."""
    key = half.opened.unique_key
    if not key or not message_id or message_id[:UNIQUE_KEY_LENGTH_MAX] == key:
        return True
    try:
        return decode_offset_message_id(message_id)[2] == half.opened.physical
    except MessageIdError:
        return False


def _immunity_ms(said: str) -> int:
    """Return how long a producer does not want to be asked; negative if it does not say."""
    text = said.strip()

    return int(text) * 1_000 if text.isascii() and text.isdigit() and len(text) < 10 else -1
