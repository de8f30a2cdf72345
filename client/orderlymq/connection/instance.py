"""
A client of the cluster: its connections, its routes, and the requests that brokers send to it.

There is one per client id; a `Producer` or `Consumer` makes its own, or several share one. Rule: name servers are
asked in turn until one answers. `heartbeats` reports producers and consumers to brokers, `wire` reads answers, and
`routes` holds what is known about topics.
"""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final, TypeVar

from orderlymq.connection.administrator import cluster_secret, operator_credentials, operator_tls
from orderlymq.connection.credentials import find_credentials, find_tls, tls_is_set
from orderlymq.connection.heartbeats import Heartbeats
from orderlymq.connection.identity import (
    NameServers,
    make_client_id,
    make_unique_keys,
    own_ip,
    parse_name_servers,
)
from orderlymq.connection.namespaces import with_namespace, without_namespace
from orderlymq.connection.routes import Routes, TopicRoute, template_route
from orderlymq.connection.signatures import RequestSigner
from orderlymq.connection.troubles import NO_LEADER, Troubles
from orderlymq.connection.wire import check
from orderlymq.durations import seconds
from orderlymq.errors import (
    BrokerError,
    BrokerUnreachable,
    NameServersUnreachable,
    SettingError,
    StateError,
    TopicNotFound,
)
from orderlymq.ownedtasks import OwnedTasks
from orderlymq.settings import ClientSettings, settings_of
from orderlymq_protocol.body.catalogue import (
    ModelError,
    TopicRouteData,
)
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_protocol.signature import Signer
from orderlymq_runtime.remoting.client import ConnectionLost, RemotingClient, RemotingError
from orderlymq_runtime.remoting.connection import Connection
from orderlymq_runtime.remoting.signedcalls import invoke_signed, name_server_signer

_log = logging.getLogger(__name__)

# A peer that does not know these codes is a broker.
_OF_ALL_NAME_SERVERS: Final = frozenset(
    {RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO}
)
_NAME_SERVER_TIMEOUT_S: Final = 3.0
# While name servers hang, the known address is used after this time; no lease may end meanwhile.
_DOUBT_S: Final = 0.5
# A restarted name server learns a topic's brokers far sooner; a topic that is missing for longer was deleted.
_MISSING_S: Final = 300.0

RequestHook = Callable[[str, RemotingCommand], None]
ResponseHook = Callable[[str, RemotingCommand, RemotingCommand], None]
# Serves a broker's request, or returns that the request is not its own.
Servant = Callable[[RemotingCommand, Connection], bool]
T = TypeVar("T")


async def unless_missing(asked: Awaitable[T], otherwise: T) -> T:
    """Return an answer about a topic, or *otherwise* if there is no such topic."""
    try:
        return await asked
    except TopicNotFound:
        return otherwise


async def unless_refused(asked: Awaitable[T], otherwise: T, *codes: ResponseCode) -> T:
    """Return an answer, or *otherwise* if the peer refused with one of *codes*."""
    try:
        return await asked
    except BrokerError as error:
        if error.code not in codes:
            raise
        return otherwise


def no_leader(broker_name: str) -> BrokerUnreachable:
    """Return the error for a call of a broker group without a leader."""
    return BrokerUnreachable(f"the broker group {broker_name} has no leader now; try again")


