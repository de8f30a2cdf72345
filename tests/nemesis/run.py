"""
One run: a broker group on a ground, clients that write a history, a schedule of faults, a calm phase, a verdict.

After the last fault everything is healed and started again. In the calm phase all acknowledged messages must be
delivered to every consumer group, open transactions must be decided, and delayed messages must become visible. The
log is read, the replicas must agree, and the checker of ``orderlymq doctor`` checks every disk. The history then goes
to the oracle, and to the laws of the features other than order (``invariants``).
"""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from orderlymq.oracle import verdict as oracle
from orderlymq.oracle.history import Recorder, read
from orderlymq.oracle.verdict import Event, Verdict
from orderlymq.oracle.verdict import Kind as EventKind
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import request
from orderlymq_runtime.remoting.client import RemotingClient, RemotingError
from tests.clients.programs import Java
from tests.cluster.bareclient import pull_all
from tests.nemesis.clients.denials import Administrator
from tests.nemesis.clients.programs import BY_KEY, GROUPS, Client, Trade, make_clients
from tests.nemesis.cluster import BESIDES, QUEUES, TOPIC, Cluster, NoLeaderError
from tests.nemesis.faults import Nemesis, Outcome
from tests.nemesis.invariants import delays, rights, transactions
from tests.nemesis.invariants.breaches import Ruling, of_topic
from tests.nemesis.invariants.delays import DELAY_MAX_S, LATER
from tests.nemesis.invariants.transactions import DEALS
from tests.nemesis.schedule import Fault, Plan, Track, schedule
from tests.nemesis.watch import Watch

# A queue whose Java holder was killed without proof of its death is blocked for 60 s, and its successor
# asks every 20 s.
DRAIN_TIMEOUT_S: Final = 240.0
WELL_TIMEOUT_S: Final = 60.0
# An open transaction is checked every two seconds, and decided at the first answer.
DECIDED_TIMEOUT_S: Final = 60.0
# A half message is sent for at most three seconds.
DECIDED_FOR_S: Final = 5.0
# Counted from the time of the last delayed message; a leader looks ten times a second.
VISIBLE_TIMEOUT_S: Final = DELAY_MAX_S + 60.0
# Sends after the last fault, to show that the broker group works.
CALM_SENDS_S: Final = 5.0

Say = Callable[[str], None]


@dataclass(slots=True)
class Record:
    """Everything that a run leaves behind."""

    seed: int
    plan: Plan
    ground: str
    began: int
    calm_began: int
    ended: int
    outcomes: list[Outcome]
    watch: Watch
    events: list[Event]
    verdict: Verdict
    rulings: list[Ruling]
    findings: list[str]
    drained_s: float | None
    notes: list[str] = field(default_factory=list)

    @property
    def kept(self) -> bool:
        """Return whether there is no finding, by the oracle or by any other check."""
        broken = any(ruling.breaches for ruling in self.rulings)
        return self.verdict.kept and not self.findings and not broken


