"""Events that the promise allows raise no alarm: leaders that are killed and rolled, consumers that come and go, a killed canary."""

import asyncio
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, Final

import orjson
import pytest

from orderlymq_operator.canary.probes import Plan
from orderlymq_operator.canary.process import Address, CanaryProcess
from orderlymq_operator.canary.verdict import Limits, Verdict
from tests.cluster.conftest import make_group
from tests.cluster.processes import Child, Group
from tests.ports import free_ports
from tests.waiting import until

__all__ = ["make_group"]

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(300)]

MakeGroup = Callable[..., Group]
ROUNDS: Final = 3
LIMITS: Final = Limits(interval_s=0.2, target_s=1.0, stale_s=2.0)
PATIENCE_S: Final = 60.0


async def test_kills_and_rolls_are_no_false_alarm(make_group: MakeGroup) -> None:
    """Real processes: SIGKILL and SIGTERM of each leader, both consumers change every two seconds."""
    group = make_group()
    said: list[Verdict] = []
    plan = Plan(("g",), "canary", group.name_server_address, takeover_s=2.0)
    process = CanaryProcess(plan, LIMITS, Address("127.0.0.1", 0), said.append)

    def verified() -> bool:
        return process.verdict().status == "True"

    task = asyncio.create_task(process.run())
    try:
        await until(verified, PATIENCE_S)
        for number in range(2 * ROUNDS):
            leader = await asyncio.to_thread(group.wait_for_leader)
            group.brokers[leader].signal(signal.SIGTERM if number % 2 else signal.SIGKILL)
            await asyncio.to_thread(group.brokers[leader].wait, 30.0)
            await until(verified, PATIENCE_S)
            group.brokers[leader].start()
            await asyncio.sleep(3.0)  # lets a consumer change, too
        await until(verified, PATIENCE_S)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    assert dict(process.canary.counts) == {}, process.status()
    assert "False" not in {verdict.status for verdict in said}
    assert process.canary.takeovers > 0


async def test_a_killed_canary_begins_again_and_accuses_nobody(make_group: MakeGroup) -> None:
    """A run does not own the messages that the former run had sent and not consumed."""
    group = make_group()
    (port,) = free_ports(1)
    words = ["-m", "orderlymq_operator.canary", "--name-server", group.name_server_address]
    words += ["--port", str(port), "--interval", "200ms", "--takeover", "2s"]
    canary = Child(words, group.directory / "canary.log")
    runs = set()
    for _ in range(ROUNDS):
        canary.start()
        try:
            await until(lambda: status(port).get("status") == "True", PATIENCE_S)
            await asyncio.sleep(2.0)  # somewhere between two of its acts
            found = status(port)
        finally:
            canary.kill()
        assert found["troubles"] == {}, found
        runs.add(found["run"])

    assert len(runs) == ROUNDS


def status(port: int) -> dict[str, Any]:
    """Return what the page says; empty while there is none."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=5) as answer:
            return dict(orjson.loads(answer.read()))
    except (urllib.error.URLError, ConnectionError):
        return {}
