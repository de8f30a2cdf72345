"""The summary of the comparison: our figures next to their aims, the widest gap first. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bench.peers.catalogue import PEERS
from bench.peers.nodes import Durability
from bench.report.figures import advantage, beside, shown
from bench.report.results import Line, summary
from bench.works import WORKS

#: Our peers in each class, to which ratios refer: the first one measured counts, preferably compiled as in the image.
OURS: Final[Mapping[Durability, Sequence[str]]] = {
    Durability.DISK: ("orderlymq-compiled", "orderlymq"),
    Durability.MEMORY: ("orderlymq-async",),
}
_LINES_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Aim:
    """The aim for one of our figures.

    Attributes:
        others: the peers whose best figure is the measure, or our own work that is the measure.
        least: the aim, as a ratio to the measure; for an absolute aim the value itself.
    """

    title: str
    work: str
    figure: str
    others: Sequence[str] | str
    least: float
    durability: Durability = Durability.DISK


_NATS: Final = ("nats-always",)
_FAST: Final = ("nats-always", "rabbitmq")
_IN_MEMORY: Final = ("rocketmq", "rocketmq5-async", "kafka")
AIMS: Final = (
    Aim("64 senders", "send-64-1024", "rate", _NATS, 1.15),
    Aim("256 senders", "send-256-1024", "rate", _NATS, 1.0),
    Aim("one sender", "send-1-1024", "p50_ms", _FAST, 1.0),
    Aim("one sender", "send-1-1024", "p99_ms", _FAST, 1.0),
    Aim("64 senders", "send-64-1024", "p999_ms", _NATS, 1.0),
    Aim("batches", "batch-16", "rate", _NATS, 1.25),
    Aim("drain by one", "drain-1", "rate", ("rocketmq",), 1.2),
    Aim("drain by four against one", "drain-4", "rate", "drain-1", 1.0),
    Aim("one sender, in memory", "send-1-1024", "rate", _IN_MEMORY, 1.0, Durability.MEMORY),
    Aim("64 senders, in memory", "send-64-1024", "rate", _IN_MEMORY, 1.0, Durability.MEMORY),
    Aim("64 senders", "send-64-1024", "cpu_us", (), 65.0),
    Aim("start", "start", "start_s", (), 2.0),
    Aim("leader killed", "failover", "first_s", (), 0.25),
    Aim("consumer killed", "takeover", "takeover_s", (), 0.03),
)


def ours(lines: Sequence[Line], work: str, durability: Durability) -> str:
    """Return the peer that represents us in a class."""
    measured = {line.peer for line in lines if line.work == work and not line.trouble}
    names = OURS[durability]
    return next((name for name in names if name in measured), names[-1])


def head(lines: Sequence[Line]) -> Iterator[str]:
    """Yield the lines of the summary: at most ten aims, the most missed first."""
    found = [each for aim in AIMS if (each := _compared(lines, aim)) is not None]
    yield from (text for _, text in sorted(found)[:_LINES_MAX])


def _compared(lines: Sequence[Line], aim: Aim) -> tuple[float, str] | None:
    name = ours(lines, aim.work, aim.durability)
    (figure,) = [each for each in WORKS[aim.work].figures if each.key == aim.figure]
    found = summary(lines, name, aim.work, aim.figure)
    if found is None:
        return None
    its, other, wanted = aim.least, "the aim", ""
    if aim.others:
        among = [name] if isinstance(aim.others, str) else aim.others
        work = aim.others if isinstance(aim.others, str) else aim.work
        rows = [(PEERS[each].title, summary(lines, each, work, aim.figure)) for each in among]
        medians = [(row.median, title) for title, row in rows if row is not None]
        if not medians:
            return None
        its, other = max(medians) if figure.more_is_better else min(medians)
        wanted = f", aim {aim.least:.2f}x"
    ratio = advantage(found.median, its, more_is_better=figure.more_is_better) or 0.0
    text = beside(f"{aim.title}, {figure.title}", other, its, found.median)
    return ratio, f"{text}; {ratio:.2f}x{wanted}"


def ceiling(lines: Sequence[Line], cpus: int) -> Iterator[str]:
    """Yield the upper bound of a drain by four on this machine, from the cost of a message on each side."""
    name = ours(lines, "drain-4", Durability.DISK)
    found = [summary(lines, name, "drain-4", key) for key in ("cpu_us", "client_us", "rate")]
    medians = [each.median for each in found if each is not None]
    if len(medians) == len(found):
        cluster, client, rate = medians
        both = cluster + client
        yield (
            f"{PEERS[name].title}: a message takes {shown(cluster)} µs of CPU time in the cluster and {shown(client)} µs in the client,"
            f" {shown(both)} µs in all, so {cpus} CPUs allow at most {cpus / both * 1000:,.0f} k/s."
            f" It drained {rate / 1000:,.0f} k/s."
        )
        yield ""
