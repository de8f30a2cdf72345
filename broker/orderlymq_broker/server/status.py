"""
How a broker process reports its state: ``/status``, ``/readyz`` and the readings for ``/metrics``.

The rule: reporting only reads and changes nothing. Rates and the figures of the store are taken once a
second, so that frequent scrapes cannot burden the store.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from orderlymq_broker.metrics import Reading
from orderlymq_broker.processors.observe.status import Series, quota_series
from orderlymq_broker.replication.groupclock import GroupClock
from orderlymq_broker.replication.replicainstance import Instance
from orderlymq_broker.replication.snapshots import FailedSnapshot, SentSnapshot, SnapshotSender
from orderlymq_broker.replication.transport.server import Transport
from orderlymq_broker.server.health import Signs, alive, hindrance
from orderlymq_broker.server.orderseries import backlog_series, order_series
from orderlymq_broker.server.router import Router
from orderlymq_broker.settings import Address, BrokerSettings
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_raft import ProgressState, Status
from orderlymq_raft.types import Index, Role
from orderlymq_runtime.process.supervisor import Supervisor
from orderlymq_runtime.remoting.traffic import Traffic

_log = logging.getLogger(__name__)

# The averaging time of the CPU use: a leader that works hard for a moment is not a busy leader.
_AVERAGED_S: Final = 60.0

# Reading the sizes of all files of a store takes a thread 50 ms if there are ten thousand.
_SIZE_EVERY_S: Final = 5.0

_LEVELS: Final = {"info": logging.INFO, "warning": logging.WARNING}

# Figures that the core reports about the state, by their names there.
_GROUP_GAUGES: Final = {
    "topics": ("topics", "Topics, including system topics"),
    "groups": ("consumer_groups", "Consumer groups"),
    "members": ("members", "Members of consumer groups"),
    "locksHeld": ("locks_held", "Queue locks that have a holder"),
    "heldPulls": ("held_pulls", "Pulls that wait for a message (long polling)"),
    "uncommittedBytes": (
        "uncommitted_bytes",
        "Bytes of messages that are proposed and not yet applied",
    ),
    "duplicateWindow": (
        "duplicate_window",
        "Sends to ordered topics of which a repetition would be recognised",
    ),
}

# Figures that the core reports about transactions, by their names there.
_TRANSACTION_GAUGES: Final = {
    "open": ("transactions_open", "Half messages that are neither committed nor rolled back"),
    "givenUp": (
        "transactions_given_up",
        "Half messages that the broker abandoned, after the last check or at the maximum age",
    ),
}

# Figures that the store reports, by their names there.
_STORE_COUNTERS: Final = {
    "commits": "Batches written to the store since it was opened",
    "write_stalls": "Writes that RocksDB delayed, since the store was opened",
}
_STORE_GAUGES: Final = {
    "memtable_bytes": "Bytes in memtables",
    "table_bytes": "Bytes in SST files",
    "table_reader_bytes": "Bytes of memory for indexes and filters of SST files",
    "compaction_pending_bytes": "Bytes that compactions still have to rewrite",
    "block_cache_bytes": "Bytes in the block cache",
}


class Reporter:
    """Has references to the parts whose figures are shown; call `watch` for each new instance."""

    def __init__(  # noqa: PLR0913 - each of them shows other figures
        self,
        settings: BrokerSettings,
        traffic: Traffic,
        supervisor: Supervisor,
        clock: GroupClock,
        *,
        unreachable: Callable[[], str],
        swapping_s: Callable[[], float | None],
        identified: Callable[[], int],
        offered: Callable[[], Index],
        has_failed: Callable[[], bool],
        is_ending: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._supervisor = supervisor
        self._unreachable = unreachable
        self._clock = clock
        self._swapping_s = swapping_s
        self._identified = identified
        self._offered = offered
        self._has_failed = has_failed
        self._is_ending = is_ending
        self._traffic = traffic
        self._began = time.monotonic()
        self._disk_ratio = 0.0
        self._disk_bytes = 0
        self._store_figures: dict[str, float] = {}
        self._size_bytes = 0
        self._sized_at = -_SIZE_EVERY_S
        self._sizing: asyncio.Task[None] | None = None
        self._is_closed = True
        self._counts: dict[str, float] = {}
        self._counted_at = self._began
        self._cpu = 0.0
        self._cpu_s = time.process_time()
        self._rates: dict[str, float] = {}
        self._instance: Instance
        self._router: Router
        self._transport: Transport
        self._sender: SnapshotSender
        self._raft_address: Address

    def watch(
        self,
        instance: Instance,
        router: Router,
        transport: Transport,
        sender: SnapshotSender,
        raft_address: Address,
    ) -> None:
        """Report about *instance* from now on."""
        self._is_closed = False
        self._instance = instance
        self._router = router
        self._transport = transport
        self._sender = sender
        self._raft_address = raft_address

    def close(self) -> None:
        """Do not use the store until the next `watch`, because another one is replacing it."""
        self._is_closed = True

    def step(self, disk_ratio: float) -> None:
        """Store the disk's use and compute the rates of the last second."""
        self._disk_ratio = disk_ratio
        self._disk_bytes = self._instance.store.disk_bytes()
        self._store_figures = self._instance.store.statistics()
        self._maybe_size()
        for warning in self._instance.core.watch.warnings.take():
            _log.warning("%s", warning)
        for line in self._instance.core.locks.reports.take():
            _log.log(_LEVELS[line.level], "%s", line.text)
        now = time.monotonic()
        figures = self._instance.figures
        counts: dict[str, float] = {
            "entriesPerSecond": figures.entries_applied,
            "proposalsPerSecond": figures.proposals,
            "bytesPerSecond": figures.bytes_proposed,
            "framesInPerSecond": self._traffic.frames_in,
            "framesOutPerSecond": self._traffic.frames_out,
        }
        elapsed_s = max(now - self._counted_at, 0.001)
        self._rates = {
            name: round(max(0.0, count - self._counts.get(name, count)) / elapsed_s, 1)
            for name, count in counts.items()
        }
        used_s = time.process_time()
        share, weight = (used_s - self._cpu_s) / elapsed_s, min(1.0, elapsed_s / _AVERAGED_S)
        self._cpu += weight * (share - self._cpu)
        self._cpu_s = used_s
        self._counts = counts
        self._counted_at = now

    def _maybe_size(self) -> None:
        now = time.monotonic()
        if self._sizing is None and now - self._sized_at >= _SIZE_EVERY_S:
            self._sized_at = now
            self._sizing = self._supervisor.once("size of the store", self._size())

    async def _size(self) -> None:
        try:
            self._size_bytes = await asyncio.to_thread(self._instance.store.size_bytes)
        finally:
            self._sizing = None

    def alive(self) -> tuple[bool, str]:
        """Return whether this process should live on."""
        return alive(self._signs())

    def ready(self) -> tuple[bool, str]:
        """Return whether this replica does its work: it leads, or follows a leader."""
        hindered = hindrance(self._signs())
        if hindered:
            return False, hindered
        loop, node = self._instance.loop, self._instance.node
        if self._serves and self._instance.core.context.disk_full:
            return True, "leads, but refuses sends because the disk is full"
        if self._serves:
            return True, "leads and serves"
        if loop.serving:
            return False, "leads, and writes the first entries of a new group"
        if node.is_leader:
            return False, "leads, but has not applied the whole log yet"
        if node.leader is None:
            return False, "knows no leader of the group"
        return True, f"follows node {node.leader}"

    @property
    def _serves(self) -> bool:
        instance = self._instance
        return instance.loop.serving and instance.core.context.leading

    def _signs(self) -> Signs:
        loop = self._instance.loop
        return Signs(
            idle_s=loop.idle_s,
            swapping_s=self._swapping_s(),
            disk_waits_s=loop.writes.waiting_s,
            is_disk_stalled=loop.writes.is_stalled,
            stores_nothing=loop.writes.is_full and not self._serves,
            lacks_log=loop.lacks_log(self._offered()),
            ailing=self._supervisor.ailing,
            address_complaint=self._unreachable(),
            has_failed=self._has_failed(),
            is_ending=self._is_ending(),
        )

    def status(self, asked: RemotingCommand | None = None) -> Mapping[str, object]:
        """Return the status of the group, as far as the sender of *asked* may read it, and that of this replica."""
        return {**self._group_status(asked), **self.replica_status()}

    def _group_status(self, asked: RemotingCommand | None = None) -> Mapping[str, Any]:
        return {} if self._is_closed else self._instance.core.group_status(asked)

    def replica_status(self) -> dict[str, object]:
        """Return the status of this replica and, if it leads, that of the others."""
        settings = self._settings
        status = self._instance.node.status()
        return {
            "cluster": settings.cluster,
            "group": settings.group,
            "node": settings.node_id,
            "role": status.role.value,
            "serving": self._serves,
            "term": status.term,
            "leader": status.leader,
            "commit": status.commit,
            "applied": status.applied,
            "last_index": status.last_index,
            "first_index": self._instance.log.first_index(),
            "voters": sorted(status.membership.voters),
            "learners": sorted(status.membership.learners),
            "replicas": replica_reports(status, self._sender),
            "address": str(settings.address),
            "raft_address": str(self._raft_address),
            "connections": len(self._router),
            "identified_clients": self._identified(),
            "waiting": self._router.waiting,
            "disk": {
                "ratio": round(self._disk_ratio, 4),
                "bytes": self._size_bytes,
                "total": self._disk_bytes,
            },
            "clock_ahead_s": round(self._clock.ahead_s(), 3),
            "cpu": round(self._cpu, 3),
            "rates": self._rates,
            "uptime_ms": int(1000 * (time.monotonic() - self._began)),
            "pid": os.getpid(),
        }

    def reading(self) -> Reading:
        """Return the metrics of a scrape; without those of the state while another store replaces it."""
        status = self._instance.node.status()
        group = self._group_status()
        gauges: dict[str, tuple[str, float]] = {
            "is_leader": ("1 when this replica leads", float(status.role is Role.LEADER)),
            "is_serving": ("1 when this replica answers clients", float(self._serves)),
            "term": ("Raft term of this replica", float(status.term)),
            "commit_index": ("Index of the highest committed raft entry", float(status.commit)),
            "applied_index": ("Index of the highest applied raft entry", float(status.applied)),
            "last_index": ("Index of the last raft entry", float(status.last_index)),
            "connections": (
                "Connections of clients, including forwarded ones",
                float(len(self._router)),
            ),
            "identified_clients": (
                (
                    "Clients on this machine whose processes are known, so that their death can be "
                    "proven"
                ),
                float(self._identified()),
            ),
            "waiting_requests": (
                "Requests that wait until this replica may answer",
                float(self._router.waiting),
            ),
            "pending_proposals": (
                "Proposals that are neither applied nor lost",
                float(self._instance.loop.pending),
            ),
            "clock_ahead_seconds": (
                (
                    "Seconds by which this machine's clock is ahead of a majority of its broker "
                    "group; negative if it is behind"
                ),
                self._clock.ahead_s(),
            ),
            "clock_confirmed": (
                (
                    "1 when a majority of the broker group agrees with the time that this replica "
                    "uses"
                ),
                float(self._clock.now().is_confirmed),
            ),
            "disk_used_ratio": ("Used share of the disk, 0 to 1", self._disk_ratio),
            "store_size_bytes": ("Bytes of the store on the disk", float(self._size_bytes)),
            "cpu_ratio": (
                "Share of one CPU that this process used, averaged over about a minute",
                self._cpu,
            ),
        }
        gauges |= _group_gauges(group)
        gauges |= {
            f"store_{name}": (text, self._store_figures[name])
            for name, text in _STORE_GAUGES.items()
            if name in self._store_figures
        }
        events = group.get("counters")
        lags = {
            str(node): float(max(0, status.last_index - peer.match))
            for node, peer in status.progress.items()
        }
        events = events if isinstance(events, Mapping) else {}
        failures = self._supervisor.failures
        return Reading(gauges, self._counters(), events, lags, self._series(), failures)

    def _series(self) -> dict[str, Series]:
        if self._is_closed:
            return {}
        core = self._instance.core
        watched = core.watch.series()
        is_examined = bool(core.watch.report()["examinedAt"])
        return {
            **watched,
            **backlog_series(core.context, watched, is_examined=is_examined),
            **quota_series(core.context),
            **order_series(core.context, self._clock.now().wall_ms),
        }

    def _counters(self) -> dict[str, tuple[str, float]]:
        figures = self._instance.figures
        stores = {
            f"store_{name}": (text, self._store_figures.get(name, 0.0))
            for name, text in _STORE_COUNTERS.items()
        }
        return stores | {
            "replication_iterations": ("Iterations of the replication loop", figures.iterations),
            "entries_proposed": (
                "Raft entries proposed by this replica as leader",
                figures.entries_proposed,
            ),
            "entries_applied": ("Raft entries applied", figures.entries_applied),
            "proposals": ("Proposals in the entries that this leader proposed", figures.proposals),
            "proposals_lost": (
                "Proposals that another leader's entries have overwritten",
                figures.proposals_lost,
            ),
            "proposed_bytes": ("Bytes proposed by this leader", figures.bytes_proposed),
            "writes": ("Writes of the log to the store", figures.tickets),
            "peer_violations": (
                (
                    "Connections between replicas that were closed because of a violation of the "
                    "protocol"
                ),
                self._transport.violations,
            ),
            "peer_closes": (
                (
                    "Connections of replicas that were refused, sent nothing, or were replaced by a "
                    "newer one"
                ),
                self._transport.closes,
            ),
            "disk_stalls": (
                "Times this leader stepped down because its disk hung",
                figures.disk_stalls,
            ),
        }


