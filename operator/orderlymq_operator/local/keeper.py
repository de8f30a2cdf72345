"""
The keeper of one process: it starts, watches, restarts and gracefully stops the process.

Rules: a dead process is restarted immediately, and more slowly each time it dies young. A process that stops
answering /healthz is killed, because a suspended leader would hold its raft group's port for ever. The process id is
recorded with its start time, so that the next supervisor after a crash finds the orphans and kills nothing else. Each
child has its own session, so that Ctrl-C in a terminal reaches only the supervisor.
"""

import asyncio
import json
import logging
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

import aiohttp
import psutil

from orderlymq_operator.local.directory import DataDirectory
from orderlymq_operator.local.processes import Program
from orderlymq_runtime.durablefiles import replace_file
from orderlymq_runtime.process.ending import FORCE_AFTER_S, SERVER_CLOSE_MAX_MS
from orderlymq_runtime.process.procstat import PROC, STARTED, stat_fields
from orderlymq_runtime.process.waits import wait_for

_log = logging.getLogger(__name__)

# The first are short, because most deaths are single. The last is for a process that cannot start at all.
RESTART_DELAYS_S: Final = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)
STEADY_S: Final = 30.0  # after this time alive, the next death counts as the first
PROBE_INTERVAL_S: Final = 1.0
PROBE_TIMEOUT_S: Final = 1.0
# Counted in probes and not by the clock, so that processes are not killed after a laptop slept.
PROBES_FAILED_MAX: Final = 5
START_GRACE_S: Final = 60.0  # opening a large store may take a while
# A process that hangs ends itself within this time and logs where. A process that was paused needs a moment more.
STOP_TIMEOUT_S: Final = SERVER_CLOSE_MAX_MS / 1000 + FORCE_AFTER_S + 0.75
# Processes that end gracefully are gone after this time; those that hang must not delay the end of the next ones.
WAVE_MAX_S: Final = 0.7
# The exit code of a server that cannot start; the last record of its log says why.
REFUSED: Final = 2
_REFUSAL: Final = "cannot start: "
_REFUSAL_SIZE_MAX: Final = 4 << 10
_LOG_SIZE_MAX: Final = 64 << 20  # a log that is larger is moved to NAME.log.1 at the next start
_BOOT_ID: Final = PROC / "sys" / "kernel" / "random" / "boot_id"

Report = Callable[[str, str], None]


class Stoppable(Protocol):
    """A process that can be stopped gracefully, with force after a time."""

    async def stop(self, timeout_s: float) -> None:
        """Stop it; return when it has ended."""


async def end_in_waves(waves: Sequence[Sequence[Stoppable]]) -> list[BaseException]:
    """End each wave when the previous one is gone or hangs, and all within `STOP_TIMEOUT_S`; return the errors."""
    loop = asyncio.get_running_loop()
    until = loop.time() + STOP_TIMEOUT_S
    endings: list[asyncio.Task[None]] = []
    for wave in filter(None, waves):
        begun = [asyncio.create_task(each.stop(until - loop.time())) for each in wave]
        await asyncio.wait(begun, timeout=WAVE_MAX_S)
        endings += begun
    found = await asyncio.gather(*endings, return_exceptions=True)

    return [failure for failure in found if failure is not None]


