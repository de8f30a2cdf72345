"""
Be hostile: `python -m tests.hostile --seed 7`, first to the cores without sockets, then to real processes.

`--minutes` or `--requests` bound the run against processes; half of it is with access control. `--case` repeats one
case, with `--cases` so many from it on. The exit code is 1 when something was found; docs/evidence/hostile.md says more.
"""

import argparse
import gc
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.hostile.assault import Assault
from tests.hostile.cases import Generator
from tests.hostile.findings import Findings
from tests.hostile.inprocess import InProcess
from tests.hostile.target import Target

# The share of a run's time for the cores; the processes get the rest.
_SHARE_IN_PROCESS: Final = 0.25
# Requests to the ports other than that of the clients; they take some seconds.
_PAGES: Final = 300
_CONSOLE: Final = 300
_CALLS: Final = 600
_ENDLESS: Final = 1 << 40
# Limits the address space of this process and of each that it starts: a request that takes more is reported with
# its case, and the machine survives.
_MEMORY_MAX: Final = 8 << 30
# The time between two lines of progress if there is no terminal to show a bar.
_LINE_S: Final = 60.0
# A request that blocks the loop for so long also delays raft's heartbeats.
_SLOW_S: Final = 0.1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the attack as the command line says and return the exit code."""
    options = _parser().parse_args(arguments)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_MAX, _MEMORY_MAX))
    # SIGTERM must end the started processes, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    console = Console(stderr=True)
    findings = Findings(lambda text: console.print(text, markup=False, soft_wrap=True))
    systematic = Generator(options.seed).systematic
    console.print(f"seed {options.seed}: {systematic} cases by system, then by chance")
    first, count = 0, options.requests or _ENDLESS
    if options.case is not None:
        first, count = options.case, options.cases
    seconds = 60.0 * options.minutes if options.minutes else float("inf")
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[told]}"),
        console=console,
    ) as progress:
        others = (options.page, options.console, options.peer, options.liar)
        other_port = any(each is not None for each in others)
        if other_port:
            _other_port(options, findings)
        elif options.only != "processes":
            limit = seconds if options.only else seconds * _SHARE_IN_PROCESS
            _in_process(options.seed, first, count, limit, findings, progress)
        if options.only != "cores" and not other_port:
            rest = seconds if options.only else seconds * (1 - _SHARE_IN_PROCESS)
            modes = (bool(options.guarded),) if options.case is not None else (False, True)
            for guarded in modes:
                share = count if options.case is not None else max(1, count // len(modes))
                _processes(options, guarded, first, share, rest / len(modes), findings, progress)
    _report(console, findings)
    return 1 if len(findings) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--requests", type=int, default=0)
    parser.add_argument("--case", type=int, help="repeat this case")
    parser.add_argument("--cases", type=int, default=1, help="and so many from it on")
    parser.add_argument("--page", type=int, help="repeat this request for an HTTP page")
    parser.add_argument("--console", type=int, help="repeat this request for the console")
    parser.add_argument("--peer", type=int, help="repeat this call at the replicas' port")
    parser.add_argument("--liar", type=int, help="repeat this call there with the secret")
    parser.add_argument("--guarded", action="store_true", help="repeat with access control")
    parser.add_argument("--only", choices=("cores", "processes"))
    parser.add_argument("--clients-only", action="store_true", help="spare the replicas' port")
    parser.add_argument("--keep", type=Path, help="where logs and data stay")
    return parser


def _other_port(options: argparse.Namespace, findings: Findings) -> None:
    with tempfile.TemporaryDirectory(prefix="hostile-") as scratch:
        target = Target(Path(scratch) / "one", bool(options.guarded))
        target.start()
        try:
            assault = Assault(target, options.seed, findings)
            if options.page is not None:
                assault.ask_pages(options.page, options.cases)
            elif options.console is not None:
                assault.ask_console(options.console, options.cases)
            elif options.liar is not None:
                assault.call_as_liar(options.liar, options.cases)
            else:
                assault.call_as_stranger(options.peer, options.cases)
        finally:
            target.stop()


def _until(seconds: float) -> Callable[[], bool]:
    deadline = time.monotonic() + seconds
    return lambda: time.monotonic() < deadline


def _in_process(
    seed: int, first: int, count: int, seconds: float, findings: Findings, progress: Progress
) -> None:
    runner = InProcess(seed, findings, slow_s=_SLOW_S)
    task = progress.add_task("cores", total=None if count == _ENDLESS else count, told="")
    go_on = _until(seconds)
    # A garbage collection during a request would count as the request's own time.
    gc.disable()
    try:
        for done in runner.run(first, count):
            progress.update(task, completed=done, told=f"{len(findings)} findings")
            gc.collect()
            if not go_on():
                break
    finally:
        gc.enable()


def _processes(
    options: argparse.Namespace,
    guarded: bool,
    first: int,
    count: int,
    seconds: float,
    findings: Findings,
    progress: Progress,
) -> None:
    name = "processes, guarded" if guarded else "processes, open"
    task = progress.add_task(name, total=None if count == _ENDLESS else count, told="starting")
    with tempfile.TemporaryDirectory(prefix="hostile-") as scratch:
        directory = (options.keep or Path(scratch)) / ("guarded" if guarded else "open")
        target = Target(directory, guarded)
        target.start()
        try:
            assault = Assault(target, options.seed, findings)
            began = time.monotonic()
            line_at = began + _LINE_S
            for done in assault.run(first, count, _until(seconds)):
                now = time.monotonic()
                told = f"{done / (now - began):.0f}/s, {assault.told}, {len(findings)} findings"
                progress.update(task, completed=done, told=told)
                if now >= line_at and not progress.console.is_terminal:
                    line_at = now + _LINE_S
                    progress.console.print(f"{name}: {done} requests, {told}")
            if options.case is None:
                progress.update(task, told="other ports")
                assault.ask_pages(0, _PAGES)
                assault.ask_console(0, _CONSOLE)
                if not options.clients_only:
                    assault.call_as_stranger(0, _CALLS)
            # A replica that lies can break any promise, so the history ends before it.
            target.end_clients()
            verdict = target.judge()
            if problem := target.cannot_start_again():
                law = "what was kept keeps a process from starting again"
                findings.add(law, "", problem, f"make hostile SEED={options.seed}")
            if options.case is None and not options.clients_only:
                assault.call_as_liar(0, _CALLS)
        finally:
            target.stop()
        if not verdict.kept:
            for found in verdict.findings:
                findings.add(
                    "the promise is broken", str(found.defect), "\n".join(found.lines()), ""
                )
    progress.console.print(
        f"{name}: {assault.requests} requests, {assault.told}, {assault.stalls_of_the_machine} stalls without CPU time, "
        f"{assault.closed} lasting connections closed, "
        f"at most {assault.memory_max >> 20} MiB in a process, {assault.untold} closed without a word in the log, "
        f"{assault.forged_away} times no leader after a replica had lied, history {verdict.counts}"
    )


def _report(console: Console, findings: Findings) -> None:
    if not len(findings):
        console.print("[green]nothing was found")
        return
    table = Table(title=f"{len(findings)} findings", show_lines=True)
    for column in ("law", "where", "times", "codes", "first seen", "repeat"):
        table.add_column(column, overflow="fold")
    for each in findings:
        codes = " ".join(map(str, sorted(each.codes)[:12]))
        table.add_row(each.law, each.where, str(each.count), codes, each.detail, each.repeat)
    Console(width=200).print(table, markup=False)


if __name__ == "__main__":
    sys.exit(main())
