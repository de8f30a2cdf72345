"""
Sockets of this machine as Linux shows them: which processes hold the other end of a connection.

A look reads the descriptors of all processes, and the TCP tables if it needs them. It answers any number
of questions, takes milliseconds, and belongs in a thread. It never guesses what it cannot see: without an answer,
nothing is proven. ADR 16 has the argument for each rule.
"""

import os
import stat
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from orderlymq_broker.server.clientdeath.socketdiag import inode_of
from orderlymq_protocol.hosts import ip_of
from orderlymq_runtime.process.procstat import PROC, STARTED, STATE, THREADS, stat_fields

SocketEnd: TypeAlias = tuple[str, int]

IS_READABLE: Final = (PROC / "net" / "tcp").exists()

# The errors of /proc for a process or a descriptor that is gone.
_ENDED: Final = (FileNotFoundError, ProcessLookupError)
_ESTABLISHED: Final = "01"
_LISTEN: Final = "0A"
_MAPPED: Final = "0000000000000000FFFF0000"
# If one of these programs holds one end of a connection, its other end is a client of OrderlyMQ.
_SERVERS: Final = (b"orderlymq_broker", b"orderlymq_nameserver")
# Threads that each consumer of the Java client runs. Linux keeps 15 characters of a name; Java cuts off
# its end, newer versions its middle.
_CONSUMER_THREADS: Final = (
    {b"RebalanceServic", b"PullMessageServ"},
    {b"Rebalan..ervice", b"PullMes..ervice"},
)
_QUIET_DEVICES: Final = frozenset({"/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"})
_SHARED_MEMORY: Final = ("/dev/shm/", "/memfd:")  # noqa: S108  a name to compare, no file of ours
_QUIET_KINDS: Final = frozenset(
    f"anon_inode:[{kind}]" for kind in ("eventpoll", "eventfd", "timerfd", "signalfd")
) | {"anon_inode:inotify"}


class Process(NamedTuple):
    """One process; its start, in ticks since the boot, distinguishes it from a later process with the same number.

    The time of day would not work: it changes for a living process when the clock is set.
    """

    pid: int
    started: int
    uid: int


Owners: TypeAlias = frozenset[Process]


class _Row(NamedTuple):
    local: str
    remote: str
    state: str


