"""
Runs each kind of work on a running cluster, with the same commands to the load program for every peer.

A :class:`Running` is one start of one peer with its load program. Messages are sent only to topics of this start, so
that no result depends on earlier measurements.
"""

import itertools
import math
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.meter import Meter, Spent
from bench.peers.nodes import Peer
from bench.program import Event, Program, ProgramError
from bench.report.figures import percentile
from bench.report.results import Line
from bench.rest import rested
from bench.works import QUEUES, WARM_UP, Scale, Work

START_TIMEOUT_S = 120.0
#: Members of a RocketMQ consumer group rebalance every 20 s, so this allows two rounds and some more.
SETTLE_TIMEOUT_S = 60.0
#: Longer than the longest lease of a peer (RocketMQ's lock: 60 s).
TAKEOVER_TIMEOUT_S = 100.0
FAILOVER_TIMEOUT_S = 60.0
DISK_REST_S = 180.0
MIB = 1 << 20
KIB = 1 << 10

Figures = dict[str, float | list[float]]


@dataclass(slots=True)
class Running:
    """One start of a peer, with the load program connected to it."""

    peer: Peer
    program: Program
    scale: Scale
    started_s: float  # from the first process to the first acknowledged send
    directory: Path
    meter: Meter = field(init=False)
    latencies: dict[int, int] = field(default_factory=dict)
    elsewhere: list[float] = field(default_factory=list)
    _topics: set[str] = field(default_factory=set)
    _names: "itertools.count[int]" = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.meter = Meter(self.peer, self.program)

    def topic(self, name: str, queues: int = QUEUES) -> str:
        """Return a topic; create it at the first request."""
        if name not in self._topics:
            self.program.ask("topic", topic=name, queues=queues)
            self._topics.add(name)
        return name

    def fresh(self, name: str) -> str:
        """Return a name that is unused in this start."""
        return f"{name}-{next(self._names)}"

    def spent(self) -> Spent:
        """Return the resources that the last measured part used, and record how busy other processes kept the machine."""
        found = self.meter.spent()
        self.elsewhere.append(found.elsewhere)
        return found

    def do(self, work: Work, number: int) -> Line:
        """Do one work."""
        self.latencies = {}
        self.elsewhere = []
        figures = KINDS[work.kind](self, work)
        return Line(
            self.scale.name,
            self.peer.name,
            work.name,
            number,
            figures,
            self.latencies,
            max(self.elsewhere, default=0.0),
        )

    def warm_up(self) -> None:
        """Send for as long as virtual machines need to compile hot code; the results are discarded."""
        scale = self.scale
        self.scale = replace(scale, seconds=scale.compile_s)
        try:
            self.do(WARM_UP, 0)
        finally:
            self.scale = scale

    def leader(self, topic: str) -> tuple[int, list[int]]:
        """Return the leader's index among the nodes, and the queues that it leads."""
        said = []
        if not self.peer.asks_itself:
            said = self.program.ask("leaders", topic=topic, queues=QUEUES)["leaders"]
        node, queues = self.peer.leader(said)
        return self.peer.nodes.index(node), queues


def start(running: Running, work: Work) -> Figures:
    """Return how long the start took; it is already complete."""
    return {"start_s": running.started_s}


def idle(running: Running, work: Work) -> Figures:
    """Measure the nodes while they get no requests."""
    time.sleep(running.scale.calm_s)
    return {**memory(running), "cpu_percent": busy_percent(running)}


def memory(running: Running) -> Figures:
    """Return the median memory of a node."""
    found = [node.memory() for node in running.peer.nodes]
    return {
        "rss_mib": statistics.median(rss for rss, _ in found) / MIB,
        "anonymous_mib": statistics.median(anonymous for _, anonymous in found) / MIB,
    }


def busy_percent(running: Running) -> float:
    nodes = running.peer.nodes
    before = [node.cpu_s() for node in nodes]
    began = time.monotonic()
    time.sleep(running.scale.calm_s)
    seconds = time.monotonic() - began
    return max(node.cpu_s() - cpu for node, cpu in zip(nodes, before, strict=True)) / seconds * 100


def send(running: Running, work: Work) -> Figures:
    """Send for some seconds; each sender waits for each acknowledgement."""
    return sent(running, running.topic("sends"), work)


def sent(running: Running, topic: str, work: Work, **words: object) -> Figures:
    scale = running.scale
    event = running.program.ask(
        "send",
        scale.seconds + scale.warm_s + 60,
        topic=topic,
        queues=QUEUES,
        warm=scale.warm_s,
        seconds=scale.seconds,
        **work.words,
        **words,
    )
    return _rates(running, event)


