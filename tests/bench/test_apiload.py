"""The measurement of the operator at an API server ends with 1 if a limit was exceeded."""

import pytest

from bench import apiload


def test_what_took_more_than_it_may_is_named() -> None:
    """Law: exactly the exceeded limits are named; without limits there are none."""
    found = apiload.Found(ready_s=40.4, mib=210)

    assert apiload.beyond(found, None, None) == apiload.beyond(found, 40.4, 210) == []
    assert apiload.beyond(found, 40.0, 200) == [
        "all Topics were Ready after 40.4 s, more than 40 s",
        "the operator had 210 MiB, more than 200 MiB",
    ]


@pytest.mark.parametrize(("limit", "code"), [("30", 1), ("300", 0)])
def test_the_exit_code_says_so(monkeypatch: pytest.MonkeyPatch, limit: str, code: int) -> None:
    """Law: the exit code makes a CI job fail."""

    async def measured(*_: object) -> apiload.Found:
        return apiload.Found(ready_s=40.0, mib=210)

    monkeypatch.setattr(apiload, "measure", measured)
    monkeypatch.setattr("shutil.which", lambda _: "/somewhere")
    monkeypatch.setattr("sys.argv", ["apiload", "--max-ready", limit, "--max-mib", "256"])

    assert apiload.main() == code
