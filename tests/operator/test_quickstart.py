import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.operator.local.conftest import directory, ports
from tests.operator.local.manifests import text

__all__ = ["directory", "ports"]  # fixtures

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(400)]


def _orderlymq(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", "from orderlymq.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_the_order_of_the_demo_survives_the_death_of_the_leader(
    directory: Path, ports: int, tmp_path: Path
) -> None:
    """Law: with real brokers the demo's order survives SIGKILL of the leader and added replicas."""
    manifest = tmp_path / "cluster.yaml"
    manifest.write_text(text(ports))
    place = ("--data-dir", str(directory), "--output", "json")

    begun = _orderlymq("up", "-f", str(manifest), "--detach", *place)
    assert begun.returncode == 0, begun.stdout + begun.stderr
    played = _orderlymq("demo", "--seconds", "6", *place)
    manifest.write_text(text(ports, replicas=5))
    grown = _orderlymq("apply", "-f", str(manifest), *place)
    manifest.write_text(text(ports))
    shrunk = _orderlymq("apply", "-f", str(manifest), *place)
    ended = _orderlymq("down", *place)

    assert played.returncode == 0, played.stdout + played.stderr
    verdict = json.loads(played.stdout)
    assert (verdict["kept"], verdict["findings"], verdict["notJudged"]) == (True, [], [])
    assert verdict["counts"]["sent"] == verdict["counts"]["acknowledged"] > 10
    assert verdict["counts"]["delivered"] == verdict["counts"]["sent"]
    assert list(verdict["ackGapMs"]) == ["leader killed"]
    for change in (grown, shrunk, ended):
        assert change.returncode == 0, change.stdout + change.stderr
