"""
The application of `examples/orders-app.yaml` in a scenario, and the oracle's verdict on its history.

Times in the history are of the machine's monotonic clock, which this process shares with the nodes of kind: times
that are measured here can be compared with them.
"""

import itertools
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from e2e.machine import MachineError
from e2e.space import Json, Space
from orderlymq.oracle.history import read
from orderlymq.oracle.verdict import Event, Kind, Verdict, judge

_FILE: Final = "/history/events.jsonl"
_DRAINED_S: Final = 90.0


@dataclass(frozen=True)
class Takeover:
    """The takeover of one queue of a killed consumer.

    Attributes:
        seconds: from the kill to the next delivery of the queue by another client; None before it.
    """

    queue: str
    seconds: float | None


@dataclass
class Orders:
    """Producer, consumers and history in one namespace."""

    space: Space
    folder: Path
    group: str = "billing"
    topic: str = "orders"
    _events: list[Event] = field(default_factory=list)
    _read_bytes: int = 0

    def start(
        self,
        *,
        consumers: int = 3,
        cluster: str = "demo",
        file: str = "orders-app.yaml",
        crash: bool = False,
        placed: Mapping[str, Iterable[str]] | None = None,
        asked: bool = False,
        by_key: bool = False,
        lease_s: float = 15,
    ) -> None:
        """Start everything and wait until every consumer has delivered something.

        Args:
            consumers: pods that consume.
            cluster: name of the Cluster.
            file: the application of `examples/`.
            crash: consumers end as by a crash, without any notice, when they are asked to end.
            placed: nodes that a Deployment may use, by its name.
            asked: consumers take the queues that the brokers name, one of them on each node.
            by_key: consumers take lanes, in a group with concurrency Key.
            lease_s: the time for which a consumer keeps its queues if nothing proves that it ended.
        """

        def change(made: Json) -> None:
            if made["kind"] != "Deployment":
                return
            name = made["metadata"]["name"]
            pod = made["spec"]["template"]["spec"]
            if name == "orders-consumer":
                made["spec"]["replicas"] = consumers
                pod["containers"][0].setdefault("env", []).append(
                    {"name": "ORDERS_LEASE_S", "value": str(lease_s)}
                )
                if by_key:
                    pod["containers"][0]["env"].append({"name": "ORDERS_BY_KEY", "value": "1"})
                if crash:
                    pod["containers"][0]["env"].append({"name": "ORDERS_CRASH", "value": "1"})
                if asked:
                    variable = {"name": "ORDERS_SERVER_ASSIGNMENT", "value": "1"}
                    pod["containers"][0]["env"].append(variable)
                    pod["topologySpreadConstraints"] = [_one_each(name)]
            for variable in pod["containers"][0].get("env", []):
                if variable["name"] == "ORDERS_NAME_SERVERS":
                    variable["value"] = f"{cluster}-nameserver:9876"
            if placed and name in placed:
                pod["affinity"] = _only(placed[name])

        self.space.example(file, change)
        # A member that asks gets its share after the group has not changed for assignment.rebalanceDelay.
        self.space.until(
            lambda: self.consumed_by() >= consumers, f"{consumers} consumers deliver", 120
        )

    def consumers(self) -> list[str]:
        """Return the names of the consumers' pods."""
        return [pod["metadata"]["name"] for pod in self.space.pods("app=orders-consumer")]

    def consumed_by(self) -> int:
        """Return the number of clients that have delivered something."""
        return len({event.client for event in self.history() if event.kind is Kind.DELIVER})

    def clients_on(self, node: str) -> list[str]:
        """Return the clients that have delivered from pods of a node."""
        pods = self.space.pods("app=orders-consumer")
        there = [pod["metadata"]["name"] for pod in pods if pod["spec"]["nodeName"] == node]
        clients = {event.client for event in self.history() if event.kind is Kind.DELIVER}
        return sorted(client for client in clients for pod in there if client.startswith(pod))

    def owners(self) -> dict[str, str]:
        """Return the client that delivered last from each queue."""
        return {event.queue: event.client for event in self.history() if event.kind is Kind.DELIVER}

    def shares(self) -> list[int]:
        """Return the number of queues of each delivering client, the lowest first."""
        return sorted(Counter(self.owners().values()).values())

    def moves(self, since: float) -> dict[str, list[str]]:
        """Return, by queue, its owner at *since* (monotonic seconds) and the clients that delivered after it."""
        found: dict[str, list[str]] = {}
        for event in self.history():
            if event.kind is not Kind.DELIVER:
                continue
            clients = found.setdefault(event.queue, [])
            if event.at <= since * 1e9:
                clients[:] = [event.client]
            elif not clients or clients[-1] != event.client:
                clients.append(event.client)
        return found

    def busiest(self) -> str:
        """Return the consumer's pod with the most queues, when all consumers have some."""

        def shares() -> Counter[str]:
            pods = self.consumers()
            return Counter(
                pod for client in self.owners().values() for pod in pods if client.startswith(pod)
            )

        self.space.until(
            lambda: len(shares()) == len(self.consumers()), "every consumer has queues", 120
        )
        return shares().most_common(1)[0][0]

    def busiest_on(self, node: str) -> str:
        """Return a consumer's pod on this node that has queues; wait until there is one."""

        def found() -> list[str]:
            clients = set(self.owners().values())
            there = {client for client in self.clients_on(node) if client in clients}
            return [pod for pod in self.consumers() if any(c.startswith(pod) for c in there)]

        self.space.until(lambda: bool(found()), f"a consumer on {node} has queues", 120)
        return found()[0]

    def note(self, kind: Kind, **facts: str | int) -> None:
        """Record an action of the scenario."""
        line = json.dumps(
            {"at": time.monotonic_ns(), "kind": str(kind), "process": "scenario", **facts}
        )
        self.space.kubectl(
            "exec",
            "-i",
            "deploy/orders-history",
            "--",
            "sh",
            "-c",
            f"cat >> {_FILE}",
            stdin=line + "\n",
        )

    def history(self) -> list[Event]:
        """Return the history so far, oldest first; only new events are fetched."""
        command = f"tail -c +{self._read_bytes + 1} {_FILE}"
        try:
            words = ("exec", "deploy/orders-history", "--", "sh", "-c", command)
            text = self.space.kubectl(*words, timeout_s=60)
        except MachineError:
            return self._events  # its pod is not there yet, or is moving between two nodes
        whole = text[: text.rfind("\n") + 1].encode()
        self._read_bytes += len(whole)
        path = self.folder / "new.jsonl"
        path.write_bytes(whole)
        self._events = sorted([*self._events, *read(path)], key=lambda event: event.at)
        with (self.folder / "history.jsonl").open("ab") as file:
            file.write(whole)
        return self._events

    def acknowledged(self) -> int:
        """Return the number of acknowledged sends so far."""
        return sum(event.kind is Kind.ACK for event in self.history())

    def finish(self) -> Verdict:
        """End the producers, wait until everything is consumed, and let the oracle check the history."""
        self.space.kubectl("scale", "deploy/orders-producer", "--replicas=0")
        self.space.until(
            lambda: not self.space.items("pods", "app=orders-producer"), "the producer ends", 90
        )
        until = time.monotonic() + _DRAINED_S
        while _missing(self.history(), self.group) and time.monotonic() < until:
            time.sleep(1)
        # A message that is still missing is lost, which the oracle reports after this line.
        self.note(Kind.DRAINED, group=self.group, topic=self.topic)
        return judge(self.history())

    def until_acknowledged(self, count: int, timeout_s: float = 120) -> None:
        """Wait until *count* more sends are acknowledged."""
        goal = self.acknowledged() + count
        self.space.until(lambda: self.acknowledged() >= goal, f"{count} more sends", timeout_s)

    def longest_silence(self, since: float, until: float) -> float:
        """Return the longest time without an acknowledged send between two times (monotonic seconds)."""
        found = [event.at / 1e9 for event in self.history() if event.kind is Kind.ACK]
        inside = [at for at in found if since <= at <= until]
        moments = [since, *inside, until if not inside else inside[-1]]
        return max(later - earlier for earlier, later in itertools.pairwise(moments))

    def takeovers(self, client: str, at: float) -> list[Takeover]:
        """Return how the queues of *client*, killed at *at* (monotonic seconds), were taken over."""
        killed = int(at * 1e9)
        owner: dict[str, str] = {}
        following: dict[str, int] = {}
        for event in self.history():
            if event.kind is not Kind.DELIVER:
                continue
            if event.at <= killed:
                owner[event.queue] = event.client
            elif not event.client.startswith(client):
                following.setdefault(event.queue, event.at)
        lost = [queue for queue, holder in owner.items() if holder.startswith(client)]
        return [
            Takeover(queue, (following[queue] - killed) / 1e9 if queue in following else None)
            for queue in sorted(lost)
        ]

    def taken_over(self, client: str, at: float, *, timeout_s: float = 90) -> list[float]:
        """Wait until every queue of a killed client is taken over; return the seconds for each."""

        def complete() -> bool:
            found = self.takeovers(client, at)
            return bool(found) and all(item.seconds is not None for item in found)

        self.space.until(complete, f"the queues of {client} go on", timeout_s)
        return [item.seconds for item in self.takeovers(client, at) if item.seconds is not None]


def kept(verdict: Verdict, *, at_least: int = 100) -> None:
    """Assert that the oracle found nothing in a history of sufficient size."""
    text = "\n".join(
        f"{finding.defect}: {finding.explanation}\n  " + "\n  ".join(finding.lines())
        for finding in verdict.findings[:5]
    )
    assert verdict.kept, f"{len(verdict.findings)} findings\n{text}"
    assert not verdict.not_judged, verdict.not_judged
    assert verdict.counts["acknowledged"] >= at_least, verdict.counts


def _missing(history: list[Event], group: str) -> int:
    done: dict[str, set[str]] = defaultdict(set)
    sent = set()
    for event in history:
        if event.kind is Kind.ACK:
            sent.add(event.message)
        elif event.kind is Kind.DONE:
            done[event.group].add(event.message)
    return len(sent - done[group])


def _one_each(app: str) -> dict[str, Any]:
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": app}},
    }


def _only(nodes: Iterable[str]) -> dict[str, Any]:
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(nodes)}
    terms = [{"matchExpressions": [expression]}]
    return {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}
        }
    }
