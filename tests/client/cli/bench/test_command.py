"""`orderlymq bench` with a cluster: results, verdict, and nothing left behind."""

import contextlib
import json
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest
from click.testing import CliRunner, Result

from orderlymq.blocking import AdminClient, Producer
from orderlymq.cli import cli
from orderlymq.cli.bench import load
from orderlymq.cli.bench.order import OrderCheck
from orderlymq.errors import OrderlyMQError
from orderlymq_testing.cluster import Cluster
from orderlymq_testing.plugin import orderlymq_cluster

__all__ = ["orderlymq_cluster"]

# Seconds of load in each run.
pytestmark = pytest.mark.long


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["bench", *arguments])


def names() -> tuple[list[str], list[str]]:
    """Return the bench's topics and groups that exist, retry topics included."""
    with AdminClient() as admin:
        return (
            [name for name in admin.topics() if "bench" in name],
            [name for name in admin.groups() if "bench" in name],
        )


def kill_midway(cluster: Cluster) -> None:
    """Kill the leader once the bench has sent something; earlier it would find no topic."""
    with AdminClient() as admin:
        sent = 0
        while not sent:
            for topic in admin.topics():
                if topic.startswith("orderlymq-bench"):
                    with contextlib.suppress(OrderlyMQError):
                        sent += sum(each.max_offset for each in admin.topic_stats(topic).values())
    cluster.kill_leader()


def test_a_run_shows_figures_and_leaves_nothing(orderlymq_cluster: Cluster) -> None:
    """Law: all sent messages are acknowledged and consumed in order, and topic and group are deleted afterwards."""
    answer = run("--seconds", "1", "--senders", "4", "--keys", "8", "--size", "100", "--json")

    assert answer.exit_code == 0, answer.output
    result: dict[str, Any] = json.loads(answer.stdout)
    assert (result["kept"], result["ordered"], result["findings"]) == (True, True, [])
    assert result["sent"] == result["consumed"] > 0
    assert (result["repeated"], result["missing"], result["sizeBytes"]) == (0, 0, 100)
    for latency in (result["sendLatencyMs"], result["endToEndLatencyMs"]):
        assert list(latency) == ["p50", "p99", "p99.9", "max"]
        assert 0 < latency["p50"] <= latency["p99"] <= latency["p99.9"] <= latency["max"]
    assert "1 s  sends " in answer.stderr
    assert names() == ([], [])


def test_the_text_says_the_verdict_in_words(orderlymq_cluster: Cluster) -> None:
    """Law: the text output has one table and one sentence with the verdict."""
    answer = run("--seconds", "200ms", "--senders", "1", "--keys", "1")

    assert answer.exit_code == 0, answer.output
    assert "P99.9 MS" in answer.stdout
    assert "The order was kept, and nothing is missing." in answer.stdout


def test_a_run_that_sent_nothing_is_one_json_value(orderlymq_cluster: Cluster) -> None:
    """Law: with --json even a run that sent nothing prints one JSON value, the result or the error."""
    answer = run("--seconds", "0", "--senders", "1", "--keys", "1", "--json")

    assert answer.exit_code == json.loads(answer.stdout)["exitCode"] == 1
    assert "orderlymq topic show" not in answer.stdout  # Its topic is gone.


def test_a_run_whose_sends_all_fail_says_why(orderlymq_cluster: Cluster) -> None:
    """Law: a run whose sends all fail says why; a topic that stays can be looked at."""
    with AdminClient() as admin:
        admin.create_topic("orderlymq-bench-full", queues=1, ordered=True, perm=4)
    answer = run("--seconds", "300ms", "--topic", "orderlymq-bench-full", "--keys", "16")

    assert answer.exit_code == 1
    assert "no send was acknowledged: " in answer.output
    assert "look at `orderlymq topic show orderlymq-bench-full`" in answer.output


@pytest.mark.parametrize("orderlymq_cluster", [3], indirect=True)
def test_a_killed_leader_costs_time_and_no_message(orderlymq_cluster: Cluster) -> None:
    """Law: a killed leader costs time only; failed tries are repeated with the same message."""
    killing = threading.Thread(target=kill_midway, args=(orderlymq_cluster,))
    killing.start()
    answer = run("--seconds", "3", "--senders", "4", "--json")
    killing.join()

    result = json.loads(answer.stdout)
    assert (result["kept"], result["missing"]) == (True, 0)
    assert result["sent"] == result["consumed"]


def test_a_given_topic_stays_and_its_own_messages_do_not_count(orderlymq_cluster: Cluster) -> None:
    """Law: a given topic stays, and messages that were there before do not count."""
    orderlymq_cluster.create_topic("orderlymq-bench-mine", queues=2)
    with Producer() as producer:
        for number in range(5):
            producer.send("orderlymq-bench-mine", f"m{number}", key=str(number))
    answer = run("--seconds", "300ms", "--topic", "orderlymq-bench-mine", "--json")

    result = json.loads(answer.stdout)
    assert (result["kept"], result["topic"]) == (True, "orderlymq-bench-mine")
    assert result["sent"] == result["consumed"]
    assert names() == (["orderlymq-bench-mine"], [])


def test_a_foreign_topic_is_refused_unless_it_is_allowed(orderlymq_cluster: Cluster) -> None:
    """Law: another's topic is refused unless --allow-foreign is given, because its consumers would get the messages."""
    orderlymq_cluster.create_topic("orders")

    refused = run("--topic", "orders", "--seconds", "100ms")
    with AdminClient() as admin:
        assert sum(each.max_offset for each in admin.topic_stats("orders").values()) == 0
    allowed = run("--topic", "orders", "--seconds", "100ms", "--allow-foreign")

    assert refused.exit_code == 2
    assert "the consumers of orders would get the messages of this run" in refused.output
    assert allowed.exit_code == 0, allowed.output


def test_what_cannot_be_run_is_refused_with_a_sentence(orderlymq_cluster: Cluster) -> None:
    """Law: fewer keys than senders, a missing topic and a missing cluster are refused with one sentence."""
    few = run("--senders", "4", "--keys", "2")
    absent = run("--topic", "orderlymq-bench-none")
    nobody = run("--name-server", "127.0.0.1:1")

    assert (few.exit_code, absent.exit_code, nobody.exit_code) == (2, 3, 4)
    assert "each key has one sender" in few.output
    assert "topic orderlymq-bench-none does not exist" in absent.output
    assert names() == ([], [])


def test_an_interrupted_run_leaves_nothing(orderlymq_cluster: Cluster) -> None:
    """Law: Ctrl-C ends a run with code 130, and topic and group are deleted."""
    command = [sys.executable, "-m", "orderlymq", "bench", "--seconds", "60"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "1 s  sends" in process.stderr.readline()
        assert names() != ([], [])
        process.send_signal(signal.SIGINT)
        process.stderr.read()
        assert process.wait(20) == 130

    assert names() == ([], [])


def test_a_broken_order_ends_with_code_1(
    orderlymq_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a broken order ends with code 1 and shows the findings (here each acknowledgement counts one message too many)."""

    class Boastful(OrderCheck):
        def acknowledged(self, key: int, number: int) -> None:
            super().acknowledged(key, number + 1)

    monkeypatch.setattr(load, "OrderCheck", Boastful)
    monkeypatch.setattr(load, "DRAIN_S", 0.1)
    answer = run("--seconds", "100ms", "--senders", "1", "--keys", "1")

    assert answer.exit_code == 1
    assert "0 deliveries broke the order; missing: 1 message." in answer.stdout
    assert names() == ([], [])
