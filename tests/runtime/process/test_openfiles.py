"""The number of connections that a process allows; tests/trouble shows that a server keeps to it."""

import resource
from collections.abc import Iterator

import pytest

from orderlymq_runtime.process import openfiles


@pytest.fixture(autouse=True)
def soft_limit() -> Iterator[int]:
    """Return the soft limit of open files, and restore it at the end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def lower(limit: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def test_a_process_takes_what_the_system_allows() -> None:
    """Law: the soft limit is raised to what is wanted, or to the hard limit, and never lowered."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = openfiles.WANTED if hard == resource.RLIM_INFINITY else min(openfiles.WANTED, hard)
    lower(256)

    assert openfiles.raise_limit() == most
    assert openfiles.raise_limit() == most


@pytest.mark.parametrize(("limit", "connections"), [(1024, 512), (400, 200), (10_000, 9_232)])
def test_connections_leave_files_for_the_rest(limit: int, connections: int) -> None:
    """Law: connections leave 768 files (or half, if there are few) for everything else."""
    lower(limit)

    assert openfiles.connections_allowed() == connections
