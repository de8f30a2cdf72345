"""
Client requests between replicas: from the replica that received a request to the leader.

The rule: the leader answers forwarded requests, or the connection is closed; nothing here guesses. A request whose
answer the leader may withhold is not waited for (``reads_no_code``). A forwarded client keeps its own host and port
at the leader, because locks and membership identify it by them. `Outbox` is at the replica that has the client's
connection, `Inbox` at the leader, where each forwarded client is a `ClientConnection` like the others (``router.py``).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from orderlymq_broker.core.requestcontext import reads_no_code
from orderlymq_broker.replication.transport.frameheaders import Forward, ForwardedConnection
from orderlymq_broker.replication.transport.frames import (
    Frame,
    FrameKind,
    decode_header,
    encode_frame,
)
from orderlymq_broker.server.router import (
    PULL_CODES,
    WAITING_BYTES_MAX,
    WAITING_MAX,
    ClientConnection,
    Router,
)
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame import codec
from orderlymq_protocol.frame.codec import (
    ANSWER_HEADER_SIZE_MAX,
    HEADER_SIZE_MAX,
    FrameDecoder,
    FrameError,
)
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.plurals import counted
from orderlymq_raft.types import NodeId
from orderlymq_runtime.remoting.closelog import CloseLog
from orderlymq_runtime.remoting.failures import unsendable_reply

_log = logging.getLogger(__name__)

# Java clients pull again immediately after this code; any other answer without data delays them by three seconds.
PULL_AGAIN: Final = ResponseCode.PULL_RETRY_IMMEDIATELY
# An offset is an int64.
_OFFSET_LENGTH_MAX: Final = 20


class FrameSender(Protocol):
    """Sends one frame to a peer; returns False if the link is down."""

    def __call__(self, node: NodeId, pieces: list[bytes]) -> bool:
        """Send *pieces* to *node*."""


class _Passed:
    """The unanswered requests of one client that we have forwarded, and the time of its last request.

    *leader* is the node that got the last request. It is None while no link has accepted any; then it does not know
    the client.
    """

    __slots__ = ("asked_at", "leader", "pulls", "requests")

    def __init__(self) -> None:
        self.leader: NodeId | None = None
        self.requests: set[int] = set()
        # The answer for each if its client is disconnected; the pulls themselves may be long.
        self.pulls: dict[int, RemotingCommand] = {}
        self.asked_at = 0.0

    def expect(self, command: RemotingCommand, now: float) -> None:
        if command.code not in PULL_CODES:
            # A consumer never stops pulling; only other requests show whether a client is idle.
            self.asked_at = now
        if command.is_oneway or command.is_response or reads_no_code(command):
            # `reads_no_code` requests may stay without an answer; if we waited for it, the client would never be
            # disconnected.
            return
        if command.code in PULL_CODES:
            self.pulls[command.opaque] = pull_again(command)
        else:
            self.requests.add(command.opaque)

    def answered(self, opaque: int) -> None:
        self.requests.discard(opaque)
        self.pulls.pop(opaque, None)


class Outbox:
    """Forwards requests of clients that are connected here to the leader, and answers back to the clients."""

    def __init__(self, send: FrameSender, seconds: Callable[[], float]) -> None:
        self.leader: NodeId | None = None
        self.router: Router | None = None
        self._send = send
        self._seconds = seconds
        self._passed: dict[int, _Passed] = {}
        # Clients that are gone, or that no longer use that node, with the node that could not be notified yet.
        self._unnotified: set[tuple[NodeId, int]] = set()

    def forward(self, client: ClientConnection, command: RemotingCommand) -> bool:
        """Forward *command* to the leader; return False if it is unknown or cannot be reached."""
        if self.leader is None:
            return False
        passed = self._passed.get(client.id)
        if passed is None:
            passed = self._passed[client.id] = _Passed()
        former = passed.leader
        if former != self.leader and (passed.requests or passed.pulls):
            # The answers would have to come from a node that no longer leads.
            client.close(orderly=False, kind="leader_changed")
            return True
        try:
            parts = codec.encode_parts(command)
        except FrameError as error:
            # A header that left fields out becomes longer when it is encoded again.
            reason = f"a request cannot be passed on: {error}"
            client.close(orderly=False, kind="forwarding", reason=reason)
            return True
        header = Forward(client.id, client.peer[0], client.peer[1], client.listener)
        pieces = encode_frame(FrameKind.FORWARD, header, parts)
        passed.leader = self.leader
        passed.expect(command, self._seconds())
        if not self._send(self.leader, pieces):
            passed.leader = former
            passed.answered(command.opaque)
            return False
        return True

    def client_lost(self, connection: int) -> None:
        """Notify the leader that a client is gone, now or when its link accepts the notice."""
        passed = self._passed.pop(connection, None)
        if passed is not None and passed.leader is not None:
            self._send_closed(passed.leader, connection)

    def retry(self) -> None:
        """Notify nodes of closed clients again if their links were full; until then they drop requests of these clients."""
        for node, connection in list(self._unnotified):
            self._send_closed(node, connection)

    def _send_closed(self, node: NodeId, connection: int) -> None:
        gone = ForwardedConnection(connection)
        if self._send(node, encode_frame(FrameKind.ORIGIN_CLOSED, gone)):
            self._unnotified.discard((node, connection))
        else:
            self._unnotified.add((node, connection))

    def frame_received(self, node: NodeId, frame: Frame) -> None:
        """Take a command or a close from the leader for one of our clients."""
        connection = decode_header(frame, ForwardedConnection).connection
        client = None if self.router is None else self.router.client(connection)
        passed = self._passed.get(connection)
        if frame.kind is FrameKind.FORWARDED_CLOSE:
            if client is not None and passed is not None and passed.leader == node:
                client.close(
                    orderly=False, kind="asked_by_leader", reason=f"node {node} requests it"
                )
            # This notice follows everything forwarded to that node, which drops what comes before.
            else:
                self._send_closed(node, connection)
            return
        if client is None:
            return
        for command in _commands(client, node, frame, ANSWER_HEADER_SIZE_MAX):
            if passed is not None and command.is_response:
                passed.answered(command.opaque)
            client.send(command)

    def leader_lost(self, node: NodeId) -> None:
        """Close the connections whose requests *node* was to answer, because their outcome is unknown."""
        for connection, passed in list(self._passed.items()):
            if passed.leader != node or not (passed.requests or passed.pulls):
                continue
            client = None if self.router is None else self.router.client(connection)
            if client is not None:
                reason = f"node {node}, which should answer, is lost"
                client.close(orderly=False, kind="leader_lost", reason=reason)

    def node_lost(self, node: NodeId) -> None:
        """Note that the link with *node* is lost: the node removes our clients itself, and answers nothing."""
        self._unnotified.difference_update([each for each in self._unnotified if each[0] == node])
        self.leader_lost(node)
        self._passed = {
            client: passed for client, passed in self._passed.items() if passed.leader != node
        }

    def is_quiet(self, client: ClientConnection, since: float) -> bool:
        """Return whether *client* has sent nothing but pulls after *since*, and waits for no other answer."""
        passed = self._passed.get(client.id)
        return passed is None or (not passed.requests and passed.asked_at <= since)

    def waits(self, client: ClientConnection) -> bool:
        """Return whether *client* waits for an answer to anything but a pull."""
        passed = self._passed.get(client.id)
        return passed is not None and bool(passed.requests)

    def release_pulls(self, client: ClientConnection) -> None:
        """Answer the pulls of *client* so that the client pulls again, from another replica."""
        passed = self._passed.get(client.id)
        if passed is None:
            return
        for answer in passed.pulls.values():
            client.send(answer)
        passed.pulls.clear()


class Inbox:
    """
    The clients that other replicas have forwarded to this leader.

    The requests of all clients of a replica come on one connection, so one request must not block the others.
    Therefore each client has its own queue for requests that do not fit into the turn, or into the link to its replica.
    A client waits for its turn like the connections of this replica.

    If one request of a client is dropped, no later request of it may be served, because it would overtake the dropped
    one. So after we have asked for a client's end, its requests are dropped until its replica confirms that no more
    of them follow.

    Args:
        is_slow: returns whether much data for a replica waits to be written; its clients are then not served.
    """

    def __init__(
        self, router: Router, send: FrameSender, is_slow: Callable[[NodeId], bool]
    ) -> None:
        self._router = router
        self._send = send
        self._is_slow = is_slow
        self._held_count = self._held_bytes = 0
        self._close_log = CloseLog(_log)
        self._clients: dict[tuple[NodeId, int], ForwardedClient] = {}
        # Clients whose end was requested, and those of them whose replica could not be notified yet.
        self._ended: set[tuple[NodeId, int]] = set()
        self._unnotified: set[tuple[NodeId, int]] = set()
        # Negative, so that they never collide with the numbers of accepted connections.
        self._next_id = -1

    def frame_received(self, node: NodeId, frame: Frame, *, leads: bool) -> None:
        """Take a request, or the end of a client, from *node*."""
        if frame.kind is FrameKind.ORIGIN_CLOSED:
            origin = node, decode_header(frame, ForwardedConnection).connection
            self._forget(self._clients.get(origin))
            self._ended.discard(origin)
            self._unnotified.discard(origin)
            return
        forward = decode_header(frame, Forward)
        if (node, forward.connection) in self._ended:
            return
        if not leads:
            # It was forwarded by a replica with outdated knowledge; its client must send it again.
            self._end(node, forward.connection)
            return
        client = self._clients.get((node, forward.connection))
        if client is None:
            client = ForwardedClient(
                self._next_id,
                node,
                forward,
                self._send,
                self._close_log,
                self._end,
                self._go_on,
            )
            self._next_id -= 1
            self._clients[node, forward.connection] = client
            self._router.connection_made(client)
        commands = _commands(client, node, frame, HEADER_SIZE_MAX)
        turns = self._router.turns
        may_begin = turns is None or turns.may_begin(_loop_time())
        if client.held or not may_begin or self._is_slow(node):
            self._hold(client, commands)
            self._wait(client)
            return
        for command in commands:  # one: a frame has no more of them
            self._router.received(client, command)
        if turns is not None:
            turns.is_over(_loop_time())

    def _hold(self, client: "ForwardedClient", commands: list[RemotingCommand]) -> None:
        for command in commands:
            size = command.memory_bytes()
            client.held.append((command, size))
            client.held_bytes += size
            self._held_bytes += size
        self._held_count += len(commands)
        by_count = self._held_count > WAITING_MAX
        if by_count or self._held_bytes > WAITING_BYTES_MAX:
            largest = max(
                self._clients.values(),
                key=lambda each: len(each.held) if by_count else each.held_bytes,
            )
            whole = f"{counted(self._held_count, 'request')} of {self._held_bytes} bytes"
            own = f"{len(largest.held)} of {largest.held_bytes}"
            reason = f"forwarded requests that wait for their turn: {whole}, of this client {own}"
            largest.close(orderly=False, kind="too_many_waiting", reason=reason)
            self._forget(largest)

    def _wait(self, client: "ForwardedClient") -> None:
        """Continue in the next turn; `retry` checks again whether a slow link has caught up."""
        turns = self._router.turns
        if not client.held or client.awaits_turn or self._is_slow(client.node):
            return
        if turns is None:
            self._go_on(client)
            return
        client.awaits_turn = True
        turns.wait(client)

    def _go_on(self, client: "ForwardedClient") -> None:
        """Handle what *client* holds until the turn is over or the link is full."""
        turns = self._router.turns
        client.awaits_turn = False
        while client.held and not self._is_slow(client.node):
            command, size = client.held.popleft()
            client.held_bytes -= size
            self._held_bytes -= size
            self._held_count -= 1
            self._router.received(client, command)
            if turns is not None and turns.is_over(_loop_time()):
                self._wait(client)
                return

    def node_lost(self, node: NodeId) -> None:
        """Remove the clients that *node* had forwarded; it resets them itself."""
        for client in [client for client in self._clients.values() if client.node == node]:
            self._forget(client)
        for ended in (self._ended, self._unnotified):
            ended.difference_update([origin for origin in ended if origin[0] == node])

    def retry(self) -> None:
        """Notify replicas of closes again if their links were full, and continue with clients of slow links."""
        for node, connection in list(self._unnotified):
            self._end(node, connection)
        if self._held_count:
            for client in list(self._clients.values()):
                self._wait(client)

    def _end(self, node: NodeId, connection: int) -> None:
        """Ask *node* to close a client's connection, now or when its link accepts the notice."""
        self._ended.add((node, connection))
        gone = ForwardedConnection(connection)
        if self._send(node, encode_frame(FrameKind.FORWARDED_CLOSE, gone)):
            self._unnotified.discard((node, connection))
        else:
            self._unnotified.add((node, connection))

    def clear(self) -> None:
        """Close all forwarded clients, because this replica no longer leads."""
        for client in list(self._clients.values()):
            client.close(orderly=False, kind="leads_no_more")
            self._forget(client)

    def _forget(self, client: "ForwardedClient | None") -> None:
        if client is not None:
            self._clients.pop((client.node, client.origin), None)
            self._held_count -= len(client.held)
            self._held_bytes -= client.held_bytes
            client.held.clear()
            client.held_bytes = 0
            self._router.connection_lost(client)


