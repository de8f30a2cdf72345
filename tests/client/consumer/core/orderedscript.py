"""
A script for the ordered core: virtual time, and a broker that answers when the test says so.

After each event it checks what must always hold: at most one listener call per queue, the deliveries of one
generation in the order of their offsets, and nothing delivered, pulled or committed without a live lease.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orderlymq.consumer.core.events import (
    AskLocks,
    Assigned,
    DeadLetter,
    Deliver,
    Event,
    FindStart,
    Instruction,
    ListenerDone,
    LocksAnswered,
    LocksFailed,
    OrderedResult,
    ParkedFrom,
    Pull,
    Pulled,
    Release,
    Released,
    Report,
    SendBackResult,
    SetOffset,
    StartFound,
    Tick,
)
from orderlymq.consumer.core.ordered import OrderedConsumer
from orderlymq.consumer.core.queuestate import OrderedRules, Phase
from orderlymq.message import ReceivedMessage
from orderlymq_protocol.body.messagequeue import MessageQueue
from tests.client.messages import QUEUE, message


@dataclass
class Script:
    """Plays events to one core and keeps its effects.

    Attributes:
        has_worker: each delivery finds a free worker and begins; else the test begins it.
    """

    rules: OrderedRules = field(default_factory=OrderedRules)
    now: int = 0
    said: list[Instruction] = field(default_factory=list)
    running: dict[MessageQueue, Deliver] = field(default_factory=dict)
    order: dict[tuple[MessageQueue, int], int] = field(default_factory=dict)
    has_worker: bool = True

    def __post_init__(self) -> None:
        self.core = OrderedConsumer("G", self.rules)

    def play(self, event: Event) -> list[Instruction]:
        """Give an event to the core; check and return its effects."""
        said = self.core.handle(event, self.now)
        if isinstance(event, ListenerDone):
            self.running.pop(event.queue, None)
        for each in said:
            self._check(each)
        self.said += said
        return said

    def _check(self, instruction: Instruction) -> None:
        match instruction:
            case Deliver():
                assert instruction.queue not in self.running, "two listener calls for one queue"
                self.running[instruction.queue] = instruction
                state = self.core.queues[instruction.queue]
                assert state.holds(self.now), "delivered without a lease"
                offsets = [each.queue_offset for each in instruction.messages]
                assert offsets == sorted(offsets)
                assert not self.has_worker or self.core.maybe_start(instruction, self.now)
            case Pull():
                assert self.core.queues[instruction.queue].holds(self.now), "pulled without a lease"

    # what tests say

    def tick(self, ms: int) -> list[Instruction]:
        """Let time pass, and wake the core whenever it asked for it."""
        end = self.now + ms
        said: list[Instruction] = []
        for _ in range(10_000):
            wake = self.core.next_wake_ms()
            if wake is None or wake > end:
                break
            self.now = max(self.now, wake)
            said += self.play(Tick())
        else:
            raise AssertionError("the core asks to be woken without end")
        self.now = end
        return said

    def assign(self, *queues: MessageQueue) -> list[Instruction]:
        return self.play(Assigned(frozenset(queues)))

    def grant(
        self,
        *queues: MessageQueue,
        epoch: int | None = 1,
        asked_at: int | None = None,
        parked: Mapping[str, ParkedFrom] | None = None,
    ) -> list[Instruction]:
        at = self.now if asked_at is None else asked_at
        wanted = queues or (QUEUE,)
        holds = {} if parked is None else dict.fromkeys(wanted, parked)
        return self.play(LocksAnswered(wanted, dict.fromkeys(wanted, epoch), at, holds))

    def refuse(self, *queues: MessageQueue) -> list[Instruction]:
        return self.play(LocksAnswered(queues or (QUEUE,), {}, self.now))

    def fail_locks(self, *queues: MessageQueue) -> list[Instruction]:
        return self.play(LocksFailed(queues or (QUEUE,), "no answer"))

    def found(self, offset: int, queue: MessageQueue = QUEUE) -> list[Instruction]:
        return self.play(StartFound(queue, self.generation(queue), offset))

    def pulled(
        self, *offsets: int, queue: MessageQueue = QUEUE, next_offset: int | None = None
    ) -> list[Instruction]:
        following = next_offset if next_offset is not None else max(offsets, default=-1) + 1
        found = tuple(message(offset, queue=queue) for offset in offsets)
        return self.play(Pulled(queue, self.generation(queue), found, following))

    def pulled_messages(self, found: Sequence[ReceivedMessage]) -> list[Instruction]:
        following = found[-1].queue_offset + 1
        return self.play(Pulled(QUEUE, self.generation(), tuple(found), following))

    def done(
        self,
        result: OrderedResult | None = OrderedResult.SUCCESS,
        *,
        queue: MessageQueue = QUEUE,
        raised: str | None = None,
        suspend_ms: int = -1,
        auto_commit: bool = True,
    ) -> list[Instruction]:
        deliver = self.running[queue]
        return self.play(
            ListenerDone(
                queue,
                deliver.generation,
                deliver.delivery,
                result,
                raised,
                suspend_ms=suspend_ms,
                auto_commit=auto_commit,
            )
        )

    def copied(
        self,
        *,
        ok: bool = True,
        queue: MessageQueue = QUEUE,
        parked: ParkedFrom | None = None,
        released: bool = False,
    ) -> list[Instruction]:
        copies = [each for each in self.said if isinstance(each, DeadLetter)]
        last = copies[-1]
        place = (queue, last.generation, last.message.queue_offset)
        return self.play(SendBackResult(*place, ok, parked=parked, released=released))

    @property
    def letters(self) -> list[tuple[int, ParkedFrom | None]]:
        """The offset of every dead letter so far, and the message that parks its key."""
        return [
            (said.message.queue_offset, said.parked)
            for said in self.said
            if isinstance(said, DeadLetter)
        ]

    def running_at(self, offset: int = 0, *, epoch: int | None = 1) -> None:
        """Bring QUEUE to the state in which it is consumed from *offset* on."""
        self.assign(QUEUE)
        self.grant(epoch=epoch)
        self.found(offset)

    # what tests look at

    def generation(self, queue: MessageQueue = QUEUE) -> int:
        return self.core.queues[queue].fetcher.generation

    def phase(self, queue: MessageQueue = QUEUE) -> Phase | None:
        state = self.core.queues.get(queue)
        return None if state is None else state.phase

    @property
    def delivered(self) -> list[list[int]]:
        """The offsets of every delivery so far."""
        return [
            [each.queue_offset for each in said.messages]
            for said in self.said
            if isinstance(said, Deliver)
        ]

    @property
    def committed(self) -> list[int]:
        return [said.offset for said in self.said if isinstance(said, SetOffset)]

    def reports(self, part: str) -> list[str]:
        return [said.text for said in self.said if isinstance(said, Report) and part in said.text]


def without_reports(said: list[Instruction]) -> list[Instruction]:
    """Return the effects without log lines."""
    return [each for each in said if not isinstance(each, Report)]


__all__ = ["AskLocks", "FindStart", "Release", "Released", "Script", "without_reports"]
