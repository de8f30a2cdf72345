"""`orderlymq canary` and its output for programs."""

import json
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from orderlymq.cli import cli
from orderlymq_testing.cluster import Cluster
from orderlymq_testing.plugin import orderlymq_cluster

__all__ = ["orderlymq_cluster"]


@pytest.mark.cluster
def test_each_verdict_is_a_line_of_json_and_what_is_removed_is_named(
    orderlymq_cluster: Cluster,
) -> None:
    """Law: each verdict is a line of JSON, and a removal names the deleted topics and groups; afterwards nothing is left."""
    words = ["canary", "--json", "--name-server", orderlymq_cluster.name_server]
    command = [sys.executable, "-m", "orderlymq", *words, "--port", "0", "--interval", "100ms"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            verdict = json.loads(line)
            if verdict["status"] == "True":
                break
        process.send_signal(signal.SIGTERM)

    removed = CliRunner().invoke(cli, [*words, "--remove", "--yes"])
    again = CliRunner().invoke(cli, [*words, "--remove"])

    assert set(verdict) == {"status", "reason", "message"}
    assert [
        name.startswith("orderlymq_canary_by_hand_")
        for name in json.loads(removed.output)["deleted"]
    ] == [True]
    assert json.loads(again.output) == {"deleted": []}


def test_what_keeps_it_from_starting_is_json_with_the_exit_code() -> None:
    """Law: a failed start prints JSON with the exit code, as every command."""
    answer = CliRunner().invoke(cli, ["canary", "--json", "--name-server", "127.0.0.1:1"])

    assert answer.exit_code == 4
    assert json.loads(answer.output)["exitCode"] == 4
