import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import psutil
import pytest

from orderlymq_broker.settings import Address, BrokerSettings
from orderlymq_nameserver.settings import NameServerSettings
from orderlymq_operator.kube.objects import pods
from orderlymq_operator.local import keeper, session, supervisor
from orderlymq_operator.local.directory import DataDirectory
from orderlymq_operator.local.keeper import Keeper
from orderlymq_operator.local.processes import Program
from orderlymq_runtime.process.ending import FORCE_AFTER_S

# Serves /healthz on the port in its settings; can be told to exit with code 7, to ignore SIGTERM, or to be slow.
_PROGRAM = """
import http.server, json, signal, sys, time
settings = json.load(open(sys.argv[2]))
if settings.get("die"):
    sys.exit(7)
if settings.get("refuse"):
    print("2026-11-30 ERROR one: cannot start: the disk is gone;\\n look at it", flush=True)
    sys.exit(2)
if settings.get("deaf"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    def end(*_):
        if settings.get("slow"):
            server.server_close()
            time.sleep(1.5)
        print("ended", flush=True)
        sys.exit(0)
    signal.signal(signal.SIGTERM, end)
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        print("answered", flush=True)
    def log_message(self, *_):
        pass
server = http.server.HTTPServer(("127.0.0.1", settings["port"]), Health)
print("serving", flush=True)
server.serve_forever()
"""


class Stage:
    """Makes keepers of the program above and collects their reports."""

    def __init__(self, path: Path, port: int, session: aiohttp.ClientSession) -> None:
        self.directory = DataDirectory(path / "data")
        self.directory.create()
        self.reports: list[str] = []
        self.keepers: list[Keeper] = []
        self._port = port
        self._session = session

    def keep(self, **settings: bool) -> Keeper:
        text = json.dumps({"port": self._port, **settings})
        program = Program("one", "kept", text, "127.0.0.1", self._port, ())
        found = Keeper(program, self.directory, self._session, self._report)
        self.keepers.append(found)
        found.start()
        return found

    def _report(self, name: str, text: str) -> None:
        self.reports.append(f"{name} {text}")

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 - it waits for other processes
                await asyncio.sleep(0.01)

    def serves(self) -> bool:
        return "serving" in self._log()

    def has_answered(self) -> bool:
        """Return whether a probe was answered and a next one came, so that the first answer has arrived."""
        return self._log().count("answered") >= 2

    def has_ended_in_order(self) -> bool:
        return "ended" in self._log()

    def _log(self) -> str:
        log = self.directory.log("one")
        return log.read_text() if log.exists() else ""


