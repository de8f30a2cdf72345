"""
Raft groups, name servers, producers and an ordered consumer group of one expanding topic, without processes.

The brokers follow the rules of the real ones (orderlymq_broker.state.topics.expansionphases), as
tests/broker/processors/topics/test_expansionrequests.py checks. Producers choose a queue by the list that they know; SDK
producers say which list that is, others may use an old one for up to ROUTE_AGE. The check is `delivered`: each key's
messages in the order of sends.
"""

from dataclasses import dataclass, field
from random import Random

from orderlymq_operator.plan.actions import (
    AbortExpansion,
    ExpansionAction,
    ExpansionPhase,
    FenceTopic,
    ObservedBlocker,
    ObservedExpansion,
    PublishTopic,
    PutOrderConfig,
    SwitchTopic,
)
from orderlymq_operator.plan.expansion import ExpansionRequest, ExpansionState, plan_expansion
from orderlymq_operator.plan.placement import parse_order_text

ROUTE_AGE_MS = 30_000
LIMIT_MS = 20_000
PROPAGATION_MS = 40_000


class Refused(Exception):  # noqa: N818 - an answer, not a failure
    """A broker refused, and nothing changed."""


@dataclass
class Broker:
    """One raft group's part of the topic; it has none if *writes* is 0."""

    queues: list[list[tuple[int, int]]] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    writes: int = 0
    registered: int = 0
    phase: ExpansionPhase = "open"
    total: int = 0
    next_total: int = 0
    next_queues: int = 0
    attempt: int = 0
    since_ms: int = 0
    limit_ms: int = 0
    reason: str = ""
    token: int = 0

    def lag(self) -> list[tuple[int, int]]:
        return [
            (number, len(queue) - self.committed[number])
            for number, queue in enumerate(self.queues)
            if len(queue) > self.committed[number]
        ]

    def observed(self, now_ms: int, online: bool) -> ObservedExpansion | None:
        if not self.writes:
            return None
        who = "1 member online" if online else "nobody online"
        return ObservedExpansion(
            self.phase,
            self.total,
            self.next_total,
            self.next_queues,
            self.writes,
            self.attempt,
            now_ms - self.since_ms,
            self.reason,
            (),
            tuple(
                ObservedBlocker(
                    "billing", number, left, f"group billing has {left} left to consume, {who}"
                )
                for number, left in self.lag()
            ),
            ("billing",),
        )

    def move(self, phase: ExpansionPhase, now_ms: int) -> None:
        self.phase, self.since_ms = phase, now_ms

    def perform(self, action: ExpansionAction, now_ms: int) -> None:  # noqa: C901 - one per kind
        match action:
            case FenceTopic(_, _, attempt, total, queues, limit_ms):
                if self.phase == "fenced" and self.attempt == attempt:
                    return
                if self.phase != "open" or attempt <= self.attempt or total <= self.total:
                    raise Refused(str(action))
                if queues < self.writes or not self.writes:
                    raise Refused(str(action))
                self.move("fenced", now_ms)
                self.attempt, self.next_total, self.next_queues = attempt, total, queues
                self.limit_ms, self.reason = limit_ms, ""
            case AbortExpansion(_, _, attempt, reason):
                if self.attempt != attempt or self.phase not in ("fenced", "open"):
                    raise Refused(str(action))
                self.lift(reason, now_ms)
            case SwitchTopic(_, _, attempt, total, config):
                if self.total >= total:
                    return
                if self.writes and (
                    self.phase != "fenced"
                    or (self.attempt, self.next_total) != (attempt, total)
                    or self.lag()
                ):
                    raise Refused(str(action))
                self.grow(config.queues)
                self.total, self.attempt = total, attempt
                self.next_total = self.next_queues = 0
                self.move("switched", now_ms)
            case PublishTopic(_, _, total, propagation_ms):
                if self.total != total:
                    raise Refused(str(action))
                if self.phase == "switched":
                    self.limit_ms = propagation_ms
                    self.move("settling", now_ms)
            case PutOrderConfig():
                raise AssertionError("not a broker's")

    def grow(self, queues: int) -> None:
        assert queues >= self.writes, "queues were taken away"
        while len(self.queues) < queues:
            self.queues.append([])
            self.committed.append(0)
        self.writes = queues

    def lift(self, reason: str, now_ms: int) -> None:
        if self.phase == "fenced":
            self.reason = reason or "given up"
            self.next_total = self.next_queues = 0
            self.move("open", now_ms)

    def tick(self, now_ms: int) -> None:
        if self.phase == "fenced" and now_ms - self.since_ms >= self.limit_ms:
            self.lift("its leader waited long enough", now_ms)
        if self.phase == "settling" and now_ms - self.since_ms >= self.limit_ms:
            self.move("open", now_ms)
        self.registered = self.writes

    def accepts(self, said: int | None) -> bool:
        if self.phase == "fenced":
            return False
        if said is not None:
            return not self.total or said == self.total
        return self.phase == "open"


