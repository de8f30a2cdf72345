"""Files that are read again when they change, or after a read has failed."""

import logging
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orderlymq_runtime.followedfiles import FollowedFiles
from orderlymq_runtime.pages.token import PageToken
from orderlymq_runtime.security.tls import ServerTls
from tests.runtime.certificates import make_authority, make_certificate

_log = logging.getLogger(__name__)


@contextmanager
def no_more_open_files() -> Iterator[None]:
    """Let this process open no more files, as with too many clients."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "file"
    made.write_text("first")
    return made


def test_a_read_that_failed_for_a_passing_cause_is_tried_again(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Law: a read that failed for a passing cause is tried again, and each state of the file fails only once in the log."""
    followed = FollowedFiles(path, log=_log, stays="the first stays effective")
    assert followed.read_changed(path.read_text, OSError) is None
    path.write_text("second!")

    with no_more_open_files():
        found = [followed.read_changed(path.read_text, OSError) for _ in range(3)]
    found.extend(followed.read_changed(path.read_text, OSError) for _ in range(2))

    assert found == [None, None, None, "second!", None]
    assert [record.message.partition("; ")[2] for record in caplog.records] == [
        "the first stays effective"
    ]


def test_corrected_permissions_are_a_change(path: Path) -> None:
    """Law: corrected permissions count as a change, although the time of the last write stays."""
    followed = FollowedFiles(path, log=_log, stays="")

    path.chmod(0o640)

    assert followed.read_changed(path.read_text, OSError) == "first"


def test_a_token_counts_that_could_not_be_read_when_it_changed(path: Path) -> None:
    """Law: a changed token that could not be read is read later; the former one must not stay valid."""
    path.write_text("0123456789abcdef")
    token = PageToken(path)
    path.write_text("fedcba98765432100")

    with no_more_open_files():
        assert token.is_in("Bearer 0123456789abcdef")

    assert token.is_in("Bearer fedcba98765432100")


def test_a_certificate_counts_that_could_not_be_read_when_it_was_renewed(tmp_path: Path) -> None:
    """Law: a renewed certificate that could not be read is read later; the former one must not be shown until it expires."""
    authority = make_authority(tmp_path)
    files = make_certificate(authority, "server")
    assert files.certificate is not None
    tls = ServerTls(files, "enforcing")
    former = tls.context()
    os.utime(files.certificate, ns=(1, 1))

    with no_more_open_files():
        assert tls.context() is former

    assert tls.context() is not former
    assert tls.context() is tls.context()
