"""
Client requests between replicas: from the one that was asked to the one that leads.

The rule: forwarded requests are answered by the leader or by the end of the connection, never by
a guess here; nobody stays here for an answer that the leader may not give (``reads_no_code``). A client that was passed on keeps
its own host and port at the leader, because locks and membership know it by them. `Outbox` stands at the replica that has the client's connection,
`Inbox` at the leader, where each forwarded client is a line among the others (``router.py``).
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
    Line,
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

# Java clients pull again immediately on this one; any other answer but data costs them three seconds.
PULL_AGAIN: Final = ResponseCode.PULL_RETRY_IMMEDIATELY
# An offset is an int64.
_OFFSET_LENGTH_MAX: Final = 20


class FrameSender(Protocol):
    """Sends one frame to a peer; False when the link is down."""

    def __call__(self, node: NodeId, pieces: list[bytes]) -> bool:
        """Send *pieces* to *node*."""


class _Passed:
    """Requests of one client through us that are not answered, and the time of its last one.

    *leader* is the node that was passed the last one, None while no link has taken any: it knows nothing of the client.
    """

    __slots__ = ("asked_at", "leader", "pulls", "requests")

    def __init__(self) -> None:
        self.leader: NodeId | None = None
        self.requests: set[int] = set()
        # With what each is answered if its client is disconnected: the pulls themselves may be long.
        self.pulls: dict[int, RemotingCommand] = {}
        self.asked_at = 0.0

    def expect(self, command: RemotingCommand, now: float) -> None:
        if command.code not in PULL_CODES:
            # A consumer never stops pulling; everything else shows whether a line is idle.
            self.asked_at = now
        if command.is_oneway or command.is_response or reads_no_code(command):
            # The last may stay without an answer; a client that waited for it would never be disconnected.
            return
        if command.code in PULL_CODES:
            self.pulls[command.opaque] = pull_again(command)
        else:
            self.requests.add(command.opaque)

    def answered(self, opaque: int) -> None:
        self.requests.discard(opaque)
        self.pulls.pop(opaque, None)


class Outbox:
    """Passes requests of clients that are connected here to the leader, and answers back."""

    def __init__(self, send: FrameSender, seconds: Callable[[], float]) -> None:
        self.leader: NodeId | None = None
        self.router: Router | None = None
        self._send = send
        self._seconds = seconds
        self._passed: dict[int, _Passed] = {}
        # Clients that are gone, or ask nothing more there, with the node that could not be notified yet.
        self._unnotified: set[tuple[NodeId, int]] = set()

    def forward(self, line: Line, command: RemotingCommand) -> bool:
        """Pass *command* to the leader; False when it is unknown or cannot be reached."""
        if self.leader is None:
            return False
        passed = self._passed.get(line.id)
        if passed is None:
            passed = self._passed[line.id] = _Passed()
        former = passed.leader
        if former != self.leader and (passed.requests or passed.pulls):
            # The answers would have to come from a leader that is none any more.
            line.close(orderly=False, kind="leader_changed")
            return True
        try:
            parts = codec.encode_parts(command)
        except FrameError as error:
            # A header that left fields out is longer when it is written again.
            reason = f"a request cannot be passed on: {error}"
            line.close(orderly=False, kind="forwarding", reason=reason)
            return True
        header = Forward(line.id, line.peer[0], line.peer[1], line.listener)
        pieces = encode_frame(FrameKind.FORWARD, header, parts)
        passed.leader = self.leader
        passed.expect(command, self._seconds())
        if not self._send(self.leader, pieces):
            passed.leader = former
            passed.answered(command.opaque)
            return False
        return True

    def line_lost(self, connection: int) -> None:
        """Notify the leader that a client is gone, now or when its link takes it."""
        passed = self._passed.pop(connection, None)
        if passed is not None and passed.leader is not None:
            self._send_closed(passed.leader, connection)

    def retry(self) -> None:
        """Notify nodes of closed clients again whose links were full: until then they drop requests of these clients."""
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
        line = None if self.router is None else self.router.line(connection)
        passed = self._passed.get(connection)
        if frame.kind is FrameKind.FORWARDED_CLOSE:
            if line is not None and passed is not None and passed.leader == node:
                line.close(orderly=False, kind="asked_by_leader", reason=f"node {node} asks for it")
            # Behind all that was passed on to that node: it drops what comes before.
            else:
                self._send_closed(node, connection)
            return
        if line is None:
            return
        for command in _commands(line, node, frame, ANSWER_HEADER_SIZE_MAX):
            if passed is not None and command.is_response:
                passed.answered(command.opaque)
            line.send(command)

    def leader_lost(self, node: NodeId) -> None:
        """End the connections whose requests *node* was to answer: their outcome is unknown."""
        for connection, passed in list(self._passed.items()):
            if passed.leader != node or not (passed.requests or passed.pulls):
                continue
            line = None if self.router is None else self.router.line(connection)
            if line is not None:
                reason = f"node {node}, which was to answer, is lost"
                line.close(orderly=False, kind="leader_lost", reason=reason)

    def node_lost(self, node: NodeId) -> None:
        """Note that a link with *node* is lost: it forgets our clients itself, and answers nothing."""
        self._unnotified.difference_update([each for each in self._unnotified if each[0] == node])
        self.leader_lost(node)
        self._passed = {
            line: passed for line, passed in self._passed.items() if passed.leader != node
        }

    def is_quiet(self, line: Line, since: float) -> bool:
        """Return whether *line* has asked nothing but pulls after *since*, and waits for nothing."""
        passed = self._passed.get(line.id)
        return passed is None or (not passed.requests and passed.asked_at <= since)

    def waits(self, line: Line) -> bool:
        """Return whether *line* waits for an answer to anything but a pull."""
        passed = self._passed.get(line.id)
        return passed is not None and bool(passed.requests)

    def release_pulls(self, line: Line) -> None:
        """Answer the pulls of *line* so that the client pulls again, elsewhere."""
        passed = self._passed.get(line.id)
        if passed is None:
            return
        for answer in passed.pulls.values():
            line.send(answer)
        passed.pulls.clear()


class Inbox:
    """
    The clients that other replicas have passed on to this leader.

    Their requests come on one connection, which must not wait for one of them. So each line has a queue of its own for what
    the turn, or the link to its replica, has no room for, and takes its place among the connections of this replica.

    Where one request of a client is dropped none that it sent after it is served: it would overtake it. So what comes of a client whose
    end was asked for is dropped until its replica says that nothing more of it follows.

    Args:
        is_slow: whether much that was sent to a replica waits to be written: its clients are not served on.
    """

    def __init__(
        self, router: Router, send: FrameSender, is_slow: Callable[[NodeId], bool]
    ) -> None:
        self._router = router
        self._send = send
        self._is_slow = is_slow
        self._held_count = self._held_bytes = 0
        self._close_log = CloseLog(_log)
        self._lines: dict[tuple[NodeId, int], ForwardedLine] = {}
        # Clients whose end was asked for, and of them those whose replica could not be notified yet.
        self._ended: set[tuple[NodeId, int]] = set()
        self._unnotified: set[tuple[NodeId, int]] = set()
        # Below zero, so that they never meet the numbers of accepted connections.
        self._next_id = -1

    def frame_received(self, node: NodeId, frame: Frame, *, leads: bool) -> None:
        """Take a request, or the end of a client, from *node*."""
        if frame.kind is FrameKind.ORIGIN_CLOSED:
            origin = node, decode_header(frame, ForwardedConnection).connection
            self._forget(self._lines.get(origin))
            self._ended.discard(origin)
            self._unnotified.discard(origin)
            return
        forward = decode_header(frame, Forward)
        if (node, forward.connection) in self._ended:
            return
        if not leads:
            # Passed on by a replica that is behind the times; its client must ask again.
            self._end(node, forward.connection)
            return
        line = self._lines.get((node, forward.connection))
        if line is None:
            line = ForwardedLine(
                self._next_id,
                node,
                forward,
                self._send,
                self._close_log,
                self._end,
                self._go_on,
            )
            self._next_id -= 1
            self._lines[node, forward.connection] = line
            self._router.connection_made(line)
        commands = _commands(line, node, frame, HEADER_SIZE_MAX)
        turns = self._router.turns
        may_begin = turns is None or turns.may_begin(_loop_time())
        if line.held or not may_begin or self._is_slow(node):
            self._hold(line, commands)
            self._wait(line)
            return
        for command in commands:  # one: a frame has no more of them
            self._router.received(line, command)
        if turns is not None:
            turns.is_over(_loop_time())

    def _hold(self, line: "ForwardedLine", commands: list[RemotingCommand]) -> None:
        for command in commands:
            size = command.memory_bytes()
            line.held.append((command, size))
            line.held_bytes += size
            self._held_bytes += size
        self._held_count += len(commands)
        by_count = self._held_count > WAITING_MAX
        if by_count or self._held_bytes > WAITING_BYTES_MAX:
            largest = max(
                self._lines.values(),
                key=lambda each: len(each.held) if by_count else each.held_bytes,
            )
            whole = f"{counted(self._held_count, 'request')} of {self._held_bytes} bytes"
            own = f"{len(largest.held)} of {largest.held_bytes}"
            reason = f"passed on and not yet in turn: {whole}, of this one {own}"
            largest.close(orderly=False, kind="too_many_waiting", reason=reason)
            self._forget(largest)

    def _wait(self, line: "ForwardedLine") -> None:
        """Go on in the next turn; `retry` looks again whether a slow link has caught up."""
        turns = self._router.turns
        if not line.held or line.awaits_turn or self._is_slow(line.node):
            return
        if turns is None:
            self._go_on(line)
            return
        line.awaits_turn = True
        turns.wait(line)

    def _go_on(self, line: "ForwardedLine") -> None:
        """Hand over what *line* holds until the turn is over or the link is full."""
        turns = self._router.turns
        line.awaits_turn = False
        while line.held and not self._is_slow(line.node):
            command, size = line.held.popleft()
            line.held_bytes -= size
            self._held_bytes -= size
            self._held_count -= 1
            self._router.received(line, command)
            if turns is not None and turns.is_over(_loop_time()):
                self._wait(line)
                return

    def node_lost(self, node: NodeId) -> None:
        """Forget the clients that *node* had passed on; it resets them itself."""
        for line in [line for line in self._lines.values() if line.node == node]:
            self._forget(line)
        for ended in (self._ended, self._unnotified):
            ended.difference_update([origin for origin in ended if origin[0] == node])

    def retry(self) -> None:
        """Notify replicas of closes again whose links were full, and go on with clients of those that were too slow."""
        for node, connection in list(self._unnotified):
            self._end(node, connection)
        if self._held_count:
            for line in list(self._lines.values()):
                self._wait(line)

    def _end(self, node: NodeId, connection: int) -> None:
        """Ask *node* to end a client's connection, now or when its link takes it."""
        self._ended.add((node, connection))
        gone = ForwardedConnection(connection)
        if self._send(node, encode_frame(FrameKind.FORWARDED_CLOSE, gone)):
            self._unnotified.discard((node, connection))
        else:
            self._unnotified.add((node, connection))

    def clear(self) -> None:
        """End all forwarded lines, because this replica leads no more."""
        for line in list(self._lines.values()):
            line.close(orderly=False, kind="leads_no_more")
            self._forget(line)

    def _forget(self, line: "ForwardedLine | None") -> None:
        if line is not None:
            self._lines.pop((line.node, line.origin), None)
            self._held_count -= len(line.held)
            self._held_bytes -= line.held_bytes
            line.held.clear()
            line.held_bytes = 0
            self._router.connection_lost(line)