@pytest.fixture
async def stage(
    tmp_path: Path, ports: int, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Stage]:
    (tmp_path / "kept.py").write_text(_PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(keeper, "PROBE_INTERVAL_S", 0.05)
    async with aiohttp.ClientSession() as session:
        found = Stage(tmp_path, ports, session)
        yield found
        for each in found.keepers:
            await each.stop()
        assert found.directory.run_records() == []


async def test_a_killed_process_is_started_again_immediately(stage: Stage) -> None:
    """Law: a killed process is started again immediately."""
    kept = stage.keep()
    await stage.until(stage.serves)
    first = kept.pid

    assert first is not None
    os.kill(first, signal.SIGKILL)
    await stage.until(lambda: kept.restarts == 1 and kept.pid not in (None, first))

    assert stage.reports == ["one was ended by SIGKILL; restarting it"]


async def test_a_process_that_cannot_start_is_tried_more_and_more_slowly(stage: Stage) -> None:
    """Law: a process that cannot start is tried again with growing pauses, and never given up."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    kept = stage.keep(die=True)

    await stage.until(lambda: kept.restarts == 4)

    assert loop.time() - began > sum(keeper.RESTART_DELAYS_S[:3])
    assert set(stage.reports) == {"one ended with code 7; restarting it"}


async def test_a_process_that_refuses_to_start_says_why_once(stage: Stage) -> None:
    """Law: the reason why a process refuses to start is reported once."""
    kept = stage.keep(refuse=True)

    await stage.until(lambda: kept.restarts == 3)

    assert stage.reports == [
        "one ended with code 2 (cannot start: the disk is gone; look at it); restarting it",
        "one ended with code 2; restarting it",
        "one ended with code 2; restarting it",
    ]


async def test_a_stopped_process_is_killed_and_started_again(stage: Stage) -> None:
    """Law: a stopped process (SIGSTOP) fails its probes, is killed and started again; it would hold its port."""
    kept = stage.keep()
    await stage.until(stage.has_answered)
    first = kept.pid
    assert first is not None

    os.kill(first, signal.SIGSTOP)
    await stage.until(lambda: kept.restarts == 1 and kept.pid is not None)

    assert stage.reports == [
        "one does not answer /healthz and is killed",
        "one was ended by SIGKILL; restarting it",
    ]


async def test_stopping_is_orderly_and_final(stage: Stage) -> None:
    """Law: an orderly stop sends SIGTERM, starts nothing again and leaves no record."""
    kept = stage.keep()
    await stage.until(stage.serves)

    await kept.stop(20.0)

    assert (kept.pid, kept.restarts, stage.reports) == (None, 0, [])
    assert stage.directory.run_records() == []


@pytest.mark.parametrize("turns", [1, 2, 3])
async def test_a_process_that_is_just_made_is_stopped_in_good_order(
    stage: Stage, turns: int
) -> None:
    """Law: SIGTERM reaches a process that has just been made, even if it had no process id when the stop began."""
    kept = stage.keep()
    for _ in range(turns):
        await asyncio.sleep(0)

    async with asyncio.timeout(30):
        await kept.stop(600.0)

    assert (kept.pid, kept.restarts, stage.reports) == (None, 0, [])


async def test_a_signal_without_a_name_is_a_death_like_others(stage: Stage) -> None:
    """Law: a process that ends by a signal without a name is also started again and reported."""
    kept = stage.keep()
    await stage.until(stage.serves)
    first, number = kept.pid, signal.SIGRTMIN + 1
    assert first is not None

    os.kill(first, number)
    await stage.until(lambda: kept.restarts == 1 and kept.pid not in (None, first))

    assert stage.reports == [f"one was ended by signal {number}; restarting it"]


async def test_a_process_that_is_deaf_to_sigterm_is_killed(stage: Stage) -> None:
    """Law: a process that ignores SIGTERM is killed after the timeout."""
    kept = stage.keep(deaf=True)
    await stage.until(stage.serves)

    await kept.stop(timeout_s=0.2)

    assert kept.pid is None
    assert stage.reports == ["one did not end within 0.2 s and was killed"]


async def test_a_process_that_ends_slowly_is_not_killed(stage: Stage) -> None:
    """Law: a process that ends slowly is not killed because its probes fail; a broker closes its pages first."""
    kept = stage.keep(slow=True)
    await stage.until(stage.has_answered)

    await kept.stop()

    assert (stage.has_ended_in_order(), stage.reports) == (True, [])


def test_whoever_ends_a_server_waits_for_longer_than_its_end_may_take(tmp_path: Path) -> None:
    """Law: the one who ends a server waits longer than its own end may take, so a hanging process can say where,
    and none is left.
    """
    address = Address("127.0.0.1", 1)
    servers = (
        BrokerSettings(
            cluster="demo",
            group="demo-0",
            node_id=1,
            peers={},
            address=address,
            http=address,
            data_dir=tmp_path,
            name_servers=[],
        ).shutdown_max_ms,
        NameServerSettings().shutdown_max_ms,
    )
    end_max_s = max(servers) / 1000 + FORCE_AFTER_S

    assert end_max_s < keeper.STOP_TIMEOUT_S
    # The last of three waves is asked to end only then.
    assert 2 * keeper.WAVE_MAX_S + max(servers) / 1000 < keeper.STOP_TIMEOUT_S
    assert supervisor.BESIDE_S + keeper.STOP_TIMEOUT_S < supervisor.CLOSE_MAX_S
    assert supervisor.CLOSE_MAX_S + FORCE_AFTER_S <= 15
    assert session.DOWN_TIMEOUT_S > supervisor.CLOSE_MAX_S + FORCE_AFTER_S
    assert end_max_s < pods.GRACE_S


class Deaf:
    """A child that ends only when it may."""

    def __init__(self, name: str, heard: list[str]) -> None:
        self.name = name
        self.heard = heard
        self.patience_s: list[float] = []
        self.may_end = asyncio.Event()

    async def stop(self, timeout_s: float) -> None:
        self.heard.append(self.name)
        self.patience_s.append(timeout_s)
        await self.may_end.wait()


@pytest.mark.parametrize("wave_s", [0.0, 600.0])
async def test_a_wave_ends_before_the_next_one_unless_it_hangs(
    monkeypatch: pytest.MonkeyPatch, wave_s: float
) -> None:
    """Law: children of one wave end side by side; the next wave begins after them, or after a timeout if one hangs."""
    monkeypatch.setattr(keeper, "WAVE_MAX_S", wave_s)
    heard: list[str] = []
    follower, leader, server = (Deaf(name, heard) for name in ("follower", "leader", "server"))

    ending = asyncio.create_task(keeper.end_in_waves([[follower], [leader], [], [server]]))
    async with asyncio.timeout(30):
        for child in (follower, leader, server):
            while child.name not in heard:  # noqa: ASYNC110 - nothing signals it
                await asyncio.sleep(0)
            expected = ["follower", "leader", "server"][: heard.index(child.name) + 1]
            assert heard == expected or not wave_s
            if wave_s:
                child.may_end.set()
        for child in (follower, leader, server):
            child.may_end.set()
        await ending

    assert heard == ["follower", "leader", "server"]
    assert all(sum(each.patience_s) <= keeper.STOP_TIMEOUT_S for each in (follower, leader, server))


async def test_what_keeps_one_child_from_its_end_leaves_no_other_behind() -> None:
    """Law: a failure to end one child leaves no other behind: all are asked, and the caller gets the failure."""
    heard: list[str] = []

    class Broken(Deaf):
        async def stop(self, timeout_s: float) -> None:
            raise OSError("no such process")

    last = Deaf("last", heard)
    last.may_end.set()

    (failure,) = await keeper.end_in_waves([[Broken("first", heard)], [last]])

    assert (heard, str(failure)) == (["last"], "no such process")


async def test_stopping_does_not_wait_for_a_restart_delay(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a stop between two tries does not wait for the restart delay."""
    monkeypatch.setattr(keeper, "RESTART_DELAYS_S", (0.0, 600.0))
    kept = stage.keep(die=True)
    await stage.until(lambda: kept.restarts == 1)

    async with asyncio.timeout(30):
        await kept.stop()


def _sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])


