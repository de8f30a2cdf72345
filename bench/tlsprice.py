"""
The price of TLS between replicas: the same sends with and without, in interleaved rounds.

``python -m bench.tlsprice [--rounds 3] [--quick] [--write docs/explanation/benchmarks.md]``. Clients stay plain on both sides; what each peer is:
``bench/peers/ours.py``.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.compare import PORTS, chosen, one_start
from bench.peers.catalogue import PEERS
from bench.report.figures import shown
from bench.report.origin import commit
from bench.report.results import Results, summary
from bench.works import CPU, FULL, P50, P99, QUICK, RATE

from bench import fetch
from bench.report import sections

PLAIN: Final = "orderlymq-wire"
OVER_TLS: Final = "orderlymq-wire-tls"
WORKS: Final = ("send-1-1024", "send-64-1024")


def rows(results: Results) -> Iterator[str]:
    """Yield the lines of the table: medians over rounds, and the ratio of TLS to plain."""
    yield "| work | figure | plain | over TLS | ratio |"
    yield "|---|---|---|---|---|"
    for work in WORKS:
        for figure in (RATE, P50, P99, CPU):
            found = [summary(results.lines, peer, work, figure.key) for peer in (PLAIN, OVER_TLS)]
            plain, tls = (each.median if each is not None else float("nan") for each in found)
            yield f"| `{work}` | {figure.title} | {shown(plain)} | {shown(tls)} | {tls / plain:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="two seconds of each work")
    parser.add_argument("--write", type=Path, help="also write the table into this page")
    given = parser.parse_args()
    scale = QUICK if given.quick else FULL
    # Stop the cluster before a requested exit: it runs in a separate session and would otherwise continue.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    fetch.load_program()
    with tempfile.TemporaryDirectory() as directory:
        results = Results(Path(directory) / "results.jsonl", commit())
        for number in range(given.rounds):
            for name in (PLAIN, OVER_TLS):
                works = chosen(PEERS[name], WORKS)
                one_start(PEERS[name], works, scale, number, results, PORTS)
    table = "\n".join(rows(results))
    print(table)
    troubled = [line for line in results.lines if line.trouble]
    if troubled:
        sys.exit(f"{len(troubled)} works failed: {troubled[0].trouble}")
    if given.write is not None:
        about = (
            f"`make bench-tls`: a broker group of three replicas on {os.cpu_count()} CPUs, medians of {given.rounds} interleaved rounds of {scale.seconds:g} s;"
            f" {time.strftime('%Y-%m-%d', time.gmtime())}. The replicas authenticate each other with certificates; clients use no TLS in either case."
        )
        sections.put(given.write, "tls", f"## TLS between replicas\n\n{about}\n\n{table}")


if __name__ == "__main__":
    main()
