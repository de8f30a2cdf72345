"""
One run: a broker group, its producers and consumers, a safety phase with faults, a liveness phase without.

Rule: after the faults end, every acknowledged message is delivered to every consumer group within `LIVENESS_US`, and
the history of the whole run satisfies the oracle. `simulate` runs one seed.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Final

from orderlymq.oracle.verdict import Event, Kind, judge
from orderlymq_broker.core.effects import Propose
from orderlymq_broker.processors.fetch.read import read_queue
from orderlymq_broker.state.records import GroupSet, Record, TopicSet
from orderlymq_protocol.message.properties import UNIQ_KEY, decode_properties
from orderlymq_protocol.message.record import iter_records
from orderlymq_protocol.message.sysflag import TRANSACTION_COMMIT
from tests.sim.broker.nameservers import NameServer
from tests.sim.broker.replica import Replica
from tests.sim.broker.router import GroupAddress
from tests.sim.clients.accounts import ACCOUNTS, OPERATOR, OPERATOR_SECRET, Administrator
from tests.sim.clients.auditor import Auditor
from tests.sim.clients.client import Client
from tests.sim.clients.consumer import Consumer
from tests.sim.clients.grower import GROUP, Grower
from tests.sim.clients.laneadmin import LaneAdministrator
from tests.sim.clients.lanemember import LaneMember
from tests.sim.clients.picker import Picker
from tests.sim.clients.producer import Producer
from tests.sim.clients.recycler import Recycler
from tests.sim.clients.transactions import Deal, Dealer
from tests.sim.clients.zombie import Zombie
from tests.sim.faults import TROUBLES, Faults
from tests.sim.history import History
from tests.sim.invariants.disks import check_disks
from tests.sim.invariants.lanes import GROUP as LANE_GROUP
from tests.sim.invariants.lanes import TRIES_MAX
from tests.sim.invariants.safety import LawBroken, Laws
from tests.sim.network import Network
from tests.sim.plan import Plan, draw
from tests.sim.timeline import MS, SECOND, Process, Timeline

TOPIC: Final = "orders"
LIVENESS_US: Final = 60 * SECOND
# Round trips of a letter behind a parked key: the broker is asked, then the copy leaves, and on slow links a majority
# confirms the leader before it commits each of the two.
LETTER_ROUND_TRIPS: Final = 4
_Starter = (
    Producer | Dealer | Consumer | Auditor | Recycler | LaneMember | LaneAdministrator | Picker
)
QUIET_US: Final = 300 * MS  # time that the raft group needs to bring all members to one index
START_MAX_US: Final = 30 * SECOND


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one seed; *check* is empty if all laws held."""

    seed: int
    check: str
    text: str
    trace: str
    digest: str
    simulated_s: float
    took_s: float
    steps: int
    coverage: Counter[str]
    counts: dict[str, int]
    events: tuple[Event, ...] = ()

    @property
    def ok(self) -> bool:
        """Return whether all laws held."""
        return not self.check


