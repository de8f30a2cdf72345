"""
The router of requests: it decides which replica answers a client's request.

The rule: this replica answers a request only while it certainly speaks for the group. While that is in doubt,
requests wait here in their order of arrival, and a leader asks the others to confirm it. It is in doubt before a
leadership begins, after a lease has expired, or after the process was paused. If another replica leads, requests on
connections that were accepted here are forwarded to it. The order on one connection is kept in all cases. Waiting
requests are processed in turns (``turns.py``), before anything that is read meanwhile. ``replication/loop.py`` serves
requests here, ``forwarder.py`` forwards the others to the leader.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from orderlymq_broker.core.bodylimits import excess
from orderlymq_broker.core.effects import Caller
from orderlymq_broker.core.requestcontext import is_misread, reads_no_code
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.plurals import counted
from orderlymq_runtime.remoting.failures import failure_reply
from orderlymq_runtime.remoting.turns import Turns

_log = logging.getLogger(__name__)

# A longer queue is a leak: the connection with the most requests in it is closed, so that it
# cannot take the places of others. At 1 KiB per request, this is 16 MiB.
WAITING_MAX: Final = 16_384
# The senders of waiting requests are not checked yet. This is in addition to the budget of unfinished input
# (``inputbudget``).
WAITING_BYTES_MAX: Final = 64 << 20

PULL_CODES: Final = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})


class Admission(Enum):
    """What happens to a request that arrives now."""

    SERVE = "serve"  # this replica answers
    HOLD = "hold"  # this replica leads and is about to hand the leadership over
    WAIT = "wait"  # it is not known yet which replica answers
    FORWARD = "forward"  # another replica leads and is known


class ClientConnection(Protocol):
    """A client, connected here or forwarded by another replica.

    Attributes:
        local: our end of its connection.
        listener: the further listener that accepted it; empty for the group's own address.
    """

    id: int
    peer: tuple[str, int]
    local: tuple[str, int] | None
    listener: str

    @property
    def is_closing(self) -> bool:
        """Whether it is being closed; its further requests are dropped."""

    def send(self, command: RemotingCommand) -> None:
        """Write a command to the client."""

    def close(self, *, orderly: bool = True, kind: str, reason: str = "") -> None:
        """Close the connection; *kind* is the label of the counter, *reason* the text for the log."""


class Service(Protocol):
    """The service that answers requests here."""

    def handle(self, request: RemotingCommand, caller: Caller) -> None:
        """Answer *request*, now or later."""

    def may_answer(self) -> bool:
        """Return whether an answer given now is certainly valid."""

    def refusal(self, request: RemotingCommand, caller: Caller) -> RemotingCommand | None:
        """Return the refusal of a request that its sender may not make, or None if it may."""

    def request_confirmation(self) -> int:
        """Ask the group to confirm that this replica may answer the requests so far; `Router.retry` is called then."""

    def is_confirmed(self, number: int) -> bool:
        """Return whether the group has confirmed the round with this *number* of `request_confirmation`."""

    def connection_closed(self, connection: int) -> None:
        """Remove a connection."""


class Forwarder(Protocol):
    """Carries requests to the leader."""

    def forward(self, client: ClientConnection, command: RemotingCommand) -> bool:
        """Forward *command*; return False if the leader cannot be reached."""

    def client_lost(self, connection: int) -> None:
        """Notify the leader that a client is gone."""


@dataclass(slots=True)
class _Waiting:
    """A request that waits; *confirmation* is the round for which it waits while this replica serves."""

    client: ClientConnection
    command: RemotingCommand
    confirmation: int | None = None
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = self.command.memory_bytes()


class Router:
    """All connections of clients; the `FrameHandler` of the remoting server.

    Life cycle of a connection: made, requests, lost. *always_open* marks a replica that listens whether
    it leads or not (Kubernetes): a Service follows the leader with a delay, so requests to a
    follower are forwarded. While no leader is known, the core itself answers them (it closes, refuses
    or ignores, as each code demands).

    Attributes:
        service: the loop of the present instance, which answers; set before the first client comes.
        turns: the turns of the server that has these connections; without them, no other work runs in between.
    """

    service: Service

    def __init__(self, forwarder: Forwarder, *, always_open: bool) -> None:
        self.admission = Admission.WAIT
        self.turns: Turns | None = None
        self._forwarder = forwarder
        self._always_open = always_open
        self._clients: dict[int, ClientConnection] = {}
        # Requests of lost clients stay in the queue until they are reached, or until they make up half of it.
        self._waiting: deque[_Waiting] = deque()
        self._waiting_of: Counter[int] = Counter()
        self._bytes_of: Counter[int] = Counter()
        self._lost = 0
        self._waiting_bytes = 0
        # The number of requests at the end of the queue for which no confirmation was requested yet.
        self._unasked = 0
        self.worked_off = 0
        self._awaits_turn = False
        self._intercepts: dict[int, Callable[[ClientConnection, RemotingCommand], None]] = {}
        self._of_replica: set[int] = set()
        self._watched: frozenset[int] = frozenset()
        self._on_handled: Callable[[ClientConnection, RemotingCommand], None] | None = None
        self._on_lost: Callable[[ClientConnection], None] | None = None
        # Lines that were made while this replica did not lead.
        self._follower_clients: set[int] = set()

    def intercept(
        self,
        code: RequestCode,
        handler: Callable[[ClientConnection, RemotingCommand], None],
        *,
        of_replica: bool,
    ) -> None:
        """Let *handler* answer requests of *code*, which need more than the state.

        It gets requests that their sender may make, as `Service.refusal` decides. With *of_replica*, the requests
        concern the very replica that they reach, so a replica that does not lead also answers; others are held or
        forwarded like any request.
        """
        self._intercepts[code] = handler
        if of_replica:
            self._of_replica.add(code)

    def watch(
        self,
        codes: frozenset[int],
        *,
        handled: Callable[[ClientConnection, RemotingCommand], None],
        lost: Callable[[ClientConnection], None],
    ) -> None:
        """Call *handled* after each request of these *codes*, and *lost* before a client is removed."""
        self._watched = codes
        self._on_handled = handled
        self._on_lost = lost

    # -- what the server calls, and `forwarder` for clients of other replicas ---------------------

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def waiting(self) -> int:
        """The number of requests that wait for a replica that may answer."""
        return len(self._waiting) - self._lost

    def connection_made(self, client: ClientConnection) -> None:
        """Add a client."""
        self._clients[client.id] = client
        leads = self.admission in (Admission.SERVE, Admission.HOLD)
        # Forwarded clients have negative numbers: the forwarding replica takes this one for the leader, which it is
        # about to be.
        if self._always_open and not leads and client.id >= 0:
            self._follower_clients.add(client.id)

    def received(self, client: ClientConnection, command: RemotingCommand) -> None:
        """Handle a request; requests of a removed client are dropped."""
        if not self._is_here(client):
            return
        if command.code == RequestCode.ORDERLYMQ_PING:
            # That this process runs is no secret, and the answer may overtake requests that wait for the disk or the group.
            _answer(client, command.reply(), command)
            return
        if self.admission is Admission.SERVE and not self._waiting and self.service.may_answer():
            self._serve(client, command)
            return
        if client.id in self._follower_clients and (
            command.code in self._of_replica
            or (self.admission is Admission.WAIT and command.code not in self._intercepts)
        ):
            self._serve(client, command)
        elif not _refused(client, command):
            self._put(_Waiting(client, command), self._waiting.append)
        self._work_off()
        if self._lost and self._waiting_bytes > WAITING_BYTES_MAX:
            self._drop_lost()
        is_full = self.waiting > WAITING_MAX or self._waiting_bytes > WAITING_BYTES_MAX
        if is_full and self._waiting_of:
            self._close_largest()

    def _close_largest(self) -> None:
        held = self._waiting_of if self.waiting > WAITING_MAX else self._bytes_of
        client = self._clients[max(held, key=held.__getitem__)]
        whole = f"{counted(self.waiting, 'request')} of {self._waiting_bytes} bytes"
        own = f"{self._waiting_of[client.id]} of {self._bytes_of[client.id]}"
        reason = f"requests that wait for a leader: {whole}, of this client {own}"
        client.close(orderly=False, kind="too_many_waiting", reason=reason)
        # Remove it now: the end of a forwarded client comes later than its close, and other requests come meanwhile.
        self.connection_lost(client)

    def connection_lost(self, client: ClientConnection) -> None:
        """Remove a client and its waiting requests."""
        if self._clients.pop(client.id, None) is None:
            return
        self._lost += self._waiting_of.pop(client.id, 0)
        self._bytes_of.pop(client.id, None)
        is_full = self._waiting_bytes > WAITING_BYTES_MAX
        if 2 * self._lost > len(self._waiting) or is_full:
            self._drop_lost()
        if self._on_lost is not None:
            self._on_lost(client)
        self._follower_clients.discard(client.id)
        self._forwarder.client_lost(client.id)
        self.service.connection_closed(client.id)

    def _drop_lost(self) -> None:
        self._waiting = deque(each for each in self._waiting if self._is_here(each.client))
        self._unasked = sum(each.confirmation is None for each in self._waiting)
        self._waiting_bytes = sum(each.size for each in self._waiting)
        self._lost = 0

    def connections(self) -> list[ClientConnection]:
        """Return all clients."""
        return list(self._clients.values())

    def client(self, connection: int) -> ClientConnection | None:
        """Return the client with this number, or None if it is gone."""
        return self._clients.get(connection)

    def came_to_follower(self, client: ClientConnection) -> bool:
        """Return whether the client connected while this replica did not lead."""
        return client.id in self._follower_clients

    # -- what the loop calls (ClientPort) --------------------------------------------------------

    def send(self, connection: int, command: RemotingCommand) -> None:
        """Write a command to a client, if it is still connected."""
        client = self._clients.get(connection)
        if client is not None:
            client.send(command)

    def close(self, connection: int, reason: str) -> None:
        """Close a client's connection, so that it sees a failure immediately."""
        client = self._clients.get(connection)
        if client is not None:
            client.close(orderly=False, kind="not_served", reason=reason)

    # -- who answers -----------------------------------------------------------------------------

    def set_admission(self, admission: Admission) -> None:
        """Change how requests are handled, and process the waiting ones if possible."""
        self.admission = admission
        if admission is Admission.SERVE:
            self._follower_clients.clear()
        for each in self._waiting:
            each.confirmation = None
        self._unasked = len(self._waiting)
        self._work_off()

    def retry(self) -> None:
        """Check again whether waiting requests can be answered."""
        if self._waiting:
            self._work_off()

    def drop_waiting(self, reason: str) -> None:
        """Close the clients whose requests no replica will answer, so that they try again."""
        found = {
            each.client.id: each.client for each in self._waiting if self._is_here(each.client)
        }
        self._waiting.clear()
        self._waiting_of.clear()
        self._bytes_of.clear()
        self._waiting_bytes = 0
        self._lost = 0
        self._unasked = 0
        for client in found.values():
            client.close(orderly=False, kind="not_served", reason=reason)

    def resume(self) -> None:
        """Process waiting requests, in a turn that has begun."""
        self._awaits_turn = False
        self._work_off()

    def _work_off(self) -> None:
        while self._waiting and not self._awaits_turn:
            first = self._waiting[0]
            if not self._is_here(first.client):
                self._pop()
                self._lost -= 1
            elif self.admission is Admission.SERVE and self._may_answer(first):
                self._take_first()
                self._do(first)
                self._end_turn()
            elif self.admission is Admission.FORWARD:
                # Take it out first, because a client that cannot be reached may be lost meanwhile.
                self._take_first()
                if not self._do(first):
                    if self._is_here(first.client):
                        self._put(first, self._waiting.appendleft)
                        self.worked_off -= 1
                    break
                self._end_turn()
            else:
                break
        if self._unasked and self.admission is Admission.SERVE and not self._awaits_turn:
            self._ask_for_confirmation()

    def _end_turn(self) -> None:
        """Continue in the next turn if this one is over and more requests wait."""
        if self.turns is not None and self.turns.is_over(asyncio.get_running_loop().time()):
            self._awaits_turn = bool(self._waiting)
            if self._awaits_turn:
                self.turns.wait_first(self)

    def _do(self, waiting: _Waiting) -> bool:
        """Serve a waiting request or forward it; return False if the leader cannot be reached.

        The loop that runs raft calls this, so an exception of one request closes its connection and nothing else.
        """
        client, command = waiting.client, waiting.command
        if client.is_closing:
            return True
        try:
            if self.admission is Admission.FORWARD:
                return self._forwarder.forward(client, command)
            self._serve(client, command)
        except Exception as error:
            _log.exception("request %d of %s:%d failed", command.code, *client.peer)
            client.close(orderly=False, kind="unknown_outcome", reason=f"a request failed: {error}")
        return True

    def _may_answer(self, waiting: _Waiting) -> bool:
        number = waiting.confirmation
        if number is not None and self.service.is_confirmed(number):
            return True
        return self.service.may_answer()

    def _ask_for_confirmation(self) -> None:
        """Let the group confirm this replica, in one round, for all requests without a round so far."""
        number = self.service.request_confirmation()
        for position in range(-self._unasked, 0):
            self._waiting[position].confirmation = number
        self._unasked = 0

    def _put(self, waiting: _Waiting, put: Callable[[_Waiting], None]) -> None:
        put(waiting)
        self._waiting_of[waiting.client.id] += 1
        self._bytes_of[waiting.client.id] += waiting.size
        self._unasked += waiting.confirmation is None
        self._waiting_bytes += waiting.size

    def _pop(self) -> _Waiting:
        first = self._waiting.popleft()
        self._unasked -= first.confirmation is None
        self._waiting_bytes -= first.size
        return first

    def _take_first(self) -> None:
        first = self._pop()
        number = first.client.id
        self._waiting_of[number] -= 1
        self._bytes_of[number] -= first.size
        if not self._waiting_of[number]:
            del self._waiting_of[number], self._bytes_of[number]
        self.worked_off += 1

    def _is_here(self, client: ClientConnection) -> bool:
        return self._clients.get(client.id) is client

    def _serve(self, client: ClientConnection, command: RemotingCommand) -> None:
        # Earlier requests of this client may have been dropped when it was closed; this one must not overtake them.
        if client.is_closing or _refused(client, command):
            return
        caller = Caller(client.id, client.peer[0], client.peer[1], listener=client.listener)
        intercept = self._intercepts.get(command.code)
        if intercept is not None and not command.is_response:
            refusal = self.service.refusal(command, caller)
            if refusal is None:
                intercept(client, command)
            else:
                _answer(client, refusal, command)
            return
        try:
            self.service.handle(command, caller)
        except Exception as error:
            _log.exception("request %d of %s:%d failed", command.code, *client.peer)
            _answer(client, failure_reply(command, error), command)
        if command.code in self._watched and self._on_handled is not None:
            self._on_handled(client, command)


def _refused(client: ClientConnection, command: RemotingCommand) -> bool:
    problem = excess(command)
    if problem:
        _answer(client, command.reply(ResponseCode.SYSTEM_ERROR, remark=problem), command)
    return bool(problem)


def _answer(client: ClientConnection, answer: RemotingCommand, command: RemotingCommand) -> None:
    if command.is_response or command.is_oneway or (answer.code and reads_no_code(command)):
        return
    if is_misread(command, answer.code):
        client.close(orderly=False, kind="not_served", reason=answer.remark or "")
    else:
        client.send(answer)
