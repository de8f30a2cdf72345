"""The secret of a cluster: made once, readable by its owner only, refused if invalid."""

import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orderlymq_runtime.security.clustersecret import (
    ClusterSecretError,
    derived_key,
    make_cluster_secret,
    read_cluster_secret,
)


def test_a_new_secret_is_random_and_its_owners_alone(tmp_path: Path) -> None:
    first, second = (make_cluster_secret(tmp_path / name) for name in ("a", "b"))
    assert first != second
    assert len(first) == 64
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


def test_a_secret_that_is_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    made = make_cluster_secret(path)
    assert make_cluster_secret(path) == made == read_cluster_secret(path)


def test_all_who_make_a_secret_have_the_same(tmp_path: Path) -> None:
    """Law: all processes that make a secret at the same time get the same one, and nobody reads a half written one."""
    count = 8
    together = threading.Barrier(count)

    def make(_: int) -> list[bytes]:
        found = []
        for number in range(50):
            together.wait(60)
            found.append(make_cluster_secret(tmp_path / str(number)))
        return found

    with ThreadPoolExecutor(count) as threads:
        made = list(threads.map(make, range(count)))

    assert made == [made[0]] * count
    assert len(list(tmp_path.iterdir())) == 50


def test_a_full_disk_leaves_no_secret_behind(tmp_path: Path) -> None:
    """Law: a full disk leaves no empty secret, which would be refused forever."""
    path = tmp_path / "secret"
    program = (
        "import pathlib, resource, sys\n"
        "from orderlymq_runtime.security.clustersecret import make_cluster_secret\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))\n"
        "make_cluster_secret(pathlib.Path(sys.argv[1]))\n"
    )
    failed = subprocess.run(
        [sys.executable, "-c", program, path], capture_output=True, text=True, check=False
    )

    assert f"ClusterSecretError: cluster_secret_file {path}: File too large" in failed.stderr
    assert list(tmp_path.iterdir()) == []
    assert len(make_cluster_secret(path)) == 64


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 31 + b"\n", b"x" * 1025])
def test_what_is_no_secret_is_refused_with_its_path(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    with pytest.raises(ClusterSecretError, match=str(path)):
        read_cluster_secret(path)
    with pytest.raises(ClusterSecretError, match=str(path)):
        make_cluster_secret(path)


def test_a_missing_file_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ClusterSecretError, match="random characters"):
        read_cluster_secret(tmp_path / "missing")


def test_a_key_is_good_for_one_purpose() -> None:
    secret = b"s" * 32
    assert derived_key(secret, "replicas") != derived_key(secret, "names")
    assert derived_key(secret, "replicas") == derived_key(secret, "replicas")
    assert len(derived_key(secret, "replicas")) == 32
