"""Kafka in KRaft mode: three nodes that are brokers and controllers, with defaults and with a flush per message."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from bench.peers.nodes import HERE, Durability, Node, Peer, Ports

VERSION = "4.4.0"
LIBRARY = HERE / "kafka" / "target" / f"lib-{VERSION}"
CLUSTER_ID = "b3JkZXJseW1xLWJlbmNoLTE"  # any UUID in Kafka's notation


class Kafka(Peer):
    """Kafka with its defaults and three replicas, two of which must be in sync."""

    name = "kafka"
    title = f"Kafka {VERSION}"
    durability = Durability.MEMORY
    acknowledged = "in the page cache of all in-sync replicas, at least two"
    driven = (
        "one producer with `acks=all` and `linger.ms=0`, a batch is 32 sends whose acknowledgements are awaited together;"
        " one node leads all partitions; the consumers of one group, with the default session timeout of 45 s"
    )
    client = "kafka"
    client_version = "kafka-clients 4.3.1"  # why not 4.4.0: bench/java/pom.xml
    extra: ClassVar[str] = ""

    def __init__(self, directory: Path, ports: Ports) -> None:
        super().__init__(directory, ports)
        self._ports = {number: ports.take() for number in (1, 2, 3)}
        controllers = {number: ports.take() for number in (1, 2, 3)}
        voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in controllers.items())
        for number, port in self._ports.items():
            path = directory / f"k{number}.properties"
            path.write_text(self._settings(number, port, controllers[number], voters))
            command = (
                "java",
                "-Xms1g",
                "-Xmx1g",
                "-cp",
                f"{LIBRARY}/*",
                "kafka.Kafka",
                str(path),
            )
            self.nodes.append(Node(f"k{number}", command, directory / f"k{number}.log"))

    def _settings(self, number: int, port: int, controller: int, voters: str) -> str:
        return f"""process.roles=broker,controller
node.id={number}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={self.directory}/data/k{number}
default.replication.factor=3
min.insync.replicas=2
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
{self.extra}
"""

    def start(self) -> None:
        for node in self.nodes:
            tool = "kafka.tools.StorageTool"
            command = ["java", "-Xmx256m", "-cp", f"{LIBRARY}/*", tool, "format", "-t", CLUSTER_ID]
            settings = str(self.directory / f"{node.name}.properties")
            subprocess.run([*command, "-c", settings], check=True, capture_output=True)
        super().start()

    @classmethod
    def missing(cls) -> str | None:
        return None if LIBRARY.exists() else "run: python -m bench.fetch"

    @classmethod
    def version(cls) -> str:
        return VERSION

    @property
    def servers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    def data(self, node: Node) -> Path:
        return self.directory / "data" / node.name

    def leader(self, said: Sequence[str]) -> tuple[Node, list[int]]:
        (node,) = [node for node in self.nodes if node.name == said[0]]
        return node, [queue for queue, name in enumerate(said) if name == node.name]


class KafkaFlushed(Kafka):
    """Kafka that flushes every message."""

    name = "kafka-flush"
    title = f"Kafka {VERSION}, flush per message"
    durability = Durability.DISK
    acknowledged = (
        "synced on all in-sync replicas, each append by itself (`log.flush.interval.messages=1`)"
    )
    extra = "log.flush.interval.messages=1"
