"""
Measures the guarantees of key lanes: each work with and without a disturbance.

``python -m bench.lanes [--quick] [--only NAME ...] [--write docs/explanation/benchmarks.md]``. A name server and three replicas run
on loopback beside the consumers, which are processes of the SDK (``bench/laneworker.py``). Handlers wait, so that they use no
CPU. A delay is the time from the call of a send to the end of the listener's call.
"""

import argparse
import asyncio
import gc
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

import msgspec
import psutil
import uvloop
from bench.handled import Done, messages, p99_ms, per_second, read, whole
from bench.lanerows import rows_per_message
from bench.laneworker import POISON
from bench.report.figures import shown
from tests.broker.state.lanes.world import LaneWorld
from tests.cluster.processes import Group

import orderlymq_raft
from bench.report import sections
from orderlymq import Message, Producer, SendResult
from orderlymq.blocking import AdminClient
from orderlymq_broker.state.lanes.lanerecords import ReportKind
from orderlymq_broker.state.lanes.table import LaneTable
from orderlymq_protocol.body.config import SubscriptionGroupConfig
from orderlymq_protocol.body.lanes import BY_KEY, BY_QUEUE

_QUEUES: Final = 8
_WAIT_S: Final = 300.0
_IN_FLIGHT: Final = 256
_BATCH: Final = 1_000
_MEBI: Final = 1 << 20
_ROUNDS: Final = 5  # of figures that are compared in one store
_POISON_SHARE: Final = 50  # one message in this many has a poison key
POISON_RATE: Final = 500.0
# The limit for a handler that is not slow: quick ones take no time, slow ones twice this limit.
_QUICK_NS: Final = 50_000_000


@dataclass(frozen=True, slots=True)
class Scale:
    """The sizes of a run."""

    empty: int  # messages for empty handlers
    one_worker: int  # messages for the one worker
    many_workers: int
    seconds: float  # of a paced load
    poisoned_keys: int  # healthy keys beside poison
    deep: int  # messages of the key that is parked
    keys: int  # seen by the table

    @property
    def poison_seconds(self) -> float:
        """The seconds until all keys have come, with poison messages among them."""
        return self.poisoned_keys / POISON_RATE / (1 - 1 / _POISON_SHARE) + 1


FULL: Final = Scale(40_000, 600, 30_000, 30.0, 100_000, 1_000_000, 1_000_000)
QUICK: Final = Scale(4_000, 200, 4_000, 5.0, 2_000, 20_000, 50_000)


