"""
The common parts of all peers: processes with ports, folders and a client, and the meaning of their acknowledgement.

A peer is described once, in a module of its own; the driver knows only what stands here. Everything listens on
loopback, except where a peer has no setting for it (RocketMQ), and lives below one folder that the driver throws away.
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
#: The folder for what `make bench` fetches: jars and executables of peers.
FETCHED = HERE / "target"


class Durability(enum.Enum):
    """The place of a message when its send is acknowledged."""

    DISK = "on disk at a majority"
    MEMORY = "in the memory of a majority"


class Ports:
    """Hands out ports of one range that nobody uses, with room below each: RocketMQ takes port - 2 as well."""

    STEP = 10

    def __init__(self, first: int, count: int = 2000) -> None:
        self._candidates = iter(range(first, first + count, self.STEP))

    def take(self) -> int:
        """Return the next free port.

        Raises:
            RuntimeError: the range is used up.
        """
        for port in self._candidates:
            if all(is_free(each) for each in (port, port - 2)):
                return port
        raise RuntimeError("no free port left; name another range with --ports")


@dataclass(slots=True)
class Node:
    """One server process; what it prints goes to its log."""

    name: str
    command: Sequence[str]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; it must not run."""
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
        """Return whether the process is there."""
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        """The process id of a node that was started."""
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        """Send SIGKILL."""
        if self.process is not None and self.is_running:
            self.process.kill()
            self.process.wait()

    def terminate(self) -> None:
        """Ask it to stop."""
        if self.process is not None and self.is_running:
            self.process.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float) -> None:
        """Wait for its end, and bring it about when it takes too long."""
        if self.process is not None:
            try:
                self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()

    def cpu_s(self) -> float:
        """Return the CPU time that it has used, 0 when it is gone."""
        with suppress(psutil.Error):
            return float(sum(psutil.Process(self.pid).cpu_times()[:2]))
        return 0.0

    def memory(self) -> tuple[int, int]:
        """Return resident bytes, and the part of them that is no mapped file."""
        fields = {}
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            fields[name] = value
        rss, anonymous = (int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "RssAnon"))
        return rss, anonymous


class Peer(abc.ABC):
    """A cluster of three nodes that can be started, killed in parts, and stopped."""

    name: ClassVar[str]
    title: ClassVar[str]
    durability: ClassVar[Durability]
    acknowledged: ClassVar[str]
    driven: ClassVar[str]  # how its client does the work, where clients differ
    client: ClassVar[str]  # which of the load program's clients speaks to it
    client_version: ClassVar[str]
    #: True if it speaks RocketMQ's protocol, so that the bench can talk to it without a client library.
    speaks_remoting: ClassVar[bool] = False
    #: True if the cluster or the client gives members of a group their queues.
    balances: ClassVar[bool] = True
    #: The time that a killed node needs, at least, until it can be asked whether it is back.
    rejoin_s: ClassVar[float] = 10.0
    #: The time that a new topic needs until every node knows it.
    topic_settles_s: ClassVar[float] = 0.0

    def __init__(self, directory: Path, ports: Ports) -> None:
        self.directory = directory
        self.ports = ports
        self.nodes: list[Node] = []
        self.helpers: list[Node] = []  # a name server, or what else is no replica
        directory.mkdir(parents=True, exist_ok=True)

    @classmethod
    @abc.abstractmethod
    def missing(cls) -> str | None:
        """Say what must be fetched or installed first, None when it can be started."""

    @classmethod
    @abc.abstractmethod
    def version(cls) -> str:
        """Return the version that runs here."""

    @property
    @abc.abstractmethod
    def servers(self) -> str:
        """Return the addresses that the client gets, separated by commas."""

    @abc.abstractmethod
    def data(self, node: Node) -> Path:
        """Return the folder in which a node keeps its messages."""

    @abc.abstractmethod
    def leader(self, said: Sequence[str]) -> tuple[Node, list[int]]:
        """Return the node that leads queue 0, and all queues that it leads.

        Args:
            said: the leader of each queue as the client names it; empty when :attr:`asks_itself`.
        """

    #: True if :meth:`leader` finds the leader without the client's help.
    asks_itself: ClassVar[bool] = False

    @property
    def address(self) -> str:
        """Return the address for a client that knows no name server; empty when there is none."""
        return ""

    def start(self) -> None:
        """Start all processes; the cluster need not work yet when this comes back."""
        for node in (*self.helpers, *self.nodes):
            node.start()

    def form(self, timeout_s: float) -> None:  # noqa: B027 most have nothing to wait for
        """Wait until topics may be made, where a topic made too early would lack replicas."""

    def recovered(self) -> bool:
        """Say whether all nodes take part again after one was killed and started."""
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
        """Return the CPU time of all processes together."""
        return sum(node.cpu_s() for node in (*self.nodes, *self.helpers))

    def disk(self) -> int:
        """Return the bytes that one node occupies on disk, on average."""
        return sum(occupied(self.data(node)) for node in self.nodes) // len(self.nodes)

    def logs(self, lines: int = 15) -> str:
        """Return the ends of all logs."""
        shown = []
        for node in (*self.helpers, *self.nodes):
            if node.log.exists():
                tail = node.log.read_text(errors="replace").splitlines()[-lines:]
                shown.append(f"--- {node.name}\n" + "\n".join(tail))
        return "\n".join(shown)


def occupied(folder: Path) -> int:
    """Return the bytes of disk below a folder: blocks, because some peers make files larger than their content."""
    return sum(_blocks(path) for path in _files(folder))


def _files(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        for name in names:
            yield Path(parent) / name


def _blocks(path: Path) -> int:
    # A compaction may delete a file between its listing and this look.
    with suppress(FileNotFoundError):
        return path.stat().st_blocks * 512
    return 0


def wait_for(condition: str, log: Path, timeout_s: float) -> None:
    """Wait until a log holds some words.

    Raises:
        TimeoutError: it never did.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if log.exists() and condition in log.read_text(errors="replace"):
            return
        time.sleep(0.05)
    raise TimeoutError(f"{log} never said {condition!r}; read it")
