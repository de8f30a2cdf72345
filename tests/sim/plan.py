"""The decisions for one seed before the run begins: sizes, habits and the kinds of faults."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from orderlymq_broker.settings import AccessSettings, StorageSettings, TimerSettings
from orderlymq_broker.state.lanes.lane import RUN_MAX
from tests.sim.clients.accounts import OPERATOR, OPERATOR_SECRET


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of a run; shares are between 0 and 1.

    Attributes:
        find_leader: how often a client that connects chooses the replica that serves.
        long_listener: share of listener calls that take up to two leases.
        manual_commits: share of listener calls with auto_commit off.
        troubles: names of the faults that may happen (``faults.py``).
        listener_max_us: longest listener call of the usual kind.
        patience: share of refusals after which a producer tries again.
        try_timeout_us: how long a producer waits for an answer before it sends again.
        every_us: mean time between two faults.
        ruthless: whether every fault may come while no replica serves.
        bind: whether only the leader listens, at one address, as on one machine.
        access: whether requests must be signed by accounts with permissions.
        delayed: share of sends with a delay.
        dealers: producers of transactional messages.
        checks_max: checks without an answer before a half message is given up.
        retention_size: bytes of messages that are kept, 0 for all.
        hold_keys: whether a dead letter holds its key.
        founding: replicas that start late or crash before any replica serves.
        growths: numbers of queues that an operator wants, one after the other.
        retention_ms: how long messages are kept, 0 for ever.
        append_size: bytes of entries in one append between replicas; with 1 each entry travels alone.
        window_count: sends that the duplicate window holds.
        window_ms: how long it holds them.
        recycled: whether topics and consumer groups are deleted and made again.
        lanes: members of a consumer group by key.
        lane_letters: what that group does when a message has failed three times; empty if it is retried for ever.
        lane_deadly: whether some messages kill that group's consumers.
        lane_changes: whether an administrator resets, deletes and changes that group.
        lane_last: whether its members begin at the end of a queue that retention has trimmed.
        burst: messages of one key that a producer sends in a row, more than a lane holds in memory; 0 for none.
        links: longest round trip between two replicas, ms; each direction has its own part of it.
        mixed_elections: whether each start of a replica draws its election time-out, as while the setting changes.
        wrong_clocks: whether clocks of replicas, one at a time, are wrong by minutes to days, so that
            times of day step.
    """

    replicas: int
    queues: int
    producers: int
    consumers: int
    plain_consumers: int
    think_max_us: int
    entries_kept: int
    tail_size: int
    find_leader: float
    long_listener: float
    manual_commits: float
    poison: float
    listener_max_us: int
    patience: float
    try_timeout_us: int
    every_us: int
    ruthless: bool
    safety_us: int
    name_servers: int
    bind: bool
    access: bool
    delayed: float
    dealers: int
    checks_max: int
    retention_size: int
    retention_ms: int
    growths: tuple[int, ...]
    founding: int
    hold_keys: bool
    troubles: tuple[str, ...] = field(default=())
    append_size: int = 1 << 20
    window_count: int = StorageSettings().dedup_window_count
    window_ms: int = StorageSettings().dedup_window_ms
    recycled: bool = False
    links: float = 0.0
    lanes: int = 0
    lane_letters: str = ""
    lane_deadly: bool = False
    lane_changes: bool = False
    lane_last: bool = False
    burst: int = 0
    wrong_clocks: bool = False
    mixed_elections: bool = False

    def timers(self, timers: TimerSettings) -> TimerSettings:
        """Return the timers of a broker of this run."""
        scan_ms = 200 if self.has_small_window or self.wrong_clocks else timers.scan_ms
        return msgspec.structs.replace(
            timers, transaction_check_max=self.checks_max, scan_ms=scan_ms
        )

    @property
    def has_small_window(self) -> bool:
        """Return whether sends leave the duplicate window during the run."""
        usual = StorageSettings()
        return (self.window_count, self.window_ms) != (
            usual.dedup_window_count,
            usual.dedup_window_ms,
        )

    @property
    def retains_all(self) -> bool:
        """Return whether no message is ever dropped."""
        return not (self.retention_size or self.retention_ms)

    def storage(self) -> StorageSettings:
        """Return the storage settings of a broker of this run."""
        kept_ms = self.retention_ms or StorageSettings().retention_ms
        return StorageSettings(
            retention_size=self.retention_size or None,
            retention_ms=kept_ms,
            dedup_window_count=self.window_count,
            dedup_window_ms=self.window_ms,
        )

    def access_settings(self) -> AccessSettings:
        """Return the access settings of this run."""
        return AccessSettings(
            enable=self.access, operator_key=OPERATOR, operator_secret=OPERATOR_SECRET
        )


