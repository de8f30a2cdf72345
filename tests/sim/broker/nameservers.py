"""
Name servers: the real core in a simulated process, and the clients' lookup of routes.

A name server forgets all routes when its process ends. Brokers register again, and clients keep what they know
meanwhile. The law: an ordered topic's route names all its queues, in any state of the broker group.
"""

from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from orderlymq.connection.routes import Routes, TopicRoute
from orderlymq_broker.server.router import ClientConnection
from orderlymq_nameserver.kv import KvTable, Tables
from orderlymq_nameserver.processor import NameServerCore
from orderlymq_operator.plan.placement import parse_order_text
from orderlymq_protocol.body.catalogue import TopicRouteData
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_protocol.header.catalogue import PutKVConfigHeader, TopicHeader
from orderlymq_protocol.names import ORDER_NAMESPACE
from orderlymq_runtime.remoting.client import RemotingError
from tests.sim.clients.client import Errand, ServerProcess
from tests.sim.timeline import MS, SECOND, Process

if TYPE_CHECKING:
    from tests.sim.world import World

EXPIRY_MS: Final = 6_000
SCAN_US: Final = 500 * MS
POLL_US: Final = 1_500 * MS
LOOKUP_TIMEOUT_US: Final = SECOND


class NameServer(ServerProcess):
    """One name server process; its routes are lost when it ends."""

    def __init__(self, world: "World", number: int) -> None:
        super().__init__(world.timeline, f"names-{number}")
        self.world = world
        self._saved: Tables = {}

    def save(self, tables: Tables) -> None:
        """Keep the configuration as a file that outlives the process."""
        self._saved = {name: dict(table) for name, table in tables.items()}

    def start(self) -> None:
        """Start with only the configuration."""
        self.begin()
        self._clients: dict[int, ClientConnection] = {}
        self._core = NameServerCore(KvTable(self._saved, self.save), expiry_ms=EXPIRY_MS)
        self._has_told = False
        self.after(SCAN_US, "scan", self._scan)

    def stop(self) -> None:
        """End immediately; the kernel resets the connections."""
        clients = list(self._clients.values())
        for client in clients:
            client.close(kind="simulated", orderly=False)
        self.end()

    # -- what an operator sees and does here

    def queue_list(self, topic: str) -> dict[str, int] | None:
        """Return the published list of a topic; None if the name server is down."""
        if not self.alive:
            return None
        return parse_order_text(self._core.kv.get(ORDER_NAMESPACE, topic) or "")

    def route_counts(self, topic: str) -> dict[str, int] | None:
        """Return the number of queues of each broker in the route; None if there is no answer."""
        route = self._core.routes.route(topic) if self.alive else None
        if route is None:
            return None
        return {queue.broker_name: queue.write_queue_nums for queue in route.queue_datas}

    def put_queue_list(self, topic: str, text: str) -> None:
        """Publish a queue list."""
        if self.alive:
            header = PutKVConfigHeader(ORDER_NAMESPACE, topic, text)
            command = request(RequestCode.PUT_KV_CONFIG, header.to_ext())
            self._core.handle(command, 0, self.now_ms())

    def _scan(self) -> None:
        self.after(SCAN_US, "scan", self._scan)
        _, silent = self._core.routes.expire(self.now_ms())
        for number in silent:
            client = self._clients.get(number)
            if client is not None:
                self.world.coverage["registration expired"] += 1
                client.close(kind="simulated")
        self._core.routes.check()

    def client_made(self, client: ClientConnection) -> None:
        """Register a client's connection."""
        self._clients[client.id] = client

    def client_received(self, client: ClientConnection, command: RemotingCommand) -> None:
        """Answer immediately."""
        answer = self._core.handle(command, client.id, self.now_ms())
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            self._watch_route(answer)
        if not command.is_oneway:
            client.send(answer)

    def _watch_route(self, answer: RemotingCommand) -> None:
        """Check that a topic that was returned once is returned again, even if no replica is registered."""
        if answer.code == ResponseCode.SUCCESS:
            self._has_told = True
            is_gone = not self._core.routes.cluster_info().broker_addr_table
            self.world.coverage["route of a group that is gone"] += is_gone
        else:
            self.world.laws.ensure(
                not self._has_told, "route", f"{self.name} has forgotten the topic that it returned"
            )

    def client_lost(self, client: ClientConnection) -> None:
        """Drop the registrations of this connection."""
        if self._clients.pop(client.id, None) is not None:
            self._core.routes.connection_closed(client.id)


class Lookup(Errand):
    """A client process's search for its topic: it repeatedly asks any name server."""

    def __init__(self, world: "World", owner: Process, host: str) -> None:
        super().__init__(world, owner, host)
        self.routes = Routes()

    def start(self) -> None:
        """Begin to ask, without the routes of a former life."""
        self.begin()
        self.routes = Routes()
        self._ask()

    def stop(self) -> None:
        """End with the owner."""
        self.forget_calls()
        self.end()

    @property
    def route(self) -> TopicRoute | None:
        """Return the known route of the topic."""
        return self.routes.get(self.world.topic)

    @property
    def publish(self) -> tuple[MessageQueue, ...]:
        """Return the queues to send to; empty while the topic is unknown."""
        route = self.routes.get(self.world.topic)
        return () if route is None else route.publish

    @property
    def subscribe(self) -> tuple[MessageQueue, ...]:
        """Return the queues to consume; empty while the topic is unknown."""
        route = self.routes.get(self.world.topic)
        return () if route is None else route.subscribe

    def _choose(self) -> ServerProcess | None:
        alive = [each for each in self.world.name_servers if each.alive]
        return self.timeline.random.choice(alive) if alive else None

    def look(self) -> None:
        """Ask immediately: a broker reported that the queues changed."""
        header = TopicHeader(self.world.topic)
        command = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header.to_ext())
        self.call(command, LOOKUP_TIMEOUT_US, partial(self._answered, False))

    def _ask(self) -> None:
        random: Random = self.timeline.random
        known = self.routes.get(self.world.topic) is not None
        wait = POLL_US if known else 100 * MS
        self.after(wait + random.randrange(100 * MS), "look up", self._ask)
        if known and self.link is not None and random.random() < 0.2:
            # Clients stay with one name server as long as it answers; here they sometimes change.
            self.link.hang_up()
        header = TopicHeader(self.world.topic)
        command = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header.to_ext())
        self.call(command, LOOKUP_TIMEOUT_US, partial(self._answered, known))

    def _answered(self, known: bool, answer: RemotingCommand | RemotingError) -> None:
        coverage = self.world.coverage
        if isinstance(answer, RemotingError):
            coverage["route not to be had"] += known
            return
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            # From a name server that has just started; the known route stays valid.
            coverage["route unknown to a name server"] += known
            return
        self.routes.update(self.world.topic, TopicRouteData.from_json(answer.body))
        self.world.laws.growth.route_answered(self.routes)