def _rates(running: Running, event: Event) -> Figures:
    spent = running.spent()
    running.latencies = {int(bucket): count for bucket, count in event["latencies"].items()}
    count = event["count"]
    if not count or event["refused"] > count // 100:
        raise ProgramError(f"{event['refused']} of {count} sends were refused: {event['reason']}")
    return {
        "rate": count / event["seconds"],
        "p50_ms": percentile(running.latencies, 0.5),
        "p99_ms": percentile(running.latencies, 0.99),
        "p999_ms": percentile(running.latencies, 0.999),
        "cpu_us": spent.cluster_s / count * 1e6,
        "client_us": spent.client_s / count * 1e6,
    }


def stored(running: Running, work: Work) -> Figures:
    """Store many messages, and measure memory and disk when the files have settled."""
    before = running.peer.disk()
    seconds = fill(running)
    after = rested(running.peer.disk, every_s=running.scale.calm_s, limit_s=DISK_REST_S)
    count = running.scale.stored
    return {
        **memory(running),
        "disk_ratio": (after - before) / (count * KIB),
        "rate": count / seconds,
    }


def fill(running: Running) -> float:
    """Store the number of messages in the scale; return the seconds that this took."""
    topic = running.topic("stored")
    running.program.ask(
        "fill",
        1800.0,
        topic=topic,
        queues=QUEUES,
        senders=16,
        batch=25,  # divides every number of stored messages
        size=KIB,
        count=running.scale.stored,
    )
    running._topics.add("stored, filled")
    return running.spent().seconds


def drain(running: Running, work: Work) -> Figures:
    """Consume all stored messages in order; the time starts when all members know their queues."""
    if "stored, filled" not in running._topics:
        fill(running)
    members = work.words["members"]
    group = running.fresh("drain")
    ask = running.program.ask
    ask("join", group=group, topic="stored", queues=QUEUES, members=members)
    _settle(running, group, members)
    opened = ask("gate", group=group, state="OPEN")["ns"]
    event = ask("await", 320.0, group=group, count=running.scale.stored, timeout=300)
    spent = running.spent()
    ask("leave", group=group)
    if event["count"] < running.scale.stored or event["gaps"]:
        raise ProgramError(f"the drain is not whole: {event}")
    count = event["count"]
    return {
        "rate": count / (event["last"] - opened) * 1e9,
        "cpu_us": spent.cluster_s / count * 1e6,
        "client_us": spent.client_s / count * 1e6,
        "repeats": event["repeats"],
    }


def _settle(running: Running, group: str, members: int) -> None:
    """Wait until the queues are divided and unchanged between two checks."""
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    before: list[list[int]] = []
    while True:
        time.sleep(0.5)
        held = running.program.ask("held", group=group)["held"]
        if divided(held, members) and held == before:
            return
        before = held
        if time.monotonic() > deadline:
            raise ProgramError(f"the group never settled: {held}")