class ForwardedClient:
    """
    A client connected to another replica; *end* asks that replica to close the connection.

    Attributes:
        is_closing: its end was requested.
        held: requests that wait for this client's turn, each with the bytes that it holds in memory.
        awaits_turn: it waits in the queue of its server's turns.
    """

    def __init__(
        self,
        number: int,
        node: NodeId,
        forward: Forward,
        send: FrameSender,
        close_log: CloseLog,
        end: Callable[[NodeId, int], None],
        hand_over: "Callable[[ForwardedClient], None]",
    ) -> None:
        self.id = number
        self.peer = (forward.host, forward.port)
        self.local: tuple[str, int] | None = None
        self.listener = forward.listener
        self.node = node
        self.origin = forward.connection
        self._send = send
        self._close_log = close_log
        self._end = end
        self._hand_over = hand_over
        self.is_closing = False
        self.held: deque[tuple[RemotingCommand, int]] = deque()
        self.held_bytes = 0
        self.awaits_turn = False

    def __str__(self) -> str:
        return "the client {}:{} at node {}".format(*self.peer, self.node)

    def resume(self) -> None:
        """Handle held requests, in a turn that has begun."""
        self._hand_over(self)

    def send(self, command: RemotingCommand) -> None:
        """Write *command* to the client through the replica that has its connection.

        Raises:
            FrameError: a request cannot be encoded; an answer that cannot is replaced.
        """
        try:
            parts = codec.encode_parts(command)
        except FrameError as error:
            if not command.is_response:
                raise
            _log.error("an answer for %s cannot be sent: %s", self, error)
            parts = codec.encode_parts(unsendable_reply(command, error))
        header = ForwardedConnection(self.origin)
        if not self._send(self.node, encode_frame(FrameKind.FORWARDED_SEND, header, parts)):
            self.close(orderly=False, kind="forwarding", reason="the link to its node is full")

    def close(self, *, orderly: bool = True, kind: str, reason: str = "") -> None:
        """Ask the replica to close the client's connection; it counts the close, but only we know the reason."""
        if self.is_closing:
            return
        self.is_closing = True
        self._close_log.note(self, kind, reason or kind.replace("_", " "))
        self._end(self.node, self.origin)


def _commands(
    client: ClientConnection, node: NodeId, frame: Frame, header_size_max: int
) -> list[RemotingCommand]:
    """Decode a frame that *node* forwarded; close the connection if it is invalid."""
    try:
        return FrameDecoder(header_size_max=header_size_max).receive_data(frame.payload)
    except FrameError as error:
        reason = f"node {node} passed on an invalid frame: {error}"
        client.close(orderly=False, kind="forwarding", reason=reason)
        return []


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


def pull_again(command: RemotingCommand) -> RemotingCommand:
    """Return the answer that makes a client repeat the pull *command* immediately, unchanged."""
    offset = command.ext.get("queueOffset", "0")[:_OFFSET_LENGTH_MAX]
    return command.reply(
        PULL_AGAIN,
        {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": offset,
            "minOffset": "0",
            "maxOffset": offset,
        },
        remark="the leader has changed, pull again",
    )
