"""
The page of results: docs/explanation/benchmarks.md from the lines of a run, tables first, pictures next to it.

The sections of other programs (`sections`) stay at its end.
"""

import os
import platform
import re
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import replace
from pathlib import Path

import psutil
from bench.layers import limits
from bench.peers.catalogue import ABSENT, PEERS
from bench.peers.nodes import Durability, Peer
from bench.report.figures import Summary, advantage, shown
from bench.report.origin import origin
from bench.report.results import Line, Results, summary
from bench.works import ALL, Figure, Scale, Work

from bench.report import conditions, reach, sections

WIRE = ("orderlymq-compiled-wire", "orderlymq-wire")
#: A part in which other processes used more than this share of the machine counts as disturbed.
DISTURBED = 0.10


def scaled(scale: Scale, stored: int | None, kills: int | None, seconds: float | None) -> Scale:
    """Return the scale with the requested values, under a separate name."""
    changed = {
        name: value
        for name, value in (("stored", stored), ("kills", kills), ("seconds", seconds))
        if value is not None
    }
    # Rounds of different sizes must not count as repetitions of each other.
    parts = [scale.name, *(f"{name}={value:g}" for name, value in changed.items())]
    return replace(scale, **changed, name=" ".join(parts))  # type: ignore[arg-type]  # by name


def plain(value: float | list[float] | None) -> str:
    """Format a figure, or all its samples."""
    if value is None:
        return "-"
    if isinstance(value, list):
        return "/".join(shown(each) for each in value)
    return shown(value)


def lacking(path: Path, slots: Set[tuple[str, str]]) -> list[str]:
    """Return the works of peers that the page at *path* has and a page of *slots* (peer, work) would lack.

    Works and peers that no longer exist cannot be measured, so they may disappear.
    """
    works = {work.title: work.name for work in ALL}
    bounds = {work.title: work.name for work in limits.ALL}
    peers = {_unversioned(peer.title): name for name, peer in PEERS.items()}
    had = set()
    for heading, cells in sections.rows(path):
        if heading in works and (peer := peers.get(_unversioned(cells[1]))):
            had.add((peer, works[heading]))
        elif cells[0] in bounds:
            had.add((limits.PEER, bounds[cells[0]]))
    return [f"{work} of {peer}" for peer, work in sorted(had - slots)]


def _unversioned(title: str) -> str:
    return re.sub(r"[\d.]+", "", title)


def measured(lines: Iterable[Line]) -> set[tuple[str, str]]:
    """Return the slots (peer, work) on a page of these lines."""
    return {(line.peer, line.work) for line in lines if not line.trouble}


def write(path: Path, results: Results, scale: str, command: str) -> None:
    """Write the page and its pictures.

    Raises:
        ValueError: The page has rows that the results lack.
    """
    from bench.report import plots  # noqa: PLC0415 matplotlib is needed for nothing else

    lines = [line for line in results.lines if line.scale == scale]
    if found := lacking(path, measured(lines)):
        raise ValueError(sections.refusal(path, found))
    pictures = plots.write(path.parent / path.stem, lines)
    page = "\n".join(_page(lines, command, pictures, path.stem)) + "\n"
    others = sections.kept(path)
    path.write_text(f"{page}\n{others}" if others else page)


def _page(
    lines: Sequence[Line], command: str, pictures: Sequence[tuple[str, str]], folder: str
) -> Iterator[str]:
    yield "# Benchmarks"
    yield ""
    yield (
        "This page compares OrderlyMQ with RocketMQ and other brokers. All do the same work, in one run on one machine. Three nodes"
        " and the load share its CPUs, so the rates are those of a small machine. Compare the ratios."
    )
    yield ""
    if found := list(reach.head(lines)):
        yield "Our figures against their aims, the widest gap first. Each system has its own Java client. Below 1x ours is behind."
        yield ""
        yield from found
        yield ""
    for name, title in pictures:
        yield f"![{title}]({folder}/{name})"
        yield ""
    yield from _conditions(lines, command)
    yield ""
    yield from _classes(lines)
    yield ""
    yield from _ways(lines)
    yield ""
    for work in ALL:
        yield from _work(lines, work)
    yield from _limits(lines)
    yield from _failures(lines)


