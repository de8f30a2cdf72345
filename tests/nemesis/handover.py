"""
``python -m tests.nemesis.handover``: how long clients wait when leadership or a queue changes hands.

A group of three on loopback, as ``orderlymq up`` starts it, so that the death of a consumer can be
proven. Unmodified Java clients and our SDK's send and consume all the time; causes are applied
again and again, and the times are read from the history afterwards. Writes handover.txt,
handover.json and handover.png.
"""

import argparse
import http.client
import json
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from orderlymq.oracle import verdict as oracle
from orderlymq.oracle.history import Recorder, read
from orderlymq.oracle.verdict import Event, Kind
from tests.clients.programs import Java
from tests.nemesis.clients.programs import Client, build_javas
from tests.nemesis.cluster import Cluster
from tests.nemesis.ground import namespaces
from tests.nemesis.ground.ground import Loopback, run
from tests.nemesis.ground.namespaces import say
from tests.nemesis.measures import (
    SECOND,
    Target,
    failures,
    keeps,
    median,
    pause_s,
    resumed_s,
    taken_over_s,
    times_of,
)
from tests.nemesis.picture import draw_histograms

REPLICAS: Final = 3
# A Java 4 consumer pulls again 3 s after a failed pull; all consumers have continued by then.
AFTER_KILL_S: Final = 6.0
AFTER_TRANSFER_S: Final = 1.0
# A former leader forwards busy clients for up to 10 s; a planned move begins when the previous one has
# ended for all clients.
BETWEEN_TRANSFERS_S: Final = 11.0
# A Java 5 consumer pulls 0.5 s after a change, and asks for a refused lock after 0.5 s.
AFTER_TAKEOVER_S: Final = 4.0
# RocketMQ's clients send no heartbeat for up to 30 s after a change of leader; a consumer is killed in that time.
AFTER_MOVE_S: Final = 1.0
# A new member has its share after the rebalance that its heartbeat causes.
SETTLE_S: Final = 6.0
# Longer than the SDK's lease of 15 s.
STOPPED_S: Final = 20.0
WELL_S: Final = 60.0

CAUSES: Final = ("leader-killed", "leader-moved", "consumer-killed", "consumer-stopped")

#: The promises of the design. The targets include a Java client's own waits.
TARGETS: Final = {
    "leader killed: SDK send": Target(0.5, 1.5),
    "leader killed: Java 4 send": Target(0.5, 1.5),
    "leader killed: SDK consumer": Target(0.5),
    "leader killed: Java 4 consumer": Target(worst=4.0),
    "leader killed: Java 5 consumer": Target(worst=2.0),
    "leader moved: pause of sends": Target(worst=0.1),
    "consumer killed: SDK takes over": Target(0.5),
    "consumer killed: Java 4 takes over": Target(0.5),
    "consumer killed: Java 5 takes over": Target(),
    "consumer killed: Java 4 named takes over": Target(0.5),
    "consumer killed: Java 5 named takes over": Target(),
}


@dataclass(frozen=True, slots=True)
class Cause:
    """An action, its time, and the end of the time in which its effect is looked for."""

    name: str
    at: int
    until: int
    victim: str = ""
    group: str = ""


