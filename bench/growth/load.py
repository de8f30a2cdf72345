"""
The work at every decade: sends at full speed, sends at a steady pace, a killed leader, a restart.

The load runs in this process, whose CPU is not counted; the figures are those of the three replicas.
"""

import asyncio
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final

import psutil
from bench.peers.nodes import occupied
from bench.rest import rested
from tests.cluster.processes import Group

from orderlymq import Producer
from orderlymq.errors import OrderlyMQError

TOPIC: Final = "growth-load"
QUEUES: Final = 8
_WARM_S: Final = 1.0
_MEBI: Final = 1 << 20
#: A pace that two cores sustain with any backlog. At full speed, p99 would mostly measure the queue before the broker.
PACE: Final = 300.0
_RESTART_TIMEOUT_S: Final = 120.0
#: Compactions of a hundred million messages take minutes, so this limit is long.
_REST_LIMIT_S: Final = 900.0
_AGAIN_S: Final = 0.005

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Load:
    """The messages that are sent.

    Attributes:
        topic: the target.
        size: of a body, in bytes.
        keys: the number of sharding keys, used in turn.
        senders: concurrent sends at full speed.
        seconds: of each measured part.
        pace: messages/s of the steady part.
    """

    topic: str = TOPIC
    size: int = 1024
    keys: int = 10_000
    senders: int = 64
    seconds: float = 5.0
    pace: float = PACE


async def rest(cluster: Group, seconds: float) -> None:
    """Wait until the replicas have flushed and compacted their data; read the disk every *seconds*."""
    folders = [cluster.data_dir(node) for node in cluster.brokers]
    await asyncio.to_thread(
        rested, lambda: sum(map(occupied, folders)), every_s=seconds, limit_s=_REST_LIMIT_S
    )


async def measure(cluster: Group, load: Load) -> Figures:
    """Return rate (messages/s), cpu_us (per message), p50_ms and p99_ms at the pace, idle_percent and rss_mib."""
    leader = psutil.Process(cluster.brokers[cluster.wait_for_leader()].pid)
    async with Producer("growth", cluster.name_server_address) as producer:
        await _full_speed(producer, load, _WARM_S)
        before, began = cpu_s(cluster), time.monotonic()
        sent = await _full_speed(producer, load, load.seconds)
        elapsed, used = time.monotonic() - began, cpu_s(cluster) - before
        delays = await _paced(producer, load)
    await asyncio.sleep(_WARM_S)
    idle_before, idle_began = leader.cpu_times(), time.monotonic()
    await asyncio.sleep(load.seconds / 2)
    idle_after, idle_s = leader.cpu_times(), time.monotonic() - idle_began
    cuts = statistics.quantiles(delays, n=100)
    return {
        "rate": sent / elapsed,
        "cpu_us": used / sent * 1e6,
        "p50_ms": cuts[49] * 1e3,
        "p99_ms": cuts[98] * 1e3,
        "idle_percent": 100
        * (idle_after.user + idle_after.system - idle_before.user - idle_before.system)
        / idle_s,
        "rss_mib": leader.memory_info().rss / _MEBI,
    }


async def kill_leader(cluster: Group, load: Load) -> Figures:
    """Kill the leader with SIGKILL and start it again.

    Returns:
        failover_s: until the first send that began after the kill is acknowledged; terms: the terms that began
            meanwhile;
        start_s: from the start of the killed process until it has applied everything that the others have.
    """
    victim = cluster.wait_for_leader()
    term = _term(cluster)
    async with Producer("growth-kill", cluster.name_server_address) as producer:
        await producer.send(load.topic, bytes(load.size), key=0)
        cluster.brokers[victim].kill()
        began = time.monotonic()
        while True:
            try:
                await producer.send(load.topic, bytes(load.size), key=0, timeout=1.0)
            except OrderlyMQError:
                await asyncio.sleep(_AGAIN_S)
            else:
                break
        failover_s = time.monotonic() - began
    terms = _term(cluster) - term
    began = time.monotonic()
    cluster.brokers[victim].start()
    await asyncio.to_thread(cluster.wait_until_equal, _RESTART_TIMEOUT_S)
    start_s = time.monotonic() - began
    return {"failover_s": failover_s, "terms": float(terms), "start_s": start_s}


def _term(cluster: Group) -> int:
    return max(int(status["term"]) for status in cluster.statuses())


def cpu_s(cluster: Group) -> float:
    """Return the CPU seconds that all replicas have used so far."""
    times = [psutil.Process(child.pid).cpu_times() for child in cluster.brokers.values()]
    return sum(each.user + each.system for each in times)


def _keys(load: Load) -> Iterator[int]:
    # The step has no common factor with a decade, so consecutive keys are not neighbours in the table of keys.
    return (each * 7919 % load.keys for each in count())


async def _full_speed(producer: Producer, load: Load, seconds: float) -> int:
    """Send from all senders until the time is over; return the number of acknowledged sends."""
    body, keys, deadline = bytes(load.size), _keys(load), time.monotonic() + seconds

    async def sender() -> int:
        sent = 0
        while time.monotonic() < deadline:
            await producer.send(load.topic, body, key=next(keys))
            sent += 1
        return sent

    return sum(await asyncio.gather(*(sender() for _ in range(load.senders))))


async def _paced(producer: Producer, load: Load) -> list[float]:
    """Send at the pace, regardless of how slow the answers are; return the seconds of each send."""
    body, keys, began = bytes(load.size), _keys(load), time.monotonic()

    async def one() -> float:
        start = time.perf_counter()
        await producer.send(load.topic, body, key=next(keys))
        return time.perf_counter() - start

    tasks: list[asyncio.Task[float]] = []
    while (elapsed := time.monotonic() - began) < load.seconds:
        while len(tasks) < elapsed * load.pace:
            tasks.append(asyncio.create_task(one()))
        await asyncio.sleep(0.001)
    return await asyncio.gather(*tasks)