def _conditions(lines: Sequence[Line], command: str) -> Iterator[str]:
    memory = psutil.virtual_memory().total / 2**30
    yield "## Conditions"
    yield ""
    yield (
        f"* Machine: {os.cpu_count()} CPUs ({conditions.processor()}), {memory:.0f} GiB,"
        f" Linux {platform.release().split('-')[0]}."
    )
    yield f"* Python of OrderlyMQ: {conditions.python()}."
    yield f"* Scheduling: {conditions.scheduling()}."
    yield f"* Measured: {origin(lines)}."
    yield f"* Last command: `python -m bench.compare {command}`."
    yield (
        "* Rounds are interleaved. Each system starts with empty folders, does all works and stops. Then the next one"
        " starts."
    )
    yield (
        "* The column *rounds* has the number of rounds in which a row was measured. A cell is *min / **median** / max* over these"
        " rounds, or over all kills. A single value was measured once."
    )
    disturbed = [line for line in lines if line.elsewhere > DISTURBED]
    measured = [line for line in lines if line.elsewhere > 0]
    yield (
        f"* In {len(disturbed)} of {len(measured)} timed parts, other processes used more than {DISTURBED:.0%} of the"
        " machine. The rates of such parts are too low for every system."
    )


def _classes(lines: Sequence[Line]) -> Iterator[str]:
    yield "## Meaning of an acknowledgement"
    yield ""
    yield (
        "An acknowledgement belongs to one of two classes. If you compare systems of different classes, say so. A ratio in the"
        " tables compares ours with another system of the same class. If it is above 1, ours is ahead. Only the column *mixed*"
        " compares ours on disk with theirs in memory."
    )
    yield ""
    yield "| class | system | acknowledged means | client |"
    yield "|---|---|---|---|"
    for durability in Durability:
        for peer in _present(lines):
            if peer.durability is durability:
                yield (
                    f"| {durability.value} | {peer.title} ({peer.version()}) | {peer.acknowledged} "
                    f"| {peer.client_version} |"
                )


def _ways(lines: Sequence[Line]) -> Iterator[str]:
    yield "## How it is done"
    yield ""
    yield (
        "Each system has three nodes, replication factor 3 and eight ordered queues per topic. Bodies cannot be compressed and do not repeat."
    )
    yield ""
    yield (
        "* **Sends.** Each sender waits for the acknowledgement before it sends again. A send counts if it is acknowledged within"
        " the measured seconds."
    )
    yield (
        "* **Drains.** A drain begins when every consumer knows its queues. It fails if a message is missing or out of"
        " order."
    )
    yield (
        "* **Fail-over.** A leader is killed (SIGKILL) while eight senders, one per queue, send and retry after 5 ms. The time"
        " ends with the first acknowledged send that began after the kill. Afterwards all messages are read back."
    )
    yield (
        "* **Take-over.** A consumer is killed while it holds a message. The time ends when the other member of its group"
        " gets this message."
    )
    yield "* **Disk and memory** are measured when the files no longer change."
    yield ""
    yield (
        "`python -m bench.fetch` downloads the other systems, and `apt-get install rabbitmq-server` installs RabbitMQ. The settings:"
    )
    yield ""
    for peer in _present(lines):
        module = peer.__module__.rpartition(".")[2]
        yield f"* [{peer.title}](../../bench/peers/{module}.py): {peer.driven}"
    yield ""
    yield from (f"{system} is left out: {reason}." for system, reason in ABSENT.items())


def _present(lines: Sequence[Line]) -> list[type[Peer]]:
    names = {line.peer for line in lines}
    return [peer for name, peer in PEERS.items() if name in names]


def _work(lines: Sequence[Line], work: Work) -> Iterator[str]:
    rows = []
    for durability in Durability:
        for peer in _present(lines):
            if peer.durability is durability:
                rows += list(_rows(lines, work, peer))
    if not rows:
        return
    yield f"## {work.title}"
    yield ""
    figures = [figure for figure in work.figures if _taken(lines, work, figure)]
    titles = [
        f"{figure.title} | ours : it" if _compared(figure) else figure.title for figure in figures
    ]
    yield f"| class | system | rounds | {' | '.join(titles)} | mixed |"
    yield "|---" * (sum(2 if _compared(figure) else 1 for figure in figures) + 4) + "|"
    yield from rows
    yield ""
    if work.name == "drain-4":
        yield from reach.ceiling(lines, os.cpu_count() or 1)


