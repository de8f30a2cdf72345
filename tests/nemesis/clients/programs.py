"""
The clients of a run, both RocketMQ's Java clients and our SDK's.

There are producers, ordered consumers, producers of transactions and of delayed messages, and a client whose
permissions are revoked. Each start of a client is an incarnation with its own process name in the history, and so
with its own messages. SDK programs write the history themselves; the output of Java programs is translated after the
run. Both use the same monotonic clock.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any, Final

import msgspec

from orderlymq.oracle.history import Recorder
from orderlymq.oracle.verdict import Kind
from tests.clients.programs import Java, missing
from tests.nemesis.clients.accounts import ORDINARY
from tests.nemesis.clients.consumer import ConsumingOptions
from tests.nemesis.clients.javalog import deals_of, traffic_of
from tests.nemesis.clients.probe import ProbingOptions
from tests.nemesis.clients.producer import ProducingOptions
from tests.nemesis.clients.transactions import DealingOptions
from tests.nemesis.cluster import BESIDES, QUEUES, TOPIC
from tests.nemesis.ground.ground import CLIENTS, Ground
from tests.nemesis.ground.namespaces import say
from tests.nemesis.ground.processes import Child, python
from tests.nemesis.invariants.delays import LATER
from tests.nemesis.invariants.rights import GUARDED
from tests.nemesis.invariants.transactions import DEALS, Step, Word

#: Java clients by the version in the history.
JAVA_4: Final = "4.9.8"
JAVA_5: Final = "5.5.0"

#: The longest time that a client may rely on its lock after it was stopped. The SDK counts 15 s from before its
#: request and asks every 5 s, so the broker may free a lock 10 s after the client was stopped; a Java client counts 30
#: s, the broker 60 s.
SDK_BELIEVES_S: Final = 10.0
JAVA_BELIEVES_S: Final = 30.0

TOGETHER: Final = "together"  # Java and SDK consumers in one consumer group
PYTHON: Final = "python"
BY_KEY: Final = "by-key"
#: The topic that each consumer group consumes.
GROUPS: Final[Mapping[str, str]] = {
    TOGETHER: TOPIC,
    PYTHON: TOPIC,
    BY_KEY: TOPIC,
    "dealt": DEALS,
    "waited": LATER,
}
DEALERS: Final = "dealers"
PROBERS: Final = "probers"


class Trade(Enum):
    """The work of a client that is not a consumer."""

    SENDING = auto()  # messages in the order of their keys
    DEALING = auto()  # transactions
    DELAYING = auto()  # delayed messages
    PROBING = auto()  # requests with permissions that are revoked and restored


_FOR_EVER: Final = 10**9
#: A Java producer's local transaction: long enough to be killed in it.
_JAVA_WORK_MS: Final = 150
#: The part of a program's output that is searched for its first line; a library may print others before it.
_BEGINNING: Final = 10_000
_TAIL: Final = 1 << 16


@dataclass(slots=True)
class Client:
    """One client and its incarnations.

    Attributes:
        group: consumer group, empty for a producer.
        java: version of the Java client, None for the SDK.
        pause_ms: a producer's pause between two sends of a key; a consumer's work on a message.
        is_named: a Java consumer calls `setInstanceName`, so that its client id names no process.
        signs: its requests are signed; a probing client has its own account, in a file.
    """

    name: str
    directory: Path
    ground: Ground
    recorder: Recorder
    history: Path
    group: str = ""
    java: Java | None = None
    pause_ms: int = 50
    trade: Trade = Trade.SENDING
    topic: str = TOPIC
    is_named: bool = False
    signs: bool = False
    incarnation: int = 0
    child: Child | None = None
    _believed_to_ns: int | None = None

    @property
    def is_producer(self) -> bool:
        """Return whether it only sends and is never asked by the broker."""
        return not self.group and self.trade in (Trade.SENDING, Trade.DELAYING)

    @property
    def is_dealer(self) -> bool:
        return self.trade is Trade.DEALING

    @property
    def account_file(self) -> Path:
        """Return the file with the account that a probing client is to use."""
        return self.directory / f"{self.name}.account.json"

    @property
    def process(self) -> str:
        """Return the name of the present incarnation."""
        return f"{self.name}.{self.incarnation}"

    @property
    def runs(self) -> bool:
        return self.child is not None and self.child.runs

    def start(self) -> None:
        """Start a new incarnation unless one runs."""
        if self.runs:
            return
        self.incarnation += 1
        command = self._sdk() if self.java is None else self._java(self.java)
        log = self.directory / f"{self.process}.log"
        words = [*self.ground.within(CLIENTS), *command]
        signs = self.signs and self.trade is not Trade.PROBING
        self.child = Child(
            self.process,
            words,
            log,
            ORDINARY.environment() if signs else {},
            keep_input=self.java is not None or self.is_dealer,
        )
        self.child.start()

    @property
    def has_begun(self) -> bool:
        """Return whether a Java consumer reports that it consumes; SDK consumers report nothing and always count."""
        if self.java is None or not self.group:
            return True
        log = self.directory / f"{self.process}.log"
        return log.exists() and b'"event":"started"' in log.read_bytes()[:_BEGINNING]

    @property
    def is_inside_listener(self) -> bool:
        """Return whether the last event of a paused SDK consumer is a delivery."""
        return b'"kind":"deliver"' in self._last_recorded()

    @property
    def is_inside_transaction(self) -> bool:
        """Return whether the last event of a paused producer of transactions is a half message."""
        if self.java is None:
            return f'"detail":"{Step.HALF}"'.encode() in self._last_recorded()
        lines = _tail(self.directory / f"{self.process}.log")
        return bool(lines) and b'"event":"stored"' in lines[-1]

    def was_served(self, account: str) -> bool:
        """Return whether one of the last two requests under this account was served."""
        mark = f'"client":"{account}"'.encode()
        own = [
            line for line in _tail(self.history) if mark in line and b'"kind":"noted"' not in line
        ]
        return any(b'"kind":"ack"' in line for line in own[-2:])

    def _last_recorded(self) -> bytes:
        mark = f'"process":"{self.process}"'.encode()
        own = [line for line in _tail(self.history) if mark in line]
        return own[-1] if own else b""

    def kill(self) -> None:
        """Send SIGKILL; the work that it had begun is not finished."""
        if self.child is None:
            return
        self.child.kill()
        if self.group:
            self.recorder.record(Kind.GONE, client=self.process)

    def finish(self) -> None:
        """Make a producer of transactions begin no more; it keeps running to be asked."""
        if self.child is not None:
            self.child.close_input()

    def end(self) -> int | None:
        """End the program normally if it supports that; Java producers do not."""
        if self.child is None:
            return 0
        if self.java is not None:
            self.kill()
            return 0
        return self.child.end()

    def pause(self) -> None:
        """Send SIGSTOP."""
        if self.child is not None:
            self.child.pause()
            believes_s = SDK_BELIEVES_S if self.java is None else JAVA_BELIEVES_S
            self._believed_to_ns = time.monotonic_ns() + int(believes_s * 1e9)

    def resume(self) -> None:
        """Send SIGCONT, and record since when it was not allowed to rely on its locks."""
        lapsed, self._believed_to_ns = self._believed_to_ns, None
        if self.child is not None:
            self.child.resume()
        if lapsed is None or lapsed > time.monotonic_ns() or not self.group:
            return
        for queue in range(BESIDES.get(self.topic, QUEUES)):
            self.recorder.record(
                Kind.LAPSED,
                at=lapsed,
                group=self.group,
                topic=self.topic,
                queue=f"g:{queue}",
                client=self.process,
            )

    def _sdk(self) -> list[str]:
        told: ProducingOptions | ConsumingOptions | DealingOptions | ProbingOptions
        common: dict[str, Any] = {
            "process": self.process,
            "name_servers": _text(self.ground.name_server),
            "history": str(self.history),
            "topic": self.topic,
        }
        pause_s = self.pause_ms / 1000
        if self.group:
            program = "consumer"
            by_key = self.group == BY_KEY
            told = ConsumingOptions(**common, group=self.group, work_s=pause_s, by_key=by_key)
        elif self.trade is Trade.DEALING:
            program = "transactions"
            told = DealingOptions(**common, group=DEALERS, pause_s=pause_s)
        elif self.trade is Trade.PROBING:
            program = "probe"
            account = str(self.account_file)
            told = ProbingOptions(**common, group=PROBERS, account_file=account, pause_s=pause_s)
        else:
            program = "producer" if self.trade is Trade.SENDING else "delays"
            told = ProducingOptions(**common, pause_s=pause_s)
        return python(f"tests.nemesis.clients.{program}", msgspec.json.encode(told).decode())

    def _java(self, java: Java) -> list[str]:
        common = {"ns": _text(self.ground.name_server), "topic": self.topic}
        if self.signs:
            common |= ORDINARY.options()
        if self.group:
            return java.command(
                "consume",
                **common,
                group=self.group,
                seconds=_FOR_EVER,
                work=self.pause_ms,
                suspend=100,
                **({"instance": self.name} if self.is_named else {}),
            )
        common["prefix"] = f"{self.process}/"
        if self.is_dealer:
            return java.command(
                "transact",
                **common,
                group=DEALERS,
                plan=",".join(Word),
                check="plan",
                cycle=True,
                work=_JAVA_WORK_MS,
                pause=self.pause_ms,
                seconds=_FOR_EVER,
            )
        return java.command(
            "send",
            **common,
            count=_FOR_EVER,
            keys=4,
            threads=2,
            pause=self.pause_ms // 2,
            retry=True,
        )

    def translate(self) -> None:
        """Write the output of the Java incarnations into the history."""
        if self.java is None:
            return
        for number in range(1, self.incarnation + 1):
            process = f"{self.name}.{number}"
            log = self.directory / f"{process}.log"
            events = (
                deals_of(log, process) if self.is_dealer else traffic_of(log, process, self.group)
            )
            for at, kind, attributes in events:
                self.recorder.record(kind, process=process, at=at, **attributes)


def _tail(path: Path) -> list[bytes]:
    """Return the last lines of a file that is being written."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - _TAIL, 0))
        return [line for line in file.read().split(b"\n") if line]


