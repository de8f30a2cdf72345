"""
Proof that a client of this machine is dead.

The rule: a lock moves before its lease ends only on proof, and a closed connection is none: it is
the reason to go and look. RocketMQ's client ids carry the process id (``ip@PID#nanos``, older
``ip@PID``). While the client is connected we make sure that this process really owns the other
end of the socket (a container's process ids mean nothing here) and note when it started. When the
connection is gone and that very process is gone, a zombie, or another one under its number, the
client is dead. Everything that asks the operating system runs in a thread.
"""

import asyncio
import contextlib
import logging
import re
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final, TypeAlias

import psutil

_log = logging.getLogger(__name__)

# A process that was killed is gone within milliseconds, one that dumps its core within seconds.
LOOKS_S: Final = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 1.0, 2.0)

SocketEnd: TypeAlias = tuple[str, int]

_PID_IN_CLIENT_ID: Final = re.compile(r"@(\d{1,9})(?:[#@].*)?$")


@dataclass(frozen=True, slots=True)
class Process:
    """One process, told apart from a later one under the same number by its start time."""

    pid: int
    started_at: float


def pid_of(client_id: str) -> int | None:
    """Return the process id inside *client_id*, if it has RocketMQ's form."""
    found = _PID_IN_CLIENT_ID.search(client_id)
    return int(found.group(1)) if found else None


def is_local(host: str) -> bool:
    """Tell whether a peer's address can only be of this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def sockets_of(pid: int) -> tuple[Process, frozenset[SocketEnd]] | None:
    """Return process *pid* with its own ends of its TCP sockets, None when it cannot be looked at."""
    try:
        process = psutil.Process(pid)
        started_at = process.create_time()
        found = process.net_connections(kind="tcp")
    except psutil.Error:
        return None
    ends = frozenset(_end(*each.laddr) for each in found if each.laddr)

    return Process(pid, started_at), ends


def proof_of_death(process: Process) -> str | None:
    """Return why *process* is certainly gone, None when it may live."""
    try:
        found = psutil.Process(process.pid)
        if found.create_time() != process.started_at:
            return f"process {process.pid} has ended, its number belongs to a later process"
        if found.status() == psutil.STATUS_ZOMBIE:
            return f"process {process.pid} has ended and was not collected yet"
    except psutil.NoSuchProcess:
        return f"process {process.pid} does not exist any more"
    except psutil.Error:
        return None
    return None


@dataclass(slots=True)
class _Question:
    """Whether the process that a client id names is the owner of a connection's other end."""

    connection: int
    client_id: str
    end: SocketEnd


class Liveness:
    """Watches the clients that are connected from this machine.

    Life cycle of a client: `seen` after each of its heartbeats, `lost` when its connection is
    gone; *on_dead* is called at most once after it. A process is looked at once for all of its
    clients that wait for it, however many they are.

    Attributes:
        looks: how often the sockets of a process were asked for.
    """

    def __init__(self, on_dead: Callable[[str, str], None]) -> None:
        self._on_dead = on_dead
        # By connection and client id the process, None while it is being looked for or unproven.
        self._known: dict[int, dict[str, Process | None]] = {}
        # How many of these are of a process.
        self._connected: Counter[Process] = Counter()
        self._questions: dict[int, list[_Question]] = {}
        self._lost: dict[Process, _Lost] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.looks = 0

    def seen(self, connection: int, client_ids: list[str], host: str, port: int) -> None:
        """Note which clients speak, or may speak, on a connection from *host*:*port*.

        Only those whose process owns its other end count.
        """
        known = self._known.setdefault(connection, {})
        if not is_local(host):
            return
        for client_id in client_ids:
            if client_id in known:
                continue
            known[client_id] = None
            pid = pid_of(client_id)
            if pid is not None:
                if not self._questions:
                    self._spawn(self._identify())
                question = _Question(connection, client_id, _end(host, port))
                self._questions.setdefault(pid, []).append(question)

    def knows(self, connection: int) -> bool:
        """Tell whether it was said which clients may speak on a connection."""
        return connection in self._known

    def lost(self, connection: int) -> None:
        """Go and look whether the clients of a closed connection are dead."""
        for client_id, process in self._known.pop(connection, {}).items():
            if process is None:
                continue
            self._connected[process] -= 1
            if not self._connected[process]:
                del self._connected[process]
            waiting = self._lost.get(process)
            if waiting is None:
                waiting = self._lost[process] = _Lost()
                self._spawn(self._look(process, waiting))
            waiting.client_ids.add(client_id)
            waiting.more.set()

    async def close(self) -> None:
        """Stop looking."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _identify(self) -> None:
        """Answer the questions that there are, a process at a time; what comes meanwhile is asked next."""
        await asyncio.sleep(0)
        while self._questions:
            pid = next(iter(self._questions))
            self.looks += 1
            asked = self._questions[pid]
            count = len(asked)
            found = await asyncio.to_thread(sockets_of, pid)
            for question in asked[:count]:
                self._answer(question, pid, found)
            # Who asked while the process was looked at may have connected after it.
            del asked[:count]
            if not asked:
                del self._questions[pid]

    def _answer(
        self, question: _Question, pid: int, found: tuple[Process, frozenset[SocketEnd]] | None
    ) -> None:
        known = self._known.get(question.connection, {})
        if question.client_id not in known:
            return  # the connection is gone
        if found is None or question.end not in found[1]:
            _log.debug("client %s is not process %d of this machine", question.client_id, pid)
            return
        known[question.client_id] = found[0]
        self._connected[found[0]] += 1

    async def _look(self, process: Process, waiting: "_Lost") -> None:
        looked = 0
        while looked < len(LOOKS_S):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOKS_S[looked]):
                    await waiting.more.wait()
                looked = 0
            waiting.more.clear()
            proof = await asyncio.to_thread(proof_of_death, process)
            # Of a dead process no connection stays open; those that do are lost in a moment.
            if proof is not None and process not in self._connected:
                del self._lost[process]
                for client_id in sorted(waiting.client_ids):
                    _log.info("client %s is dead: %s", client_id, proof)
                    self._on_dead(client_id, proof)
                return
            # A connection that broke since is one more reason to look often.
            looked = 0 if waiting.more.is_set() else looked + 1
        del self._lost[process]

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="liveness")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


@dataclass(slots=True)
class _Lost:
    """The clients of one process whose connections are gone; *more* when another one is."""

    client_ids: set[str] = field(default_factory=set)
    more: asyncio.Event = field(default_factory=asyncio.Event)


def _end(host: str, port: int) -> SocketEnd:
    # A socket of a dual-stack listener shows IPv4 peers as ::ffff:127.0.0.1.
    return host.removeprefix("::ffff:"), port
