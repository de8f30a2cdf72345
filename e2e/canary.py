"""The canary of a scenario's Cluster: it verifies the order during the scenario, and must raise no false alarm."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from e2e.space import READY_S, Json, Space
from orderlymq_operator.resources.cluster.canary import CANARY_PORT
from orderlymq_operator.resources.conditions.canary import REASONS

PODS: Final = "orderlymq.io/cluster=demo,app.kubernetes.io/component=canary"
SETTINGS: Final = {"enabled": True, "interval": "500ms", "takeoverInterval": "20s", "hold": "20s"}
BROKEN: Final = {reason.name for reason in REASONS if reason.status == "False"}


def with_canary(made: Json) -> None:
    """Give the Cluster of an example a canary."""
    if made["kind"] == "Cluster":
        made["spec"]["canary"] = SETTINGS


@dataclass(frozen=True)
class WatchedSpace(Space):
    """A namespace in which the Cluster of each example has a canary."""

    def example(self, name: str, change: Callable[[Json], None] = lambda made: None) -> None:
        """Apply a file of `examples/`, as `Space` does."""

        def changed(made: Json) -> None:
            change(made)
            with_canary(made)

        super().example(name, changed)


@dataclass(frozen=True)
class Canary:
    """The canary of the Cluster `demo`."""

    space: Space

    @property
    def status(self) -> str:
        """The status of OrderVerified; empty if the condition is missing."""
        return str((self.space.condition("cluster/demo", "OrderVerified") or {}).get("status", ""))

    def verifies(self) -> None:
        """Wait until the order is verified."""
        self.space.until(lambda: self.status == "True", "the order is verified", READY_S)

    def page(self) -> Json:
        """Return the canary's own report; its former pod may still be ending."""
        self.space.until(lambda: len(self.space.pods(PODS)) == 1, "one canary", READY_S)
        (pod,) = self.space.pods(PODS)
        name = pod["metadata"]["name"]
        path = f"/api/v1/namespaces/{self.space.name}/pods/{name}:{CANARY_PORT}/proxy/status"
        return dict(json.loads(self.space.kubectl("get", "--raw", path)))

    def alarms(self) -> list[str]:
        """Return the reasons of the Cluster's events that report broken order."""
        uid = self.space.must("cluster/demo")["metadata"]["uid"]
        found = [
            each for each in self.space.items("events") if each["involvedObject"].get("uid") == uid
        ]
        return [each["reason"] for each in found if each["reason"] in BROKEN]

    def accuses_nobody(self) -> Json:
        """Assert that the order is verified and was never reported as broken; return the canary's report.

        The operator's events cover a canary that died, and the canary's own counts cover a time without an operator.
        """
        self.verifies()
        found = self.page()
        assert found["troubles"] == {}, found
        assert self.alarms() == []
        return found
