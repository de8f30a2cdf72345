"""
The fence: it lets only the holder pull and commit the queues of an ordered group.

The rules: a queue of an ordered group in CLUSTERING serves only the holder of its lock. If a request names its client
(ext omqClientId, omqEpoch), it is checked exactly, once ``clientids.py`` has let it use that id. Any other client is
known by the heartbeats and lock requests of its connection. Before these arrive, after a fail-over, a pull of
RocketMQ's Java consumer has one value of its own: the millisecond in which it made its subscription. The holder's
last heartbeat has put this value into the state. A client that sends the holder's value from the holder's address is
taken for the holder. It is not if another member there has the same value, or if the holder is known to pull over
another connection. A connection that is taken for the holder's may also commit. Any other client is refused until its
next heartbeat or lock request, 20 s later at most (ADR 17). A client that released its lock may still commit until
another client holds the queue, because Java unlocks first. Broadcasting members and tools under other groups pass.
RocketMQ's RebalanceLockManager has no such fence.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from orderlymq_broker.core.clientsessions import Session
from orderlymq_broker.core.effects import Caller
from orderlymq_broker.core.requestcontext import Context, RequestRefused
from orderlymq_broker.state.groups.locks import Lock
from orderlymq_broker.state.groups.members import host_of
from orderlymq_broker.state.records import GroupSet, MemberSeen
from orderlymq_protocol.body.clients import BROADCASTING
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.header.extensions import EXT_CLIENT_ID, EXT_EPOCH

EXT_SUB_VERSION: Final = "subVersion"
# The fields by which the fence checks a pull, in addition to the names in its header.
JUDGED_FIELDS: Final = (EXT_CLIENT_ID, EXT_EPOCH, EXT_SUB_VERSION)

_BY_KEY: Final = (
    "group[{group}] consumes by key (concurrency: Key) and does not use pulls, queue locks and "
    'offset commits: consume with ordered="key" of the OrderlyMQ SDK, or set concurrency: Queue'
)

_CONCURRENT: Final = (
    "group[{group}] is declared concurrent and cannot lock queues: consume with a concurrent "
    "listener, or declare it ordered (orderlymq group set {group} --ordering ordered)"
)


class Verdict(NamedTuple):
    """The decision whether a request passes the fence.

    Attributes:
        refusal: empty if it passes, otherwise the remark that names the holder.
        epoch: the epoch of the lock under which it passes; 0 if no lock was needed.
    """

    refusal: str = ""
    epoch: int = 0

    @property
    def passes(self) -> bool:
        """Whether the request is served."""
        return not self.refusal


PASSES: Final = Verdict()


class Fence:
    """Checks pulls and offset commits; it changes nothing but its guess which client uses a connection."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def judge_pull(
        self, group: str, topic: str, queue_id: int, caller: Caller, ext: dict[str, str]
    ) -> Verdict:
        """Return whether this pull comes from the holder."""
        if not self._context.state.is_ordered(group):
            return self._judge_unordered(group, topic, queue_id, ext)
        return self._judge(group, topic, queue_id, caller, ext, pulls=True)

    def judge_commit(
        self,
        group: str,
        topic: str,
        queue_id: int,
        caller: Caller,
        ext: dict[str, str],
        *,
        wants_answer: bool,
    ) -> Verdict:
        """Return whether this commit comes from the holder, or from a tool if no client holds the queue.

        A tool waits for the answer to a commit request of its own. A consumer that is no longer a member of the group
        sends the same request without waiting for an answer, or commits with a pull.
        """
        if not self._context.state.is_ordered(group):
            return self._judge_unordered(group, topic, queue_id, ext)
        verdict = self._judge(group, topic, queue_id, caller, ext, pulls=False)
        if verdict.passes or self._context.state.locks.get(group, topic, queue_id) is not None:
            return verdict
        released = self._context.state.locks.released(group, topic, queue_id)
        if released is not None and self._is_client(released.released_by, caller, ext):
            # The commit carries this epoch, so that the next lock of the queue makes it void.
            return Verdict(epoch=released.epoch)

        return PASSES if wants_answer and self._is_tool(group, caller, ext) else verdict

    def is_of_tool(
        self, group: str, topic: str, queue_id: int, caller: Caller, ext: dict[str, str]
    ) -> bool:
        """Return whether a commit to a held queue of an ordered group comes from a tool and so resets the queue."""
        state = self._context.state
        if EXT_CLIENT_ID in ext or not state.is_ordered(group):
            return False
        held = state.locks.get(group, topic, queue_id) is not None

        return held and self._is_tool(group, caller, ext)

    def _judge_unordered(
        self, group: str, topic: str, queue_id: int, ext: dict[str, str]
    ) -> Verdict:
        """Let all requests pass, except those with an epoch of a group that was deleted since."""
        locks = self._context.state.locks
        if ext.get(EXT_EPOCH, "") in ("", str(locks.epoch(group, topic, queue_id))):
            return PASSES

        return Verdict(
            refusal=f"epoch {ext[EXT_EPOCH]} of queue {queue_id} of topic {topic} ended when group {group} was "
            f"deleted; lock the queue again (code 41) before pulling or committing"
        )

    def _judge(
        self,
        group: str,
        topic: str,
        queue_id: int,
        caller: Caller,
        ext: dict[str, str],
        *,
        pulls: bool,
    ) -> Verdict:
        context = self._context
        lock = context.state.locks.get(group, topic, queue_id)
        client_id = ext.get(EXT_CLIENT_ID)
        session = context.sessions.get(caller.connection)
        if client_id is not None:
            if lock is not None and lock.client_id == client_id:
                epoch = ext.get(EXT_EPOCH, "")
                if epoch in ("", str(lock.epoch)):
                    return Verdict(epoch=lock.epoch)
            elif self._broadcasts(group, {client_id}):
                return PASSES
        elif session is not None:
            if lock is not None and lock.client_id in session.client_ids:
                return Verdict(epoch=lock.epoch)
            if self._broadcasts(group, session.client_ids):
                return PASSES
        elif lock is not None and self._must_be_holder(lock, caller, ext, pulls=pulls):
            return Verdict(epoch=lock.epoch)
        elif context.state.only_broadcasts(group):
            return PASSES

        return Verdict(refusal=_refusal(group, topic, queue_id, lock))

    def _broadcasts(self, group: str, client_ids: Iterable[str]) -> bool:
        members = self._context.state.members.of_group(group)

        return any(
            client_id in members and members[client_id].message_model == BROADCASTING
            for client_id in client_ids
        )

    def _must_be_holder(
        self, lock: Lock, caller: Caller, ext: dict[str, str], *, pulls: bool
    ) -> bool:
        """Return whether an unidentified connection can only be the holder's."""
        sessions = self._context.sessions
        others = sessions.of_client(lock.client_id)
        if host_of(lock.address) != caller.host or any(
            _does_the_same(o, pulls=pulls) for o in others
        ):
            return False
        if EXT_SUB_VERSION not in ext:  # an offset commit
            return sessions.recognized(lock.group, caller.connection) == lock.client_id
        if not self._is_alone_with(ext[EXT_SUB_VERSION], lock):
            return False
        sessions.recognize(lock.group, caller.connection, lock.client_id)

        return True

    def _is_alone_with(self, version: str, lock: Lock) -> bool:
        """Return whether the holder, and no other member at its address, has this version of the subscription."""
        members = self._context.state.members
        holder = members.get(lock.group, lock.client_id)
        if holder is None or version in ("", "0") or _version(holder, lock.topic) != version:
            return False

        return not any(
            member is not holder and _version(member, lock.topic) == version
            for member in members.at_host(lock.group, host_of(lock.address))
        )

    def _is_client(self, client_id: str, caller: Caller, ext: dict[str, str]) -> bool:
        """Return whether a request certainly comes from this client."""
        if EXT_CLIENT_ID in ext:
            return ext[EXT_CLIENT_ID] == client_id
        session = self._context.sessions.get(caller.connection)

        return session is not None and client_id in session.client_ids

    def _is_tool(self, group: str, caller: Caller, ext: dict[str, str]) -> bool:
        """Return whether the group does not know the sender, which is then a tool."""
        table = self._context.state.members
        members = table.of_group(group)
        if EXT_CLIENT_ID in ext:
            return ext[EXT_CLIENT_ID] not in members and not ext.get(EXT_EPOCH)
        session = self._context.sessions.get(caller.connection)
        if session is not None:
            is_member = any(client_id in members for client_id in session.client_ids)
            return not is_member and not session.consumes(group)

        return not table.at_host(group, caller.host)


