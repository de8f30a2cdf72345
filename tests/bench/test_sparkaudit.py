"""The benchmark of the audit puts its planned defects into the archive, and expects what a check of all rows finds."""

import json
from itertools import groupby
from pathlib import Path

import pytest
from bench.sparkaudit import QueueOfBench, check, write

from orderlymq_spark.jobs.audit.job import check_files
from orderlymq_spark.locations.addresses import location
from orderlymq_spark.specs import OrderAuditSpec
from orderlymq_spark.tables.parquet import published


def test_the_audit_of_a_small_archive_finds_what_was_planted(tmp_path: Path) -> None:
    """A missing or an additional finding is an error."""
    root, queues = location(tmp_path), [QueueOfBench(number, 50, 10, 3) for number in range(4)]

    assert write(root, queues) == 12

    spec = OrderAuditSpec(type="order-audit", archive=root)
    found, missing, rows = [], 0, 0
    for _, files in groupby(published(root), lambda each: each.queue):
        *broken, last = map(json.loads, check_files(spec, root, list(files)))
        found += [each["break"] for each in broken]
        missing, rows = missing + last["summary"]["missing"], rows + last["summary"]["rows"]
    found.sort(key=lambda each: (each["queue"], each["offset"]))
    data = {"messages": rows, "keys": 200, "missing": missing, "undecided": 0, "findings": found}
    assert check(data, queues) == 48
    with pytest.raises(RuntimeError, match="wrong about findings"):
        check(data | {"findings": found[1:]}, queues)