@dataclass(slots=True)
class Worker:
    """A consumer process and its log."""

    process: subprocess.Popen[bytes]
    log: Path

    def lines(self) -> list[str]:
        """Return the complete lines of its log."""
        return whole(self.log.read_text()) if self.log.exists() else []

    def done(self) -> list[Done]:
        """Return the messages that it has finished so far."""
        return list(read(self.lines()))

    def end(self) -> None:
        """Ask the process to end, and wait for it."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass(slots=True)
class Bench:
    """A running cluster, its administrator and the rows of the table."""

    cluster: Group
    admin: AdminClient
    scale: Scale
    directory: Path
    rows: list[tuple[str, str, str]] = field(default_factory=list)
    _numbers: "count[int]" = field(default_factory=count)

    def topic(self, queues: int = _QUEUES) -> str:
        """Create an ordered topic."""
        name = f"lanes-{next(self._numbers)}"
        self.admin.create_topic(name, queues=queues, ordered=True)
        return name

    def group(self, mode: str = BY_KEY) -> str:
        """Create a consumer group with this concurrency."""
        name = f"group-{next(self._numbers)}"
        self.admin.set_group(
            SubscriptionGroupConfig(
                group_name=name, consume_message_orderly=True, concurrency=mode, retry_max_times=-1
            )
        )
        return name

    @contextmanager
    def workers(
        self, topic: str, group: str, processes: int = 1, **given: object
    ) -> Iterator[list[Worker]]:
        """Run consumers until the block ends; all have joined when the block begins."""
        started = []
        try:
            for _ in range(processes):
                log = self.directory / f"worker-{next(self._numbers)}.log"
                words = [self.cluster.name_server_address, topic, group, str(log)]
                for name, value in given.items():
                    words += [f"--{name.replace('_', '-')}", str(value)]
                command = [sys.executable, "-m", "bench.laneworker", *words]
                noise = log.with_suffix(".err").open("wb")
                started.append(Worker(subprocess.Popen(command, stderr=noise), log))
                noise.close()
            until(lambda: all(each.lines() for each in started), "the workers have joined")
            yield started
        finally:
            for each in started:
                each.end()

    def cpu_s(self, workers: Sequence[Worker]) -> float:
        """Return the CPU seconds that the replicas and these workers have used so far."""
        pids = [each.pid for each in self.cluster.brokers.values()]
        pids += [each.process.pid for each in workers]
        times = [psutil.Process(pid).cpu_times() for pid in pids]
        return sum(each.user + each.system for each in times)

    def row(self, work: str, figure: str, reach: str) -> None:
        """Add a line to the table and print it."""
        self.rows.append((work, figure, reach))
        print(f"{work}: {figure} (to reach: {reach})", flush=True)


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {_WAIT_S:g} s in vain until {what}")
        time.sleep(0.02)


async def store(name_server: str, topic: str, keys: Sequence[str]) -> None:
    """Send one message per key as fast as possible, in order per key."""
    async with Producer("bench-lanes", name_server) as producer:
        window = asyncio.Semaphore(_IN_FLIGHT)

        def sent(_: object) -> None:
            window.release()

        futures = []
        for key in keys:
            await window.acquire()
            future = producer.send_nowait(topic, str(time.monotonic_ns()), key=key)
            future.add_done_callback(sent)
            futures.append(future)
        await asyncio.gather(*futures)


async def _store_deep(name_server: str, topic: str, key: str, number: int) -> None:
    """Send many messages of one key in large batches, one request at a time."""
    async with Producer("bench-lanes", name_server) as producer:
        for start in range(0, number, _BATCH):
            stamp = str(time.monotonic_ns())
            count = min(_BATCH, number - start)
            await producer.send_batch(
                [Message(topic=topic, body=stamp.encode()) for _ in range(count)], key=key
            )


async def pace(
    name_server: str, topic: str, keys: Iterator[str], rate: float, seconds: float
) -> int:
    """Send *rate* messages per second, regardless of how slow the answers are; return the number of messages."""
    async with Producer("bench-lanes", name_server) as producer:
        began = time.monotonic()
        futures: list[asyncio.Future[SendResult]] = []
        while time.monotonic() - began < seconds:
            due = int((time.monotonic() - began) * rate) + 1
            while len(futures) < due:
                futures.append(
                    producer.send_nowait(topic, str(time.monotonic_ns()), key=next(keys))
                )
            await asyncio.sleep(0.001)
        await asyncio.gather(*futures)
        return len(futures)


def _all(workers: Sequence[Worker]) -> list[Done]:
    return [done for worker in workers for done in worker.done()]


def _wait_for(workers: Sequence[Worker], messages: int) -> list[Done]:
    """Wait until this many messages are done, not counting poison."""
    until(
        lambda: sum(len(each.lines()) - 1 for each in workers) >= messages,
        f"{messages} messages are done",
    )
    return _all(workers)


def empty_handlers(bench: Bench) -> None:
    """Measure one consumer that drains stored messages, by queue and by key."""
    number = bench.scale.empty
    topic = bench.topic()
    keys = [f"key-{each % (number // 4)}" for each in range(number)]
    uvloop.run(store(bench.cluster.name_server_address, topic, keys))
    rates, spent = {}, {}
    for by, mode in (("queue", BY_QUEUE), ("key", BY_KEY)):
        with bench.workers(topic, bench.group(mode), by=by, workers=20) as workers:
            before = bench.cpu_s(workers)
            rates[by] = per_second(_wait_for(workers, number))
            spent[by] = (bench.cpu_s(workers) - before) / number * 1e6
    bench.row(
        "Empty handlers, one consumer, stored messages: lanes against queue locks",
        f"{shown(rates['key'])} against {shown(rates['queue'])} messages/s, {rates['key'] / rates['queue']:.2f}x",
        "0.6x",
    )
    bench.row(
        "The same: CPU of the consumer and three replicas per message, which others on the machine change little",
        f"{spent['key']:.0f} against {spent['queue']:.0f} µs, {spent['key'] / spent['queue']:.1f}x",
        "none",
    )


def one_queue(bench: Bench) -> None:
    """Measure handlers of 10 ms on one queue: one worker under the queue lock, and 64 workers by key."""
    rates = {}
    for by, mode, number, processes, workers in (
        ("queue", BY_QUEUE, bench.scale.one_worker, 1, 1),
        ("key", BY_KEY, bench.scale.many_workers, 4, 16),
    ):
        topic = bench.topic(queues=1)
        keys = [f"key-{each}" for each in range(number)]
        uvloop.run(store(bench.cluster.name_server_address, topic, keys))
        given = (topic, bench.group(mode), processes)
        with bench.workers(*given, by=by, workers=workers, handler_ms=10) as running:
            rates[by] = per_second(_wait_for(running, number))
    bench.row(
        "One queue, handlers of 10 ms: 64 workers in four processes against one worker",
        f"{shown(rates['key'])} against {shown(rates['queue'])} messages/s, {rates['key'] / rates['queue']:.0f}x",
        "50x",
    )


def poison_keys(number: int, *, poisoned: bool) -> Iterator[str]:
    """Yield the keys of a load with this many healthy keys; if it is *poisoned*, with ten keys that always fail."""
    healthy = (f"key-{each % number}" for each in count())
    for each in count():
        is_bad = poisoned and each % _POISON_SHARE == 0
        yield f"{POISON}-{each // _POISON_SHARE % 10}" if is_bad else next(healthy)


def quick_ones(done: Sequence[Done]) -> list[Done]:
    """Return the messages whose handlers were not slow; they may have waited for others."""
    return [each for each in done if each.done - each.begun < _QUICK_NS]


def poison(bench: Bench) -> None:
    """Measure how ten keys that always fail affect the healthy keys; one handler in a hundred takes 100 ms.

    Slow handlers are a hundredth of all, so the p99 of all messages is at their edge. The p99 of the other messages
    shows the cost of poison.
    """
    number, seconds = bench.scale.poisoned_keys, bench.scale.poison_seconds
    found: dict[bool, list[Done]] = {}
    for poisoned in (False, True):
        topic, group = bench.topic(), bench.group()
        keys = poison_keys(number, poisoned=poisoned)
        with bench.workers(topic, group, by="key", workers=64, slow_every=100) as workers:
            load = pace(bench.cluster.name_server_address, topic, keys, POISON_RATE, seconds)
            sent = uvloop.run(load)
            healthy = sent - (-(-sent // _POISON_SHARE) if poisoned else 0)
            found[poisoned] = _wait_for(workers, healthy)
    work = f"{number:,} keys, 1 % of the handlers 100 ms, {POISON_RATE:.0f} messages/s"
    for which, chosen in (("healthy keys", list), ("those whose handler is not slow", quick_ones)):
        with_it, without = (p99_ms(chosen(found[poisoned])) for poisoned in (True, False))
        bench.row(
            f"{work}: p99 of {which} with ten poison keys, without",
            f"{with_it:.1f} against {without:.1f} ms, {with_it / without:.2f}x",
            "1.2x",
        )


def deep_backlog(bench: Bench) -> None:
    """Measure how one key that is parked with a deep backlog affects the other keys.

    Both queues are in one store and equally deep, because depth has a cost of its own. The other queue's consumer
    group has skipped its messages. Each goes first in every second round, and the median of each figure counts.
    """
    deep, passed = ((bench.topic(queues=1), bench.group()) for _ in range(2))
    address = bench.cluster.name_server_address
    for topic, _ in (deep, passed):
        uvloop.run(_store_deep(address, topic, f"{POISON}-deep", bench.scale.deep))
    bench.admin.reset_offsets(passed[1], passed[0], "latest")
    figures: dict[tuple[str, str], list[tuple[float, ...]]] = {deep: [], passed: []}
    for number in range(_ROUNDS):
        for queue in (passed, deep) if number % 2 else (deep, passed):
            figures[queue].append(_others(bench, *queue))
    with_it, without = (
        [statistics.median(figure) for figure in zip(*rounds, strict=True)]
        for rounds in figures.values()
    )
    key = f"One key parked with {bench.scale.deep:,} messages"
    bench.row(
        f"{key}: p99 of others at 500 messages/s, with and without",
        f"{with_it[0]:.1f} against {without[0]:.1f} ms, {with_it[0] / without[0]:.2f}x",
        "1.05x",
    )
    bench.row(
        f"{key}: rate of a burst of {bench.scale.empty:,} others, with and without",
        f"{shown(with_it[1])} against {shown(without[1])} messages/s, {with_it[1] / without[1]:.2f}x",
        "0.95x",
    )
    bench.row(
        "The same: CPU of the consumer and three replicas per message of the burst, with and without",
        f"{with_it[2]:.0f} against {without[2]:.0f} µs, {with_it[2] / without[2]:.2f}x",
        "1.05x",
    )


def _others(bench: Bench, topic: str, group: str) -> tuple[float, float, float]:
    """Return figures of a queue's healthy keys: p99 in ms of a paced load; messages/s and CPU in us of a burst."""
    address, burst = bench.cluster.name_server_address, bench.scale.empty
    with bench.workers(topic, group, by="key", workers=64) as workers:
        # The scan passes the backlog once; the first message waits for that.
        uvloop.run(store(address, topic, ["first"]))
        _wait_for(workers, 1)
        names = (f"key-{each * 7919 % 10_000}" for each in count())
        sent = uvloop.run(pace(address, topic, names, 500.0, bench.scale.seconds))
        done = _wait_for(workers, 1 + sent)
        p99 = p99_ms([each for each in done if each.key != "first"])
        begin_s = bench.cpu_s(workers)
        uvloop.run(store(address, topic, [f"burst-{each}" for each in range(burst)]))
        done = _wait_for(workers, len(done) + burst)
        spent_us = (bench.cpu_s(workers) - begin_s) / burst * 1e6
    return p99, per_second([each for each in done if each.key.startswith("burst")]), spent_us


