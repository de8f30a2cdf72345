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
import logging
import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

import psutil

_log = logging.getLogger(__name__)

# A process that was killed is gone within milliseconds, one that dumps its core within seconds.
LOOKS_S: Final = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 1.0, 2.0)

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


def owner_of_socket(pid: int, host: str, port: int) -> Process | None:
    """Return process *pid* if it has a TCP socket whose own end is *host*:*port*."""
    try:
        process = psutil.Process(pid)
        started_at = process.create_time()
        for connection in process.net_connections(kind="tcp"):
            local = connection.laddr
            if local and local.port == port and _same_host(local.ip, host):
                return Process(pid, started_at)
    except psutil.Error:
        return None
    return None


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


class Liveness:
    """Watches the clients that are connected from this machine.

    Life cycle of a client: `seen` after each of its heartbeats, `lost` when its connection is
    gone; *on_dead* is called at most once after it.
    """

    def __init__(self, on_dead: Callable[[str, str], None]) -> None:
        self._on_dead = on_dead
        # (connection, client id) -> the process, None while it is being looked for or unproven.
        self._known: dict[tuple[int, str], Process | None] = {}
        self._connections: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def seen(self, connection: int, client_ids: list[str], host: str, port: int) -> None:
        """Note which clients speak, or may speak, on a connection from *host*:*port*.

        Only those whose process owns its other end count.
        """
        self._connections.add(connection)
        if not is_local(host):
            return
        for client_id in client_ids:
            key = (connection, client_id)
            if key in self._known:
                continue
            self._known[key] = None
            pid = pid_of(client_id)
            if pid is not None:
                self._spawn(self._identify(key, pid, host, port))

    def knows(self, connection: int) -> bool:
        """Tell whether it was said which clients may speak on a connection."""
        return connection in self._connections

    def lost(self, connection: int) -> None:
        """Go and look whether the clients of a closed connection are dead."""
        self._connections.discard(connection)
        for key in [key for key in self._known if key[0] == connection]:
            process = self._known.pop(key)
            if process is not None:
                self._spawn(self._look(key[1], process))

    async def close(self) -> None:
        """Stop looking."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _identify(self, key: tuple[int, str], pid: int, host: str, port: int) -> None:
        process = await asyncio.to_thread(owner_of_socket, pid, host, port)
        if process is None:
            _log.debug("client %s is not process %d of this machine", key[1], pid)
        elif key in self._known:
            self._known[key] = process

    async def _look(self, client_id: str, process: Process) -> None:
        for pause_s in LOOKS_S:
            await asyncio.sleep(pause_s)
            proof = await asyncio.to_thread(proof_of_death, process)
            if proof is not None:
                if not self._lives_elsewhere(process):
                    _log.info("client %s is dead: %s", client_id, proof)
                    self._on_dead(client_id, proof)
                return

    def _lives_elsewhere(self, process: Process) -> bool:
        return any(known == process for known in self._known.values())

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="liveness")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _same_host(one: str, other: str) -> bool:
    # A socket of a dual-stack listener shows IPv4 peers as ::ffff:127.0.0.1.
    return one.removeprefix("::ffff:") == other.removeprefix("::ffff:")