def refuse_by_key(config: GroupSet | None) -> None:
    """Refuse requests of clients that do not support lanes.

    Raises:
        RequestRefused: the group consumes by key (16).
    """
    if config is not None and config.by_key:
        raise RequestRefused(ResponseCode.NO_PERMISSION, _BY_KEY.format(group=config.name))


def refuse_concurrent(config: GroupSet | None) -> None:
    """Refuse queue locks to a group that promises no order.

    Raises:
        RequestRefused: the group is declared concurrent (16).
    """
    if config is not None and config.concurrent:
        raise RequestRefused(ResponseCode.NO_PERMISSION, _CONCURRENT.format(group=config.name))


def _version(member: MemberSeen, topic: str) -> str:
    """Return the version of a member's subscription as in its pulls; empty if it has none."""
    return next(
        (
            str(subscription.version)
            for subscription in member.subscriptions
            if subscription.topic == topic
        ),
        "",
    )


def _does_the_same(session: Session, *, pulls: bool) -> bool:
    return session.pulled if pulls else session.committed


def _refusal(group: str, topic: str, queue_id: int, lock: Lock | None) -> str:
    queue = f"queue {queue_id} of topic {topic} in the ordered group {group}"
    if lock is None:
        return (
            f"{queue} is not locked; lock it (code 41) before pulling or committing. To consume "
            f"it without order, declare the group concurrent (orderlymq group set {group} "
            "--ordering concurrent)"
        )

    return (
        f"{queue} is locked by {lock.client_id} with epoch {lock.epoch} since "
        f"{lock.held_since_ms} (ms); wait for its release"
    )
