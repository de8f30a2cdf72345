"""
The clients of a run: producers and ordered consumers, RocketMQ's Java clients and our SDK's together.

Each start of a client is an incarnation with a process name of its own in the history, and so with
messages of its own. SDK programs write the history themselves; what Java programs print is
translated when the run is over. Both take their times from the same monotonic clock.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import orjson

from orderlymq.history import Recorder
from orderlymq.oracle import Kind
from tests.clients.programs import Java, missing
from tests.nemesis.children import Child, python
from tests.nemesis.cluster import QUEUES, TOPIC
from tests.nemesis.consuming import ConsumingOptions
from tests.nemesis.ground import CLIENTS, Ground
from tests.nemesis.inside import say
from tests.nemesis.producing import ProducingOptions

#: Java clients by the version that stands in the history.
JAVA_4: Final = "4.9.8"
JAVA_5: Final = "5.4.0"

#: What a client may believe at most after it was stopped. The SDK counts 15 s from before it asked and
#: asks every 5 s, so that the broker may free a lock 10 s after the client was stopped; a Java client
#: counts 30 s, the broker 60 s.
SDK_BELIEVES_S: Final = 10.0
JAVA_BELIEVES_S: Final = 30.0

TOGETHER: Final = "together"  # Java and SDK consumers in one group
PYTHON: Final = "python"
GROUPS: Final = (TOGETHER, PYTHON)

_FOR_EVER: Final = 10**9
#: How much of a program's output is looked at for its first words; a library may say some before.
_BEGINNING: Final = 10_000
_TAIL: Final = 1 << 16


@dataclass(slots=True)
class Client:
    """One producer or consumer and its incarnations.

    Attributes:
        group: consumer group, empty for a producer.
        java: version of the Java client, None for the SDK.
        pause_ms: a producer's pause between two sends of a key; a consumer's work on a message.
    """

    name: str
    directory: Path
    ground: Ground
    recorder: Recorder
    history: Path
    group: str = ""
    java: Java | None = None
    pause_ms: int = 50
    incarnation: int = 0
    child: Child | None = None
    _believed_to_ns: int | None = None

    @property
    def is_producer(self) -> bool:
        return not self.group

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
        self.child = Child(self.process, words, log, keep_input=self.java is not None)
        self.child.start()

    @property
    def has_begun(self) -> bool:
        """Tell whether a Java consumer has said that it consumes; the SDK's say nothing and count at once."""
        if self.java is None or self.is_producer:
            return True
        log = self.directory / f"{self.process}.log"
        return log.exists() and b'"event":"started"' in log.read_bytes()[:_BEGINNING]

    @property
    def is_inside_listener(self) -> bool:
        """Tell whether the last thing that a paused consumer of the SDK recorded is a delivery."""
        mark = f'"process":"{self.process}"'.encode()
        with self.history.open("rb") as file:
            file.seek(max(self.history.stat().st_size - _TAIL, 0))
            own = [line for line in file.read().split(b"\n") if mark in line]
        return bool(own) and b'"kind":"deliver"' in own[-1]

    def kill(self) -> None:
        """Send SIGKILL; what it had begun, it has not finished."""
        if self.child is None:
            return
        self.child.kill()
        if not self.is_producer:
            self.recorder.record(Kind.GONE, client=self.process)

    def end(self) -> int | None:
        """End in good order where the program knows how; Java producers do not."""
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
        """Send SIGCONT, and say since when it had no right to believe in its locks."""
        lapsed, self._believed_to_ns = self._believed_to_ns, None
        if self.child is not None:
            self.child.resume()
        if lapsed is None or lapsed > time.monotonic_ns() or self.is_producer:
            return
        for queue in range(QUEUES):
            self.recorder.record(
                Kind.LAPSED,
                at=lapsed,
                group=self.group,
                topic=TOPIC,
                queue=f"g:{queue}",
                client=self.process,
            )

    def _sdk(self) -> list[str]:
        told: ProducingOptions | ConsumingOptions
        if self.is_producer:
            program = "tests.nemesis.producing"
            told = ProducingOptions(
                process=self.process,
                name_servers=_text(self.ground.name_server),
                history=str(self.history),
                topic=TOPIC,
                pause_s=self.pause_ms / 1000,
            )
        else:
            program = "tests.nemesis.consuming"
            told = ConsumingOptions(
                process=self.process,
                name_servers=_text(self.ground.name_server),
                history=str(self.history),
                topic=TOPIC,
                group=self.group,
                work_s=self.pause_ms / 1000,
            )
        return python(program, msgspec.json.encode(told).decode())

    def _java(self, java: Java) -> list[str]:
        common = {"ns": _text(self.ground.name_server), "topic": TOPIC}
        if self.is_producer:
            return java.command(
                "send",
                **common,
                prefix=f"{self.process}/",
                count=_FOR_EVER,
                keys=4,
                threads=2,
                pause=self.pause_ms // 2,
                retry=True,
            )
        return java.command(
            "consume",
            **common,
            group=self.group,
            seconds=_FOR_EVER,
            work=self.pause_ms,
            suspend=100,
        )

    def translate(self) -> None:
        """Write what the Java incarnations have printed into the history."""
        if self.java is None:
            return
        for number in range(1, self.incarnation + 1):
            process = f"{self.name}.{number}"
            for line in _objects(self.directory / f"{process}.log"):
                fields = event_of(line, process, self.group)
                if fields is None:
                    continue
                kind, attributes = fields
                self.recorder.record(kind, process=process, at=line["at"], **attributes)
                if line["event"] == "failed":
                    # The program tries again; how that ends is only known if it says so.
                    attributes["detail"] = "again"
                    self.recorder.record(
                        Kind.SEND, process=process, at=line["at"] + 1, **attributes
                    )


