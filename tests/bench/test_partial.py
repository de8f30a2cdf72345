"""A run of only some works does not replace a section of the page, which would lose the other figures."""

import sys
from pathlib import Path

import pytest

from bench import bykey, lanes


@pytest.mark.parametrize(
    ("program", "words"),
    [(lanes, "--quick --only deep_rows"), (bykey, "--quick --peers nats")],
)
def test_a_partial_run_refuses_to_write_the_page(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    program: object,
    words: str,
) -> None:
    """A partial run refuses before it begins, because a run takes minutes."""
    page = tmp_path / "benchmarks.md"
    monkeypatch.setattr(sys, "argv", ["bench", *words.split(), "--write", str(page)])

    with pytest.raises(SystemExit) as ended:
        (lanes if program is lanes else bykey).main()

    assert ended.value.code == 2
    assert "leave out --write, or" in capsys.readouterr().err
    assert not page.exists()