class ForwardedLine:
    """
    A client that is connected to another replica, which *end* asks to end the connection.

    Attributes:
        is_closing: its end was asked for.
        held: requests that wait for this line's turn, with what each holds in memory.
        awaits_turn: it stands in the line of its server's turns.
    """

    def __init__(
        self,
        number: int,
        node: NodeId,
        forward: Forward,
        send: FrameSender,
        close_log: CloseLog,
        end: Callable[[NodeId, int], None],
        hand_over: "Callable[[ForwardedLine], None]",
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
        """Hand over held requests, in a turn that has begun."""
        self._hand_over(self)

    def send(self, command: RemotingCommand) -> None:
        """Write *command* to the client by way of the replica that has its connection.

        Raises:
            FrameError: A request cannot be written; an answer that cannot is replaced.
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
            self.close(
                orderly=False, kind="forwarding", reason="the link to its node takes no more"
            )

    def close(self, *, orderly: bool = True, kind: str, reason: str = "") -> None:
        """Ask that replica to end the client's connection; it counts the close, only we know why."""
        if self.is_closing:
            return
        self.is_closing = True
        self._close_log.note(self, kind, reason or kind.replace("_", " "))
        self._end(self.node, self.origin)


def _commands(
    line: Line, node: NodeId, frame: Frame, header_size_max: int
) -> list[RemotingCommand]:
    """Decode a frame that *node* passed on; end the line when it is invalid."""
    try:
        return FrameDecoder(header_size_max=header_size_max).receive_data(frame.payload)
    except FrameError as error:
        reason = f"node {node} passed on an invalid frame: {error}"
        line.close(orderly=False, kind="forwarding", reason=reason)
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
