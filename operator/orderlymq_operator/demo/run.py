"""
Run the demo: start its processes, kill the leader in the middle, wait until all is consumed, ask the oracle.

Rule: this module owns the processes, and none outlives the call. The history file is the only evidence. `producer`
and `consumer` say what the processes do.
"""

import asyncio
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from orderlymq.oracle import history
from orderlymq.oracle.verdict import Event, Kind, Verdict, judge
from orderlymq_operator.demo.backlog import backlog
from orderlymq_operator.demo.credentials import Credentials
from orderlymq_operator.demo.display import Display, Scoreboard
from orderlymq_operator.demo.options import DemoOptions, MemberOptions
from orderlymq_operator.demo.reports import Report, parse
from orderlymq_operator.demo.topiccheck import check_topic
from orderlymq_operator.local.control import ControlClient
from orderlymq_operator.local.directory import DataDirectory
from orderlymq_operator.local.errors import FailedError

_PRODUCERS: Final = 3
_CONSUMERS: Final = 2
_ORDERS_AT_ONCE: Final = (
    12  # per producer: enough work for every queue, and little for two CPU cores
)
_PAUSE_S: Final = 0.05  # between the steps of one order
_REFRESH_S: Final = 0.125
_READY_TIMEOUT_S: Final = 30.0
_FINISH_TIMEOUT_S: Final = 60.0
_DRAIN_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 10.0
_LINE_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The verdict and the file with its evidence; `rate` is acknowledged messages per second."""

    verdict: Verdict
    rate: float
    history: Path

    @property
    def kept(self) -> bool:
        """Whether the promise was kept and everything was judged."""
        return self.verdict.kept and not self.verdict.not_judged

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON types."""
        verdict = self.verdict
        return {
            "kept": self.kept,
            "counts": verdict.counts,
            "findings": [
                {
                    "defect": str(finding.defect),
                    "message": finding.message,
                    "why": finding.explanation,
                }
                for finding in verdict.findings
            ],
            "notJudged": list(verdict.not_judged),
            "durationSeconds": round(verdict.duration_s, 3),
            "ratePerSecond": round(self.rate, 1),
            "ackGapMs": verdict.ack_gap_ms,
            "history": str(self.history),
        }


