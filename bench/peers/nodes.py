"""
The common base of all peers: processes with ports, folders and a client, and the meaning of their acknowledgement.

Each peer is described in its own module; the driver uses only this interface. All processes listen on loopback, except
where a peer has no setting for it (RocketMQ). All data is in one folder that the driver deletes.
"""

import abc
import enum
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import psutil
from tests.ports import is_free

HERE = Path(__file__).parent
#: The folder for the jars and executables of peers that `make bench` downloads.
FETCHED = HERE / "target"


class Durability(enum.Enum):
    """Where a message is stored when its send is acknowledged."""

    DISK = "on disk at a majority"
    MEMORY = "in the memory of a majority"


class Ports:
    """An allocator of free ports in one range, with free ports below each: RocketMQ also uses port - 2."""

    STEP = 10

    def __init__(self, first: int, count: int = 2000) -> None:
        self._candidates = iter(range(first, first + count, self.STEP))

    def take(self) -> int:
        """Return the next free port.

        Raises:
            RuntimeError: The range is used up.
        """
        for port in self._candidates:
            if all(is_free(each) for each in (port, port - 2)):
                return port
        raise RuntimeError("no free port left; name another range with --ports")


@dataclass(slots=True)
class Node:
    """One server process; its output goes to its log."""

    name: str
    command: Sequence[str]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process; it must not be running."""
        assert not self.is_running, self.name
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                list(self.command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
                cwd=self.log.parent,
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        """Whether the process is running."""
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        """The process id of a started node."""
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        """Send SIGKILL."""
        if self.process is not None and self.is_running:
            self.process.kill()
            self.process.wait()

    def terminate(self) -> None:
        """Ask the process to stop."""
        if self.process is not None and self.is_running:
            self.process.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float) -> None:
        """Wait for the process to end; kill it after the time-out."""
        if self.process is not None:
            try:
                self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()

    def cpu_s(self) -> float:
        """Return the CPU seconds that the process has used, or 0 if it is gone."""
        with suppress(psutil.Error):
            return float(sum(psutil.Process(self.pid).cpu_times()[:2]))
        return 0.0

    def memory(self) -> tuple[int, int]:
        """Return the resident bytes, and the part of them that is not file-mapped."""
        fields = {}
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            fields[name] = value
        rss, anonymous = (int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "RssAnon"))
        return rss, anonymous


class Peer(abc.ABC):
    """A cluster of three nodes that can be started and stopped, and whose nodes can be killed."""

    name: ClassVar[str]
    title: ClassVar[str]
    durability: ClassVar[Durability]
    acknowledged: ClassVar[str]
    driven: ClassVar[str]  # how its client does the work, because clients differ
    client: ClassVar[str]  # the load program's client for this peer
    client_version: ClassVar[str]
    #: True if it uses RocketMQ's protocol, so that the bench can write frames to it without a client library.
    speaks_remoting: ClassVar[bool] = False
    #: True if the cluster or the client assigns queues to the members of a consumer group.
    balances: ClassVar[bool] = True
    #: The least time after a restart until a killed node can be asked whether it has recovered.
    rejoin_s: ClassVar[float] = 10.0
    #: The time until every node knows a new topic.
    topic_settles_s: ClassVar[float] = 0.0

    def __init__(self, directory: Path, ports: Ports) -> None:
        self.directory = directory
        self.ports = ports
        self.nodes: list[Node] = []
        self.helpers: list[Node] = []  # processes other than replicas, such as a name server
        directory.mkdir(parents=True, exist_ok=True)

    @classmethod
    @abc.abstractmethod
    def missing(cls) -> str | None:
        """Return what must be downloaded or installed first; None if the peer can be started."""

    @classmethod
    @abc.abstractmethod
    def version(cls) -> str:
        """Return the version of the peer on this machine."""

    @property
    @abc.abstractmethod
    def servers(self) -> str:
        """The addresses for the client, separated by commas."""

    @abc.abstractmethod
    def data(self, node: Node) -> Path:
        """Return the folder in which a node stores its messages."""

    @abc.abstractmethod
    def leader(self, said: Sequence[str]) -> tuple[Node, list[int]]:
        """Return the node that leads queue 0, and all queues that it leads.

        Args:
            said: the leader of each queue as the client names it; empty if :attr:`asks_itself`.
        """

    #: True if :meth:`leader` finds the leader without the client.
    asks_itself: ClassVar[bool] = False

    @property
    def address(self) -> str:
        """The address for a client that does not use a name server; empty if there is none."""
        return ""

    def start(self) -> None:
        """Start all processes; the cluster may not work yet when this returns."""
        for node in (*self.helpers, *self.nodes):
            node.start()

    def form(self, timeout_s: float) -> None:  # noqa: B027 most have nothing to wait for
        """Wait until topics may be created; a topic created too early could lack replicas."""

    def recovered(self) -> bool:
        """Return whether all nodes participate again after one was killed and restarted."""
        return True

    def stop(self) -> None:
        """Stop all processes."""
        for node in self.nodes:
            node.terminate()
        for node in self.nodes:
            node.wait(20.0)
        for node in self.helpers:
            node.terminate()
            node.wait(5.0)

    def cpu_s(self) -> float:
        """Return the CPU seconds of all processes together."""
        return sum(node.cpu_s() for node in (*self.nodes, *self.helpers))

    def disk(self) -> int:
        """Return the average bytes on disk per node."""
        return sum(occupied(self.data(node)) for node in self.nodes) // len(self.nodes)

    def logs(self, lines: int = 15) -> str:
        """Return the last lines of all logs."""
        shown = []
        for node in (*self.helpers, *self.nodes):
            if node.log.exists():
                tail = node.log.read_text(errors="replace").splitlines()[-lines:]
                shown.append(f"--- {node.name}\n" + "\n".join(tail))
        return "\n".join(shown)


def occupied(folder: Path) -> int:
    """Return the bytes of disk blocks in a folder; blocks, because some peers create files larger than their content."""
    return sum(_blocks(path) for path in _files(folder))


def _files(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        for name in names:
            yield Path(parent) / name


def _blocks(path: Path) -> int:
    # A compaction may delete a file between the listing and this call.
    with suppress(FileNotFoundError):
        return path.stat().st_blocks * 512
    return 0


def wait_for(condition: str, log: Path, timeout_s: float) -> None:
    """Wait until a log contains the text *condition*.

    Raises:
        TimeoutError: It never did.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if log.exists() and condition in log.read_text(errors="replace"):
            return
        time.sleep(0.05)
    raise TimeoutError(f"{log} never said {condition!r}; read it")
