"""
Recalls of timer messages: 370, by the handle in the answer to their send.

The rules: a client that gets SUCCESS can rely on it that the message will not be delivered. So the answer
waits for a record even if nothing waits under the handle any more (a repeat whose first answer was
lost). A message that is being delivered at this moment can no longer be recalled. Codes and remarks are those
of RecallMessageProcessor (5.3.1). A recall itself is not stored: it ends the timer in the log.
"""

from typing import Final

from orderlymq_broker.core.effects import Caller, Effect, Now
from orderlymq_broker.core.requestcontext import Context, RequestRefused, answer
from orderlymq_broker.core.responses import answer_when_applied
from orderlymq_broker.processors.schedule.timers import (
    CANCEL_SCAN_MAX,
    CANCEL_SIZE_MAX,
    TimerService,
)
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.header.catalogue import RecallMessageHeader
from orderlymq_protocol.message.recallhandle import InvalidHandle, RecallHandle

_ENDING: Final = "recall failed, the message is being delivered or recalled at this moment; recall it again to know"
_OFF: Final = "recall failed, operation is forbidden: recallMessageEnable is false; an administrator can set it"
_TOO_MANY: Final = (
    f"recall failed, more than {CANCEL_SCAN_MAX} messages or {CANCEL_SIZE_MAX >> 20} MiB have the "
    "unique key of the handle: give each message its own unique key"
)


class RecallProcessor:
    """Ends timers for their senders."""

    def __init__(self, context: Context, timers: TimerService) -> None:
        self._context = context
        self._timers = timers

    def recall(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 370: recall a timer message."""
        header = RecallMessageHeader.from_ext(request.ext)
        handle = self._checked(header, now)
        timers, view = self._timers, self._context.view
        found, are_all = timers.waiting(handle.topic, handle.unique_key)
        if not are_all:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, _TOO_MANY)
        if any(timer.offset in view.timers_ending for timer in found):
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, _ENDING)
        ending = timers.cancel(found, now.wall_ms)
        ext = {"msgId": handle.unique_key, "MSG_REGION": "DefaultRegion"}

        return answer_when_applied(
            request,
            caller,
            [ending],
            then=lambda _, __: answer(request, caller, ext=ext),
            ended=lambda: timers.ended(ending, view),
            lost_code=ResponseCode.SERVICE_NOT_AVAILABLE,
        )

    def _checked(self, header: RecallMessageHeader, now: Now) -> RecallHandle:
        """Return the handle of a recall that can be tried.

        Raises:
            RequestRefused: recalls are switched off (16), the topic does not exist (17), or the handle is
                not of this broker, of another topic, or of a time that is over (604).
        """
        settings = self._context.settings
        if not settings.timers.recall_enable:
            raise RequestRefused(ResponseCode.NO_PERMISSION, _OFF)
        if self._context.state.topics.by_name.get(header.topic) is None:
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{header.topic}] not exist"
            )
        try:
            handle = RecallHandle.decode(header.recall_handle)
        except InvalidHandle as error:
            raise _illegal(str(error)) from error
        if handle.topic != header.topic:
            raise _illegal("recall failed, topic not match")
        if handle.broker_name != settings.group:
            raise _illegal(
                f"recall failed, broker service not available: {handle.broker_name} has the message, "
                f"this is {settings.group}"
            )
        left_ms = handle.due_ms - now.wall_ms
        if not 0 < left_ms <= settings.timers.timer_delay_max_ms:
            raise _illegal(
                "recall failed, timestamp invalid: the message is due, or never had a delay"
            )

        return handle


def _illegal(remark: str) -> RequestRefused:
    return RequestRefused(ResponseCode.ILLEGAL_OPERATION, remark)
