"""
A producer that waits for each answer, and sends again under the same unique key if there was none.

The SDK's own rule decides what is known about a send (``sendoutcome.Attempts``): "refused" only if no try can have
been stored. The producer meets lost answers, repeats and refusals, and records in the history what it received.
"""

import zlib
from typing import TYPE_CHECKING, Final

from orderlymq.connection.wire import is_stored
from orderlymq.errors import OrderlyMQError, SendUnknown
from orderlymq.message import Message, SendResult
from orderlymq.oracle.verdict import Kind
from orderlymq.producer.queuechanges import chosen_from
from orderlymq.producer.requests import SendOptions, read_send_result, send_request
from orderlymq.producer.sendoutcome import Attempts, QueuesChanged, still_unknown
from orderlymq.settings import ProducerSettings
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.client import RemotingError
from tests.sim.broker.nameservers import Lookup
from tests.sim.clients.client import ADDRESS, Client
from tests.sim.timeline import MS, SECOND

if TYPE_CHECKING:
    from tests.sim.world import World

_OPTIONS: Final = SendOptions("makers", ProducerSettings(compress_message_body_over_bytes=1 << 20))
DEADLINE_S: Final = 6.0
TIMER_SHARE: Final = 0.5  # of the messages that wait
CANCELLED_SHARE: Final = 0.4  # of the timer messages, one after the other
PATIENCE_US: Final = 3 * SECOND  # how long a send waits for the end of an expansion
# The longest pause within a burst: shorter than a lane's work, long enough to last until its first run is complete.
BURST_THINK_US: Final = 40 * MS


