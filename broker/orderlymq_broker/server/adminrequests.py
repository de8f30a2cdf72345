"""
Admin requests about the process instead of its state: status, leadership transfer, membership.

They are answered here and not in the core, because they need the raft node and the addresses of
the replicas. The rule: "done" is answered only after it is done: the other replica leads, or the
membership is applied.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Final, Protocol

import msgspec
import orjson

from orderlymq_broker.replication.transport.frameheaders import NodeNumber
from orderlymq_broker.server.router import ClientConnection, Router
from orderlymq_broker.settings import Address
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.decodeerrors import UNREADABLE
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.integers import read_integer
from orderlymq_raft import (
    AddLearner,
    MembershipChange,
    NotLeader,
    PromoteLearner,
    ProposalRefused,
    RemoveNode,
)
from orderlymq_raft.types import Index, NodeId, Term
from orderlymq_runtime.process.supervisor import Supervisor, end_tasks
from orderlymq_runtime.remoting.failures import failure_reply
from orderlymq_runtime.sockets.addresses import split_address

_log = logging.getLogger(__name__)

# A few turns of the event loop: what is committed when a leadership ends is applied in the same turn or soon after.
APPLIED_WITHIN_S: Final = 0.1


class MembershipRequest(msgspec.Struct, frozen=True):
    """The body of 20504; *address* ("host:port" for its peers) is needed to add a replica."""

    action: str
    node: NodeNumber
    address: str | None = None


class Administered(Protocol):
    """The interface of the process for admin requests."""

    def status(self, asked: RemotingCommand | None = None) -> Mapping[str, object]:
        """Return what ``/status`` shows or, with *asked*, what the sender of that request may read."""

    async def move_leadership(self, target: NodeId | None) -> NodeId:
        """Transfer the leadership to *target*, or to the best other replica; return the new leader.

        Raises:
            NotLeader: this replica does not lead.
            ProposalRefused: the transfer is not possible; the text says why.
        """

    def change_membership(
        self, change: MembershipChange, address: Address | None
    ) -> tuple[Index, Term]:
        """Propose a change and return its entry; raises the same as `move_leadership`."""


class AdminRequests:
    """Answers 20500, 20503 and 20504."""

    def __init__(
        self, router: Router, replica: Administered, supervisor: Supervisor | None = None
    ) -> None:
        self._replica = replica
        self._supervisor = supervisor or Supervisor()
        self._tasks: set[asyncio.Task[None]] = set()
        # The entry of a proposed membership -> the request that waits for it.
        self._waiting: dict[tuple[Index, Term], tuple[ClientConnection, RemotingCommand]] = {}
        for code, handler in (
            (RequestCode.ORDERLYMQ_GROUP_STATUS, self._status),
            (RequestCode.ORDERLYMQ_TRANSFER_LEADERSHIP, self._move),
            (RequestCode.ORDERLYMQ_CHANGE_MEMBERSHIP, self._change),
        ):
            router.intercept(code, handler, of_replica=True)

    def membership_applied(self, index: Index, term: Term) -> None:
        """Answer the client that asked for the membership of this entry."""
        waiting = self._waiting.pop((index, term), None)
        if waiting is not None:
            client, command = waiting
            client.send(command.reply())

    def leadership_lost(self) -> None:
        """Answer requests whose change is not applied within a moment with an error: this replica cannot know the outcome.

        A leader that is removed stops leading before it has applied its removal, so this waits for a moment.
        """
        if self._waiting:
            self._spawn("give up membership changes", self._give_up(list(self._waiting)))

    async def _give_up(self, entries: list[tuple[Index, Term]]) -> None:
        await asyncio.sleep(APPLIED_WITHIN_S)
        for entry in entries:
            waiting = self._waiting.pop(entry, None)
            if waiting is not None:
                client, command = waiting
                remark = "the leader changed meanwhile; look at the group's status and try again"
                client.send(command.reply(ResponseCode.SYSTEM_ERROR, remark=remark))

    def _spawn(self, kind: str, work: Coroutine[None, None, None]) -> None:
        task = self._supervisor.once(kind, work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel pending requests."""
        await end_tasks(self._tasks)

    def _status(self, client: ClientConnection, command: RemotingCommand) -> None:
        body = orjson.dumps(self._replica.status(command), option=orjson.OPT_NON_STR_KEYS)
        client.send(command.reply(body=body))

    def _move(self, client: ClientConnection, command: RemotingCommand) -> None:
        text = command.ext.get("target", "")
        try:
            target = NodeId(read_integer(text, 1)) if text else None
        except ValueError:
            remark = f"target {text[:24]!r} is not a node id; leave it out to let the group choose"
            client.send(command.reply(ResponseCode.SYSTEM_ERROR, remark=remark))
            return
        self._spawn("move leadership", self._moved(client, command, target))

    async def _moved(
        self, client: ClientConnection, command: RemotingCommand, target: NodeId | None
    ) -> None:
        try:
            leader = await self._replica.move_leadership(target)
        except (NotLeader, ProposalRefused) as error:
            _refuse(client, command, error)
        except Exception as error:
            client.send(failure_reply(command, error))
            raise
        else:
            client.send(command.reply(ext={"leader": str(leader)}))

    def _change(self, client: ClientConnection, command: RemotingCommand) -> None:
        try:
            change, address = membership_change(command.body)
            entry = self._replica.change_membership(change, address)
        except (ValueError, NotLeader, ProposalRefused) as error:
            _refuse(client, command, error)
            return
        _log.info("membership change proposed: %s", change)
        self._waiting[entry] = (client, command)


def membership_change(body: bytes) -> tuple[MembershipChange, Address | None]:
    """Read the body of 20504.

    Raises:
        ValueError: the request is invalid; the text says what to write instead.
    """
    try:
        request = msgspec.json.decode(body, type=MembershipRequest)
    except UNREADABLE as error:
        raise ValueError(f"the body is not a membership request: {error}") from error
    node = NodeId(request.node)
    kinds: dict[str, Callable[[NodeId], MembershipChange]] = {
        "add-learner": AddLearner,
        "promote": PromoteLearner,
        "remove": RemoveNode,
    }
    kind = kinds.get(request.action)
    if kind is None:
        raise ValueError(f"action {request.action!r} is unknown; use one of {', '.join(kinds)}")
    address = None
    if request.address is not None:
        address = Address(*split_address(request.address))
    if request.action == "add-learner" and address is None:
        raise ValueError("to add a replica, give the address at which its peers reach it")
    return kind(node), address


def _refuse(client: ClientConnection, command: RemotingCommand, error: Exception) -> None:
    code = (
        ResponseCode.SERVICE_NOT_AVAILABLE
        if isinstance(error, NotLeader)
        else ResponseCode.SYSTEM_ERROR
    )
    client.send(command.reply(code, remark=str(error)))