class ClientInstance:
    """Everything that producers and consumers with one client id share.

    Life cycle: each user calls `start` and `close`; it runs from the first start to the last close,
    any number of times.

    Args:
        before_request, after_response: RocketMQ's RPC hooks. The first sees every request before it is signed and
            sent, with its address; the second sees every answer. Fields that a hook adds to a request are signed and
            sent with it. Hooks run on the event loop and must not block.
        administrator: sign with the credentials that `administrator` finds, too.
    """

    def __init__(
        self,
        name_servers: NameServers = None,
        settings: ClientSettings | None = None,
        *,
        instance_name: str = "",
        before_request: RequestHook | None = None,
        after_response: ResponseHook | None = None,
        administrator: bool = False,
    ) -> None:
        self.settings = settings_of(ClientSettings, settings)
        self.credentials = find_credentials(self.settings)
        self._name_server_signer: Signer | None = None
        self._administrator = administrator
        if administrator:
            if not (self.credentials.access_key or self.credentials.token):
                self.credentials = operator_credentials()
            if secret := cluster_secret():
                self._name_server_signer = name_server_signer(secret)
        self.name_servers = parse_name_servers(name_servers)
        tls = find_tls(self.settings)
        if administrator and tls is None and not tls_is_set():
            tls = operator_tls(self.name_servers)
        self.is_encrypted = tls is not None
        self._signer = RequestSigner(
            self.credentials.access_key,
            self.credentials.secret_key,
            self.credentials.token,
            is_encrypted=self.is_encrypted,
        )
        self.ip = self.settings.client_ip or own_ip(self.name_servers[0])
        self._instance_name = self.settings.instance_name or instance_name
        self._take_identity()
        self.routes = Routes()
        self.troubles = Troubles()
        self._tasks = OwnedTasks()
        self.heartbeats = Heartbeats(self, self._tasks)
        self._before_request = before_request
        self._after_response = after_response
        self._tls = tls
        self._remoting = self._make_remoting()
        self._users = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._name_server = 0
        self._servants: dict[int, list[Servant]] = {}
        self._watched: set[str] = set()
        # When a watched topic was first missing, on the monotonic clock.
        self._missing: dict[str, float] = {}
        # Addresses that failed since a route named them, with the time until which to wait for
        # name servers, once asked.
        self._doubted: dict[str, float | None] = {}
        self._route_calls: dict[str, asyncio.Task[TopicRoute]] = {}

    def _take_identity(self) -> None:
        """Make the client id and the factory of message keys; no other process has the same."""
        self._process = os.getpid()
        self.client_id = make_client_id(self.ip, self._instance_name, self.settings.unit_name)
        self.unique_keys = make_unique_keys(self.ip)

    def _make_remoting(self) -> RemotingClient:
        return RemotingClient(
            self._on_request,
            on_connection_lost=self.heartbeats.greet,
            tls=self._tls,
        )

    def check_caller(self) -> None:
        """Refuse a call that could get no answer.

        Raises:
            StateError: The client was started before the process forked, and this is the child; or
                on another event loop.
        """
        if self._users and os.getpid() != self._process:
            raise StateError(
                "the client was started before the process forked, and its connections belong to the parent: create and start "
                "one in the child"
            )
        # The loop of this thread; None if none runs.
        if self._users and asyncio._get_running_loop() is not self._loop:
            raise StateError(
                "the client runs on another event loop, so calls from this one would get no answer: clients that share an "
                "instance must share its loop; clients of orderlymq.blocking must also pass one LoopThread as thread="
            )

    # -- names

    def whole(self, name: str) -> str:
        """Return the name of a topic or group as brokers know it.

        Raises:
            SettingError: It is not a text.
        """
        given: object = name
        if not isinstance(given, str):
            raise SettingError(f"the name of a topic or group is {name!r}, which is not text")
        return with_namespace(self.settings.namespace, name)

    def bare(self, name: str) -> str:
        """Return a name as this client's user knows it."""
        namespace = self.settings.namespace
        return without_namespace(name, namespace) if namespace else name

    def whole_queue(self, queue: MessageQueue) -> MessageQueue:
        """Return a queue under the name that brokers know."""
        return queue._replace(topic=self.whole(queue.topic))

    # -- life

    async def start(self) -> None:
        """Begin to keep routes fresh and to send heartbeats; every user of the instance calls it.

        Raises:
            StateError: It was started before the process forked, and this is the child; or on another event loop.
        """
        self.check_caller()
        self._loop = asyncio.get_running_loop()
        self._users += 1
        if self._users == 1:
            if os.getpid() != self._process:
                self._take_identity()  # children that share an instance made before the fork are different clients
            if self._remoting.is_closed:
                self._remoting = self._make_remoting()
            self._tasks.keep(self._poll_routes, "route poll")
            self.heartbeats.start()

    async def close(self) -> None:
        """End the instance after its last user has called this.

        Raises:
            StateError: It runs on another event loop.
        """
        self.check_caller()
        self._users -= 1
        if self._users == 0:
            self.heartbeats.stop()
            for call in list(self._route_calls.values()):
                call.cancel()
            await self._tasks.cancel()
            if self._users == 0:  # no user has started it again meanwhile
                await self._remoting.close()

    def serve(self, code: RequestCode, servant: Servant) -> Callable[[], None]:
        """Offer brokers' requests of *code* to *servant*; return a function that withdraws the offer."""
        servants = self._servants.setdefault(code, [])
        servants.append(servant)
        return lambda: servants.remove(servant)

    # -- calls

    async def invoke(
        self, address: str, command: RemotingCommand, timeout_s: float | None = None
    ) -> RemotingCommand:
        """Call *address* and return the answer, with any code.

        Raises:
            RemotingError: There is no answer; `maybe_sent` says whether it may have been executed.
        """
        timeout_s = seconds(self.settings.request_timeout) if timeout_s is None else timeout_s
        self._prepare(address, command)
        if self._name_server_signer is not None and address in self.name_servers:
            self._signer.sign(address, command)
            answer = await invoke_signed(
                self._remoting, self._name_server_signer, address, command, timeout_s
            )
        else:
            try:
                answer = await self._signer.invoke(
                    self._remoting.invoke, address, command, timeout_s
                )
            except RemotingError:
                self._doubted.setdefault(address)
                raise
            if answer.code in NO_LEADER:
                self._doubted.setdefault(address)
        if self._after_response is not None:
            self._after_response(address, command, answer)
        return answer

    async def call(
        self,
        address: str,
        code: RequestCode,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_s: float | None = None,
    ) -> RemotingCommand:
        """Send an administrative request to *address*; return only an answer with SUCCESS.

        Raises:
            BrokerError: Any other code.
            BrokerUnreachable: No answer.
        """
        try:
            answer = await self.invoke(address, request(code, ext, body), timeout_s)
        except RemotingError as error:
            raise BrokerUnreachable(
                f"{error}; is the cluster up? try `orderlymq status`{self._hint(error)}"
            ) from error
        return check(answer, address)

    async def send_oneway(self, address: str, command: RemotingCommand) -> None:
        """Send without waiting for an answer."""
        self._prepare(address, command)
        self._signer.sign(address, command)
        await self._remoting.send_oneway(address, command)

    def _prepare(self, address: str, command: RemotingCommand) -> None:
        """Check the caller, then show the request to the hook; signing comes later and covers the hook's fields."""
        self.check_caller()
        if self._before_request is not None:
            self._before_request(address, command)

    async def ask_name_server(self, command: RemotingCommand) -> RemotingCommand:
        """Ask the name servers in turn, beginning with the one that answered last.

        Raises:
            NameServersUnreachable: None answers.
            StateError: The client runs on another event loop.
        """
        failures: list[RemotingError] = []
        count = len(self.name_servers)
        for turn in range(count):
            index = (self._name_server + turn) % count
            address = self.name_servers[index]
            self._prepare(address, command)
            try:
                answer = await self._remoting.invoke(address, command, _NAME_SERVER_TIMEOUT_S)
            except RemotingError as error:
                failures.append(error)
                continue
            if self._after_response is not None:
                self._after_response(address, command, answer)
            unknown = answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            if unknown and command.code in _OF_ALL_NAME_SERVERS:
                wrong = f"{address} is not a name server"
                failures.append(RemotingError(wrong, address=address, maybe_sent=False))
                continue
            self._name_server = index
            return answer
        raise NameServersUnreachable(
            f"no name server answers ({'; '.join(map(str, failures))}); is the cluster up? "
            f"`orderlymq up` starts one{self._hint(*failures)}"
        )

    def _hint(self, *failures: RemotingError) -> str:
        """Return a question about TLS if a peer hung up on a plain request; else an empty text."""
        lost = not self.is_encrypted and any(isinstance(each, ConnectionLost) for each in failures)
        return "; or does it serve TLS? set ORDERLYMQ_TLS=true" if lost else ""

    # -- routes

    async def route(self, topic: str, *, refresh: bool = False, keep: bool = True) -> TopicRoute:
        """Return a topic's route and keep it fresh from now on; callers share one request.

        Args:
            topic: its name.
            refresh: ask now, even if a fresh route is known.
            keep: False for a caller that only looks: the topic's route is not refreshed later.

        Raises:
            TopicNotFound: No broker has the topic.
            NameServersUnreachable: No name server answers.
            StateError: The client was closed meanwhile, or runs on another event loop.
        """
        self.check_caller()
        known = None if refresh else self.routes.get(topic)
        if known is not None and topic in self._watched:
            return known
        call = self._route_call(topic)
        try:
            found = await asyncio.shield(call)
        except asyncio.CancelledError:
            # Either this caller was cancelled or `close` has cancelled the call.
            task = asyncio.current_task()
            if not call.cancelled() or (task is not None and task.cancelling()):
                raise
            raise StateError(f"the client was closed while it asked where {topic} is") from None
        except NameServersUnreachable:
            if known is None:
                raise
            found = known  # the last known route
        if keep:
            self._watched.add(topic)
        return found

    def _route_call(self, topic: str) -> "asyncio.Task[TopicRoute]":
        """Return the request for a route that is under way, or begin one."""
        call = self._route_calls.get(topic)
        if call is None:
            call = asyncio.create_task(self._ask_route(topic), name=f"route of {topic}")
            self._route_calls[topic] = call
            call.add_done_callback(lambda _: self._route_calls.pop(topic, None))
        return call

    async def try_refresh(
        self, topic: str, level: int = logging.DEBUG, *, keep: bool = True
    ) -> None:
        """Ask for a topic's route; a failure is logged, and the former route stays."""
        try:
            await self.route(topic, refresh=True, keep=keep)
        except (TopicNotFound, NameServersUnreachable, BrokerError) as error:
            _log.log(level, "the route of %s could not be refreshed: %s", topic, error)

    async def route_or_template(
        self, topic: str, template_topic: str, queue_max: int
    ) -> TopicRoute:
        """Return the route to send by; for a topic without one, the route that it gets when a send creates it.

        A topic that had a route keeps it. If the topic is gone, its broker refuses sends; if only the name servers do
        not know it, a queue of the template would break the order.

        Raises:
            TopicNotFound: The topic does not exist and brokers do not create topics.
        """
        try:
            return await self.route(topic)
        except TopicNotFound:
            former = self.routes.former(topic)
            if former is not None:
                return former
            try:
                # Our name servers show the template's queues only right after the answer above.
                template = await self.route(template_topic, refresh=True)
            except TopicNotFound:
                template = None
            if template is None or not template.publish:
                raise
            return template_route(topic, template, queue_max)

    async def address(
        self, queue_or_broker: str, topic: str, *, within_s: float | None = None
    ) -> str | None:
        """Return the broker's address; ask for the topic's route if no address is known or the known one has failed.

        A known address is returned after a short time, at most half of the caller's *within_s*: name servers that
        hang do not make it wrong.
        """
        address, limit_s = self.routes.address(queue_or_broker), within_s
        if address is not None:
            if address not in self._doubted:
                return address
            limit_s = self._doubt_s(address, topic)
            limit_s = limit_s if within_s is None else min(limit_s, within_s / 2)
            if limit_s <= 0:
                return address
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self.try_refresh(topic, keep=not self._administrator)
        return self.routes.address(queue_or_broker)

    def _doubt_s(self, address: str, topic: str) -> float:
        """Return how long to wait for name servers to confirm a known address; they are asked once."""
        now_s, until_s = asyncio.get_running_loop().time(), self._doubted[address]
        if until_s is None:
            until_s = self._doubted[address] = now_s + _DOUBT_S

            def answered(call: "asyncio.Task[TopicRoute]") -> None:
                self._doubted.pop(address, None)
                _ = call.cancelled() or call.exception()  # perhaps no caller retrieves it

            self._route_call(topic).add_done_callback(answered)
        return until_s - now_s

    async def leader(self, broker_name: str, topic: str) -> str:
        """Return the address of the leader of a broker group that has a part of a topic.

        Raises:
            BrokerUnreachable: There is none now.
        """
        address = await self.address(broker_name, topic)
        if address is None:
            raise no_leader(broker_name)
        return address

    async def _ask_route(self, topic: str) -> TopicRoute:
        command = request(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, "acceptStandardJsonOnly": "true"}
        )
        answer = await self.ask_name_server(command)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            self.routes.forget(topic)
            self._miss(topic)
            raise TopicNotFound(
                f"no broker has the topic {topic}; correct the name, or create it with "
                f"`orderlymq topic create {topic}` (add --ordered for consumers in order)",
                topic=self.bare(topic),
            )
        check(answer, self.name_servers[self._name_server])
        try:
            data = TopicRouteData.from_json(answer.body)
        except (ModelError, ValueError) as error:
            raise BrokerError(answer.code, f"unreadable route of {topic}: {error}") from error
        self._missing.pop(topic, None)
        before = self.routes.addresses()
        changed = self.routes.update(topic, data)
        for address in self.routes.addresses() - before:
            self.heartbeats.greet(address)
        if changed:
            for member in list(self.heartbeats.consumers.values()):
                member.routes_changed(topic)
        found = self.routes.get(topic)
        if found is None:
            raise SettingError(f"the route of {topic} is empty")
        return found

    async def _poll_routes(self) -> None:
        while True:
            await asyncio.sleep(seconds(self.settings.poll_name_server_interval))
            for topic in list(self._watched):
                is_told = topic in self._missing
                await self.try_refresh(topic, logging.DEBUG if is_told else logging.WARNING)

    def _miss(self, topic: str) -> None:
        """Note that a topic is missing; if it stays missing, it is not asked for until a caller wants it again."""
        if topic not in self._watched:
            return
        now_s = time.monotonic()
        if now_s - self._missing.setdefault(topic, now_s) >= _MISSING_S:
            self._watched.discard(topic)
            del self._missing[topic]

    # -- what brokers ask

    def _on_request(self, command: RemotingCommand, conn: Connection) -> RemotingCommand | None:
        if any(servant(command, conn) for servant in self._servants.get(command.code, ())):
            return None
        group = command.ext.get("consumerGroup") or command.ext.get("group", "")
        member = self.heartbeats.consumers.get(group)
        if member is not None and member.on_request(command, conn.send):
            return None
        if command.is_oneway:
            return None
        return command.reply(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            remark=f"request {command.code} is not served by the client {self.client_id}",
        )
