"""
The clients' connections, and who answers what comes in on them.

The rule: a request is answered by this replica only while it surely speaks for the group. While
that is in doubt (leadership on its way, a lease that ran out, a process that was paused) requests
wait at the desk in the order they came; when another replica leads, those on connections that
were accepted here are passed on to it. Order on one connection is kept across all of it.
``replication/loop.py`` runs what is served here, ``forwarding.py`` carries what is not.
"""

import logging
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Final, Protocol

from orderlymq_broker.processors.effects import Peer
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.command import RemotingCommand
from orderlymq_runtime.connection import Connection

_log = logging.getLogger(__name__)

# Beyond this the desk is no waiting room but a leak: the connection whose request is one too many
# is closed, so that its client tries again. At 1 KiB a request it is 16 MiB.
WAITING_MAX: Final = 16_384

PULL_CODES: Final = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})


class Desk(Enum):
    """What happens to a request that arrives now."""

    SERVE = "serve"  # this replica answers
    HOLD = "hold"  # this replica leads and is about to hand that over
    WAIT = "wait"  # nobody knows yet who answers
    FORWARD = "forward"  # another replica leads and is known


class Line(Protocol):
    """A client, connected here or forwarded by another replica."""

    id: int
    peer: tuple[str, int]

    def send(self, command: RemotingCommand) -> None:
        """Write a command to the client."""

    def close(self, *, orderly: bool = True) -> None:
        """End the connection."""


class Service(Protocol):
    """Who answers requests here."""

    def handle(self, request: RemotingCommand, peer: Peer) -> None:
        """Answer *request*, now or later."""

    def may_answer(self) -> bool:
        """Tell whether an answer given now is the truth."""

    def connection_closed(self, connection: int) -> None:
        """Forget a connection."""


class Forwarder(Protocol):
    """Who carries requests to the leader."""

    def forward(self, line: Line, command: RemotingCommand) -> bool:
        """Pass *command* on; False when the leader cannot be reached."""

    def line_lost(self, connection: int) -> None:
        """Tell the leader that a client is gone."""


