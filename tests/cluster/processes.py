"""Real processes on loopback: a name server and the replicas of one group, for tests and benchmarks."""

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self

from orderlymq.connection.administrator import CLUSTER_SECRET_VARIABLE
from orderlymq_runtime.security.clustersecret import make_cluster_secret
from tests.cluster.forks import MODULES, Forked
from tests.ports import free_ports

START_TIMEOUT_S = 20.0


@cache
def shared_secret() -> Path:
    """Make a secret that all groups of this process share, so that one administrator can change each of them.

    As in a volume with an fsGroup, members of this process's group can read it.
    """
    directory = Path(tempfile.mkdtemp(prefix="orderlymq-secret-"))
    atexit.register(shutil.rmtree, directory)
    make_cluster_secret(directory / "cluster.secret")
    directory.chmod(0o750)
    (directory / "cluster.secret").chmod(0o640)
    return directory / "cluster.secret"


@dataclass(slots=True)
class Child:
    """A process with its log file; *environment* is added to our own environment."""

    arguments: list[str]
    log_path: Path
    process: subprocess.Popen[bytes] | Forked | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def start(self) -> None:
        # Benchmarks start processes as users do.
        if "PYTEST_VERSION" in os.environ and self.arguments[1] in MODULES:
            self.process = Forked(self.arguments, self.log_path)
            return
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self.arguments],
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **self.environment},
            )

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self, timeout_s: float = 30.0) -> int:
        assert self.process is not None
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        if self.is_running:
            self.signal(signal.SIGKILL)
            self.wait()


