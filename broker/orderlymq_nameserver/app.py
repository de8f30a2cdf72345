"""
The name server process: sockets, clock and timer around `processor`; everything is wired here.

Rule: requests are answered in the order in which they were read, within the same turn of the event loop,
except for queries that the name server cannot answer yet. A closed connection ends its registrations
immediately. Many clients keep no broker out: the client that was heard of longest ago is disconnected, and
reconnects when it asks next. A process that was paused first reads what has arrived meanwhile. For clients
and brokers whose connections ended, it behaves like a new one.
"""

import asyncio
import logging
import os
import secrets
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from orderlymq_nameserver.addressfile import AddressFile
from orderlymq_nameserver.kv import KvError, KvFile, KvTable
from orderlymq_nameserver.processor import HOLD_MAX_MS, KNOWS_ALL_AFTER_MS, NameServerCore
from orderlymq_nameserver.proofs import Proofs
from orderlymq_nameserver.routefile import RouteFile
from orderlymq_nameserver.settings import NameServerSettings
from orderlymq_protocol.codes import LanguageCode, RequestCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.pages.server import HealthServer
from orderlymq_runtime.pages.trafficmetrics import InputBudgetCollector, TrafficCollector, family
from orderlymq_runtime.process.openfiles import connections_allowed
from orderlymq_runtime.process.timers import Timers
from orderlymq_runtime.remoting.connection import Connection
from orderlymq_runtime.remoting.connectiontable import ConnectionLimits
from orderlymq_runtime.remoting.failures import failure_reply
from orderlymq_runtime.remoting.server import RemotingServer
from orderlymq_runtime.remoting.traffic import Traffic
from orderlymq_runtime.remoting.unsent import NAME_SERVER_BYTES_MAX as NAME_SERVER_UNSENT_MAX
from orderlymq_runtime.security.clustersecret import NAME_SERVERS, derived_key
from orderlymq_runtime.settingsfile import ServerAddress
from orderlymq_runtime.sockets.inputbudget import NAME_SERVER_BYTES_MAX, InputBudget
from orderlymq_runtime.wallclock import machine_ms, monotonic_ms

_log = logging.getLogger(__name__)

HOLD_TICK_S: Final = 0.05
# 1 KiB each. A thousand clients may ask for their topics. A query that finds no place is answered without
# waiting.
HELD_MAX: Final = 16_384
# A client asks for one topic at a time, or for all of its topics at the same moment.
HELD_OF_ONE_MAX: Final = 1_024
# Queries checked in one turn of the event loop: some milliseconds if each is for another topic.
LOOKED_AT_MAX: Final = 64

# Connections that have registered no broker of the cluster. They take 5 KiB each, and a pod has 256 MiB. Clients
# ask twice a minute.
CLIENTS_MAX: Final = 16_384

# The interval between checks of the file of outside addresses, which take some microseconds, and between writes
# of other clients' key-value texts. A synced write of 2 MiB blocks the event loop for some 30 ms, so for at most
# 3 % of the time.
FILES_S: Final = 1.0

# Brokers and clients close a connection that has been without an answer for about this long.
PAUSE_MAX_MS: Final = 3_000

# A single late scan is caused by a long turn of the event loop.
SCANS_MISSED_MAX: Final = 3


