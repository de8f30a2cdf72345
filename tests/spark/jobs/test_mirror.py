"""A mirror between two clusters: its copies, its continuation, and its refusals."""

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from threading import Event
from typing import Any
from uuid import uuid4

import pytest

from orderlymq.blocking import AdminClient, Consumer
from orderlymq.consumer.settings import ConsumerSettings
from orderlymq.message import Message
from orderlymq_protocol.body.config import SubscriptionGroupConfig
from orderlymq_spark.cluster.access import BLOCK_ROWS, Fetched, access_to
from orderlymq_spark.errors import (
    CheckpointInUse,
    DataLost,
    OptionError,
    QueueListChanged,
    SinkConflict,
)
from orderlymq_spark.explain.explanation import explain
from orderlymq_spark.jobs.mirror import job
from orderlymq_spark.locations.addresses import location
from orderlymq_spark.offsets import QueueRange
from orderlymq_spark.options import Connect
from orderlymq_spark.run.checkpoint import Claim, hold_checkpoint
from orderlymq_spark.run.outcome import Outcome
from orderlymq_spark.run.status import Status, kept_status
from orderlymq_spark.specs import MirrorSpec, Pipeline, Source
from tests.cluster.processes import Group
from tests.spark.clusters import Clusters, committed, stored
from tests.spark.s3 import BUCKET, S3, Fate, Request, serve_all
from tests.spark.topics import Topics

pytestmark = [pytest.mark.cluster]

SETTINGS = ConsumerSettings(shutdown_timeout=0.1)

_NAMES = (f"mirrored-{number}" for number in itertools.count())


@pytest.fixture
def topic(clusters: Clusters) -> str:
    """Return a topic of two queues that both clusters have."""
    return clusters.make(next(_NAMES))


def spec(clusters: Clusters, topic: str, tmp_path: Path, **more: Any) -> MirrorSpec:
    """Return a mirror of a topic."""
    return MirrorSpec(
        type="mirror",
        source=Source(bootstrap=clusters.source.bootstrap, topic=topic),
        target_bootstrap=clusters.target.bootstrap,
        **{"checkpoint": tmp_path / "checkpoint", **more},
    )


def mirror(clusters: Clusters, topic: str, tmp_path: Path, **more: Any) -> Outcome:
    """Run a mirror to its end, without Spark."""
    return job.run(
        "dr", spec(clusters, topic, tmp_path, **more), lambda: pytest.fail("it starts no Spark")
    )


def test_each_queue_is_copied_offset_by_offset(
    clusters: Clusters, topic: str, tmp_path: Path
) -> None:
    """A copy has the same key, tags, properties, body and id; each run continues at the target's end, without a checkpoint."""
    clusters.source.numbered(topic, 50)
    first = mirror(clusters, topic, tmp_path / "one")
    clusters.source.bulk(topic, 3_000, size=300, text=True)
    second = mirror(clusters, topic, tmp_path / "two")
    third = mirror(clusters, topic, tmp_path / "two")

    assert [each.data["rows"] for each in (first, second, third)] == [50, 3_000, 0]
    assert clusters.check_prefix(topic) == 3_050
    status = json.loads((tmp_path / "two" / "checkpoint" / "status.json").read_text())
    assert (status["phase"], status["lag"]) == ("Finished", 0)


def test_the_target_begins_where_the_source_does(
    clusters: Clusters, topic: str, tmp_path: Path
) -> None:
    """A delayed message is copied when it has reached its queue, and is not delayed again."""
    clusters.source.fill(
        topic,
        [
            Message(topic=topic, body=b"later", key="a", delay=0.2),
            Message(topic=topic, body=b"now", key="a"),
        ],
    )
    queues = clusters.source.queues(topic)
    access = access_to(Connect(clusters.source.bootstrap))
    while sum(access.bounds(queues)[1].values()) < 2:
        pass

    mirror(clusters, topic, tmp_path)

    assert clusters.check_prefix(topic) == 2


