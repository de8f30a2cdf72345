"""OrderlyMQ: a name server and three replicas of one raft group, in both durabilities."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Literal

from bench.peers.nodes import Durability, Node, Peer, Ports

from orderlymq_operator.kube.certificates.authority import issue, make_authority
from orderlymq_operator.kube.certificates.holders import Holder, uri_of
from orderlymq_runtime.security.clustersecret import make_cluster_secret

REPLICAS = 3
COMPILED = Path("build/compiled").resolve()


class OrderlyMQ(Peer):
    """OrderlyMQ with its default, SYNC_FLUSH."""

    name = "orderlymq"
    title = "OrderlyMQ"
    durability = Durability.DISK
    acknowledged = "written and synced in RocksDB's log on a majority (`flushDiskType: SYNC_FLUSH`)"
    driven = (
        "one producer, sends by queue selector, batches as the client's own batch message; orderly push consumers, 32"
        " messages per call; the client refreshes routes every second instead of every 30 s"
    )
    client = "rocketmq"
    client_version = "rocketmq-client 4.9.8"
    speaks_remoting = True
    asks_itself = True
    rejoin_s = 0.5
    flush: ClassVar[Literal["SYNC_FLUSH", "ASYNC_FLUSH"]] = "SYNC_FLUSH"
    environment: ClassVar[Mapping[str, str]] = {}

    def __init__(self, directory: Path, ports: Ports) -> None:
        super().__init__(directory, ports)
        self._name_server = ports.take()
        self._port = ports.take()
        self._raft = {node: ports.take() for node in range(1, REPLICAS + 1)}
        self._http = {node: ports.take() for node in range(1, REPLICAS + 1)}
        self._secret = directory / "cluster.secret"
        make_cluster_secret(self._secret)
        name_server = {
            "listen": {"host": "127.0.0.1", "port": self._name_server},
            "cluster_secret_file": str(self._secret),
        }
        self.helpers = [self._node("name-server", "orderlymq_nameserver", name_server)]
        self.nodes = [
            self._node(f"broker-{node}", "orderlymq_broker", self._settings(node))
            for node in range(1, REPLICAS + 1)
        ]

    def _node(self, name: str, module: str, settings: dict[str, Any]) -> Node:
        path = self.directory / f"{name}.json"
        path.write_text(json.dumps(settings))
        command = (sys.executable, "-m", module, "--settings", str(path))
        return Node(name, command, self.directory / f"{name}.log", self.environment)

    def _settings(self, node: int) -> dict[str, Any]:
        def at(port: int) -> dict[str, Any]:
            return {"host": "127.0.0.1", "port": port}

        return {
            "cluster": "bench",
            "group": "g0",
            "node_id": node,
            "peers": {str(each): at(port) for each, port in self._raft.items()},
            "address": at(self._port),
            "http": at(self._http[node]),
            "data_dir": str(self.directory / f"data-{node}"),
            "cluster_secret_file": str(self._secret),
            "name_servers": [at(self._name_server)],
            "storage": {"flush": self.flush},
        }

    @classmethod
    def missing(cls) -> str | None:
        return None

    @classmethod
    def version(cls) -> str:
        return version("orderlymq")

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self._name_server}"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def data(self, node: Node) -> Path:
        return self.directory / f"data-{node.name.removeprefix('broker-')}"

    def status(self, node: Node) -> dict[str, Any] | None:
        """Return what a replica reports about itself; None if it does not answer."""
        port = self._http[self.nodes.index(node) + 1]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=2.0) as answer:
                found: dict[str, Any] = json.load(answer)
        except OSError:
            return None
        return found

    def leader(self, said: Sequence[str]) -> tuple[Node, list[int]]:
        for node in self.nodes:
            status = self.status(node) if node.is_running else None
            if status is not None and status["serving"]:
                return node, list(range(64))
        raise RuntimeError(f"nobody leads\n{self.logs()}")

    def recovered(self) -> bool:
        found = [self.status(node) for node in self.nodes]
        applied = [int(status["applied"]) for status in found if status is not None]
        # Allow a difference of one turn, because the load continues during the requests.
        return len(applied) == REPLICAS and max(applied) - min(applied) < 1000


class OrderlyMQOnTheWire(OrderlyMQ):
    """OrderlyMQ with defaults and the cheapest possible client."""

    name = "orderlymq-wire"
    title = "OrderlyMQ, load program on the wire"
    driven = "four connections shared by all senders, one frame per send; no batches, no consumers"
    client = "wire"
    client_version = "frames written by the load program"


class OrderlyMQEncrypted(OrderlyMQOnTheWire):
    """The same with mutual TLS between replicas; clients stay plain, to isolate the cost of raft over TLS."""

    name = "orderlymq-wire-tls"
    title = "OrderlyMQ, mutual TLS between replicas, load program on the wire"
    driven = f"{OrderlyMQOnTheWire.driven}; replicas with certificates as the operator makes them"

    def __init__(self, directory: Path, ports: Ports) -> None:
        self._now = datetime.now(UTC)
        self._authority = make_authority("bench", self._now)
        super().__init__(directory, ports)

    def _settings(self, node: int) -> dict[str, Any]:
        holder = Holder(f"broker-{node}", uri_of("bench", "g0", str(node)), ("localhost",))
        pair = issue(self._authority, holder, self._now)
        files = {
            "certificate_file": (f"tls-{node}.crt", pair.certificate),
            "key_file": (f"tls-{node}.key", pair.key),
            "ca_file": ("ca.crt", self._authority.certificate),
        }
        for name, text in files.values():
            (self.directory / name).write_text(text)
        named = {field: str(self.directory / name) for field, (name, _) in files.items()}
        return {**super()._settings(node), "internal_tls": named}


class OrderlyMQCompiled(OrderlyMQ):
    """OrderlyMQ with defaults, from the copy with compiled hot modules."""

    name = "orderlymq-compiled"
    title = "OrderlyMQ, compiled as in the image"
    environment: ClassVar[Mapping[str, str]] = {"PYTHONPATH": str(COMPILED)}

    @classmethod
    def missing(cls) -> str | None:
        # The program that compiles the copy also checks whether it is current.
        asking = [sys.executable, "broker/compile.py", "--current", str(COMPILED)]
        present = subprocess.run(asking, check=False)
        return None if present.returncode == 0 else "make compiled makes it, or makes it again"


class OrderlyMQInMemory(OrderlyMQCompiled):
    """The compiled copy with ASYNC_FLUSH, to compare with peers that acknowledge from memory."""

    name = "orderlymq-async"
    title = "OrderlyMQ, ASYNC_FLUSH, compiled as in the image"
    durability = Durability.MEMORY
    acknowledged = "written to the operating system on a majority (`flushDiskType: ASYNC_FLUSH`)"
    flush = "ASYNC_FLUSH"


class OrderlyMQCompiledOnTheWire(OrderlyMQCompiled):
    """The compiled copy with the cheapest possible client."""

    name = "orderlymq-compiled-wire"
    title = "OrderlyMQ, compiled, load program on the wire"
    driven = OrderlyMQOnTheWire.driven
    client = "wire"
    client_version = OrderlyMQOnTheWire.client_version
