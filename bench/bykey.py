"""
Compares key lanes with what others offer for the same wish: one queue feeds many workers, in order per key.

``python -m bench.bykey [--quick] [--peers ...] [--seconds 20] [--write docs/explanation/benchmarks.md]``. RocketMQ hands out one message of
a queue at a time, Confluent's parallel consumer spreads a partition over threads, JetStream has a consumer per key, ours a group by key.
Each does the same works: it drains a queue of 1,000 keys with 64 handlers that wait for 10 ms, then it takes a steady load without and with
ten poison keys, whose handler fails always. Other clients than ours live in the load program (ByKey.java); both write what they have
handled into files (`bench/handled.py`).
"""

import argparse
import itertools
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import psutil
import uvloop
from bench.compare import PORTS, running
from bench.execution import Running
from bench.handled import Done, per_second, read, repeats, violations, whole
from bench.laneworker import POISON
from bench.peers.catalogue import PEERS
from bench.peers.nodes import Durability, Ports
from bench.report.keytable import Row, Steady, behind, table
from bench.works import QUICK
from tests.cluster.processes import Group

from bench import fetch, lanes
from bench.report import sections
from orderlymq.blocking import AdminClient

OURS: Final = {"orderlymq": "OrderlyMQ", "orderlymq-async": "OrderlyMQ, ASYNC_FLUSH"}
NAMES: Final = (*OURS, "rocketmq", "rocketmq5-async", "kafka", "kafka-flush", "nats", "nats-always")
#: Without `kafka-flush`, which takes minutes to store the messages of the drain.
USUAL: Final = (*OURS, "rocketmq", "kafka", "nats", "nats-always")
KEYS: Final = 1_000
WORKERS: Final = 64
PROCESSES: Final = 4
HANDLER_MS: Final = 10
RATE: Final = 500
#: Has no common factor with the number of keys, so that all keys come in turn.
STRIDE: Final = 7919
POISON_KEYS: Final = 10
#: One message in this many has a poison key.
POISON_EVERY: Final = 50
#: The same load runs for this long before the measurement, because first messages cost a client extra work.
WARM_S: Final = 1.0
#: How long to wait for sent messages after the last send.
GRACE_S: Final = 10.0
#: Time for the members of a consumer group to settle, or for the creation of a thousand consumers.
JOIN_S: Final = 120.0
COMMAND_S: Final = 300.0

#: How each client processes by key, by the client's name.
DRIVEN: Final = {
    "orderlymq": (
        f"a consumer group with `concurrency: Key`, {PROCESSES} processes of the Python SDK with {WORKERS // PROCESSES} workers each; a failed"
        " message is delivered again after 1 s, then 2 s and so on"
    ),
    "rocketmq": (
        f"one orderly push consumer with {WORKERS} threads, which takes one message of a queue at a time; a failed message is delivered"
        " again after 1 s, without end, as by default. With a limit of tries it becomes a dead letter, and its key continues without it"
    ),
    "kafka": (
        f"Confluent's parallel consumer 0.5.3.3, `ordering` KEY, `maxConcurrency` {WORKERS}, `messageBufferSize` 10,000, all else by default:"
        " it commits every 5 s, and a failed record is delivered again after 1 s. It stops polling when its buffer is full of unfinished records,"
        f" including those behind a poison record. By default the buffer has {2 * WORKERS}, and this load with poison stands still."
        " One process has the whole partition"
    ),
    "nats": (
        "a subject and a durable consumer per key (three replicas like the stream, `max_ack_pending: 1`, explicit acknowledgements), all"
        f" created before the first message (by default a stream has at most 1,000); {WORKERS} threads take the messages of"
        " all; a failed message is delivered again after 1 s"
    ),
}


