"""The queues of a killed client on this machine get a new holder before the lease ends, whatever the client's name is."""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from orderlymq.blocking import LoopThread
from tests.clients.javaclient.test_java import by_queue
from tests.clients.localcluster import LocalCluster
from tests.clients.programs import Event, Go, Java, Program, options
from tests.faultyproxy import DOWN, UP, FaultyProxy, SocksProxy, listening

# Each test has its own client ids: if another program asked for a lock of the same id, the end of one program alone
# does not prove that the client is dead (ADR 16, rule 7).
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

# A lease is 60 s long; a Java 5 client adds two pauses of half a second.
BEFORE_THE_LEASE_S = 45
# A lease, the 20 s between two rebalances of a client, and reserve for a busy machine.
LEASE_AND_BALANCE_S = 120


# The shortest lease: the limit of a Java client, plus two seconds. A silent client counts as a member, with a share of
# the queues, until its lease expires.
LEASE = {"rocketmq.broker.rebalance.lockMaxLiveTime": "32000", "clientExpiry": "35s"}
LEASE_S = 32


def take_over(victim: Program, survivor: Program, *, shared_s: float = 60) -> None:
    """Kill one of two consumers and wait until the other one has all of its queues.

    They share the queues at most *shared_s* seconds after their start. The victim consumes for a while first,
    because a client that dies before the broker has identified its process keeps its queues until the lease ends.
    """
    for member in (victim, survivor):
        member.heard("done", 200, timeout_s=shared_s)
    queues = set(by_queue(victim.of("done")[-20:]))
    before = len(survivor.of("done"))

    victim.kill()
    survivor.until(
        lambda _: queues <= set(by_queue(survivor.of("done")[before:])),
        timeout_s=BEFORE_THE_LEASE_S,
    )


@pytest.mark.long
@pytest.mark.java
def test_a_killed_java_client_with_any_instance_name_is_taken_over(
    cluster: LocalCluster, java: Java
) -> None:
    """With setInstanceName the client id contains no process id, even if the name is a number."""
    topic = cluster.topic()
    number = topic.removeprefix("topic-")
    where = {"ns": cluster.name_server, "topic": topic}
    member = {**where, "group": cluster.group(topic), "seconds": 120}

    with (
        java.start("consume", **member, instance=f"orders-{number}") as victim,
        java.start("consume", **member, instance=number) as survivor,
        java.start("send", **where, count=10**6, keys=40, pause=5, retry=True),
    ):
        take_over(victim, survivor)


@pytest.mark.go
@pytest.mark.timeout(320)
def test_a_killed_go_client_with_any_instance_name_is_taken_over(
    cluster: LocalCluster, java_498: Java, go: Go
) -> None:
    """The client connects only to OrderlyMQ, so that it cannot be confused with another program.

    The Go client does not unlock a queue that it leaves to another member: if one of the two saw the group
    before the other had joined, the other waits for the end of a lease and its own next rebalance.
    """
    topic = cluster.topic()
    where = {"ns": cluster.name_server, "topic": topic}
    member = {**where, "group": cluster.group(topic), "seconds": 300, "expected": 10**6}
    # Its standard input is not a pipe, as for a service.
    quiet = ["sh", "-c", 'exec "$@" </dev/null', "sh", str(go.path), "consume"]

    with (
        Program([*quiet, *options(**member, instance=f"orders-{topic}")]) as victim,
        Program([*quiet, *options(**member, instance=f"others-{topic}")]) as survivor,
        java_498.start("send", **where, count=10**6, keys=40, pause=5, retry=True),
    ):
        take_over(victim, survivor, shared_s=LEASE_AND_BALANCE_S)


@pytest.fixture(scope="module")
def briefly_leased(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path_factory.mktemp("leases"), config=LEASE, replicas=1)
    cluster.up()
    yield cluster
    cluster.down()


def of_queue(events: list[Event], queue: str, after: int = 0) -> list[int]:
    """Return the times of one queue's events *after* a time."""
    return [e["at"] for e in events if e["queue"] == queue and e["at"] > after]