# Records beside ours that are not ours.
_FOREIGN = {
    "damaged": "{",
    "other": '{"pid": 1}',
    "list": "[1]",
    "text": '{"pid": "1", "started": "1", "folder": "1"}',
}


def test_orphans_are_ended_and_nobody_else(tmp_path: Path) -> None:
    """Law: orphans are ended, but nothing else: another start time means another process, and foreign records stay."""
    directory = DataDirectory(tmp_path)
    directory.create()
    orphan, stranger = _sleeper(), _sleeper()
    try:
        keeper.write_record(directory.run_record("orphan"), orphan.pid)
        keeper.write_record(directory.run_record("stranger"), stranger.pid)
        record = json.loads(directory.run_record("stranger").read_text())
        record["started"] = record["started"][:-1] + "x"
        directory.run_record("stranger").write_text(json.dumps(record))
        for name, text in _FOREIGN.items():
            directory.run_record(name).write_text(text)

        ended = keeper.end_orphans(directory)

        assert ended == [orphan.pid]
        assert not psutil.pid_exists(orphan.pid)
        assert stranger.poll() is None
    finally:
        for process in (orphan, stranger):
            process.kill()
            process.wait()
    assert {path.stem for path in directory.run_records()} == _FOREIGN.keys()


def test_a_copy_of_a_data_directory_ends_no_process_of_the_original(tmp_path: Path) -> None:
    """Law: a copied data directory ends no process of the original, although its records name them."""
    original = DataDirectory(tmp_path / "original")
    original.create()
    process = _sleeper()
    try:
        keeper.write_record(original.run_record("broker"), process.pid)
        copy = DataDirectory(tmp_path / "copy")
        shutil.copytree(original.path, copy.path)

        assert keeper.end_orphans(copy) == []
        assert copy.run_records() == []
        assert process.poll() is None
        assert keeper.end_orphans(original) == [process.pid]
    finally:
        process.kill()
        process.wait()


def test_an_orphan_is_found_after_the_clock_was_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: an orphan is found even after the clock was set, which moves its start time of day."""
    orphan = _sleeper()
    try:
        keeper.write_record(tmp_path / "orphan", orphan.pid)
        boot = psutil.boot_time()
        monkeypatch.setattr("psutil._pslinux.boot_time", lambda: boot + 3600)

        found = keeper.orphan(tmp_path / "orphan")

        assert found is not None
        assert found.pid == orphan.pid
    finally:
        orphan.kill()
        orphan.wait()


def test_a_large_log_is_moved_away_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a large log is moved away at the next start, so it does not fill the disk."""
    monkeypatch.setattr(keeper, "_LOG_SIZE_MAX", 10)
    log = tmp_path / "one.log"
    log.write_text("x" * 11)

    keeper.rotate(log)
    keeper.rotate(log)

    assert [path.name for path in tmp_path.iterdir()] == ["one.log.1"]