class NameServer:
    """A running name server: `start`, then `close`.

    Attributes:
        address: its address, once started.
        http_address: the address of its HTTP pages, once started; None without them.
        outside: the address of each additional listener, once started.
        clients_max: connections in addition to those of brokers; if few files may be open, three quarters of
            the possible connections.

    Args:
        is_new: brokers may be about to register again, so queries for missing topics wait for them.
    """

    def __init__(self, settings: NameServerSettings, *, is_new: bool = True) -> None:
        store = None if settings.kv_path is None else KvFile(settings.kv_path)
        kv = KvTable() if store is None else KvTable(store.load(), store.save)
        self.address = settings.listen
        self.http_address: ServerAddress | None = None
        self.outside: dict[str, ServerAddress] = {}
        self._settings = settings
        self._budget = InputBudget(bytes_max=NAME_SERVER_BYTES_MAX)
        self._core = NameServerCore(
            kv,
            expiry_ms=settings.expiry_ms,
            began_ms=monotonic_ms() if is_new else None,
            make_room=self._budget.make_room,
            proofs=_proofs(settings),
            properties={
                "kvConfigPath": str(settings.kv_path or ""),
                "listenPort": str(settings.listen.port),
                "scanNotActiveBrokerInterval": str(settings.scan_ms),
            },
        )
        kept = settings.kv_path
        self._routes = None
        if kept is not None and settings.cluster_secret:
            self._routes = RouteFile(kept.with_name("routes.json"), self._core.routes)
        path = settings.outside_addresses
        self._file = None if path is None else AddressFile(path, self._core.outside)
        traffic = Traffic()
        self._server = RemotingServer(
            self,
            linger_reset=True,
            limits=ConnectionLimits(unsent_max=NAME_SERVER_UNSENT_MAX),
            traffic=traffic,
            tls=settings.tls.server(),
            budget=self._budget,
        )
        self.clients_max = min(CLIENTS_MAX, connections_allowed() * 3 // 4)
        self._connections: dict[int, Connection] = {}
        # Connections that have registered no broker, the one heard of longest ago first.
        self._clients: dict[int, Connection] = {}
        self._registry = CollectorRegistry()
        self._registry.register(TrafficCollector({"server": traffic}))
        self._registry.register(InputBudgetCollector(self._budget))
        self._registry.register(_NameServerCollector(self._core))
        self._http: HealthServer | None = None
        self._started_ms = self._scanned_ms = self._awake_ms = monotonic_ms()
        self._expires_from_ms = 0
        self._timers = Timers()
        self._held: deque[tuple[int, Connection, RemotingCommand]] = deque()
        self._held_of: Counter[int] = Counter()
        # The inputs of the last check of the held queries.
        self._judged_by: object = None

    async def start(self) -> None:
        """Start to listen.

        Raises:
            PortInUseError: Another process uses one of the ports.
        """
        settings = self._settings
        self.address = ServerAddress(
            *await self._server.listen(settings.listen.host, settings.listen.port)
        )
        try:
            for each in settings.listeners:
                bound = await self._server.listen(each.host, each.port, outside=each.mark())
                self.outside[each.name] = ServerAddress(*bound)
            if settings.http is not None:
                self._http = HealthServer(
                    settings.http.host,
                    settings.http.port,
                    ready=lambda: (True, "ready"),
                    alive=self.alive,
                    status=self.status,
                    registry=self._registry,
                    guard=settings.pages(settings.http.host),
                    budget=self._budget,
                )
                self.http_address = ServerAddress(*await self._http.start())
        except OSError:
            await self.close()
            raise
        self._core.properties["listenPort"] = str(self.address.port)
        self._timers.arm("scan", settings.scan_ms / 1000, self._scan)
        self._look_after_files()

    async def close(self) -> None:
        """Send the pending answers and stop."""
        self._timers.close()
        await self._server.close()
        self._save()
        if self._http is not None:
            await self._http.close()
            self._http = None

    def scan(self, now_ms: int) -> None:
        """Drop registrations that were silent for too long at *now_ms* and close their connections; a timer calls this."""
        lost, silent = self._core.routes.expire(now_ms)
        for name in lost:
            _log.warning(
                "broker %s sent nothing for too long and was removed from the routes", name
            )
        for number in silent:
            conn = self._connections.get(number)
            if conn is not None:
                conn.close(kind="silent_broker", reason="its broker sent nothing for too long")

    def alive(self) -> tuple[bool, str]:
        """Return whether the process is healthy: a name server that does not check for silent groups publishes dead ones."""
        late_ms = monotonic_ms() - self._scanned_ms
        if late_ms > SCANS_MISSED_MAX * self._settings.scan_ms:
            return False, f"no check for silent groups for {late_ms} ms"
        return True, "ok"

    def status(self) -> dict[str, object]:
        """Return the content of `/status`: the process, and the first rows of RocketMQ's five tables."""
        now_ms = monotonic_ms()
        return {
            "role": "name-server",
            "address": str(self.address),
            "pid": os.getpid(),
            "uptime_ms": now_ms - self._started_ms,
            "connections": len(self._connections),
            "outsideAddresses": self._core.outside.table,
            **self._core.routes.dump(now_ms),
        }

    # FrameHandler.

    def connection_made(self, conn: Connection) -> None:
        """Store a connection, so that it can be closed when it is silent, or to make room for others."""
        self._connections[conn.id] = self._clients[conn.id] = conn
        if len(self._clients) > self.clients_max:
            oldest = self._clients.pop(next(iter(self._clients)))
            reason = "it has been silent the longest, and other clients connect"
            oldest.close(orderly=False, kind="crowded_out", reason=reason)

    def received(self, conn: Connection, request: RemotingCommand) -> None:
        """Answer a request; responses are ignored, because the name server asks clients nothing."""
        now_ms = monotonic_ms()
        self._stay_awake(now_ms)
        if self._clients.pop(conn.id, None) is not None:
            self._clients[conn.id] = conn
        if request.is_response:
            return
        if not self._core.knows_too_little(request, now_ms):
            self._answer(conn, request, now_ms)
        elif len(self._held) < HELD_MAX and self._held_of[conn.id] < HELD_OF_ONE_MAX:
            if not self._held:
                asyncio.get_running_loop().call_later(HOLD_TICK_S, self._look_at_held)
            # The answer needs only the topic; other fields would use memory for unknown clients.
            question = replace(request, ext={"topic": request.ext["topic"]}, remark=None)
            self._held.append((now_ms + HOLD_MAX_MS, conn, question))
            self._held_of[conn.id] += 1
        else:
            self._answer_late(conn, request, now_ms)

    def _answer(self, conn: Connection, request: RemotingCommand, now_ms: int) -> None:
        try:
            wall_ms = machine_ms()
            reply = self._core.handle(request, conn.id, now_ms, wall_ms, listener=conn.listener)
        except Exception as error:
            _log.exception("%r: request %d failed", conn, request.code)
            reply = failure_reply(request, error)
        registers = request.code == RequestCode.REGISTER_BROKER and not reply.code
        if registers and self._core.trusts(request.ext["brokerName"]):
            self._clients.pop(conn.id, None)
        if not request.is_oneway:
            conn.send(reply)

    def _look_at_held(self) -> None:
        """Begin to answer held queries that have waited long enough, or whose topic is known after a change."""
        before, self._judged_by = self._judged_by, self._core.judges_by(monotonic_ms())
        self._answer_held(len(self._held), is_changed=before != self._judged_by)

    def _answer_held(self, count: int, *, is_changed: bool) -> None:
        """Check the first *count* held queries, a part of them in each turn of the event loop."""
        now_ms = monotonic_ms()
        waits: dict[tuple[int, str, int], bool] = {}
        for _ in range(min(count, LOOKED_AT_MAX, len(self._held))):
            due_ms, conn, request = self._held.popleft()
            kind = request.code, request.ext["topic"], request.language
            if is_changed and kind not in waits:
                waits[kind] = self._core.knows_too_little(request, now_ms)
            if conn.id in self._connections:
                if not waits.get(kind, True):
                    self._answer(conn, request, now_ms)
                elif now_ms < due_ms:
                    self._held.append((due_ms, conn, request))
                    continue
                else:
                    self._answer_late(conn, request, now_ms)
            self._held_of[conn.id] -= 1
            if not self._held_of[conn.id]:
                del self._held_of[conn.id]
        loop = asyncio.get_running_loop()
        if count > LOOKED_AT_MAX:
            rest = partial(self._answer_held, count - LOOKED_AT_MAX, is_changed=is_changed)
            loop.call_soon(rest)
        elif self._held:
            loop.call_later(HOLD_TICK_S, self._look_at_held)

    def _answer_late(self, conn: Connection, request: RemotingCommand, now_ms: int) -> None:
        """Answer a query whose topic may be unknown here; a Go client gets no answer, or it would ask for the template."""
        if (
            request.language != LanguageCode.GO
            or request.code != RequestCode.GET_ROUTEINFO_BY_TOPIC
        ):
            self._answer(conn, request, now_ms)

    def connection_lost(self, conn: Connection) -> None:
        """Drop the registrations of the connection."""
        self._connections.pop(conn.id, None)
        self._clients.pop(conn.id, None)
        self._core.negative_cache.closed(conn.id)
        for name in self._core.routes.connection_closed(conn.id):
            _log.info("broker %s: the last connection of an address was lost", name)

    def _look_after_files(self) -> None:
        self._timers.arm("files", FILES_S, self._look_after_files)
        self._stay_awake(monotonic_ms())
        if self._file is not None:
            self._file.refresh()
        self._save()

    def _save(self) -> None:
        if self._routes is not None:
            self._routes.save()
        try:
            self._core.kv.save()
        except KvError as error:
            _log.error("%s; texts that are not saved yet are lost if this process ends", error)

    def _stay_awake(self, now_ms: int) -> None:
        """Begin again after a pause of the process: its brokers were not silent, but it did not listen."""
        paused_ms = now_ms - self._awake_ms
        self._awake_ms = now_ms
        if paused_ms > PAUSE_MAX_MS:
            _log.warning("this process stood still for %d ms", paused_ms)
            self._core.begin(now_ms)
            self._expires_from_ms = now_ms + KNOWS_ALL_AFTER_MS

    def _scan(self) -> None:
        self._timers.arm("scan", self._settings.scan_ms / 1000, self._scan)
        now_ms = monotonic_ms()
        self._stay_awake(now_ms)
        if now_ms >= self._expires_from_ms:
            self.scan(now_ms)
        # After the scan, so that a scan that always fails does not count.
        self._scanned_ms = now_ms


class _NameServerCollector(Collector):
    """Metrics of the registry, read when they are scraped."""

    def __init__(self, core: NameServerCore) -> None:
        self._core = core

    def collect(self) -> Iterable[Metric]:
        """Return the present metrics."""
        core = self._core
        clusters = core.routes.cluster_info().cluster_addr_table
        return [
            family(
                GaugeMetricFamily,
                "orderlymq_nameserver_brokers",
                "Living brokers",
                ["cluster"],
                [([cluster], len(names)) for cluster, names in clusters.items()],
            ),
            family(
                GaugeMetricFamily,
                "orderlymq_nameserver_topics",
                "Topics with a route",
                (),
                [((), core.routes.topic_count())],
            ),
            family(
                CounterMetricFamily,
                "orderlymq_nameserver_requests",
                "Requests by code and result",
                ["code", "result"],
                [
                    (["other" if code < 0 else str(code), str(int(result))], count)
                    for (code, result), count in sorted(core.requests.items())
                ],
            ),
        ]


def _proofs(settings: NameServerSettings) -> Proofs:
    secret = settings.cluster_secret
    return Proofs(
        derived_key(secret, NAME_SERVERS) if secret else None,
        secrets.token_hex(16),
        allow_unsigned=settings.allow_unsigned_registrations,
    )
