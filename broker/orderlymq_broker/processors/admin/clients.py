"""
Administration of clients: 203, 204, 328, 343, 345, and 307 and 309, which a client itself answers.

The rules: members are listed from the replicated table, together with the connection that this leader knows. Questions
that only a client can answer go to it over its own connection, and its answer is passed on. Neither the client nor the
tool gets fields that are not meant for it, because signatures are among them. A client that does not answer delays only
the tool, by its time-out. Model: Broker2Client.
"""

from dataclasses import replace
from typing import Final

from orderlymq_broker.core.brokertoclient import ClientCalls, Silence
from orderlymq_broker.core.clientsessions import Session
from orderlymq_broker.core.effects import Caller, Effect, Now
from orderlymq_broker.core.listings import Pieces, filled
from orderlymq_broker.core.requestcontext import Context, RequestRefused, answer, unanswered
from orderlymq_broker.core.responses import answer_list, raise_unknown_group
from orderlymq_broker.processors.fetch.read import read_applied
from orderlymq_broker.processors.observe.listeners import RUNNING_INFO_VERSION
from orderlymq_broker.state.groups.members import subscription_data
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.catalogue import (
    Connection,
    ConsumerConnection,
    ProducerConnection,
    ProducerInfo,
    TopicList,
)
from orderlymq_protocol.codes import LanguageCode, RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.header.catalogue import (
    ConsumeMessageDirectlyHeader,
    ConsumerGroupHeader,
    GetConsumerRunningInfoHeader,
    GetProducerConnectionListHeader,
    GroupHeader,
    TopicOfGroupHeader,
)
from orderlymq_protocol.message.ids import MessageIdError, decode_offset_message_id

# RocketMQ waits as long: a client may have to gather the stacks of all its threads.
CLIENT_TIMEOUT_MS: Final = 10_000
CONNECTIONS_BEGIN: Final = b'"connectionSet":['
_LANGUAGES: Final = frozenset(LanguageCode)


