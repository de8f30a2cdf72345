"""Files that are replaced as a whole."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orderlymq_runtime.durablefiles import replace_file


def test_a_file_is_replaced_as_a_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a file is replaced completely or not at all; on a full disk the old one stays."""
    file = tmp_path / "cluster.json"
    replace_file(file, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        replace_file(file, b"new")

    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_writers_that_meet_replace_it_one_after_the_other(tmp_path: Path) -> None:
    """Law: with several writers the file always has the complete content of one of them."""
    file = tmp_path / "kv.json"
    contents = [bytes([letter]) * 100_000 for letter in b"ab"]

    with ThreadPoolExecutor(2) as writers:
        for _ in range(20):
            list(writers.map(lambda data: replace_file(file, data), contents))
            assert file.read_bytes() in contents

    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(("wanted", "expected"), [(0o600, 0o600), (0o666, 0o644)])
def test_the_mode_is_less_the_umask(tmp_path: Path, wanted: int, expected: int) -> None:
    """Law: the mode of a new file is the wanted one without the umask's bits; secrets are for the owner only."""
    file = tmp_path / "file"
    before = os.umask(0o022)
    try:
        replace_file(file, b"", wanted)
    finally:
        os.umask(before)

    assert file.stat().st_mode & 0o777 == expected
