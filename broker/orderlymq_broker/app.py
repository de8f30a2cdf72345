"""
One broker process: everything is created, connected and ended here.

The rule: the parts know each other only through what this module passes to them. `BrokerProcess` owns what outlives a
change of store (connections, address, registration, HTTP). What is created
again with the store is an `Instance` (``replication/replicainstance.py``). Start with `BrokerProcess.run`.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from orderlymq_broker.core.capacity import is_nearly_full
from orderlymq_broker.metrics import BrokerMetrics
from orderlymq_broker.processors.groups.members import Ends
from orderlymq_broker.replication.compaction import Compaction
from orderlymq_broker.replication.groupclock import GroupClock
from orderlymq_broker.replication.interfaces import SystemClock
from orderlymq_broker.replication.replicainstance import Environment, Instance, sticks_ms
from orderlymq_broker.replication.snapshots import SnapshotReceiver, SnapshotSender
from orderlymq_broker.replication.transport.handshake import Identity as PeerIdentity
from orderlymq_broker.replication.transport.server import Transport
from orderlymq_broker.replication.writer import WriterEvents
from orderlymq_broker.server.address import LeaderAddress, endpoints_of
from orderlymq_broker.server.adminrequests import AdminRequests
from orderlymq_broker.server.assignment import Assigning
from orderlymq_broker.server.backups import BackupRequests
from orderlymq_broker.server.clientdeath.liveness import Liveness, is_of_another_machine
from orderlymq_broker.server.forwarder import ForwardedClient, Inbox, Outbox
from orderlymq_broker.server.leadership import Leadership
from orderlymq_broker.server.peers import Peers
from orderlymq_broker.server.podlabel import ApiServer, PodLabel
from orderlymq_broker.server.registration import Registration
from orderlymq_broker.server.restoredgroups import RestoredGroups
from orderlymq_broker.server.router import PULL_CODES, ClientConnection, Router, Service
from orderlymq_broker.server.settingsreload import SettingsReload
from orderlymq_broker.server.status import Reporter
from orderlymq_broker.server.transfer import LeadershipTransfer
from orderlymq_broker.settings import Address, BrokerSettings
from orderlymq_broker.store.kv import StoreError, StoreFailed
from orderlymq_broker.store.replica import Identity, Replica, open_replica
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.header.extensions import EXT_PROCESS
from orderlymq_raft import (
    InstallSnapshot,
    InstallSnapshotResponse,
    Membership,
    MembershipChange,
    RoleChange,
    SnapshotMeta,
)
from orderlymq_raft.types import HardState, Index, NodeId, Role, Term
from orderlymq_runtime.pages.server import HealthServer
from orderlymq_runtime.process.supervisor import Supervisor, finish_in_thread
from orderlymq_runtime.process.timers import Timers
from orderlymq_runtime.remoting.server import RemotingServer
from orderlymq_runtime.sockets.inputbudget import InputBudget

_log = logging.getLogger(__name__)

EXIT_STORE_FAILED: Final = 70
EXIT_BROKEN_INVARIANT: Final = 71

CORE_TICK_S: Final = 0.1
SLOW_TICK_S: Final = 1.0

# The prefix that a socket of both families puts before an IPv4 address.
IPV4_MAPPED: Final = "::ffff:"

# In these requests, clients identify themselves.
_IDENTIFYING: Final = frozenset({RequestCode.HEART_BEAT, RequestCode.LOCK_BATCH_MQ})
# From these, a client that has not identified itself yet can be guessed.
_SIGNS: Final = PULL_CODES | {RequestCode.ORDERLYMQ_FETCH_LANES}


class BrokerProcess:
    """One replica of one group, from start to end.

    It implements the interfaces that the loop, the clients and the admin requests need from the process.
    """

    def __init__(self, settings: BrokerSettings, file: Path | None = None) -> None:
        self.settings = settings
        self._file = None if file is None else SettingsReload(file)
        self.instance: Instance
        self._node_id = NodeId(settings.node_id)
        self._clock = GroupClock(SystemClock())
        self._label: PodLabel | None = None
        self._exit: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._timers = Timers()
        self._supervisor = Supervisor(self.failed)
        self._swapping = False
        self._swapping_since = 0.0
        self._swap: asyncio.Task[None] | None = None
        self._is_disk_hung = False
        self._staged: Path | None = None
        self._disk_is_full = False
        self._stack = contextlib.AsyncExitStack()
        self._peer_identity = PeerIdentity.of(settings)

    # -- life ------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Serve until the process is told to end (cancelled) or must end; return the exit code.

        Raises:
            StoreError: the data directory cannot be used.
            OSError: an address is in use.
        """
        async with self._stack:
            await self._start()
            try:
                return await self._exit
            except asyncio.CancelledError:
                self._timers.stop("core")
                await self._transfer.leave()
                raise

    async def _start(self) -> None:
        settings = self.settings
        stack = self._stack
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._supervisor.callback_failed)
        stack.callback(loop.set_exception_handler, None)
        self._replica = self._open_replica()
        stack.callback(self._close_replica)
        stack.push_async_callback(self._supervisor.close)
        self._make_network()
        self._peers = Peers(settings, self._clock, self._inbox, self._outbox)
        self._transport = Transport(
            self._peer_identity,
            self._peers,
            lambda: self.instance.loop.is_recovering,
            settings.between_peers(),
            self._supervisor,
            sticks_ms(settings.raft),
        )
        stack.push_async_callback(self._transport.close)
        self._transfer = LeadershipTransfer(
            settings, lambda: self.instance, self._leadership, self._transport, self._address
        )
        self._receiver = SnapshotReceiver(
            self._node_id, settings.data_dir, self._snapshot_received, self._supervisor
        )
        stack.push_async_callback(self._receiver.close)
        self._peers.connect(self._transport, self._receiver)
        self._open_instance()
        stack.push_async_callback(self._close_instance)
        stack.push_async_callback(self._server.close)
        if self._address is not None:
            stack.push_async_callback(self._address.close)
        self._liveness = Liveness(self._client_died, self._supervisor)
        for each in (self._liveness, self._admin_requests, self._backups, self._assigning):
            stack.push_async_callback(each.close)
        self._registration = Registration(
            self.instance.state,
            settings,
            RestoredGroups(lambda: self._replica.store, map(str, settings.name_servers)),
            lambda: self._clock.now().wall_ms,
            self._supervisor,
        )
        stack.push_async_callback(self._registration.close)
        await self._listen()
        self._registration.start()
        self.instance.loop.start()
        stack.callback(self._timers.close)
        self._beat()
        self._tick_core()
        self._tick_slowly()
        where = (self._peer_identity.address, settings.http, settings.data_dir)
        who = (settings.node_id, settings.group, settings.cluster)
        _log.info("node %d of group %s in cluster %s runs", *who)
        _log.info("raft is at %s, http at %s, data in %s", *where)

    def _open_replica(self) -> Replica:
        settings = self.settings
        identity = Identity(settings.cluster, settings.group, settings.node_id)
        return open_replica(settings.data_dir, identity, settings.storage)

    def _make_network(self) -> None:
        settings = self.settings
        self._outbox = Outbox(self._send_frame, self._clock.seconds)
        always_open = settings.bind == "always"
        self._router = Router(self._outbox, always_open=always_open)
        self._router.watch(_IDENTIFYING | _SIGNS, handled=self._handled, lost=self._client_lost)
        self._outbox.router = self._router
        self._inbox = Inbox(self._router, self._send_frame, self._is_slow)
        self._budget = InputBudget()
        self._server = RemotingServer(
            self._router,
            linger_reset=True,
            tls=settings.tls.server(),
            budget=self._budget,
            is_client=lambda each: self.instance.core.is_client(each.id),
        )
        self._router.turns = self._server.turns
        self._endpoints = endpoints_of(settings)
        own = LeaderAddress(self._server, self._endpoints, self._supervisor, self._unreachable)
        self._address = None if always_open else own
        self._leadership = Leadership(
            self._router,
            self._outbox,
            self._inbox,
            self._address,
            self._clock.seconds,
            asyncio.get_running_loop().call_later,
        )
        self._admin_requests = AdminRequests(self._router, self, self._supervisor)
        self._backups = BackupRequests(
            self._router,
            settings,
            lambda: self.instance if self.instance.loop.serving and not self._swapping else None,
            self._clock.seconds,
            self._supervisor,
        )
        self._assigning = Assigning(
            self._router,
            lambda: self.instance.state,
            settings.name_servers,
            tls=settings.tls.peer_contexts(),
            supervisor=self._supervisor,
        )
        self._reporter = Reporter(
            settings,
            self._server.traffic,
            self._supervisor,
            self._clock,
            unreachable=self._complaint,
            swapping_s=self._swapping_s,
            identified=lambda: self._liveness.identified,
            offered=lambda: self._receiver.offered,
            has_failed=self._has_failed,
            is_ending=self._exit.done,
        )
        self._metrics = BrokerMetrics(self._reporter.reading, self._server.traffic, self._budget)

    async def _listen(self) -> None:
        settings = self.settings
        await self._transport.listen(settings.raft_listen or self._peer_identity.address)
        if self._address is None:
            for host, port, outside in self._endpoints:
                await self._server.listen(host, port, outside=outside)
        http = HealthServer(
            settings.http.host,
            settings.http.port,
            ready=self._reporter.ready,
            alive=self._reporter.alive,
            status=self.status,
            brief=self._reporter.replica_status,
            registry=self._metrics.registry,
            guard=settings.pages(settings.http.host),
            budget=self._budget,
        )
        await http.start()
        self._stack.push_async_callback(http.close)
        if settings.pod is not None:
            self._label = PodLabel(
                settings.pod,
                ApiServer(),
                lambda: self.instance.node.status().term,
                self._supervisor,
            )
            self._stack.push_async_callback(self._label.close)
            # A pod whose process crashed while it led starts with the label.
            self._label.serving_ended()

    def _open_instance(self) -> None:
        """Create the objects that belong to the present store."""
        settings = self.settings
        # The new store's writer reports it again; that of the former store may have ended without a report.
        self._disk_is_full = False
        events = WriterEvents(full=self._disk_full, failed=self._store_failed)
        environment = Environment(self._peers, self._router, self, self._clock, events)
        self.instance = Instance(settings, self._replica.store, environment)
        self._router.service = self.service()
        self._metrics.watch(self.instance.figures)
        self._sender = SnapshotSender(
            self._peer_identity,
            self._replica.store,
            settings.data_dir,
            self._peers.snapshot_sent,
            chunk_size=settings.raft.snapshot_chunk_size,
            failed=self._store_failed,
            context_for=self._transport.context_for,
            supervisor=self._supervisor,
        )
        self._compaction = Compaction(
            self.instance,
            settings.raft.entries_kept,
            lambda: self._peers.index_needed,
            self._clock.seconds,
            self._supervisor,
        )
        self._reporter.watch(
            self.instance, self._router, self._transport, self._sender, self._peer_identity.address
        )
        self._peers.watch(self.instance, self._sender)

    async def _close_instance(self) -> None:
        if self._swap is not None:
            await asyncio.wait([self._swap])
        await self._sender.close()
        await self._compaction.close()
        await self._stop_writing(orderly=not self._has_failed())

    async def _stop_writing(self, *, orderly: bool) -> bool:
        """Close the instance; return False if its disk hangs, and so does the thread that uses the store."""
        self.instance.stop(orderly=orderly)
        ended = await finish_in_thread(self.instance.close)
        if not ended:
            self._is_disk_hung = True
            _log.error("a write to the disk does not end; the store is left as after a crash")
        return ended

    def _close_replica(self) -> None:
        if self._is_disk_hung:
            return
        try:
            self._replica.close()
        except StoreError as error:
            # Everything acknowledged is in the log; the next start reads it from there.
            _log.error("the store could not be closed: %s", error)

    def _has_failed(self) -> bool:
        """Return whether this process ends by itself; a request to end cancels the wait for the exit code instead."""
        return self._exit.done() and not self._exit.cancelled()

    def _end(self, code: int) -> None:
        if not self._exit.done():
            self._exit.set_result(code)

    # -- time ------------------------------------------------------------------------------------

    def _beat(self) -> None:
        self._timers.arm("raft", self.settings.raft.tick_ms / 1000, self._beat)
        if not self._swapping:
            self._supervisor.guard("raft tick", self.instance.loop.tick)

    def _tick_core(self) -> None:
        self._timers.arm("core", CORE_TICK_S, self._tick_core)
        self._supervisor.guard("client tick", self._leadership.tick)
        if self.instance.loop.serving and not self._swapping:
            core, loop, now = self.instance.core, self.instance.loop, self._clock.now()
            self._supervisor.guard("core tick", lambda: loop.decide(lambda: core.tick(now)))

    def _tick_slowly(self) -> None:
        self._timers.arm("slow", SLOW_TICK_S, self._tick_slowly)
        self._supervisor.guard("peers", self._peers.tick)
        if not self._swapping:
            self._supervisor.guard("report", self._report)
            self._supervisor.guard("upkeep", self._keep_up)

    def _report(self) -> None:
        ratio = self._disk_ratio()
        self._reporter.step(ratio)
        self.instance.core.set_environment(ratio, self._reporter.replica_status())

    def _disk_ratio(self) -> float:
        return 1.0 if self._disk_is_full else self._replica.store.disk_ratio()

    def _keep_up(self) -> None:
        context = self.instance.core.context
        self._backups.step(is_disk_full=is_nearly_full(context, self._disk_ratio()))
        if self._file is not None:
            settings = self._file.refresh(self.settings)
            if settings is not self.settings:
                self.settings = settings
                core = self.instance.core
                self.instance.loop.decide(lambda: core.follow(settings))
        try:
            self._compaction.step()
        except StoreError as error:
            self._store_failed(error)

    def service(self) -> Service:
        """Return the service that answers client requests while the present instance lasts."""
        return self.instance.loop

    # -- what the request router notices ---------------------------------------------------------

    def _handled(self, client: ClientConnection, command: RemotingCommand) -> None:
        if client.listener:
            return  # its address is that of a node port or a balancer, so no process can be found behind it
        forwarded = isinstance(client, ForwardedClient)
        if isinstance(client, ForwardedClient):
            replica = self._peers.book.get(client.node)
            if is_of_another_machine(client.peer[0], replica.host if replica else None):
                return
        knows, clients_of = self._liveness.knows, self.instance.core.clients_of
        fetches = command.code == RequestCode.ORDERLYMQ_FETCH_LANES and not knows(client.id)
        if command.code in _IDENTIFYING or (fetches and clients_of(client.id)):
            clients = clients_of(client.id)
            said = command.ext.get(EXT_PROCESS, "")
            self._liveness.seen(
                client.id, clients, client.peer, said, ours=client.local, forwarded=forwarded
            )
        elif command.code in PULL_CODES and not self._liveness.knows(client.id):
            # After a change of leader, a client pulls immediately but identifies itself up to 30 s later.
            candidates = partial(
                self._members_at, command.ext.get("consumerGroup", ""), client.peer[0]
            )
            self._liveness.guess(client.id, candidates, client.peer, forwarded=forwarded)

    def _members_at(self, group: str, host: str) -> list[str]:
        """Return the members of a group that were last heard of from *host*."""
        plain = host.removeprefix(IPV4_MAPPED)
        table = self.instance.state.members
        hosts = (plain, IPV4_MAPPED + plain)
        return [each.client_id for one in hosts for each in table.at_host(group, one)]

    def _client_lost(self, client: ClientConnection) -> None:
        self._liveness.lost(client.id)

    def _client_died(self, client_id: str, proof: str, ends: Ends = None) -> None:
        if self.instance.loop.serving:
            core = self.instance.core
            self.instance.loop.decide(lambda: core.client_dead(client_id, proof, ends))

    # -- what the loop says (Host) ---------------------------------------------------------------

    def role_changed(self, change: RoleChange) -> None:
        """Switch clients and status to the new role."""
        self._leadership.role_changed(change, leads=change.role is Role.LEADER)

    def serving_began(self) -> None:
        """Serve clients, and show name servers that the group is available."""
        self._leadership.serving_began()
        self._registration.announce()
        if self._label is not None:
            self._label.serving_began()

    def serving_ended(self) -> None:
        """Leave the clients to the next leader."""
        self._leadership.serving_ended()
        if self._label is not None:
            self._label.serving_ended()
        self._admin_requests.leadership_lost()

    def lease_changed(self) -> None:
        """Answer the requests that waited for certainty."""
        self._router.retry()

    def membership_changed(self, index: int, membership: Membership) -> None:
        """Keep links to the members."""
        voters, learners = sorted(membership.voters), sorted(membership.learners)
        _log.info("members from entry %d on: voters %s, learners %s", index, voters, learners)
        if self._node_id not in membership.members:
            _log.warning("this replica is no longer a member of its group; it can be stopped")
        self._peers.call()
        at = Index(index)
        self._admin_requests.membership_applied(at, self.instance.log.term(at))

    def topics_changed(self) -> None:
        """Publish the topics."""
        self._registration.announce()

    def snapshot_ready(self, meta: SnapshotMeta, hard_state: HardState) -> None:
        """Replace the present state by the received one."""
        self._swapping = self._peers.is_swapping = True
        self._swapping_since = self._clock.seconds()
        self._reporter.close()
        work = self._swap_store(meta, hard_state, self._swap)
        self._swap = self._supervisor.once("swap store", work, is_vital=True)

    def failed(self, error: Exception) -> None:
        """End the process; everything acknowledged is in the log."""
        # Errors of the operating system outside of the store (a rename, a sync) also count as disk errors.
        is_disk = isinstance(error, StoreError | OSError)
        self._end(EXIT_STORE_FAILED if is_disk else EXIT_BROKEN_INVARIANT)

    def _unreachable(self) -> None:
        """Hand the leadership to a replica that may bind the address, because clients cannot reach this one."""
        self._supervisor.once(
            "hand over", self._transfer.give_up("clients cannot reach this leader")
        )

    def _complaint(self) -> str:
        """Return why clients cannot reach this leader, or "" if they can or it does not lead."""
        way = self._address or self._label
        return way.complaint if way is not None else ""

    def _swapping_s(self) -> float | None:
        return self._clock.seconds() - self._swapping_since if self._swapping else None

    def _disk_full(self, is_full: bool) -> None:
        self._disk_is_full = is_full
        self.instance.loop.writes.set_full(is_full=is_full)
        if not self._swapping:
            # A successful write shows that there is some space, but not that there is enough.
            status = self._reporter.replica_status()
            self.instance.core.set_environment(self._disk_ratio(), status)

    def _store_failed(self, error: StoreError) -> None:
        _log.critical("the store failed, so this process ends: %s", error)
        self._end(EXIT_STORE_FAILED)

    def _send_frame(self, node: NodeId, pieces: list[bytes]) -> bool:
        return self._transport.send_frame(node, pieces)

    def _is_slow(self, node: NodeId) -> bool:
        return self._transport.is_slow(node)

    # -- snapshots -------------------------------------------------------------------------------

    def _snapshot_received(self, message: InstallSnapshot, directory: Path) -> bool:
        self._peers.messages_received([message])
        is_adopted = self.instance.node.is_restoring
        self._staged = directory if is_adopted else None
        return is_adopted

    async def _swap_store(
        self, meta: SnapshotMeta, hard_state: HardState, former: asyncio.Task[None] | None
    ) -> None:
        staged, self._staged = self._staged, None
        if staged is None:
            raise AssertionError("raft installs a snapshot that was never received")
        if former is not None:
            await asyncio.wait([former])
        for client in self._router.connections():
            client.close(orderly=False, kind="snapshot", reason="a snapshot replaces the state")
        await self._sender.close()
        await self._compaction.close()
        await self._backups.quiet()
        leader = self.instance.node.leader
        if not await self._stop_writing(orderly=False):
            raise StoreFailed(
                "a write to the disk does not end, so a snapshot cannot replace the store"
            )
        await finish_in_thread(self._replica.replace, staged, hard_state)
        self._open_instance()
        self._swapping = self._peers.is_swapping = False
        self._registration.state = self.instance.state
        self.instance.loop.start()
        elapsed_ms = 1000 * (self._clock.seconds() - self._swapping_since)
        _log.info("installed the state up to entry %d in %.0f ms", meta.index, elapsed_ms)
        if leader is not None:
            self._peers.send(
                [InstallSnapshotResponse(self._node_id, leader, hard_state.term, meta.index)]
            )
        # No code waits for this, except the next swap.
        await finish_in_thread(self._replica.remove_replaced)

    # -- admin requests --------------------------------------------------------------------------

    def status(self, asked: RemotingCommand | None = None) -> Mapping[str, object]:
        """Return what ``/status`` shows or, with *asked*, what the sender of that request may read."""
        return self._reporter.status(asked)

    async def move_leadership(self, target: NodeId | None) -> NodeId:
        """Transfer the leadership as `LeadershipTransfer.move` does, with the same errors; return the new leader."""
        return await self._transfer.move(target)

    def change_membership(
        self, change: MembershipChange, address: Address | None
    ) -> tuple[Index, Term]:
        """Propose a change of the members and return its entry; *address* is that of a new member."""
        entry = Index(self.instance.loop.change_membership(change)), self.instance.node.term
        if address is not None:
            self._peers.learn(change.node, address)
        self._peers.call()
        return entry