def test_offsets_of_groups_follow_and_never_go_back(
    clusters: Clusters, topic: str, tmp_path: Path
) -> None:
    """A group begins at its source offset, or earlier if less is copied; a group with members at the target is not changed."""
    clusters.source.numbered(topic, 40)
    group = f"billing-{topic}"
    queues = clusters.source.queues(topic)
    source, target = (
        access_to(Connect(each.bootstrap)) for each in (clusters.source, clusters.target)
    )
    source.commit(group, {queues[0]: 3, queues[1]: 0})

    mirror(clusters, topic, tmp_path, groups=[group])
    assert committed(clusters.target, group, topic) == {queues[0]: 3, queues[1]: 0}

    source.commit(group, {queues[0]: 5})
    target.commit(group, {queues[1]: 4})
    again = mirror(clusters, topic, tmp_path, groups=[group])
    assert committed(clusters.target, group, topic) == {queues[0]: 5, queues[1]: 4}
    assert again.data["moved"] == 1

    source.commit(group, {queues[0]: 9})
    with Consumer(group, clusters.target.bootstrap, topics=topic, ordered=True, settings=SETTINGS):
        held = mirror(clusters, topic, tmp_path, groups=[group])
    assert "has members at the target" in held.data["groups"][group]
    assert held.data["moved"] == 0


def test_a_group_by_key_is_declared_by_queue_until_its_consumers_move(
    clusters: Clusters, tmp_path: Path
) -> None:
    """The target refuses offsets of a group by key, and the result says what to do; a group that changes later continues."""
    topic = clusters.make(next(_NAMES), queues=1)
    clusters.source.numbered(topic, 10, keys=3)
    group, early = f"billing-{topic}", f"early-{topic}"
    (queue,) = clusters.source.queues(topic)
    for each in (group, early):
        access_to(Connect(clusters.source.bootstrap)).commit(each, {queue: 6})
    by_key = SubscriptionGroupConfig(early, concurrency="Key")
    clusters.target.admin.set_group(by_key)

    found = mirror(clusters, topic, tmp_path, groups=[group, early])

    assert clusters.check_prefix(topic) == 10
    assert found.data["moved"] == 1
    assert list(found.data["groups"]) == [early]
    assert "concurrency: Queue there until its consumers move" in found.data["groups"][early]

    clusters.target.admin.set_group(replace(by_key, group_name=group))
    with Consumer(
        group, clusters.target.bootstrap, topics=topic, ordered="key", settings=SETTINGS
    ) as consumer:
        clusters.source.numbered(topic, 4, keys=3, start=10)
        mirror(clusters, topic, tmp_path)
        found_there = {message.queue_offset for message in islice(consumer, 8)}
    assert found_there == set(range(6, 14))


def test_a_target_that_somebody_has_written_to_is_refused(
    clusters: Clusters, tmp_path: Path
) -> None:
    """Another writer may have sent before the mirror began, or between its runs."""
    early, late = next(_NAMES), next(_NAMES)
    for name in (early, late):
        for side in (clusters.source, clusters.target):
            side.admin.create_topic(name, queues=1, ordered=True)
        clusters.source.numbered(name, 5)
    clusters.target.numbered(early, 2)
    mirror(clusters, late, tmp_path)
    clusters.target.numbered(late, 1, start=70)
    clusters.source.numbered(late, 5, start=5)

    for name in (early, late):
        before = stored(clusters.target, name)
        with pytest.raises(SinkConflict, match="not the message that the source has there"):
            mirror(clusters, name, tmp_path)
        assert stored(clusters.target, name) == before


def test_a_target_that_was_created_again_is_copied_from_its_beginning(
    clusters: Clusters, tmp_path: Path
) -> None:
    """Law: the copy has no hole, even if the target's topic was deleted and created again while the mirror was paused."""
    topic = clusters.make(next(_NAMES), queues=1)
    clusters.source.numbered(topic, 5)
    paused = job.mirror_of(spec(clusters, topic, tmp_path))
    paused.copy(paused.look(), Event())
    clusters.source.numbered(topic, 4, start=5)
    parts = paused.look()
    clusters.target.admin.delete_topic(topic)
    clusters.target.admin.create_topic(topic, queues=1, ordered=True, perm=4)

    assert paused.copy(parts, Event()) == 0
    assert mirror(clusters, topic, tmp_path).data["rows"] == 9
    assert clusters.check_prefix(topic) == 9


