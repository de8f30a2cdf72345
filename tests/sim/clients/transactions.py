"""
Producers of transactional messages: a half message, a decision, its end sent once, twice or never, and checks.

All producers of the group share a table of decisions, as they would share their database. Laws: a committed message
comes into its queue once, after the decision; a rolled back one never does; in the end no half message is open. The
shell does with events what ``client/orderlymq/producer/transactions.py`` does with tasks.
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from orderlymq.connection.wire import is_stored, read_record
from orderlymq.errors import OrderlyMQError
from orderlymq.message import Message, SendResult
from orderlymq.oracle.verdict import Kind
from orderlymq.producer.queuechanges import chosen_from
from orderlymq.producer.requests import SendOptions, read_send_result, send_request
from orderlymq.producer.sendoutcome import Attempts, QueuesChanged
from orderlymq.settings import ProducerSettings
from orderlymq_protocol.body.catalogue import HeartbeatData, ProducerData
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_protocol.header.catalogue import CheckTransactionStateHeader, EndTransactionHeader
from orderlymq_protocol.message import properties
from orderlymq_protocol.message.ids import decode_offset_message_id
from orderlymq_protocol.message.record import decode_record
from orderlymq_protocol.message.sysflag import (
    TRANSACTION_COMMIT,
    TRANSACTION_NOT,
    TRANSACTION_ROLLBACK,
)
from orderlymq_runtime.remoting.client import RemotingError
from tests.sim.broker.nameservers import Lookup
from tests.sim.clients.client import ADDRESS, Client
from tests.sim.timeline import MS, SECOND

if TYPE_CHECKING:
    from tests.sim.world import World

DEALERS: Final = "dealers"
_OPTIONS: Final = SendOptions(DEALERS, ProducerSettings(compress_message_body_over_bytes=1 << 20))
CALL_TIMEOUT_US: Final = 900 * MS
DEADLINE_S: Final = 4.0
COMMITTED_SHARE: Final = 0.7
FORGOTTEN_SHARE: Final = 0.25  # ends that are not sent: a check must ask for them
REPEATED_SHARE: Final = 0.3


@dataclass(slots=True)
class Deal:
    """One transaction, as recorded in the database of its producers."""

    unique: str
    choice: int = TRANSACTION_NOT
    half: SendResult | None = None
    told: bool = False


class Dealer(Client):
    """A producer of transactional messages, one after the other."""

    def __init__(self, world: "World", number: int) -> None:
        super().__init__(world, f"dealer-{number}", f"10.0.4.{number}")
        self.account = "producers"
        self._lookup = Lookup(world, self, self.host)
        self._number = 0
        self._births = 0
        self._deal: Deal | None = None
        self._over = False

    @property
    def is_idle(self) -> bool:
        """Return whether nothing is being sent and nothing will be."""
        return self._over and self._deal is None

    def start(self) -> None:
        """Start a new process of this producer."""
        self.begin()
        self._births += 1
        self._lookup.start()
        self._deal = None
        self._beat()
        self._later()

    def crash(self) -> None:
        """End; the other producers of the group answer for what was begun."""
        self.world.coverage["producer of a transaction crashed"] += 1
        if self._deal is not None and self._deal.choice == TRANSACTION_NOT:
            self._decide(self._deal, TRANSACTION_ROLLBACK)
        self._deal = None
        self._lookup.stop()
        self.forget_calls()
        self.end()

    def finish(self) -> None:
        """Begin nothing more, and send each end that was not sent."""
        self._over = True
        for deal in self.world.deals.values():
            decided = deal.choice != TRANSACTION_NOT
            if decided and deal.half is not None and not deal.told:
                self._tell(deal)

    # -- one transaction

    def _later(self) -> None:
        think = 2 * self.world.plan.think_max_us
        self.after(self.timeline.random.randrange(think), "think", self._next)

    def _next(self) -> None:
        queues = self._lookup.publish
        if self._over:
            return
        if not queues:
            self._later()
            return
        self._number += 1
        unique = f"{self.name}.{self._number}"
        deal = self._deal = self.world.deals[unique] = Deal(unique)
        marks = {properties.TRAN_MSG: "true", properties.PGROUP: DEALERS}
        topic = self.world.topic
        message = Message(topic=topic, body=unique.encode(), unique_key=unique, marks=marks)
        attempts = Attempts(self.seconds() + DEADLINE_S, topic)
        self.world.history.event(Kind.SEND, process=self.name, topic=topic, message=unique)
        self._try(deal, message, attempts)

    def _try(self, deal: Deal, message: Message, attempts: Attempts) -> None:
        route = self._lookup.route
        assert route is not None, "a route that is known is never forgotten"
        queue = self.timeline.random.choice(route.publish)
        command = chosen_from(route, send_request(message, queue, _OPTIONS, 0))
        answered = partial(self._stored, deal, message, queue, attempts)
        self.call(command, CALL_TIMEOUT_US, answered)

    def _stored(
        self,
        deal: Deal,
        message: Message,
        queue: MessageQueue,
        attempts: Attempts,
        answer: RemotingCommand | RemotingError,
    ) -> None:
        if self._deal is not deal:
            return
        if isinstance(answer, RemotingError):
            attempts.note_failure(ADDRESS, answer)
        elif is_stored(answer.code):
            deal.half = read_send_result(answer, deal.unique, queue)
            self.world.coverage["half stored"] += 1
            work = self.timeline.random.randrange(1, 2_500) * MS
            if self.timeline.random.random() < 0.8:
                work //= 50
            self.after(work, "local transaction", partial(self._execute, deal))
            return
        else:
            attempts.note_refusal(ADDRESS, answer)
        try:
            attempts.raise_if_final()
            if attempts.remaining_s(self.seconds()) <= 0:
                raise attempts.error()
        except QueuesChanged:
            self._lookup.look()
            if attempts.remaining_s(self.seconds()) <= 0:
                self._decide(deal, TRANSACTION_ROLLBACK)
                self._go_on()
                return
        except OrderlyMQError:
            # Whether stored or not, it is never committed.
            self._decide(deal, TRANSACTION_ROLLBACK)
            self._go_on()
            return
        wait = self.timeline.random.randrange(10 * MS, 200 * MS)
        self.after(wait, "try again", partial(self._try, deal, message, attempts))

    def _execute(self, deal: Deal) -> None:
        random = self.timeline.random
        if deal.choice == TRANSACTION_NOT:
            commits = random.random() < COMMITTED_SHARE
            self._decide(deal, TRANSACTION_COMMIT if commits else TRANSACTION_ROLLBACK)
        if random.random() < FORGOTTEN_SHARE:
            self.world.coverage["end of a transaction not sent"] += 1
        else:
            self._tell(deal)
        self._go_on()

    def _go_on(self) -> None:
        self._deal = None
        self._later()

    def _decide(self, deal: Deal, choice: int) -> None:
        deal.choice = choice
        world = self.world
        if choice == TRANSACTION_ROLLBACK:
            world.history.event(Kind.REFUSED, topic=world.topic, message=deal.unique)
            world.laws.send_refused(deal.unique)

    # -- its end

    def _tell(self, deal: Deal) -> None:
        half = deal.half
        assert half is not None, f"{deal} was never stored"
        header = EndTransactionHeader(
            producer_group=DEALERS,
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=decode_offset_message_id(half.offset_message_id)[2],
            commit_or_rollback=deal.choice,
            msg_id=deal.unique,
            topic=self.world.topic,
        )
        self._end(deal, header)
        if self.timeline.random.random() < REPEATED_SHARE:
            self.world.coverage["end of a transaction repeated"] += 1
            wait = self.timeline.random.randrange(2_000 * MS)
            self.after(wait, "end again", partial(self._end, deal, header))

    def _end(self, deal: Deal, header: EndTransactionHeader) -> None:
        command = request(RequestCode.END_TRANSACTION, header.to_ext())
        self.call(command, CALL_TIMEOUT_US, partial(self._ended, deal, header))

    def _ended(
        self, deal: Deal, header: EndTransactionHeader, answer: RemotingCommand | RemotingError
    ) -> None:
        if isinstance(answer, RemotingCommand) and answer.code == ResponseCode.SUCCESS:
            self.world.laws.transaction_ended(
                deal.unique, committed=deal.choice == TRANSACTION_COMMIT
            )
            if not deal.told:
                deal.told = True
                self._note(deal)
            return
        wait = self.timeline.random.randrange(20 * MS, 200 * MS)
        self.after(wait, "end again", partial(self._end, deal, header))

    def _note(self, deal: Deal) -> None:
        world = self.world
        if deal.choice == TRANSACTION_COMMIT:
            world.coverage["transaction committed"] += 1
            world.history.event(Kind.ACK, topic=world.topic, message=deal.unique)
        else:
            world.coverage["transaction rolled back"] += 1

    # -- what the broker asks

    def answered(self, notice: RemotingCommand) -> None:
        """Answer a check from the group's database."""
        if notice.code != RequestCode.CHECK_TRANSACTION_STATE:
            return
        asked = CheckTransactionStateHeader.from_ext(notice.ext)
        stored = decode_record(notice.body)
        message = read_record(stored, MessageQueue(stored.topic, "", stored.queue_id))
        self.world.laws.checked_back(message)
        self.world.coverage["transaction checked"] += 1
        deal = self.world.deals[message.message_id]
        header = EndTransactionHeader(
            producer_group=DEALERS,
            tran_state_table_offset=asked.tran_state_table_offset,
            commit_log_offset=asked.commit_log_offset,
            commit_or_rollback=deal.choice,
            msg_id=deal.unique,
            from_transaction_check=True,
            transaction_id=asked.transaction_id,
            topic=message.topic,
        )
        command = request(RequestCode.END_TRANSACTION, header.to_ext())
        choice = deal.choice

        def told(answer: RemotingCommand | RemotingError) -> None:
            good = isinstance(answer, RemotingCommand) and answer.code == ResponseCode.SUCCESS
            if good and choice != TRANSACTION_NOT:
                self.world.coverage["transaction ended by a check"] += not deal.told
                self.world.laws.transaction_ended(
                    deal.unique, committed=choice == TRANSACTION_COMMIT
                )
                if not deal.told:
                    deal.told = True
                    self._note(deal)

        self.call(command, CALL_TIMEOUT_US, told)

    def _beat(self) -> None:
        self.after(SECOND, "beat", self._beat)
        body = HeartbeatData(f"{self.name}#{self._births}", (ProducerData(DEALERS),)).to_json()
        self.call(request(RequestCode.HEART_BEAT, None, body), CALL_TIMEOUT_US, lambda _: None)
