"""
Batches: many messages of one request, stored together, or none of them.

The rules: a batch is one proposal, hence stored without gaps; messages that are known already are left out, and the
answer has the places of all. What holds for each single message is read by ``sends.py``.
"""

from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeAlias

from orderlymq_broker.core.duplicatesends import First, PendingSend, when_known
from orderlymq_broker.core.effects import Effect, Now, Peer, Propose, Refusal
from orderlymq_broker.core.entrybuilder import PROPOSAL_SIZE_MAX
from orderlymq_broker.core.messagedraft import Draft
from orderlymq_broker.core.properties import Properties
from orderlymq_broker.core.requestcontext import Context, answer
from orderlymq_broker.processors.schedule.delays import Wait, put
from orderlymq_broker.processors.send.checks import illegal
from orderlymq_broker.processors.send.responses import answer_places, answer_unstored, unstored
from orderlymq_broker.processors.topics.expansionrequests import check_send
from orderlymq_broker.processors.transactions.halves import is_half
from orderlymq_broker.state.records import Append, Outcome, Refused
from orderlymq_broker.state.topics.topics import Topic
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.header.send import SendMessageHeader
from orderlymq_protocol.message.batch import BatchEntry, BatchError, decode_batch
from orderlymq_protocol.message.properties import UNIQ_KEY

# One batch is applied in one go on the event loop; more entries than this would hold up everybody:
# these take some 0.3 s. As many as RocketMQ's own example of splitting puts into its 1 MB.
BATCH_COUNT_MAX: Final = 20_000

# What a message is: sent alone, opening a transaction, a dead letter, or one of a batch.
Kind: TypeAlias = Literal["single", "half", "dead", "entry"]
Read: TypeAlias = Callable[
    [SendMessageHeader, Topic, Peer, bytes, Properties, Now, Kind], tuple[Draft, Wait]
]


class BatchProcessor:
    """Turns batches into appends; *read* makes a message of each entry."""

    def __init__(self, context: Context, read: Read) -> None:
        self._context = context
        self._read = read

    def send(
        self,
        header: SendMessageHeader,
        topic: Topic,
        request: RemotingCommand,
        peer: Peer,
        now: Now,
    ) -> list[Effect]:
        """Store the messages of one body together; those that are known already are left out."""
        context = self._context
        if topic.is_retry:
            raise illegal(context, "a batch cannot be sent to a retry topic")
        if header.queue_id < 0:
            header.queue_id = context.view.choose_queue(topic)
        drafts: list[Draft] = []
        waits: list[Wait] = []
        for entry in self._entries(request.body, header.properties):
            properties = self._properties(entry, header.properties)
            if is_half(topic, header.sys_flag, properties):
                raise illegal(context, "a batch cannot be sent in a transaction")
            draft, wait = self._read(header, topic, peer, entry.body, properties, now, "entry")
            if wait.cancels:
                raise illegal(context, "a timer message cannot be cancelled in a batch")
            draft.flag = entry.flag
            drafts.append(draft)
            waits.append(wait)
        firsts, fresh = self._firsts(drafts)
        if not fresh:
            context.counters["duplicate_sends"] += 1
            return when_known(firsts, lambda: answer_places(context, firsts, {}, request, peer))
        if topic.expansion is not None or context.view.fencing:
            check_send(context, topic, request.ext)
        for draft, wait in zip(drafts, waits, strict=True):
            put(context, draft, wait)

        return [self._propose(firsts, fresh, request, peer)]

    def _entries(self, body: bytes, common: str) -> list[BatchEntry]:
        context = self._context
        if len(body) > context.settings.storage.body_size_max:
            raise illegal(context, "split the batch")
        try:
            entries = decode_batch(body)
        except BatchError as error:
            raise illegal(context, str(error)) from error
        if len(entries) > BATCH_COUNT_MAX:
            raise illegal(context, f"a batch holds at most {BATCH_COUNT_MAX} messages")
        if len(body) + len(entries) * len(common) > PROPOSAL_SIZE_MAX:
            # Every message is stored with the properties of the batch: a small body may be a huge entry.
            raise illegal(
                context,
                f"{len(entries)} messages with {len(common)} B of common properties each are too much for "
                "one batch: split it",
            )

        return entries

    def _properties(self, entry: BatchEntry, common: str) -> Properties:
        """Return the properties of a batch's message: its own, then those of the batch.

        5.x clients give the batch a UNIQ_KEY of its own, which must not hide the message's.
        """
        try:
            own = entry.properties.decode()
        except UnicodeDecodeError as error:
            raise illegal(self._context, "the properties of a message are not UTF-8") from error
        if own and not own.endswith("\x02"):
            own += "\x02"
        if "UNIQ_KEY\x01" in own:
            of_batch = Properties(common)
            of_batch.drop(UNIQ_KEY)
            common = of_batch.text

        return Properties(own + common)

    def _firsts(self, drafts: list[Draft]) -> tuple[list[First], dict[int, Draft]]:
        """Return where each message is or will be, and by number those that are to be stored."""
        context = self._context
        firsts: list[First] = []
        fresh: dict[int, Draft] = {}
        own: dict[bytes, PendingSend] = {}
        for number, draft in enumerate(drafts):
            first: First | None = None
            if draft.identity:
                first = own.get(draft.identity)
                if first is None:
                    first = context.view.first_send(draft.identity, context.state.dedup)
            if first is None:
                first = PendingSend()
                fresh[number] = draft
                if draft.identity:
                    own[draft.identity] = first
            firsts.append(first)

        return firsts, fresh

    def _propose(
        self, firsts: list[First], fresh: dict[int, Draft], request: RemotingCommand, peer: Peer
    ) -> Propose:
        """Propose the messages of a batch that are *fresh*; the answer has the places of all."""
        context, view = self._context, self._context.view
        own: list[PendingSend] = []
        identities: list[bytes] = []
        for number, draft in fresh.items():
            pending = firsts[number]
            assert type(pending) is PendingSend
            own.append(pending)
            if draft.identity:
                identities.append(draft.identity)
                view.sends[draft.identity] = pending

        def ended(outcomes: Sequence[Append | Refused]) -> list[Effect]:
            for identity in identities:
                view.sends.pop(identity)
            return [
                effect
                for pending, outcome in zip(own, outcomes, strict=True)
                for effect in pending.end(outcome)
            ]

        def applied(outcomes: Sequence[Outcome], _: Now) -> list[Effect]:
            stored = [each for each in outcomes if type(each) is Append or type(each) is Refused]
            repeats = ended(stored)
            refused = next((each for each in stored if type(each) is Refused), None)
            if refused is None:
                return answer_places(context, firsts, {}, request, peer) + repeats
            code = ResponseCode.TOPIC_NOT_EXIST
            return answer(request, peer, code, remark=refused.reason) + repeats

        def lost(refusal: Refusal | None) -> list[Effect]:
            return answer_unstored(request, peer, refusal) + ended([unstored(refusal)] * len(own))

        return Propose(list(fresh.values()), applied, lost)
