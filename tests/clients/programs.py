"""
Client programs in other languages: they are built once, started as processes, and read line by line.

Each prints one JSON object per line; ``Program`` collects them while it runs, so that a test can
wait for an event instead of sleeping. The default times allow for the start of several virtual machines
on a busy machine.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.alone import alone

HERE = Path(__file__).parent

#: The older of the two client lines in CI, and the newest remoting client.
JAVA_VERSIONS: tuple[str, ...] = ("4.9.8", "5.5.0")
#: Versions that only `--whole-suite` adds.
MORE_JAVA_VERSIONS = ("5.3.3", "5.4.0")
#: The first release with working transactions; it lacks lite pull and requests, and connects to port - 2.
OLDEST_JAVA = "4.3.1"

#: The versions of the Go client, with the tag and the module file of each; the last one is not released yet.
GO_VERSIONS = {"2.1.0": "oldest", "2.1.2": "", "2.1.3dev": "newest"}

# The Netty of 4.3.1 uses internal classes that later versions of Java have closed.
_OPENED = [
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("java.lang", "java.nio", "java.util", "sun.nio.ch", "jdk.internal.misc")
]

Event = dict[str, Any]


class Program:
    """A running client program.

    The end of its context manager kills it if it still runs.
    """

    def __init__(self, command: list[str], *, cwd: Path | None = None) -> None:
        self.events: list[Event] = []
        self.noise: list[str] = []
        self._news = threading.Condition()
        self._process = subprocess.Popen(
            command,
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                # Libraries also print to standard output; only JSON objects are ours.
                event = _event(line)
                if event is None:
                    self.noise.append(line)
                else:
                    self.events.append(event)
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def of(self, kind: str) -> list[Event]:
        """Return the events of one kind seen so far."""
        return [event for event in list(self.events) if event["event"] == kind]

    def until(self, condition: Callable[[Self], bool], *, timeout_s: float = 90) -> None:
        """Wait until *condition* is true; fail with the last events if it never becomes true."""
        end = time.monotonic() + timeout_s
        with self._news:
            while not condition(self):
                left = end - time.monotonic()
                ended = self._process.poll() is not None and not self._reader.is_alive()
                if left <= 0 or ended:
                    raise AssertionError(
                        f"waited in vain ({'ended' if ended else 'time-out'}); last events: "
                        f"{self.events[-5:]}; other output: {''.join(self.noise[-20:])}"
                    )
                self._news.wait(min(left, 0.2))

    def heard(self, kind: str, count: int = 1, *, timeout_s: float = 90) -> list[Event]:
        """Wait for *count* events of one kind and return all of them."""
        self.until(lambda program: len(program.of(kind)) >= count, timeout_s=timeout_s)
        return self.of(kind)

    def finish(self, *, timeout_s: float = 120) -> list[Event]:
        """Wait for the program's own end and return all events; its exit code must be 0."""
        code = self._process.wait(timeout_s)
        self._reader.join(timeout_s)
        assert code == 0, f"exit code {code}: {self.events[-5:]} {''.join(self.noise[-20:])}"
        return self.events

    def say(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def stop(self) -> list[Event]:
        """Close its standard input, which asks a consumer to end, and wait for the end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self.finish()

    def kill(self) -> None:
        """Send SIGKILL; lines that it has printed are still read."""
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()


def _event(line: str) -> Event | None:
    """Return the event of a line; None for a library's output, which may run into a line of ours."""
    try:
        found: Event | None = json.loads(line) if line.startswith("{") else None
    except ValueError:
        return None
    return found


def bodies(events: list[Event]) -> list[str]:
    """Return the bodies of events."""
    return [event["body"] for event in events]


def taken(*consumers: Program) -> set[str]:
    """Return the consumed bodies without repetition: a message may come twice when a queue changes hands."""
    return {body for each in consumers for body in bodies(each.of("done"))}


def survive(kill: Callable[[], object], *senders: Program) -> None:
    """Kill a leader during the sends of endless senders, and check that their sends continue."""
    for sender in senders:
        sender.heard("ack", 100)
    kill()
    # Their pipes may still hold earlier events.
    wanted = [len(sender.of("ack")) + 200 for sender in senders]
    for sender, count in zip(senders, wanted, strict=True):
        sender.heard("ack", count)


def consumed(sender: Program, *consumers: Program, timeout_s: float = 90) -> list[Event]:
    """End such a sender; return its events when all messages that were acknowledged to it have been consumed."""
    sender.kill()
    acknowledged = {f"{event['key']}:{event['body']}" for event in sender.of("ack")}
    consumers[0].until(lambda _: acknowledged <= taken(*consumers), timeout_s=timeout_s)
    return sender.events


def options(**values: object) -> list[str]:
    """Return options as command words; ``max_reconsume`` becomes max-reconsume."""
    texts = {True: "true", False: "false"}
    return [
        f"{name.replace('_', '-')}={texts[value] if isinstance(value, bool) else value}"
        for name, value in values.items()
    ]


@dataclass(frozen=True)
class Java:
    """The programs that use one version of Apache's Java client."""

    version: str
    properties: tuple[str, ...] = ()

    def speaking(self, *properties: str) -> "Java":
        """Return the same client with system properties, such as rocketmq.serialize.type=ROCKETMQ."""
        return Java(self.version, properties)

    @property
    def _target(self) -> Path:
        return HERE / "java" / "target" / self.version

    def build(self) -> None:
        """Compile with Maven if the present sources are not compiled yet."""
        left_out = ["-Dleft.out=**/since46/*.java", "-Dleft.out.too=**/Guarding.java"]
        run_maven(HERE / "java", self.version, left_out if self.version == OLDEST_JAVA else ())

    def start(self, program: str, **values: object) -> Program:
        """Start one of the programs of Main.java."""
        return Program(self.command(program, **values))

    def command(self, program: str, **values: object) -> list[str]:
        """Return the words that start one of the programs of Main.java."""
        return [*self._java(), "io.orderlymq.clients.Main", program, *options(**values)]

    def script(self, name: str, *words: str) -> Program:
        """Start a program of ``java/scripts``, which is compiled when it runs: for calls that only one version has."""
        return Program([*self._java(), str(HERE / "java" / "scripts" / f"{name}.java"), *words])

    def admin(self, name_server: str, *words: str) -> str:
        """Run an mqadmin command and return what it prints."""
        main = "org.apache.rocketmq.tools.command.MQAdminStartup"
        result = subprocess.run(
            [*self._java(), main, *words, "-n", name_server],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return result.stdout + result.stderr

    def _java(self) -> list[str]:
        # One folder for each test process: clients of other processes would read these files, too.
        home = self._target / f"home-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
        (home / "conf").mkdir(parents=True, exist_ok=True)
        for name in ("logback_tools.xml", "rmq.tools.logback.xml"):
            (home / "conf" / name).write_text("<configuration/>\n")
        return [
            "java",
            "-Xmx256m",
            *(_OPENED if self.version == OLDEST_JAVA else ()),
            "-XX:TieredStopAtLevel=1",  # programs of a few seconds start quickly with it
            "-Drocketmq.client.logLevel=ERROR",
            f"-Drocketmq.client.logRoot={home}",
            f"-Drocketmq.home.dir={home}",
            f"-Duser.home={home}",
            *(f"-D{each}" for each in self.properties),
            "-cp",
            f"{self._target}/lib/*:{self._target}/classes",
        ]


@dataclass(frozen=True)
class Go:
    """The programs that use one version of Apache's Go client."""

    version: str

    @property
    def path(self) -> Path:
        """The path of the executable."""
        return HERE / "go" / "target" / self.version / "clients"

    def build(self) -> None:
        """Compile with the module file of the version."""
        tag = GO_VERSIONS[self.version]
        words = [f"-modfile={tag}.mod", "-tags", tag] if tag else []
        with alone(HERE / "go" / "target"):
            _run(["go", "build", *words, "-o", str(self.path), "."], cwd=HERE / "go")

    def start(self, program: str, **values: object) -> Program:
        """Start one of the programs of main.go."""
        return Program(self.command(program, **values))

    def command(self, program: str, **values: object) -> list[str]:
        """Return the words that start one of the programs of main.go."""
        return [str(self.path), program, *options(**values)]


def build_node() -> Path:
    """Install ali-ons; return the folder in which programs start."""
    with alone(HERE / "node" / "target"):
        if not (HERE / "node" / "node_modules" / "ali-ons").exists():
            _run(["npm", "ci", "--no-audit", "--no-fund"], cwd=HERE / "node")
    return HERE / "node"


def build_cpp() -> list[str]:
    """Install the wheel with the C++ client; return the command of its programs."""
    folder = HERE / "cpp"
    target = HERE.parents[1] / "build" / "clients" / "cpp"  # outside the folders that mypy reads
    with alone(target):
        if not (target / "lib" / "rocketmq").exists():
            install = ["pip", "install", "--no-deps", "--require-hashes", "-r", "requirements.txt"]
            where = ["--target", str(target / "lib")]
            _run([sys.executable, "-m", *install, *where], cwd=folder)
    # The client writes its log below the home directory.
    environment = (f"PYTHONPATH={target / 'lib'}", f"HOME={target}")
    return ["env", *environment, sys.executable, str(folder / "main.py")]


def build_rust() -> list[str]:
    """Compile the Rust client with its 390 crates once, which takes minutes; return the program."""
    target = HERE.parents[1] / "build" / "clients" / "rust"
    with alone(target):
        words = ["--locked", "--manifest-path", "Cargo.toml", "--target-dir", str(target)]
        _run(["cargo", "build", "--quiet", *words], cwd=HERE / "rust")
    # The client keeps the offsets of broadcasts and its log below the home directory.
    return ["env", f"HOME={target}", str(target / "debug" / "clients")]


def run_maven(folder: Path, version: str, options: Sequence[str] = ()) -> None:
    """Run `mvn package` for a version of RocketMQ if the present sources are not compiled yet."""
    sources = [folder / "pom.xml", *(folder / "src").rglob("*.java")]
    stamp = folder / "target" / version / "built"
    with alone(folder / "target"):
        if not (
            stamp.exists() and stamp.stat().st_mtime >= max(s.stat().st_mtime for s in sources)
        ):
            command = ["mvn", "-q", "-B", "package", f"-Drocketmq.version={version}", *options]
            _run(command, cwd=folder)
            stamp.touch()


def framework(folder: Path, version: str, *words: str) -> list[str]:
    """Build the program of a Java framework in *folder*; return its command with *words*: options, class, arguments."""
    run_maven(folder, version)
    target = folder / "target" / version
    lean = ("java", "-Xmx256m", "-XX:TieredStopAtLevel=1")
    return [*lean, "-cp", f"{target}/lib/*:{target}/classes", *words]


def missing(*tools: str) -> str | None:
    """Say which of *tools* this machine lacks, or None."""
    lacking = [tool for tool in tools if shutil.which(tool) is None]
    return f"{' and '.join(lacking)} not installed here; runs in CI" if lacking else None


def _run(command: list[str], *, cwd: Path) -> None:
    # A package registry may drop a connection; files that were fetched before are kept.
    for attempt in range(3):
        result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
        if result.returncode == 0:
            return
        if attempt < 2:
            time.sleep(2)
    raise AssertionError(
        f"{' '.join(command)} failed:\n{result.stdout[-3000:]}{result.stderr[-3000:]}"
    )
