"""A change is read before it is made, and one that loses data waits for its confirmation."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from e2e.space import Space

READY = ("cluster/demo", "topic/orders", "consumergroup/billing")


def test_the_plan_says_which_pods_are_replaced_and_the_edit_waits_for_its_confirmation(
    space: Space, tmp_path: Path
) -> None:
    """A shorter retention deletes messages: planned, held back, confirmed as the plan says, and carried out."""
    space.example("quickstart.yaml")
    space.ready(*READY)
    uids = _uids(space)
    wanted = tmp_path / "new.yaml"
    made = space.must("cluster/demo")
    spec = {**made["spec"], "retention": {"time": "1h"}}
    meta = {"name": "demo", "namespace": made["metadata"]["namespace"]}
    wanted.write_text(yaml.safe_dump({**_KIND, "metadata": meta, "spec": spec}))

    planned, code = _plan(space, wanted)
    space.patch("cluster/demo", {"retention": {"time": "1h"}})
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


_KIND = {"apiVersion": "orderlymq.io/v1alpha1", "kind": "Cluster"}


def _plan(space: Space, file: Path) -> tuple[dict[str, Any], int]:
    """Ask the plugin as kubectl finds it: on the PATH."""
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
    chosen = "orderlymq.io/cluster=demo,app.kubernetes.io/component=broker"
    return {pod["metadata"]["uid"] for pod in space.pods(chosen)}
