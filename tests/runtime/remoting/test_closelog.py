"""Log lines about closed connections."""

import logging

import pytest

from orderlymq_runtime.remoting.closelog import CLOSES_LOGGED_MAX, CLOSES_PERIOD_S, CloseLog


def test_each_kind_has_so_many_lines_in_a_period_and_one_that_says_there_are_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Law: each kind of close has a limited number of lines per period, then one that says that more follow."""
    caplog.set_level(logging.INFO)
    now = 0.0
    log = CloseLog(logging.getLogger("test"), lambda: now)

    for _ in range(3 * CLOSES_LOGGED_MAX):
        log.note("a stranger", "silent", "it did not greet")
    log.note("a replica", "replaced", "it has called again")
    now = CLOSES_PERIOD_S
    log.note("a stranger", "silent", "it did not greet")

    assert [record.getMessage() for record in caplog.records] == [
        *["a stranger: closed: it did not greet"] * CLOSES_LOGGED_MAX,
        "more connections are closed and only counted, as silent: it did not greet",
        "a replica: closed: it has called again",
        "a stranger: closed: it did not greet",
    ]