class _Member:
    """A process of the demo and its last report."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.process = process
        self.report: Report | None = None

    async def read(self, take: Callable[[Report], None]) -> None:
        """Read reports until the process ends."""
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            report = parse(line)
            if report is not None:
                self.report = report
                take(report)


async def run_demo(directory: DataDirectory, options: DemoOptions, *, quiet: bool) -> DemoResult:
    """Run the demo on the cluster of *directory* and return the oracle's verdict.

    Raises:
        UnreachableError: no cluster runs.
        RefusedError: the topic is not ordered; nothing was sent.
        FailedError: a process of the demo ended early, or the cluster did not recover.
    """
    control = ControlClient(directory)
    snapshot = await asyncio.to_thread(control.status)
    credentials = Credentials.of(directory)
    addresses = [group["address"] for group in snapshot["groups"]]
    await check_topic(addresses, options.topic, credentials)
    run = secrets.token_hex(4)
    path = directory.path / "demo" / f"{run}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    servers = ";".join(server["address"] for server in snapshot["nameServers"])

    board = Scoreboard()
    with history.Recorder(path, process="demo") as recorder, Display(board, quiet=quiet) as display:
        running = _Run(options, run, path, servers, recorder, board, control, credentials)
        async with _showing(display):
            await running.perform()
        events = await asyncio.to_thread(lambda: list(history.read(path)))
        verdict = await asyncio.to_thread(judge, events)
    result = DemoResult(verdict, acknowledged_per_second(events), path)
    display.show_verdict(verdict, result.rate)
    return result


def acknowledged_per_second(events: Iterable[Event]) -> float:
    """Return the rate from the first send to the last acknowledgement, including the fail-over."""
    sends = [event.at for event in events if event.kind is Kind.SEND]
    acks = [event.at for event in events if event.kind is Kind.ACK]
    return len(acks) * 1e9 / (max(acks) - min(sends)) if acks else 0.0


class _Run:
    """One run of the demo."""

    def __init__(
        self,
        options: DemoOptions,
        run: str,
        path: Path,
        name_servers: str,
        recorder: history.Recorder,
        board: Scoreboard,
        control: ControlClient,
        credentials: Credentials,
    ) -> None:
        self._options = options
        self._run = run
        self._path = path
        self._name_servers = name_servers
        self._recorder = recorder
        self._board = board
        self._control = control
        self._credentials = credentials
        self._log = path.with_suffix(".log")

    async def perform(self) -> None:
        """Run from the first process to the last consumed message."""
        async with self._members("consumer", _CONSUMERS) as consumers:
            await self._wait_until_ready(consumers)
            self._board.event(f"{len(consumers)} ordered consumers share the queues")
            async with self._members("producer", _PRODUCERS) as producers:
                self._board.event(f"{len(producers)} producers send the steps of orders")
                if self._options.kill:
                    await asyncio.sleep(self._options.seconds / 2)
                    await self._kill_leader()
                await self._wait_until_ended(producers)
            self._board.event("the last order was sent; waiting until everything is consumed")
            await self._wait_until_drained()
            topic, group = self._options.topic, self._options.group
            self._recorder.record(Kind.DRAINED, group=group, topic=topic)
            self._board.event("everything is consumed")

    # -- processes -----------------------------------------------------------------------------

    @asynccontextmanager
    async def _members(self, role: str, count: int) -> AsyncIterator[list[_Member]]:
        """Start processes of a role, and end them when the block ends, even by an error."""
        members: list[_Member] = []
        readers: list[asyncio.Task[None]] = []
        try:
            for number in range(1, count + 1):
                name = f"{role}-{number}"
                options = MemberOptions(
                    run=self._run,
                    process=name,
                    name_servers=self._name_servers,
                    topic=self._options.topic,
                    group=self._options.group,
                    history=str(self._path),
                    seconds=self._options.seconds,
                    orders_at_once=_ORDERS_AT_ONCE,
                    pause_s=_PAUSE_S,
                )
                member = _Member(name, await self._start(role, options))
                members.append(member)
                readers.append(
                    asyncio.create_task(member.read(self._board.take), name=f"read {name}")
                )
            yield members
        finally:
            await asyncio.gather(*(_end(member) for member in members))
            await asyncio.gather(*readers)

    async def _start(self, role: str, options: MemberOptions) -> asyncio.subprocess.Process:
        with self._log.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                f"orderlymq_operator.demo.{role}",
                msgspec.json.encode(options).decode(),
                # The pipe closes when this process ends, even after a crash, and then the member ends.
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=self._credentials.environment(),
                limit=_LINE_MAX,
                # Ctrl-C in a terminal goes only to this process, which ends the members in order.
                start_new_session=True,
            )

    # -- acts ----------------------------------------------------------------------------------

    async def _kill_leader(self) -> None:
        """Kill the leader of the first raft group without warning."""
        group, node, pid = await leader_of_first(self._control, self._log)
        os.kill(pid, signal.SIGKILL)
        self._recorder.record(Kind.FAULT, detail="leader killed")
        self._board.event(f"SIGKILL to the leader of {group} (node {node}, process {pid})")

    async def _wait_until_ready(self, members: list[_Member]) -> None:
        async with _deadline(_READY_TIMEOUT_S, "the consumers did not get their queues", self._log):
            while not all(member.report and member.report.ready for member in members):
                self._check_alive(members)
                await asyncio.sleep(_REFRESH_S)

    async def _wait_until_ended(self, producers: list[_Member]) -> None:
        timeout_s = self._options.seconds + _FINISH_TIMEOUT_S
        async with _deadline(timeout_s, "the producers did not finish their orders", self._log):
            for producer in producers:
                code = await producer.process.wait()
                if code != 0:
                    raise FailedError(f"{producer.name} ended with code {code}; see {self._log}")

    async def _wait_until_drained(self) -> None:
        """Wait until the consumer group's committed offsets reach the ends of all queues."""
        snapshot = await asyncio.to_thread(self._control.status)
        addresses = [group["address"] for group in snapshot["groups"]]
        async with _deadline(_DRAIN_TIMEOUT_S, "the consumers did not finish", self._log):
            while True:
                topic, group = self._options.topic, self._options.group
                if await backlog(addresses, topic, group, self._credentials) == 0:
                    return
                await asyncio.sleep(_REFRESH_S)

    def _check_alive(self, members: list[_Member]) -> None:
        for member in members:
            code = member.process.returncode
            if code is not None:
                raise FailedError(f"{member.name} ended with code {code}; see {self._log}")


async def leader_of_first(control: ControlClient, log: Path) -> tuple[str, int, int]:
    """Return name, node and process id of the first raft group's leader; wait during an election.

    Raises:
        FailedError: there was no leader for long.
    """
    async with _deadline(_READY_TIMEOUT_S, "found no leader to kill", log):
        while True:
            snapshot = await asyncio.to_thread(control.status)
            group = snapshot["groups"][0]
            for replica in group["replicas"]:
                if replica["node"] == group["leader"] and replica["pid"]:
                    return group["name"], replica["node"], replica["pid"]
            await asyncio.sleep(_REFRESH_S)


async def _end(member: _Member) -> None:
    """End a process gracefully, with force if it takes too long."""
    process = member.process
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(_STOP_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


@asynccontextmanager
async def _showing(display: Display) -> AsyncIterator[None]:
    """Refresh the display while the block runs."""

    async def refresh() -> None:
        while True:
            display.refresh()
            await asyncio.sleep(_REFRESH_S)

    task = asyncio.create_task(refresh(), name="display")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        display.refresh()


@asynccontextmanager
async def _deadline(timeout_s: float, complaint: str, log: Path) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        raise FailedError(f"{complaint} within {timeout_s:g} s; see {log}") from None
