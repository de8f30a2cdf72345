"""Works with thousands of connections or topics, for which the bench itself writes frames of RocketMQ's protocol."""

import asyncio
import contextlib
import os
import resource
import statistics
import time
from collections.abc import AsyncIterator, Callable

import uvloop
from bench.execution import START_TIMEOUT_S, Figures, Running, busy_percent, memory, sent
from bench.program import Program
from bench.works import QUEUES, Work

from orderlymq_protocol.body.catalogue import HeartbeatData, ProducerData
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame import codec
from orderlymq_protocol.frame.command import request
from orderlymq_protocol.header.catalogue import CreateTopicHeader
from orderlymq_runtime.remoting.client import RemotingClient

#: Connections opened concurrently; the limit keeps the listener's backlog from overflowing.
OPENING = 100
#: Topics created concurrently.
CREATING = 32


def connections(running: Running, work: Work) -> Figures:
    """Open many connections with a heartbeat each, and measure sends while they are open."""
    alone = sent(running, running.topic("sends"), work, senders=64, size=1024)
    wanted = _allowed(running.scale.connections)
    place, _ = running.leader("sends")
    leader = running.peer.nodes[place]
    before = leader.memory()[0]

    async def opened() -> Figures:
        async with _many(_leader_address(running), wanted):
            await asyncio.sleep(running.scale.calm_s)
            grown = leader.memory()[0] - before
            busy = await asyncio.to_thread(busy_percent, running)
            topic = running.topic("sends")
            beside = await asyncio.to_thread(sent, running, topic, work, senders=64, size=1024)
        return {
            "kib_each": grown / wanted / 1024,
            "cpu_percent": busy,
            "rate": beside["rate"],
            "rate_part": _part(beside, alone),
        }

    return uvloop.run(opened())


def _part(some: Figures, whole: Figures) -> float:
    a, b = some["rate"], whole["rate"]
    assert isinstance(a, float)
    assert isinstance(b, float)
    return a / b


def _allowed(wanted: int) -> int:
    """Raise this process's limit of open files to its maximum; return how many connections that allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return min(wanted, hard - 500)


def _leader_address(running: Running) -> str:
    """Return the address at which the leader listens for clients."""
    if running.peer.address:
        return running.peer.address
    port = running.program.ask("leaders", topic="sends", queues=QUEUES)["leaders"][0]
    return f"127.0.0.1:{port}"


@contextlib.asynccontextmanager
async def _many(address: str, count: int) -> AsyncIterator[None]:
    host, _, port = address.partition(":")
    slots = asyncio.Semaphore(OPENING)
    writers: list[asyncio.StreamWriter] = []

    async def one(number: int) -> None:
        async with slots:
            reader, writer = await asyncio.open_connection(host, int(port))
            writers.append(writer)
            name = f"127.0.0.1@{os.getpid()}#{number}"
            heartbeat = HeartbeatData(name, (ProducerData("bench-producers"),))
            command = request(RequestCode.HEART_BEAT, {}, heartbeat.to_json())
            writer.write(codec.encode(command))
            await reader.readexactly(4)

    try:
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(one(number))
        yield
    finally:
        for writer in writers:
            writer.close()


def topics(running: Running, work: Work) -> Figures:
    """Create many topics, measure the idle leader, send to all topics, and restart everything."""
    count = running.scale.topics
    running.topic("sends")
    address = _leader_address(running)
    began = time.monotonic()
    uvloop.run(_create(address, count))
    created = time.monotonic() - began
    time.sleep(running.scale.calm_s)
    busy = busy_percent(running)
    log = running.directory / "wire.log"
    with Program("wire", running.peer.servers, log, address=address) as program:
        few = _spread(running, program, 10)
        many = _spread(running, program, count)
    resident = memory(running)["rss_mib"]
    running.peer.stop()
    began = time.monotonic()
    running.peer.start()
    ready = running.program.ask(
        "ready", START_TIMEOUT_S + 30, topic="sends", queues=QUEUES, timeout=int(START_TIMEOUT_S)
    )
    return {
        "create_s": created,
        "cpu_percent": busy,
        "restart_s": ready["ns"] / 1e9 - began,
        "rate_part": many / few,
        "rss_mib": resident,
    }


def _spread(running: Running, program: Program, count: int) -> float:
    """Return the rate of sends that go to *count* topics in turn: the median of three measurements."""
    scale = running.scale
    rates = []
    for _ in range(3):
        event = program.ask(
            "send",
            scale.seconds + 60,
            topic="many",
            topics=count,
            queues=QUEUES,
            senders=64,
            size=1024,
            warm=scale.warm_s,
            seconds=scale.seconds,
        )
        rates.append(float(event["count"] / event["seconds"]))
    return statistics.median(rates)


async def _create(address: str, count: int) -> None:
    client = RemotingClient()
    slots = asyncio.Semaphore(CREATING)

    async def one(number: int) -> None:
        header = CreateTopicHeader(
            f"many-{number}", "TBW102", QUEUES, QUEUES, 6, "SINGLE_TAG", order=False
        )
        async with slots:
            command = request(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())
            reply = await client.invoke(address, command, 60.0)
        if reply.code != ResponseCode.SUCCESS:
            raise RuntimeError(f"a topic was refused: code {reply.code}, {reply.remark}")

    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(one(number))
    await client.close()


KINDS: dict[str, Callable[[Running, Work], Figures]] = {
    "connections": connections,
    "topics": topics,
}
