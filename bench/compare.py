"""
The comparison: every peer in turn, round after round, the same work; ``make bench`` runs it.

``python -m bench.compare [--quick] [--peers ...] [--only ...] [--rounds N] [--write docs/explanation/benchmarks.md]``

In each round each peer is started on empty folders, put to work and stopped, so that no two share the machine and
a slow minute hits all of them. Results go to a file line by line; a run of the same commit that is cut off goes on where it was.
"""

import argparse
import fnmatch
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.execution import KINDS, START_TIMEOUT_S, Running
from bench.layers import limits
from bench.peers.catalogue import PEERS
from bench.peers.nodes import Peer, Ports
from bench.program import Program, ProgramError
from bench.report.origin import commit
from bench.report.results import Line, Results
from bench.works import (
    ALL,
    FULL,
    QUEUES,
    QUICK,
    QUICK_PEERS,
    QUICK_WORKS,
    Scale,
    Work,
)

from bench import fetch, remoting_works
from bench.report import page, sections

RESULTS = Path("build/bench/results.jsonl")
PORTS = 26_000
KINDS.update(remoting_works.KINDS)


@contextmanager
def running(kind: type[Peer], scale: Scale, ports: Ports, directory: Path) -> Iterator[Running]:
    """Start a peer with its load program; stop both at the end."""
    peer = kind(directory, ports)
    with Program(
        peer.client, peer.servers, directory / "program.log", address=peer.address
    ) as program:
        began = time.monotonic()
        try:
            peer.start()
            peer.form(START_TIMEOUT_S)
            ready = program.ask(
                "ready",
                START_TIMEOUT_S + 30,
                topic="first",
                queues=QUEUES,
                timeout=int(START_TIMEOUT_S),
            )
            yield Running(peer, program, scale, ready["ns"] / 1e9 - began, directory)
        except ProgramError as error:
            raise ProgramError(f"{error}\n{peer.logs()}") from error
        finally:
            peer.stop()


def chosen(peer: type[Peer], only: Sequence[str]) -> list[Work]:
    """Return the requested works that this peer supports."""
    found = []
    for work in ALL:
        wanted = not only or any(fnmatch.fnmatch(work.name, pattern) for pattern in only)
        able = (peer.speaks_remoting or not work.remoting) and (
            peer.client != "wire" or work.by_wire
        )
        if wanted and able:
            found.append(work)
    return found


def one_start(
    kind: type[Peer], works: Sequence[Work], scale: Scale, number: int, results: Results, ports: int
) -> int:
    """Do works in one start of a peer until one fails; return how many were tried.

    A failure is recorded. The works after it need a new start, because the failure may have left anything behind.
    """
    tried = 0
    with tempfile.TemporaryDirectory(prefix=f"bench-{kind.name}-") as folder:
        try:
            with running(kind, scale, Ports(ports), Path(folder)) as started:
                cold = scale.compile_s > 0
                for work in works:
                    tried += 1
                    if cold and work.kind in ("send", "both"):
                        started.warm_up()
                    cold = cold and work.kind not in ("send", "both", "stored")
                    began = time.monotonic()
                    line = started.do(work, number)
                    results.add(line)
                    _tell(line, work, time.monotonic() - began)
        except Exception as error:  # after any error, the other peers must still be measured
            failed = works[max(tried, 1) - 1]
            line = _failed(scale, kind, failed, number, error)
            results.add(line)
            _tell(line, failed, 0.0)
            # If the peer does not even start, do not try it again for each work.
            return tried or len(works)

    return tried


def _failed(scale: Scale, kind: type[Peer], work: Work, number: int, error: Exception) -> Line:
    return Line(scale.name, kind.name, work.name, number, {}, trouble=str(error)[:2000])


def _tell(line: Line, work: Work, seconds: float) -> None:
    told = line.trouble or ", ".join(
        f"{figure.title} {page.plain(line.figures.get(figure.key))}" for figure in work.figures
    )
    busy = f" (others used {line.elsewhere:.0%})" if line.elsewhere > 0.05 else ""
    print(f"{line.round} {line.peer} {line.work} [{seconds:.0f} s]: {told}{busy}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a few minutes")
    parser.add_argument("--peers", nargs="+", choices=PEERS, help="instead of all that are there")
    parser.add_argument("--only", nargs="+", default=[], help="works, by name or pattern: send-*")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--stored", type=int, help="messages for drains, memory and disk")
    parser.add_argument("--kills", type=int, help="leader and consumer kills per round")
    parser.add_argument("--seconds", type=float, help="of each measured send")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--again", action="store_true", help="forget earlier results")
    parser.add_argument("--ports", type=int, default=PORTS, help="the first port to use")
    parser.add_argument("--no-limits", action="store_true", help="do not measure the machine")
    parser.add_argument("--write", type=Path, help="also write this page and its pictures")
    given = parser.parse_args()
    # Stop the peers before a requested exit: they run in separate sessions and would otherwise continue.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    scale = page.scaled(QUICK if given.quick else FULL, given.stored, given.kills, given.seconds)
    names = given.peers or (QUICK_PEERS if given.quick else list(PEERS))
    given.only = given.only or (QUICK_WORKS if given.quick else [])
    rounds = given.rounds or (3 if scale.name.startswith("full") else 1)
    if given.again:
        given.results.unlink(missing_ok=True)
    if shutil.which("java") is None:
        sys.exit("the load program needs Java 17 and Maven: apt-get install openjdk-17-jdk maven")
    fetch.load_program()
    fetch.peers(names)
    results = Results(given.results, commit())
    if given.write is not None:
        found = page.lacking(given.write, _planned(given, scale, names, results))
        if found:
            sys.exit(sections.refusal(given.write, found))
    took = _all_rounds(given, scale, names, rounds, results)
    for line in took:
        if line.trouble:
            print(f"{line.peer} {line.work}: {line.trouble}", file=sys.stderr)
    if given.write is not None:
        try:
            page.write(given.write, results, scale.name, " ".join(sys.argv[1:]))
        except ValueError as error:
            sys.exit(str(error))


def _planned(
    given: argparse.Namespace, scale: Scale, names: Sequence[str], results: Results
) -> set[tuple[str, str]]:
    """Return the results that will exist if all goes well: those already measured and those requested."""
    found = page.measured(line for line in results.lines if line.scale == scale.name)
    for name in names:
        if PEERS[name].missing() is None:
            found |= {(name, work.name) for work in chosen(PEERS[name], given.only)}
    return found if given.no_limits else found | {(limits.PEER, work.name) for work in limits.ALL}


def _all_rounds(
    given: argparse.Namespace, scale: Scale, names: Sequence[str], rounds: int, results: Results
) -> Sequence[Line]:
    before = len(results.lines)
    absent = {name: PEERS[name].missing() for name in names}
    for name, reason in absent.items():
        if reason is not None:
            print(f"{name} is left out; {reason}", file=sys.stderr)
    for number in range(rounds):
        if not given.no_limits:
            limits.measure(scale, number, results)
        for name in names:
            if absent[name] is None:
                left = [
                    work
                    for work in chosen(PEERS[name], given.only)
                    if not (work.once and number)
                    and not results.has(scale.name, name, work.name, number)
                ]
                while left:
                    tried = one_start(PEERS[name], left, scale, number, results, given.ports)
                    left = left[tried:]
    return results.lines[before:]


if __name__ == "__main__":
    main()