def keys(*, poisoned: bool) -> Iterator[str]:
    """Yield the keys of messages in send order; ByKey.java sends the same keys."""
    for each in itertools.count():
        if poisoned and each % POISON_EVERY == POISON_EVERY // 2:
            yield f"{POISON}-{each // POISON_EVERY % POISON_KEYS}"
        else:
            yield f"key-{each * STRIDE % KEYS}"


@dataclass(frozen=True, slots=True)
class Consumers:
    """The running consumers of a consumer group: their log files, and the CPU time of them and their cluster."""

    logs: Sequence[Path]
    cpu_s: Callable[[], float]

    def wait(self, messages: int, seconds: float) -> None:
        """Wait until this many messages are handled, but at most *seconds*."""
        deadline = time.monotonic() + seconds
        while self._handled() < messages and time.monotonic() < deadline:
            time.sleep(0.05)

    def _handled(self) -> int:
        texts = [log.read_bytes() for log in self.logs if log.exists()]
        return sum(text.count(b"\n") - text.count(b"#") for text in texts)

    def done(self) -> list[Done]:
        return [done for log in self.logs for done in read(whole(log.read_text()))]


class Clients(Protocol):
    """The producers and consumers of one running system."""

    def topic(self) -> str:
        """Create a topic with one queue."""

    def store(self, topic: str, count: int) -> None:
        """Send messages to healthy keys as fast as possible."""

    def pace(self, topic: str, seconds: float, *, poisoned: bool) -> int:
        """Send at the rate of a steady load; return the number of messages."""

    def consumers(self, topic: str) -> AbstractContextManager[Consumers]:
        """Run the consumers of a new consumer group."""


@dataclass(frozen=True, slots=True)
class Ours:
    """The Python SDK; each consumer is a separate process."""

    bench: lanes.Bench

    @property
    def _address(self) -> str:
        return self.bench.cluster.name_server_address

    def topic(self) -> str:
        return self.bench.topic(queues=1)

    def store(self, topic: str, count: int) -> None:
        healthy = list(itertools.islice(keys(poisoned=False), count))
        uvloop.run(lanes.store(self._address, topic, healthy))

    def pace(self, topic: str, seconds: float, *, poisoned: bool) -> int:
        names = keys(poisoned=poisoned)
        return uvloop.run(lanes.pace(self._address, topic, names, RATE, seconds))

    @contextmanager
    def consumers(self, topic: str) -> Iterator[Consumers]:
        with self.bench.workers(
            topic,
            self.bench.group(),
            PROCESSES,
            by="key",
            workers=WORKERS // PROCESSES,
            handler_ms=HANDLER_MS,
        ) as workers:
            yield Consumers([each.log for each in workers], lambda: self.bench.cpu_s(workers))


@dataclass(frozen=True, slots=True)
class Theirs:
    """Another system, whose producers and consumers run in the load program."""

    started: Running
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def _ask(self, verb: str, topic: str, **words: object) -> None:
        self.started.program.ask(verb, COMMAND_S, topic=topic, **words)

    def topic(self) -> str:
        name = f"by-key-{next(self._numbers)}"
        self._ask("key-topic", name)
        time.sleep(self.started.peer.topic_settles_s)
        return name

    def store(self, topic: str, count: int) -> None:
        self._ask("key-send", topic, count=count, keys=KEYS)

    def pace(self, topic: str, seconds: float, *, poisoned: bool) -> int:
        count = int(RATE * seconds)
        self._ask("key-send", topic, count=count, keys=KEYS, rate=RATE, poisoned=poisoned)
        return count

    @contextmanager
    def consumers(self, topic: str) -> Iterator[Consumers]:
        group = f"{topic}-group"
        log = self.started.directory / f"{group}.log"
        words = {"group": group, "workers": WORKERS, "handler": HANDLER_MS, "keys": KEYS}
        self._ask("key-join", topic, log=log, **words)
        program = psutil.Process(self.started.program.pid)
        yield Consumers([log], lambda: self.started.peer.cpu_s() + sum(program.cpu_times()[:2]))
        self._ask("key-leave", topic)


