"""
Batches: many messages of one request, stored in consecutive places.

The rules: no message of a batch is proposed before all of them were read and can be stored. Messages that are already
known are left out, and the answer has the places of all. A batch of up to PIECE_COUNT messages is one proposal,
stored completely or not at all. A larger one is proposed in pieces, one directly after the other. If leadership ends
while one piece is or may be stored and another is not, the sender gets no answer. Its next try finds the first
messages known. Large batches are read in parts, so that the leader can send its heartbeats. Meanwhile the later sends
of the same connection to the same queue wait behind the batch, because their order counts. ``sends.py`` reads each
single message.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from orderlymq_broker.core.capacity import BUSY
from orderlymq_broker.core.effects import Caller, CallSoon, Effect, Now, Propose, Refusal
from orderlymq_broker.core.entrybuilder import PROPOSAL_SIZE_MAX
from orderlymq_broker.core.messagedraft import MessageDraft, Properties
from orderlymq_broker.core.repeats import when_known
from orderlymq_broker.core.requestcontext import Context, RequestRefused, answer, unanswered
from orderlymq_broker.core.uncommitted import KnownSend, LeaderView, PendingSend
from orderlymq_broker.processors.schedule.delays import Wait, put
from orderlymq_broker.processors.send.checks import check_cancelled, check_target, illegal
from orderlymq_broker.processors.send.responses import (
    answer_places,
    answer_unstored,
    close_in_part,
    may_be_stored,
    unstored,
)
from orderlymq_broker.processors.topics.expansionrequests import check_send
from orderlymq_broker.processors.transactions.halves import is_half
from orderlymq_broker.state.records import Append, Outcome, Refused
from orderlymq_broker.state.topics.topics import Topic
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.header.send import SendMessageHeader
from orderlymq_protocol.message.batch import BATCH_COUNT_MAX, BatchEntry, BatchError, read_batch
from orderlymq_protocol.message.properties import UNIQ_KEY
from orderlymq_protocol.message.record import RecordError

# Messages of all batches that are read before timers and other clients get their turn: about 10 ms.
READ_COUNT_MAX: Final = 1_024
# This many characters of properties count as one more message.
READ_COUNT_SIZE: Final = 256
# Messages of one proposal, which is applied in one go.
PIECE_COUNT: Final = 1_024

# The kind of a message: sent alone, opening a transaction, a dead letter, or one of a batch.
Kind: TypeAlias = Literal["single", "half", "dead", "entry"]
# The source of sends whose order counts: connection, topic id and queue.
Source: TypeAlias = tuple[int, int, int]
Read: TypeAlias = Callable[
    [SendMessageHeader, Topic, Caller, bytes, Properties, Now, Kind], tuple[MessageDraft, Wait]
]


@dataclass(slots=True)
class _Batch:
    """A batch that is being read.

    Attributes:
        held: the bytes that it keeps in memory while it waits.
        common: the properties for all its messages, and those for messages with their own key; None until
            it is read, because the names and values of a long text take thirty times as much memory.
        unread: its messages that are not read yet.
        firsts: the place of each message that was read, or of its first copy, known or to come.
        fresh: the messages to store, and *own* the outcome of each.
        size: the approximate bytes of its messages in the log; known messages count as if they were stored.
    """

    header: SendMessageHeader
    topic: Topic
    request: RemotingCommand
    caller: Caller
    view: LeaderView
    source: Source
    held: int
    unread: Iterator[BatchEntry]
    common: tuple[Properties, Properties] | None = None
    firsts: list[KnownSend] = field(default_factory=list)
    fresh: list[MessageDraft] = field(default_factory=list)
    own: list[PendingSend] = field(default_factory=list)
    size: int = 0

    def end(self, begin: int, outcomes: Sequence[Append | Refused]) -> list[Effect]:
        """Set the outcomes of its fresh messages from *begin* on; return the answers to their repeats."""
        effects: list[Effect] = []
        for place, outcome in enumerate(outcomes, begin):
            if self.fresh[place].identity:
                self.view.sends.pop(self.fresh[place].identity)
            effects += self.own[place].end(outcome)
        return effects


@dataclass(slots=True)
class _Single:
    """A send that waits behind a batch of its source; *send* is called when its turn comes."""

    send: Callable[[Now], list[Effect]]
    request: RemotingCommand
    caller: Caller
    view: LeaderView
    source: Source
    held: int


class BatchProcessor:
    """Turns batches into appends; *read* makes a message of each entry.

    Attributes:
        waiting: per connection and queue, how many of its sends wait to be read; their order is kept.
    """

    def __init__(self, context: Context, read: Read) -> None:
        self._context = context
        self._read = read
        self.waiting: Counter[Source] = Counter()
        self._queue: deque[_Batch | _Single] = deque()
        self._bytes = 0
        self._room = READ_COUNT_MAX
        self._goes_on = False

    def send(
        self,
        header: SendMessageHeader,
        topic: Topic,
        request: RemotingCommand,
        caller: Caller,
        now: Now,
    ) -> list[Effect]:
        """Store the messages of one body together; those that are already known are left out."""
        context = self._context
        if topic.is_retry:
            raise illegal(context, "a batch cannot be sent to a retry topic")
        held = self._room_for(request)
        if len(request.body) > context.settings.storage.body_size_max:
            raise illegal(context, "split the batch")
        # The header keeps the queue that its sender named, because a repeat may get another queue.
        named = header.queue_id
        queue_id = named if named >= 0 else context.view.choose_queue(topic)
        unread = read_batch(request.body)
        source = (caller.connection, topic.id, queue_id)
        self._append(_Batch(header, topic, request, caller, context.view, source, held, unread))

        return self._work(now)

    def wait(
        self,
        source: Source,
        send: Callable[[Now], list[Effect]],
        request: RemotingCommand,
        caller: Caller,
    ) -> list[Effect]:
        """Let a send wait behind the batches of its source that are being read."""
        held = self._room_for(request)
        self._append(_Single(send, request, caller, self._context.view, source, held))

        return []

    # -- what waits --------------------------------------------------------------------------------

    def _room_for(self, request: RemotingCommand) -> int:
        """Return how many bytes a request keeps in memory while it waits.

        Raises:
            RequestRefused: too much waits already.
        """
        held = request.memory_bytes()
        if self._queue and self._bytes + held > self._context.settings.raft.uncommitted_size_max:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, BUSY)

        return held

    def _append(self, item: _Batch | _Single) -> None:
        self._queue.append(item)
        self._bytes += item.held
        self.waiting[item.source] += 1

    def _remove(self, item: _Batch | _Single) -> None:
        self._bytes -= item.held
        self.waiting[item.source] -= 1
        if not self.waiting[item.source]:
            del self.waiting[item.source]

    # -- reading, bit by bit -----------------------------------------------------------------------

    def _go_on(self, now: Now) -> list[Effect]:
        self._goes_on = False
        self._room = READ_COUNT_MAX

        return self._work(now)

    def _work(self, now: Now) -> list[Effect]:
        """Read as much as there is room for, in the order in which the batches came."""
        effects: list[Effect] = []
        while self._queue and self._room > 0:
            # Remove it first: a batch that cannot be read must not stay before the others forever.
            item = self._queue.popleft()
            self._remove(item)
            ended = self._advance(item, now) if isinstance(item, _Batch) else self._send(item, now)
            if ended is None:
                self._queue.appendleft(item)
                self._bytes += item.held
                self.waiting[item.source] += 1
            else:
                effects += ended
        if self._room < READ_COUNT_MAX and not self._goes_on:
            self._goes_on = True
            effects.append(CallSoon(self._go_on))

        return effects

    def _send(self, single: _Single, now: Now) -> list[Effect]:
        """Perform the send that waited behind a batch, or refuse it with the reason."""
        request, caller = single.request, single.caller
        self._room -= 1
        if single.view is not self._context.view:
            return answer_unstored(request, caller, None)
        try:
            return single.send(now)
        except RequestRefused as refused:
            return answer(request, caller, refused.code, ext=refused.ext, remark=refused.remark)
        except RecordError as unfit:
            return answer(request, caller, ResponseCode.MESSAGE_ILLEGAL, remark=str(unfit))

    def _advance(self, batch: _Batch, now: Now) -> list[Effect] | None:
        """Read on in a batch; return the effects when it is complete or refused, None before that."""
        if batch.view is not self._context.view:
            return self._refuse(batch, None)
        try:
            return self._finish(batch) if self._read_on(batch, now) else None
        except RequestRefused as refused:
            return self._refuse(batch, refused)
        except (BatchError, RecordError) as unfit:
            return self._refuse(batch, illegal(self._context, str(unfit)))

    def _refuse(self, batch: _Batch, refused: RequestRefused | None) -> list[Effect]:
        """End a batch that is not proposed; a stored message is never reported as refused."""
        request, caller = batch.request, batch.caller
        refusal = None if refused is None else Refusal(refused.code, refused.remark)
        repeats = batch.end(0, [unstored(refusal)] * len(batch.own))
        if may_be_stored(batch.firsts):
            return close_in_part(request, caller) + repeats
        if refused is None:
            return answer_unstored(request, caller, None) + repeats
        replies = answer(request, caller, refused.code, ext=refused.ext, remark=refused.remark)
        return replies + repeats

    def _read_on(self, batch: _Batch, now: Now) -> bool:
        """Read as many messages as there is room for; return whether these were the last.

        Raises:
            RequestRefused, BatchError, RecordError: a message cannot be stored, so the batch is not.
        """
        for entry in batch.unread:
            self._room -= 1
            self._take(batch, self._draft(batch, entry, now))
            if self._room <= 0:
                return False

        return True

    def _draft(self, batch: _Batch, entry: BatchEntry, now: Now) -> MessageDraft:
        """Make a message of an entry."""
        context, header, topic = self._context, batch.header, batch.topic
        if len(batch.firsts) == BATCH_COUNT_MAX:
            raise illegal(context, f"a batch may have at most {BATCH_COUNT_MAX} messages")
        properties = self._properties(batch, entry)
        self._room -= len(properties.text) // READ_COUNT_SIZE
        if is_half(topic, header.sys_flag, properties):
            raise illegal(context, "a batch cannot be sent in a transaction")
        draft, wait = self._read(header, topic, batch.caller, entry.body, properties, now, "entry")
        if wait.cancels:
            raise illegal(context, "a timer message in a batch cannot be cancelled")
        draft.flag, draft.queue_id = entry.flag, batch.source[2]

        return put(context, draft, wait)

    def _take(self, batch: _Batch, draft: MessageDraft) -> None:
        """Note the place of a message that is known, or lay out one that is to be stored."""
        context, view, identity = self._context, batch.view, draft.identity
        first = view.first_send(identity, context.state.dedup) if identity else None
        if first is not None:
            # Never more than the message takes if stored, so that a batch that was stored once is accepted at every repeat.
            batch.size += len(draft.body) + len(draft.properties.text)
        else:
            if identity:
                check_cancelled(context, draft)
            refusal = context.entries.lay_out(draft)
            if refusal is not None:
                raise RequestRefused(refusal.code, refusal.remark)
            batch.size += draft.size
        if batch.size > PROPOSAL_SIZE_MAX:
            # Every message is stored with the properties of the batch, so a small body may become a huge entry.
            raise illegal(
                context,
                f"a batch may take at most {PROPOSAL_SIZE_MAX} bytes in the log, and the common "
                "properties count for each of its messages: split it",
            )
        if first is not None:
            batch.firsts.append(first)
            return
        pending = PendingSend()
        if identity:
            view.sends[identity] = pending
        batch.firsts.append(pending)
        batch.fresh.append(draft)
        batch.own.append(pending)

    def _finish(self, batch: _Batch) -> list[Effect]:
        context, request, caller, firsts = self._context, batch.request, batch.caller, batch.firsts
        kept = unanswered(request)
        if not batch.fresh:
            context.counters["duplicate_sends"] += 1
            try:
                return when_known(
                    context, firsts, lambda: answer_places(context, firsts, {}, kept, caller)
                )
            except RequestRefused as refused:
                # It stores nothing itself, so it is refused like a single repeat, and the connection stays open.
                return answer(kept, caller, refused.code, remark=refused.remark)
        # Check again what was checked when it came, because the queue may have been removed since.
        check_target(context, batch.topic, batch.source[2])
        if batch.topic.expansion is not None or context.view.fencing:
            check_send(context, batch.topic, request.ext)
        begins = range(0, len(batch.fresh), PIECE_COUNT)
        answered = _Answer(context, firsts, kept, caller, len(begins))

        return [_piece(batch, begin, answered) for begin in begins]

    def _properties(self, batch: _Batch, entry: BatchEntry) -> Properties:
        """Return the properties of a batch's message: its own, then those of the batch.

        5.x clients give the batch its own UNIQ_KEY, which must not hide that of the message.
        """
        try:
            own = entry.properties.decode()
        except UnicodeDecodeError as error:
            raise illegal(self._context, "the properties of a message are not UTF-8") from error

        if batch.common is None:
            batch.common = _common(batch.header.properties)
        common, keyless = batch.common

        return Properties(own).before(keyless if "UNIQ_KEY\x01" in own else common)


def _common(text: str) -> tuple[Properties, Properties]:
    """Return the properties of a batch for all its messages, and the same without their key."""
    common = keyless = Properties(text)
    if UNIQ_KEY in common.by_name:
        keyless = Properties(text, common.by_name.copy())
        keyless.drop(UNIQ_KEY)

    return common, keyless


def _piece(batch: _Batch, begin: int, answered: "_Answer") -> Propose:
    """Propose fresh messages of a batch from *begin* on."""
    drafts = batch.fresh[begin : begin + PIECE_COUNT]

    def applied(outcomes: Sequence[Outcome], _: Now) -> list[Effect]:
        stored = [each for each in outcomes if type(each) is Append or type(each) is Refused]
        repeats = batch.end(begin, stored)
        return answered.applied(stored) + repeats

    def lost(refusal: Refusal | None) -> list[Effect]:
        repeats = batch.end(begin, [unstored(refusal)] * len(drafts))
        return answered.lost(refusal) + repeats

    return Propose(drafts, applied, lost)


@dataclass(slots=True)
class _Answer:
    """The one answer to a batch, which leaves when the last of its pieces is applied, or the first one fails.

    Attributes:
        firsts: the place of each message, known or to come.
        left: the number of pieces whose outcome is not known.
        given: whether the answer has left.
    """

    context: Context
    firsts: list[KnownSend]
    request: RemotingCommand
    caller: Caller
    left: int
    given: bool = False

    def applied(self, outcomes: Sequence[Append | Refused]) -> list[Effect]:
        """Note that a piece is applied; return the answer if it is due now."""
        self.left -= 1
        refused = next((each for each in outcomes if type(each) is Refused), None)
        if self.given or (refused is None and self.left):
            return []
        self.given = True
        if refused is not None:
            code = ResponseCode.TOPIC_NOT_EXIST
            return answer(self.request, self.caller, code, remark=refused.reason)
        return answer_places(self.context, self.firsts, {}, self.request, self.caller)

    def lost(self, refusal: Refusal | None) -> list[Effect]:
        """Note that a piece is not stored; return the answer to the sender if this is the last piece.

        An earlier piece may be in the log. If so, its outcome is not known when all unstored pieces are lost.
        """
        self.left -= 1

        return [CallSoon(lambda _: self._fail(refusal))] if self.left else self._fail(refusal)

    def _fail(self, refusal: Refusal | None) -> list[Effect]:
        if self.given:
            return []
        self.given = True
        if may_be_stored(self.firsts):
            return close_in_part(self.request, self.caller)
        return answer_unstored(self.request, self.caller, refusal)