class ClientAdministration:
    """Serves administrators' requests about connected clients."""

    def __init__(self, context: Context, asker: ClientCalls) -> None:
        self._context = context
        self._asker = asker

    # -- lists -------------------------------------------------------------------------------------

    def consumers(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 203: the members of a group and its subscriptions."""
        group = ConsumerGroupHeader.from_ext(request.ext).consumer_group
        members = self._context.state.members.of_group(group)
        if not members:
            raise RequestRefused(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{group}] not online"
            )
        # All members should report the same of the group; as in RocketMQ, the last that joined counts.
        newest = list(members.values())[-1]
        subscriptions = self._context.state.members.subscriptions(group)
        empty = ConsumerConnection(
            (),
            {topic: subscription_data(subscriptions[topic]) for topic in sorted(subscriptions)},
            newest.consume_type,
            newest.message_model,
            newest.consume_from_where,
        )
        detailed = "orderlymq" in request.ext
        known = [members[client_id] for client_id in sorted(members)]
        # Our own tools see what each member subscribes to.
        rows = (
            Connection(
                member.client_id,
                member.address,
                _language(member.language),
                member.version,
                {each.topic: each.expression for each in member.subscriptions}
                if detailed
                else None,
            )
            for member in known
        )

        return answer_list(
            self._context, request, caller, filled(empty.to_json(), CONNECTIONS_BEGIN, rows)
        )

    def topics_of(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 343: the topics that a group subscribes to or has offsets in."""
        group = GroupHeader.from_ext(request.ext).group
        state = self._context.state
        names = {*state.members.subscriptions(group), *state.offsets.of_group(group)}
        if not names:
            raise_unknown_group(self._context, group)

        return answer(request, caller, body=TopicList(tuple(sorted(names))).to_json())

    def subscription_of(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 345: the subscription of a group to a topic; null if no member is online."""
        header = TopicOfGroupHeader.from_ext(request.ext)
        raise_unknown_group(self._context, header.group)
        subscription = self._context.state.members.subscriptions(header.group).get(header.topic)
        body = {
            "group": header.group,
            "subscriptionData": None
            if subscription is None
            else subscription_data(subscription).to_json_value(),
            "topic": header.topic,
        }

        return answer(request, caller, body=fastjson.dumps(body))

    def producers(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 204: the producers of a group."""
        group = GetProducerConnectionListHeader.from_ext(request.ext).producer_group
        found = list(self._context.sessions.producers(group))
        if not found:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"the producer group[{group}] not exist"
            )

        rows = (
            Connection(client_id, _address(session), _language(session.language), session.version)
            for client_id, session in found
        )
        empty = ProducerConnection().to_json()

        return answer_list(self._context, request, caller, filled(empty, CONNECTIONS_BEGIN, rows))

    def all_producers(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 328: all producers by group."""
        return answer_list(self._context, request, caller, self._all_producers(now))

    def _all_producers(self, now: Now) -> Pieces:
        """Write what RocketMQ calls ProducerTableInfo."""
        table: dict[str, list[tuple[str, Session]]] = {}
        for session in list(self._context.sessions.all()):
            for client_id, groups in sorted(session.producer_groups.items()):
                for group in sorted(groups):
                    table.setdefault(group, []).append((client_id, session))
            yield b"", 1
        begin = b'{"data":{'
        for group, found in table.items():
            begin += fastjson.dumps(group) + b":["
            for client_id, session in found:
                info = ProducerInfo(
                    client_id,
                    f"/{_address(session)}",
                    _language(session.language),
                    session.version,
                    now.wall_ms - (now.monotonic_ms - session.seen_ms),
                )
                yield begin + fastjson.dumps(info), 1
                begin = b","
            begin = b"],"
        # The last element is not closed yet.
        yield (b"]" if table else begin) + b"}}", 0

    # -- what a client is asked --------------------------------------------------------------------

    def running_info(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 307: the report of a consumer about itself."""
        header = GetConsumerRunningInfoHeader.from_ext(request.ext)
        session = self._find(header.consumer_group, header.client_id)
        if session.version < RUNNING_INFO_VERSION:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{header.client_id}> Version <{session.version}> too low to finish, "
                f"please upgrade it to V3_1_8_SNAPSHOT",
            )
        command = RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, ext=header.to_ext())

        return self._pass_on(command, session, header.client_id, request, caller, now)

    def consume_directly(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 309: have a consumer handle one message now."""
        header = ConsumeMessageDirectlyHeader.from_ext(request.ext)
        members = self._context.state.members.of_group(header.consumer_group)
        # If the tool leaves the choice to the broker, the broker always chooses the same member.
        client_id = header.client_id or min(members, default="")
        session = self._find(header.consumer_group, client_id)
        group = self._context.settings.group
        command = RemotingCommand(
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            ext=replace(header, client_id=client_id, broker_name=group).to_ext(),
            body=self._load(header.msg_id or ""),
        )

        return self._pass_on(command, session, client_id, request, caller, now)

    # -- parts -------------------------------------------------------------------------------------

    def _pass_on(
        self,
        command: RemotingCommand,
        session: Session,
        client_id: str,
        request: RemotingCommand,
        caller: Caller,
        now: Now,
    ) -> list[Effect]:
        kept = unanswered(request)

        def answered(response: RemotingCommand | Silence) -> list[Effect]:
            match response:
                case RemotingCommand():
                    # RocketMQ's clients put no fields into this answer.
                    code, body, remark = response.code, response.body, response.remark
                    return answer(kept, caller, code, body=body, remark=remark)
                case Silence():
                    remark = f"consumer <{client_id}> Timeout: {response.value}"
                    return answer(kept, caller, ResponseCode.CONSUME_MSG_TIMEOUT, remark=remark)

        deadline_ms = now.monotonic_ms + CLIENT_TIMEOUT_MS

        return [
            self._asker.ask(session.caller.connection, command, deadline_ms, answered, asker=caller)
        ]

    def _find(self, group: str, client_id: str) -> Session:
        """Return the session over which a member can be asked.

        Raises:
            RequestRefused: the member has no session (1).
        """
        sessions = self._context.sessions
        presence = sessions.presence.get((group, client_id))
        session = sessions.get(presence.connection) if presence is not None else None
        if session is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online"
            )

        return session

    def _load(self, message_id: str) -> bytes:
        problem = f"message <{message_id}> not found here; use its offset id, as queries show it"
        try:
            _, _, physical = decode_offset_message_id(message_id)
        except MessageIdError as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{problem} ({error})") from error
        stored = read_applied(self._context, physical)
        if stored is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, problem)

        return stored


def _address(session: Session) -> str:
    return f"{session.caller.host}:{session.caller.port}"


def _language(number: int) -> str:
    # Java rejects a body with a language name that it does not know.
    return LanguageCode(number if number in _LANGUAGES else LanguageCode.OTHER).name