def drain(clients: Clients, stored: int, seconds: float) -> tuple[list[Done], float, float]:
    """Handle the stored messages, for at most *seconds*.

    Returns:
        The handled messages, the seconds until the first message, and the CPU seconds.
    """
    topic = clients.topic()
    clients.store(topic, stored)
    began = time.monotonic_ns()
    with clients.consumers(topic) as consumers:
        consumers.wait(1, JOIN_S)
        spent = consumers.cpu_s()
        consumers.wait(stored, seconds)
        spent = consumers.cpu_s() - spent
        done = consumers.done()
    return done, (min(each.done for each in done) - began) / 1e9, spent


def steady(clients: Clients, seconds: float, *, poisoned: bool) -> tuple[list[Done], Steady]:
    """Send at a steady rate to consumers that have joined; return the handled messages and their figures."""
    topic = clients.topic()
    with clients.consumers(topic) as consumers:
        clients.store(topic, 1)
        consumers.wait(1, JOIN_S)
        before = 1 + clients.pace(topic, WARM_S, poisoned=False)
        consumers.wait(before, JOIN_S)
        begin = time.monotonic_ns()
        sent = clients.pace(topic, seconds, poisoned=poisoned)
        names = itertools.islice(keys(poisoned=poisoned), sent)
        healthy = sum(not name.startswith(POISON) for name in names)
        consumers.wait(before + healthy, GRACE_S)
        end = time.monotonic_ns()
        done = [each for each in consumers.done() if each.sent >= begin]
    return done, Steady.of(done, healthy, begin, end)


def measure(name: str, clients: Clients, stored: int, seconds: float) -> Row:
    """Run all works with one system."""
    title = title_of(name)
    drained, first_s, cpu_s = drain(clients, stored, seconds)
    print(f"{title}: {per_second(drained):,.0f} messages/s", flush=True)
    calm, healthy = steady(clients, seconds, poisoned=False)
    print(f"{title}: {healthy}", flush=True)
    disturbed, poisoned = steady(clients, seconds, poisoned=True)
    print(f"{title}, poison: {poisoned}", flush=True)
    works = (drained, calm, disturbed)
    return Row(
        durability=PEERS[name].durability.name.lower(),
        title=title,
        first_s=first_s,
        stored=stored,
        handled=len(drained) - repeats(drained),
        rate=per_second(drained),
        cpu_us=cpu_s / len(drained) * 1e6,
        violations=sum(violations(each) for each in works),
        repeats=sum(repeats(each) for each in works),
        healthy=healthy,
        poisoned=poisoned,
    )


def title_of(name: str) -> str:
    """Return the name of a system in the table."""
    return f"{OURS[name]}, {lanes.form()}" if name in OURS else PEERS[name].title


@contextmanager
def started(name: str, directory: Path, ports: int) -> Iterator[Clients]:
    """Start a system and its clients."""
    peer = PEERS[name]
    if name in OURS:
        flush = "SYNC_FLUSH" if peer.durability is Durability.DISK else "ASYNC_FLUSH"
        with (
            Group(directory / "cluster", overrides={"storage": {"flush": flush}}) as cluster,
            AdminClient(cluster.name_server_address) as admin,
        ):
            yield Ours(lanes.Bench(cluster, admin, lanes.QUICK, directory))
        return
    with running(peer, QUICK, Ports(ports), directory) as found:
        yield Theirs(found)


