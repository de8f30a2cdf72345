"""The example programs run as they are, and the ordered quick start stays short."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orderlymq.blocking import AdminClient, Producer
from tests.cluster.processes import Group

EXAMPLES = Path(__file__).parents[2] / "examples" / "python"
SERVICES = {
    "ordered_consumer.py": ("orders", "hello"),
    "service.py": ("orders", "hello"),
    "commit_every_ten.py": ("orders", "stored"),
    "concurrent_retry.py": ("mail", "hello"),
}


# The number of queues of each topic.
ORDERED = {
    "orders": 2,
    "booked": 1,
    "deadlines": 4,
    "steps": 4,
    "parcels": 1,
    "logs": 4,
    "typed": 4,
}
NORMAL = {"mail": 1, "questions": 1}


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with Group(tmp_path_factory.mktemp("examples"), replicas=1) as found:
        yield found


@pytest.fixture
def name_server(group: Group) -> Iterator[str]:
    """Create the topics and delete them at the end, because programs count the messages that come."""
    with AdminClient(group.name_server_address) as admin:
        for topics, ordered in ((ORDERED, True), (NORMAL, False)):
            for name, queues in topics.items():
                admin.create_topic(name, queues=queues, ordered=ordered)
        yield group.name_server_address
        for name in (*ORDERED, *NORMAL):
            admin.delete_topic(name)


def _environment(name_server: str, home: Path) -> dict[str, str]:
    return {**os.environ, "ORDERLYMQ_NAME_SERVER": name_server, "HOME": str(home)}


def test_the_ordered_quick_start_has_under_30_lines() -> None:
    """Law: the ordered quick start, producer and consumer, has less than 30 lines (ORD-17)."""
    assert len((EXAMPLES / "quickstart.py").read_text().splitlines()) < 30


def test_every_example_is_listed() -> None:
    """Law: the README of the examples names each file."""
    readme = (EXAMPLES / "README.md").read_text()

    assert [path.name for path in EXAMPLES.glob("*.py") if path.name not in readme] == []


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("quickstart.py", "order-4711 created\norder-4711 paid\norder-4711 shipped\n"),
        ("ordered_async_sends.py", "100 sends are done"),
        ("batch.py", "50 messages from offset"),
        ("lanes.py", "20 orders are booked, each in its order"),
        ("pull.py", "created"),
        ("lite_pull.py", "created"),
        ("delay.py", ""),
        ("close_unpaid.py", "order-1: kept\norder-2: closed, unpaid\n"),
        ("dependent_steps.py", "order-1 reserve\norder-1 charge\norder-1 ship\n"),
        ("log_stream.py", "100 lines, first 'GET /orders/1 200', last 'GET /orders/100 200'"),
        ("transaction.py", "ghost: ROLLBACK\ntable: COMMIT\nannounced: chair, table\n"),
        ("request.py", "a chair costs 12\n"),
        ("typed_bodies.py", "total: 1220\n"),
        ("sql_filter.py", "large order: 250\nlarge order: 1200\n"),
    ],
)
def test_a_program_that_ends_prints_what_it_promises(
    name: str, expected: str, name_server: str, tmp_path: Path
) -> None:
    """Law: each example program works on the first try and prints what it promises."""
    if expected == "created":  # It reads what others have sent.
        with Producer("shop", name_server) as producer:
            producer.send("orders", "created")
    ended = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        env=_environment(name_server, tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    assert expected in ended.stdout


@pytest.mark.cluster
@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_consumes_and_ends_on_sigterm(
    name: str, name_server: str, tmp_path: Path
) -> None:
    """Law: each example service runs and ends cleanly on SIGTERM (PSH-21)."""
    topic, expected = SERVICES[name]
    with subprocess.Popen(
        [sys.executable, str(EXAMPLES / name)],
        env=_environment(name_server, tmp_path),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            with Producer("p", name_server) as producer:
                for _ in range(10):
                    producer.send(topic, "hello", key="k")
            assert any(expected in line for line in process.stdout)
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 0
        finally:
            process.kill()
