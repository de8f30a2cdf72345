"""
The same interface as ``sockets.py`` for systems without /proc: only a client that names its process counts.

Only the named process is examined, and a process number that was given to a later process counts as alive.
So fewer deaths are proven, but never a wrong one.
"""

import math
from collections.abc import Iterable

import psutil

from orderlymq_broker.server.clientdeath.sockets import Holding, Process, SocketEnd


class View:
    """Answers about one process at a time.

    Attributes:
        read_s: the monotonic time when connections were read: never before the questions.
    """

    def __init__(self, _: Iterable[tuple[SocketEnd, SocketEnd | None]] = ()) -> None:
        self.read_s = math.inf

    def client_of(
        self, end: SocketEnd, pid: int | None, *, forwarded: bool = False
    ) -> Holding | str:
        """Return the client at the other *end* of a connection, or the reason why it is unknown."""
        if pid is None:
            return "the client does not report its process"
        try:
            found = psutil.Process(pid).net_connections(kind="tcp")
        except psutil.Error as error:
            return f"process {pid} cannot be examined: {error}"
        wanted = (end[0].removeprefix("::ffff:"), end[1])
        if any(each.laddr and _plain(*each.laddr[:2]) == wanted for each in found):
            return Holding("", frozenset({Process(pid, 0, 0)}))
        return f"process {pid}, which the client named as its own, does not hold the other end"

    def is_held(self, holding: Holding) -> bool:
        """Return whether any process holds the socket; here none is known to."""
        return False


def proof_of_death(process: Process) -> str | None:
    """Return why *process* is certainly gone, or None if it may live."""
    try:
        if psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE:
            return f"process {process.pid} has ended, but its parent has not collected it yet"
    except psutil.NoSuchProcess:
        return f"process {process.pid} does not exist any more"
    except psutil.Error:
        return None
    return None


def _plain(host: str, port: int) -> SocketEnd:
    return host.removeprefix("::ffff:"), port
