"""
Measures one group on this machine: acknowledged sends, then a drain of what is stored.

``python -m bench.sends [--quick] [--in-flight 1 16 64 256]``. A name server and three replicas
run on loopback and share the machine with the load; an acknowledgement means: on disk at a
majority. Rounds are interleaved and the median is shown with the extremes, because a busy
machine moves single rounds by a factor of two.
"""

import argparse
import asyncio
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import uvloop
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from tests.cluster.bareclient import send_command
from tests.cluster.processes import Child, Group

from bench.report import conditions
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import request
from orderlymq_protocol.header.catalogue import PullMessageHeader
from orderlymq_runtime.remoting.client import RemotingClient

QUEUES = 8
CLIENTS = 4
TOPIC = "bench"


@dataclass(frozen=True)
class Round:
    """One measured round: operations per second.

    For sends also latencies in ms, and the CPU per send in us, of all replicas and of the leaders.
    """

    rate: float
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    cpu_us: float = 0.0
    leader_us: float = 0.0


async def measure(
    groups: Sequence[Group], in_flight: int, seconds: float, size: int, clients: int = CLIENTS
) -> Round:
    """Send for *seconds* with *in_flight* senders that each wait for acknowledgements; senders take groups in turn."""
    body = os.urandom(size // 2).hex().encode()
    # Each connection belongs to one raft group.
    addresses = [
        groups[number % len(groups)].address for number in range(max(clients, len(groups)))
    ]
    connections = [RemotingClient() for _ in addresses]
    for connection, address in zip(connections, addresses, strict=True):
        await connection.invoke(address, send_command(TOPIC, 0, body), 5.0)
    leaders = [group.brokers[group.wait_for_leader()] for group in groups]
    brokers = [broker for group in groups for broker in group.brokers.values()]
    latencies: list[float] = []
    numbers = itertools.count()
    end = time.perf_counter() + seconds

    async def sender(number: int) -> None:
        place = number % len(connections)
        while (began := time.perf_counter()) < end:
            key = f"{number:016X}{next(numbers):016X}"
            command = send_command(TOPIC, number % QUEUES, body, unique_key=key)
            reply = await connections[place].invoke(addresses[place], command, 5.0)
            if reply.code != ResponseCode.SUCCESS:
                raise RuntimeError(f"a send was refused: code {reply.code}, {reply.remark}")
            latencies.append(time.perf_counter() - began)

    began, cpu_s, leaders_s = time.perf_counter(), _cpu_s(brokers), _cpu_s(leaders)
    await asyncio.gather(*(sender(number) for number in range(in_flight)))
    elapsed = time.perf_counter() - began
    cpu_s, leaders_s = _cpu_s(brokers) - cpu_s, _cpu_s(leaders) - leaders_s
    for connection in connections:
        await connection.close()
    latencies.sort()
    return Round(
        len(latencies) / elapsed,
        latencies[len(latencies) // 2] * 1000,
        latencies[int(len(latencies) * 0.99)] * 1000,
        cpu_s * 1e6 / len(latencies),
        leaders_s * 1e6 / len(latencies),
    )


def _cpu_s(brokers: Sequence[Child]) -> float:
    """Return the CPU seconds that replicas have used."""
    times = [psutil.Process(broker.pid).cpu_times() for broker in brokers]
    return sum(each.user + each.system for each in times)


async def drain(group: Group, consumers: int) -> Round:
    """Pull all stored messages, 32 at a time; one consumer reads each queue in order."""
    client = RemotingClient()
    pulled = 0

    async def consumer(number: int) -> None:
        nonlocal pulled
        for queue_id in range(number, QUEUES, consumers):
            offset = 0
            while True:
                header = PullMessageHeader(
                    consumer_group="bench-drain",
                    topic=TOPIC,
                    queue_id=queue_id,
                    queue_offset=offset,
                    max_msg_nums=32,
                    sys_flag=0x4,
                    commit_offset=0,
                    suspend_timeout_millis=0,
                    subscription="*",
                    sub_version=0,
                )
                command = request(RequestCode.PULL_MESSAGE, header.to_ext())
                reply = await client.invoke(group.address, command, 10.0)
                if reply.code != ResponseCode.SUCCESS:
                    break
                # Queue offsets have no gaps, so differences of offsets count messages.
                pulled += int(reply.ext["nextBeginOffset"]) - offset
                offset = int(reply.ext["nextBeginOffset"])

    began = time.perf_counter()
    await asyncio.gather(*(consumer(number) for number in range(consumers)))
    elapsed = time.perf_counter() - began
    await client.close()
    return Round(pulled / elapsed)


Results = dict[str, list[Round]]


async def run(given: argparse.Namespace) -> Results:
    """Start a group and measure all rounds."""
    rounds = 2 if given.quick else given.rounds
    seconds = 1.5 if given.quick else given.seconds
    results: Results = {}
    with tempfile.TemporaryDirectory() as directory, Progress(disable=given.json) as progress:
        group = Group(Path(directory), given.replicas)
        task = progress.add_task("measuring", total=rounds * (len(given.in_flight) + 2))
        try:
            group.start()
            for _ in range(rounds):
                for in_flight in given.in_flight:
                    name = f"sends, {in_flight} in flight, {given.size} B"
                    progress.update(task, description=name)
                    found = await measure([group], in_flight, seconds, given.size)
                    results.setdefault(name, []).append(found)
                    progress.advance(task)
                for consumers in (1, 4):
                    name = f"drain by {consumers}"
                    progress.update(task, description=name)
                    results.setdefault(name, []).append(await drain(group, consumers))
                    progress.advance(task)
        finally:
            group.stop()
    return results


def rows(results: Results) -> list[Sequence[str]]:
    """Return one row per measurement: name, rates and median latencies."""
    return [
        (
            name,
            f"{min(r.rate for r in rounds):,.0f}",
            f"{statistics.median(r.rate for r in rounds):,.0f}",
            f"{max(r.rate for r in rounds):,.0f}",
            f"{statistics.median(r.p50_ms for r in rounds):.2f}" if rounds[0].p50_ms else "",
            f"{statistics.median(r.p99_ms for r in rounds):.2f}" if rounds[0].p50_ms else "",
            f"{statistics.median(r.cpu_us for r in rounds):.0f}" if rounds[0].p50_ms else "",
        )
        for name, rounds in results.items()
    ]


Medians = Mapping[str, float]


def medians(results: Results) -> dict[str, Medians]:
    """Return the median of each figure, by work; a drain has only a rate."""
    return {
        name: {
            figure: statistics.median(getattr(each, figure) for each in rounds)
            for figure in ("rate", "p50_ms", "p99_ms", "cpu_us")
            if figure == "rate" or rounds[0].p50_ms
        }
        for name, rounds in results.items()
    }


HEADINGS = ("work", "min /s", "median /s", "max /s", "p50 ms", "p99 ms", "CPU us")


def main() -> None:
    """Read the command line and run the measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--quick", action="store_true", help="two short rounds")
    parser.add_argument("--json", action="store_true", help="medians for a program to read")
    given = parser.parse_args()

    results = uvloop.run(run(given))

    if given.json:
        print(json.dumps({"python": conditions.python(), "works": medians(results)}))
        return
    table = Table(*HEADINGS)
    for row in rows(results):
        table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    main()