def deep_rows(bench: Bench) -> None:
    """Measure the same in rows of the store, which other load on the machine does not change."""
    (once, deep), (_, shallow) = rows_per_message(bench.scale.deep), rows_per_message(1)
    bench.row(
        f"One key parked with {bench.scale.deep:,} messages: rows read and written per message of others, with and without",
        f"{deep:.3f} against {shallow:.3f}, {deep / shallow:.3f}x; {once:.2f} per message of the key, once",
        "1.05x",
    )


def killed_consumer(bench: Bench) -> None:
    """Kill one of four consumers: measure when its lanes continue, and which other messages are delivered twice."""
    topic, group = bench.topic(), bench.group()
    with bench.workers(topic, group, 4, by="key", workers=16, handler_ms=10) as workers:

        async def load() -> tuple[int, int]:
            names = (f"key-{each * 7919 % 2_000}" for each in count())
            loading = asyncio.create_task(
                pace(bench.cluster.name_server_address, topic, names, 800.0, bench.scale.seconds)
            )
            await asyncio.sleep(bench.scale.seconds / 2)
            at = time.monotonic_ns()
            workers[0].process.kill()
            return at, await loading

        killed, sent = uvloop.run(load())
        until(lambda: len(messages(_all(workers))) >= sent, "all messages are done")
        victim, others = workers[0].done(), [each.done() for each in workers[1:]]
    survivors = [each for found in others for each in found]
    # Messages sent before the kill and finished by others well after it were held by the killed consumer.
    taken = [each for each in survivors if each.sent < killed < each.done - 20_000_000]
    late = max((each.done for each in taken), default=killed) - killed
    twice = len(survivors) - len(messages(survivors))
    again = len(messages(victim) & messages(survivors))
    bench.row(
        "One of four consumers is killed at 800 messages/s: until all that it had in hand is done elsewhere",
        f"{late / 1e9:.2f} s; {again} of its own and {twice} of others' messages came twice",
        "0.2 s; none of others",
    )