class Producer(Client):
    """Sends messages of its own keys, one after the other."""

    def __init__(self, world: "World", number: int, keys: int) -> None:
        super().__init__(world, f"producer-{number}", f"10.0.1.{number}")
        self.account = "producers"
        self._lookup = Lookup(world, self, self.host)
        self._keys = [f"k{number}-{each}" for each in range(keys)]
        self._number = 0
        self._message: Message | None = None
        self._last: list[int] | None = None
        self._doomed = ""  # a timer message that is to be cancelled
        self._doomed_waits = False  # it is stored
        self._burst = world.plan.burst if number == 1 else 0  # messages left of the burst

    @property
    def is_idle(self) -> bool:
        """Return whether nothing is being sent and nothing will be."""
        return self._message is None and self._last == []

    def finish(self, queues: list[int]) -> None:
        """Send one more message to each of *queues* and end."""
        self._last = queues

    def start(self) -> None:
        """Begin to send."""
        self.begin()
        self._lookup.start()
        self._later()

    def _later(self) -> None:
        think_us = BURST_THINK_US if self._burst else self.world.plan.think_max_us
        self.after(self.timeline.random.randrange(think_us), "think", self._next)

    def _next(self) -> None:
        random = self.timeline.random
        queues = self._lookup.publish
        if not queues:
            self._later()
            return
        key = random.choice(self._keys)
        self._place = zlib.crc32(key.encode())
        waits: dict[str, int | float | str] = {}
        if self._last is not None:
            if not self._last:
                return
            self._place = self._last.pop()
            key = f"last-{self._place}"
        elif self._burst:
            self._burst -= 1
            key = self._keys[0]
            self._place = zlib.crc32(key.encode())
        elif self.world.plan.delayed and random.random() < self.world.plan.delayed:
            # It is delivered when it is due, so no order is promised.
            key, waits = "", self._wait()
        self._number += 1
        unique = f"{self.name}.{self._number}"
        self._message = Message(
            topic=self.world.topic,
            body=unique.encode(),
            key=key or None,
            unique_key=unique,
            **waits,  # type: ignore[arg-type]  # fields by name
        )
        if self._message.cancels:
            self.world.laws.silenced.add(unique)
        elif self._message.delay and not self._doomed and random.random() < CANCELLED_SHARE:
            self._doomed, self._doomed_waits = unique, False
        self._attempts = Attempts(self.seconds() + DEADLINE_S, self.world.topic)
        self._maybe_stored = False
        self._tries = 0
        self._patient_until = self.timeline.now + PATIENCE_US
        self._tell(Kind.SEND, process=self.name, key=key)
        self._try()

    def _wait(self) -> dict[str, int | float | str]:
        """Draw what the next message waits for: a delay level, a time, or the cancellation of another waiting one."""
        random = self.timeline.random
        if self._doomed_waits:
            return {"delay": 1.0, "cancels": self._doomed}
        # The time is by the leader's clock; a clock that is days wrong would make the messages wait for days.
        if not self.world.plan.wrong_clocks and random.random() < TIMER_SHARE:
            return {"delay": random.choice((0.2, 1.0, 2.5))}
        return {"delay_level": random.choice((1, 2))}

    def _tell(self, kind: Kind, **attributes: str | int) -> None:
        """Record an event of the present message, unless it cancels another: no consumer ever gets such a message."""
        message = self._message
        assert message is not None
        if not message.cancels:
            self.world.history.event(
                kind, topic=self.world.topic, message=message.unique_key, **attributes
            )

    def _try(self) -> None:
        message = self._message
        assert message is not None
        self._tries += 1
        if self._tries > 1:
            self.world.coverage["send tried again"] += 1
        route = self._lookup.route
        assert route is not None, "a route that is known is never forgotten"
        if message.key is not None or self._tries == 1:
            # The queue is chosen for each try, as the SDK does, because the queues may have become more. Without a
            # key another queue would mean another message.
            self._queue = route.publish[self._place % len(route.publish)]
        command = chosen_from(route, send_request(message, self._queue, _OPTIONS, 0))
        self.call(command, self.world.plan.try_timeout_us, self._answered)

    def _answered(self, answer: RemotingCommand | RemotingError) -> None:
        message, attempts, world = self._message, self._attempts, self.world
        assert message is not None
        if isinstance(answer, RemotingError):
            attempts.note_failure(ADDRESS, answer)
            if world.plan.has_small_window:
                # A producer that repeats after the send has left the window may store a second copy.
                self._give_up(message, attempts.error())
                return
        elif is_stored(answer.code):
            self._acknowledged(message, read_send_result(answer, message.unique_key, self._queue))
            return
        else:
            attempts.note_refusal(ADDRESS, answer)
            if answer.code == ResponseCode.ORDERLYMQ_QUEUES_CHANGED:
                self._choose_again(message, attempts)
                return
            world.coverage["send refused once"] += 1
            if not world.calm and self.timeline.random.random() >= world.plan.patience:
                self._give_up(message, attempts.error())
                return
        try:
            attempts.raise_if_final()
            if attempts.remaining_s(self.seconds()) <= 0:
                raise attempts.error()
        except OrderlyMQError as error:
            self._give_up(message, error)
            return
        wait = self.timeline.random.randrange(10 * MS, 200 * MS)
        self.after(wait, "try again", self._try)

    def _choose_again(self, message: Message, attempts: Attempts) -> None:
        """Begin the next round as `through_changes` does, or give up if the change takes too long."""
        world = self.world
        world.coverage["send asked to choose again"] += 1
        self._lookup.look()
        try:
            attempts.raise_if_final()
        except QueuesChanged as changed:
            self._maybe_stored |= changed.maybe_stored
            if world.timeline.now < self._patient_until or world.calm:
                self._attempts = Attempts(self.seconds() + DEADLINE_S, world.topic)
                self.after(20 * MS, "try again", self._try)
            else:
                self._give_up(message, changed.refused)

    def _acknowledged(self, message: Message, result: SendResult) -> None:
        world, unique = self.world, message.unique_key
        if self._tries > 1:
            world.coverage["repeat acknowledged"] += 1
        if message.delay_level or message.delay:
            world.laws.waiting_acknowledged(unique, message.delay_level, result.queue_offset)
            if unique == self._doomed:
                # Its delivery is open until its cancellation is acknowledged.
                self._tell(Kind.UNKNOWN)
                self._doomed_waits = True
            elif message.cancels:
                world.coverage["timer message cancelled"] += 1
                world.laws.silenced.add(message.cancels)
                self._doomed, self._doomed_waits = "", False
            else:
                self._tell(Kind.ACK)
                world.waiting.add(unique)
        else:
            queue_id = result.queue.queue_id
            self._tell(Kind.ACK, queue=str(queue_id), offset=result.queue_offset)
            world.laws.acknowledged(unique, queue_id, result.queue_offset)
            world.acknowledged(queue_id)
        self._message = None
        self._later()

    def _give_up(self, message: Message, error: OrderlyMQError) -> None:
        world = self.world
        if self._maybe_stored:
            error = still_unknown(error)
        known = not isinstance(error, SendUnknown)
        world.coverage["send refused for good" if known else "send unknown"] += 1
        self._tell(Kind.REFUSED if known else Kind.UNKNOWN)
        if message.unique_key == self._doomed:
            self._doomed = ""
        if known:
            world.laws.send_refused(message.unique_key)
        self._message = None
        self.after(SECOND // 10, "after trouble", self._later)
