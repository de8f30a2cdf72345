"""
A cluster of real processes for tests, started and stopped by the project's own command.

It uses free ports, so that several clusters, and one of the user, can run in parallel.
"""

import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from orderlymq.blocking import AdminClient
from tests.ports import free_row
from tests.runtime.certificates import make_authority, make_certificate

MANIFEST = """
apiVersion: orderlymq.io/v1alpha1
kind: Cluster
metadata: {{name: {cluster}}}
spec:
  groups: {groups}
  replicasPerGroup: {replicas}
  local:
    nameServerPort: {base}
    brokerPort: {broker}
    raftPort: {raft}
    httpPort: {http}
  tls: {tls}
  config:{config}
    messageDelayLevel: "{delays}"
    transactionTimeOut: 2s
    transactionCheckInterval: 2s
"""

# Short levels, so that tests need not wait; RocketMQ's own are in ``DELAYS``.
SHORT_DELAYS = "1s 1s 1s 1s 2s 2s 2s 2s 2s 2s 2s 2s 2s 2s 2s 2s 2s 2s"
DELAYS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

TOPIC = """
---
apiVersion: orderlymq.io/v1alpha1
kind: Topic
metadata: {{name: {name}}}
spec: {{clusterRef: {{name: {cluster}}}, type: {type}, queues: {queues}}}
"""

GROUP = """
---
apiVersion: orderlymq.io/v1alpha1
kind: ConsumerGroup
metadata: {{name: {name}}}
spec:
  clusterRef: {{name: {cluster}}}
  ordering: {ordering}
  topics: [{{name: {topic}}}]
  onDeadLetter: {on_dead_letter}
  concurrency: {concurrency}
"""


USER = """
---
apiVersion: orderlymq.io/v1alpha1
kind: User
metadata: {{name: {name}}}
spec:
  clusterRef: {{name: {cluster}}}
  secretFrom: {{file: {name}.secret}}{fields}
"""