class Keeper:
    """Keeps *program* running from `start` until `stop`.

    Args:
        session: used for the probes.
        report: called with the name of the process and what happened to it.
    """

    def __init__(
        self,
        program: Program,
        directory: DataDirectory,
        session: aiohttp.ClientSession,
        report: Report,
    ) -> None:
        self.program = program
        self.restarts = 0
        self._directory = directory
        self._session = session
        self._report = report
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The process id; None while it does not run."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    def start(self) -> None:
        """Write the settings file and begin to keep the process running."""
        self.renew(self.program)
        self._task = asyncio.create_task(self._keep(), name=f"keep {self.program.name}")

    def renew(self, program: Program) -> None:
        """Write the settings file that the process reads at its next start."""
        replace_file(self._directory.settings(program.name), program.settings.encode())
        self.program = program

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stop the process gracefully, with force after *timeout_s*; return when it is gone."""
        self._stopping.set()
        if self.pid is not None:
            self._signal(signal.SIGTERM)
            # A suspended process does not receive SIGTERM before it continues.
            self._signal(signal.SIGCONT)
        if self._task is None:
            return
        done, _ = await asyncio.wait({self._task}, timeout=timeout_s)
        if not done:
            self._report(self.program.name, f"did not end within {timeout_s:g} s and was killed")
            self._signal(signal.SIGKILL)
        await self._task

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        young_deaths, said = 0, ""
        while not self._stopping.is_set():
            began = loop.time()
            try:
                code = await self._run_once()
                reason = _refusal(self._directory.log(self.program.name)) if code == REFUSED else ""
                ending = _ending(code) + (f" ({reason})" if reason not in ("", said) else "")
                said = reason
            except OSError as error:
                # No memory, no descriptors, a full disk: it may pass, so it counts as a death like any other.
                ending = f"could not be started: {error}"
            if self._stopping.is_set():
                break
            young_deaths = 0 if loop.time() - began > STEADY_S else young_deaths + 1
            delay = RESTART_DELAYS_S[min(max(young_deaths - 1, 0), len(RESTART_DELAYS_S) - 1)]
            self.restarts += 1
            self._report(self.program.name, f"{ending}; restarting it")
            await wait_for(self._stopping, delay)
        if not self._directory.is_gone():
            _forget(self._directory.run_record(self.program.name))

    async def _run_once(self) -> int:
        """Run the process until it ends, by itself or because it does not answer; return its exit code."""
        process = await self._spawn()
        self._process = process
        if self._stopping.is_set():
            self._signal(signal.SIGTERM)  # there was no process to signal before
        watch = asyncio.create_task(self._watch(process), name=f"watch {self.program.name}")
        try:
            return await process.wait()
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    async def _spawn(self) -> asyncio.subprocess.Process:
        path = self._directory.log(self.program.name)
        rotate(path)
        with path.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *self.program.command(self._directory),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            write_record(self._directory.run_record(self.program.name), process.pid)
        except OSError as error:
            # A full disk: the process matters more than its record.
            _log.warning("cannot record process %d: %s", process.pid, error)
        return process

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Kill the process if it stops answering for several probes, or never answers within `START_GRACE_S`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + START_GRACE_S
        answered = False
        failed = 0
        next_probe = loop.time() + PROBE_INTERVAL_S
        while True:
            # A probe that times out has used up its interval, so that silence is counted in whole seconds.
            await asyncio.sleep(max(0.0, next_probe - loop.time()))
            next_probe = loop.time() + PROBE_INTERVAL_S
            if self._stopping.is_set():
                return  # its pages may be closed, and `stop` knows how long the rest may take
            if await self._is_alive():
                answered, failed = True, 0
                continue
            failed += 1
            if self._stopping.is_set():
                return
            stuck = failed >= PROBES_FAILED_MAX if answered else loop.time() > deadline
            if stuck:
                self._report(self.program.name, "does not answer /healthz and is killed")
                process.kill()
                return

    async def _is_alive(self) -> bool:
        timeout = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S)
        try:
            async with self._session.get(
                f"{self.program.url}/healthz", timeout=timeout, ssl=False
            ) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    def _signal(self, number: signal.Signals) -> None:
        if self.pid is not None and self._process is not None:
            try:
                self._process.send_signal(number)
            except ProcessLookupError:
                _log.debug("%s ended before %s", self.program.name, number.name)


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal; most of them have no names
        return f"was ended by signal {-code}"


def _refusal(log: Path) -> str:
    """Return why the process that wrote *log* did not start; empty if the end of the log does not say so."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _REFUSAL_SIZE_MAX))
            _, found, reason = file.read().decode(errors="replace").rpartition(_REFUSAL)
    except OSError:
        return ""
    first, *further = reason.strip().splitlines() or [""]
    # The further lines of one record are indented.
    is_last = found and all(line.startswith(" ") for line in further)
    return (
        " ".join([_REFUSAL.strip(), *first.split(), *" ".join(further).split()]) if is_last else ""
    )


def rotate(path: Path) -> None:
    """Move a log that has grown large to `NAME.log.1`."""
    with suppress(FileNotFoundError):
        if path.stat().st_size > _LOG_SIZE_MAX:
            path.replace(path.with_name(f"{path.name}.1"))


def write_record(path: Path, pid: int) -> None:
    """Record a process id with its start time, which makes it unique, and with the folder that the process belongs to."""
    try:
        started = _start_of(psutil.Process(pid))
    except psutil.Error:
        return  # it has ended already
    facts = {"pid": pid, "started": started, "folder": _identity(path.parent)}
    replace_file(path, json.dumps(facts).encode())


def _identity(folder: Path) -> str:
    """Return a text that differs between *folder* and a copy of it."""
    found = folder.stat()
    return f"{found.st_dev} {found.st_ino}"


def _start_of(process: psutil.Process) -> str:
    """Return when a process was started, counted from the boot, because the time of day changes when the clock is set.

    Raises:
        psutil.Error: it has ended.
    """
    try:
        boot = _BOOT_ID.read_text().strip()
        return f"{boot} {stat_fields(process.pid)[STARTED]}"
    except OSError:
        return str(process.create_time())  # it has ended, or this is not Linux


def read_record(path: Path) -> tuple[int, str, str] | None:
    """Return the process id, start time and folder of a record; None if the file is not a record."""
    try:
        match json.loads(path.read_bytes()):
            case {"pid": int(pid), "started": str(started), "folder": str(folder)}:
                return pid, started, folder
            case _:
                return None
    except (OSError, ValueError):
        return None


def orphan(path: Path) -> psutil.Process | None:
    """Return the process of a record if that same process still lives; None for the record of a copied folder."""
    record = read_record(path)
    if record is None or record[2] != _identity(path.parent):
        return None
    pid, started, _ = record
    try:
        process = psutil.Process(pid)
        lives = _start_of(process) == started
        return process if lives and process.status() != psutil.STATUS_ZOMBIE else None
    except (ValueError, OverflowError, psutil.Error):
        return None


def end_orphans(directory: DataDirectory) -> list[int]:
    """End the children that a crashed supervisor left behind; return their process ids."""
    records = [path for path in directory.run_records() if read_record(path) is not None]
    found = [process for path in records if (process := orphan(path)) is not None]
    for process in found:
        _quietly(process.terminate)
        _quietly(process.resume)
    _, alive = psutil.wait_procs(found, timeout=STOP_TIMEOUT_S)
    for process in alive:
        _quietly(process.kill)
    psutil.wait_procs(alive, timeout=STOP_TIMEOUT_S)
    for path in records:
        _forget(path)
    return [process.pid for process in found]


def _forget(path: Path) -> None:
    """Delete the record of an ended process; if that fails, the record stays and matches no process."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("cannot delete %s: %s", path, error)


def _quietly(signal_process: Callable[[], None]) -> None:
    try:
        signal_process()
    except psutil.Error:
        _log.debug("a process ended by itself")
