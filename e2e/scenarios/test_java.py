"""RocketMQ's unmodified Java client in pods: a leader is killed, and a consumer is killed."""

import json
import os
import shutil
import statistics

import pytest

from e2e.machine import ROOT, Machine, say
from e2e.orders import Orders, kept
from e2e.space import Json, Space
from orderlymq.oracle.verdict import Kind

APP = ROOT / "examples" / "orders-app-java"
IMAGE = "orders-app-java:dev"
READY = ("cluster/demo", "topic/orders", "consumergroup/billing")
KILLS = int(os.environ.get("ORDERLYMQ_E2E_KILLS", "10"))
# A send that follows a kill later than this has another cause of its delay.
SILENT_S = 15.0


@pytest.fixture(scope="module")
def java(machine: Machine) -> str:
    """Build the application's image and bring it to the nodes."""
    if shutil.which("mvn") is None:
        pytest.skip("Maven is missing; on Debian: apt-get install maven openjdk-17-jdk-headless")
    say(f"building {IMAGE}")
    machine.run("mvn", "-q", "-B", "-f", str(APP), "package", timeout_s=600)
    machine.build_java(IMAGE, APP)
    return IMAGE


@pytest.mark.usefixtures("java")
def test_an_unmodified_java_client_sends_again_soon_after_its_leader_is_killed(
    space: Space, orders: Orders, record_property: object
) -> None:
    """The time from the kill to the next acknowledged send is measured; every message is delivered once and in order."""
    space.example("quickstart.yaml", _without_template)
    space.ready(*READY)
    orders.start(file="orders-app-java.yaml")

    gaps = []
    for number in range(KILLS):
        space.ready("cluster/demo")
        orders.until_acknowledged(100)
        orders.note(Kind.FAULT, detail=f"leader {number}")
        at = space.kill(space.leader("demo"))
        orders.until_acknowledged(200)
        gaps.append(round(orders.longest_silence(at, at + SILENT_S), 2))
    orders.space.kill(orders.busiest())
    orders.until_acknowledged(300)

    verdict = orders.finish()
    assert callable(record_property)
    record_property("gaps_s", json.dumps(gaps))
    record_property("gap_median_s", statistics.median(gaps))
    kept(verdict)


def _without_template(made: Json) -> None:
    # A Java producer whose first question for a topic is answered late uses the template of new topics instead, with
    # four of its eight queues: guarantees.md advises users who need the order to have none.
    if made["kind"] == "Cluster":
        made["spec"].setdefault("config", {})["autoCreateTopicEnable"] = False
