"""
The processes under attack: three replicas, a name server, a console, and clients whose history is judged.

Checked from outside: which processes live under which ids, who leads in which term, how long each event loop was
blocked, and how much memory each process holds.
"""

import contextlib
import http.client
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil

from orderlymq.oracle import verdict as oracle
from orderlymq.oracle.history import read
from orderlymq.oracle.verdict import Verdict
from orderlymq_broker.processors.admin.access import signature
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand, request
from tests.cluster.processes import START_TIMEOUT_S, Child, Group
from tests.hostile.pages import Session
from tests.hostile.shapes import BROKER, CLUSTER, QUEUES, TOPICS
from tests.hostile.world import STRONG, WEAK
from tests.nemesis.clients.accounts import Account
from tests.nemesis.clients.consumer import ConsumingOptions
from tests.nemesis.clients.producer import ProducingOptions
from tests.ports import free_ports
from tests.trouble.rawsocket import RawSocket

#: No case names this topic, so that no case touches its history.
JUDGED_TOPIC: Final = "judged"
JUDGED_GROUP: Final = "judges"
#: The bound of this test: a longer stall is a finding.
STALL_S: Final = "0.1"
_STALLS: Final = re.compile(
    r'^orderlymq_loop_stall_seconds_(bucket|count)\{clock="(\w+)"(?:,le="([0-9.]+)")?\} (\S+)', re.M
)
# A page needs the event loop. A process that serves none for so long hangs, however busy the machine is.
_HUNG_S: Final = 15.0
_DUMPED_S: Final = 20.0
# The most bytes that one batch may write.
_LOG_END: Final = 2 << 20
# `faulthandler` writes the frames of each thread, the innermost first and the main thread last.
_DUMPED: Final = re.compile(
    r'^  File "[^"]*/((?:broker|protocol|client|console)/[^"]+)", line \d+ in (\S+)'
)
_SIGN_IN: Final = re.compile(r'"signIn": ?"http://[^/"]+([^"]+)"')
_PROOF: Final = re.compile(r'name="proof" value="([^"]+)"')
_OURS: Final = re.compile(
    r'^  File "[^"]*/((?:broker|protocol|client|console)/[^"]+)", line \d+, in (\w+)'
)
_ERROR: Final = re.compile(
    r"^(\w+(?:\.\w+)*(?:Error|Exception|Corrupt|Refused|Exit)\w*)(?:: (.*))?$"
)


@dataclass(slots=True)
class Stalls:
    """The number of stalls of an event loop longer than STALL_S, by clock, and a bound of the worst.

    Attributes:
        worst_cpu_s: the bound of the histogram that all stalls by the CPU clock are below.
    """

    wall: int = 0
    cpu: int = 0
    worst_cpu_s: float = 0.0


