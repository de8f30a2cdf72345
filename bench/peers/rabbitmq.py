"""RabbitMQ's quorum queues, from the distribution's package: each queue is a separate raft group."""

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from bench.peers.nodes import Durability, Node, Peer, Ports, wait_for

#: The most time until a killed node answers the administration tool again.
CONTROL_TIMEOUT_S = 60.0
PROGRAMS = Path("/usr/lib/rabbitmq/bin")
NAMES = ("r1", "r2", "r3")


class RabbitMQ(Peer):
    """Three nodes that find each other by a configured list."""

    name = "rabbitmq"
    title = "RabbitMQ quorum queues"
    durability = Durability.DISK
    acknowledged = "written and synced in the log of a majority"
    driven = (
        "four connections, a channel per sender, which waits for a confirm per message or batch; a queue has a single active"
        " consumer with a prefetch of 1024, or of 1 in take-overs"
    )
    client = "rabbitmq"
    client_version = "amqp-client 5.37.1"
    balances = False
    asks_itself = True

    def __init__(self, directory: Path, ports: Ports) -> None:
        super().__init__(directory, ports)
        (directory / "env.conf").write_text("")
        (directory / "plugins").write_text("[].\n")
        cookie = directory / ".erlang.cookie"
        if not cookie.exists():
            cookie.write_text("orderlymqbench")
            cookie.chmod(0o400)
        members = "".join(
            f"cluster_formation.classic_config.nodes.{number} = {name}@localhost\n"
            for number, name in enumerate(NAMES, 1)
        )
        (directory / "rabbitmq.conf").write_text(
            "cluster_formation.peer_discovery_backend = classic_config\n"
            f"{members}cluster_formation.randomized_startup_delay_range.min = 0\n"
            "cluster_formation.randomized_startup_delay_range.max = 2\n"
            "cluster_partition_handling = pause_minority\n"
        )
        self._epmd = ports.take()
        self._ports = {name: ports.take() for name in NAMES}
        self._distribution = {name: ports.take() for name in NAMES}
        epmd = ("epmd", "-address", "127.0.0.1", "-port", str(self._epmd))
        self.helpers = [Node("epmd", epmd, directory / "epmd.log")]
        for name in NAMES:
            command = (str(PROGRAMS / "rabbitmq-server"),)
            self.nodes.append(
                Node(name, command, directory / f"{name}.log", self._environment(name))
            )

    def _environment(self, name: str) -> dict[str, str]:
        return {
            "HOME": str(self.directory),
            "ERL_EPMD_PORT": str(self._epmd),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"{name}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self._ports[name]),
            "RABBITMQ_DIST_PORT": str(self._distribution[name]),
            "RABBITMQ_MNESIA_BASE": f"{self.directory}/data/{name}",
            "RABBITMQ_LOG_BASE": f"{self.directory}/log",
            "RABBITMQ_CONFIG_FILE": f"{self.directory}/rabbitmq.conf",
            "RABBITMQ_CONF_ENV_FILE": f"{self.directory}/env.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{self.directory}/plugins",
            "RABBITMQ_ALLOW_INPUT": "true",  # the script then replaces itself with the virtual machine
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-noinput -kernel inet_dist_use_interface {127,0,0,1}",
        }

    def form(self, timeout_s: float) -> None:
        # A queue declared before all nodes are in the cluster would keep fewer replicas.
        deadline = time.monotonic() + timeout_s
        for node in self.nodes:
            wait_for("completed with", node.log, deadline - time.monotonic())

    @classmethod
    def missing(cls) -> str | None:
        if (PROGRAMS / "rabbitmq-server").exists():
            return None
        return "run: apt-get install rabbitmq-server"

    @classmethod
    def version(cls) -> str:
        found = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))
        return found[-1].name.removeprefix("rabbitmq_server-") if found else "?"

    @property
    def servers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    def data(self, node: Node) -> Path:
        return self.directory / "data" / node.name

    def _control(self, *words: str) -> str:
        """Ask the nodes until one answers; a restarted node runs for a moment before it serves."""
        deadline, told = time.monotonic() + CONTROL_TIMEOUT_S, "no node runs"
        while time.monotonic() < deadline:
            for node in [each for each in self.nodes if each.is_running]:
                result = subprocess.run(
                    [str(PROGRAMS / "rabbitmqctl"), "-q", "-n", f"{node.name}@localhost", *words],
                    env={**os.environ, **node.environment},
                    capture_output=True,
                    text=True,
                    timeout=60,
                    check=False,
                )
                if not result.returncode:
                    return result.stdout
                told = result.stdout + result.stderr
            time.sleep(0.5)
        raise RuntimeError(f"rabbitmqctl {words[0]}: {told}")

    def leader(self, said: Sequence[str]) -> tuple[Node, list[int]]:
        rows = self._control("list_queues", "--no-table-headers", "name", "leader").splitlines()
        leaders = {}
        for row in rows:
            queue, _, node = row.partition("\t")
            if queue.startswith("fail."):
                leaders[int(queue.rpartition(".")[2])] = node.partition("@")[0]
        (found,) = [node for node in self.nodes if node.name == leaders[0]]
        return found, [queue for queue, name in leaders.items() if name == found.name]
