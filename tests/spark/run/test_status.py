"""The status of a pipeline's last run, as the pipeline reads it."""

from pathlib import Path

import pytest

from orderlymq_spark.errors import OptionError
from orderlymq_spark.locations.local import LocalLocation
from orderlymq_spark.run.checkpoint import Claim
from orderlymq_spark.run.status import Status, kept_status


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"about": {"a": 1},}', b"\xff", b"[]", b"[" * 9999]
)
def test_a_status_that_cannot_be_read_is_a_sentence(tmp_path: Path, content: bytes) -> None:
    """Users are told to edit the file, so the error names it and says what to do."""
    (tmp_path / "status.json").write_bytes(content)

    with pytest.raises(OptionError, match=r"/status\.json .*; correct it, or move it away"):
        kept_status(LocalLocation(str(tmp_path)))


def test_what_was_written_is_kept(tmp_path: Path) -> None:
    """Before a first run the status is empty."""
    place = LocalLocation(str(tmp_path))
    before = kept_status(place)
    Status("n", "mirror", source={"orders": {}}).write(Claim(place))

    assert before == {}
    assert kept_status(place)["source"] == {"orders": {}}
