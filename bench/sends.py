"""
Sends per second through a real group: a name server and three replicas on loopback.

``python bench/sends.py [--replicas 3] [--in-flight 1 64 256] [--seconds 5] [--size 1024]`` prints rate
and latencies for each number of sends in flight. Sender and replicas share this machine.
"""

import argparse
import asyncio
import itertools
import tempfile
import time
from pathlib import Path

import uvloop
from tests.cluster.messaging import send_command
from tests.cluster.processes import Group

from orderlymq_protocol.codes import ResponseCode
from orderlymq_runtime.client import RemotingClient

QUEUES = 8


async def measure(group: Group, in_flight: int, seconds: float, size: int, clients: int) -> None:
    body = b"x" * size
    connections = [RemotingClient() for _ in range(clients)]
    for connection in connections:
        await connection.invoke(group.address, send_command("bench", 0, body), 5.0)
    latencies: list[float] = []
    failed = 0
    end = time.perf_counter() + seconds
    numbers = itertools.count()

    async def sender(number: int) -> None:
        nonlocal failed
        connection = connections[number % len(connections)]
        while True:
            began = time.perf_counter()
            if began >= end:
                return
            key = f"{number:016X}{next(numbers):016X}"
            command = send_command("bench", number % QUEUES, body, unique_key=key)
            reply = await connection.invoke(group.address, command, 5.0)
            if reply.code == ResponseCode.SUCCESS:
                latencies.append(time.perf_counter() - began)
            else:
                failed += 1

    began = time.perf_counter()
    await asyncio.gather(*(sender(number) for number in range(in_flight)))
    elapsed = time.perf_counter() - began
    for connection in connections:
        await connection.close()
    latencies.sort()
    middle = latencies[len(latencies) // 2] * 1000
    high = latencies[int(len(latencies) * 0.99)] * 1000
    print(
        f"{in_flight:4d} in flight: {len(latencies) / elapsed:8.0f} sends/s, "
        f"p50 {middle:6.2f} ms, p99 {high:6.2f} ms, {failed} refused"
    )


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--clients", type=int, default=4)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        group = Group(Path(directory), given.replicas)
        try:
            group.start()
            for in_flight in given.in_flight:
                await measure(group, in_flight, given.seconds, given.size, given.clients)
            leader = group.leader()
            print(None if leader is None else group.status(leader))
        finally:
            group.stop()


if __name__ == "__main__":
    uvloop.run(main())