def test_a_source_that_was_created_again_is_refused(
    clusters: Clusters, topic: str, tmp_path: Path
) -> None:
    """The target has messages of the former topic."""
    clusters.source.numbered(topic, 20)
    mirror(clusters, topic, tmp_path)
    clusters.source.admin.delete_topic(topic)
    clusters.source.admin.create_topic(topic, queues=2, ordered=True)

    with pytest.raises(SinkConflict, match="created again or restored"):
        mirror(clusters, topic, tmp_path)
    status = json.loads((tmp_path / "checkpoint" / "status.json").read_text())
    assert (status["phase"], "created again" in status["last_error"]) == ("Failed", True)


def test_a_source_that_was_wiped_and_filled_again_is_refused(
    clusters: Clusters, tmp_path: Path
) -> None:
    """Such a source assigns the same ids and has more messages than were copied; a running mirror notices it, too."""
    with (
        Group(tmp_path / "source", 1) as group,
        AdminClient(group.name_server_address) as admin,
    ):
        both = Clusters(Topics(group.name_server_address, admin), clusters.target)
        clusters.target.admin.create_topic(name := next(_NAMES), queues=1, ordered=True, perm=4)
        admin.create_topic(name, queues=1, ordered=True)
        both.source.numbered(name, 5)
        running = job.mirror_of(spec(both, name, tmp_path))
        running.copy(running.look(), Event())
        running.note()
        before = stored(both.target, name)

        group.wipe()
        admin.create_topic(name, queues=1, ordered=True)
        both.source.numbered(name, 9)

        with pytest.raises(SinkConflict, match="the source was wiped or restored"):
            running.look()
        with pytest.raises(SinkConflict, match="the source was wiped or restored"):
            mirror(both, name, tmp_path)
        assert stored(both.target, name) == before


