"""Fixtures of the cluster tests: real processes that end with the test."""

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orderlymq_runtime.remoting.client import RemotingClient
from tests.cluster.processes import Group


@pytest.fixture
def make_group(tmp_path: Path) -> Iterator[Callable[..., Group]]:
    """Return a function that starts groups; all their processes end with the test."""
    groups: list[Group] = []

    def make(replicas: int = 3, **overrides: Any) -> Group:
        group = Group(tmp_path / f"group-{len(groups)}", replicas, overrides)
        groups.append(group)
        group.start()
        return group

    yield make

    for group in groups:
        group.stop()
        sys.stdout.write(group.logs(lines=200))


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    """Return a remoting client."""
    made = RemotingClient()
    yield made
    await made.close()