def section(rows: Sequence[Row], names: Sequence[str], seconds: float) -> str:
    """Return the section of the page."""
    lines = [
        "## One queue, many workers, in order per key",
        "",
        (
            f"`make bench-by-key`: one queue, {KEYS:,} keys and {WORKERS} concurrent handlers, each of which waits {HANDLER_MS} ms and uses no CPU. Each"
            f" system has three nodes, which share {os.cpu_count()} CPUs with the clients; {time.strftime('%Y-%m-%d', time.gmtime())}."
        ),
    ]
    others = [row for row, name in zip(rows, names, strict=True) if name not in OURS]
    found = list(behind(rows[0], others)) if names[0] in OURS else []
    if found:
        lines += ["", "Figures in which ours is behind, the widest gap first:", "", *found]
    lines += ["", *table(rows), ""]
    lines += [
        (
            f"* Messages/s: {rows[0].stored:,} stored messages are handled, for at most {seconds:g} s. The handlers allow"
            f" {WORKERS * 1000 // HANDLER_MS:,} messages/s. The CPU time is that of all nodes and consumers in this time, idle or not."
        ),
        (
            f"* p99: {RATE} messages/s for {seconds:g} s, after {WARM_S:g} s that does not count. The time is from the call of a send to the end of the handler's call, for healthy keys. With"
            f" poison, one message in {POISON_EVERY} belongs to one of ten keys whose handler always fails. *Falls behind*: some messages are not handled"
            f" {GRACE_S:g} s after the last send. *Stands still*: no message was handled in the last five seconds of this wait."
        ),
        (
            "* Class: where a message is stored when its send is acknowledged: on disk or in memory, in both cases at a majority."
        ),
        (
            "* Out of order: messages that were handled before an earlier message of the same key had ended. Delivered again: healthy"
            " messages that were handled more than once. Both count all three works."
        ),
        (
            "* Consumers to the first message: for ours, this includes the start of four processes; for NATS, the creation of a consumer"
            " per key. The load program of the other systems is already running."
        ),
    ]
    for row, name in zip(rows, names, strict=True):
        peer = PEERS[name]
        driven = DRIVEN["orderlymq" if name in OURS else peer.client]
        client = f"orderlymq {peer.version()}" if name in OURS else peer.client_version
        lines.append(
            f"* {row.title}, {client}. Acknowledged means {peer.acknowledged}. {driven[0].upper()}{driven[1:]}."
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer messages, for five seconds")
    parser.add_argument("--peers", nargs="+", choices=NAMES, default=list(USUAL))
    parser.add_argument("--seconds", type=float, help="of each steady load, and of a drain at most")
    parser.add_argument("--stored", type=int, help="messages of the drain")
    parser.add_argument("--ports", type=int, default=PORTS, help="the first port to use")
    parser.add_argument("--write", type=Path, help="also write the section into this page")
    given = parser.parse_args()
    if given.write is not None and not set(USUAL) <= set(given.peers):
        parser.error(
            "--peers runs some systems, and --write would replace the rows of all: leave out --write, or name "
            + ", ".join(USUAL)
        )
    seconds = given.seconds or (5.0 if given.quick else 20.0)
    stored = given.stored or (8_000 if given.quick else 60_000)
    # Stop the cluster before a requested exit: it runs in a separate session and would otherwise continue.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if not set(given.peers) <= OURS.keys():
        fetch.load_program()
        fetch.peers(given.peers)
    names, rows, failed = [], [], []
    for name in given.peers:
        missing = PEERS[name].missing()
        if missing is not None:
            print(f"{name} is left out; {missing}", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory(prefix=f"bench-{name}-") as folder:
            try:
                with started(name, Path(folder), given.ports) as clients:
                    rows.append(measure(name, clients, stored, seconds))
                names.append(name)
            # After any error, the other systems must still be measured.
            except Exception as error:
                failed.append(f"{name} failed: {error}")
                print(failed[-1], file=sys.stderr)
    if rows:
        text = section(rows, names, seconds)
        print(text)
        if given.write is not None and not failed and set(USUAL) <= set(names):
            sections.put(given.write, "by-key", text)
    if failed:
        sys.exit(f"{len(failed)} systems failed, nothing is written: {failed[0][:2000]}")


if __name__ == "__main__":
    main()
