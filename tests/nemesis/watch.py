"""
Watches the broker group several times a second: its leader, processes that ended, the address for clients.

The watch also acts as the supervisor of a real broker group: it restarts a replica that ended by itself after a
moment, and points the clients' address to the leader.
"""

import threading
import time
from dataclasses import asdict, dataclass, field
from typing import Final

from tests.nemesis.clients.programs import Client
from tests.nemesis.cluster import Cluster

PERIOD_S: Final = 0.1
RESTART_AFTER_S: Final = 1.0
EXIT_STORE_FAILED: Final = 70
#: Exit codes with which a replica may end by itself while its disk is broken on purpose: its store failed, or could
#: not be opened. Any other code, and these codes at any other time, are findings.
EXCUSED: Final = (EXIT_STORE_FAILED, 2)


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of the broker group at one time; *roles* by node, absent if there was no answer."""

    at: int
    leader: int | None
    term: int
    roles: dict[int, str]


@dataclass(slots=True)
class Watch:
    """A thread that watches; its results are in its fields."""

    cluster: Cluster
    clients: list[Client]
    samples: list[Sample] = field(default_factory=list)
    accidents: list[str] = field(default_factory=list)
    stores_failed: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _restart_at: dict[str, float] = field(default_factory=dict)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(10.0)

    def leaders(self) -> list[tuple[int, int | None]]:
        """Return each change of leader with its time; None stands for no leader."""
        changes: list[tuple[int, int | None]] = []
        for sample in self.samples:
            if not changes or changes[-1][1] != sample.leader:
                changes.append((sample.at, sample.leader))
        return changes

    def as_json(self) -> list[dict[str, object]]:
        return [asdict(sample) for sample in self.samples]

    def _run(self) -> None:
        while not self._stop.wait(PERIOD_S):
            self._look()
            self._keep_running()

    def _look(self) -> None:
        statuses = self.cluster.statuses()
        serving = [status for status in statuses.values() if status["serving"]]
        newest = max(serving, key=lambda status: int(status["term"]), default=None)
        leader = None if newest is None else int(newest["node"])
        if leader is not None:
            self.cluster.ground.point(leader)
        self.samples.append(
            Sample(
                time.monotonic_ns(),
                leader,
                max((int(status["term"]) for status in statuses.values()), default=0),
                {node: str(status["role"]) for node, status in statuses.items()},
            )
        )

    def _keep_running(self) -> None:
        now = time.monotonic()
        for child in list(self.cluster.brokers.values()):
            code = child.look()
            if code is None:
                continue
            if code in EXCUSED and now < child.excused_until:
                self.stores_failed += 1
            else:
                self.accidents.append(f"{child.name} ended by itself with exit code {code}")
            self._restart_at[child.name] = now + RESTART_AFTER_S
        for client in self.clients:
            code = None if client.child is None else client.child.look()
            if code is not None:
                self.accidents.append(f"{client.process} ended by itself with exit code {code}")
                client.start()
        for child in list(self.cluster.brokers.values()):
            at = self._restart_at.get(child.name)
            if at is not None and now >= at:
                del self._restart_at[child.name]
                child.start()