@dataclass(frozen=True, slots=True)
class Holding:
    """The client's socket of a connection, and all processes that hold it."""

    inode: str
    owners: Owners

    def is_held_by(self, pid: int | None) -> bool:
        """Return whether one of the owners has this process number."""
        return any(owner.pid == pid for owner in self.owners)


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Descriptors that a process may read in addition to its sockets: other programs may send it data through them."""

    runs_consumer: bool
    files: tuple[tuple[str, str], ...]


class _Tables:
    """The TCP tables: every connection of this machine, which takes tens of milliseconds to read."""

    def __init__(self) -> None:
        self.rows = {**_table("tcp"), **_table("tcp6")}
        self.inodes = {(row.local, row.remote): inode for inode, row in self.rows.items()}
        self.established: dict[str, list[str]] = defaultdict(list)
        self.listening: set[str] = set()
        for inode, row in self.rows.items():
            if row.state == _ESTABLISHED:
                self.established[row.local].append(inode)
            elif row.state == _LISTEN:
                self.listening.add(_port(row.local))


class View:
    """The result of one look at the machine.

    *connections* are given by their far ends, and by ours if known. The client of each may be
    killed at any moment. So the look asks for these sockets first, and reads a process that holds one as soon as
    it finds the process.

    Attributes:
        read_s: the monotonic time when the connections had been read.

    Raises:
        OSError: for example, this process may not open another file; nothing was read.
    """

    def __init__(self, connections: Iterable[tuple[SocketEnd, SocketEnd | None]] = ()) -> None:
        self._asked: dict[SocketEnd, tuple[str, str]] = {}
        unknown: list[SocketEnd] = []
        for end, ours in connections:
            both = _both_inodes(end, ours) if ours is not None else None
            if both is not None:
                self._asked[end] = both
            else:
                unknown.append(end)
        asked = {inode for inode, _ in self._asked.values()}
        for end in unknown:
            asked.update(self._tables.established.get(_key(end), ()))
        self.read_s = time.monotonic()
        self._descriptors: dict[int, list[tuple[str, str]]] = {}
        self._holders: dict[str, set[int]] = defaultdict(set)
        self._hidden: list[Process] = []
        self._processes: dict[int, Process | None] = {}
        self._inputs: dict[int, _Inputs] = {}
        self._ways_in: dict[int, str | None] = {}
        self._scan(asked)

    @cached_property
    def _tables(self) -> _Tables:
        return _Tables()

    def client_of(
        self, end: SocketEnd, pid: int | None, *, forwarded: bool = False
    ) -> Holding | str:
        """Return the client at the other *end* of a connection with us, or the reason why it is unknown.

        A *forwarded* client is connected with another broker.

        A client that names its process *pid* counts if that process holds the socket. Any other client counts
        only if no process that holds the socket can speak for another program.
        """
        inode = self._inode_of(end, forwarded=forwarded)
        if inode is None:
            return "the other end is not a socket of this machine or its network"
        owners = frozenset(filter(None, map(self._process, self._holders[inode])))
        if not owners or len(owners) != len(self._holders[inode]):
            return "no visible process holds the other end"
        if self._is_maybe_held(owners):
            return "a process that cannot be examined may hold the other end, too"
        if pid not in self._holders[inode]:
            for owner in owners:
                if owner.pid not in self._ways_in:
                    self._ways_in[owner.pid] = self._way_in(owner.pid)
                way = self._ways_in[owner.pid]
                if way is not None:
                    return f"process {owner.pid} may act for another program: {way}"

        return Holding(inode, owners)

    def _inode_of(self, end: SocketEnd, *, forwarded: bool) -> str | None:
        if end in self._asked and not forwarded:
            inode, ours = self._asked[end]
            return inode if os.getpid() in self._holders.get(ours, ()) else None
        tables = self._tables
        # The client's end alone is not enough: one port may have connections with several servers.
        found = [
            each
            for each in tables.established.get(_key(end), ())
            if self._is_served(tables.rows[each])
            and self._is_ours(tables.rows[each]) is not forwarded
        ]
        return found[0] if len(found) == 1 else None

    def is_held(self, holding: Holding) -> bool:
        """Return whether any process holds the socket, including one that its owners have left behind."""
        return bool(self._holders.get(holding.inode)) or self._is_maybe_held(holding.owners)

    def _scan(self, asked: set[str]) -> None:
        # A client that may die soon has usually started recently, so the latest processes come first.
        for pid in sorted((int(name) for name in os.listdir(PROC) if name.isdigit()), reverse=True):
            folder = f"{PROC}/{pid}/fd"
            try:
                found = [(number, _target(f"{folder}/{number}")) for number in os.listdir(folder)]
            except _ENDED:
                continue
            except PermissionError:
                self._hidden += filter(None, [self._process(pid)])
                continue
            self._descriptors[pid] = found
            for _, target in found:
                if target.startswith(("socket:", "pipe:")):
                    self._holders[target].add(pid)
            if not asked.isdisjoint(target for _, target in found):
                self._process(pid)
                self._inputs[pid] = self._read_inputs(pid)

    def _process(self, pid: int) -> Process | None:
        if pid not in self._processes:
            self._processes[pid] = read_process(pid)
        return self._processes[pid]

    def _is_maybe_held(self, owners: Owners) -> bool:
        """Return whether a process that cannot be inspected may be a copy of an owner.

        It is not if it is older, or belongs to another user while the owner may not change its user.
        """
        return any(
            hidden.started >= owner.started and owner.uid in (0, hidden.uid)
            for hidden in self._hidden
            for owner in owners
        )

    def _is_ours(self, row: _Row) -> bool:
        """Return whether this process holds the far end of a connection."""
        far = self._tables.inodes.get((row.remote, row.local))
        return far is not None and os.getpid() in self._holders.get(far, ())

    def _is_served(self, row: _Row) -> bool:
        """Return whether only brokers and name servers hold the far end of a connection."""
        far = self._tables.inodes.get((row.remote, row.local))
        return far is not None and _are_servers(self._holders.get(far, ()))

    def _way_in(self, pid: int) -> str | None:
        """Return the way by which a process may receive bytes from another program, or None if there is none."""
        if pid not in self._inputs:
            self._inputs[pid] = self._read_inputs(pid)
        inputs = self._inputs[pid]
        for _, target in self._descriptors.get(pid, ()):
            if target.startswith("socket:"):
                way = self._way_of_socket(target, runs_consumer=inputs.runs_consumer)
                if way is not None:
                    return way
        for target, way in inputs.files:
            if not (target.startswith("pipe:") and self._holders[target] == {pid}):
                return way

        return None

    def _read_inputs(self, pid: int) -> _Inputs:
        if _runs_consumer(pid):
            return _Inputs(runs_consumer=True, files=())
        found = (
            (target, _way_of_file(pid, number, target))
            for number, target in self._descriptors.get(pid, ())
            if not target.startswith("socket:")
        )
        return _Inputs(False, tuple((target, way) for target, way in found if way is not None))

    def _way_of_socket(self, inode: str, *, runs_consumer: bool) -> str | None:
        row = self._tables.rows.get(inode)
        if row is None:
            return None if runs_consumer else f"it has a socket that is not TCP, {inode}"
        if row.state == _LISTEN:
            return "it listens"
        if _port(row.local) in self._tables.listening:
            return "it has an accepted connection"
        if runs_consumer or self._is_served(row):
            return None
        return "it has other connections"


def _both_inodes(end: SocketEnd, ours: SocketEnd) -> tuple[str, str] | None:
    """Return the sockets at both ends of a connection, the client's first, in the form of descriptors."""
    found = inode_of(end, ours), inode_of(ours, end)
    return None if None in found else (f"socket:[{found[0]}]", f"socket:[{found[1]}]")