class World:
    """All participants of a run."""

    def __init__(
        self, seed: int, *, steps: int | None = None, changes: Mapping[str, Any] | None = None
    ) -> None:
        self.timeline = Timeline(seed)
        self.plan = plan_of(seed, changes)
        self.topic = TOPIC
        self.topic_id = -1
        self.coverage: Counter[str] = Counter()
        self.network = Network(self.timeline)
        self.history = History(self.timeline)
        self.address = GroupAddress() if self.plan.bind else None
        # Operators' requests are always signed, even if other clients' are not.
        self.secrets = {OPERATOR: OPERATOR_SECRET}
        if self.plan.access:
            self.secrets |= {each: f"secret of {each}" for each in ACCOUNTS}
        self.deals: dict[str, Deal] = {}
        self.waiting: set[str] = set()  # acknowledged messages with a delay or a time
        self.zombies: list[Zombie] = []
        self.growers: list[Grower] = []
        self._wanted_queues = self.plan.queues
        self.name_servers = [
            NameServer(self, number) for number in range(1, self.plan.name_servers + 1)
        ]
        self.founders = tuple(range(1, self.plan.replicas + 1))
        self.replicas: dict[int, Replica] = {}
        self.removed: set[int] = set()
        self.members: set[int] = set(self.founders)
        self._membership_index = 0
        self.consumers: list[Consumer] = []
        self.laws = Laws(self)
        for node in self.founders:
            self.replicas[node] = Replica(self, node)
        self.producers = [Producer(self, number, 2) for number in range(1, self.plan.producers + 1)]
        for number in range(1, self.plan.consumers + 1):
            self.consumers.append(Consumer(self, "billing", number, plain=False))
        for number in range(1, self.plan.plain_consumers + 1):
            self.consumers.append(Consumer(self, "audit", number, plain=True))
        self.dealers = [Dealer(self, number) for number in range(1, self.plan.dealers + 1)]
        self.recyclers = [Recycler(self, each) for each in (1, 2)] if self.plan.recycled else []
        self.pickers = [Picker(self)] if self.plan.recycled and self.plan.lanes else []
        self.lane_members = [LaneMember(self, number + 1) for number in range(self.plan.lanes)]
        has_changes = self.plan.lanes and (self.plan.lane_letters or self.plan.lane_changes)
        self.lane_administrators = [LaneAdministrator(self)] if has_changes else []
        self.tool = Client(self, "tool", "10.0.3.1")
        self.tool.account = OPERATOR
        self.administrator = Administrator(self)
        self.auditors = [Auditor(self, replica) for replica in self.replicas.values()]
        self.calm = False
        self._applied_when_delivered = 0
        self._steps = steps
        self._faults = Faults(self)

    # -- what parts of it ask

    def restart_later(self, replica: Replica) -> None:
        """Start a replica again after a random time."""
        self.restart_after(self.timeline.random.randrange(100 * MS, 3 * SECOND), replica)

    def restart_after(self, delay_us: int, replica: Replica) -> None:
        """Start a replica again."""

        def start() -> None:
            if not replica.alive and replica.id not in self.removed:
                self.coverage["replica restarted"] += 1
                replica.start()

        self.timeline.after(delay_us, "restart", start)

    def process_ended(self, replica: Replica, *, silent: bool) -> None:
        """Let the clients of a dead process notice, unless its machine is gone as well."""
        if silent:
            return
        for client in self._clients():
            link = client.link
            if link is None or link.server is not replica:
                continue
            if client.alive and not self.network.is_cut(replica.name, client.name):
                client.after(MS, "reset", partial(client.link_lost, link))
        for peer in self.replicas.values():
            if peer.alive and not self.network.is_cut(replica.name, peer.name):
                peer.peer_died(replica.id)

    def _clients(self) -> list[Client]:
        return [
            *self.producers,
            *self.dealers,
            *self.consumers,
            *self.auditors,
            *self.zombies,
            *self.growers,
            *self.recyclers,
            *self.pickers,
            *self.lane_members,
            *self.lane_administrators,
            self.tool,
            self.administrator,
        ]

    def leader_began(self, replica: Replica) -> None:
        """Count a change of leader; create the topic if there is none yet."""
        self.coverage["leader elected"] += 1
        if self.laws.model.locks:
            self.coverage["leader changed under locks"] += 1
        if replica.state.topics.get(self.topic) is None:
            record = TopicSet(
                self.topic,
                self.plan.queues,
                self.plan.queues,
                order=True,
                only_if_absent=True,
            )
            policy = "HoldKey" if self.plan.hold_keys else "Continue"
            records: list[Record] = [record, GroupSet("billing", on_dead_letter=policy)]
            if self.plan.lanes:
                letters = self.plan.lane_letters
                records.append(
                    GroupSet(
                        LANE_GROUP,
                        concurrency="Key",
                        retry_max_times=TRIES_MAX if letters else -1,
                        on_dead_letter=letters or "Continue",
                    )
                )
            replica.loop.submit([Propose(records)])

    def acknowledged(self, queue: int) -> None:
        """If two replicas believe to lead, ask both at the same time: only one of them knows the new send."""
        leading = [
            each for each in self.auditors if each.replica.alive and each.replica.loop.serving
        ]
        if len(leading) > 1:
            self.coverage["two replicas believe to lead"] += 1
            for auditor in leading:
                auditor.ask_end(queue)

    def join(self, node: int) -> None:
        """Start a replica that waits to be added."""
        self.replicas[node] = Replica(self, node, joins=True)
        self.replicas[node].start()

    def membership_applied(self, index: int, members: set[int]) -> None:
        """Stop replicas that are no longer members of the raft group."""
        if index <= self._membership_index:
            return
        self._membership_index = index
        self.coverage["membership changed"] += 1
        gone = self.members - members
        self.members = members
        for node in sorted(gone):
            self.removed.add(node)
            self.timeline.after(SECOND, "removed", self.replicas[node].crash)

    # -- the run

    def run(self) -> None:
        """Run all phases; raises LawBroken."""
        for server in self.name_servers:
            server.start()
            server.put_queue_list(self.topic, f"{GROUP}:{self.plan.queues}")
        self._found()
        self.tool.begin()
        self._until(self._is_up, START_MAX_US, "liveness", "no leader at the start")
        if self.plan.access:
            self.administrator.start()
            ready = lambda: self.administrator.is_ready  # noqa: E731 - read where it is used
            self._until(ready, START_MAX_US, "liveness", "no accounts at the start")
        starters: tuple[_Starter, ...] = (
            *self.producers,
            *self.dealers,
            *self.consumers,
            *self.auditors,
            *self.recyclers,
            *self.pickers,
            *self.lane_members,
            *self.lane_administrators,
        )
        for process in starters:
            process.start()
        for number, queues in enumerate(self.plan.growths, start=1):
            if queues > self.plan.queues:
                when = number * self.plan.safety_us // (len(self.plan.growths) + 2)
                self.timeline.after(when, "more queues", partial(self._grow, queues))
        self._faults.start()
        if not self._pass(self.plan.safety_us):
            return
        self._faults.heal()
        for member in self.lane_members:
            member.heal()
        # The last message of each queue is committed, and so is everything consumed before it.
        self.calm = True
        for number, producer in enumerate(self.producers):
            producer.finish([] if number else list(range(self.laws.growth.queues)))
        for dealer in self.dealers:
            dealer.finish()
        self.history.event(Kind.FAULT, detail="the faults end")
        self._until(self._is_done, self._liveness_us(), "liveness", "not all is delivered")
        self._pass(QUIET_US)
        # A send with unknown outcome may have been stored meanwhile.
        self._until(self._is_done, self._liveness_us(), "liveness", "not all is delivered")
        self._conclude()

    def _found(self) -> None:
        """Start the replicas; some end again immediately, some crash while the others elect."""
        random = self.timeline.random
        for number, replica in enumerate(self.replicas.values()):
            replica.start()
            if number < self.plan.founding:
                delay_us = 0 if random.random() < 0.5 else random.randrange(200 * MS, 2 * SECOND)
                self.timeline.after(delay_us, "crash", partial(self._crash_early, replica))

    def _crash_early(self, replica: Replica) -> None:
        if replica.alive and not any(each.loop.serving for each in self.replicas.values()):
            self.coverage["crash while the group begins"] += 1
            replica.crash()
            self.restart_later(replica)

    def _grow(self, queues: int) -> None:
        """Make an operator want more queues, unless the faults have ended."""
        if not self.calm:
            self._wanted_queues = queues
            for former in self.growers:
                former.crash()
            self.next_operator()

    def next_operator(self) -> None:
        """Start the next operator process."""
        grower = Grower(self, len(self.growers) + 1)
        self.growers.append(grower)
        grower.start(self._wanted_queues)

    def _pass(self, time_us: int) -> bool:
        return self.timeline.run(self.timeline.now + time_us, self._steps)

    def _until(self, done: Callable[[], bool], limit_us: int, check: str, text: str) -> None:
        deadline = self.timeline.now + limit_us
        while not done():
            if self.timeline.now >= deadline:
                self.laws.broken(check, f"{text} after {limit_us / SECOND:.0f} s; {self._state()}")
            if not self._pass(50 * MS):
                return

    def _liveness_us(self) -> int:
        """Return the longest time until all messages are delivered.

        The messages behind a parked key in a queue leave one letter after the other, so with slow links the time
        grows with the queue. In a run with `links` of 400 ms each letter took 0.9 s, and a hundred waited.
        """
        # A member dies several times of each deadly message, and starts again a second later.
        longest_us = LIVENESS_US * (2 if self.plan.lane_deadly else 1)
        if not self.plan.hold_keys:
            return longest_us
        longest = max(
            self.laws.model.ends[self.topic_id, each] for each in range(self.laws.growth.queues)
        )
        return longest_us + longest * LETTER_ROUND_TRIPS * int(self.plan.links * MS)

    def _is_up(self) -> bool:
        for replica in self.replicas.values():
            topic = replica.state.topics.get(self.topic)
            if replica.loop.serving and topic is not None:
                self.topic_id = topic.id
                return True
        return False

    def _is_done(self) -> bool:
        if not self._all_is_delivered():
            self._applied_when_delivered = 0  # a send with unknown outcome was stored after all
            return False
        return self._have_caught_up()

    def _all_is_delivered(self) -> bool:
        if not any(each.alive and each.loop.serving for each in self.replicas.values()):
            return False
        busy = [each for each in self.producers if not each.is_idle]
        if busy or not all(each.is_idle for each in self.dealers):
            return False
        model = self.laws.model
        if any(replica.state.transactions.open for replica in self._members()):
            return False
        if any((self.topic_id, key) not in model.places for key in self.waiting):
            return False
        groups = sorted({consumer.group for consumer in self.consumers})
        for queue in range(self.laws.growth.queues):
            end = model.ends[self.topic_id, queue]
            if self.lane_members and not self.laws.lanes.is_done(queue, end):
                return False
            if any(replica.state.lanes.count_of(LANE_GROUP) for replica in self._members()):
                return False
            for group in groups:
                # A listener with manual commits may wait for a message that no producer sends any more.
                kept = max(each.keeps_back(queue) for each in self.consumers if each.group == group)
                if end and model.offsets.get((group, self.topic, queue), 0) + kept < end:
                    return False
        return True

    def _have_caught_up(self) -> bool:
        """Return whether all members have applied what one of them had applied when all was delivered.

        With slow links their indexes may never be equal at one moment, because renewals of locks continue.
        """
        applied = [replica.state.applied_index for replica in self._members()]
        if len(set(applied)) == 1:
            return True
        self._applied_when_delivered = self._applied_when_delivered or max(applied)
        return min(applied) >= self._applied_when_delivered

    def _members(self) -> list[Replica]:
        return [each for node, each in self.replicas.items() if node in self.members]

    def _state(self) -> str:
        """Return the facts that a reader of a finding needs first."""
        lines = [
            f"{each.name}: alive={each.alive} role={each.node.role.value} term={each.node.term} "
            f"serving={each.loop.serving} applied={each.state.applied_index}"
            for each in self.replicas.values()
        ]
        lines += [f"idle={[each.is_idle for each in self.producers]}"]
        lines += [f"ends={dict(self.laws.model.ends)} offsets={self.laws.model.offsets}"]
        lines += [f"locks={self.laws.model.locks}"]
        places = self.laws.model.places
        waiting = [key for key in sorted(self.waiting) if (self.topic_id, key) not in places]
        lines += [f"halves={self.laws.model.halves} waiting={waiting}"]
        for consumer in (each for each in self.consumers if hasattr(each, "client_id")):
            states = [
                f"{queue.queue_id}:{state.phase.name},{state.fetcher.next_offset}"
                for queue, state in consumer.core.queues.items()
            ]
            lines.append(f"{consumer.client_id}: {states}")
        return "\n  ".join(lines)

    def _conclude(self) -> None:
        """Read the log and the disks at the end, compare the replicas, and ask the oracle."""
        self.laws.compare_all()
        check_disks(self)
        if self.lane_members:
            for replica in self._members():
                self.laws.lanes.conclude(replica)
        for deal in self.deals.values():
            self.laws.ensure(
                not deal.told
                or ((self.topic_id, deal.unique) in self.laws.model.places)
                == (deal.choice == TRANSACTION_COMMIT),
                "transaction",
                f"in the end {deal} stands at "
                f"{self.laws.model.places.get((self.topic_id, deal.unique))}",
            )
        leader = next(each for each in self.replicas.values() if each.alive and each.loop.serving)
        topic = leader.state.topics.get(self.topic)
        assert topic is not None
        for queue_id in range(self.laws.growth.queues):
            stored = topic.queues.get(queue_id)
            offset = 0 if stored is None else stored.min_offset
            while True:
                reading = read_queue(leader.store, stored, offset)
                if not reading.messages:
                    break
                for message in iter_records(b"".join(reading.messages)):
                    properties = decode_properties(message.properties)
                    self.history.event(
                        Kind.STORED,
                        topic=self.topic,
                        queue=str(queue_id),
                        offset=message.queue_offset,
                        message=properties[UNIQ_KEY],
                    )
                offset = reading.next_offset
        self.history.event(Kind.SCANNED, topic=self.topic)
        for group in sorted({consumer.group for consumer in self.consumers}):
            self.history.event(Kind.DRAINED, group=group, topic=self.topic)
        verdict = judge(self.history.events)
        if not verdict.kept:
            finding = verdict.findings[0]
            self.laws.broken(
                f"oracle: {finding.defect.value}",
                f"{finding.message} in queue {finding.queue}: {finding.explanation}",
            )

    def collect(self) -> None:
        """Add the counters of the cores."""
        for replica in self.replicas.values():
            if not hasattr(replica, "core"):
                continue
            for name, number in replica.core.context.counters.items():
                self.coverage[f"core: {name}"] += number
            self.coverage["uncommitted tail cut"] += replica.cuts
            self.coverage["proposal lost"] += replica.loop.figures.proposals_lost