# A storm is many faults of one kind: it reaches situations that need several faults in a row.
STORMS: Final[Mapping[str, Mapping[str, Any]]] = {
    "group": {
        "every_us": 200_000,
        "troubles": (
            "crash",
            "crash all",
            "island",
            "partition",
            "pause",
            "slow disk",
            "slow followers",
            "transfer",
            "weather",
        ),
    },
    "consumers": {
        "every_us": 400_000,
        "troubles": (
            "zombie",
            "consumer close",
            "consumer crash",
            "consumer hangs up",
            "consumer pause",
            "partition",
            "weather",
        ),
    },
    # A replica is rebuilt in every possible way.
    "rebuild": {
        "every_us": 400_000,
        "troubles": ("coup", "crash", "membership", "partition", "rot", "transfer", "wipe"),
    },
    # Entries of an earlier term reach a majority; see ``olderterm.py``.
    "older term": {
        "every_us": 200_000,
        "troubles": ("older term",),
        "append_size": 1,
        "replicas": 3,
        "founding": 0,
    },
}
# Where a repeat may come after its first send has left the window, only senders that count on this repeat sends.
_NO_REPEATS: Final[Mapping[str, Any]] = {
    "recycled": True,
    "dealers": 0,
    "poison": 0.0,
    "hold_keys": False,
    "patience": 0.0,
}
WINDOWS: Final[Mapping[str, Mapping[str, Any]]] = {
    "count": {"window_count": 25, **_NO_REPEATS},
    "time": {"window_ms": 1_500, **_NO_REPEATS},
}
# The share of plans with slow links between replicas, and the longest round trip
# there. The longer ones exceed a lease, which lasts less than 200 ms here: the leader
# asks a majority instead (docs/adr/0015-slow-links-and-hung-disks.md).
SLOW_LINKS_SHARE: Final = 0.1
SLOW_LINKS_MS: Final = (5.0, 40.0, 175.0, 400.0)

# The share of plans with wrong clocks. With right clocks no send leaves the window by its age in any run.
WRONG_CLOCKS_SHARE: Final = 0.06
WRONG_CLOCKS: Final[Mapping[str, Any]] = {
    "wrong_clocks": True,
    "window_ms": StorageSettings().dedup_window_ms,
}

# The share of plans whose replicas have different election time-outs, and those; the first is that
# of all other plans.
MIXED_ELECTIONS_SHARE: Final = 0.06
ELECTIONS_MS: Final = (300, 900)

# The share of plans in which the raft group makes any membership change, with few other faults.
MEMBERS_SHARE: Final = 0.1
MEMBERS: Final[Mapping[str, Any]] = {
    "every_us": 200_000,
    "ruthless": True,
    "troubles": ("any membership", "crash", "partition", "release"),
}

# The share of plans that remove one of three replicas when another loses its disk. A raft group of two members
# tolerates no other fault.
REMOVAL_AND_LOSS_SHARE: Final = 0.03
REMOVAL_AND_LOSS: Final[Mapping[str, Any]] = {
    "replicas": 3,
    "founding": 0,
    "every_us": 300_000,
    "ruthless": True,
    "troubles": ("removal and loss",),
    "links": 0.0,
}

# The share of plans with a consumer group by key.
LANES_SHARE: Final = 0.15
LANE_LETTERS: Final = ("Continue", "HoldKey", "StopQueue")
BURST: Final = 2 * RUN_MAX + 20


