"""The maintenance of a replica that gets no requests."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from orderlymq_protocol.codes import ResponseCode
from orderlymq_runtime.remoting.client import RemotingClient
from tests.cluster.bareclient import invoke, pull_all, send_command
from tests.cluster.processes import Group

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

BODIES = [bytes([number]) * (1 << 20) for number in range(20)]


def log_bytes(folder: Path) -> int:
    """Return the size of RocksDB's write-ahead logs."""
    return sum(path.stat().st_size for path in (folder / "store").glob("*.log"))


async def test_a_replica_that_is_left_alone_gives_its_write_ahead_log_back(
    make_group: Callable[..., Group], client: RemotingClient
) -> None:
    """Law: bodies do not stay in the write-ahead log for ever when sends stop, and none is lost by a crash then."""
    group = make_group(replicas=1)
    for body in BODIES:
        reply = await invoke(client, group.address, send_command("orders", 0, body))
        assert reply.code == ResponseCode.SUCCESS
    assert log_bytes(group.data_dir(1)) >= sum(map(len, BODIES))

    deadline = time.monotonic() + 60.0
    while log_bytes(group.data_dir(1)) > 1 << 20:
        assert time.monotonic() < deadline, "the log is still there"
        await asyncio.sleep(0.2)

    group.brokers[1].kill()
    group.brokers[1].start()
    group.wait_for_leader()
    stored = await pull_all(client, group.address, "orders", 0)
    assert stored == list(enumerate(BODIES))
