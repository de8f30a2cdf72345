"""A broker runs as an arbitrary user in a folder of root's, as OpenShift runs containers."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from orderlymq_runtime.remoting.client import RemotingClient
from tests.cluster.bareclient import Sender, assert_kept_in_order, pull_all
from tests.cluster.processes import Group

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(120),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes as other users"),
]

# The first users in the ranges of two namespaces.
ONE, OTHER = 1_000_720_000, 1_000_730_000
# Changes from root to a user without a line in /etc/passwd, in group 0 alone, and starts a Python.
_AS = (
    "import os, sys; os.setgroups([]); os.setgid(0); os.setuid(int(sys.argv[1])); "
    "os.execv(sys.argv[2], sys.argv[2:])"
)


@pytest.fixture
def python(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a Python that every user can start; the tests' own may be in a folder that only root may enter."""
    own = [path for path in sys.path if path and not path.startswith(sys.base_prefix)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(own))
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    found = filter(None, [sys.executable, shutil.which(name, path="/usr/local/bin:/usr/bin")])
    for program in found:
        words = [sys.executable, "-c", _AS, str(ONE), program, "-c", "import orderlymq_broker.app"]
        if subprocess.run(words, check=False, capture_output=True).returncode == 0:
            return program
    pytest.skip(f"no {name} that other users can start")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder like a volume of Kubernetes: root owns it, and its group may write."""
    # Not pytest's folder, which only root may enter.
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o2770)
        yield path


def _prepare(folder: Path) -> None:
    """Let the group read and write everything, as the kubelet does before it mounts a volume with an fsGroup."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o2770 if path.is_dir() else path.stat().st_mode | 0o660)


async def test_a_broker_keeps_its_data_as_any_user_of_group_0(
    folder: Path, python: str, client: RemotingClient
) -> None:
    """Neither the program, nor the settings, nor data that another user stored depend on a single user."""
    group = Group(folder, replicas=1)
    try:
        for child in (group.name_server, *group.brokers.values()):
            child.arguments = ["-c", _AS, str(ONE), python, *child.arguments]
        _prepare(folder)
        group.start()
        sender = Sender(client, group.address, "s", 0)
        await sender.send(20)
        broker = group.brokers[1]
        assert _user(broker.pid) == (ONE, 0)
        broker.signal(signal.SIGTERM)
        assert broker.wait() == 0
        assert {path.stat().st_uid for path in group.data_dir(1).rglob("*")} == {ONE}

        _prepare(folder)
        broker.arguments[2] = str(OTHER)
        broker.start()
        group.wait_for_leader()
        assert _user(broker.pid) == (OTHER, 0)
        await sender.send(20)

        stored = {
            queue: await pull_all(client, group.address, "orders", queue) for queue in range(8)
        }
        assert_kept_in_order([sender], stored)
    finally:
        group.stop()
        sys.stdout.write(group.logs(lines=100))


def _user(pid: int) -> tuple[int, int]:
    """Return the user and the group of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = {key: value.split() for key, _, value in (line.partition(":") for line in lines)}
    return int(found["Uid"][1]), int(found["Gid"][1])
