"""Producers that are faster than the store are refused sends, and memory stays bounded."""

import asyncio
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from orderlymq_protocol.codes import ResponseCode
from orderlymq_runtime.remoting.client import RemotingClient, RemotingError
from tests.cluster.bareclient import Sender, pull_all, report, send_command
from tests.cluster.processes import Group
from tests.trouble.inspection import assert_all_clean
from tests.trouble.rawsocket import memory_bytes

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(90)]

MEBIBYTE = 1 << 20
BODY_SIZE = 64 * 1024
UNCOMMITTED_SIZE_MAX = MEBIBYTE

# The sizes of memtables, block cache, tail cache and log cache, which fill up under any load.
CACHES_SIZE_MAX = 400 * MEBIBYTE


@dataclass(slots=True)
class Flood:
    """Sends without waiting for answers, and records the result of each send."""

    client: RemotingClient
    address: str
    acknowledged: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    refused: set[bytes] = field(default_factory=set)
    unknown: set[bytes] = field(default_factory=set)
    codes: Counter[int] = field(default_factory=Counter)
    remarks: set[str] = field(default_factory=set)

    async def send(self, first: int, count: int, timeout_s: float = 10.0) -> None:
        """Send *count* numbered messages together and wait for all answers."""
        await asyncio.gather(
            *(self._send_one(number, timeout_s) for number in range(first, first + count))
        )

    async def _send_one(self, number: int, timeout_s: float) -> None:
        name = f"{number}".encode()
        command = send_command("orders", number % 8, name + b":" + bytes(BODY_SIZE))
        try:
            reply = await self.client.invoke(self.address, command, timeout_s)
        except RemotingError:
            self.unknown.add(name)
            return
        self.codes[reply.code] += 1
        if reply.code == ResponseCode.SUCCESS:
            place = int(reply.ext["queueId"]), int(reply.ext["queueOffset"])
            self.acknowledged[name] = place
        else:
            self.refused.add(name)
            self.remarks.add(reply.remark or "")

    async def check(self) -> None:
        """Check that acknowledged messages are stored and refused ones are not."""
        stored: dict[bytes, tuple[int, int]] = {}
        for queue_id in range(8):
            for offset, body in await pull_all(self.client, self.address, "orders", queue_id):
                name, colon, _ = body.partition(b":")
                if colon and len(body) > BODY_SIZE:
                    assert name not in stored, f"{name!r} is stored twice"
                    stored[name] = queue_id, offset
        assert {name: stored.get(name) for name in self.acknowledged} == self.acknowledged
        assert not self.refused & stored.keys()


async def test_a_producer_faster_than_the_disk_is_asked_to_wait(
    make_group: Callable[..., Group], client: RemotingClient
) -> None:
    """Above the limit of uncommitted bytes, sends get 2 immediately and are never stored; memory is bounded."""
    group = make_group(1, raft={"uncommitted_size_max": UNCOMMITTED_SIZE_MAX})
    await Sender(client, group.address, "s0", 0).send(10)
    before = memory_bytes(group.brokers[1].pid)
    flood = Flood(client, group.address)
    patient = Sender(client, group.address, "patient", 1)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(patient.send(20, pause_s=0.01))
        for wave in range(10):
            await flood.send(200 * wave, 200)
    grown = memory_bytes(group.brokers[1].pid) - before
    report(f"flood: {dict(flood.codes)}, {grown / MEBIBYTE:.0f} MiB")

    assert flood.codes[ResponseCode.SYSTEM_BUSY] > 0
    assert flood.codes[ResponseCode.SUCCESS] > 0
    assert set(flood.codes) == {ResponseCode.SYSTEM_BUSY, ResponseCode.SUCCESS}
    assert all("flow control" in remark for remark in flood.remarks)
    assert not flood.unknown
    assert grown < CACHES_SIZE_MAX
    # A client that waits and tries again succeeds, and after the flood all clients do.
    assert len(patient.acknowledged) == 20
    await flood.send(100_000, 1)
    assert b"100000" in flood.acknowledged
    await flood.check()
    assert_all_clean(group)


async def test_followers_that_stand_still_stop_the_intake_and_lose_nothing(
    make_group: Callable[..., Group], client: RemotingClient
) -> None:
    """With two of three replicas paused, the leader accepts sends up to its limit and then answers 2; later it recovers."""
    # The leader must not give up its leadership during the check.
    raft = {"uncommitted_size_max": UNCOMMITTED_SIZE_MAX, "election_ms": 5_000}
    group = make_group(3, raft=raft)
    await Sender(client, group.address, "s0", 0).send(10)
    leader = group.wait_for_leader()
    followers = [node for node in group.brokers if node != leader]
    before = memory_bytes(group.brokers[leader].pid)
    flood = Flood(client, group.address)

    for node in followers:
        group.brokers[node].signal(signal.SIGSTOP)
    try:
        sending = asyncio.create_task(flood.send(0, 400, timeout_s=45.0))
        # The limit is 16 sends of 64 KiB; the send that exceeds it is still accepted.
        async with asyncio.timeout(40.0):
            while flood.codes.total() < 400 - 16:  # noqa: ASYNC110 - answers of another process
                await asyncio.sleep(0.01)
        at_once = Counter(flood.codes)
        grown = memory_bytes(group.brokers[leader].pid) - before
    finally:
        for node in followers:
            group.brokers[node].signal(signal.SIGCONT)
    await sending
    report(f"stopped followers: {dict(at_once)} at once, then {dict(flood.codes)}, {grown} bytes")

    assert at_once == {ResponseCode.SYSTEM_BUSY: 400 - 16}
    assert grown < 64 * MEBIBYTE
    assert len(flood.acknowledged) + len(flood.unknown) == 16
    await Sender(client, group.address, "s1", 1).send(20)
    await flood.check()
    assert_all_clean(group)