@dataclass(slots=True)
class Target:
    """A running broker group; `start`, any number of checks, `stop`."""

    directory: Path
    guarded: bool
    group: Group = field(init=False)
    console: Child = field(init=False)
    console_port: int = field(init=False)
    name_server_http: int = field(init=False)
    starts: int = 0
    _clients: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._make()

    def _make(self) -> None:
        directory = self.directory / f"group-{self.starts}"
        directory.mkdir(parents=True)
        overrides: dict[str, Any] = {
            "cluster": CLUSTER,
            "group": BROKER,
            # The caches must not hide memory that is kept for good.
            "storage": {"tail_cache_size": 8 << 20, "block_cache_size": 8 << 20},
        }
        if self.guarded:
            secret = directory / "operator.secret"
            secret.write_text(STRONG[1] + "\n")
            overrides["access"] = {
                "enable": True,
                "operator_key": STRONG[0],
                "operator_secret_file": str(secret),
            }
        self.group = Group(directory, overrides=overrides)
        (self.console_port,) = free_ports(1)
        arguments = ["-m", "orderlymq_console", "--listen", f"127.0.0.1:{self.console_port}"]
        arguments += ["--name-server", self.group.name_server_address, "--output", "json"]
        account = Account(*STRONG).environment()
        self.console = Child(arguments, directory / "console.log", environment=account)
        for child in self.children().values():
            # SIGABRT makes a hanging process list where each thread is.
            child.arguments[:0] = ["-X", "faulthandler"]
        # The place of a replica that could join.
        self.name_server_http = self.group.http_ports[self.group.replicas + 1]
        path = directory / "name-server.json"
        settings = json.loads(path.read_text())
        settings["http"] = {"host": "127.0.0.1", "port": self.name_server_http}
        path.write_text(json.dumps(settings))

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start everything, and create the topics that cases name."""
        self.starts += 1
        self.group.start()
        for topic in (*TOPICS[:2], JUDGED_TOPIC):
            self.administer(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_ext(topic))
        if self.guarded:
            account = {"accessKey": WEAK[0], "secretKey": WEAK[1], "topicPerms": f"{TOPICS[0]}=SUB"}
            self.administer(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, account)
        self.console.start()
        self._start_clients()

    def _start_clients(self) -> None:
        history = str(self._history)
        common = {
            "name_servers": self.group.name_server_address,
            "history": history,
            "topic": JUDGED_TOPIC,
        }
        self._client("producer", ProducingOptions(process=f"p{self.starts}", **common))  # type: ignore[arg-type]
        self._client(
            "consumer",
            ConsumingOptions(process=f"c{self.starts}", group=JUDGED_GROUP, **common),  # type: ignore[arg-type]
        )

    def _client(self, program: str, options: msgspec.Struct) -> None:
        with (self.directory / f"{program}.log").open("ab") as log:
            self._clients.append(
                subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        f"tests.nemesis.clients.{program}",
                        msgspec.json.encode(options).decode(),
                    ],
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **Account(*STRONG).environment()},
                )
            )

    def administer(self, code: RequestCode, ext: dict[str, str], body: bytes = b"") -> None:
        """Send the leader a request as the operator; raises AssertionError if it refuses."""
        command = self.signed(request(code, ext, body))
        deadline = time.monotonic() + 20.0
        while True:
            with contextlib.suppress(OSError), RawSocket(self.group.port) as raw:
                answer = raw.call(command)
                if answer is not None and answer.code == 0:
                    return
            assert time.monotonic() < deadline, f"request {code} of the operator was not served"
            time.sleep(0.05)

    def signed(self, command: RemotingCommand) -> RemotingCommand:
        """Sign a request as the operator if access control is on."""
        if self.guarded:
            command.ext["AccessKey"] = STRONG[0]
            command.ext["Signature"] = signature(command.ext, command.body, STRONG[1])
        return command

    def revive(self) -> bool:
        """Start the processes that died; return False if the broker group had to be made again."""
        for child in self.children().values():
            if not child.is_running:
                child.start()
        try:
            self.group.wait_for_leader()
            for child in self.children().values():
                assert child.is_running
        except AssertionError:
            self.stop()
            self._make()
            self.start()
            return False
        return True

    def cannot_start_again(self) -> str:
        """Stop and restart all processes, which must be able to read their data; return the problem, empty if none."""
        self.group.stop()
        try:
            self.group.start()
            self.group.wait_until_equal(60.0)
        except AssertionError as error:
            return str(error)
        return ", ".join(f"{name}: {self.last_error(name)[1]}" for name in self.dead())

    def stop(self) -> None:
        """End the clients first, so that the history has no half of a request, then the rest."""
        self.end_clients()
        self.console.kill()
        self.group.stop()

    def end_clients(self) -> None:
        """End the producer and the consumer, so that nothing is added to the history."""
        for client in self._clients:
            client.terminate()
        for client in self._clients:
            try:
                client.wait(10.0)
            except subprocess.TimeoutExpired:
                client.kill()
        self._clients.clear()

    @property
    def _history(self) -> Path:
        # A broker group that was made again has lost what the former one acknowledged; that is a separate finding.
        return self.directory / f"history-{self.starts}.jsonl"

    def judge(self) -> Verdict:
        """Return the oracle's verdict on the history of the legitimate clients of this broker group."""
        path = self._history
        return oracle.judge(read(path) if path.exists() else [])

    # -- looks -----------------------------------------------------------------------------------

    def children(self) -> dict[str, Child]:
        """Return the processes under attack by name."""
        nodes = {f"broker {node}": child for node, child in self.group.brokers.items()}
        return {"name server": self.group.name_server, "console": self.console, **nodes}

    def dead(self) -> list[str]:
        """Return the processes that have ended."""
        return [name for name, child in self.children().items() if not child.is_running]

    def last_error(self, name: str) -> tuple[str, str]:
        """Return where and with which error the process ended, by its log."""
        lines = self.children()[name].log_path.read_text(errors="replace").splitlines()[-400:]
        place, found = "", ("no traceback", "\n".join(lines[-3:]))
        for line in lines:
            if match := _OURS.match(line):
                place = f"{match[1]}:{match[2]}"
            elif place and (match := _ERROR.match(line)):
                found, place = (f"{match[1]} in {place}", match[2] or ""), ""
        return found

    def hung(self) -> list[str]:
        """Return the processes that run but serve no page."""
        return [
            name
            for name, child in self.children().items()
            if child.is_running and not self._answers(name)
        ]

    def _answers(self, name: str) -> bool:
        try:
            url = f"http://127.0.0.1:{self._pages()[name]}/healthz"
            with urllib.request.urlopen(url, timeout=_HUNG_S):
                return True
        except urllib.error.HTTPError:
            return True
        except TimeoutError:
            return False
        except OSError as error:
            # A server that refuses has not opened its port yet, or has ended.
            return not isinstance(getattr(error, "reason", error), TimeoutError)

    def end_hung(self, name: str) -> tuple[str, str]:
        """End a process that hangs; return where its event loop was, and all its frames there."""
        child = self.children()[name]
        written = child.log_path.stat().st_size
        child.signal(signal.SIGABRT)
        try:
            child.wait(_DUMPED_S)
        except subprocess.TimeoutExpired:
            child.kill()
        dump = child.log_path.read_bytes()[written:].decode(errors="replace")
        frames = dump.rpartition("(most recent call first):")[2].splitlines()
        ours = [f"{match[1]}:{match[2]}" for line in frames if (match := _DUMPED.match(line))]
        return (ours[0] if ours else "outside of our code"), " < ".join(ours)

    def has_told_of(self, port: int, local_port: int) -> bool:
        """Return whether the log of a server at *port* names the connection from *local_port*."""
        is_broker = port == self.group.port
        children = self.group.brokers.values() if is_broker else [self.group.name_server]
        named = f"127.0.0.1:{local_port}".encode()
        return any(named in _end_of(child.log_path) for child in children)

    def sign_in(self) -> Session:
        """Sign in to the console by the link that it printed; raises AssertionError if that fails."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not (links := _SIGN_IN.findall(self.console.log_path.read_text())):
            assert time.monotonic() < deadline, "the console printed no link to sign in"
            time.sleep(0.05)
        cookie = self._ask_console(links[-1], {}).getheader("Set-Cookie", "").partition(";")[0]
        page = self._ask_console("/", {"Cookie": cookie}).read().decode()
        proof = _PROOF.search(page)
        assert proof is not None, "the console lets nobody in by its own link"
        return Session(cookie.partition("=")[2], proof[1])

    def _ask_console(self, path: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.console_port, timeout=_HUNG_S)
        connection.request("GET", path, headers={**headers, "Connection": "close"})
        return connection.getresponse()

    def _pages(self) -> dict[str, int]:
        ports = {"name server": self.name_server_http, "console": self.console_port}
        return ports | {f"broker {node}": port for node, port in self.group.http_ports.items()}

    def leadership(self) -> tuple[int, int] | None:
        """Return node and term of the leader, None while no replica serves."""
        serving = [each for each in self.group.statuses() if each["serving"]]
        newest = max(serving, key=lambda each: int(each["term"]), default=None)
        return None if newest is None else (int(newest["node"]), int(newest["term"]))

    def memory(self) -> dict[str, int]:
        """Return the resident bytes of each process."""
        return {
            name: int(psutil.Process(child.pid).memory_info().rss)
            for name, child in self.children().items()
            if child.is_running
        }

    def stalls(self) -> dict[str, Stalls]:
        """Return the long stalls of each process since it began."""
        return dict(self._stalls())

    def _stalls(self) -> Iterator[tuple[str, Stalls]]:
        ports = self._pages()
        for name in self.children():
            try:
                with urllib.request.urlopen(
                    f"http://127.0.0.1:{ports[name]}/metrics", timeout=5.0
                ) as page:
                    text = page.read().decode()
            except OSError:
                continue
            total: dict[str, float] = {}
            below: dict[str, float] = {}
            bounds: list[tuple[float, float]] = []
            for kind, clock, bound, value in _STALLS.findall(text):
                if kind == "count":
                    total[clock] = float(value)
                elif bound == STALL_S:
                    below[clock] = float(value)
                if kind == "bucket" and clock == "cpu" and bound:
                    bounds.append((float(bound), float(value)))
            found = {clock: int(total[clock] - below[clock]) for clock in total}
            worst = next((bound for bound, count in bounds if count == total["cpu"]), math.inf)
            yield name, Stalls(found.get("wall", 0), found.get("cpu", 0), worst)

    def clear(self) -> None:
        """Remove the written files."""
        shutil.rmtree(self.directory, ignore_errors=True)


def topic_ext(topic: str) -> dict[str, str]:
    """Return the header that creates a topic.

    The judged topic is ordered, because the promise is about ordered topics: others keep both copies of a message
    that was sent again. Topics that cases name are not ordered, so that cases can change the number of their queues.
    """
    ext = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(QUEUES)}
    ext |= {"writeQueueNums": str(QUEUES), "perm": "6", "topicFilterType": "SINGLE_TAG"}

    return {**ext, "order": str(topic == JUDGED_TOPIC).lower()}


def _end_of(path: Path) -> bytes:
    with path.open("rb") as log:
        log.seek(max(0, path.stat().st_size - _LOG_END))
        return log.read()
