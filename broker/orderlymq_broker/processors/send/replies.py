"""
Answers of request-reply calls (324, 325): pushed to the client that asked (326), and stored.

The rules: the replier gets its answer when both outcomes are known: that of the push, from the asking client, and
that of storing, from the log. The code reports only the push (RocketMQ ReplyMessageProcessor), because a delivered
reply has served its purpose. An asking client is known by its heartbeat as a producer; a reply to a client that is
gone is stored and refused. A waiting answer keeps no body. The caller has its own time-out; the broker keeps none for
it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from orderlymq_broker.core.brokertoclient import REPLIES, ClientCalls, Silence
from orderlymq_broker.core.effects import Caller, Effect, Now, Propose
from orderlymq_broker.core.messagedraft import MessageDraft, Properties
from orderlymq_broker.core.requestcontext import Context, RequestRefused, answer, unanswered
from orderlymq_broker.processors.send.sends import SendProcessor
from orderlymq_broker.state.records import Append, Outcome
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.header.catalogue import ReplyMessageHeader
from orderlymq_protocol.header.send import SendMessageHeader
from orderlymq_protocol.message.properties import PUSH_REPLY_TIME, REPLY_TO_CLIENT

# How long the asking client may take to confirm the reply; RocketMQ's broker waits as long.
PUSH_TIMEOUT_MS: Final = 3_000


@dataclass(slots=True)
class Reply:
    """A reply in progress; it is answered when both *code* and *ext* are set."""

    request: RemotingCommand
    caller: Caller
    code: int | None = None
    remark: str | None = None
    ext: dict[str, str] | None = None

    def pushed(self, code: int, remark: str | None) -> list[Effect]:
        """Set the outcome of the push."""
        self.code, self.remark = code, remark
        return self._answer()

    def stored(self, ext: dict[str, str]) -> list[Effect]:
        """Set the place at which the reply was stored; empty if it was not."""
        self.ext = ext
        return self._answer()

    def _answer(self) -> list[Effect]:
        if self.code is None or self.ext is None:
            return []
        return answer(self.request, self.caller, self.code, ext=self.ext, remark=self.remark)


class ReplyProcessor:
    """Serves replies."""

    def __init__(self, context: Context, sends: SendProcessor, calls: ClientCalls) -> None:
        self._context = context
        self._sends = sends
        self._calls = calls

    def reply(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 324 and 325: a reply to a request-reply call."""
        header, draft = self._sends.append_plain(request, caller, now)
        reply = Reply(unanswered(request), caller)

        def applied(outcomes: Sequence[Outcome], _: Now) -> list[Effect]:
            stored = outcomes[0]
            return reply.stored(self._sends.ext_of(stored) if type(stored) is Append else {})

        return [
            *self._push(reply, request.body, header, draft, now),
            Propose([draft], applied, lost=lambda _: reply.stored({})),
        ]

    def _push(
        self, reply: Reply, body: bytes, header: SendMessageHeader, draft: MessageDraft, now: Now
    ) -> list[Effect]:
        """Send the reply to the client that asked."""
        properties = Properties(header.properties)
        client = properties.by_name.get(REPLY_TO_CLIENT)
        if not client:
            remark = "reply message properties[REPLY_TO_CLIENT] is null"
            return reply.pushed(ResponseCode.SYSTEM_ERROR, remark)
        connection = self._context.sessions.producer_connection(client)
        if connection is None:
            remark = f"push reply message fail, channel of <{client}> not found."
            return reply.pushed(ResponseCode.SYSTEM_ERROR, remark)
        caller, address = reply.caller, self._context.settings.address
        properties.add(PUSH_REPLY_TIME, str(now.wall_ms))
        push = ReplyMessageHeader(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=draft.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            born_host=f"{caller.host}:{caller.port}",
            store_host=str(address),
            store_timestamp=now.wall_ms,
            properties=properties.text,
            reconsume_times=header.reconsume_times,
            unit_mode=header.unit_mode,
        )
        command = RemotingCommand(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, 0, 0, push.to_ext(), body
        )

        def answered(response: RemotingCommand | Silence) -> list[Effect]:
            if isinstance(response, RemotingCommand) and response.code == ResponseCode.SUCCESS:
                self._context.counters["replies_pushed"] += 1
                return reply.pushed(ResponseCode.SUCCESS, None)
            return reply.pushed(ResponseCode.SYSTEM_ERROR, f"push reply message to {client}fail.")

        deadline_ms = now.monotonic_ms + PUSH_TIMEOUT_MS
        try:
            question = self._calls.ask(
                connection, command, deadline_ms, answered, asker=caller, share=REPLIES
            )
        except RequestRefused as refused:
            return reply.pushed(refused.code, refused.remark)

        return [question]
