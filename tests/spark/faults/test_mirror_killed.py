"""Two mirrors of one topic, started by mistake, are killed and paused, and so is the target's leader."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from orderlymq.blocking import AdminClient
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_spark.cluster.access import access_to
from orderlymq_spark.driver import FAILED
from orderlymq_spark.options import Connect
from tests.cluster.processes import Child, Group
from tests.spark.clusters import Clusters
from tests.spark.topics import Topics

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(600)]

TOPIC = "orders"
COUNT = 6_000
KILLS = int(os.environ.get("ORDERLYMQ_KILLS", "8"))
_PATIENCE_S = 120


@pytest.fixture
def target_group(topics: Topics, tmp_path: Path) -> Iterator[Group]:
    """Return the target's broker group of three replicas."""
    with Group(tmp_path / "target", 3) as group:
        yield group


class Mirrors:
    """Two drivers with their own checkpoints, which do not know of each other."""

    def __init__(self, clusters: Clusters, folder: Path) -> None:
        self.children: list[Child] = []
        for number in range(2):
            manifest = folder / f"mirror-{number}.yaml"
            spec = {
                "type": "mirror",
                "source": {"bootstrap": clusters.source.bootstrap, "topic": TOPIC},
                "targetBootstrap": clusters.target.bootstrap,
                "groups": ["billing"],
                "checkpoint": str(folder / f"checkpoint-{number}"),
                "trigger": "20ms",
            }
            document = {"kind": "Pipeline", "metadata": {"name": "dr"}, "spec": spec}
            manifest.write_text(json.dumps(document))
            arguments = ["-m", "tests.spark.faults.mirrored", str(manifest)]
            self.children.append(Child(arguments, folder / f"mirror-{number}.log"))
            self.children[-1].start()
        self.paused: Child | None = None

    def wake(self) -> None:
        """Let a paused driver continue its work."""
        if self.paused is not None:
            self.paused.signal(signal.SIGCONT)
            self.paused = None

    def end(self) -> None:
        """Kill the remaining processes."""
        self.wake()
        for child in self.children:
            child.kill()


@pytest.mark.parametrize("seed", [1, 2])
def test_the_target_is_a_prefix_whatever_dies(
    topics: Topics, target_group: Group, tmp_path: Path, seed: int
) -> None:
    """At every moment the target is a prefix; after the last kill it becomes complete, with each message once."""
    chance = Random(seed)
    with AdminClient(target_group.name_server_address) as admin:
        clusters = Clusters(topics, Topics(target_group.name_server_address, admin))
        for side in (clusters.source, clusters.target):
            side.admin.create_topic(TOPIC, queues=4, ordered=True)
        begin = sum(ends(clusters.source).values())
        clusters.source.bulk(TOPIC, COUNT, size=200, keys=50, text=True)
        access_to(Connect(clusters.source.bootstrap)).commit(
            "billing", {queue: end // 2 for queue, end in ends(clusters.source).items()}
        )
        mirrors = Mirrors(clusters, tmp_path)
        happened: list[str] = []
        try:
            for kill in range(KILLS):
                share = (kill + chance.random()) / KILLS
                wait_for(clusters, begin + round(COUNT * share))
                time.sleep(chance.uniform(0, 0.05))
                happened.append(strike(chance, mirrors, target_group))
                clusters.check_prefix(TOPIC)
            mirrors.wake()
            wait_for(clusters, begin + COUNT)
            assert clusters.check_prefix(TOPIC) == begin + COUNT, happened
            for child in mirrors.children:
                child.signal(signal.SIGTERM)
            # One that has just started is stopped before its end, or dies from the signal.
            codes = {child.wait(60) for child in mirrors.children}
            assert codes <= {0, FAILED, -signal.SIGTERM}, happened
        finally:
            mirrors.end()
        groups = {
            queue: each.consumer_offset for queue, each in admin.progress("billing", TOPIC).items()
        }
        assert groups == {queue: end // 2 for queue, end in ends(clusters.source).items()}


def strike(chance: Random, mirrors: Mirrors, target: Group) -> str:
    """Kill or pause a process, and start a killed one again; return its name."""
    mirrors.wake()
    child = chance.choice(mirrors.children)
    match chance.randrange(4):
        case 0:
            leader = target.wait_for_leader()
            target.brokers[leader].kill()
            target.brokers[leader].start()
            return "leader"
        case 1:
            child.signal(signal.SIGSTOP)
            mirrors.paused = child
            return "pause"
        case _:
            child.kill()
            child.start()
            return "mirror"


def ends(side: Topics) -> dict[MessageQueue, int]:
    """Return the end of each queue."""
    access = access_to(Connect(side.bootstrap))
    return access.bounds(access.queues([TOPIC]))[1]


def wait_for(clusters: Clusters, count: int) -> None:
    """Wait until the target has this number of messages."""
    deadline = time.monotonic() + _PATIENCE_S
    while sum(ends(clusters.target).values()) < count:
        assert time.monotonic() < deadline, f"{ends(clusters.target)} of {count}"
        time.sleep(0.01)