def share(*members: Program) -> None:
    """Wait until each of two consumers has one of two queues."""
    for each in members:
        each.until(
            lambda program: (
                len({e["queue"] for e in program.of("done")[-20:]}) == 1
                and len(program.of("done")) > 40
            ),
            timeout_s=90,
        )
    queues = [each.of("done")[-1]["queue"] for each in members]
    assert len(set(queues)) == len(members)


@contextmanager
def socks() -> Iterator[FaultyProxy]:
    """Run a SOCKS proxy during the test."""
    thread = LoopThread()
    context = listening(SocksProxy())
    proxy = thread.run(context.__aenter__())
    try:
        yield proxy
    finally:
        thread.run(context.__aexit__(None, None, None))
        thread.close()


@pytest.mark.java
@pytest.mark.whole_suite
def test_a_client_that_is_paused_consumes_nothing_beside_the_next_holder(
    briefly_leased: LocalCluster, newest_java: Java
) -> None:
    """Nothing proves that it is dead. It holds hundreds of messages when its lease ends."""
    cluster = briefly_leased
    topic = cluster.topic(queues=2)
    where = {"ns": cluster.name_server, "topic": topic}
    member = {**where, "group": cluster.group(topic), "seconds": 170, "work": 100}

    with (
        newest_java.start("consume", **member, instance="paused") as paused,
        newest_java.start("consume", **member, instance="well") as survivor,
        newest_java.start("send", **where, count=10**6, keys=60, pause=10, retry=True),
    ):
        share(paused, survivor)
        lost = paused.of("done")[-1]["queue"]
        begun = paused.of("done")[-1]["at"]

        os.kill(paused.pid, signal.SIGSTOP)
        try:
            survivor.until(
                lambda program: bool(of_queue(program.of("deliver"), lost, begun)),
                timeout_s=LEASE_S + 30,
            )
        finally:
            os.kill(paused.pid, signal.SIGCONT)
        taken = min(of_queue(survivor.of("deliver"), lost, begun))
        survivor.heard("done", len(survivor.of("done")) + 100)

        # It finishes the message of its paused listener, and begins no other one.
        assert of_queue(paused.of("deliver"), lost, taken) == []


@pytest.mark.java
@pytest.mark.whole_suite
@pytest.mark.timeout(320)
def test_a_client_that_is_cut_off_consumes_nothing_beside_the_next_holder(
    briefly_leased: LocalCluster, newest_java: Java
) -> None:
    """The client continues to run with hundreds of messages, and its connections look healthy to both sides.

    Its requests arrive when the fault is over, after its lease.
    """
    cluster = briefly_leased
    topic = cluster.topic(queues=2)
    where = {"ns": cluster.name_server, "topic": topic}
    member = {**where, "group": cluster.group(topic), "seconds": 300, "work": 100}

    with socks() as proxy:
        behind = json.dumps({"0.0.0.0/0": {"addr": proxy.address}})
        # With a proxy it cannot leave the sizes of its buffers to the kernel.
        sizes = [f"com.rocketmq.remoting.socket.{way}buf.size=65536" for way in ("snd", "rcv")]
        away = newest_java.speaking(f"com.rocketmq.socks.proxy.config={behind}", *sizes)
        with (
            away.start("consume", **member, instance="away") as cut,
            newest_java.start("consume", **member, instance="near") as survivor,
            newest_java.start("send", **where, count=10**6, keys=60, pause=10, retry=True),
        ):
            share(cut, survivor)
            assert proxy.open
            lost = cut.of("done")[-1]["queue"]
            begun = cut.of("done")[-1]["at"]

            proxy.hold(UP, DOWN, new=True)
            heals_at = time.monotonic() + LEASE_S + 10
            survivor.until(
                lambda program: bool(of_queue(program.of("deliver"), lost, begun)),
                timeout_s=LEASE_S + 30,
            )
            # The test decides the length of the cut.
            time.sleep(max(0.0, heals_at - time.monotonic()))
            proxy.heal()
            taken = min(of_queue(survivor.of("deliver"), lost, begun))
            survivor.heard("done", len(survivor.of("done")) + 100)

            # It is a member again and may get its queue back, after the survivor's last message of it.
            last = max(of_queue(survivor.of("deliver"), lost, begun))
            beside = [at for at in of_queue(cut.of("deliver"), lost, taken) if at <= last]
            assert beside == []
