"""A supervisor that runs inside the test, and helpers to look at its cluster."""

import asyncio
import fcntl
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from orderlymq_operator.local import session
from orderlymq_operator.local.directory import DataDirectory
from orderlymq_operator.local.errors import HeldError
from orderlymq_operator.local.supervisor import Supervisor
from orderlymq_operator.resources.manifests.reader import parse
from tests.operator.local.manifests import manifests

PATIENCE_S = 30.0


@asynccontextmanager
async def running(
    directory: DataDirectory, port: int | None, *, replicas: int = 3
) -> AsyncIterator[Supervisor]:
    """Supervise until the block ends; then no process may be left."""
    found = manifests(port, replicas=replicas) if port is not None else []
    with session.prepared(directory, found) as state:
        supervisor = Supervisor(directory, state)
        task = asyncio.create_task(supervisor.run())
        try:
            await until(lambda: supervisor.settled)
            yield supervisor
        finally:
            supervisor.stop()
            await task
    assert directory.run_records() == []


def is_supervised(directory: DataDirectory) -> bool:
    """Return whether a supervisor holds a directory that one has held before."""
    try:
        with directory.locked_as_it_is():
            return False
    except HeldError:
        return True


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - it waits for other processes
            await asyncio.sleep(0.02)


def probes(directory: DataDirectory) -> list[int]:
    """Return the number of probes of each replica, the fewest first; the second one begins after the first answer."""
    return sorted(path.stat().st_size for path in directory.path.rglob("PROBES"))


def group_of(supervisor: Supervisor) -> dict[str, Any]:
    found: dict[str, Any] = supervisor.snapshot()["groups"][0]
    return found


def leader_pid(supervisor: Supervisor) -> int | None:
    """Return the leader's process id; None if none is known, or it has ended."""
    group = group_of(supervisor)
    pids = (item["pid"] for item in group["replicas"] if item["node"] == group["leader"])
    return next(pids, None)


def running_leader_pid(supervisor: Supervisor) -> int:
    pid = leader_pid(supervisor)
    assert pid is not None
    return pid


def shared_of(directory: DataDirectory) -> dict[str, Any]:
    """Return the shared state of the group's stand-in brokers."""
    found: dict[str, Any] = json.loads((directory.path / "replicas/demo-0.shared").read_text())
    return found


def change_shared(directory: DataDirectory, edit: Callable[[dict[str, Any]], None]) -> None:
    """Let *edit* change the shared state between two requests, as another tool would."""
    file = directory.path / "replicas/demo-0.shared"
    with file.with_suffix(".changing").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shared = shared_of(directory)
        edit(shared)
        new = file.with_suffix(".edited")
        new.write_text(json.dumps(shared))
        new.replace(file)


async def apply(supervisor: Supervisor, text_: str, *, prune: bool = False) -> list[str]:
    steps = await supervisor.apply(parse(text_, "test.yaml"), prune=prune)
    await until(lambda: supervisor.settled)
    return steps
