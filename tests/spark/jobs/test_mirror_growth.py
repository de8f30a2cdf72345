"""A mirror of a topic whose queue list grows by a real expansion; without Spark."""

from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import pytest

from orderlymq.blocking import AdminClient, Consumer, Producer
from orderlymq_spark.errors import QueueListChanged
from orderlymq_spark.jobs.mirror import job
from orderlymq_spark.specs import MirrorSpec, Source
from tests.clients.localcluster import LocalCluster
from tests.spark.clusters import Clusters, stored
from tests.spark.topics import Topics

# The commands may take 120 s each on a slow machine.
pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(900)]

_NUMBERS = count()

TOPIC = """
apiVersion: orderlymq.io/v1alpha1
kind: Topic
metadata: {{name: {name}}}
spec:
  clusterRef: {{name: clients}}
  type: Ordered
  queues: {queues}
  permission: {permission}
  queueChangePolicy: DrainAndSwitch
  routePropagationTime: 1s
"""


class Sites:
    """Two clusters that the command has made, and their topics."""

    def __init__(self, source: LocalCluster, target: LocalCluster, both: Clusters) -> None:
        self.source, self.target, self.both = source, target, both
        self._sent = count()

    def declare(self, side: LocalCluster, name: str, queues: int, timeout_s: int = 110) -> None:
        """Create a topic, or let it grow."""
        permission = "ReadWrite" if side is self.source else "ReadOnly"
        path = side.directory / f"{name}-{queues}.yaml"
        path.write_text(TOPIC.format(name=name, queues=queues, permission=permission))
        side.command("apply", "-f", str(path), "--timeout", str(timeout_s))

    def send(self, topic: str, messages: int) -> None:
        """Send messages of many keys, some of which an expansion moves; the numbers rise."""
        with Producer("shop", self.source.name_server) as producer:
            for number in range(messages):
                producer.send(topic, str(next(self._sent)), key=str(number))

    def consume(self, topic: str, messages: int) -> list[tuple[str | None, int]]:
        """Let a consumer group of the target take this many messages more; return their keys and numbers."""
        with Consumer(
            f"auditors-{topic}",
            topics=topic,
            ordered=True,
            consume_from="first",
            name_servers=self.target.name_server,
        ) as consumer:
            found = islice(consumer, messages)
            return [(message.key, int(message.text)) for message in found]

    def mirror(self, topic: str, folder: Path) -> int:
        """Run a mirror; return the number of copied messages."""
        spec = MirrorSpec(
            type="mirror",
            source=Source(bootstrap=self.source.name_server, topic=topic),
            target_bootstrap=self.target.name_server,
            checkpoint=folder / topic,
        )
        found: int = job.run("dr", spec, lambda: pytest.fail("it starts no Spark")).data["rows"]
        return found


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    """Return two clusters."""
    source, target = (
        LocalCluster(tmp_path_factory.mktemp(name) / "cluster", replicas=1)
        for name in ("source", "target")
    )
    try:
        source.up()
        target.up()
        with AdminClient(source.name_server) as one, AdminClient(target.name_server) as other:
            both = Clusters(Topics(source.name_server, one), Topics(target.name_server, other))
            yield Sites(source, target, both)
    finally:
        source.down()
        target.down()


@pytest.fixture
def topic() -> str:
    """Return the name of a new topic, because a repeated test must not find that of its first run."""
    return f"orders-{next(_NUMBERS)}"


def test_a_source_that_grows_first_waits_for_its_target(
    sites: Sites, topic: str, tmp_path: Path
) -> None:
    """All messages before the growth are copied, and none after it until the target has grown, too."""
    for side in (sites.source, sites.target):
        sites.declare(side, topic, 2)
    sites.send(topic, 30)
    assert sites.mirror(topic, tmp_path) == 30
    sites.send(topic, 20)
    sites.declare(sites.source, topic, 5)
    sites.send(topic, 40)

    for _ in range(2):
        with pytest.raises(QueueListChanged, match="let the target's topic grow to 5 queues"):
            sites.mirror(topic, tmp_path)
        assert sites.both.check_prefix(topic) == 50

    sites.declare(sites.target, topic, 5)
    assert sites.mirror(topic, tmp_path) == 40
    assert stored(sites.both.target, topic) == stored(sites.both.source, topic)


def test_the_targets_expansion_waits_for_its_groups(
    sites: Sites, topic: str, tmp_path: Path
) -> None:
    """A group that reads at the target consumes all messages from before the expansion first, so each key stays in order."""
    for side in (sites.source, sites.target):
        sites.declare(side, topic, 2)
    sites.send(topic, 30)
    assert sites.mirror(topic, tmp_path) == 30
    taken = sites.consume(topic, 10)
    sites.send(topic, 20)
    sites.declare(sites.source, topic, 5)
    sites.send(topic, 40)
    with pytest.raises(QueueListChanged, match="let the target's topic grow to 5 queues"):
        sites.mirror(topic, tmp_path)

    with pytest.raises(AssertionError, match="auditors"):
        sites.declare(sites.target, topic, 5, timeout_s=30)
    with pytest.raises(QueueListChanged, match="let the target's topic grow to 5 queues"):
        sites.mirror(topic, tmp_path)
    taken += sites.consume(topic, 40)
    sites.declare(sites.target, topic, 5)

    assert sites.mirror(topic, tmp_path) == 40
    taken += sites.consume(topic, 40)
    for key in {key for key, _ in taken}:
        numbers = [number for each, number in taken if each == key]
        assert numbers == sorted(numbers), key
    assert len(dict.fromkeys(taken)) == 90


def test_a_target_that_has_grown_first_waits_for_its_source(
    sites: Sites, topic: str, tmp_path: Path
) -> None:
    """Nothing is copied until the source has grown, too; then everything is."""
    for side in (sites.source, sites.target):
        sites.declare(side, topic, 2)
    sites.send(topic, 20)
    assert sites.mirror(topic, tmp_path) == 20
    sites.send(topic, 10)
    sites.declare(sites.target, topic, 5)

    with pytest.raises(QueueListChanged, match="let the topic at the source grow in the same way"):
        sites.mirror(topic, tmp_path)
    assert sites.both.check_prefix(topic) == 20

    sites.declare(sites.source, topic, 5)
    sites.send(topic, 40)
    assert sites.mirror(topic, tmp_path) == 50
    assert stored(sites.both.target, topic) == stored(sites.both.source, topic)
