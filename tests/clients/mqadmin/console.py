"""
Apache's mqadmin in one long-running virtual machine, and a small busy cluster that it inspects.

Starting Java costs more than most commands, so they run one after the other in the same process.
"""

import dataclasses
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.clients.localcluster import LocalCluster
from tests.clients.programs import Java, Program


class Console(Program):
    """A running mqadmin."""

    def __init__(self, java: Java, name_server: str, folder: Path) -> None:
        # Some commands write files into the folder in which they were started.
        super().__init__(java.command("administer"), cwd=folder)
        self._name_server = name_server
        self.heard("ready")

    def run(self, *words: str, timeout_s: float = 60) -> str:
        """Run one command and return all that it prints."""
        before = len(self.of("printed"))
        self.say("\t".join([*words, "-n", self._name_server]))
        text: str = self.heard("printed", before + 1, timeout_s=timeout_s)[-1]["text"]

        return text


@dataclass(frozen=True)
class Scene:
    """The objects of the commands: a Normal topic to which messages are sent and from which they are consumed all the time.

    Attributes:
        g: *version* with other separators, for names.
        typo: almost the name of *group*.
        client: client id of the one member of *group*.
        offset_id, unique_id: of the first message, in queue *queue* at offset *offset*.
        dead_id: offset id of a dead letter of *group*.
    """

    console: Console
    version: str
    g: str
    producers: str
    folder: Path
    ns: str
    broker: str
    topic: str
    ordered: str
    group: str
    idle: str
    typo: str
    client: str
    offset_id: str
    unique_id: str
    queue: str
    dead_id: str

    def words(self, command: str) -> list[str]:
        """Return the words of a command with {fields} replaced by names of this scene."""
        return [self._fill(word, str) for word in command.split()]

    def pattern(self, text: str) -> str:
        """Return a pattern with {fields} replaced by the escaped names of this scene."""
        return self._fill(text, lambda value: re.escape(str(value)))

    def _fill(self, text: str, quote: Callable[[object], str]) -> str:
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

        return re.sub(
            r"\{(\w+)\}",
            lambda found: quote(fields[found[1]]) if found[1] in fields else found[0],
            text,
        )


@contextmanager
def busy_scene(cluster: LocalCluster, java: Java, folder: Path) -> Iterator[Scene]:
    """Start a producer, a consumer and mqadmin of one client version."""
    ns = cluster.name_server
    topic, ordered = cluster.topic("Normal"), cluster.topic("Ordered")
    group, idle = cluster.group(topic, "Concurrent"), cluster.group(ordered)
    producers = f"shop-{java.version.replace('.', '-')}"
    with java.start("send", ns=ns, topic=topic, count=12, keys=5, group=producers) as first:
        acknowledged = [event for event in first.finish() if event["event"] == "ack"]
    with ExitStack() as stack:
        consumer = stack.enter_context(
            java.start(
                "consume",
                ns=ns,
                topic=topic,
                group=group,
                mode="concurrently",
                fail="key-4:4",
                max_reconsume=1,
                seconds=10**6,  # it must stay a member for all commands of a version, however slow
            )
        )
        sender = java.start(
            "send", ns=ns, topic=topic, count=100_000, keys=5, pause=300, group=producers
        )
        stack.enter_context(sender)
        console = stack.enter_context(Console(java, ns, folder))
        consumer.heard("done", 11)
        # Delivered twice: after the second failure it becomes a dead letter.
        consumer.heard("fail", 2)
        dead_id = _shown(
            console,
            r"(?m)^OffsetID: +(\w+)",
            f"queryMsgByOffset -t %DLQ%{group} -b clients-0 -i 0 -o 0",
        )
        # A client that knows no broker at its first heartbeat sends the next one half a minute later.
        _shown(console, r"(JAVA)", f"producerConnection -g {producers} -t {topic}")
        yield Scene(
            console,
            java.version,
            java.version.replace(".", "-"),
            producers,
            folder,
            ns,
            f"127.0.0.1:{cluster.base + 12}",
            topic,
            ordered,
            group,
            idle,
            f"{group[:-1]}x{group[-1]}",
            consumer.of("started")[0]["client"],
            acknowledged[0]["offsetMsgId"],
            acknowledged[0]["msgId"],
            acknowledged[0]["queue"].rpartition(":")[2],
            dead_id,
        )


def _shown(console: Console, pattern: str, command: str, *, timeout_s: float = 60) -> str:
    """Repeat *command* until it prints *pattern*; return the pattern's first group."""
    end = time.monotonic() + timeout_s
    while (found := re.search(pattern, console.run(*command.split()))) is None:
        assert time.monotonic() < end, f"{command} never showed {pattern}"
        time.sleep(0.5)

    return found[1]