@dataclass(slots=True)
class Group:
    """A name server and the replicas of one group."""

    directory: Path
    replicas: int = 3
    overrides: Mapping[str, Any] = field(default_factory=dict)
    name_server: Child = field(init=False)
    brokers: dict[int, Child] = field(init=False, default_factory=dict)
    http_ports: dict[int, int] = field(init=False, default_factory=dict)
    raft_ports: dict[int, int] = field(init=False, default_factory=dict)
    name_server_port: int = field(init=False)
    port: int = field(init=False)
    # The ids of running groups; while there are any, the environment names their secret.
    _running: ClassVar[set[int]] = set()

    def __post_init__(self) -> None:
        ports = iter(free_ports(3 + 2 * (self.replicas + 1)))
        self.name_server_port, self.port = next(ports), next(ports)
        # One more than needed, for a replica that joins later.
        for node in range(1, self.replicas + 2):
            self.http_ports[node] = next(ports)
            self.raft_ports[node] = next(ports)
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / "name-server.json"
        path.write_text(
            json.dumps(
                {
                    "listen": {"host": "127.0.0.1", "port": self.name_server_port},
                    "cluster_secret_file": str(self.cluster_secret),
                }
            )
        )
        arguments = ["-m", "orderlymq_nameserver", "--settings", str(path)]
        self.name_server = Child(arguments, self.directory / "name-server.log")
        for node in range(1, self.replicas + 1):
            self.add(node)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def name_server_address(self) -> str:
        return f"127.0.0.1:{self.name_server_port}"

    @property
    def cluster_secret(self) -> Path:
        return shared_secret()

    def data_dir(self, node: int) -> Path:
        return self.directory / f"node-{node}"

    def settings(self, node: int) -> dict[str, Any]:
        members = sorted({*range(1, self.replicas + 1), node})
        return {
            "cluster": "C",
            "group": "g",
            "node_id": node,
            "peers": {
                str(each): {"host": "127.0.0.1", "port": self.raft_ports[each]} for each in members
            },
            "address": {"host": "127.0.0.1", "port": self.port},
            "http": {"host": "127.0.0.1", "port": self.http_ports[node]},
            "data_dir": str(self.data_dir(node)),
            "cluster_secret_file": str(self.cluster_secret),
            "name_servers": [{"host": "127.0.0.1", "port": self.name_server_port}],
            **self.overrides,
        }

    def add(self, node: int, **settings: object) -> Child:
        path = self.directory / f"broker-{node}.json"
        path.write_text(json.dumps(self.settings(node) | settings))
        arguments = ["-m", "orderlymq_broker", "--settings", str(path)]
        child = Child(arguments, self.directory / f"broker-{node}.log")
        self.brokers[node] = child
        return child

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        # The administrators and programs of the tests sign with this secret.
        os.environ[CLUSTER_SECRET_VARIABLE] = str(self.cluster_secret)
        self._running.add(id(self))
        self.name_server.start()
        for child in self.brokers.values():
            child.start()
        self.wait_for_leader()

    def status(self, node: int) -> dict[str, Any] | None:
        """Return the status of a replica, None if it does not answer."""
        url = f"http://127.0.0.1:{self.http_ports[node]}/status"
        try:
            with urllib.request.urlopen(url, timeout=10.0) as answer:
                found: dict[str, Any] = json.load(answer)
        except (OSError, urllib.error.URLError):
            return None
        return found

    def statuses(self, *, other_than: int | None = None) -> Iterator[dict[str, Any]]:
        for node, child in self.brokers.items():
            if child.is_running and node != other_than:
                status = self.status(node)
                if status is not None:
                    yield status

    def leader(self, *, other_than: int | None = None) -> int | None:
        statuses = self.statuses(other_than=other_than)
        leaders = [status for status in statuses if status["serving"]]
        newest = max(leaders, key=lambda status: int(status["term"]), default=None)
        return None if newest is None else int(newest["node"])

    def wait_for_leader(self, *, other_than: int | None = None) -> int:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            # The other one may be paused, so its status is not requested.
            leader = self.leader(other_than=other_than)
            if leader is not None:
                return leader
            time.sleep(0.02)
        raise AssertionError(f"no leader within {START_TIMEOUT_S} s\n{self.logs()}")

    def wait_for_status(
        self, node: int, *, timeout_s: float = 20.0, **wanted: object
    ) -> dict[str, Any]:
        """Wait until a replica's status has these values."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = self.status(node)
            if found is not None and {name: found[name] for name in wanted} == wanted:
                return found
            assert time.monotonic() < deadline, f"{found} has not {wanted}\n{self.logs()}"
            time.sleep(0.02)

    def wait_until_equal(self, timeout_s: float = 20.0) -> list[dict[str, Any]]:
        """Wait until all running replicas have applied the same entries."""
        deadline = time.monotonic() + timeout_s
        found: list[dict[str, Any]] = []
        while time.monotonic() < deadline:
            found = list(self.statuses())
            running = sum(child.is_running for child in self.brokers.values())
            if len(found) == running and len({status["applied"] for status in found}) == 1:
                return found
            time.sleep(0.05)
        raise AssertionError(f"replicas differ: {found}\n{self.logs()}")

    def stop(self) -> None:
        self._running.discard(id(self))
        if not self._running:
            os.environ.pop(CLUSTER_SECRET_VARIABLE, None)
        for child in self.brokers.values():
            if child.is_running:
                child.signal(signal.SIGTERM)
        for child in (*self.brokers.values(), self.name_server):
            try:
                if child is not self.name_server and child.process is not None:
                    child.wait(10.0)
            except subprocess.TimeoutExpired:
                child.kill()
        self.name_server.kill()

    def wipe(self) -> None:
        """Stop, delete everything except addresses and secret, and start again."""
        self.stop()
        for node in self.brokers:
            shutil.rmtree(self.data_dir(node))
        self.start()

    def logs(self, lines: int = 40) -> str:
        shown = []
        for path in sorted(self.directory.glob("*.log")):
            tail = path.read_text(errors="replace").splitlines()[-lines:]
            shown.append(f"--- {path.name}\n" + "\n".join(tail))
        return "\n".join(shown)
