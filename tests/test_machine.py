"""The machine of the scenarios on Kubernetes."""

import os
from pathlib import Path

import pytest
from e2e.machine import Machine, MachineError
from e2e.space import Space

SLOW_KUBECTL = """#!/bin/sh
[ -f "$0.seen" ] && exit 0
touch "$0.seen"
exec sleep 60
"""


def test_a_program_that_does_not_end_is_trouble_of_the_machine() -> None:
    """Law: who waits for a sight takes a silent API server for none; who does not care gets what nothing prints."""
    machine = Machine(dict(os.environ), "")
    with pytest.raises(MachineError, match=r"sleep 60: no end in 0.05 s"):
        machine.run("sleep", "60", timeout_s=0.05)

    assert machine.run("sleep", "60", timeout_s=0.05, check=False) == ""


def test_who_waits_goes_on_behind_a_silent_api_server(tmp_path: Path) -> None:
    """Law: one request without an answer ends no scenario."""
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(SLOW_KUBECTL)
    kubectl.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    space = Space(Machine({**os.environ, "PATH": path}, ""), "shop", "")

    def sight() -> bool:
        space.kubectl("get", "pods", timeout_s=0.5)
        return True

    assert space.until(sight, "it answers") >= 0.5
