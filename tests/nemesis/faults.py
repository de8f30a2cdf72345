"""
The effect of each kind of fault on a broker group's processes and clients, and its healing.

`perform` blocks for the duration of the fault. The target is chosen when it begins: "the leader" is the
replica that leads then. Problems with the fault itself are reported in its outcome; only wrong behaviour of
the product is a finding.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from orderlymq.oracle.history import Recorder
from orderlymq.oracle.verdict import Kind as EventKind
from tests.nemesis.clients.denials import Administrator
from tests.nemesis.clients.programs import Client
from tests.nemesis.cluster import Cluster
from tests.nemesis.ground.ground import CLIENTS, Namespaces
from tests.nemesis.invariants.rights import Denial
from tests.nemesis.schedule import Fault, Kind

# The time that a replica may need for its part of a rolling restart, or to catch up from nothing. A longer time is
# reported but not waited for: other faults go on.
WELL_S: Final = 90.0
# A failing process needs a moment to end, on a busy machine seconds.
NOTICE_S: Final = 10.0
# A producer that is inside its local transaction half of the time is soon caught there.
INSIDE_S: Final = 20.0
LOSS_MAX: Final = 0.3
DELAY_MAX_S: Final = 0.25


@dataclass(slots=True)
class Outcome:
    """The times and the target of a fault, and notes about it."""

    fault: Fault
    began: int
    ended: int = 0
    target: str = ""
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Nemesis:
    """Breaks a cluster and its clients."""

    cluster: Cluster
    clients: list[Client]
    recorder: Recorder
    administrator: Administrator
    findings: list[str] = field(default_factory=list)
    _dealers: threading.Lock = field(default_factory=threading.Lock)

    def perform(self, fault: Fault) -> Outcome:
        """Break, wait, heal."""
        outcome = Outcome(fault, time.monotonic_ns())
        _ACTIONS[fault.kind](self, fault, outcome)
        outcome.ended = time.monotonic_ns()
        return outcome

    def _tell(self, outcome: Outcome, target: str) -> None:
        outcome.target = target
        self.recorder.record(
            EventKind.FAULT, detail=f"{outcome.fault.kind} #{outcome.fault.begin_s:.0f}: {target}"
        )

    # -- whom --------------------------------------------------------------------------------------

    def _leader(self) -> int:
        return self.cluster.leader() or min(self._members())

    def _follower(self, fault: Fault) -> int:
        leader = self._leader()
        others = [node for node in self._members() if node != leader]
        return others[fault.pick % len(others)]

    def _members(self) -> list[int]:
        return sorted(self.cluster.brokers)

    def _minority(self, fault: Fault) -> list[int]:
        """Return some replicas, fewer than half, with the leader among them every other time."""
        members = self._members()
        leader = self._leader()
        first = leader if fault.strength < 0.5 else self._follower(fault)
        rest = [node for node in members if node not in (first, leader)]
        size = 1 + fault.pick % ((len(members) - 1) // 2)
        return [first, *rest[: size - 1]]

    def _client(self, fault: Fault, *, producer: bool, java: bool | None = None) -> Client | None:
        found = [
            client
            for client in self.clients
            if (client.is_producer if producer else client.group)
            and java in (None, client.java is not None)
        ]
        return found[fault.pick % len(found)] if found else None

    # -- processes ---------------------------------------------------------------------------------

    def kill_replica(self, fault: Fault, outcome: Outcome) -> None:
        leads = fault.kind is Kind.KILL_LEADER
        node = self._leader() if leads else self._follower(fault)
        self._tell(outcome, f"node {node}")
        self.cluster.brokers[node].kill()
        time.sleep(fault.lasts_s)
        self.cluster.brokers[node].start()

    def pause_replica(self, fault: Fault, outcome: Outcome) -> None:
        leads = fault.kind is Kind.PAUSE_LEADER
        node = self._leader() if leads else self._follower(fault)
        self._tell(outcome, f"node {node}")
        self.cluster.brokers[node].pause()
        time.sleep(fault.lasts_s)
        self.cluster.brokers[node].resume()

    def pause_majority(self, fault: Fault, outcome: Outcome) -> None:
        members = self._members()
        first = fault.pick % len(members)
        stopped = [*members[first:], *members[:first]][: len(members) // 2 + 1]
        self._tell(outcome, f"{stopped}")
        children = [self.cluster.brokers[node] for node in stopped]
        for child in children:
            child.pause()
            time.sleep(fault.strength)
        time.sleep(fault.lasts_s)
        for child in children:
            child.resume()
            time.sleep(fault.strength)

    def restart_all(self, fault: Fault, outcome: Outcome) -> None:
        self._tell(outcome, "all")
        for child in self.cluster.brokers.values():
            child.kill()
        time.sleep(fault.lasts_s)
        for child in self.cluster.brokers.values():
            child.start()
        self._expect_well(outcome)

    def lose_power(self, fault: Fault, outcome: Outcome) -> None:
        everybody = fault.kind is Kind.POWER_LOSS_ALL
        nodes = self._members() if everybody else [self._leader()]
        nodes = [node for node in nodes if node in self.cluster.disks]
        self._tell(outcome, "all" if everybody else f"node {nodes[0]}")
        for node in nodes:
            # All stop at the same moment, so that none can sync anything because another is gone.
            self.cluster.brokers[node].pause()
        for node in nodes:
            self.cluster.brokers[node].kill()
        copies = {node: self.cluster.disks[node].keep_what_is_synced() for node in nodes}
        time.sleep(fault.lasts_s)
        for node, copy in copies.items():
            self.cluster.disks[node].lose_power(copy)
        for node in nodes:
            self.cluster.brokers[node].start()
        if everybody:
            self._expect_well(outcome)

    def kill_name_server(self, fault: Fault, outcome: Outcome) -> None:
        self._tell(outcome, "name server")
        self.cluster.name_server.kill()
        time.sleep(fault.lasts_s)
        self.cluster.name_server.start()
        self._publish(outcome)

    def _publish(self, outcome: Outcome) -> None:
        for _ in range(20):
            try:
                self.cluster.publish()
            except Exception as error:
                outcome.notes.append(f"name server: {error}")
                time.sleep(0.5)
            else:
                outcome.notes.clear()
                return

    # -- network -----------------------------------------------------------------------------------

    @contextmanager
    def _network(self) -> Iterator[Namespaces]:
        ground = self.cluster.ground
        assert isinstance(ground, Namespaces), "the plan has no network faults on loopback"
        try:
            yield ground
        finally:
            ground.heal([*self._members(), CLIENTS])

    def split(self, fault: Fault, outcome: Outcome) -> None:
        few = [self._leader()] if fault.kind is Kind.CUT_LEADER else self._minority(fault)
        many = [node for node in self._members() if node not in few]
        self._tell(outcome, f"{few} from {many}")
        with self._network() as ground:
            ground.cut(few, many)
            ground.cut(many, few)
            time.sleep(fault.lasts_s)

    def cut_one_way(self, fault: Fault, outcome: Outcome) -> None:
        few = self._minority(fault)
        many = [node for node in self._members() if node not in few]
        if fault.pick % 2:
            few, many = many, few
        self._tell(outcome, f"from {few} to {many}")
        with self._network() as ground:
            ground.cut(few, many)
            time.sleep(fault.lasts_s)

    def cut_clients(self, fault: Fault, outcome: Outcome) -> None:
        leader = self._leader()
        self._tell(outcome, f"node {leader}")
        with self._network() as ground:
            ground.cut([leader], [CLIENTS])
            ground.cut([CLIENTS], [leader])
            time.sleep(fault.lasts_s)

    def slow(self, fault: Fault, outcome: Outcome) -> None:
        ground = self.cluster.ground
        assert isinstance(ground, Namespaces), "the plan has no network faults on loopback"
        lossy = fault.kind is Kind.LOSSY_LINKS
        loss = fault.strength * LOSS_MAX if lossy else 0.0
        delay_s = 0.0 if lossy else fault.strength * DELAY_MAX_S
        slowed = self._minority(fault)
        self._tell(outcome, f"{slowed}: {delay_s * 1000:.0f} ms, {loss:.0%} lost")
        try:
            for one in slowed:
                for other in self._members():
                    if other != one:
                        ground.slow(one, other, delay_s=delay_s, jitter_s=delay_s / 4, loss=loss)
            time.sleep(fault.lasts_s)
        finally:
            ground.unslow()

    # -- disks -------------------------------------------------------------------------------------

    def fill_disk(self, fault: Fault, outcome: Outcome) -> None:
        node = self._leader() if fault.strength < 0.5 else self._follower(fault)
        disk = self.cluster.disks[node]
        self._tell(outcome, f"node {node}")
        self._excuse(node, fault.lasts_s)
        disk.fill()
        time.sleep(fault.lasts_s)
        disk.empty()

    def fail_io(self, fault: Fault, outcome: Outcome) -> None:
        node = self._leader() if fault.strength < 0.5 else self._follower(fault)
        self._tell(outcome, f"node {node}")
        self._excuse(node, fault.lasts_s)
        self.cluster.io_errors[node].begin()
        time.sleep(fault.lasts_s)
        self.cluster.io_errors[node].end()

    def _excuse(self, node: int, seconds: float) -> None:
        until = time.monotonic() + seconds + NOTICE_S
        child = self.cluster.brokers[node]
        child.excused_until = max(child.excused_until, until)

    def wipe(self, fault: Fault, outcome: Outcome) -> None:
        if not self.cluster.wait_until_well(WELL_S):
            outcome.notes.append("left out: another replica was not well before")
            return
        node = self._leader() if fault.strength < 0.3 else self._follower(fault)
        self._tell(outcome, f"node {node}")
        self.cluster.brokers[node].kill()
        self.cluster.wipe(node)
        time.sleep(fault.lasts_s)
        self.cluster.brokers[node].start()
        self._expect_well(outcome)

    # -- planned -----------------------------------------------------------------------------------

    def restart_one_by_one(self, fault: Fault, outcome: Outcome) -> None:
        if not self._expect_well(outcome):
            return
        self._tell(outcome, "all, one after the other")
        leader = self._leader()
        order = [node for node in self._members() if node != leader] + [leader]
        for node in order:
            child = self.cluster.brokers[node]
            if not child.runs:
                continue
            code = child.end()
            if code != 0 and time.monotonic() > child.excused_until:
                self.findings.append(f"node {node} ended with {code} when it was asked to leave")
            child.start()
            if not self._expect_well(outcome):
                return

    def transfer(self, fault: Fault, outcome: Outcome) -> None:
        target = self._follower(fault)
        self._tell(outcome, f"to node {target}")
        refused = self.cluster.transfer(target)
        if refused is not None:
            outcome.notes.append(f"refused: {refused}")
        time.sleep(fault.lasts_s)

    def change_membership(self, fault: Fault, outcome: Outcome) -> None:
        if not self.cluster.wait_until_well(WELL_S):
            outcome.notes.append("left out: a replica was not well before")
            return
        node = self.cluster.replicas + 1
        self._tell(outcome, f"node {node} joins and leaves")
        self.cluster.add(node, join=True).start()
        for action in ("add-learner", "promote", "remove"):
            refused = self.cluster.change_membership(action, node)
            if refused is not None:
                self.findings.append(f"{action} of node {node} is refused for 30 s: {refused}")
            if action == "add-learner":
                self._expect_well(outcome)
            if action == "promote":
                time.sleep(fault.lasts_s)
        self.cluster.brokers[node].end()
        del self.cluster.brokers[node]
        self.cluster.wipe(node)

    def _expect_well(self, outcome: Outcome) -> bool:
        began = time.monotonic()
        if self.cluster.wait_until_well(WELL_S):
            outcome.notes.append(f"well after {time.monotonic() - began:.1f} s")
            return True
        text = f"not all replicas are well {WELL_S:.0f} s after {outcome.fault.kind}"
        outcome.notes.append(text)
        self.findings.append(text)
        return False

    # -- clients -----------------------------------------------------------------------------------

    def kill_client(self, fault: Fault, outcome: Outcome) -> None:
        client = self._client(fault, producer=fault.kind is Kind.KILL_PRODUCER)
        if client is None:
            return
        self._tell(outcome, client.process)
        client.kill()
        time.sleep(fault.lasts_s)
        client.start()

    def pause_client(self, fault: Fault, outcome: Outcome) -> None:
        producer = fault.kind is Kind.PAUSE_PRODUCER
        java = None if producer else fault.kind is Kind.PAUSE_JAVA_CONSUMER
        client = self._client(fault, producer=producer, java=java)
        if client is None:
            return
        self._tell(outcome, client.process)
        client.pause()
        time.sleep(fault.lasts_s)
        client.resume()

    # -- beside order ------------------------------------------------------------------------------

    def kill_dealer(self, fault: Fault, outcome: Outcome) -> None:
        dealers = [client for client in self.clients if client.is_dealer]
        dealer = dealers[fault.pick % len(dealers)]
        with self._dealers:
            self._kill_inside(dealer, outcome)
            time.sleep(fault.lasts_s)
            dealer.start()

    def _kill_inside(self, dealer: Client, outcome: Outcome) -> None:
        self._tell(outcome, dealer.process)
        until = time.monotonic() + INSIDE_S
        dealer.pause()
        while not dealer.is_inside_transaction:
            dealer.resume()
            if time.monotonic() > until:
                outcome.notes.append("killed outside a transaction")
                break
            time.sleep(0.05)
            dealer.pause()
        dealer.kill()

    def deny(self, fault: Fault, outcome: Outcome) -> None:
        with self.administrator.busy:
            self._deny(fault, outcome)

    def _deny(self, fault: Fault, outcome: Outcome) -> None:
        administrator = self.administrator
        if not administrator.prepare() or not administrator.wait_until_served():
            outcome.notes.append("left out: the client was not served before")
            return
        self._tell(outcome, administrator.account)
        if administrator.deny(_DENIALS[fault.kind]):
            time.sleep(fault.lasts_s)
        else:
            outcome.notes.append("not confirmed")
        if not administrator.give_back():
            self.findings.append(f"the rights of {administrator.account} could not be given back")
        elif not administrator.wait_until_served():
            outcome.notes.append("not served afterwards")


_DENIALS: Final[Mapping[Kind, Denial]] = {
    Kind.DENY: Denial.PERMISSION,
    Kind.DELETE_ACCOUNT: Denial.DELETED,
    Kind.CHANGE_SECRET: Denial.SECRET,
}
_ACTIONS: Final[Mapping[Kind, Callable[[Nemesis, Fault, Outcome], None]]] = {
    Kind.KILL_LEADER: Nemesis.kill_replica,
    Kind.KILL_FOLLOWER: Nemesis.kill_replica,
    Kind.PAUSE_LEADER: Nemesis.pause_replica,
    Kind.PAUSE_FOLLOWER: Nemesis.pause_replica,
    Kind.RESTART_ALL: Nemesis.restart_all,
    Kind.POWER_LOSS_ALL: Nemesis.lose_power,
    Kind.POWER_LOSS_LEADER: Nemesis.lose_power,
    Kind.CUT_LEADER: Nemesis.split,
    Kind.SPLIT: Nemesis.split,
    Kind.ONE_WAY: Nemesis.cut_one_way,
    Kind.CUT_CLIENTS: Nemesis.cut_clients,
    Kind.SLOW_LINKS: Nemesis.slow,
    Kind.LOSSY_LINKS: Nemesis.slow,
    Kind.DISK_FULL: Nemesis.fill_disk,
    Kind.IO_ERROR: Nemesis.fail_io,
    Kind.ROLLING_RESTART: Nemesis.restart_one_by_one,
    Kind.MEMBERSHIP: Nemesis.change_membership,
    Kind.TRANSFER: Nemesis.transfer,
    Kind.WIPE: Nemesis.wipe,
    Kind.NAME_SERVER: Nemesis.kill_name_server,
    Kind.KILL_CONSUMER: Nemesis.kill_client,
    Kind.PAUSE_CONSUMER: Nemesis.pause_client,
    Kind.PAUSE_JAVA_CONSUMER: Nemesis.pause_client,
    Kind.KILL_PRODUCER: Nemesis.kill_client,
    Kind.KILL_DEALER: Nemesis.kill_dealer,
    Kind.DENY: Nemesis.deny,
    Kind.DELETE_ACCOUNT: Nemesis.deny,
    Kind.CHANGE_SECRET: Nemesis.deny,
    Kind.PAUSE_MAJORITY: Nemesis.pause_majority,
    Kind.PAUSE_PRODUCER: Nemesis.pause_client,
}
