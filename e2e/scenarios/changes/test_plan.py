"""A change can be previewed, and one that loses data waits for its confirmation."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.space import Space

READY = ("cluster/demo", "topic/orders", "consumergroup/billing")


def test_the_plan_says_which_pods_are_replaced_and_the_edit_waits_for_its_confirmation(
    space: Space, tmp_path: Path
) -> None:
    """A shorter retention deletes messages: it is planned, held back, confirmed as the plan says, and carried out."""
    space.example("quickstart.yaml")
    space.ready(*READY)
    uids = _uids(space)
    wanted = tmp_path / "new.yaml"
    made = space.must("cluster/demo")
    change = {"retention": {"time": "1h"}, "flushDiskType": "ASYNC_FLUSH"}
    spec = {**made["spec"], **change}
    meta = {"name": "demo", "namespace": made["metadata"]["namespace"]}
    wanted.write_text(yaml.safe_dump({**_KIND, "metadata": meta, "spec": spec}))

    planned, code = _plan(space, wanted)
    space.patch("cluster/demo", change)
    space.says("cluster/demo", "ConfirmationMissing", "Confirmed")
    held = _uids(space)
    space.kubectl("annotate", "cluster/demo", f"orderlymq.io/confirm={planned['confirmations'][0]}")
    space.says("cluster/demo", "NothingToConfirm", "Confirmed", timeout_s=180)
    space.until(lambda: len(_uids(space) - uids) >= 3, "every broker is replaced", 240)
    space.ready(*READY, timeout_s=240)
    again, nothing = _plan(space, wanted)

    assert code == 3
    restarts = {
        target
        for resource in planned["resources"]
        for effect in resource["effects"]
        if effect["kind"] == "Restarts"
        for target in effect["targets"]
    }
    assert restarts == {"demo-0/1", "demo-0/2", "demo-0/3"}
    assert held == uids
    assert nothing == 0, again


@pytest.mark.ci
def test_live_settings_take_effect_in_the_pods_that_run(space: Space) -> None:
    """Every broker reads them again; no pod is replaced, and no container is restarted."""
    space.example("quickstart.yaml")
    space.ready(*READY)
    before = _runs(space)

    space.patch("cluster/demo", {"config": {"maxMessageSize": "1Mi"}})

    said = "live settings were read again: maxMessageSize 4194304 -> 1048576"
    pods = [pod["metadata"]["name"] for pod in space.pods(_BROKERS)]
    # The kubelet copies a changed file within one and a half minutes.
    space.until(
        lambda: all(said in space.kubectl("logs", pod) for pod in pods), "all read them", 150
    )
    space.ready(*READY)
    assert _runs(space) == before


_BROKERS = "orderlymq.io/cluster=demo,app.kubernetes.io/component=broker"
_KIND = {"apiVersion": "orderlymq.io/v1alpha1", "kind": "Cluster"}


def _plan(space: Space, file: Path) -> tuple[dict[str, Any], int]:
    """Run the plugin as kubectl finds it, on the PATH."""
    known = space.machine.environment
    path = f"{Path(sys.executable).parent}:{known['PATH']}"
    command = ["kubectl", "orderlymq", "plan", "-f", str(file), "--json"]
    found = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**known, "PATH": path}
    )
    assert found.stdout, found.stderr
    report: dict[str, Any] = json.loads(found.stdout)
    return report, found.returncode


def _uids(space: Space) -> set[str]:
    return {pod["metadata"]["uid"] for pod in space.pods(_BROKERS)}


def _runs(space: Space) -> dict[str, int]:
    """Return the number of restarts of each broker's container, by the pod's id."""
    return {
        pod["metadata"]["uid"]: pod["status"]["containerStatuses"][0]["restartCount"]
        for pod in space.pods(_BROKERS)
    }