class Clients:
    """All lines to clients; the `FrameHandler` of the remoting server.

    Life cycle of a line: made, requests, lost. *always_open* marks a replica that listens whether
    it leads or not (Kubernetes): a service follows the leader a moment late, so what comes to a
    follower is passed on. While no leader is known the core itself answers it (closing, refusing
    or ignoring as each code demands).
    """

    def __init__(self, service: Service, forwarder: Forwarder, *, always_open: bool) -> None:
        self.desk = Desk.WAIT
        self._service = service
        self._forwarder = forwarder
        self._always_open = always_open
        self._lines: dict[int, Line] = {}
        self._waiting: deque[tuple[Line, RemotingCommand]] = deque()
        self._intercepts: dict[int, Callable[[Line, RemotingCommand], None]] = {}
        self._on_handled: Callable[[Line, RemotingCommand], None] | None = None
        self._on_lost: Callable[[Line], None] | None = None
        # Lines that were made while this replica did not lead.
        self._strangers: set[int] = set()

    def intercept(
        self, code: RequestCode, handler: Callable[[Line, RemotingCommand], None]
    ) -> None:
        """Let *handler* answer requests of *code*: those that steer this process, not its state."""
        self._intercepts[code] = handler

    def watch(
        self,
        *,
        handled: Callable[[Line, RemotingCommand], None],
        lost: Callable[[Line], None],
    ) -> None:
        """Call *handled* after each heartbeat or lock request, *lost* before a line is forgotten."""
        self._on_handled = handled
        self._on_lost = lost

    # -- what the server calls -------------------------------------------------------------------

    def connection_made(self, conn: Connection) -> None:
        """Take note of a client."""
        self.line_made(conn)

    def received(self, conn: Connection, commands: list[RemotingCommand]) -> None:
        """Handle what one read has brought."""
        self.line_received(conn, commands)

    def connection_lost(self, conn: Connection) -> None:
        """Forget a client."""
        self.line_lost(conn)

    # -- lines, connected here or elsewhere ------------------------------------------------------

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def waiting(self) -> int:
        """Return how many requests wait for somebody who may answer."""
        return len(self._waiting)

    def line_made(self, line: Line) -> None:
        """Take note of a client."""
        self._lines[line.id] = line
        if self._always_open and self.desk not in (Desk.SERVE, Desk.HOLD):
            self._strangers.add(line.id)

    def line_received(self, line: Line, commands: list[RemotingCommand]) -> None:
        """Handle the commands of one client, in their order."""
        if self.desk is Desk.SERVE and not self._waiting and self._service.may_answer():
            for command in commands:
                self._serve(line, command)
            return
        is_stranger = line.id in self._strangers
        for command in commands:
            if is_stranger and (self.desk is Desk.WAIT or command.code in self._intercepts):
                self._serve(line, command)
            else:
                self._waiting.append((line, command))
        self._work_off()
        if len(self._waiting) > WAITING_MAX:
            _log.warning("%d requests wait for a leader, closing a client", len(self._waiting))
            line.close(orderly=False)

    def line_lost(self, line: Line) -> None:
        """Forget a client and what it still wanted."""
        if self._lines.pop(line.id, None) is None:
            return
        self._waiting = deque(item for item in self._waiting if item[0] is not line)
        if self._on_lost is not None:
            self._on_lost(line)
        self._strangers.discard(line.id)
        self._forwarder.line_lost(line.id)
        self._service.connection_closed(line.id)

    def lines(self) -> list[Line]:
        """Return all lines."""
        return list(self._lines.values())

    def line(self, connection: int) -> Line | None:
        """Return the line with this number, while it exists."""
        return self._lines.get(connection)

    def is_stranger(self, line: Line) -> bool:
        """Tell whether the client came to this replica while it did not lead."""
        return line.id in self._strangers

    # -- what the loop calls (ClientPort) --------------------------------------------------------

    def send(self, connection: int, command: RemotingCommand) -> None:
        """Write a command to a client, if it is still there."""
        line = self._lines.get(connection)
        if line is not None:
            line.send(command)

    def close(self, connection: int, reason: str) -> None:
        """Close a client's connection, so that it sees a failure at once."""
        line = self._lines.get(connection)
        if line is not None:
            _log.info("closing the connection of %s:%d: %s", *line.peer, reason)
            line.close(orderly=False)

    # -- who answers -----------------------------------------------------------------------------

    def turn_to(self, desk: Desk) -> None:
        """Change what happens to requests, and work off those that wait if they can go on."""
        self.desk = desk
        if desk is Desk.SERVE:
            self._strangers.clear()
        self._work_off()

    def retry(self) -> None:
        """Look again whether waiting requests can be answered."""
        if self._waiting:
            self._work_off()

    def drop_waiting(self, reason: str) -> None:
        """Close the clients whose requests nobody will answer, so that they try again."""
        lines = {line.id: line for line, _ in self._waiting}
        self._waiting.clear()
        for line in lines.values():
            _log.info("closing the connection of %s:%d: %s", *line.peer, reason)
            line.close(orderly=False)

    def _work_off(self) -> None:
        waiting = self._waiting
        while waiting:
            if self.desk is Desk.SERVE and self._service.may_answer():
                self._serve(*waiting.popleft())
            elif self.desk is Desk.FORWARD:
                line, command = waiting[0]
                if not self._forwarder.forward(line, command):
                    return
                waiting.popleft()
            else:
                return

    def _serve(self, line: Line, command: RemotingCommand) -> None:
        intercept = self._intercepts.get(command.code)
        if intercept is not None and not command.is_response:
            intercept(line, command)
            return
        peer = Peer(line.id, line.peer[0], line.peer[1])
        try:
            self._service.handle(command, peer)
        except Exception as error:
            _log.exception("request %d of %s:%d failed", command.code, *line.peer)
            if not (command.is_response or command.is_oneway):
                remark = f"{type(error).__name__}: {error}"
                line.send(command.reply(1, remark=remark[:1000]))
        if self._on_handled is not None:
            self._on_handled(line, command)