@dataclass
class LocalCluster:
    """A running cluster; ``up`` starts it and ``down`` ends it."""

    directory: Path
    groups: int = 1
    base: int = 0
    config: dict[str, str] = field(default_factory=dict)
    tls: str = "{}"
    environment: dict[str, str] = field(default_factory=dict)
    replicas: int = 3
    delays: str = SHORT_DELAYS
    name: str = "clients"
    from_backup: str = ""
    timeout_s: float = 120
    _made: int = 0

    def __post_init__(self) -> None:
        # Ten ports for each of a group's addresses: for clients, replicas and HTTP.
        self._raft = 12 + 10 * max(2, self.groups)
        self._http = self._raft + 10 * max(2, self.groups) + 10
        self.base = self.base or free_row(self._http + 10 * max(2, self.groups))

    @property
    def name_server(self) -> str:
        return f"127.0.0.1:{self.base}"

    def up(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        manifest = self.directory / "cluster.yaml"
        manifest.write_text(
            MANIFEST.format(
                cluster=self.name,
                groups=self.groups,
                replicas=self.replicas,
                delays=self.delays,
                base=self.base,
                broker=self.base + 12,
                raft=self.base + self._raft,
                http=self.base + self._http,
                tls=self.tls,
                config="".join(f"\n    {name}: {value}" for name, value in self.config.items()),
            )
        )
        try:
            backup = ("--from-backup", self.from_backup) if self.from_backup else ()
            self.command("up", "-f", str(manifest), "--detach", *backup)
        except (AssertionError, subprocess.TimeoutExpired):
            # After a pause of the machine, the supervisor may start when the command has already given up.
            self.down()
            raise

    def down(self) -> None:
        self.command("down")

    def topic(self, kind: str = "Ordered", *, queues: int = 4) -> str:
        """Create a topic that no other test uses; return its name."""
        self._made += 1
        name = f"topic-{self._made}"
        self._apply(TOPIC.format(cluster=self.name, name=name, type=kind, queues=queues))
        return name

    def group(
        self,
        topic: str,
        ordering: str = "Ordered",
        *,
        on_dead_letter: str = "Continue",
        concurrency: str = "Queue",
    ) -> str:
        """Create a consumer group for *topic*; return its name."""
        self._made += 1
        name = f"group-{self._made}"
        self._apply(
            GROUP.format(
                cluster=self.name,
                name=name,
                topic=topic,
                ordering=ordering,
                on_dead_letter=on_dead_letter,
                concurrency=concurrency,
            )
        )
        return name

    def await_letters(self, group: str) -> str:
        """Wait until a group's first dead letter has created its topic and name servers route it; return the topic's name."""
        topic, end = f"%DLQ%{group}", time.monotonic() + self.timeout_s
        with AdminClient(self.name_server) as admin:
            while topic not in admin.topics():
                assert time.monotonic() < end, f"{topic} has no route{self._logs()}"
                time.sleep(0.05)
        return topic

    def user(self, name: str, secret: str, **rights: str) -> None:
        """Create an account; *rights* are fields of its spec as JSON."""
        self._made += 1
        (self.directory / f"{name}.secret").write_text(secret + "\n")
        fields = "".join(f"\n  {field}: {value}" for field, value in rights.items())
        self._apply(USER.format(cluster=self.name, name=name, fields=fields))

    def _apply(self, manifest: str) -> None:
        path = self.directory / f"apply-{self._made}.yaml"
        path.write_text(manifest)
        self.command("apply", "-f", str(path))

    def command(self, *words: str) -> str:
        """Run an `orderlymq` command on this cluster; it must succeed."""
        result = subprocess.run(
            [sys.executable, "-m", "orderlymq", words[0], *words[1:], *self._where(words[0])],
            capture_output=True,
            text=True,
            timeout=self.timeout_s,
            check=False,
            env={**os.environ, "ORDERLYMQ_NAME_SERVER": self.name_server, **self.environment},
        )
        assert result.returncode == 0, f"{words}: {result.stdout}{result.stderr}{self._logs()}"
        return result.stdout

    def _where(self, command: str) -> list[str]:
        if command in ("up", "down", "apply"):
            return ["--data-dir", str(self.directory / "data")]
        return []

    def _logs(self) -> str:
        logs = sorted((self.directory / "data" / "logs").glob("*"))
        return "".join(f"\n--- {log.name}\n{log.read_text()[-2000:]}" for log in logs)

    def replica(self, node: int, group: int = 0) -> dict[str, Any] | None:
        """Return the status of a replica, or None if it does not answer."""
        authority = self.environment.get("ORDERLYMQ_TLS_CA")
        trust = ssl.create_default_context(cafile=authority) if authority else None
        scheme = "https" if trust else "http"
        url = f"{scheme}://127.0.0.1:{self.base + self._http + 10 * group + node}/status"
        try:
            with urllib.request.urlopen(url, timeout=5, context=trust) as answer:
                status: dict[str, Any] = json.load(answer)
                return status
        except OSError:
            return None

    def leader(self, group: int = 0, *, timeout_s: float = 60) -> dict[str, Any]:
        """Return the status of the leader; wait until there is one."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            for node in (1, 2, 3):
                status = self.replica(node, group)
                if status is not None and status["serving"]:
                    return status
            time.sleep(0.05)
        raise AssertionError(f"group {group} has no leader{self._logs()}")

    @contextmanager
    def name_server_away(self) -> Iterator[Callable[[], None]]:
        """Pause the name server and its supervisor; yield a function that resumes them."""
        (name_server,) = {
            psutil.Process(each.pid)
            for each in psutil.net_connections("tcp")
            if each.status == psutil.CONN_LISTEN
            and each.pid
            and tuple(each.laddr)[1:] == (self.base,)
        }
        supervisor = name_server.parent()
        assert supervisor is not None

        def resume() -> None:
            name_server.resume()
            supervisor.resume()

        try:
            supervisor.suspend()
            name_server.suspend()
            yield resume
        finally:
            resume()

    def kill_leader(self, group: int = 0) -> int:
        """Send SIGKILL to the leader's process and return its node id."""
        status = self.leader(group)
        os.kill(status["pid"], signal.SIGKILL)
        return int(status["node"])


def secured_cluster(directory: Path, mode: str, **more: Any) -> LocalCluster:
    """Return a cluster, not yet started, with TLS in this *mode*; its commands use TLS, too."""
    files = make_certificate(make_authority(directory), "server")
    tls = {
        "mode": mode,
        "certificateFile": str(files.certificate),
        "keyFile": str(files.key),
        "caFile": str(files.ca),
    }
    environment = {"ORDERLYMQ_TLS": "true", "ORDERLYMQ_TLS_CA": str(files.ca)}
    return LocalCluster(directory, tls=json.dumps(tls), environment=environment, **more)
