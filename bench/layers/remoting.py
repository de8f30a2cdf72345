"""
Echo throughput of the remoting server and client over loopback: what the shell costs by itself.

The server runs in a process of its own, as brokers do; the client keeps a fixed number of requests in
flight on one connection. Run `python -m bench.layers.remoting [--in-flight 64] [--body 1024] [--seconds 3]`.
"""

import argparse
import asyncio
import multiprocessing
import multiprocessing.connection
import time
from dataclasses import dataclass

import uvloop

from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_runtime.remoting.client import RemotingClient
from orderlymq_runtime.remoting.connection import Connection
from orderlymq_runtime.remoting.server import RemotingServer


class _Echo:
    def connection_made(self, conn: Connection) -> None:
        pass

    def received(self, conn: Connection, command: RemotingCommand) -> None:
        conn.send(command.reply(0, {"queueOffset": "1"}, command.body))

    def connection_lost(self, conn: Connection) -> None:
        pass


def serve(ready: multiprocessing.connection.Connection) -> None:
    async def main() -> None:
        server = RemotingServer(_Echo())
        _, port = await server.listen("127.0.0.1", 0)
        ready.send(port)
        await asyncio.Event().wait()

    uvloop.run(main())


@dataclass(frozen=True, slots=True)
class Echoed:
    """Calls per second, and two percentiles of a call's duration."""

    rate: float
    p50_ms: float
    p99_ms: float


async def rate(port: int, in_flight: int, body_size: int, seconds: float) -> Echoed:
    """Call the echo server on this port for some seconds."""
    client = RemotingClient()
    address = f"127.0.0.1:{port}"
    command = request(310, {"a": "bench", "b": "orders", "e": "3"}, bytes(body_size))
    latencies: list[float] = []
    end = time.perf_counter() + seconds

    async def sender() -> None:
        while (start := time.perf_counter()) < end:
            await client.invoke(address, command, 5.0)
            latencies.append(time.perf_counter() - start)

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(sender())
    elapsed = time.perf_counter() - started
    await client.close()

    latencies.sort()
    p50, p99 = (latencies[int(len(latencies) * part)] * 1e3 for part in (0.5, 0.99))
    return Echoed(len(latencies) / elapsed, p50, p99)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1] if __doc__ else None)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--body", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=3.0)
    arguments = parser.parse_args()

    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=serve, args=(theirs,), daemon=True
    )
    process.start()
    try:
        found = uvloop.run(
            rate(ours.recv(), arguments.in_flight, arguments.body, arguments.seconds)
        )
    finally:
        process.terminate()
        process.join()
    print(
        f"{arguments.in_flight} in flight, {arguments.body} B: {found.rate:,.0f} calls/s,"
        f" p50 {found.p50_ms:.2f} ms, p99 {found.p99_ms:.2f} ms"
    )


if __name__ == "__main__":
    main()
