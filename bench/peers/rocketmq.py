"""
RocketMQ 4.9.7 in DLedger mode.

Its acknowledgement never waits for the disk: ``DLedgerCommitLog`` does not read ``flushDiskType``. The store appends
to a mapped file, and a separate thread syncs the file every 10 ms. RocketMQ is therefore in the memory class, with the
setting that its manual recommends.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from bench.peers.nodes import HERE, Durability, Node, Peer, Ports

VERSION = "4.9.7"
LIBRARY = HERE / "rocketmq" / "target" / f"lib-{VERSION}"
NAME_SERVER = "org.apache.rocketmq.namesrv.NamesrvStartup"
BROKER = "org.apache.rocketmq.broker.BrokerStartup"
# RocketMQ uses these packages to unmap files; Java 17 and later close them by default.
OPENED = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
)
NAMES = ("n0", "n1", "n2")


class RocketMQ(Peer):
    """A name server and three brokers of one DLedger group."""

    name = "rocketmq"
    title = f"RocketMQ {VERSION} DLedger"
    durability = Durability.MEMORY
    acknowledged = "in the page cache (mapped file) of a majority, whatever `flushDiskType` says"
    driven = (
        "one producer, sends by queue selector, batches as the client's own batch message; orderly push consumers, 32"
        " messages per call; the client refreshes routes every second instead of every 30 s"
    )
    client = "rocketmq"
    client_version = "rocketmq-client 4.9.8"
    speaks_remoting = True
    # Followers copy the table of topics every 10 s; a new leader that does not know a topic creates it with 4 queues.
    topic_settles_s = 15.0

    #: The jars of the name server and the brokers.
    library: ClassVar[Path] = LIBRARY

    def __init__(self, directory: Path, ports: Ports) -> None:
        super().__init__(directory, ports)
        self._name_server = ports.take()
        self._ports = {name: ports.take() for name in NAMES}
        #: The ports by which brokers replicate.
        self._inner = {name: ports.take() for name in NAMES}
        small, large = ("-Xms256m", "-Xmx256m"), ("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=2g")
        self.helpers = [self._process("namesrv", NAME_SERVER, small, self._name_server_settings())]
        for name in NAMES:
            settings = {**self._settings(name), **self._replication(name)}
            self.nodes.append(self._process(name, BROKER, large, settings))

    def _process(
        self, name: str, main: str, heap: Sequence[str], settings: Mapping[str, object]
    ) -> Node:
        return process(self.directory, name, main, heap, settings, self.library)

    def _name_server_settings(self) -> Mapping[str, object]:
        return {"listenPort": self._name_server}

    def _settings(self, name: str) -> Mapping[str, object]:
        return {
            "brokerClusterName": "bench",
            "brokerName": "g0",
            "listenPort": self._ports[name],
            "namesrvAddr": self.servers,
            "brokerIP1": "127.0.0.1",
            "storePathRootDir": self.directory / "data" / name,
            "storePathCommitLog": self.directory / "data" / name / "commitlog",
            "sendMessageThreadPoolNums": 16,
            # By default it refuses sends that have waited for 200 ms; on a busy machine a refused send would fail a work.
            "waitTimeMillsInSendQueue": 5000,
            "autoCreateTopicEnable": "true",
        }

    def _replication(self, name: str) -> Mapping[str, object]:
        peers = ";".join(f"{each}-127.0.0.1:{port}" for each, port in self._inner.items())
        return {
            "enableDLegerCommitLog": "true",
            "dLegerGroup": "g0",
            "dLegerPeers": peers,
            "dLegerSelfId": name,
            "flushDiskType": "SYNC_FLUSH",
        }

    @classmethod
    def missing(cls) -> str | None:
        return None if cls.library.exists() else "run: python -m bench.fetch"

    @classmethod
    def version(cls) -> str:
        return VERSION

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self._name_server}"

    def data(self, node: Node) -> Path:
        return self.directory / "data" / node.name

    def leader(self, said: Sequence[str]) -> tuple[Node, list[int]]:
        (name,) = [name for name, port in self._ports.items() if str(port) == said[0]]
        (node,) = [node for node in self.nodes if node.name == name]
        return node, list(range(len(said)))


def process(
    directory: Path,
    name: str,
    main: str,
    heap: Sequence[str],
    settings: Mapping[str, object],
    library: Path = LIBRARY,
) -> Node:
    """Return a name server or broker process for a folder; write its settings there."""
    conf = directory / "home" / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    for each in ("logback_namesrv.xml", "logback_broker.xml", "logback_tools.xml"):
        (conf / each).write_text("<configuration/>\n")
    path = directory / f"{name}.conf"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    home = conf.parent
    command = (
        "java",
        *heap,
        *OPENED,
        f"-Duser.home={home}",
        f"-Drocketmq.home.dir={home}",
        "-cp",
        f"{library}/*",
        main,
        "-c",
        str(path),
    )
    return Node(name, command, directory / f"{name}.log", {"ROCKETMQ_HOME": str(home)})