def plan_of(seed: int, changes: Mapping[str, Any] | None = None) -> Plan:
    """Return the plan of a seed; *changes* overrides its fields."""
    return draw(Random(f"plan {seed}"), tuple(sorted(TROUBLES)), changes)


def simulate(
    seed: int,
    *,
    steps: int | None = None,
    trace: Callable[[str], None] | None = None,
    keep_history: bool = False,
    changes: Mapping[str, Any] | None = None,
) -> Result:
    """Run one seed; *changes* overrides fields of its plan."""
    began = time.perf_counter()
    logging.disable(logging.CRITICAL)
    world = World(seed, steps=steps, changes=changes)
    world.timeline.trace = trace
    check = text = detail = ""
    try:
        world.run()
    except LawBroken as broken:
        check, text, detail = broken.check, broken.text, broken.trace
    except Exception as error:
        wrapped = LawBroken("crash", f"{type(error).__name__}: {error}", error)
        check, text, detail = wrapped.check, wrapped.text, wrapped.trace
    finally:
        logging.disable(logging.NOTSET)
    world.collect()
    kinds = Counter(event.kind.value for event in world.history.events)
    return Result(
        seed,
        check,
        text,
        detail,
        world.timeline.digest(),
        world.timeline.now / SECOND,
        time.perf_counter() - began,
        world.timeline.steps,
        world.coverage,
        dict(kinds),
        tuple(world.history.events) if keep_history else (),
    )


__all__ = ["Process", "Result", "World", "plan_of", "simulate"]
