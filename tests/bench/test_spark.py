"""The benchmark of Spark counts rows that were processed, so that missing rows cannot raise a rate."""

import pytest
from bench.spark import Meter, messages_of

from orderlymq_spark.run.outcome import Outcome


def test_a_rate_of_too_few_messages_is_none() -> None:
    meter = Meter([])
    meter.measure("whole", 5, "rows", lambda: 5, 5)

    with pytest.raises(RuntimeError, match="archive: 4 of 5 messages"):
        meter.measure("archive", 5, "rows", lambda: 4, 5)

    assert [line.split(" | ")[0] for line in meter.table()][2:] == ["| whole"]


def test_an_audit_with_findings_has_no_rate() -> None:
    assert messages_of(Outcome("kept", {"messages": 7})) == 7
    with pytest.raises(RuntimeError, match="The order is broken: 1 skipped"):
        messages_of(Outcome("The order is broken: 1 skipped", {"messages": 7}, passed=False))
