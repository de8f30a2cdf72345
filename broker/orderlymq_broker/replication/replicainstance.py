"""
One opened replica: store, log, node, state machine, core, writer and loop together.

An instance is made when the process starts, and again when a snapshot has replaced the store; it shares
nothing with the former one. The rule: the data of the very first start (membership, recovery mode) is durable
before any other process can hear of this replica. So is a longer promise to stick to a leader, at any start.
"""

import asyncio
import logging
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from orderlymq_broker.processors.dispatch import BrokerCore
from orderlymq_broker.replication.interfaces import (
    ClientPort,
    Clock,
    Host,
    LoopFigures,
    LoopLimits,
    LoopPorts,
    Outbound,
    ReplicaParts,
)
from orderlymq_broker.replication.loop import ReplicationLoop
from orderlymq_broker.replication.recovery import Recovery
from orderlymq_broker.replication.writer import WriterEvents, WriterThread
from orderlymq_broker.settings import BrokerSettings, RaftSettings
from orderlymq_broker.state.broker import BrokerState
from orderlymq_broker.state.records import Append, decode_records
from orderlymq_broker.state.statemachine import StateMachine
from orderlymq_broker.state.topics.queues import Queue
from orderlymq_broker.store.consumequeue import read_entries, read_messages
from orderlymq_broker.store.entry import split_entry
from orderlymq_broker.store.kv import Batch, Family, KeyValueStore, Reader, StoreFailed
from orderlymq_broker.store.layout import META_STICKINESS, decode_u64, encode_u64, message_key
from orderlymq_broker.store.raftlog import RaftLogStore
from orderlymq_broker.store.rocks import RocksStore
from orderlymq_raft import Config, Membership, Node
from orderlymq_raft.log import Compacted
from orderlymq_raft.types import EntryKind, HardState, Index, NodeId

_log = logging.getLogger(__name__)

# The writer's share of the time that a process has for its shutdown; leadership and clients were handled before.
WRITER_CLOSE_SHARE: Final = 0.4
# The newest message may be followed by commits and locks. Reading these takes some milliseconds.
ENTRIES_LOOKED_AT_MAX: Final = 512
# A disk that takes longer to write staged data hangs.
WRITE_MAX_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Environment:
    """The parts that outlive an instance."""

    outbound: Outbound
    clients: ClientPort
    host: Host
    clock: Clock
    writer_events: WriterEvents


class Instance:
    """A replica that can run.

    Life cycle: made, `loop.start`, ..., `stop`, `close`. After `close` the store may be closed or replaced.
    """

    def __init__(
        self, settings: BrokerSettings, store: RocksStore, environment: Environment
    ) -> None:
        self.store = store
        self._writer_close_s = WRITER_CLOSE_SHARE * settings.shutdown_max_ms / 1000
        self.log = RaftLogStore(store, settings.storage.tail_cache_size)
        bootstrap(settings, store, self.log)
        self.state = BrokerState(store)
        refuse_lost_end(self.log, self.state, store)
        self.machine = StateMachine(self.state)
        self.core = BrokerCore(settings, self.state, store)
        loop = asyncio.get_running_loop()
        self._timers: list[asyncio.TimerHandle] = []

        def call_later(seconds: float, call: Callable[[], None]) -> None:
            self._timers.append(loop.call_later(seconds, call))

        promised_ms = promise_to_stick(settings.raft, store, call_later)
        self.node = Node(
            raft_config(settings.node_id, settings.raft, promised_ms),
            self.log,
            applied=Index(self.state.applied_index),
            # Used only for election time-outs, so it need not be secret.
            random_below=random.randrange,
        )
        self.writer = WriterThread(store, loop.call_soon_threadsafe, environment.writer_events)
        parts = ReplicaParts(self.node, self.log, store, self.machine, self.core)
        ports = LoopPorts(
            self.writer,
            environment.outbound,
            environment.clients,
            environment.host,
            environment.clock,
            loop.call_soon,
            loop.call_later,
        )
        limits = LoopLimits(
            tick_s=settings.raft.tick_ms / 1000,
            sync_writes=settings.storage.flush == "SYNC_FLUSH",
        )
        self.loop = ReplicationLoop(parts, ports, limits)

    @property
    def figures(self) -> LoopFigures:
        """Return the counters of the loop."""
        return self.loop.figures

    async def write_staged(self) -> None:
        """Write everything applied so far into the store, so that a copy of its files includes it.

        Raises:
            TimeoutError: the disk does not complete a write.
        """
        written = asyncio.get_running_loop().create_future()
        ticket = self.store.prepare(None)

        def done(_: float) -> None:
            self.store.settle(ticket)
            if not written.done():
                written.set_result(None)

        self.writer.submit(ticket, sync=True, done=done)
        async with asyncio.timeout(WRITE_MAX_S):
            await written

    def stop(self, *, orderly: bool) -> None:
        """Apply nothing more; with *orderly*, submit all staged data to the writer.

        Call it on the event loop, like everything that touches the staged layer. If another thread froze that
        layer in the middle of an entry, half of the entry would be written, without the index that belongs to
        it.
        """
        self.loop.stop()
        for timer in self._timers:
            timer.cancel()
        if orderly:
            ticket = self.store.prepare(None)
            self.writer.submit(ticket, sync=True, done=lambda _: None)

    def close(self) -> bool:
        """End the writer after `stop`; call this in a thread.

        Blocks until the submitted writes end, for some seconds at most. Returns whether they have ended. If
        not, the disk hangs, and the store must be neither closed nor replaced.
        """
        return self.writer.close(self._writer_close_s)