def _way_of_file(pid: int, number: str, target: str) -> str | None:
    """Return the way by which a descriptor that is no socket may bring bytes, or None if it brings none."""
    path = f"{PROC}/{pid}/fd/{number}"
    if not target or target in _QUIET_DEVICES or target in _QUIET_KINDS:
        return None
    try:
        if not os.lstat(path).st_mode & stat.S_IRUSR:
            return None  # nothing is read from it
        mode = os.stat(path).st_mode
    except OSError:
        return f"its descriptor {number} cannot be examined"
    is_file = stat.S_ISREG(mode) or stat.S_ISDIR(mode)
    if is_file and not target.startswith(_SHARED_MEMORY):
        return None
    return f"it reads from {target}"


def read_process(pid: int) -> Process | None:
    """Return process *pid*, or None if it has ended."""
    try:
        return Process(pid, int(stat_fields(pid)[STARTED]), _uid(pid))
    except _ENDED:
        return None


def proof_of_death(process: Process) -> str | None:
    """Return why *process* is certainly gone, or None if it may live."""
    try:
        fields = stat_fields(process.pid)
    except _ENDED:
        return f"process {process.pid} does not exist any more"
    if int(fields[STARTED]) != process.started:
        return f"process {process.pid} has ended, and its number belongs to a later process"
    # A process whose first thread has ended is shown as a zombie while other threads run.
    if fields[STATE] == "Z" and int(fields[THREADS]) <= 1:
        return f"process {process.pid} has ended, but its parent has not collected it yet"
    return None


def _target(descriptor: str) -> str:
    """Return the target of a descriptor; empty if it was closed meanwhile."""
    try:
        return os.readlink(descriptor)
    except _ENDED:
        return ""


def _uid(pid: int) -> int:
    for line in (PROC / str(pid) / "status").read_bytes().splitlines():
        if line.startswith(b"Uid:"):
            return int(line.split()[1])
    return 0


def _table(name: str) -> dict[str, _Row]:
    """Return the sockets of one TCP table by inode, in the form of descriptors."""
    rows: dict[str, _Row] = {}
    try:
        lines = (PROC / "net" / name).read_text(encoding="ascii").splitlines()[1:]
    except FileNotFoundError:
        return rows  # no IPv6
    for line in lines:
        fields = line.split()
        if fields[9] != "0":
            row = _Row(_unmapped(fields[1]), _unmapped(fields[2]), fields[3])
            rows[f"socket:[{fields[9]}]"] = row

    return rows


def _unmapped(end: str) -> str:
    """Return an end in the form of the IPv4 table: a socket of both families shows ::ffff:127.0.0.1."""
    return end.removeprefix(_MAPPED)


def _port(end: str) -> str:
    return end.rpartition(":")[2]


def _key(end: SocketEnd) -> str:
    """Return an end in the form of the tables, words in this CPU's byte order; empty if the text is not an address."""
    address = ip_of(end[0])
    if address is None:
        return ""
    packed = address.packed
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    return (
        "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words) + f":{end[1]:04X}"
    )


def _are_servers(pids: Iterable[int]) -> bool:
    pids = list(pids)
    return bool(pids) and all(pid == os.getpid() or _is_server(pid) for pid in pids)


def _is_server(pid: int) -> bool:
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except _ENDED:
        return False
    return any(flag == b"-m" and module in _SERVERS for flag, module in pairwise(words))


def _runs_consumer(pid: int) -> bool:
    """Return whether RocketMQ's Java client runs a consumer in a process, judged by the names of its threads."""
    names = set()
    try:
        for thread in (PROC / str(pid) / "task").iterdir():
            names.add((thread / "comm").read_bytes().strip())
    except _ENDED:
        return False
    return any(threads <= names for threads in _CONSUMER_THREADS)
