"""Programs and pipelines that spark-submit sends to a standalone cluster together with our packages."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark import submitted
from tests.spark.standalone import Standalone, standalone_cluster
from tests.spark.topics import Topics, numbers_by_key

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """Return a standalone cluster that lacks our packages."""
    with standalone_cluster(tmp_path_factory.mktemp("standalone")) as cluster:
        yield cluster


def test_a_submitted_program_archives_and_copies(
    cluster: Standalone, topics: Topics, tmp_path: Path
) -> None:
    """Driver and executors get our packages only by --py-files; the copy is in order per key."""
    topic, target = topics.make(), topics.make(queues=3)
    topics.numbered(topic, 60)
    settings = {
        "bootstrap": topics.bootstrap,
        "topic": topic,
        "target": target,
        "folder": str(tmp_path),
    }

    run = cluster.submit(Path(submitted.__file__), json.dumps(settings))

    assert run.returncode == 0, run.stderr[-4000:]
    assert json.loads(run.stdout.splitlines()[-1]) == {
        "master": cluster.master,
        "archived": 60,
    }
    found = numbers_by_key(topics.read(target))
    for key in range(5):
        assert [int(number) for number in found[f"key-{key}"]] == list(range(12))