def state(bench: Bench) -> None:
    """See a million keys, grant 1,000 lanes and park 100: measure the table's memory and the bytes in a snapshot."""
    number = bench.scale.keys
    world = LaneWorld([f"key-{each}" for each in range(number)])
    batch = 250
    while world.committed is None or world.committed < number - 1_250:
        for granted in world.fetch(scan=batch):
            world.done(granted)
    parked = world.fetch(scan=100)
    for granted in parked:
        world.say("a", ReportKind.RETRY, granted, due_ms=1 << 50)
    # The simulation would grant parked lanes again; these fetches take only new ones.
    held = [granted for _ in range(4) for granted in world.fetch(scan=batch, ready=0)]
    gc.collect()
    tracemalloc.start()
    table = LaneTable(world.replica.store)
    gc.collect()
    memory, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    stored = sum(len(msgspec.msgpack.encode(row)) for row in table.rows())
    bench.row(
        f"State of {number:,} keys seen, {len(held):,} lanes in hand, {len(parked)} parked",
        f"{memory / _MEBI:.2f} MiB in memory, {stored / _MEBI:.2f} MiB in a snapshot",
        "5 and 1 MiB",
    )


WORKS: Final[dict[str, Callable[[Bench], None]]] = {
    each.__name__: each
    for each in (empty_handlers, one_queue, poison, deep_backlog, deep_rows, killed_consumer, state)
}


