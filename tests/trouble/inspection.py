"""Checks before and after trouble: a group can be reached, and the stores of stopped replicas are clean."""

import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.cluster.processes import Group


def wait_until_open(group: Group, timeout_s: float = 30.0) -> None:
    """Wait until the leader listens at the group's address, which it binds after it has begun to serve."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection(("127.0.0.1", group.port - 2), 1.0).close()
        except OSError:
            assert time.monotonic() < deadline, group.logs()
            time.sleep(0.01)
        else:
            return


def assert_clean(data_dir: Path) -> None:
    """Check the directory of a stopped replica with `orderlymq doctor`, which must find nothing."""
    done = subprocess.run(
        [sys.executable, "-m", "orderlymq", "doctor", str(data_dir)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def assert_all_clean(group: Group) -> None:
    """Stop a group in order and check every replica."""
    group.stop()
    for node in group.brokers:
        assert_clean(group.data_dir(node))