def _group_gauges(group: Mapping[str, Any]) -> dict[str, tuple[str, float]]:
    """Return the gauges of the state that the core reports; none if it reports nothing."""
    if not group:
        return {}
    transactions = group["transactions"]
    return {
        name: (text, float(figures[key]))
        for figures, names in ((group, _GROUP_GAUGES), (transactions, _TRANSACTION_GAUGES))
        for key, (name, text) in names.items()
    }


def replica_reports(status: Status, sender: SnapshotSender) -> dict[str, object]:
    """Return the leader's view of each replica; empty if this one does not lead."""
    return {
        str(node): {
            "match": peer.match,
            "lag": max(0, status.last_index - peer.match),
            "active": peer.is_alive or node == status.id,
            "state": peer.state.value,
            "snapshot": _snapshot(sender.sent.get(node)),
            # A replica that has caught up from the log meanwhile no longer needs a snapshot.
            "snapshot_failure": None
            if peer.state is ProgressState.REPLICATE
            else _failure(sender.failures.get(node)),
        }
        for node, peer in status.progress.items()
    }


def _snapshot(sent: SentSnapshot | None) -> dict[str, int] | None:
    """Return the last state that a replica received from this process, or None if it needed none."""
    if sent is None:
        return None
    age_ms = int(1000 * (time.monotonic() - sent.at_s))
    return {"index": sent.index, "bytes": sent.size_bytes, "age_ms": age_ms}


def _failure(failed: FailedSnapshot | None) -> dict[str, object] | None:
    """Return what keeps a replica from receiving the state that it needs, or None if nothing does."""
    if failed is None:
        return None
    since_ms = int(1000 * (time.monotonic() - failed.since_s))
    return {"reason": failed.reason, "since_ms": since_ms, "tries": failed.tries}
