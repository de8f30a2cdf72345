"""All measured works by name, with their figures. Pure; bench/execution.py runs them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

QUEUES = 8


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure that a work produces."""

    key: str
    title: str
    more_is_better: bool = False


RATE = Figure("rate", "messages/s", more_is_better=True)
P50 = Figure("p50_ms", "p50, ms")
P99 = Figure("p99_ms", "p99, ms")
P999 = Figure("p999_ms", "p99.9, ms")
CPU = Figure("cpu_us", "cluster CPU per message, us")
CLIENT_CPU = Figure("client_us", "client CPU per message, us")


@dataclass(frozen=True, slots=True)
class Work:
    """One line of the comparison.

    Attributes:
        kind: the function of bench/execution.py that runs it.
        words: the arguments of that function.
        remoting: only for peers with RocketMQ's protocol, because the bench writes the frames itself.
        by_wire: also for the load program that writes frames itself.
        once: not in every round, because it takes many samples itself or lasts minutes.
    """

    name: str
    title: str
    kind: str
    figures: tuple[Figure, ...]
    words: Mapping[str, int] = field(default_factory=dict)
    remoting: bool = False
    by_wire: bool = False
    once: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """The sizes of a run, full or quick."""

    name: str
    seconds: float  # duration of a send, after the warm-up
    warm_s: float
    stored: int  # messages for drains, disk and memory
    kills: int
    topics: int
    connections: int
    calm_s: float  # pause between kills, and before measuring an idle cluster
    compile_s: float  # duration of sends before the first measured one, unless many messages were stored before


FULL = Scale("full", 5.0, 2.0, 200_000, 10, 10_000, 5_000, 5.0, 20.0)
QUICK = Scale("quick", 2.0, 1.0, 20_000, 2, 1_000, 1_000, 3.0, 5.0)
#: The works of a quick run: the most informative lines, and one or two peers for each class.
QUICK_WORKS = (
    *("start", "idle", "stored", "drain-1", "send-1-1024", "send-64-1024", "batch-16"),
    "failover",
)
QUICK_PEERS = ("orderlymq", "rocketmq", "nats-always", "rabbitmq")


def _sends(senders: int, size: int) -> Work:
    many = f"{senders} senders" if senders > 1 else "one sender"
    name = "1 KiB" if size == 1024 else f"{size} B"
    return Work(
        f"send-{senders}-{size}",
        f"Acknowledged ordered sends, {many}, {name}",
        "send",
        (RATE, P50, P99, P999, CPU, CLIENT_CPU),
        {"senders": senders, "size": size},
        by_wire=True,
    )


ALL = (
    Work(
        "start",
        "Start to the first acknowledged send",
        "start",
        (Figure("start_s", "seconds"),),
    ),
    Work(
        "idle",
        "Idle: memory and CPU of one broker process",
        "idle",
        (
            Figure("rss_mib", "resident, MiB"),
            Figure("anonymous_mib", "of it no mapped file, MiB"),
            Figure("cpu_percent", "CPU of the busiest node, %"),
        ),
    ),
    Work(
        "stored",
        "Memory and disk after many stored messages of 1 KiB",
        "stored",
        (
            Figure("rss_mib", "resident, MiB"),
            Figure("anonymous_mib", "of it no mapped file, MiB"),
            Figure("disk_ratio", "bytes on disk per body byte and node"),
            Figure("rate", "messages/s while storing", more_is_better=True),
        ),
    ),
    *(
        Work(
            f"drain-{members}",
            f"Drain of stored messages in order by {members} consumer{'s' if members > 1 else ''}",
            "drain",
            (RATE, CPU, CLIENT_CPU, Figure("repeats", "delivered again")),
            {"members": members},
        )
        for members in (1, 4)
    ),
    *(_sends(senders, size) for size in (1024, 100) for senders in (1, 16, 64, 256)),
    Work(
        "batch-16",
        "Acknowledged ordered sends, 16 senders, batches of 32 messages of 1 KiB",
        "send",
        (RATE, P50, P99, CPU, CLIENT_CPU),
        {"senders": 16, "size": 1024, "batch": 32},
    ),
    Work(
        "both",
        "Send and consume together, 16 senders, one consumer, 1 KiB",
        "both",
        (
            RATE,
            Figure("consumed", "consumed/s", more_is_better=True),
            Figure("way_p50_ms", "send to delivery p50, ms"),
            Figure("way_p99_ms", "send to delivery p99, ms"),
            CPU,
        ),
        {"senders": 16, "size": 1024},
    ),
    Work(
        "connections",
        "Many idle client connections",
        "connections",
        (
            Figure("kib_each", "leader's memory per connection, KiB"),
            Figure("cpu_percent", "CPU of the leader, idle, %"),
            Figure("rate", "messages/s by 64 senders beside them", more_is_better=True),
            Figure("rate_part", "part of the rate without them", more_is_better=True),
        ),
        remoting=True,
        once=True,
    ),
    Work(
        "failover",
        "Leader SIGKILL to the first acknowledged send",
        "failover",
        (
            Figure("first_s", "first queue, s"),
            Figure("all_s", "all queues, s"),
            Figure("lost", "acknowledged and lost"),
            Figure("repeats", "stored twice"),
        ),
        once=True,
    ),
    Work(
        "takeover",
        "Consumer SIGKILL, a message in its hands, to the delivery of that message elsewhere",
        "takeover",
        (Figure("takeover_s", "seconds"),),
        once=True,
    ),
    Work(
        "topics",
        f"Many topics with {QUEUES} queues each, on one group",
        "topics",
        (
            Figure("create_s", "made in, s"),
            Figure("cpu_percent", "CPU of the leader, idle, %"),
            Figure("restart_s", "all nodes stopped to the first acknowledged send, s"),
            Figure("rate_part", "send rate over all topics : over 10", more_is_better=True),
            Figure("rss_mib", "resident, MiB"),
        ),
        remoting=True,
        once=True,
    ),
)
WORKS = {each.name: each for each in ALL}

#: Makes virtual machines compile hot code: in its first seconds DLedger's send rate is a third.
WARM_UP = _sends(64, 1024)
