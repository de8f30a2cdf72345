"""A disk that is nearly or completely full: sends are refused, no data is lost, and the broker recovers."""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import aiohttp
import pytest

from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.client import RemotingClient, RemotingError
from tests.cluster.bareclient import Sender, pull_all, report, send_command
from tests.cluster.processes import Group
from tests.trouble.inspection import assert_clean
from tests.trouble.smalldisk import fill, free, mounted

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

MEBIBYTE = 1 << 20

# The broker checks the disk every second, and RocksDB checks every 5 s whether there is space again.
NOTICE_TIMEOUT_S = 60.0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a directory on its own file system of 48 MiB."""
    with mounted(tmp_path / "disk") as where:
        yield where


@pytest.fixture
def group(make_group: Callable[..., Group], small_disk: Path) -> Iterator[Group]:
    """Return a group of one replica whose log is on the small disk."""
    made = make_group(1, data_dir=str(small_disk / "node-1"))
    yield made
    made.stop()


async def call(
    client: RemotingClient, group: Group, command: RemotingCommand, timeout_s: float = 15.0
) -> RemotingCommand | None:
    """Return the answer, None if none came in time."""
    try:
        return await client.invoke(group.address, command, timeout_s)
    except RemotingError:
        return None


async def send_until(
    client: RemotingClient, group: Group, code: int, body: bytes = b"try"
) -> tuple[RemotingCommand, list[int], int]:
    """Send until *code* is the answer; return it, the acknowledged offsets, and the number of sends without an answer."""
    offsets: list[int] = []
    unknown = 0
    deadline = time.monotonic() + NOTICE_TIMEOUT_S
    while time.monotonic() < deadline:
        answer = await call(client, group, send_command("orders", 0, body))
        unknown += answer is None
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            offsets.append(int(answer.ext["queueOffset"]))
        if answer is not None and answer.code == code:
            return answer, offsets, unknown
        await asyncio.sleep(0.05)
    raise AssertionError(f"no answer {code} within {NOTICE_TIMEOUT_S} s\n{group.logs()}")


async def test_a_nearly_full_disk_refuses_sends_and_nothing_else(
    group: Group, small_disk: Path, client: RemotingClient
) -> None:
    """Above 90 % sends get 14 with the ratio in the remark, and pulls are served; below 88 % sends are served again."""
    sender = Sender(client, group.address, "s0", 0)
    await sender.send(20)

    ballast = fill(small_disk, leave=3 * MEBIBYTE)
    refused, while_filling, lost = await send_until(
        client, group, ResponseCode.SERVICE_NOT_AVAILABLE
    )
    async with aiohttp.request("GET", f"http://127.0.0.1:{group.http_ports[1]}/readyz") as page:
        readiness = await page.text()
    stored = await pull_all(client, group.address, "orders", 0)
    ballast.unlink()
    _, (after,), lost_later = await send_until(client, group, ResponseCode.SUCCESS)

    assert refused.remark is not None
    assert "disk is full" in refused.remark
    assert "% used" in refused.remark
    assert "refuses sends because the disk is full" in readiness
    assert [body for _, body in stored[:20]] == [
        f"{sender.name}:{number}".encode() for number in range(20)
    ]
    # Refused messages were not stored, so no offset is skipped for them. A send without an answer may be stored.
    stored_min = 20 + len(while_filling)
    assert stored_min <= after <= stored_min + lost + lost_later
    group.brokers[1].signal(signal.SIGTERM)
    assert await asyncio.to_thread(group.brokers[1].wait) == 0


async def test_a_disk_without_a_byte_left_loses_nothing_and_recovers(
    group: Group, small_disk: Path, client: RemotingClient
) -> None:
    """After ENOSPC during a write no acknowledged send is lost, and the broker continues when there is space."""
    sender = Sender(client, group.address, "s0", 0)
    await sender.send(20)
    body = b"full:" + bytes(256 * 1024)

    ballast = fill(small_disk, leave=MEBIBYTE)
    refused, while_filling, _ = await send_until(
        client, group, ResponseCode.SERVICE_NOT_AVAILABLE, body
    )
    was_full = free(small_disk)
    began = time.monotonic()
    ballast.unlink()
    if not group.brokers[1].is_running:
        # A broker whose store failed ends; its supervisor starts it again.
        report(f"the process ended with {await asyncio.to_thread(group.brokers[1].wait)}")
        group.brokers[1].start()
    _, after, _ = await send_until(client, group, ResponseCode.SUCCESS, b"after:0")
    report(f"{was_full} bytes were left, sends again {time.monotonic() - began:.1f} s after")

    stored = await pull_all(client, group.address, "orders", 0)
    assert [offset for offset, _ in stored] == list(range(len(stored)))
    for acknowledged in sender.acknowledged:
        assert stored[acknowledged.offset] == (acknowledged.offset, acknowledged.body)
    for offset in while_filling:
        assert stored[offset] == (offset, body)
    assert stored[after[0]] == (after[0], b"after:0")
    assert refused.remark
    group.stop()
    assert_clean(small_disk / "node-1")


async def test_a_follower_without_space_does_not_stop_the_group(
    make_group: Callable[..., Group], small_disk: Path, client: RemotingClient
) -> None:
    """If one of three replicas has a full disk, the others continue; it catches up when it has space again."""
    group = make_group(3)
    leader = group.wait_for_leader()
    follower = next(node for node in group.brokers if node != leader)
    group.brokers[follower].kill()
    group.add(follower, data_dir=str(small_disk / "node")).start()
    sender = Sender(client, group.address, "s0", 0)
    await sender.send(20)

    ballast = fill(small_disk, leave=MEBIBYTE)
    for _ in range(20):
        answer = await call(client, group, send_command("orders", 1, bytes(256 * 1024)))
        assert answer is not None
        assert answer.code == ResponseCode.SUCCESS
        await sender.send(1)
    gap_s = sender.longest_gap_s()
    ballast.unlink()
    if not group.brokers[follower].is_running:
        group.brokers[follower].start()
    await asyncio.to_thread(group.wait_until_equal)

    report(f"a follower without space: longest gap {gap_s:.2f} s")
    assert not sender.refused
    group.stop()
    assert_clean(small_disk / "node")