@dataclass(slots=True)
class Stage:
    """The broker group, its clients, and the actions on them."""

    cluster: Cluster
    clients: dict[str, Client]
    causes: list[Cause] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    choose: random.Random = field(default_factory=lambda: random.Random(4711))

    def cause(
        self,
        name: str,
        do: Callable[[], None],
        seconds: float,
        *,
        victim: str = "",
        group: str = "",
    ) -> None:
        """Perform the action and wait until its effect is over."""
        at = time.monotonic_ns()
        do()
        time.sleep(seconds)
        self.causes.append(Cause(name, at, time.monotonic_ns(), victim, group))

    def calm(self) -> None:
        """Wait until all replicas are healthy, then for a random moment that differs from round to round."""
        if not self.cluster.wait_until_well(WELL_S):
            self.notes.append("the group was not well before a round")
        time.sleep(self.choose.uniform(0.5, 1.0))

    def kill_leaders(self, rounds: int) -> None:
        for number in range(rounds):
            self.calm()
            leader = self.cluster.brokers[self.cluster.wait_for_leader()]
            self.cause("leader killed", leader.kill, AFTER_KILL_S)
            leader.start()
            say(f"leader killed {number + 1} of {rounds}")

    def move_leaders(self, rounds: int) -> None:
        for number in range(rounds):
            self.calm()
            time.sleep(BETWEEN_TRANSFERS_S)
            self.cause("leader moved", self._move, AFTER_TRANSFER_S)
            say(f"leader moved {number + 1} of {rounds}")

    def _move(self) -> None:
        leader = self.cluster.wait_for_leader()
        others = [node for node in self.cluster.brokers if node != leader]
        refused = self.cluster.transfer(self.choose.choice(others))
        if refused is not None:
            self.notes.append(f"a transfer was refused: {refused}")

    def kill_consumers(self, rounds: int) -> None:
        """Kill members in turn, every second time under a leader that has received only pulls."""
        for group in sorted({client.group for client in self.clients.values()} - {""}):
            members = [client for client in self.clients.values() if client.group == group]
            for number in range(rounds):
                self.calm()
                if number % 2:
                    self._move()
                    time.sleep(AFTER_MOVE_S)
                victim = members[number // 2 % len(members)]
                self.cause(
                    "consumer killed",
                    victim.kill,
                    AFTER_TAKEOVER_S,
                    victim=victim.process,
                    group=group,
                )
                self.begin(victim)
                time.sleep(SETTLE_S)
                say(f"consumer of {group} killed {number + 1} of {rounds}")

    def begin(self, client: Client) -> None:
        """Start a consumer, and again if it gives up: after the next kill another member must be left."""
        until = time.monotonic() + WELL_S
        client.start()
        while not client.has_begun:
            time.sleep(0.1)
            client.start()
            if time.monotonic() > until:
                self.notes.append(f"{client.process} did not begin within {WELL_S:.0f} s")
                return

    def stop_consumers(self, rounds: int) -> None:
        """Stop an SDK consumer inside a listener for longer than its lease, then let it continue."""
        victim = self.clients["consumer-sdk-a"]
        for _ in range(rounds):
            self.calm()
            before = self._fenced()

            def stop() -> None:
                self._pause_inside_listener(victim)
                time.sleep(STOPPED_S)
                victim.resume()

            self.cause("consumer stopped", stop, SETTLE_S, victim=victim.process, group="SDK")
            self.notes.append(
                f"consumer stopped for {STOPPED_S:.0f} s: the broker refused "
                f"{self._fenced() - before:.0f} late commits"
            )

    def _pause_inside_listener(self, victim: Client) -> None:
        until = time.monotonic() + WELL_S
        victim.pause()
        while not victim.is_inside_listener:
            victim.resume()
            if time.monotonic() > until:
                self.notes.append(f"{victim.process} was stopped outside its listener")
                victim.pause()
                return
            time.sleep(self.choose.uniform(0.0, 0.01))
            victim.pause()

    def _fenced(self) -> float:
        """Return how many commits of clients without the lock the leader has refused."""
        place = self.cluster.ground.place(self.cluster.wait_for_leader())
        connection = http.client.HTTPConnection(place.host, place.http_port, timeout=2.0)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        values = [
            line.rsplit(" ", 1)[1]
            for line in text.splitlines()
            if "fenced_commits" in line and not line.startswith("#")
        ]
        return float(values[0]) if values else 0.0


def measure(events: list[Event], causes: Iterable[Cause]) -> dict[str, list[float]]:
    """Return seconds by measure."""
    found: dict[str, list[float]] = {name: [] for name in TARGETS}
    found["leader moved: failed sends"] = []
    families = {"SDK": "sdk", "Java 4": "java-4", "Java 5": "java-5"}
    acks: dict[str, list[int]] = {}
    delivered: dict[str, list[int]] = {}
    for family, word in families.items():
        acks[family] = times_of(events, Kind.ACK, partial(_is_of, word))
        delivered[family] = times_of(events, Kind.DELIVER, partial(_is_in, _group(family)))
    for cause in causes:
        if cause.name == "leader killed":
            for family in families:
                _add(found, f"leader killed: {family} send", acks[family], cause)
                _add(found, f"leader killed: {family} consumer", delivered[family], cause)
        elif cause.name == "leader moved":
            pauses = [
                pause_s(acks[family], cause.at, cause.until) for family in families if acks[family]
            ]
            found["leader moved: pause of sends"].append(max(pauses))
            failed = failures(events, cause.at, cause.until)
            found["leader moved: failed sends"].append(float(failed))
        elif cause.name == "consumer killed":
            name = f"consumer killed: {cause.group.replace('-', ' ')} takes over"
            found[name] += taken_over_s(events, cause.group, cause.victim, cause.at)
    return {name: values for name, values in found.items() if values}


def _add(found: dict[str, list[float]], name: str, times: list[int], cause: Cause) -> None:
    if name not in TARGETS:
        return
    seconds = resumed_s(times, cause.at, cause.until)
    found[name].append((cause.until - cause.at) / SECOND if seconds is None else seconds)


def _is_of(word: str, event: Event) -> bool:
    return word in event.process


def _is_in(group: str, event: Event) -> bool:
    return event.group == group


def _group(family: str) -> str:
    return family.replace(" ", "-")


def told(events: list[Event], causes: Iterable[Cause]) -> list[str]:
    """Return what was reported to stopped consumers when they continued."""
    lines = []
    for cause in causes:
        if cause.name != "consumer stopped":
            continue
        lapsed = [
            event
            for event in events
            if event.kind is Kind.LAPSED
            and event.process == cause.victim
            and cause.at <= event.at <= cause.until
        ]
        lines.append(f"{cause.victim}: {len(lapsed)} listeners were told that their lease is over")
    return lines


def as_text(found: dict[str, list[float]], notes: list[str], verdict: oracle.Verdict) -> str:
    """Return a table of all measures."""
    lines = [f"{'measure':38} {'n':>3} {'median':>8} {'worst':>8}  target"]
    for name, values in found.items():
        target = TARGETS.get(name)
        wanted = _wanted(target)
        if target is not None and wanted:
            wanted += "  kept" if keeps(values, target) else "  MISSED"
        unit = "" if name.endswith("failed sends") else " s"
        lines.append(
            f"{name:38} {len(values):3} {median(values):7.3f}{unit} {max(values):7.3f}{unit}  {wanted}"
        )
    lines += notes
    lines.append(f"oracle: {'kept' if verdict.kept else 'BROKEN'}, {verdict.counts}")
    lines += [f"  {finding.explanation}" for finding in verdict.findings[:10]]
    return "\n".join([*lines, ""])


def _wanted(target: Target | None) -> str:
    if target is None:
        return ""
    parts = [
        f"{name} {value} s"
        for name, value in (("median", target.median), ("worst", target.worst))
        if value is not None
    ]
    return ", ".join(parts)


def main() -> int:
    """Measure; return 0 if the promise was kept, whatever the times."""
    parser = argparse.ArgumentParser(prog="python -m tests.nemesis.handover", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="of each cause")
    parser.add_argument("--out", type=Path, default=Path(".nemesis/handover"))
    parser.add_argument("--no-java", action="store_true")
    parser.add_argument(
        "--only", choices=CAUSES, nargs="+", default=CAUSES, help="these causes (default: all)"
    )
    options = parser.parse_args()
    if not namespaces.is_inside():
        if not options.no_java:
            build_javas()
        return namespaces.enter("tests.nemesis.handover", *sys.argv[1:])
    if namespaces.has_namespaces():
        run("ip", "link", "set", "lo", "up")
    shutil.rmtree(options.out, ignore_errors=True)
    javas = [] if options.no_java else build_javas()

    return _play(options.out.resolve(), options.rounds, javas, options.only)


def _play(where: Path, rounds: int, javas: list[Java], causes: Sequence[str]) -> int:
    history = where / "history.jsonl"
    cluster = Cluster(where / "group", REPLICAS, Loopback())
    with Recorder(history, process="handover") as recorder:
        clients = _clients(where / "clients", cluster, recorder, history, javas)
        stage = Stage(cluster, clients)
        try:
            cluster.start()
            cluster.declare(sorted({client.group for client in clients.values()} - {""}))
            cluster.wait_for_route()
            for client in clients.values():
                client.start()
            for client in clients.values():
                stage.begin(client)
            time.sleep(2 * SETTLE_S)
            if "leader-killed" in causes:
                stage.kill_leaders(rounds)
            if "leader-moved" in causes:
                stage.move_leaders(rounds)
            if "consumer-killed" in causes:
                stage.kill_consumers(max(rounds // 2, 2))
            if "consumer-stopped" in causes:
                stage.stop_consumers(2)
        finally:
            for client in clients.values():
                client.kill()
            cluster.close()
        for client in clients.values():
            client.translate()
    events = sorted(read(history), key=lambda event: event.at)
    verdict = oracle.judge(events)
    found = measure(events, stage.causes)
    load = f"load average when it ended: {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs"
    text = as_text(found, [load, *stage.notes, *told(events, stage.causes)], verdict)
    (where / "handover.txt").write_text(text)
    done = [asdict(cause) for cause in stage.causes]
    (where / "handover.json").write_text(
        json.dumps({"seconds": found, "causes": done}, indent=1) + "\n"
    )
    if found:
        draw_histograms(found, {name: TARGETS.get(name, Target()) for name in found}, where)
    sys.stdout.write(text)

    return 0 if verdict.kept else 1


def _clients(
    directory: Path, cluster: Cluster, recorder: Recorder, history: Path, javas: list[Java]
) -> dict[str, Client]:
    directory.mkdir(parents=True, exist_ok=True)
    made: dict[str, Client] = {}

    def make(name: str, **more: Any) -> None:
        made[name] = Client(name, directory, cluster.ground, recorder, history, **more)

    make("producer-sdk", pause_ms=20)
    for java in javas[:1]:
        make(f"producer-java-{java.version}", java=java, pause_ms=20)
    for letter in "ab":
        make(f"consumer-sdk-{letter}", group="SDK", pause_ms=5)
        for java in javas:
            name = f"consumer-java-{java.version}-{letter}"
            make(name, group=f"Java-{java.version[0]}", java=java, pause_ms=1)
            # Programs that call `setInstanceName`: their client ids name no process.
            group = f"Java-{java.version[0]}-named"
            make(f"{name}-named", group=group, java=java, pause_ms=1, is_named=True)
    return made


if __name__ == "__main__":
    sys.exit(main())
