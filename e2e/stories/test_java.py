"""RocketMQ's unmodified Java client, in pods: the leader is killed, a consumer is killed."""

import shutil

import pytest

from e2e.machine import ROOT, Machine, say
from e2e.orders import Orders, kept
from e2e.space import Space
from orderlymq.oracle import Kind

APP = ROOT / "examples" / "orders-app-java"
IMAGE = "orders-app-java:dev"
READY = ("cluster/demo", "topic/orders", "consumergroup/billing")
KILLS = 3


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
    """From the kill to the next acknowledged send; every message is delivered once and in order."""
    space.example("quickstart.yaml")
    space.ready(*READY)
    orders.start(file="orders-app-java.yaml")

    for number in range(KILLS):
        space.ready("cluster/demo")
        orders.until_acknowledged(100)
        orders.note(Kind.FAULT, detail=f"leader {number}")
        space.kill(space.leader("demo"))
        orders.until_acknowledged(100)
    orders.space.kill(orders.busiest())
    orders.until_acknowledged(300)

    verdict = orders.finish()
    assert callable(record_property)
    record_property("ack_gap_ms", str(verdict.ack_gap_ms))
    kept(verdict)