def draw(
    chance: random.Random, troubles: tuple[str, ...], changes: Mapping[str, Any] | None = None
) -> Plan:
    """Return the plan of a seed. Each run has only some faults; with all of them little would be reached.

    *changes* overrides these fields, whatever the seed says.
    """
    chosen = tuple(name for name in troubles if chance.random() < 0.5)
    access = chance.random() < 0.3
    if access and "rights" not in chosen:
        chosen = (*chosen, "rights")
    plan = _draw(chance, chosen, access=access)
    storm = chance.choices(("", *STORMS), (0.37, 0.28, 0.18, 0.1, 0.07))[0]
    if storm:
        plan = replace(plan, **STORMS[storm])
    if plan.growths and "operator" not in plan.troubles and chance.random() < 0.4:
        plan = replace(plan, troubles=(*plan.troubles, "operator"))
    if chance.random() < SLOW_LINKS_SHARE:
        plan = replace(plan, links=chance.choice(SLOW_LINKS_MS), troubles=(*plan.troubles, "links"))
    if chance.random() < 0.2:
        plan = replace(plan, **chance.choice(tuple(WINDOWS.values())))
    if plan.hold_keys:
        # A topic does not grow while one of its keys is held.
        plan = replace(plan, poison=0.05, growths=(), troubles=(*plan.troubles, "release"))
    if chance.random() < LANES_SHARE:
        plan = replace(
            plan,
            lanes=chance.choice((1, 2, 3)),
            lane_letters=chance.choice(("", *LANE_LETTERS)),
            lane_changes=chance.random() < 0.4,
        )
        if plan.lane_letters in ("Continue", "HoldKey"):
            # Under StopQueue a deadly message would stop its queue for ever.
            plan = replace(plan, lane_deadly=chance.random() < 0.5)
        if chance.random() < 0.4:
            plan = replace(plan, troubles=(*plan.troubles, "lost answers"))
        if chance.random() < 0.4:
            plan = replace(plan, burst=BURST)
        plan = replace(plan, lane_last=chance.random() < 0.4)
    if chance.random() < WRONG_CLOCKS_SHARE:
        plan = replace(plan, **WRONG_CLOCKS, troubles=(*plan.troubles, "wrong clock"))
    plan = replace(plan, mixed_elections=chance.random() < MIXED_ELECTIONS_SHARE)
    plan = replace(plan, **(MEMBERS if chance.random() < MEMBERS_SHARE else {}))
    plan = replace(plan, **(REMOVAL_AND_LOSS if chance.random() < REMOVAL_AND_LOSS_SHARE else {}))
    return replace(plan, **(changes or {}))


def _draw(chance: random.Random, chosen: tuple[str, ...], *, access: bool) -> Plan:
    return Plan(
        replicas=5 if chance.random() < 0.2 else 3,
        queues=chance.choice((1, 2, 4)),
        producers=chance.choice((1, 2, 3)),
        consumers=chance.choice((1, 2, 3)),
        plain_consumers=chance.choice((0, 1, 2)),
        think_max_us=chance.choice((60_000, 200_000, 400_000)),
        entries_kept=chance.choice((30, 100, 20_000)),
        tail_size=chance.choice((1, 4_000, 1 << 20)),
        find_leader=chance.choice((0.5, 0.9, 1.0)),
        long_listener=chance.choice((0.0, 0.0, 0.02)),
        manual_commits=chance.choice((0.0, 0.0, 0.3)),
        poison=chance.choice((0.0, 0.05)),
        listener_max_us=chance.choice((20_000, 20_000, 150_000)),
        patience=chance.choice((1.0, 1.0, 0.0)),
        try_timeout_us=chance.choice((100_000, 300_000, 900_000)),
        every_us=chance.choice((400_000, 1_000_000, 2_500_000)),
        ruthless=chance.random() < 0.3,
        safety_us=chance.choice((8_000_000, 12_000_000)),
        name_servers=chance.choice((1, 2)),
        bind=chance.random() < 0.4,
        access=access,
        delayed=chance.choice((0.0, 0.0, 0.2)),
        dealers=chance.choice((0, 0, 1, 2)),
        checks_max=chance.choice((2, 100)),
        retention_size=chance.choice((0, 0, 0, 3_000, 20_000)),
        retention_ms=chance.choice((0, 0, 0, 0, 3_000)),
        growths=chance.choice(((), (), (), (5,), (5, 7))),
        founding=chance.choice((0, 0, 1, 2)),
        hold_keys=chance.random() < 0.3,
        troubles=chosen,
        append_size=chance.choice((1, 1 << 20, 1 << 20, 1 << 20)),
        recycled=chance.random() < 0.2,
    )