def divided(held: list[list[int]], members: int, queues: int = QUEUES) -> bool:
    """Return whether each member has an even share of the queues and each queue has one member."""
    every = sorted(queue for each in held for queue in each)
    return every == list(range(queues)) and all(len(each) == queues // members for each in held)


def both(running: Running, work: Work) -> Figures:
    """Send and consume at the same time."""
    topic, group = running.topic("both"), running.fresh("both")
    ask = running.program.ask
    # The consumer first gets messages of earlier rounds in this topic.
    ask("join", group=group, topic=topic, queues=QUEUES, members=1)
    ask("gate", group=group, state="OPEN")
    scale = running.scale
    event = ask(
        "send",
        scale.seconds + scale.warm_s + 60,
        topic=topic,
        queues=QUEUES,
        warm=scale.warm_s + 1.0,  # the consumer starts meanwhile
        seconds=scale.seconds,
        group=group,
        **work.words,
    )
    figures = _rates(running, event)
    ask("leave", group=group)
    ways = {int(bucket): count for bucket, count in event["ways"].items()}
    return figures | {
        "consumed": event["consumed"] / event["seconds"],
        "way_p50_ms": percentile(ways, 0.5),
        "way_p99_ms": percentile(ways, 0.99),
    }


def failover(running: Running, work: Work) -> Figures:
    """Kill the leader repeatedly while senders retry forever; then check whether messages are missing."""
    topic = running.topic("fail")
    time.sleep(running.peer.topic_settles_s)
    running.program.ask("retry", topic=topic, queues=QUEUES, size=KIB)
    first: list[float] = []
    every: list[float] = []
    for _ in range(running.scale.kills):
        time.sleep(running.scale.calm_s)
        place, queues = running.leader(topic)
        victim = running.peer.nodes[place]
        since = time.monotonic_ns()
        victim.kill()
        event = running.program.ask(
            "recovered",
            FAILOVER_TIMEOUT_S * QUEUES,
            since=since,
            timeout=int(FAILOVER_TIMEOUT_S * 1000),
        )
        times = [(at - since) / 1e9 if at else float("nan") for at in event["recovered"]]
        if any(math.isnan(each) for each in times):
            raise ProgramError(
                f"no recovery within {FAILOVER_TIMEOUT_S} s: {times}, {event['trouble']}"
            )
        first.append(min(times[queue] for queue in queues if queue < QUEUES))
        every.append(max(times))
        victim.start()
        _rejoin(running)
    counts = running.program.ask("retried", 90.0)["counts"]
    return {"first_s": first, "all_s": every, **_verify(running, topic, sum(counts))}


def _rejoin(running: Running) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    time.sleep(running.peer.rejoin_s)
    while not running.peer.recovered():
        if time.monotonic() > deadline:
            raise ProgramError(f"the killed node did not come back\n{running.peer.logs()}")
        time.sleep(0.1)


def _verify(running: Running, topic: str, acknowledged: int) -> Figures:
    """Read everything back: each acknowledged message once, in its sender's order."""
    group = running.fresh("verify")
    ask = running.program.ask
    ask("join", group=group, topic=topic, queues=QUEUES, members=1)
    ask("gate", group=group, state="OPEN")
    ask("await", 70.0, group=group, count=acknowledged, timeout=60)
    time.sleep(1.0)  # for repeats after the last one
    event = ask("await", group=group, count=acknowledged, timeout=1)
    ask("leave", group=group)
    return {
        "lost": float(max(0, acknowledged - event["count"])),
        "repeats": float(event["repeats"]),
    }


def takeover(running: Running, work: Work) -> Figures:
    """
    Kill consumers that hold a message, each in its own process and consumer group.

    One process has a second member in every consumer group. The result is the time until it gets the held message.
    """
    names = [running.fresh("take") for _ in range(running.scale.kills)]
    found: list[float] = []
    with ExitStack() as stack:
        survivor = stack.enter_context(_program(running, "survivor"))
        victims: list[tuple[str, Program, int]] = []
        for name in names:
            running.topic(name, 2)
            ask = running.program.ask
            ask("fill", topic=name, queues=2, senders=2, size=KIB, count=40)
            victim = stack.enter_context(_program(running, name))
            member: dict[str, Any] = {
                "group": name,
                "topic": name,
                "queues": 2,
                "members": 2,
                "here": 1,
            }
            victim.ask("join", first=0, strict=True, **member)
            survivor.ask("join", first=1, strict=True, **member)
            victims.append((name, victim, 0))
        for place, (name, victim, _) in enumerate(victims):
            if running.peer.balances:
                _share(name, victim, survivor)
            victim.tell("gate", group=name, state="HOLD")
            victims[place] = (name, victim, victim.wait("holding", 60.0)["queue"])
            survivor.ask("gate", group=name, state="OPEN")
        time.sleep(running.scale.calm_s)
        kills = []
        for name, victim, queue in victims:
            kills.append((name, queue, time.monotonic_ns()))
            victim.kill()
            time.sleep(0.5)
        for name, queue, since in kills:
            event = survivor.ask(
                "first",
                TAKEOVER_TIMEOUT_S + 5,
                group=name,
                queue=queue,
                timeout=int(TAKEOVER_TIMEOUT_S),
            )
            if not event["at"]:
                raise ProgramError(f"{name}: nobody took over within {TAKEOVER_TIMEOUT_S} s")
            found.append((event["at"] - since) / 1e9)
    return {"takeover_s": found}


def _program(running: Running, name: str) -> Program:
    folder = running.directory / name
    folder.mkdir(exist_ok=True)
    return Program(running.peer.client, running.peer.servers, folder / "program.log")


def _share(name: str, victim: Program, survivor: Program) -> None:
    """Wait until each of the two members has one of the two queues."""
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while time.monotonic() < deadline:
        time.sleep(0.5)
        held = [each.ask("held", group=name)["held"][0] for each in (victim, survivor)]
        if divided(held, 2, 2):
            return
    raise ProgramError(f"{name} never settled")


KINDS: dict[str, Callable[[Running, Work], Figures]] = {
    "start": start,
    "idle": idle,
    "stored": stored,
    "drain": drain,
    "send": send,
    "both": both,
    "failover": failover,
    "takeover": takeover,
}