@dataclass(slots=True)
class Run:
    """Plays one schedule."""

    seed: int
    plan: Plan
    cluster: Cluster
    javas: list[Java]
    say: Say
    findings: list[str] = field(default_factory=list)
    _outcomes: list[Outcome] = field(default_factory=list)

    def play(self) -> Record:
        """Start everything, break things, heal, judge."""
        directory = self.cluster.directory
        history = directory / "history.jsonl"
        self.say(f"starting {self.plan.replicas} replicas on {self.cluster.ground.name}")
        self.cluster.start()
        self.cluster.declare(list(GROUPS), by_key=(BY_KEY,))
        self.cluster.wait_for_route()
        with Recorder(history, process="nemesis") as recorder:
            clients = make_clients(
                directory / "clients", self.cluster.ground, recorder, history, self.javas
            )
            prober = next(client for client in clients if client.trade is Trade.PROBING)
            administrator = Administrator(self.cluster, recorder, prober)
            if not administrator.prepare():
                raise NoLeaderError("the first account of the prober could not be made")
            watch = Watch(self.cluster, clients)
            watch.start()
            for client in clients:
                client.start()
            began = time.monotonic_ns()
            nemesis = Nemesis(self.cluster, clients, recorder, administrator)
            try:
                self._break_things(nemesis)
                calm_began = time.monotonic_ns()
                drained_s = self._calm_down(nemesis.clients, recorder, history)
            finally:
                watch.stop()
                for client in clients:
                    client.kill()
            self._look_at_replicas()
            for client in clients:
                client.translate()
        self.findings += nemesis.findings + watch.accidents
        self.say("judging")
        events = sorted(read(history), key=lambda event: event.at)
        ordered = of_topic(events, TOPIC)
        return Record(
            seed=self.seed,
            plan=self.plan,
            ground=self.cluster.ground.name,
            began=began,
            calm_began=calm_began,
            ended=time.monotonic_ns(),
            outcomes=sorted(self._outcomes, key=lambda outcome: outcome.began),
            watch=watch,
            events=events,
            verdict=oracle.judge(ordered),
            rulings=[
                transactions.judge(events),
                delays.judge(events),
                rights.judge(events, ordered, watch.leaders()),
            ],
            findings=self.findings,
            drained_s=drained_s,
        )

    # -- faults ------------------------------------------------------------------------------------

    def _break_things(self, nemesis: Nemesis) -> None:
        faults = schedule(self.seed, self.plan)
        self.say(f"{len(faults)} faults in {self.plan.seconds:.0f} s")
        tracks = [
            threading.Thread(
                target=self._play_track,
                args=(nemesis, [fault for fault in faults if fault.shape.track is track]),
                name=f"track {track.value}",
                daemon=True,
            )
            for track in Track
        ]
        for thread in tracks:
            thread.start()
        for thread in tracks:
            thread.join()

    def _play_track(self, nemesis: Nemesis, faults: list[Fault]) -> None:
        began = started = time.monotonic()
        running: list[threading.Thread] = []
        for fault in faults:
            time.sleep(max(began + fault.begin_s - time.monotonic(), 0.0))
            if fault.shape.alone:
                # Faults may take longer than planned: disks are only taken while nothing else is broken.
                _join(running)
            late = max(time.monotonic() - began - fault.begin_s, 0.0)
            if time.monotonic() - started > self.plan.seconds:
                break
            # A fault that took longer than planned delays the rest, so that they do not all come at the same time.
            began += late
            thread = threading.Thread(
                target=self._perform, args=(nemesis, fault), name=fault.kind.value, daemon=True
            )
            running.append(thread)
            thread.start()
            if fault.shape.alone:
                thread.join()
        _join(running)

    def _perform(self, nemesis: Nemesis, fault: Fault) -> None:
        try:
            outcome = nemesis.perform(fault)
        except Exception as error:
            self.findings.append(f"{fault.kind} could not be played: {error!r}")
            return
        self._outcomes.append(outcome)
        notes = f" ({'; '.join(outcome.notes)})" if outcome.notes else ""
        self.say(f"{fault.begin_s:6.1f} s {fault.kind}: {outcome.target}{notes}")

    # -- calm --------------------------------------------------------------------------------------

    def _calm_down(self, clients: list[Client], recorder: Recorder, history: Path) -> float | None:
        self.say("calm")
        for child in (self.cluster.name_server, *self.cluster.brokers.values()):
            child.resume()
            child.start()
        for client in clients:
            client.resume()
            client.start()
        if not self.cluster.wait_until_well(WELL_TIMEOUT_S):
            self.findings.append(f"the group is not well {WELL_TIMEOUT_S:.0f} s after the faults")
        time.sleep(CALM_SENDS_S)
        for client in clients:
            if client.is_dealer:
                client.finish()
            elif not client.group:
                client.end()
        began = time.monotonic()
        # A producer that may be asked about an open transaction must run until none is open.
        if not self._wait_until_decided():
            self.findings.append(
                f"transactions are open {DECIDED_TIMEOUT_S:.0f} s after the last one was begun"
            )
        for client in clients:
            if client.is_dealer:
                client.end()
        drained = asyncio.run(self._drain(recorder, _acknowledged(history, LATER)))
        for client in clients:
            client.end()
        return round(time.monotonic() - began, 1) if drained else None

    def _wait_until_decided(self) -> bool:
        """Wait until no transaction is open, for long enough that the last half message would have arrived."""
        deadline = time.monotonic() + DECIDED_TIMEOUT_S
        settled = time.monotonic()
        while time.monotonic() < deadline:
            leader = self.cluster.leader()
            status = None if leader is None else self.cluster.status(leader)
            if status is None or status.get("transactions", {}).get("open") != 0:
                settled = time.monotonic()
            elif time.monotonic() - settled > DECIDED_FOR_S:
                return True
            time.sleep(0.5)
        return False

    async def _drain(self, recorder: Recorder, delayed: set[str]) -> bool:
        """Wait until every consumer group has committed everything, then read the log."""
        client = self.cluster.connect()
        try:
            await self._wait_until_visible(client, LATER, delayed)
            waiting = dict.fromkeys(GROUPS, "not looked at yet")
            deadline = time.monotonic() + DRAIN_TIMEOUT_S
            while waiting and time.monotonic() < deadline:
                for group in list(waiting):
                    behind = await self._behind(client, group, GROUPS[group])
                    if behind is None:
                        recorder.record(EventKind.DRAINED, group=group, topic=GROUPS[group])
                        del waiting[group]
                    else:
                        waiting[group] = behind
                await asyncio.sleep(0.5)
            for group, behind in waiting.items():
                self.findings.append(
                    f"group {group} has not consumed all {DRAIN_TIMEOUT_S:.0f} s after the faults: "
                    f"{behind}"
                )
            for topic in (TOPIC, DEALS, LATER):
                await self._read_log(client, recorder, topic)
        finally:
            await client.close()
        return not waiting

    async def _wait_until_visible(
        self, client: RemotingClient, topic: str, wanted: set[str]
    ) -> None:
        """Wait for messages that are not due yet; a message that never comes is found by its law."""
        deadline = time.monotonic() + VISIBLE_TIMEOUT_S
        while time.monotonic() < deadline:
            try:
                if wanted <= {text for _, _, text in await self._stored(client, topic)}:
                    return
            except _UNREADABLE as error:
                self.say(f"{topic} cannot be read: {error!r}")
            await asyncio.sleep(0.5)

    async def _behind(self, client: RemotingClient, group: str, topic: str) -> str | None:
        """Return what *group* has still to consume, None if it has consumed everything."""
        try:
            address = self.cluster.ground.service(await asyncio.to_thread(self._leader))
            for queue in range(_queues(topic)):
                place = {"topic": topic, "queueId": str(queue)}
                command = request(RequestCode.GET_MAX_OFFSET, place)
                end = await client.invoke(address, command, 2.0)
                place["consumerGroup"] = group
                command = request(RequestCode.QUERY_CONSUMER_OFFSET, place)
                at = await client.invoke(address, command, 2.0)
                last = int(end.ext.get("offset", "-1"))
                committed = int(at.ext["offset"]) if at.code == ResponseCode.SUCCESS else 0
                if end.code != ResponseCode.SUCCESS or committed < last:
                    return f"queue {queue} is at {committed} of {last}"
        except (RemotingError, NoLeaderError) as error:
            return str(error)
        return None

    def _leader(self) -> int:
        return self.cluster.wait_for_leader(10.0)

    async def _read_log(self, client: RemotingClient, recorder: Recorder, topic: str) -> None:
        try:
            for queue, offset, text in await self._stored(client, topic):
                recorder.record(
                    EventKind.STORED, topic=topic, message=text, queue=f"g:{queue}", offset=offset
                )
            recorder.record(EventKind.SCANNED, topic=topic)
        except _UNREADABLE as error:
            self.findings.append(f"the log of {topic} could not be read: {error!r}")

    async def _stored(self, client: RemotingClient, topic: str) -> list[tuple[int, int, str]]:
        """Return queue, offset and text of every message of a topic."""
        address = self.cluster.ground.service(await asyncio.to_thread(self._leader))
        return [
            (queue, offset, body.decode().partition("|")[0])
            for queue in range(_queues(topic))
            for offset, body in await pull_all(client, address, topic, queue)
        ]

    def _look_at_replicas(self) -> None:
        if not self.cluster.wait_until_equal(WELL_TIMEOUT_S):
            self.findings.append("the replicas have not applied the same when all is quiet")
        for node, code in self.cluster.stop().items():
            if code != 0:
                self.findings.append(f"node {node} ended with {code} when it was asked to leave")
        for node in self.cluster.brokers:
            words = [sys.executable, "-m", "orderlymq", "doctor", str(self.cluster.data_dir(node))]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode:
                self.findings.append(f"doctor on node {node}: {done.stdout}{done.stderr}")


_UNREADABLE: Final = (RemotingError, NoLeaderError, TimeoutError, AssertionError)


def _queues(topic: str) -> int:
    return BESIDES.get(topic, QUEUES)


def _acknowledged(history: Path, topic: str) -> set[str]:
    """Return the messages of a topic that a history, still being written, reports as acknowledged."""
    return {
        event.message
        for event in read(history)
        if event.kind is EventKind.ACK and event.topic == topic
    }


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join()
