"""
Answers QUERY_ASSIGNMENT (400): the core computes the assignment, and a name server provides the route.

It is answered here because a topic's queues may be in several broker groups, and only the name servers know them all.
The rule: never guess. Only a replica that leads when the answer is given computes it. A replica with an old list of
members could miss the client, which would then drop all its queues. While no name server answers, the answer says so
and the client keeps its queues. A route is cached for a moment, because all members of a consumer group ask at the
same time.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from orderlymq_broker.processors.groups.strategies import (
    AssignmentError,
    AssignmentRequest,
    assign,
    assignment_body,
)
from orderlymq_broker.server.router import ClientConnection, Router
from orderlymq_broker.settings import Address
from orderlymq_broker.state.broker import BrokerState
from orderlymq_broker.state.groups.members import since_ms
from orderlymq_protocol.body.catalogue import TopicRouteData
from orderlymq_protocol.body.config import PERM_READ
from orderlymq_protocol.body.declaration import ModelError
from orderlymq_protocol.body.fastjson import JsonError
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_runtime.process.supervisor import Supervisor, end_tasks
from orderlymq_runtime.remoting.client import RemotingClient, RemotingError
from orderlymq_runtime.remoting.failures import failure_reply
from orderlymq_runtime.security.tls import ContextSource

_log = logging.getLogger(__name__)

# Clients wait 3 s for the whole answer.
NAME_SERVER_TIMEOUT_S: Final = 1.0
ROUTE_AGE_S: Final = 1.0
# Clients ask every 20 s for each topic; more open requests than this are a storm, and these clients ask again.
OPEN_MAX: Final = 1_024
ROUTES_MAX: Final = 1_024


class RouteUnknownError(Exception):
    """No name server could provide the topic's route; the text is for the client."""


class Assigning:
    """Answers 400.

    Life cycle: made with the clients; call `close` at the end.
    """

    def __init__(
        self,
        router: Router,
        state: Callable[[], BrokerState],
        name_servers: Sequence[Address],
        *,
        tls: ContextSource | None = None,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._supervisor = supervisor or Supervisor()
        self._state = state
        self._router = router
        self._name_servers = [str(name_server) for name_server in name_servers]
        self._client = RemotingClient(tls=tls)
        self._tasks: set[asyncio.Task[None]] = set()
        self._routes: dict[str, tuple[float, tuple[MessageQueue, ...]]] = {}
        router.intercept(RequestCode.QUERY_ASSIGNMENT, self._query, of_replica=False)

    async def close(self) -> None:
        """Cancel pending requests."""
        await end_tasks(self._tasks)
        await self._client.close()

    def _query(self, client: ClientConnection, command: RemotingCommand) -> None:
        try:
            asked = AssignmentRequest.from_json(command.body)
            known_at_s, queues = self._routes.get(asked.topic, (-ROUTE_AGE_S, ()))
            if asyncio.get_running_loop().time() - known_at_s < ROUTE_AGE_S:
                client.send(command.reply(body=assignment_body(self._assign(asked, queues))))
                return
        except (JsonError, ModelError, AssignmentError) as error:
            client.send(command.reply(ResponseCode.SYSTEM_ERROR, remark=str(error)))
            return
        if len(self._tasks) >= OPEN_MAX:
            remark = f"{OPEN_MAX} assignments are being computed; ask again"
            client.send(command.reply(ResponseCode.SYSTEM_BUSY, remark=remark))
            return
        task = self._supervisor.once(
            "assignment", self._fetch(client, command, asked.topic), name=f"route of {asked.topic}"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _assign(
        self, asked: AssignmentRequest, queues: tuple[MessageQueue, ...]
    ) -> list[MessageQueue] | None:
        state = self._state()
        members = state.members.of_group(asked.consumer_group)
        ages = {client_id: since_ms(member) for client_id, member in members.items()}

        return assign(asked, queues, ages, state.assignments.get(asked.consumer_group, asked.topic))

    async def _fetch(self, client: ClientConnection, command: RemotingCommand, topic: str) -> None:
        """Fetch the route of a topic and handle the request again, because another replica may lead by then.

        It also counts again: a quota of one request per second is enough for that.
        """
        try:
            queues = await self._ask(topic)
        except RouteUnknownError as error:
            client.send(command.reply(ResponseCode.SYSTEM_ERROR, remark=str(error)))
        except Exception as error:
            client.send(failure_reply(command, error))
            raise
        else:
            if len(self._routes) >= ROUTES_MAX:
                self._routes.clear()
            self._routes[topic] = (asyncio.get_running_loop().time(), queues)
            self._router.received(client, command)

    async def _ask(self, topic: str) -> tuple[MessageQueue, ...]:
        reasons = []
        for name_server in self._name_servers:
            command = request(
                RequestCode.GET_ROUTEINFO_BY_TOPIC,
                {"topic": topic, "acceptStandardJsonOnly": "true"},
            )
            try:
                reply = await self._client.invoke(name_server, command, NAME_SERVER_TIMEOUT_S)
                if reply.code == ResponseCode.SUCCESS:
                    return readable_queues(topic, TopicRouteData.from_json(reply.body))
                reasons.append(f"{name_server} answers {reply.code}: {reply.remark}")
            except (RemotingError, JsonError, ModelError) as error:
                reasons.append(f"{name_server}: {error}")
        text = "; ".join(reasons) or "this broker has no name server"
        _log.debug("no route of %s: %s", topic, text)
        raise RouteUnknownError(f"no route of topic {topic} is known now ({text}); ask again")


def readable_queues(topic: str, route: TopicRouteData) -> tuple[MessageQueue, ...]:
    """Return the queues of a route that consumers may read."""
    return tuple(
        MessageQueue(topic, data.broker_name, number)
        for data in route.queue_datas
        if data.perm & PERM_READ
        for number in range(data.read_queue_nums)
    )