def raft_config(node_id: int, settings: RaftSettings, promised_ms: int = 0) -> Config:
    """Return the settings of the raft core, with times in ticks; *promised_ms* comes from `promise_to_stick`."""
    return Config(
        id=NodeId(node_id),
        election_ticks=_election_ticks(settings),
        heartbeat_ticks=_heartbeat_ticks(settings),
        lease_reads=True,
        promised_ticks=math.ceil(promised_ms / settings.tick_ms),
        entries_per_append_bytes_max=settings.append_size_max,
        inflight_appends_max=settings.inflight_appends_max,
        inflight_bytes_max=settings.inflight_size_max,
        uncommitted_bytes_max=settings.uncommitted_size_max,
    )


def _heartbeat_ticks(settings: RaftSettings) -> int:
    return max(1, settings.heartbeat_ms // settings.tick_ms)


def _election_ticks(settings: RaftSettings) -> int:
    return max(2 * _heartbeat_ticks(settings) + 1, settings.election_ms // settings.tick_ms)


def sticks_ms(settings: RaftSettings) -> int:
    """Return for how long at least a replica sticks to a leader, which it may hear at the end of a tick."""
    return (_election_ticks(settings) - 1) * settings.tick_ms


def promise_to_stick(
    settings: RaftSettings,
    store: KeyValueStore,
    call_later: Callable[[float, Callable[[], None]], object],
) -> int:
    """Return for how many ms a starting replica sticks to its leader, because its former process may have promised it.

    A longer promise is durable before it is given; a shorter one is stored when the former one has expired.
    """
    own_ms = _election_ticks(settings) * settings.tick_ms
    batch = Batch()
    batch.put(Family.META, META_STICKINESS, encode_u64(own_ms))
    value = store.get(Family.META, META_STICKINESS)
    former_ms = 0 if value is None else decode_u64(value)
    if former_ms < own_ms:
        store.write(batch, sync=True)
    elif former_ms > own_ms:
        call_later(former_ms / 1000, lambda: store.stage(batch))

    return max(former_ms, own_ms)


def bootstrap(settings: BrokerSettings, store: KeyValueStore, log: RaftLogStore) -> None:
    """Write the initial state of a replica, once."""
    hard_state, membership = log.initial_state()
    if log.last_index() or membership.members or hard_state != HardState():
        return
    # This replica may have been a voter that lost its disk; that cannot be detected here.
    batch = Batch()
    Recovery.begin(batch)
    if settings.join:
        # It learns the membership from the log once it is a member.
        _log.info("this replica waits to be added to the group")
    else:
        voters = frozenset(NodeId(node) for node in settings.peers)
        log.set_membership(batch, Membership(voters))
        _log.info("this replica starts with an empty log, voters %s", sorted(voters))
    store.write(batch, sync=True)


def refuse_lost_end(log: RaftLogStore, state: BrokerState, reader: Reader) -> None:
    """Check that the newest applied message of the log is in its queue.

    A store that has lost a file may open without it. A queue would then end too early and give the same
    offsets again.

    Raises:
        StoreFailed: the message is not there.
    """
    for index in range(state.applied_index, state.applied_index - ENTRIES_LOOKED_AT_MAX, -1):
        if index < log.first_index():
            return
        try:
            (entry,) = log.entries(Index(index), Index(index + 1), 0)
        except Compacted:  # retention has dropped its messages
            return
        if entry.kind is not EntryKind.NORMAL:
            continue
        for record in reversed(list(decode_records(split_entry(entry.data).meta))):
            topic = state.topics.by_id.get(record.topic_id) if type(record) is Append else None
            if type(record) is Append and topic is not None:
                _refuse_lost(record, topic.queues.get(record.queue_id), reader)
                return


def _refuse_lost(record: Append, queue: Queue | None, reader: Reader) -> None:
    end = 0 if queue is None else queue.next_offset
    if queue is None or end <= record.queue_offset:
        raise StoreFailed(
            f"queue {record.queue_id} of topic id {record.topic_id} ends at {end}, but offset "
            f"{record.queue_offset} was assigned: files of the store are lost; run 'orderlymq "
            "doctor' on the directory and restore this replica from its peers"
        )
    if record.queue_offset >= queue.min_offset:
        read_entries(reader, record.topic_id, record.queue_id, record.queue_offset, 1)
        read_messages(reader, [message_key(record.physical)])
