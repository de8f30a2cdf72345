"""The installed operator: upgrade it, remove it, measure it."""

import json
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from e2e.machine import ROOT, MachineError, say
from e2e.space import Json, Space

_RELEASE: Final = "ob-e2e"
_CHART: Final = str(ROOT / "charts" / "orderlymq")
_WRITING: Final = {"create", "update", "patch", "apply", "delete"}
_READING: Final = {"get", "list"}
_SAMPLE: Final = re.compile(
    r"^orderlymq_operator_api_requests_total\{(?P<labels>[^}]*)\} (?P<value>\S+)$", re.MULTILINE
)


@dataclass(frozen=True)
class Operator(Space):
    """The namespace in which the operator runs.

    Attributes:
        values: the values of the chart, as `name=value`.
        release: name of the release.
    """

    values: tuple[str, ...] = ()
    release: str = _RELEASE

    @property
    def deployment(self) -> str:
        """The name of its Deployment."""
        return f"{self.release}-orderlymq"

    def install(self, *further: str, wait: bool = True) -> None:
        """Install or upgrade the release, and wait until the operator is ready."""
        sets = [word for value in (*self.values, *further) for word in ("--set", value)]
        say(f"installing {self.release} {' '.join(further)}")
        command = ["helm", "upgrade", "--install", self.release, _CHART, "-n", self.name]
        waiting = ["--wait", "--timeout=180s"] if wait else []
        self.machine.run(*command, *sets, "--take-ownership", *waiting, timeout_s=240)

    def uninstall(self) -> None:
        """Remove the release; custom resources stay."""
        say(f"uninstalling {self.release}")
        command = ("helm", "uninstall", self.release, "-n", self.name, "--wait")
        self.machine.run(*command, timeout_s=240)

    def test(self) -> str:
        """Run `helm test` and return its output.

        Raises:
            MachineError: it failed; the text ends with what the pod wrote.
        """
        command = ("helm", "test", self.release, "-n", self.name, "--timeout=280s")
        try:
            return self.machine.run(*command, timeout_s=300)
        except MachineError as error:
            selector = (
                f"app.kubernetes.io/instance={self.release},app.kubernetes.io/component=selftest"
            )
            (pod,) = json.loads(
                self.machine.run("kubectl", "get", "pods", "-A", "-l", selector, "-o", "json")
            )["items"]
            place, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
            shown = self.machine.run("kubectl", "logs", "-n", place, name, check=False)
            raise MachineError(f"{error}\n{shown[-3000:]}") from error

    @contextmanager
    def uninstalled(self) -> Iterator[None]:
        """Uninstall the release for the block."""
        self.uninstall()
        try:
            yield
        finally:
            self.install()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Stop the operator for the block, and wait afterwards until it is back."""
        self._scale(0)
        say("the operator is away")
        try:
            yield
        finally:
            self._scale(1)
            say("the operator is back")

    def leave(self, node: str) -> None:
        """Move the operator to another node if it runs on this one."""
        (pod,) = self.pods(self.selector)
        if pod["spec"]["nodeName"] != node:
            return
        self.machine.run("kubectl", "cordon", node)
        try:
            self.kubectl("delete", "pod", pod["metadata"]["name"])
            self.until(lambda: self.leaders() == [1], "the operator leads elsewhere", 120)
        finally:
            self.machine.run("kubectl", "uncordon", node)

    def log(self) -> str:
        """Return the operator's log since its start."""
        return self.kubectl("logs", f"deployment/{self.deployment}", "--tail=-1")

    @contextmanager
    def replicas(self, count: int) -> Iterator[None]:
        """Run *count* operators for the block."""
        self._scale(count)
        try:
            yield
        finally:
            self._scale(1)

    @contextmanager
    def without(self, place: str, resource: str) -> Iterator[None]:
        """Remove every right on a resource in the namespace *place* for the block."""
        namespaced = "watchNamespaces={*}" not in self.values
        role = ("clusterrole", f"{self.deployment}-{self.name}")
        words = ("role", self.deployment, "-n", place) if namespaced else role
        rules = json.loads(self.machine.run("kubectl", "get", *words, "-o", "json"))["rules"]
        kept = [
            {**rule, "resources": rest}
            for rule in rules
            if (rest := [name for name in rule["resources"] if name != resource])
        ]

        def put(rules: list[Json]) -> None:
            change = json.dumps([{"op": "replace", "path": "/rules", "value": rules}])
            self.machine.run("kubectl", "patch", *words, "--type=json", "-p", change)

        put(kept)
        say(f"the operator has no right on {resource}")
        try:
            yield
        finally:
            put(rules)

    def _scale(self, replicas: int) -> None:
        self.kubectl("scale", f"deployment/{self.deployment}", f"--replicas={replicas}")
        self.until(
            lambda: len(self.items("pods", self.selector)) == replicas, f"{replicas} operators", 90
        )
        self.kubectl("rollout", "status", f"deployment/{self.deployment}", "--timeout=120s")

    @property
    def selector(self) -> str:
        """The labels of its pods."""
        return f"app.kubernetes.io/instance={self.release},app.kubernetes.io/component=operator"

    def metrics(self, pod: str = "") -> str:
        """Return the operator's metrics, as Prometheus reads them; of one *pod*, or of any."""
        target = f"pods/{pod}:8080" if pod else f"services/{self.deployment}:8080"
        return self.kubectl(
            "get", "--raw", f"/api/v1/namespaces/{self.name}/{target}/proxy/metrics"
        )

    def leading(self) -> dict[str, int]:
        """Return which pods lead (1) or stand by (0) by their own metrics; pods that do not answer are left out."""
        found = {}
        for pod in self.pods(self.selector):
            name = pod["metadata"]["name"]
            try:
                text = self.metrics(name)
            except MachineError:
                continue
            (value,) = re.findall(r"^orderlymq_operator_leading (\S+)$", text, re.MULTILINE)
            found[name] = int(float(value))
        return found

    def leaders(self) -> list[int]:
        """Return the values of `leading`."""
        return list(self.leading().values())

    def writes(self, pod: str = "") -> int:
        """Return the number of the operator's write requests to the API server, without those for its lease."""
        return self._requests(pod, _WRITING)

    def reads(self) -> int:
        """Return the number of its read requests in addition to its watches, without those for its lease."""
        return self._requests("", _READING)

    def _requests(self, pod: str, verbs: Collection[str]) -> int:
        total = 0.0
        for found in _SAMPLE.finditer(self.metrics(pod)):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', found["labels"]))
            if labels["verb"] in verbs and labels["resource"] != "leases":
                total += float(found["value"])
        return int(total)

    def memory_mib(self) -> float:
        """Return the resident memory of the operator's process."""
        command = ("exec", f"deployment/{self.deployment}", "--", "cat", "/proc/1/status")
        (kib,) = re.findall(r"^VmRSS:\s+(\d+) kB", self.kubectl(*command), re.MULTILINE)
        return round(int(kib) / 1024, 1)