def _text(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"


def make_clients(
    directory: Path, ground: Ground, recorder: Recorder, history: Path, javas: Sequence[Java]
) -> list[Client]:
    """Return the clients of a run.

    Three consumer groups consume in order: Java and SDK consumers by queue, SDK consumers by queue, and
    SDK consumers by key.
    """
    directory.mkdir(parents=True, exist_ok=True)
    made: list[Client] = []

    def make(name: str, **fields: Any) -> None:
        made.append(Client(name, directory, ground, recorder, history, signs=True, **fields))

    make("producer-sdk", pause_ms=60)
    for java in javas:
        make(f"consumer-java-{java.version}", group=TOGETHER, java=java, pause_ms=2)
    for java in javas[:1]:
        make(f"producer-java-{java.version}", java=java, pause_ms=60)
        make(
            f"dealer-java-{java.version}", java=java, pause_ms=300, trade=Trade.DEALING, topic=DEALS
        )
    make("consumer-sdk", group=TOGETHER, pause_ms=2)
    make("consumer-sdk-a", group=PYTHON, pause_ms=0)
    make("consumer-sdk-b", group=PYTHON, pause_ms=0)
    make("consumer-sdk-key-a", group=BY_KEY, pause_ms=20)
    make("consumer-sdk-key-b", group=BY_KEY, pause_ms=20)
    make("dealer-sdk", pause_ms=200, trade=Trade.DEALING, topic=DEALS)
    make("consumer-dealt", group="dealt", pause_ms=0, topic=DEALS)
    make("delayer-sdk", pause_ms=250, trade=Trade.DELAYING, topic=LATER)
    make("consumer-waited", group="waited", pause_ms=0, topic=LATER)
    make("prober-sdk", pause_ms=200, trade=Trade.PROBING, topic=GUARDED)
    return made


def build_javas() -> list[Java]:
    """Return the Java clients, compiled; without a JDK none, and print why."""
    reason = missing("java", "mvn")
    if reason:
        say(f"SDK clients only: {reason}")
        return []
    javas = [Java(JAVA_4), Java(JAVA_5)]
    for java in javas:
        java.build()
    return javas