def _taken(lines: Sequence[Line], work: Work, figure: Figure) -> bool:
    return any(line.work == work.name and figure.key in line.figures for line in lines)


def _compared(figure: Figure) -> bool:
    # Counts of repeats and losses are reported without a ratio.
    return figure.key not in ("repeats", "lost", "client_us")


def _rows(lines: Sequence[Line], work: Work, peer: type[Peer]) -> Iterator[str]:
    cells = []
    mixed = "-"
    for figure in work.figures:
        if not _taken(lines, work, figure):
            continue
        found = summary(lines, peer.name, work.name, figure.key)
        if found is None:
            cells += ["-", "-"] if _compared(figure) else ["-"]
            continue
        cells.append(_cell(found))
        if _compared(figure):
            cells.append(
                _ratio(lines, work, figure, peer, reach.ours(lines, work.name, peer.durability))
            )
        if figure is work.figures[0] and peer.durability is Durability.MEMORY:
            mixed = _ratio(lines, work, figure, peer, reach.ours(lines, work.name, Durability.DISK))
    if any(cell != "-" for cell in cells):
        kind = "disk" if peer.durability is Durability.DISK else "memory"
        rounds = _rounds(lines, peer.name, work)
        yield f"| {kind} | {peer.title} | {rounds} | {' | '.join(cells)} | {mixed} |"


def _cell(found: Summary) -> str:
    if found.count == 1:
        return f"**{shown(found.median)}**"
    return f"{shown(found.low)} / **{shown(found.median)}** / {shown(found.high)}"


def _rounds(lines: Sequence[Line], peer: str, work: Work) -> int:
    return len(
        {
            each.round
            for each in lines
            if (each.peer, each.work) == (peer, work.name) and not each.trouble
        }
    )


def _ratio(lines: Sequence[Line], work: Work, figure: Figure, peer: type[Peer], ours: str) -> str:
    if peer.name == ours:
        return "1"
    us = summary(lines, ours, work.name, figure.key)
    them = summary(lines, peer.name, work.name, figure.key)
    if us is None or them is None:
        return "-"
    found = advantage(us.median, them.median, more_is_better=figure.more_is_better)
    return "-" if found is None else f"{found:.2f}"


def _limits(lines: Sequence[Line]) -> Iterator[str]:
    rows = []
    for work in limits.ALL:
        found = summary(lines, limits.PEER, work.name, "rate")
        p50 = summary(lines, limits.PEER, work.name, "p50_ms")
        if found is not None and p50 is not None:
            rows.append(
                f"| {work.title} | {_rounds(lines, limits.PEER, work)} | {_cell(found)} "
                f"| {p50.median:.3f} | {_share(lines, work, found.median)} |"
            )
    if rows:
        yield "## Limits of the machine"
        yield ""
        yield (
            "These limits were measured in the same run, each alone on the machine. *Our share* is our rate in percent of the limit:"
            " sends of 1 KiB acknowledged from disk, by the better of Java's client and the load program on the wire. There are as"
            " many senders as messages in the batch, and one sender for a single round trip or sync."
        )
        yield ""
        yield "| limit | rounds | per second | p50, ms | our share |"
        yield "|---|---|---|---|---|"
        yield from rows
        yield ""


def _share(lines: Sequence[Line], work: Work, limit: float) -> str:
    senders = {"limit-fdatasync": 1, "limit-loopback": 1, "limit-framing": 64}
    count = work.words.get("count", senders.get(work.name, 1))
    rates = [
        found.median
        for peer in (*reach.OURS[Durability.DISK], *WIRE)
        if (found := summary(lines, peer, f"send-{count}-1024", "rate")) is not None
    ]
    return f"{max(rates) / limit:.0%}" if rates else "-"


def _failures(lines: Sequence[Line]) -> Iterator[str]:
    done = {line.slot for line in lines if not line.trouble}
    failed = [line for line in lines if line.trouble and line.slot not in done]
    if failed:
        yield "## Not measured"
        yield ""
        for line in failed:
            reason = line.trouble.splitlines()[0]
            yield f"* {line.peer}, {line.work}, round {line.round}: {reason}"
