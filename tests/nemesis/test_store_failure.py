"""A store that fails ends its replica in a way that a supervisor understands."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.nemesis.cluster import Cluster
from tests.nemesis.ground import ioerrors
from tests.nemesis.ground.ground import Loopback
from tests.nemesis.ground.ioerrors import IoErrors
from tests.nemesis.watch import EXIT_STORE_FAILED
from tests.ports import free_row

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(90)]


def test_an_io_error_ends_a_replica_with_the_code_for_it(tmp_path: Path) -> None:
    """EIO on write: one critical line, exit code 70, no traceback; afterwards it runs again, and is clean."""
    library = ioerrors.build(tmp_path)
    if library is None:
        pytest.skip("no C compiler here; runs in CI")
    base = free_row(100)
    cluster = Cluster(tmp_path / "group", 1, Loopback(base))
    errors = IoErrors(library, tmp_path / "switch", cluster.data_dir(1))
    cluster.io_errors[1] = errors
    replica = cluster.add(1)
    try:
        cluster.start()
        errors.begin()
        # Whatever is written next fails: this never gets an answer.
        subprocess.run(
            [sys.executable, "-m", "orderlymq", "topic", "create", "orders"],
            env={"ORDERLYMQ_NAME_SERVER": f"127.0.0.1:{base + 1}"},
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert replica.process is not None
        code = replica.process.wait(20.0)
        errors.end()
        log = replica.log_path.read_text()

        assert code == EXIT_STORE_FAILED, log
        assert "Traceback" not in log
        assert "the store failed, so this process ends" in log
        replica.start()
        cluster.wait_for_leader()
        assert cluster.stop() == {1: 0}
        words = [sys.executable, "-m", "orderlymq", "doctor", str(cluster.data_dir(1))]
        assert subprocess.run(words, capture_output=True, check=False).returncode == 0
    finally:
        cluster.close()
