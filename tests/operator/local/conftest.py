"""A local cluster of stand-in brokers and real name servers, on ports of its own."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from orderlymq_operator.local.directory import DataDirectory
from orderlymq_operator.local.session import stop

_STUBS = Path(__file__).parent.parent / "stubs"
_SPAN = 60  # ports that one test cluster uses from its base on
_LOWEST = 20_000
_PLACES = 200  # up to 32 000, where the kernel begins to give ports away


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[DataDirectory]:
    """A data directory; whatever still runs on it in the end is ended."""
    found = DataDirectory(tmp_path / "data")
    yield found
    stop(found)


@pytest.fixture
def stub_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let child processes find the stand-in under the name of the broker."""
    monkeypatch.setenv("PYTHONPATH", str(_STUBS))


@pytest.fixture
def ports() -> int:
    """The first of some free ports; other test processes begin to look elsewhere."""
    first = os.getpid() % _PLACES
    for place in range(first, first + _PLACES):
        base = _LOWEST + place % _PLACES * _SPAN
        if all(_is_free(base + offset) for offset in range(_SPAN)):
            return base
    raise AssertionError("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
