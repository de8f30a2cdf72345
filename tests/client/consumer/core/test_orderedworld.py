"""
The ordered core in a random world: a broker that answers late or never, another member, rebalances, listeners that fail,
and workers that are late.

The broker is a simple twin of the real one: one queue, its holder, and an epoch that rises with each new holder. Each
step checks that no delivery and no commit passes a message that is not done.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Final

import pytest

from orderlymq.consumer.core.events import (
    AskLocks,
    Assigned,
    DeadLetter,
    Deliver,
    DeliveryDropped,
    Event,
    FindStart,
    ListenerDone,
    LocksAnswered,
    LocksFailed,
    OrderedResult,
    Pull,
    Pulled,
    PullFailed,
    Release,
    Released,
    SendBackResult,
    SetOffset,
    StartFailed,
    StartFound,
    StopPull,
    Tick,
)
from orderlymq.consumer.core.ordered import OrderedConsumer
from orderlymq.consumer.core.queuestate import OrderedRules
from orderlymq_protocol.integers import INT32_MAX
from tests.client.messages import QUEUE, messages

STEPS: Final = 400
STORED: Final = 60
ALL: Final = frozenset([QUEUE])


@dataclass
class Question:
    """A lock request: when it was sent, and the epoch that the broker granted (0 if none)."""

    asked_ms: int
    epoch: int | None = None


@dataclass
class World:
    """One queue, our member and another one."""

    chance: Random
    manual: bool
    tries: int
    now: int = 0
    holder: str = ""
    last: str = ""
    epoch: int = 0
    lease_end: int = 0
    committed: int = 0
    done: set[int] = field(default_factory=set)  # Done for good.
    provisional: set[int] = field(default_factory=set)  # Done, until they are committed.
    locks: list[Question] = field(default_factory=list)
    starts: list[FindStart] = field(default_factory=list)
    pull: Pull | None = None
    waiting: list[Deliver] = field(default_factory=list)  # They wait for a worker.
    delivery: Deliver | None = None
    releases: list[Release] = field(default_factory=list)
    letters: list[DeadLetter] = field(default_factory=list)
    remembered: SetOffset | None = None
    leaving: list[SetOffset] = field(default_factory=list)

    def __post_init__(self) -> None:
        rules = OrderedRules(batch_max=self.chance.choice([1, 3]), reconsume_max=self.tries)
        self.core = OrderedConsumer("G", rules)

    # -- our member

    def play(self, event: Event) -> None:
        for said in self.core.handle(event, self.now):
            match said:
                case AskLocks():
                    self.locks.append(Question(self.now))
                case FindStart():
                    self.starts.append(said)
                case Pull():
                    self.pull = said
                case StopPull():
                    self.pull = None
                case Deliver():
                    self.waiting.append(said)
                case SetOffset():
                    self.remembered = said
                case Release():
                    assert self.delivery is None, "released while a listener runs"
                    self.releases.append(said)
                case DeadLetter():
                    self.letters.append(said)
                case _:
                    pass

    def check(self, end: int, what: str) -> None:
        missing = set(range(end)) - self.done - self.provisional
        assert not missing, f"{end} is {what} although {sorted(missing)} are not done"

    def worker_is_free(self) -> None:
        deliver = self.waiting.pop(0)
        if not self.core.maybe_start(deliver, self.now):
            self.play(DeliveryDropped(QUEUE, deliver.generation, deliver.delivery))
            return
        assert self.delivery is None, "two calls at a time"
        self.delivery = deliver
        self.check(deliver.messages[0].queue_offset, "delivered")

    def listener_returns(self) -> None:
        assert self.delivery is not None
        call, self.delivery = self.delivery, None
        results = [OrderedResult.SUCCESS] * 3 + [OrderedResult.SUSPEND]
        results += [OrderedResult.COMMIT, OrderedResult.ROLLBACK] if self.manual else []
        result = self.chance.choice(results)
        offsets = {each.queue_offset for each in call.messages}
        match result:
            case OrderedResult.SUCCESS if not self.manual:
                self.done |= offsets
            case OrderedResult.SUCCESS:
                self.provisional |= offsets
            case OrderedResult.COMMIT:
                self.done |= offsets | self.provisional
            case OrderedResult.ROLLBACK:
                self.provisional.clear()
            case OrderedResult.SUSPEND:
                pass
        self.play(
            ListenerDone(
                QUEUE,
                call.generation,
                call.delivery,
                result,
                None,
                suspend_ms=self.chance.choice([-1, 10]),
                auto_commit=not self.manual,
            )
        )

    def time_passes(self) -> None:
        end = self.now + self.chance.choice([1, 50, 1_000, 3_000, 6_000])
        while (wake := self.core.next_wake_ms()) is not None and wake <= end:
            self.now = max(self.now, wake)
            self.play(Tick())
        self.now = end

    # -- the broker

    def lock_is_asked(self, question: Question) -> None:
        if self.holder == "":
            self.epoch += self.last != "we"
            self.holder = self.last = "we"
        if self.holder == "we":
            self.lease_end = self.now + 15_000
        question.epoch = self.epoch if self.holder == "we" else 0

    def lock_is_answered(self, question: Question) -> None:
        self.locks.remove(question)
        if question.epoch is None:
            self.play(LocksFailed((QUEUE,), "no answer"))
        else:
            granted = {QUEUE: question.epoch} if question.epoch else {}
            self.play(LocksAnswered((QUEUE,), granted, question.asked_ms))

    def start_is_answered(self) -> None:
        ask = self.starts.pop(0)
        if self.holder == "we":
            self.play(StartFound(QUEUE, ask.generation, self.committed))
        else:
            self.play(StartFailed(QUEUE, ask.generation, "no answer"))

    def pull_is_answered(self) -> None:
        assert self.pull is not None
        ask, self.pull = self.pull, None
        if self.holder != "we" or ask.epoch != self.epoch or self.chance.random() < 0.1:
            self.play(PullFailed(QUEUE, ask.generation, "refused", self.chance.random() < 0.5))
            return
        end = min(ask.offset + self.chance.choice([0, 1, 3]), max(ask.offset, STORED))
        self.play(Pulled(QUEUE, ask.generation, messages(*range(ask.offset, end)), end))

    def commit(self, said: SetOffset) -> None:
        if said.epoch == self.epoch and self.holder != "other" and said.offset > self.committed:
            missing = set(range(said.offset)) - self.done
            assert not missing, f"{said.offset} is committed although {missing} are not done"
            self.committed = said.offset

    def queue_is_released(self) -> None:
        release = self.releases.pop(0)
        if release.commit and self.remembered is not None:
            self.commit(self.remembered)
        self.remembered = None
        if release.unlock and self.holder == "we":
            self.holder = ""
        self.play(Released(QUEUE))

    def letter_is_answered(self) -> None:
        letter = self.letters.pop(0)
        is_stored = self.chance.random() < 0.7
        if is_stored:
            self.done.add(letter.message.queue_offset)
        self.play(SendBackResult(QUEUE, letter.generation, letter.message.queue_offset, is_stored))

    # -- the other member

    def other_takes(self) -> None:
        self.holder = self.last = "other"
        self.epoch += 1
        self.provisional.clear()

    def other_works(self) -> None:
        self.done.add(self.committed)
        self.committed += 1

    # -- what happens

    def step(self) -> None:  # noqa: C901, PLR0912 - one arm per thing that may happen
        can = ["time"] * 3 + ["assign", "persist"]
        can += ["ask", "answer", "answer"] * 2 * bool(self.locks)
        can += ["start"] * 3 * bool(self.starts) + ["pull"] * 3 * bool(self.pull)
        can += ["worker"] * 2 * bool(self.waiting)
        can += ["listener"] * bool(self.delivery) + ["release"] * 2 * bool(self.releases)
        can += ["letter"] * 2 * bool(self.letters) + ["commit"] * bool(self.leaving)
        can += {"": ["other takes"], "other": ["other works", "other ends"], "we": ["lapse"]}[
            self.holder
        ]
        match self.chance.choice(can):
            case "time":
                self.time_passes()
            case "assign" if self.chance.random() < 0.3:
                self.play(Assigned(self.chance.choice([ALL, frozenset()])))
            case "ask":
                self.lock_is_asked(self.chance.choice(self.locks))
            case "answer":
                question = self.chance.choice(self.locks)
                if question.epoch is not None or self.chance.random() < 0.2:
                    self.lock_is_answered(question)
            case "start":
                self.start_is_answered()
            case "pull":
                self.pull_is_answered()
            case "worker":
                self.worker_is_free()
            case "listener":
                self.listener_returns()
            case "release":
                self.queue_is_released()
            case "letter":
                self.letter_is_answered()
            case "persist" if self.remembered is not None:
                self.leaving.append(self.remembered)
            case "commit":
                self.commit(self.leaving.pop(0))
            case "other takes":
                self.other_takes()
            case "other works" if self.committed < STORED:
                self.other_works()
            case "other ends":
                self.holder = ""
            case "lapse" if self.now > self.lease_end:
                self.holder = ""


@pytest.mark.parametrize("tries", [2, INT32_MAX])
@pytest.mark.parametrize("manual", [False, True])
def test_nothing_is_passed_over_whatever_comes_late(manual: bool, tries: int) -> None:
    """Law: deliveries and commits never pass a message that is not done, with and without auto_commit."""
    reached = 0
    for seed in range(200):
        world = World(Random(f"{seed}/{manual}/{tries}"), manual, tries)
        world.play(Assigned(ALL))
        for _ in range(STEPS):
            world.step()
        reached = max(reached, world.committed)

    assert reached > STORED // 3
