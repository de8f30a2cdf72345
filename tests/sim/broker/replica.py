"""
One broker process of the simulated broker group: real cores, simulated environment.

``app.py`` uses sockets and tasks; this module uses events. The loop, the router for clients with its forwarding
(``router.py``), the upkeep of the log and all cores are the real ones.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import msgspec

from orderlymq_broker.core.effects import Caller, Now
from orderlymq_broker.processors.dispatch import BrokerCore
from orderlymq_broker.replication.groupclock import GroupClock
from orderlymq_broker.replication.interfaces import LoopLimits, LoopPorts, ReplicaParts
from orderlymq_broker.replication.loop import ReplicationLoop
from orderlymq_broker.replication.recovery import Recovery
from orderlymq_broker.replication.replicainstance import (
    Instance,
    bootstrap,
    promise_to_stick,
    raft_config,
    sticks_ms,
)
from orderlymq_broker.replication.writer import WriterEvents
from orderlymq_broker.server.router import ClientConnection, Router
from orderlymq_broker.settings import Address, BrokerSettings, RaftSettings, TimerSettings
from orderlymq_broker.state.broker import BrokerState
from orderlymq_broker.store import layout
from orderlymq_broker.store.kv import Family, StoreError
from orderlymq_broker.store.raftlog import RaftLogStore
from orderlymq_broker.store.snapshot import adopt_state
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_raft import (
    InstallSnapshot,
    InstallSnapshotResponse,
    Membership,
    Message,
    Node,
    Role,
    RoleChange,
    SnapshotMeta,
)
from orderlymq_raft.types import HardState, Index, NodeId, Term
from tests.sim.broker.disk import DiskState, SimulatedStore, StoreRotten, Writer
from tests.sim.broker.observed import ObservedLog, ObservedMachine, UnsweptCompaction
from tests.sim.broker.registrar import Registrar
from tests.sim.broker.router import RequestRouter
from tests.sim.clients.client import ServerProcess
from tests.sim.network import FrameLink
from tests.sim.plan import ELECTIONS_MS
from tests.sim.timeline import MS, SECOND

if TYPE_CHECKING:
    from tests.sim.world import World

GROUP: Final = "broker-a"
TICK_MS: Final = 50
CORE_TICK_US: Final = 100 * MS
# As in ``app.py``: how long a planned move may take, in election time-outs.
MOVE_TIMEOUT_FACTOR: Final = 5
LOCK_LEASE_MS: Final = 6_000
# These checks took a tenth of a run when they came four times as often.
CHECK_EVERY_TURNS: Final = 32

TIMERS: Final = TimerSettings(
    lock_lease_ms=LOCK_LEASE_MS,
    client_expiry_ms=4_000,
    member_return_grace_ms=3_000,
    delay_levels="1s 2s",
    transaction_timeout_ms=1_000,
    transaction_check_interval_ms=1_000,
    transaction_scan_ms=200,
    retention_scan_ms=400,
)


class _MachineClock:
    """The clocks of the machine that a replica runs on."""

    def __init__(self, process: ServerProcess) -> None:
        self.now = partial(ServerProcess.now, process)
        self.seconds = process.seconds


class Replica(ServerProcess):
    """A broker process. It is also the Outbound, Host and Service of its loop."""

    loop: ReplicationLoop
    router: RequestRouter
    core: BrokerCore
    state: BrokerState
    node: Node
    log: RaftLogStore
    # How often a tail of the log was truncated, in this life.
    cuts: int

    def __init__(self, world: "World", node: int, *, joins: bool = False) -> None:
        super().__init__(world.timeline, f"broker-{node}")
        self.world = world
        self.id = NodeId(node)
        self.settings = BrokerSettings(
            cluster="C",
            group=GROUP,
            node_id=node,
            peers={each: Address("10.0.0.9", 7000 + each) for each in {*world.founders, node}},
            join=joins,
            address=Address("10.0.0.9", 10911),
            http=Address("10.0.0.9", 8000),
            data_dir=Path("unused"),
            bind="always",
            raft=RaftSettings(
                tick_ms=TICK_MS,
                heartbeat_ms=100,
                election_ms=ELECTIONS_MS[0],
                entries_kept=world.plan.entries_kept,
                append_size_max=world.plan.append_size,
            ),
            timers=world.plan.timers(TIMERS),
            storage=world.plan.storage(),
            access=world.plan.access_settings(),
        )
        self.store = SimulatedStore()
        self.disk = DiskState()
        # The lives of the peers whose greeting was read, and of the peers that answered ours.
        self.peer_lives: dict[NodeId, int] = {}
        self.called_lives: dict[NodeId, int] = {}
        self.wiped = False
        self._swapping = False
        self._staged: SimulatedStore | None = None
        self._turns = 0
        self._links: dict[NodeId, FrameLink] = {}
        self.registrar = Registrar(world, self)
        self._clock = GroupClock(_MachineClock(self))
        # How long each peer sticks to a leader, as reported to this life.
        self._stickiness: dict[NodeId, int] = {}

    # -- life

    def start(self) -> None:
        """Start the process on the content of its disk."""
        self.begin()
        self.timeline.note(f"{self.name} starts")
        if self.world.plan.mixed_elections:
            self._draw_election_timeout()
        self.peer_lives.clear()
        self.called_lives.clear()
        self._stickiness.clear()
        self._clock = GroupClock(_MachineClock(self))
        self.router = RequestRouter(self, self.world.address)
        self._swapping = False
        try:
            self._open()
        except StoreError as error:
            self.failed(error)
            return
        random = self.timeline.random
        self.after(random.randrange(TICK_MS * MS), "tick", self._tick)
        self.after(random.randrange(CORE_TICK_US), "core tick", self._tick_core)
        self.after(SECOND, "upkeep", self._tick_slowly)
        self.registrar.start()

    def _draw_election_timeout(self) -> None:
        raft = self.settings.raft
        election_ms = self.timeline.random.choice(ELECTIONS_MS)
        if election_ms != raft.election_ms:
            self.world.coverage["election time-out changed"] += 1
        raft = msgspec.structs.replace(raft, election_ms=election_ms)
        self.settings = msgspec.structs.replace(self.settings, raft=raft)

    @property
    def clients(self) -> Router:
        """Return the router of this life."""
        return self.router.clients

    @property
    def move_timeout_s(self) -> float:
        """Return how long a planned move of leadership may take."""
        return MOVE_TIMEOUT_FACTOR * self.settings.raft.election_ms / 1000

    def _open(self) -> None:
        store, settings = self.store, self.settings
        self.log = RaftLogStore(store, self.world.plan.tail_size)
        self.cuts = 0
        bootstrap(settings, store, self.log)
        self.state = BrokerState(store)
        machine = ObservedMachine(self.state, self)
        self.core = BrokerCore(settings, self.state, store)
        random = self.timeline.random
        promised_ms = promise_to_stick(settings.raft, store, self._call_later)
        self.node = Node(
            raft_config(settings.node_id, settings.raft, promised_ms),
            self.log,
            applied=Index(self.state.applied_index),
            random_below=random.randrange,
        )
        events = WriterEvents(full=self._disk_full, failed=self.failed)
        writer = Writer(self, store, self.disk, events)
        parts = ReplicaParts(self.node, ObservedLog(self.log, self), store, machine, self.core)
        ports = LoopPorts(writer, self, self.clients, self, self, self._call_soon, self._call_later)
        limits = LoopLimits(tick_s=TICK_MS / 1000, sync_writes=True)
        self.loop = ReplicationLoop(parts, ports, limits)
        self._compaction = UnsweptCompaction(
            cast("Instance", self), settings.raft.entries_kept, lambda: None, self.seconds
        )
        membership = self.node.status().membership
        self._clock.keep(membership.members - {self.id}, membership.voters)
        self.world.laws.opened(self)
        for peer, ms in self._stickiness.items():
            self.loop.note_stickiness(peer, ms)
        self.loop.start()

    def crash(self, *, wipe: bool = False, silent: bool = False) -> None:
        """End immediately; the disk keeps what was synced and a prefix of what was not.

        With *silent* the whole machine dies, so its connections are not reset.
        """
        if not self.alive:
            return
        self.timeline.note(f"{self.name} crashes{', disk wiped' if wipe else ''}")
        self.loop.stop()
        at_risk = self.store.at_risk
        if at_risk:
            self.world.coverage["unsynced ticket at risk in a crash"] += 1
        kept = self.timeline.random.randint(0, at_risk)
        if kept < at_risk and self.timeline.random.random() < 0.5:
            # Half of the write reached the disk; its checksum does not match, and it counts as not written.
            self.world.coverage["last write torn"] += 1
        self.store = SimulatedStore() if wipe else self.store.crash(kept)
        self.wiped = self.wiped or wipe
        if wipe:
            self.world.laws.promises.forgotten(self)
        self.registrar.stop(silent=silent)
        for link in self._links.values():
            link.forget()
        if self.world.address is not None and self.world.address.holder is self:
            self.world.address.holder = None
        self.end()
        self.world.process_ended(self, silent=silent)

    @property
    def is_recovering(self) -> bool:
        """Return whether this replica lacks data that it once had, or will lack it when it is rebuilt."""
        if self.store.rotten:
            return True
        if not self.alive:
            # A replica that ended before the raft group began never had any data.
            return self.wiped or Recovery(self.store).active
        return self.loop.is_recovering

    # -- time

    def now(self) -> Now:
        """Return both clocks; the time of day is corrected by the peers' clocks."""
        return self._clock.now()

    def _show_clock(self) -> None:
        network, shown_ms = self.world.network, self._clock.own_ms()
        for target in self.world.replicas.values():
            if target is not self and self.called_lives.get(target.id) == target.life:
                show = partial(target.clock_arrives, self.id, shown_ms)
                network.cast(self.name, target, "clock", show)

    def clock_arrives(self, sender: NodeId, wall_ms: int) -> None:
        """Compare a peer's time of day with this machine's."""
        self._clock.shown(sender, wall_ms)

    def stickiness_arrives(self, sender: NodeId, ms: int) -> None:
        """Note how long a peer sticks to a leader, so that a lease can rely on it that long."""
        self._stickiness[sender] = ms
        self.loop.note_stickiness(sender, ms)

    def _tick(self) -> None:
        self.after_waking(TICK_MS * MS + 40, "tick", self._tick)
        if not self._swapping:
            self.loop.tick()

    def _tick_core(self) -> None:
        self.after(CORE_TICK_US, "core tick", self._tick_core)
        self.router.tick()
        if self.loop.serving and not self._swapping:
            self.loop.decide(lambda: self.core.tick(self.now()))

    def _tick_slowly(self) -> None:
        self.after(SECOND, "upkeep", self._tick_slowly)
        if self.world.plan.wrong_clocks:
            self._show_clock()
        if not self._swapping:
            before = self.log.first_index()
            try:
                self._compaction.step()
            except StoreError as error:
                self.failed(error)
                return
            if self.log.first_index() > before:
                self.world.coverage["log compacted"] += 1

    def _call_soon(self, call: Callable[[], None]) -> None:
        def turn() -> None:
            call()
            self._turns += 1
            if self._turns % CHECK_EVERY_TURNS == 0:
                self.world.laws.check_replica(self)

        self.after(0, "turn", turn)

    def _call_later(self, seconds: float, call: Callable[[], None]) -> None:
        self.after(int(seconds * SECOND), "timer", call)

    # -- the loop's Outbound

    def send(self, messages: Sequence[Message]) -> None:
        """Send raft messages."""
        world = self.world
        forgotten = self.loop.is_recovering
        for message in messages:
            world.laws.promises.said(self, message)
            target = world.replicas.get(message.target)
            if target is None:
                continue
            if not target.alive:
                self.loop.unreachable(message.target)
            elif self.called_lives.get(target.id) != target.life:
                self.loop.unreachable(message.target)
                self.after(0, "call", partial(self._call, target, target.life))
            else:
                if world.network.loses is not None and world.network.loses(message):
                    continue
                call = partial(target.raft_arrives, self.id, self.life, forgotten, message)
                world.network.cast(self.name, target, type(message).__name__, call)

    def _call(self, target: "Replica", life: int) -> None:
        """Connect to a peer; its answer shows whether it has started again."""
        is_cut = self.world.network.are_apart(self.name, target.name)
        if is_cut or not target.alive or target.life != life:
            return
        if self.called_lives.get(target.id) == life or self._swapping:
            return
        self.called_lives[target.id] = life
        target.clock_arrives(self.id, self._clock.own_ms())
        target.stickiness_arrives(self.id, sticks_ms(self.settings.raft))
        if target.loop.is_recovering:
            self._forget(target.id)

    def send_frame(self, node: NodeId, pieces: list[bytes]) -> bool:
        """Write a frame about a forwarded client; return False if the link to that node is down."""
        target = self.world.replicas.get(node)
        if target is None:
            return False
        link = self._links.get(node)
        if link is None:
            link = self._links[node] = FrameLink(self.world.network, self, target)
        return link.send(b"".join(pieces))

    def send_snapshot(self, message: InstallSnapshot) -> None:
        """Deliver a copy of the state to its target, some time later."""
        target = self.world.replicas[message.target]
        copy = self.store.checkpoint()
        delay = self.timeline.random.randrange(30 * MS, 500 * MS)

        def arrive() -> None:
            ok = target.alive and not self.world.network.is_cut(self.name, target.name)
            ok = ok and not target.paused
            if ok:
                try:
                    copy.check_all()
                except StoreRotten as error:
                    # The receiver refuses it, and the sender finds the damage in its own copy.
                    self.world.coverage["rotten snapshot refused"] += 1
                    self.failed(error)
                    return
            ok = ok and target.take_snapshot(message, copy)
            self.loop.snapshot_sent(message.target, ok=ok)

        self.after(delay, "snapshot sent", arrive)

    # -- what peers send

    def raft_arrives(self, sender: NodeId, life: int, forgotten: bool, message: Message) -> None:
        """Handle a message; the first one of another life of the sender is its greeting."""
        known = self.peer_lives.get(sender, 0)
        if life < known or self._swapping:
            return
        if life > known:
            self.peer_lives[sender] = life
            self.link_lost_from(sender)
            if forgotten:
                self._forget(sender)
        self.loop.receive([message])

    def _forget(self, peer: NodeId) -> None:
        terms = [each.node.term for each in self.world.replicas.values() if each.loop.serving]
        if self.node.is_leader and self.node.term < max(terms, default=0):
            self.world.coverage["deposed leader met who had forgotten it"] += 1
        self.loop.report_wiped(peer)

    def frame_arrives(self, sender: NodeId, data: bytes) -> None:
        """Handle a frame about a forwarded client."""
        leads = not self._swapping and self.node.is_leader
        self.router.frame_received(sender, data, leads=leads)

    def link_lost_to(self, node: NodeId) -> None:
        """Note that frames to *node* do not arrive any more."""
        if not self._swapping:
            self.loop.unreachable(node)
        self.router.outbox.leader_lost(node)

    def link_lost_from(self, node: NodeId) -> None:
        """Note that the connection from *node* is gone, or that another has begun."""
        self.router.peer_lost(node)
        if not self._swapping:
            self.loop.peer_lost(node)

    def peer_died(self, node: NodeId) -> None:
        """Notify this replica, as its kernel does, that a peer's process has ended while its machine lives."""
        link = self._links.get(node)
        if link is not None:
            link.reset()
        self.after(MS, "reset", partial(self.link_lost_from, node))

    def take_snapshot(self, message: InstallSnapshot, copy: SimulatedStore) -> bool:
        """Accept a complete state that was received next to the present one."""
        if self._swapping:
            return False
        applied = layout.decode_applied(copy.get(Family.META, layout.META_APPLIED))
        if applied.index == 0:
            return False
        membership = RaftLogStore(copy, 0).initial_state()[1]
        self._staged = copy
        meta = SnapshotMeta(Index(applied.index), Term(applied.term), membership)
        self.loop.receive([InstallSnapshot(message.sender, self.id, message.term, meta)])
        return True

    # -- the loop's Host

    def role_changed(self, change: RoleChange) -> None:
        """Adapt the handling of clients to the new role."""
        self.world.laws.elections.role_changed(self, change)
        self.router.leadership.role_changed(change, leads=change.role is Role.LEADER)

    def serving_began(self) -> None:
        """Serve clients."""
        self.timeline.note(f"{self.name} serves term {self.node.term}")
        self.world.laws.serving_began(self)
        self.router.leadership.serving_began()
        self.registrar.announce()
        self.world.leader_began(self)

    def serving_ended(self) -> None:
        """Leave the clients to the next leader."""
        self.timeline.note(f"{self.name} serves no more")
        self.world.coverage["leader stepped down alive"] += 1
        self.router.leadership.serving_ended()

    def move_leadership(self, target: NodeId) -> None:
        """Hand over leadership as planned; requests wait meanwhile."""
        loop = self.loop
        self.router.move(
            settled=lambda: not loop.collected and not loop.pending,
            transfer=lambda: loop.transfer(target),
        )

    def lease_changed(self) -> None:
        """Answer requests that waited for a valid lease."""
        self.world.coverage["lease lost or won"] += 1
        self.clients.retry()

    def membership_changed(self, index: int, membership: Membership) -> None:
        """Report the members of the raft group."""
        self._clock.keep(membership.members - {self.id}, membership.voters)
        self.world.membership_applied(index, set(membership.members))

    def topics_changed(self) -> None:
        """Publish the topics."""
        self.registrar.announce()

    def snapshot_ready(self, meta: SnapshotMeta, hard_state: HardState) -> None:
        """Replace the present state by the received one."""
        staged, self._staged = self._staged, None
        assert staged is not None, "raft installs a snapshot that was never received"
        self._swapping = True
        self.world.coverage["snapshot installed"] += 1
        self.timeline.note(f"{self.name} installs a snapshot up to {meta.index}")
        self.router.close_all()
        leader = self.node.leader
        keys = sorted(layout.META_OF_REPLICA)
        values = self.store.multi_get(Family.META, keys)
        own = {key: value for key, value in zip(keys, values, strict=True) if value}

        def swap() -> None:
            adopt_state(staged, hard_state, own, where="a simulated snapshot")
            self.store = staged
            self._open()
            self._swapping = False
            if leader is not None:
                done = InstallSnapshotResponse(self.id, leader, hard_state.term, meta.index)
                self.send([done])

        self.after(self.timeline.random.randrange(5 * MS, 80 * MS), "swap store", swap)

    def failed(self, error: Exception) -> None:
        """End the process; only an error of the disk may cause this."""
        self.timeline.note(f"{self.name} fails: {error}")
        if isinstance(error, StoreError):
            self.world.coverage["process ended by its disk"] += 1
            rotten = isinstance(error, StoreRotten)
            if rotten:
                # A person does this on the doctor's advice: an empty disk, then the peers' state.
                self.world.coverage["rotten byte noticed"] += 1
            elif self.store.unreadable:
                self.world.coverage["failed read ended the process"] += 1
            self.crash(wipe=rotten)
            self.world.restart_later(self)
        else:
            self.world.laws.broken("crash", f"{self.name}: {type(error).__name__}: {error}", error)

    def _disk_full(self, is_full: bool) -> None:
        self.world.coverage["disk full"] += 1
        self.loop.writes.set_full(is_full=is_full)
        self.core.set_environment(1.0 if is_full else 0.0, {})

    # -- the router's Service

    def handle(self, request: RemotingCommand, caller: Caller) -> None:
        """Let the core handle a request."""
        try:
            self.loop.handle(request, caller)
        except Exception as error:
            text = f"{self.name}, request {request.code}: {type(error).__name__}: {error}"
            self.world.laws.broken("crash", text, error)

    def refusal(self, request: RemotingCommand, caller: Caller) -> RemotingCommand | None:
        """Allow every request: access control is off."""
        return None

    def may_answer(self) -> bool:
        """Return whether an answer given now is certainly correct."""
        if self._swapping or not self.loop.may_answer():
            return False
        self.world.laws.elections.answered_by_lease(self)
        return True

    def request_confirmation(self) -> int:
        """Ask the raft group to confirm that this replica may answer what waits."""
        return self.loop.request_confirmation()

    def is_confirmed(self, number: int) -> bool:
        """Return whether the raft group has confirmed this replica since."""
        if self._swapping or not self.loop.is_confirmed(number):
            return False
        self.world.coverage["answered by confirmation"] += 1
        return True

    def connection_closed(self, connection: int) -> None:
        """Make the core forget a connection."""
        self.loop.decide(lambda: self.core.connection_closed(connection))

    # -- the server's side of a client's link

    def client_made(self, client: ClientConnection) -> None:
        """Register a client's connection."""
        self.clients.connection_made(client)

    def client_received(self, client: ClientConnection, command: RemotingCommand) -> None:
        """Handle a request."""
        self.clients.received(client, command)

    def client_lost(self, client: ClientConnection) -> None:
        """Forget a client's connection."""
        self.clients.connection_lost(client)
