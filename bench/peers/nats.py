"""NATS JetStream with three replicas, with defaults and with a sync before each acknowledgement."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from bench.peers.nodes import FETCHED, Durability, Node, Peer, Ports

VERSION = "2.15.3"
SERVER = FETCHED / f"nats-{VERSION}" / "nats-server"
NAMES = ("s1", "s2", "s3")


class Nats(Peer):
    """JetStream with its defaults: a sync every two minutes."""

    name = "nats"
    title = f"NATS JetStream {VERSION}"
    durability = Durability.MEMORY
    acknowledged = "in the page cache of a majority, synced every 2 minutes"
    driven = (
        "one connection, a stream with a subject per queue, a batch is 32 asynchronous publishes awaited together; a durable"
        " pull consumer per subject that acknowledges up to the last of 256; in take-overs it has `max_ack_pending: 1`, to keep the"
        " order, and the default `ack_wait` of 30 s"
    )
    client = "nats"
    client_version = "jnats 2.26.2"
    balances = False
    rejoin_s = 3.0
    sync: ClassVar[str] = ""

    def __init__(self, directory: Path, ports: Ports) -> None:
        super().__init__(directory, ports)
        self._ports = {name: ports.take() for name in NAMES}
        routes = {name: ports.take() for name in NAMES}
        listed = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes.values())
        for name in NAMES:
            path = directory / f"{name}.conf"
            path.write_text(
                f'server_name: {name}\nlisten: "127.0.0.1:{self._ports[name]}"\n'
                f'jetstream {{ store_dir: "{directory}/data/{name}", max_mem: 1G, max_file: 40G {self.sync} }}\n'
                f'cluster {{ name: bench, listen: "127.0.0.1:{routes[name]}", routes: [{listed}] }}\n'
            )
            command = (str(SERVER), "-c", str(path))
            self.nodes.append(Node(name, command, directory / f"{name}.log"))

    @classmethod
    def missing(cls) -> str | None:
        return None if SERVER.exists() else "run: python -m bench.fetch"

    @classmethod
    def version(cls) -> str:
        return VERSION

    @property
    def servers(self) -> str:
        return ",".join(f"nats://127.0.0.1:{port}" for port in self._ports.values())

    def data(self, node: Node) -> Path:
        return self.directory / "data" / node.name

    def leader(self, said: Sequence[str]) -> tuple[Node, list[int]]:
        (node,) = [node for node in self.nodes if node.name == said[0]]
        return node, list(range(len(said)))


class NatsSynced(Nats):
    """JetStream that syncs each message."""

    name = "nats-always"
    title = f"NATS JetStream {VERSION}, sync always"
    durability = Durability.DISK
    acknowledged = "written and synced on a majority (`sync_interval: always`)"
    sync = ", sync_interval: always"
