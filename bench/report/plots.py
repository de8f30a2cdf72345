"""The pictures of docs/explanation/benchmarks.md, as SVG: rates, the tail of latencies, fail-over and take-over."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from bench.peers.catalogue import PEERS
from bench.peers.nodes import Durability, Peer
from bench.report.figures import distribution
from bench.report.results import Line, latencies, summary, values
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

SENDERS = (1, 16, 64, 256)
COLOURS = dict(zip(PEERS, plt.colormaps["tab20"].colors, strict=False))  # type: ignore[attr-defined]


def write(folder: Path, lines: Sequence[Line]) -> list[tuple[str, str]]:
    """Draw the pictures for which there are results; return file names and titles."""
    mpl.use("Agg")
    # Makes the files of one run identical, byte for byte.
    mpl.rcParams["svg.hashsalt"] = "orderlymq"
    folder.mkdir(parents=True, exist_ok=True)
    peers = [peer for name, peer in PEERS.items() if any(line.peer == name for line in lines)]
    found = []
    for name, title, draw in (
        ("rates.svg", "Acknowledged ordered sends of 1 KiB", _rates),
        ("latency.svg", "Latency of one sender, 1 KiB", _tails),
        ("failover.svg", "Leader and consumer kills", _kills),
    ):
        if draw(folder / name, title, lines, peers):
            found.append((name, title))
    return found


def _label(peer: type[Peer]) -> str:
    kind = "disk" if peer.durability is Durability.DISK else "memory"
    return f"{peer.title} ({kind})"


def _style(peer: type[Peer]) -> str:
    return "-" if peer.durability is Durability.DISK else "--"


def _save(path: Path, title: str, axes: Sequence[Axes]) -> None:
    figure = axes[0].figure
    figure.suptitle(title)
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")  # type: ignore[union-attr]
    plt.close("all")


def _rates(path: Path, title: str, lines: Sequence[Line], peers: Sequence[type[Peer]]) -> bool:
    _, axes = plt.subplots(figsize=(8, 4.5))
    drawn = False
    for peer in peers:
        points = [
            (senders, found)
            for senders in SENDERS
            if (found := summary(lines, peer.name, f"send-{senders}-1024", "rate")) is not None
        ]
        if points:
            drawn = True
            medians = [found.median for _, found in points]
            spread = [
                [found.median - found.low for _, found in points],
                [found.high - found.median for _, found in points],
            ]
            axes.errorbar(
                [senders for senders, _ in points],
                medians,
                yerr=spread,
                label=_label(peer),
                linestyle=_style(peer),
                color=COLOURS[peer.name],
                marker="o",
                capsize=3,
            )
    axes.set(xscale="log", xlabel="senders", ylabel="messages/s", ylim=(0, None))
    axes.set_xticks(SENDERS, [str(senders) for senders in SENDERS])
    axes.grid(visible=True, alpha=0.3)
    if drawn:
        axes.legend(fontsize=7)
        _save(path, title, [axes])
    return drawn


def _tails(path: Path, title: str, lines: Sequence[Line], peers: Sequence[type[Peer]]) -> bool:
    _, axes = plt.subplots(figsize=(8, 4.5))
    drawn = False
    for peer in peers:
        points = distribution(latencies(lines, peer.name, "send-1-1024"))
        if points:
            drawn = True
            axes.plot(
                [ms for ms, _ in points],
                [left for _, left in points],
                _style(peer),
                label=_label(peer),
                color=COLOURS[peer.name],
            )
    axes.set(
        xscale="log",
        yscale="log",
        ylim=(1e-4, 1),
        xlabel="ms until the acknowledgement",
        ylabel="part of sends that took longer",
    )
    axes.grid(visible=True, which="both", alpha=0.3)
    if drawn:
        axes.legend(fontsize=7)
        _save(path, title, [axes])
    return drawn


def _kills(path: Path, title: str, lines: Sequence[Line], peers: Sequence[type[Peer]]) -> bool:
    kinds = (
        ("failover", "first_s", "leader SIGKILL to the first acknowledged send, s"),
        ("takeover", "takeover_s", "consumer SIGKILL to delivery elsewhere, s"),
    )
    _, both = plt.subplots(1, 2, figsize=(10, 4.0))
    drawn = False
    for axes, (work, key, label) in zip(both, kinds, strict=True):
        rows = [(peer, found) for peer in peers if (found := values(lines, peer.name, work, key))]
        for place, (peer, found) in enumerate(reversed(rows)):
            drawn = True
            axes.plot(found, [place] * len(found), "o", color=COLOURS[peer.name], alpha=0.6)
        axes.set_yticks(range(len(rows)), [_label(peer) for peer, _ in reversed(rows)], fontsize=7)
        axes.set(xscale="log", xlabel=label)
        axes.grid(visible=True, alpha=0.3)
    if drawn:
        both[0].figure.tight_layout()
        _save(path, title, list(both))
    return drawn
