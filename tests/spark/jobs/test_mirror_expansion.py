"""A mirror during a change of the queue list, phase by phase; `test_mirror_growth` uses real expansions."""

import itertools
from pathlib import Path

import pytest

from orderlymq import Message, TransactionState
from orderlymq.blocking import TransactionProducer
from orderlymq_spark.cluster.access import access_to
from orderlymq_spark.errors import QueueListChanged
from orderlymq_spark.jobs.mirror import job
from orderlymq_spark.options import Connect
from orderlymq_spark.specs import MirrorSpec, Source
from tests.spark.clusters import Clusters, stored
from tests.spark.growing import Growing

pytestmark = [pytest.mark.cluster]

# The clusters stay, so a repeated test must not find the topic of its first run.
_NUMBERS = itertools.count()


def mirror(clusters: Clusters, topic: str, tmp_path: Path) -> int:
    """Run a mirror; return the number of copied messages."""
    spec = MirrorSpec(
        type="mirror",
        source=Source(bootstrap=clusters.source.bootstrap, topic=topic),
        target_bootstrap=clusters.target.bootstrap,
        checkpoint=tmp_path / topic,
    )
    found: int = job.run("dr", spec, lambda: pytest.fail("it starts no Spark")).data["rows"]
    return found


def ends(clusters: Clusters, topic: str) -> dict[int, int]:
    """Return the ends of the target's queues."""
    access = access_to(Connect(clusters.target.bootstrap))
    _, found = access.bounds(access.queues([topic]))
    return {queue.queue_id: end for queue, end in found.items()}


def grow(growing: Growing, queues: int, attempt: int = 1) -> None:
    """Carry out all steps of a topic's growth."""
    growing.step("fence", attempt=attempt, total=queues, queues=queues, limitMillis=60_000)
    finish(growing, queues, attempt)


def finish(growing: Growing, queues: int, attempt: int = 1) -> None:
    """Let a fenced topic finish its growth."""
    growing.step("switch", attempt=attempt, total=queues, queues=queues)
    growing.declare(queues)
    growing.step("publish", total=queues, settleMillis=1)
    growing.until("open", queues)


def test_what_was_sent_while_the_list_settled_waits_for_the_target(
    clusters: Clusters, tmp_path: Path
) -> None:
    """Law: messages after the barriers wait for the target's growth, even those that the SDK sends before others may."""
    topic, source = clusters.make(f"settling-{next(_NUMBERS)}"), clusters.source
    growing = Growing(source, topic)
    source.numbered(topic, 20, keys=40)
    growing.step("fence", attempt=1, total=5, queues=5, limitMillis=60_000)
    barriers = dict(source.admin.expansion(topic)["g"]["barriers"])
    growing.step("switch", attempt=1, total=5, queues=5)
    growing.declare(5)
    source.numbered(topic, 40, keys=40, start=20)
    growing.step("publish", total=5, settleMillis=1)
    growing.until("open", 5)
    source.numbered(topic, 10, keys=40, start=60)

    for _ in range(2):
        with pytest.raises(QueueListChanged, match="let the target's topic grow to 5 queues"):
            mirror(clusters, topic, tmp_path)
        assert ends(clusters, topic) == barriers

    grow(Growing(clusters.target, topic), 5)
    assert mirror(clusters, topic, tmp_path) == 50
    assert stored(clusters.target, topic) == stored(source, topic)


def test_a_transaction_that_ends_behind_the_fence_is_copied_with_the_list_before(
    clusters: Clusters, tmp_path: Path
) -> None:
    """Law: the switch ends a list, so messages during its fence come before those of the same keys in new queues."""
    topic, source = clusters.make("ending"), clusters.source
    growing = Growing(source, topic)

    def fence(_: Message) -> TransactionState:
        growing.step("fence", attempt=1, total=5, queues=5, limitMillis=60_000)
        return TransactionState.COMMIT

    with TransactionProducer(
        "tests", source.bootstrap, check=lambda _: TransactionState.UNKNOWN
    ) as producer:
        assert producer.send_in_transaction(topic, b"x", key="key", execute=fence).reported
    finish(growing, 5)
    source.numbered(topic, 10, keys=10)

    with pytest.raises(QueueListChanged, match="let the target's topic grow to 5 queues"):
        mirror(clusters, topic, tmp_path)

    assert sum(ends(clusters, topic).values()) == 1


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_fence_is_no_growth(clusters: Clusters, tmp_path: Path, side: str) -> None:
    """Law: queues that exist during a fence are not in the list yet; the growth may be given up, but a target cannot shrink."""
    topic = clusters.make(f"fenced-{side}-{next(_NUMBERS)}")
    growing = Growing(getattr(clusters, side), topic)
    clusters.source.numbered(topic, 20)
    if side == "target":
        assert mirror(clusters, topic, tmp_path) == 20

    growing.step("fence", attempt=1, total=5, queues=5, limitMillis=60_000)
    growing.until("fenced", 5)
    assert mirror(clusters, topic, tmp_path) == (20 if side == "source" else 0)

    growing.step("abort", attempt=1)
    # Name servers still know the queues that were planned.
    clusters.source.numbered(topic, 7, start=20)
    assert mirror(clusters, topic, tmp_path) == 7
    assert clusters.check_prefix(topic) == 27


def test_a_list_that_grows_twice_is_copied_list_by_list(clusters: Clusters, tmp_path: Path) -> None:
    """Law: messages of two lists are never copied together, however far the mirror is behind."""
    topic, source = clusters.make("behind"), clusters.source
    growing, target = Growing(source, topic), Growing(clusters.target, topic)
    barriers = []
    source.numbered(topic, 20, keys=40)
    for attempt, queues in ((1, 4), (2, 7)):
        growing.step("fence", attempt=attempt, total=queues, queues=queues, limitMillis=60_000)
        barriers.append(dict(source.admin.expansion(topic)["g"]["barriers"]))
        finish(growing, queues, attempt)
        source.numbered(topic, 40, keys=40, start=20 * (1 + 2 * (attempt - 1)))

    for attempt, queues in ((1, 4), (2, 7)):
        with pytest.raises(
            QueueListChanged, match=f"let the target's topic grow to {queues} queues"
        ):
            mirror(clusters, topic, tmp_path)
        assert ends(clusters, topic) == barriers[attempt - 1]
        grow(target, queues, attempt)
    assert mirror(clusters, topic, tmp_path) == 40
    assert stored(clusters.target, topic) == stored(source, topic)


def test_a_list_that_grows_again_is_copied_during_its_fence(
    clusters: Clusters, tmp_path: Path
) -> None:
    """Messages after the former growth are copied to a target that has grown once, too."""
    topic = clusters.make(f"grows-twice-{next(_NUMBERS)}")
    growing = Growing(clusters.source, topic)
    for side in (growing, Growing(clusters.target, topic)):
        grow(side, 4)
    clusters.source.numbered(topic, 20, keys=40)

    growing.step("fence", attempt=2, total=8, queues=8, limitMillis=60_000)
    growing.until("fenced", 8)

    assert mirror(clusters, topic, tmp_path) == 20
    assert stored(clusters.target, topic).keys() == set(range(4))
