"""A restore of a whole cluster that is interrupted leaves nothing; one that is killed leaves nothing that could start."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from orderlymq_backup.manifest import blob_key
from orderlymq_backup.storage import Folder
from orderlymq_operator.local.directory import DataDirectory
from orderlymq_operator.local.errors import RefusedError
from orderlymq_operator.local.session import prepared
from orderlymq_operator.resources.manifests.reader import read
from tests.backup.test_catalogue import made
from tests.operator.local.manifests import text
from tests.ports import free_row

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

NOW_MS = 1_700_000_000_000
# Processes start twice, and the machine may be busy with other tests.
PATIENCE_S = 120


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def endless(folder: Path) -> Path:
    """Return the place of a backup whose bytes never arrive."""
    place = folder / "backups"
    backup = made(Folder(place), NOW_MS, b"MANIFEST-000001\n")
    blob = place / blob_key(backup.parts[0].files[0].sha256)
    blob.unlink()
    os.mkfifo(blob)
    return place


def lives(process: psutil.Process) -> bool:
    """Return whether *process* still runs; an ended orphan remains until process 1 collects it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


PROGRAM = Path(sys.executable).with_name("orderlymq")


class Restoring:
    """`orderlymq up --from-backup`, which waits for the bytes of a file that never arrive."""

    def __init__(self, folder: Path) -> None:
        self.directory = DataDirectory(folder / "data")
        self.manifest = folder / "cluster.yaml"
        self.manifest.write_text(text(free_row(60)))
        words = ["up", "-f", str(self.manifest), "--data-dir", str(self.directory), "--detach"]
        self.parent = subprocess.Popen(
            [PROGRAM, *words, "--from-backup", str(endless(folder))],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until(lambda: self.replicas)
        (self.child,) = psutil.Process(self.parent.pid).children()

    @property
    def replicas(self) -> list[Path]:
        return list(self.directory.path.glob("replicas/*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_restore_leaves_nothing(tmp_path: Path, number: int) -> None:
    """Law: no replica and no process is left, and a new attempt can begin."""
    restoring = Restoring(tmp_path)

    restoring.parent.send_signal(number)
    code = restoring.parent.wait(PATIENCE_S)
    left = lives(restoring.child)
    if left:
        restoring.child.kill()

    assert code
    assert not left
    assert restoring.replicas == []
    with prepared(restoring.directory, read([restoring.manifest])):
        pass


def test_a_restore_that_was_killed_is_no_cluster(tmp_path: Path) -> None:
    """Law: the remains are refused before anything starts; the error names them and says what to do."""
    restoring = Restoring(tmp_path)

    restoring.parent.kill()
    restoring.parent.wait(PATIENCE_S)
    restoring.child.kill()
    until(lambda: not lives(restoring.child))

    assert restoring.replicas
    with (
        pytest.raises(RefusedError, match=r"was interrupted.*delete"),
        prepared(restoring.directory, read([restoring.manifest])),
    ):
        pass