def _objects(log: Path) -> Iterator[dict[str, Any]]:
    if not log.exists():
        return
    for line in log.read_bytes().split(b"\n"):
        # Libraries print their own words; the last line may be cut short by a SIGKILL.
        if line.startswith(b"{") and line.endswith(b"}"):
            yield orjson.loads(line)


_LISTENED: Final = {"deliver": Kind.DELIVER, "done": Kind.DONE, "fail": Kind.FAILED}


def event_of(
    line: dict[str, Any], process: str, group: str
) -> tuple[Kind, dict[str, str | int]] | None:
    """Return kind and fields of what a Java program has printed; None for what is no event."""
    kind = line["event"]
    if kind in _LISTENED:
        return _LISTENED[kind], {
            "topic": line["topic"],
            "message": line["body"],
            "queue": line["queue"],
            "offset": line["offset"],
            "group": group,
            "client": process,
        }
    if kind not in ("send", "ack", "failed"):
        return None
    sent: dict[str, str | int] = {
        "topic": TOPIC,
        "key": f"{process}/{line['key']}",
        "message": f"{process}/{line['key']}:{line['body']}",
    }
    if kind == "send":
        return Kind.SEND, sent
    if kind == "ack":
        return Kind.ACK, {**sent, "queue": line["queue"], "offset": line["offset"]}
    # A send with a selector is one attempt: an answer of the broker is definite, all else is not.
    definite = "MQBrokerException" in line["text"]
    return (Kind.REFUSED if definite else Kind.UNKNOWN), {**sent, "detail": line["text"][:200]}


def _text(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"


def make_clients(
    directory: Path, ground: Ground, recorder: Recorder, history: Path, javas: Sequence[Java]
) -> list[Client]:
    """Return the clients of a run: two groups, one of them of Java and SDK consumers."""
    directory.mkdir(parents=True, exist_ok=True)
    made: list[Client] = []

    def make(name: str, **fields: Any) -> None:
        made.append(Client(name, directory, ground, recorder, history, **fields))

    make("producer-sdk", pause_ms=60)
    for java in javas:
        make(f"consumer-java-{java.version}", group=TOGETHER, java=java, pause_ms=2)
    for java in javas[:1]:
        make(f"producer-java-{java.version}", java=java, pause_ms=60)
    make("consumer-sdk", group=TOGETHER, pause_ms=2)
    make("consumer-sdk-a", group=PYTHON, pause_ms=0)
    make("consumer-sdk-b", group=PYTHON, pause_ms=0)
    return made


def build_javas() -> list[Java]:
    """Return the Java clients, compiled; none, and a word about it, without a JDK."""
    reason = missing("java", "mvn")
    if reason:
        say(f"SDK clients only: {reason}")
        return []
    javas = [Java(JAVA_4), Java(JAVA_5)]
    for java in javas:
        java.build()
    return javas
