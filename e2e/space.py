"""
A namespace of the cluster, as a scenario uses it: apply, wait, look, break.

Every wait has a limit, and its error names the last state.
"""

import json
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from e2e.machine import ROOT, Machine, MachineError, say

POLL_S: Final = 0.2
READY_S: Final = 180.0
EXAMPLE_IMAGE: Final = "orderlymq:dev"  # what examples name

Json = dict[str, Any]
Property = Callable[[str, object], None]  # pytest's record_property


@dataclass(frozen=True)
class Space:
    """One namespace.

    Attributes:
        image: the image that examples run in place of the one that they name.
    """

    machine: Machine
    name: str
    image: str

    # -- kubectl -------------------------------------------------------------------------------

    def kubectl(
        self, *words: str, stdin: str | None = None, timeout_s: float = 120, check: bool = True
    ) -> str:
        """Run kubectl in the namespace and return its output."""
        command = ("kubectl", "-n", self.name, *words)
        return self.machine.run(*command, stdin=stdin, timeout_s=timeout_s, check=check)

    def apply(self, *texts: str) -> None:
        """Apply manifests."""
        self.kubectl("apply", "-f", "-", stdin="\n---\n".join(texts))

    def refused(self, text: str) -> str:
        """Return the message with which the API server refuses a manifest.

        Raises:
            AssertionError: it does not.
        """
        try:
            self.apply(text)
        except MachineError as error:
            return str(error)
        raise AssertionError(f"the API server accepted {text}")

    def example(self, name: str, change: Callable[[Json], None] = lambda made: None) -> None:
        """Apply a file of `examples/` with the image under test; *change* may alter each object."""
        text = _text(ROOT / "examples" / name).replace(EXAMPLE_IMAGE, self.image)
        made = [item for item in yaml.safe_load_all(text) if item]
        for item in made:
            change(item)
        self.apply(*(yaml.safe_dump(item) for item in made))

    def get(self, what: str, *words: str) -> Json | None:
        """Return an object or a list, None if it does not exist."""
        text = self.kubectl("get", what, *words, "-o", "json", "--ignore-not-found")
        found = json.loads(text) if text.strip() else None
        return None if found is None or found.get("items") == [] else found

    def must(self, what: str) -> Json:
        """Return an object that must exist."""
        found = self.get(what)
        assert found is not None, f"{what} is not there"
        return found

    def items(self, kind: str, selector: str = "") -> list[Json]:
        """Return the objects of a kind."""
        found = self.get(kind, *(["-l", selector] if selector else []))
        return list(found["items"]) if found else []

    def patch(self, what: str, spec: Json) -> None:
        """Merge into the spec of an object."""
        self.merge(what, {"spec": spec})

    def merge(self, what: str, change: Json) -> None:
        """Merge into an object; lists in Kubernetes' own kinds are merged by its rules."""
        own = what.partition("/")[0] not in {"statefulset"}
        kind = "merge" if own else "strategic"
        self.kubectl("patch", what, f"--type={kind}", "-p", json.dumps(change))

    @contextmanager
    def forwarded(self, service: str, port: int | str) -> Iterator[int]:
        """Forward a free port of this machine to a Service for the block; yield it."""
        command = ("kubectl", "-n", self.name, "port-forward", f"service/{service}", f":{port}")
        with subprocess.Popen(
            command, env=self.machine.environment, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            try:
                line = process.stdout.readline()
                local = re.search(r"127\.0\.0\.1:(\d+) ->", line)
                if local is None:
                    raise MachineError(f"{' '.join(command)} forwards nothing: {line!r}")
                # It writes a line for each connection, and blocks if nothing reads them.
                reader = threading.Thread(target=process.stdout.read, name="port-forward")
                reader.start()
                yield int(local[1])
            finally:
                process.terminate()

    # -- waiting -------------------------------------------------------------------------------

    def until(self, sight: Callable[[], bool], what: str, timeout_s: float = READY_S) -> float:
        """Wait until *sight* returns true; return the seconds that it took.

        An overloaded API server may fail to answer kubectl now and then: this counts as not true, and is named in the error.
        """
        begun = time.monotonic()
        failure = ""
        while True:
            try:
                if sight():
                    return time.monotonic() - begun
            except MachineError as error:
                failure = f"\n{error}"
            if time.monotonic() - begun > timeout_s:
                text = f"not within {timeout_s:g} s: {what}{failure}\n{self.overview()}"
                raise AssertionError(text)
            time.sleep(POLL_S)

    def ready(self, *names: str, timeout_s: float = READY_S) -> float:
        """Wait until objects (`kind/name`) have their condition Ready for their present generation."""
        return self.until(
            lambda: all(self._ready_now(name) for name in names), f"{names} Ready", timeout_s
        )

    def _ready_now(self, name: str) -> bool:
        found = self.get(name)
        ready = condition_of(found, "Ready")
        return (
            found is not None
            and ready is not None
            and ready["status"] == "True"
            and ready.get("observedGeneration", 0) >= found["metadata"]["generation"]
        )

    def condition(self, name: str, kind: str = "Ready") -> Json | None:
        """Return a condition of an object (`kind/name`)."""
        return condition_of(self.get(name), kind)

    def says(self, name: str, reason: str, kind: str = "Ready", *, timeout_s: float = 60) -> Json:
        """Wait until a condition has *reason*; return it."""
        seen: list[Json | None] = [None]

        def sight() -> bool:
            seen[0] = self.condition(name, kind)
            return seen[0] is not None and seen[0]["reason"] == reason

        self.until(sight, f"{name} says {reason} in {kind}", timeout_s)
        assert seen[0] is not None
        return seen[0]

    # -- pods ----------------------------------------------------------------------------------

    def pods(self, selector: str) -> list[Json]:
        """Return the pods that are not being deleted, by name."""
        found = self.items("pods", selector)
        alive = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
        return sorted(alive, key=lambda pod: str(pod["metadata"]["name"]))

    def leader(self, cluster: str, group: int = 0) -> str:
        """Return the pod that leads a raft group; wait until there is exactly one."""
        selector = (
            f"orderlymq.io/cluster={cluster},orderlymq.io/group={group},orderlymq.io/role=leader"
        )
        self.until(lambda: len(self.pods(selector)) == 1, f"{cluster}-{group} has a leader", 60)
        return str(self.pods(selector)[0]["metadata"]["name"])

    def kill(self, pod: str) -> float:
        """Delete a pod without a grace period; return the time of the request (monotonic seconds)."""
        at = time.monotonic()
        self.kubectl("delete", "pod", pod, "--grace-period=0", "--force", "--wait=false")
        return at

    def lose_leader(self, cluster: str, group: int = 0) -> str:
        """Kill the pod that leads a raft group; return its name.

        Returns when its successor serves and every replica votes, so that the next kill cannot remove a majority.
        """
        pod = self.leader(cluster, group)
        former = self.must(f"pod/{pod}")["metadata"]["uid"]
        self.kill(pod)
        self.until(lambda: self.is_replaced(pod, former), f"{pod} serves again")
        # The condition keeps its former value for a moment.
        self.says(f"cluster/{cluster}", "AllReplicasHealthy", "QuorumHealthy", timeout_s=READY_S)
        return pod

    def is_replaced(self, pod: str, former: str) -> bool:
        """Return whether a pod has another UID than *former*, and is ready."""
        found = self.get(f"pod/{pod}")
        return found is not None and found["metadata"]["uid"] != former and _is_ready(found)

    def node(self, pod: str) -> str:
        """Return the node of a pod, empty while it has none."""
        found = self.get(f"pod/{pod}") or {"spec": {}}
        return str(found["spec"].get("nodeName", ""))

    def workers(self) -> list[str]:
        """Return the nodes that are not control planes."""
        nodes = self.items("nodes", "!node-role.kubernetes.io/control-plane")
        return sorted(str(node["metadata"]["name"]) for node in nodes)

    def uids(self, selector: str) -> dict[str, str]:
        """Return the UIDs of pods by name: an equal UID means that a pod was not replaced."""
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in self.pods(selector)}

    def rolled(self, selector: str, before: Mapping[str, str], timeout_s: float) -> int:
        """Wait until every pod differs from *before* (UIDs by name); return the lowest number that were ready together."""
        fewest = len(before)

        def sight() -> bool:
            nonlocal fewest
            alive = self.pods(selector)
            fewest = min(fewest, sum(_is_ready(pod) for pod in alive))
            now = {pod["metadata"]["uid"] for pod in alive}
            return len(now) == len(before) and not now & set(before.values())

        self.until(sight, "every pod is a new one", timeout_s)
        return fewest

    def overview(self) -> str:
        """Return what a user would look at when a scenario fails."""
        parts = [
            self.kubectl("get", "mq,pods,pvc", "-o", "wide", check=False),
            self.kubectl("get", "mq", "-o", "yaml", "--show-managed-fields=false", check=False)[
                -6000:
            ],
            self.kubectl("get", "events", "--sort-by=.lastTimestamp", check=False)[-3000:],
        ]
        return "\n".join(parts)


def condition_of(found: Json | None, kind: str) -> Json | None:
    """Return a condition of an object."""
    conditions = (found or {}).get("status", {}).get("conditions", [])
    return next((item for item in conditions if item["type"] == kind), None)


def _is_ready(pod: Json) -> bool:
    return (condition_of(pod, "Ready") or {}).get("status") == "True"


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@contextmanager
def lost_node(machine: Machine, node: str) -> Iterator[None]:
    """Stop a kind node for the block, and wait afterwards until it is back."""
    say(f"node {node} is killed")
    machine.run("docker", "kill", node)
    try:
        yield
    finally:
        machine.run("docker", "start", node)
        machine.run("kubectl", "wait", f"node/{node}", "--for=condition=Ready", "--timeout=120s")
