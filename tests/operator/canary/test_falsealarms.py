"""Events that the promise allows raise no alarm: killed and rolled leaders, changing consumers, a killed canary."""

import asyncio
import urllib.error
import urllib.request
from collections.abc import Callable
from random import Random
from typing import Any, Final

import orjson
import pytest

from tests.cluster.conftest import make_group
from tests.cluster.processes import Child, Group
from tests.operator.canary.soak import ACTS, PATIENCE_S, soaking
from tests.ports import free_ports
from tests.waiting import until

__all__ = ["make_group"]

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(300)]

MakeGroup = Callable[..., Group]
ROUNDS: Final = 3


async def test_kills_and_rolls_are_no_false_alarm(make_group: MakeGroup) -> None:
    """Law: with real processes, each act of the soak causes no alarm while both consumers change every two seconds."""
    async with soaking(make_group(), Random(1)) as soak:
        for name in ACTS:
            await soak.play(name)

    assert soak.false_alarms == []
    assert soak.process.canary.takeovers > 0


async def test_a_killed_canary_begins_again_and_accuses_nobody(make_group: MakeGroup) -> None:
    """Law: a restarted canary does not miss the messages of its former run."""
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
            await asyncio.sleep(2.0)  # Somewhere between two of its acts.
            found = status(port)
        finally:
            canary.kill()
        assert found["troubles"] == {}, found
        runs.add(found["run"])

    assert len(runs) == ROUNDS


def status(port: int) -> dict[str, Any]:
    """Return the text of the page; empty if there is none yet."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=5) as answer:
            return dict(orjson.loads(answer.read()))
    except (urllib.error.URLError, ConnectionError):
        return {}
