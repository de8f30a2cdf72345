"""The traces that a failed test leaves behind."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

LEAVES_A_CONNECTION = '''
import asyncio, gc, pytest

tries = []

@pytest.mark.flaky(reruns=1)
async def test_that_needs_its_second_try():
    """It fails with a connection open: nobody closes it."""
    loop = asyncio.get_running_loop()
    tries.append(await loop.create_server(asyncio.Protocol, "127.0.0.1", 0))
    host, port = tries[-1].sockets[0].getsockname()
    transport, _ = await loop.create_connection(asyncio.Protocol, host, port)
    assert len(tries) == 2
    tries[-1].close()
    transport.close()
    tries.clear()

def test_that_runs_next():
    gc.collect()
'''


def test_a_failed_test_fails_no_other(tmp_path: Path) -> None:
    """Law: an open socket of a failed try is laid to nobody else."""
    (tmp_path / "test_two.py").write_text(LEAVES_A_CONNECTION)
    options = ("-c", str(ROOT / "pyproject.toml"), "-p", "tests.conftest", "-p", "no:cacheprovider")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    assert "2 passed, 1 rerun" in ran.stdout
