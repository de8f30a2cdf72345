"""What is checked when trouble is over: the stores of stopped replicas are clean."""

import subprocess
import sys
from pathlib import Path

from tests.cluster.processes import Group


def assert_clean(data_dir: Path) -> None:
    """Run the checker over the directory of a stopped replica; it must find nothing."""
    done = subprocess.run(
        [sys.executable, "-m", "orderlymq", "doctor", str(data_dir)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def assert_all_clean(group: Group) -> None:
    """Stop a group in order and check every replica."""
    group.stop()
    for node in group.brokers:
        assert_clean(group.data_dir(node))