def test_a_source_that_is_wiped_while_a_range_is_copied_is_refused(
    clusters: Clusters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: no copies of the new source follow copies of the old one, although a range of many blocks may take hours."""
    with (
        Group(tmp_path / "source", 1) as group,
        AdminClient(group.name_server_address) as admin,
    ):
        both = Clusters(Topics(group.name_server_address, admin), clusters.target)
        topic = both.make(next(_NAMES), queues=1)
        both.source.bulk(topic, 4 * BLOCK_ROWS, size=32)
        running = job.mirror_of(spec(both, topic, tmp_path))
        read = running.source.read

        def read_from_both(part: QueueRange) -> Iterator[Fetched]:
            blocks = read(part)
            yield next(blocks)
            group.wipe()
            admin.create_topic(topic, queues=1, ordered=True)
            both.source.bulk(topic, 4 * BLOCK_ROWS, size=32)
            yield from blocks

        monkeypatch.setattr(running.source, "read", read_from_both)
        with pytest.raises(SinkConflict, match="the source was wiped or restored meanwhile"):
            running.copy(running.look(), Event())

        access = access_to(Connect(clusters.target.bootstrap))
        (end,) = access.bounds(access.queues([topic]))[1].values()
        assert end <= BLOCK_ROWS


@pytest.fixture
def passing(tmp_path: Path) -> Iterator[Topics]:
    """Return a cluster whose retention keeps little."""
    settings = {"storage": {"retention_size": 20_000}, "timers": {"retention_scan_ms": 50}}
    with (
        Group(tmp_path / "passing", 1, overrides=settings) as group,
        AdminClient(group.name_server_address) as admin,
    ):
        yield Topics(group.name_server_address, admin)


def age(side: Topics, topic: str) -> None:
    """Fill another topic of a cluster until retention has removed all messages of this one."""
    access, queues = access_to(Connect(side.bootstrap)), side.queues(topic)
    other = side.make(queues=1)
    for _ in range(60):
        lows, ends = access.bounds(queues)
        if lows == ends:
            return
        side.fill(other, [Message(topic=other, body=b"x" * 2_000)] * 10)
    pytest.fail("retention took nothing")


def test_a_queue_of_which_all_has_aged_out_ends_the_run(
    clusters: Clusters, passing: Topics, tmp_path: Path
) -> None:
    """Law: a run that ends at the present end ends, even if a queue has no message left to copy."""
    both = Clusters(passing, clusters.target)
    topic = both.make(next(_NAMES), queues=1)
    passing.numbered(topic, 7)
    age(passing, topic)
    (queue,) = passing.queues(topic)

    assert access_to(Connect(passing.bootstrap)).bounds([queue]) == ({queue: 7}, {queue: 7})
    running = job.mirror_of(spec(both, topic, tmp_path))
    assert running.look() == []
    assert running.has_reached(running.source_ends())
    assert mirror(both, topic, tmp_path).data["rows"] == 0

    passing.numbered(topic, 3, start=7)
    assert mirror(both, topic, tmp_path).data["rows"] == 3


def test_a_queue_that_ages_before_its_first_copy_begins_later(
    clusters: Clusters, passing: Topics, tmp_path: Path
) -> None:
    """Law: a queue may lose messages while others are copied first; its copy then begins later, without a hole."""
    both = Clusters(passing, clusters.target)
    topic = both.make(next(_NAMES), queues=1)
    passing.numbered(topic, 7)
    running = job.mirror_of(spec(both, topic, tmp_path))
    parts = running.look()
    age(passing, topic)

    assert running.copy(parts, Event()) == 0
    passing.numbered(topic, 3, start=7)
    assert running.copy(running.look(), Event()) == both.check_prefix(topic) == 3

    passing.numbered(topic, 3, start=10)
    parts = running.look()
    age(passing, topic)
    with pytest.raises(DataLost, match=r"\[10, 13\) aged out"):
        running.copy(parts, Event())


@pytest.mark.parametrize("wiped", [False, True])
def test_another_source_is_refused_where_the_last_copy_has_aged_out(
    passing: Topics, tmp_path: Path, wiped: bool
) -> None:
    """The target then has no message to compare, so `status.json` says which source it was, also for another process."""
    with (
        Group(tmp_path / "source", 1) as group,
        AdminClient(group.name_server_address) as admin,
    ):
        both = Clusters(Topics(group.name_server_address, admin), passing)
        topic = both.make(next(_NAMES), queues=1)
        both.source.numbered(topic, 5)
        mirror(both, topic, tmp_path)
        age(passing, topic)
        both.source.numbered(topic, 5, start=5)
        with pytest.raises(SinkConflict, match="cannot be compared"):
            mirror(both, topic, tmp_path / "without status")
        assert mirror(both, topic, tmp_path).data["rows"] == 5

        age(passing, topic)
        if wiped:
            group.wipe()
        else:
            admin.delete_topic(topic)
        admin.create_topic(topic, queues=1, ordered=True)
        both.source.numbered(topic, 12, start=20)
        for _ in range(2):
            with pytest.raises(SinkConflict, match="the source was wiped or restored"):
                mirror(both, topic, tmp_path)

        passing.admin.delete_topic(topic)
        passing.admin.create_topic(topic, queues=1, ordered=True, perm=4)
        assert mirror(both, topic, tmp_path).data["rows"] == both.check_prefix(topic) == 12


def test_the_checkpoint_of_a_stream_is_refused(
    clusters: Clusters, topic: str, tmp_path: Path
) -> None:
    """The checkpoint's status names its pipeline; without this check, another pipeline would continue from there."""
    place = location(tmp_path / "checkpoint")
    Status("a", "archive", about={"type": "archive"}).write(Claim(place))
    (place / "spark" / "offsets" / "0").write("v1\n{}\n{}")

    with pytest.raises(CheckpointInUse, match=r"belongs to the stream a; give .* of its own"):
        mirror(clusters, topic, tmp_path)

    assert kept_status(place)["about"] == {"type": "archive"}


def test_a_mirror_leaves_the_status_to_the_one_after_it(
    clusters: Clusters, topic: str, s3: S3
) -> None:
    """Law: only the mirror that holds the checkpoint writes what the status says about the source."""
    clusters.source.numbered(topic, 5)
    place = location(f"s3a://{BUCKET}/{topic}-{uuid4().hex}")

    def begin_another(_: Request) -> Fate:
        s3.decide = serve_all
        with hold_checkpoint(place) as claim:
            Status("dr", "mirror", phase="Running", rows=7).write(claim)
        return "served"

    def wait_for_the_first_status(request: Request) -> Fate:
        if request.method == "PUT" and request.path.endswith("status.json"):
            s3.decide = begin_another
        return "served"

    s3.decide = wait_for_the_first_status
    given = spec(clusters, topic, Path(), checkpoint=place)

    with pytest.raises(CheckpointInUse, match="another driver has begun"):
        job.run("dr", given, lambda: pytest.fail("it starts no Spark"))

    kept = kept_status(place)
    assert (kept["phase"], kept["rows"], kept["source"]) == ("Running", 7, None)


def test_topics_must_fit(clusters: Clusters, tmp_path: Path) -> None:
    """If a topic is missing at the target or has other queues there, the error names it and says what to do."""
    missing = next(_NAMES)
    clusters.source.admin.create_topic(missing, queues=1, ordered=True)
    with pytest.raises(OptionError, match="create it there with the queues"):
        mirror(clusters, missing, tmp_path)

    larger = clusters.make(next(_NAMES), queues=3, source_queues=2)
    with pytest.raises(QueueListChanged, match="the same queue at both"):
        mirror(clusters, larger, tmp_path)

    smaller = clusters.make(next(_NAMES), queues=1, source_queues=2)
    with pytest.raises(QueueListChanged, match="2 queues at the source and has 1 at the target"):
        mirror(clusters, smaller, tmp_path)

    with pytest.raises(OptionError, match="does not copy %RETRY%"):
        mirror(clusters, "%RETRY%billing", tmp_path)
    with pytest.raises(OptionError, match="a name server of the source"):
        job.mirror_of(spec(Clusters(clusters.source, clusters.source), missing, tmp_path))


@pytest.mark.parametrize("option", ["startingOffsets", "tags", "maxOffsetsPerTrigger"])
def test_a_mirror_chooses_no_messages(option: str, tmp_path: Path) -> None:
    """A filtered copy would not be a prefix."""
    with pytest.raises(
        ValueError, match=f"options.{option}: a mirror copies each queue completely"
    ):
        MirrorSpec(
            type="mirror",
            source=Source(topic="orders", options={option: "1"}),
            target_bootstrap="there:9876",
            checkpoint=tmp_path,
        )


def test_it_is_explained(clusters: Clusters, topic: str, tmp_path: Path) -> None:
    """The explanation counts the messages that the target lacks, and changes nothing."""
    clusters.source.numbered(topic, 12)

    found = explain(Pipeline(name="dr", spec=spec(clusters, topic, tmp_path)))

    assert found.cost.messages == 12
    assert found.cost.seconds is not None
    assert "Spark's start" not in found.text()
    assert "12 messages" in found.reads
    assert any("two mirrors" in each for each in found.guarantees)
    assert clusters.check_prefix(topic) == 0


def test_signal_ends_a_mirror_whose_cluster_never_answers() -> None:
    """The process reports where it stopped; if Kubernetes killed it after 30 s, no report would be written."""
    program = (
        "import threading; from orderlymq_spark.jobs.mirror.job import stopped_by_signals\n"
        "with stopped_by_signals(close_max_s=0.1) as stop:\n"
        "    print('copies', flush=True); threading.Event().wait()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        _, stood = process.communicate(timeout=60)

    assert process.returncode == 1
    assert "threading.py" in stood


def test_further_signals_let_no_mirror_live_longer() -> None:
    program = (
        "import threading; from orderlymq_spark.jobs.mirror.job import stopped_by_signals\n"
        "with stopped_by_signals(close_max_s=1) as stop:\n"
        "    print('copies', flush=True); threading.Event().wait()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        signals = 0
        while process.poll() is None and signals < 200:
            process.terminate()
            signals += 1
            time.sleep(0.1)
        process.kill()

    assert signals < 200
