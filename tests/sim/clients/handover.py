"""
The end of a dead letter at its consumer: the broker is asked, then the copy is sent.

The steps are those of the SDK's ``brokercalls.py``: a hold whose answer was lost counts as held, and a letter is sent
only after the broker has answered which letter it follows.
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from orderlymq.connection.wire import check, is_stored
from orderlymq.consumer.core.events import DeadLetter, ParkedFrom, SendBackResult
from orderlymq.consumer.group.requests import copy_to_retry, park_request, read_verdict
from orderlymq.errors import OrderlyMQError
from orderlymq.oracle.verdict import Kind
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.client import RemotingError
from tests.sim.clients.client import ADDRESS
from tests.sim.timeline import SECOND

if TYPE_CHECKING:
    from tests.sim.clients.consumer import Consumer

TIMEOUT_US: Final = SECOND
RECONSUME_MAX: Final = 2

Answer = RemotingCommand | RemotingError


@dataclass(frozen=True, slots=True)
class HandOver:
    """One dead letter of *consumer*, which handles the result in `handed_over`."""

    consumer: "Consumer"
    ask: DeadLetter

    def begin(self) -> None:
        """Ask the broker what to do with the letter; a client of RocketMQ does not ask."""
        ask, consumer = self.ask, self.consumer
        if ask.epoch is None:
            self._send(None)
        else:
            question = park_request(ask, consumer.group, consumer.client_id)
            consumer.call(question, TIMEOUT_US, self._judged)

    def _judged(self, answer: Answer) -> None:
        ask = self.ask
        try:
            if isinstance(answer, RemotingError):
                raise answer
            verdict, parked = read_verdict(check(answer, ADDRESS))
        except (RemotingError, OrderlyMQError, ValueError) as error:
            self._tell(False, str(error), ask.presumed)
            return
        if verdict in ("held", "continue"):
            self._send(parked)
        else:
            self._tell(False, verdict, parked, released=verdict == "released")

    def _send(self, parked: ParkedFrom | None) -> None:
        message, times = self.ask.message, self.ask.message.reconsume_times
        behind = parked is not None and parked.precedes(message.queue_offset)
        command = copy_to_retry(
            message,
            self.consumer.group,
            times=times,
            maximum=RECONSUME_MAX if parked is None else times,
            delay_level=0,
            born_ms=0,
            behind=parked.message_id if parked is not None and behind else "",
        )
        self.consumer.call(command, TIMEOUT_US, partial(self._sent, parked, behind))

    def _sent(self, parked: ParkedFrom | None, behind: bool, answer: Answer) -> None:
        ok = isinstance(answer, RemotingCommand) and is_stored(answer.code)
        if ok:
            world, queue, message = self.consumer.world, self.ask.queue, self.ask.message
            world.coverage["letter followed a parked key" if behind else "dead letter"] += 1
            place = (self.consumer.group, queue.topic, queue.queue_id)
            world.laws.held.handed_over(place, message.queue_offset)
            world.history.event(
                Kind.DEAD,
                topic=queue.topic,
                group=self.consumer.group,
                client=self.consumer.client_id,
                queue=str(queue.queue_id),
                offset=message.queue_offset,
                message=message.message_id,
            )
        self._tell(ok, str(answer), parked)

    def _tell(
        self, ok: bool, reason: str, parked: ParkedFrom | None, *, released: bool = False
    ) -> None:
        ask = self.ask
        place = (ask.queue, ask.generation, ask.message.queue_offset)
        self.consumer.handed_over(SendBackResult(*place, ok, reason, parked, released))
