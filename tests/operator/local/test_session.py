"""From a data directory to a supervisor, and its end by another command."""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from orderlymq_operator.local import keeper, session
from orderlymq_operator.local.directory import Contact, DataDirectory, State
from orderlymq_operator.local.errors import FailedError
from orderlymq_operator.local.supervisor import Supervisor
from tests.operator.examples import desired
from tests.operator.local.manifests import manifests
from tests.operator.local.supervision import until
from tests.ports import free_row

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.usefixtures("stub_brokers"),
    pytest.mark.timeout(60),
]


def test_what_stands_in_a_directory_is_read_once_at_a_start(tmp_path: Path, ports: int) -> None:
    """Law: a start reads the stored manifests only once, because ten thousand topics take seconds."""

    class Counting(DataDirectory):
        parsed = 0

        def parse(self, content: bytes | None) -> State | None:
            self.parsed += content is not None
            return super().parse(content)

    with session.prepared(DataDirectory(tmp_path / "data"), manifests(ports)):
        pass
    directory = Counting(tmp_path / "data")

    with session.prepared(directory, []):
        assert directory.parsed == 1


def test_however_many_end_a_cluster_at_once_each_says_what_it_ended(tmp_path: Path) -> None:
    """Law: if many commands end a cluster at once, one reports the orphan, the others nothing, and none fails."""
    directory = DataDirectory(tmp_path / "data")
    directory.create()
    directory.save(State(desired()))
    with ThreadPoolExecutor(8) as commands:
        for _ in range(5):
            orphan = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            keeper.write_record(directory.run_record("orphan"), orphan.pid)

            ended = list(
                commands.map(lambda _: session.stop(DataDirectory(directory.path)), range(8))
            )

            assert sorted(ended, key=lambda each: len(each["orphans"])) == [
                *[{"supervisor": False, "orphans": []}] * 7,
                {"supervisor": False, "orphans": [orphan.pid]},
            ]
            orphan.wait()


@pytest.mark.long
def test_a_supervisor_is_ended_that_has_just_been_started(
    directory: DataDirectory, ports: int
) -> None:
    """Law: `down` also ends a supervisor that has just been started; it never says that nothing runs."""
    with session.prepared(directory, manifests(ports, replicas=1)):
        process = session.spawn(directory)

    assert session.stop(directory) == {"supervisor": True, "orphans": []}
    assert process.wait(20) == 0


@pytest.mark.parametrize("remove", [shutil.rmtree, lambda path: path.rename(f"{path}.away")])
async def test_a_cluster_whose_directory_is_gone_ends(
    directory: DataDirectory, ports: int, remove: Callable[[Path], object]
) -> None:
    """Law: if a cluster's directory is deleted or moved, its processes end and its ports become free."""
    with session.prepared(directory, manifests(ports, replicas=1)) as state:
        supervisor = Supervisor(directory, state)
        task = asyncio.create_task(session.supervise(supervisor, directory))
        await until(lambda: supervisor.settled)
        pids = [json.loads(path.read_text())["pid"] for path in directory.run_records()]

        with suppress(OSError):  # The broker writes into it.
            remove(directory.path)
        directory.path.joinpath("supervisor.lock").unlink(missing_ok=True)

        with pytest.raises(FailedError, match="was deleted or moved"):
            await task
    assert len(pids) == 2
    assert not any(psutil.pid_exists(pid) for pid in pids)


async def test_a_cluster_that_ends_takes_nothing_of_the_one_that_came_in_its_place(
    directory: DataDirectory, ports: int
) -> None:
    """Law: a cluster that ends does not remove files of a new one in the same place; commands find the new supervisor."""
    with session.prepared(directory, manifests(ports, replicas=1)) as state:
        supervisor = Supervisor(directory, state)
        task = asyncio.create_task(session.supervise(supervisor, directory))
        await until(lambda: supervisor.settled)

        directory.path.rename(f"{directory.path}.away")
        later = DataDirectory(directory.path)
        with session.prepared(later, manifests(free_row(40), replicas=1)):
            records = [later.run_record(name) for name in ("name-server-0", "demo-0-1")]
            for record in records:
                record.write_text("{}")
            later.publish(Contact(1, "127.0.0.1", 2, "token"))
            with pytest.raises(FailedError, match="was deleted or moved"):
                await task

            assert later.contact() == Contact(1, "127.0.0.1", 2, "token")
            assert all(record.exists() for record in records)


async def test_a_file_that_cannot_be_deleted_keeps_no_process_alive(
    directory: DataDirectory, ports: int
) -> None:
    """Law: processes end even if a file cannot be deleted (read-only file system)."""
    with session.prepared(directory, manifests(ports)) as state:
        supervisor = Supervisor(directory, state)
        task = asyncio.create_task(supervisor.run())
        await until(lambda: supervisor.settled)
        records = directory.run_records()
        pids = [json.loads(path.read_text())["pid"] for path in records]
        for path in records:
            path.unlink()
            path.mkdir()

        supervisor.stop()
        await task

    assert len(pids) == 4
    assert not any(psutil.pid_exists(pid) for pid in pids)
    for path in records:
        path.rmdir()
