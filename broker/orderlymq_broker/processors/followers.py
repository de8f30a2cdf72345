"""
Answers of a replica that is not the leader, or not yet.

The rule: an answer is never wrong, and a client never misreads it. Clients up to 4.9 take any error code to an offset
query for "never committed" and may jump to the end of the queue. Therefore ``answer`` closes the connection instead,
which they understand correctly. A Java consumer stops consuming every queue that is missing in a successful answer to
LOCK (41), so LOCK is refused; a Go consumer stops in either case.
"""

from orderlymq_broker.core.effects import Caller, Close, Effect, Now
from orderlymq_broker.core.requestcontext import Context, Handler, answer
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand


class Followers:
    """Handlers for a replica that does not lead."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def handlers(self, refuse_end: Handler) -> dict[int, Handler]:
        """Return the handlers of codes that need a special refusal; *refuse_end* answers the end of a transaction."""
        return {
            RequestCode.END_TRANSACTION: refuse_end,
            RequestCode.SEND_MESSAGE: self.refuse_send,
            RequestCode.SEND_MESSAGE_V2: self.refuse_send,
            RequestCode.SEND_BATCH_MESSAGE: self.refuse_send,
            RequestCode.ORDERLYMQ_APPEND_COPIES: self.refuse_send,
            RequestCode.PULL_MESSAGE: self.refuse_pull,
            RequestCode.LITE_PULL_MESSAGE: self.refuse_pull,
            RequestCode.UNLOCK_BATCH_MQ: self.accept,
        }

    def refuse(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Answer 1: the client sends its request again later, here or to another replica."""
        return answer(request, caller, ResponseCode.SYSTEM_ERROR, remark=self._remark())

    def refuse_send(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Answer 14: the message is not stored and never will be."""
        return answer(request, caller, ResponseCode.SERVICE_NOT_AVAILABLE, remark=self._remark())

    def refuse_pull(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Answer 1 if another replica leads; otherwise close, so that the client looks for another address."""
        if self._context.leader_known:
            return self.refuse(request, caller, now)

        return [Close(caller.connection, "a pull while the group has no leader")]

    def accept(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Answer success: locks that this replica does not release end with their lease."""
        return answer(request, caller)

    def _remark(self) -> str:
        group = self._context.settings.group
        leader = "another replica leads it" if self._context.leader_known else "it has no leader"

        return f"this replica does not lead group {group}, {leader}; try again"
