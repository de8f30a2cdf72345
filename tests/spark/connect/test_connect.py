"""All formats and pipelines work from a Spark Connect client, with a server in its own process."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orderlymq.message import Message
from tests.spark.connect.connectserver import connect_server
from tests.spark.faults.kills import ROOT
from tests.spark.topics import Topics, numbers_by_key

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Return the address of a Spark Connect server."""
    with connect_server(tmp_path) as address:
        yield address


@pytest.mark.long
def test_frames_sink_archive_audits_and_changes_work_from_a_client(
    server: str, topics: Topics, tmp_path: Path
) -> None:
    """The client gets the same numbers as a classic session, and the copy is in order per key."""
    topic = topics.make()
    targets = {name: topics.make(queues=3) for name in ("target",)}
    topics.numbered(topic, 60)
    events = topics.make()
    rows = [{"type": "insert", "table": "t", "data": {"id": number}} for number in range(3)]
    texts = [json.dumps(row) for row in rows] + [
        '{"type": "bootstrap-start", "table": "t"}',
        "no event",
    ]
    topics.fill(events, [Message(topic=events, body=text.encode(), key="k") for text in texts])
    settings = {
        "master": server,
        "bootstrap": topics.bootstrap,
        "topic": topic,
        **targets,
        "events": events,
        "folder": str(tmp_path),
    }

    client = subprocess.run(
        [sys.executable, "-m", "tests.spark.connect.connected", json.dumps(settings)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert client.returncode == 0, client.stderr[-4000:]
    assert json.loads(client.stdout.splitlines()[-1]) == {
        "remote": True,
        "rows": 60,
        "filtered": 6,
        "archived": 60,
        "audits": {"topic": 60, "archive": 60, "stream": 60},
        "applied": {"events": 5, "rows": 3, "ofNoRow": 1, "unreadable": 1},
        "reports": {"skew": 60, "lag": 60},
    }
    for name, target in targets.items():
        found = numbers_by_key(topics.read(target))
        for key in range(5):
            assert [int(number) for number in found[f"key-{key}"]] == list(range(12)), name
