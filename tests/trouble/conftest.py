"""Shared fixtures of the tests of trouble: groups of real processes, and clients that must not notice it."""

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orderlymq_runtime.remoting.client import RemotingClient
from tests.cluster.processes import Group
from tests.trouble.inspection import wait_until_open


@pytest.fixture(scope="module")
def make_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Group]]:
    """Return a function that starts groups for the tests of one module; their processes end with the module."""
    groups: list[Group] = []

    def make(replicas: int = 1, *, directory: Path | None = None, **overrides: Any) -> Group:
        where = directory or tmp_path_factory.mktemp("group")
        group = Group(where / "processes", replicas, overrides)
        groups.append(group)
        group.start()
        wait_until_open(group)
        return group

    yield make

    for group in groups:
        group.stop()
        sys.stdout.write(group.logs(lines=100))


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    """Return a remoting client that behaves well."""
    made = RemotingClient()
    yield made
    await made.close()