@dataclass
class Producer:
    """Sends one key's messages, each after the previous one is stored."""

    key: int
    says: bool
    layout: dict[str, int]
    asked_ms: int = 0
    sent: int = 0


class ExpandingWorld:
    """A cluster in which a topic expands while a Random decides what happens."""

    def __init__(self, random: Random, groups: int, queues: int, *, name_servers: int = 2) -> None:
        self.random = random
        self.now_ms = 0
        self.online = True
        self.slow = False
        self.down: set[int] = set()
        self.leaving: frozenset[str] = frozenset()
        self.brokers = {f"broker-{number}": Broker() for number in range(groups)}
        layout: dict[str, int] = {}
        for number in range(queues):
            name = f"broker-{number % groups}"
            layout[name] = layout.get(name, 0) + 1
        for name, count in layout.items():
            self.brokers[name].grow(count)
            self.brokers[name].registered = count
        self.lists = [dict(layout) for _ in range(name_servers)]
        self.producers = [
            Producer(key, says=bool(key % 2), layout=dict(layout)) for key in range(8)
        ]
        self.delivered: dict[int, list[int]] = {}
        self.trace: list[str] = []
        self.refusals = 0

    # -- what the operator does --------------------------------------------------------------------

    def observed(self) -> ExpansionState:
        groups = {name: b.observed(self.now_ms, self.online) for name, b in self.brokers.items()}
        lists = [None if n in self.down else dict(found) for n, found in enumerate(self.lists)]
        # A name server's route says that groups outside the list take no writes.
        routes = [
            None
            if number in self.down
            else {name: self.brokers[name].registered for name in listed}
            for number, listed in enumerate(self.lists)
        ]
        return ExpansionState(groups, tuple(lists), tuple(routes), self.leaving)

    def look(self, request: ExpansionRequest, *, dies: bool = False) -> str | None:
        """Plan and carry out, or die in between; return the reported phase."""
        plan = plan_expansion(request, self.observed())
        actions = list(plan.actions)
        if dies and actions:
            actions = actions[: self.random.randrange(len(actions))]
        for action in actions:
            try:
                self.perform(action)
            except Refused:
                break  # The next look decides again.
            self.trace.append(f"{self.now_ms}: {action}")
        return plan.status.phase if plan.status is not None else None

    def perform(self, action: ExpansionAction) -> None:
        if not isinstance(action, PutOrderConfig):
            self.brokers[action.group].perform(action, self.now_ms)
            return
        layout = parse_order_text(action.value)
        assert all(self.brokers[name].total == sum(layout.values()) for name in layout), (
            "the list was published before every raft group had switched"
        )
        for number in range(len(self.lists)):
            if number in self.down:
                raise Refused("a name server does not answer")
            self.lists[number] = dict(layout)

    # -- what everybody else does ------------------------------------------------------------------

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        for broker in self.brokers.values():
            broker.tick(self.now_ms)
        for producer in self.producers:
            if self.now_ms - producer.asked_ms >= ROUTE_AGE_MS:
                self.ask_route(producer)

    def ask_route(self, producer: Producer) -> None:
        alive = [number for number in range(len(self.lists)) if number not in self.down]
        if alive:
            producer.layout = dict(self.lists[self.random.choice(alive)])
            producer.asked_ms = self.now_ms

    def send(self, producer: Producer) -> bool:
        queues = [(n, q) for n in sorted(producer.layout) for q in range(producer.layout[n])]
        name, number = queues[producer.key * 2_654_435_761 % len(queues)]
        broker = self.brokers[name]
        if not broker.accepts(len(queues) if producer.says else None):
            self.refusals += 1
            if producer.says:
                self.ask_route(producer)
            return False
        broker.queues[number].append((producer.key, producer.sent))
        producer.sent += 1
        return True

    def consume(self) -> None:
        """Let the group consume some messages of a queue; each queue has one consumer, in order."""
        waiting = [
            (broker, number) for broker in self.brokers.values() for number, _ in broker.lag()
        ]
        if not waiting or not self.online:
            return
        broker, number = self.random.choice(waiting)
        queue, start = broker.queues[number], broker.committed[number]
        end = start + 1 if self.slow else self.random.randint(start + 1, len(queue))
        for key, sequence in queue[start:end]:
            self.delivered.setdefault(key, []).append(sequence)
        broker.committed[number] = end

    def check(self) -> None:
        """Check the order per key, and the expansion's own rules."""
        for key, sequences in self.delivered.items():
            assert sequences == sorted(sequences), (key, sequences, self.trace)
        for found in self.lists:
            for name, count in found.items():
                assert self.brokers[name].writes >= count, "a list names queues that do not exist"