def form() -> str:
    """Return whether the processes that this one starts run compiled modules, as in the image, or the sources."""
    compiled = any(Path(orderlymq_raft.__path__[0]).glob("*.so"))
    return "compiled as in the image" if compiled else "not compiled"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a minute, with small numbers")
    parser.add_argument("--only", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--write", type=Path, help="also write the table into this page")
    given = parser.parse_args()
    if given.write is not None and set(given.only) != set(WORKS):
        parser.error(
            "--only runs some works, and --write would replace the rows of all: leave out --write, or --only"
        )
    # Stop the cluster before a requested exit: it runs in a separate session and would otherwise continue.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        with (
            Group(folder / "cluster") as cluster,
            AdminClient(cluster.name_server_address) as admin,
        ):
            bench = Bench(cluster, admin, QUICK if given.quick else FULL, folder)
            for name in given.only:
                WORKS[name](bench)
    if given.write is not None:
        rows = "\n".join(f"| {work} | {figure} | {reach} |" for work, figure, reach in bench.rows)
        about = (
            f"`make bench-lanes`: three replicas, {form()}, and the consumers on {os.cpu_count()} CPUs;"
            f" {time.strftime('%Y-%m-%d', time.gmtime())}. A delay is from the call of a send to the end of the listener's call."
        )
        text = f"## Key lanes\n\n{about}\n\n| work | measured | aim |\n|---|---|---|\n{rows}"
        sections.put(given.write, "lanes", text)


if __name__ == "__main__":
    main()
