"""The console reads manifests and files of runs; an unreadable one is unknown with a reason, never absent."""

import asyncio
import fcntl
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from orderlymq_console.models import Figure
from orderlymq_console.pipelinemodels import Audit, AuditFinding
from orderlymq_console.pipelines.files import PipelineFiles
from orderlymq_console.pipelines.reports import (
    FINDINGS_MAX,
    PIPELINES_MAX,
    PipelineReport,
    PipelinesUnread,
    QueueReport,
)
from tests.console.pipelines.leavings import BREAK, driver_on, manifest, status

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the locks of others")


def read(*paths: Path) -> tuple[PipelineReport, ...]:
    return asyncio.run(PipelineFiles(paths).read())


def one(path: Path) -> PipelineReport:
    (found,) = read(path)
    return found


def audit(path: Path) -> Audit:
    found = one(path).audit
    assert found is not None
    return found


@LINUX
def test_a_stream_reports_its_phase_progress_and_target(tmp_path: Path) -> None:
    """Law: a stream's phase, progress and target are read without disturbing its driver, whose lock is only looked at."""
    file = manifest(tmp_path, "orders-archive")
    with driver_on(status(tmp_path, "orders-archive")):
        found = one(file)

    assert found.spec is not None
    assert (found.spec.reads, found.spec.writes) == ("orders", str(tmp_path / "archive"))
    assert (found.phase, found.note, found.unknown) == ("Running", "", "")
    assert (found.last_batch, found.rows, found.rows_per_second, found.lag) == (3, 12, 4.5, 2)
    assert found.queues == (
        QueueReport("orders", "broker-a", 0, 5),
        QueueReport("orders", "broker-a", 1, 7),
    )
    assert found.changed_ms == 1_790_000_000_000


@LINUX
@pytest.mark.parametrize("phase", ["Starting", "Running"])
def test_a_driver_that_was_killed_has_died_whatever_it_said_last(
    tmp_path: Path, phase: str
) -> None:
    """Law: a driver without its lock has died, whatever it said last;
    a lock on another file or of another kind does not count.
    """
    checkpoint = status(tmp_path, "killed", phase=phase)
    file = manifest(tmp_path, "killed")
    with (checkpoint / "driver.lock").open("a") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)  # A POSIX lock.
        found = one(file)

    assert found.phase == "Died"
    assert "it was killed" in found.note


def test_where_locks_are_not_listed_the_phase_has_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: where locks cannot be listed (macOS) the phase has a note."""
    monkeypatch.setattr("orderlymq_console.pipelines.files._LOCKS", tmp_path / "nowhere")
    status(tmp_path, "orders-archive")

    found = one(manifest(tmp_path, "orders-archive"))

    assert (found.phase, found.note) == (
        "Running",
        "It is unknown here whether its driver still runs.",
    )


@pytest.mark.parametrize("phase", ["Finished", "Failed"])
def test_an_end_is_an_end_without_a_driver(tmp_path: Path, phase: str) -> None:
    status(tmp_path, "ended", phase=phase, last_error="disk full")

    found = one(manifest(tmp_path, "ended"))

    assert (found.phase, found.last_error, found.note) == (phase, "disk full", "")


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({}, "there is no "),
        ({"checkpoint": "s3a://lake/x"}, "is in the object store s3a://lake/x, which"),
        ({"type": "lag", "checkpoint": None}, "a run of lag leaves no state"),
        ({"type": "order-audit"}, "a run of order-audit leaves no state"),
    ],
)
def test_what_left_no_status_is_unknown_with_the_reason(
    tmp_path: Path, spec: dict[str, Any], reason: str
) -> None:
    """Law: a pipeline without a status is unknown with a reason, never zero or `has not run`."""
    found = one(manifest(tmp_path, "silent", **spec))

    assert (found.phase, found.rows, found.lag, found.queues) == ("", None, None, ())
    assert reason in found.unknown


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"phase": 3}', '{"phase": "Running", "offsets": {"t": {"b": {"x": 1}}}}', "\xff"],
)
def test_a_status_in_another_form_is_unknown(tmp_path: Path, content: str) -> None:
    (status(tmp_path, "odd") / "status.json").write_text(content, encoding="latin-1")

    found = one(manifest(tmp_path, "odd"))

    assert found.phase == ""
    assert "status.json cannot be read" in found.unknown


@pytest.mark.parametrize("content", ["a: [", "\0", "kind: Pipeline\nspec: 3", "x" * 300_000])
def test_a_file_that_is_no_manifest_is_a_pipeline_of_its_name_that_is_unknown(
    tmp_path: Path, content: str
) -> None:
    """Law: a broken manifest is an unknown pipeline named by its file, and the other ones are shown."""
    manifest(tmp_path, "whole")
    (tmp_path / "broken.yaml").write_text(content)

    found = {each.name: each for each in read(tmp_path)}

    assert found["whole"].spec is not None
    assert found["broken"].unknown


def test_a_manifest_that_changes_is_read_again(tmp_path: Path) -> None:
    """Law: a manifest is parsed again only after a change; its status is read each time."""
    source = PipelineFiles([tmp_path])
    manifest(tmp_path, "one")
    (first,) = asyncio.run(source.read())
    status(tmp_path, "one", phase="Finished")
    (second,) = asyncio.run(source.read())
    manifest(tmp_path, "one", path="elsewhere")
    (third,) = asyncio.run(source.read())

    assert second.spec is not None
    assert third.spec is not None
    assert (first.phase, second.phase) == ("", "Finished")
    assert (second.spec.writes, third.spec.writes) == (str(tmp_path / "archive"), "elsewhere")


def test_other_kinds_and_other_files_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text("kind: Cluster\n---\njust text\n---\n")
    (tmp_path / "notes.txt").write_text("kind: Pipeline")

    assert read(tmp_path) == ()


def test_a_path_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(PipelinesUnread, match=r"nowhere\.yaml: No such file"):
        read(tmp_path / "nowhere.yaml")


def test_more_pipelines_than_a_page_bears_are_refused(tmp_path: Path) -> None:
    text = "\n---\n".join(
        f"kind: Pipeline\nmetadata: {{name: p{number}}}" for number in range(PIPELINES_MAX + 1)
    )
    (tmp_path / "many.yaml").write_text(text)

    with pytest.raises(PipelinesUnread, match="name fewer files"):
        read(tmp_path)


# -- audits


def test_an_audit_reports_what_it_found(tmp_path: Path) -> None:
    findings = tmp_path / "found.jsonl"
    findings.write_text(json.dumps(BREAK) + "\n")

    found = audit(manifest(tmp_path, "audit", type="order-audit", findings=str(findings)))

    assert found.findings == (
        AuditFinding(
            queue="orders/broker-a:0",
            offset=4,
            defect="skipped",
            key="order-3",
            expected="2",
            got="3",
        ),
    )
    assert (found.state, found.count, found.unknown) == ("broken", Figure(value=1), "")
    assert found.at_ms == findings.stat().st_mtime_ns // 1_000_000


def test_an_empty_file_of_findings_is_an_order_that_was_kept(tmp_path: Path) -> None:
    """Law: an empty file of findings means that order was kept, because the audit writes it at its end."""
    findings = tmp_path / "found.jsonl"
    findings.touch()

    found = audit(manifest(tmp_path, "audit", type="order-audit", findings=str(findings)))

    assert (found.state, found.count) == ("kept", Figure(value=0))


def test_a_streaming_audit_is_read_from_its_batches(tmp_path: Path) -> None:
    folder = status(tmp_path, "audit") / "findings"
    folder.mkdir()
    for number, content in enumerate(["", json.dumps(BREAK), ""]):
        (folder / f"{number:020}.jsonl").write_text(content)

    found = audit(manifest(tmp_path, "audit", type="order-audit", stream=True))

    assert (found.state, found.count.value, len(found.findings)) == ("broken", 1, 1)


def test_many_findings_are_counted_and_the_first_ones_kept(tmp_path: Path) -> None:
    """Law: many findings are counted and the first ones shown; for a very long file the count is a lower bound."""
    findings = tmp_path / "found.jsonl"
    line = json.dumps(BREAK) + "\n"
    file = manifest(tmp_path, "audit", type="order-audit", findings=str(findings))
    findings.write_text(line * (FINDINGS_MAX + 1))
    few = audit(file)
    findings.write_text(line * 20_000)
    many = audit(file)

    assert (few.count, len(few.findings)) == (Figure(value=FINDINGS_MAX + 1), FINDINGS_MAX)
    assert many.count.at_least
    assert FINDINGS_MAX < (many.count.value or 0) < 20_000


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({}, "its manifest does not set findings"),
        ({"findings": "nowhere.jsonl"}, "no audit has finished here yet"),
        ({"findings": "s3a://lake/found"}, "in an object store"),
        ({"stream": True}, "no audit has finished here yet"),
    ],
)
def test_an_audit_that_left_nothing_is_unknown_with_the_reason(
    tmp_path: Path, spec: dict[str, Any], reason: str
) -> None:
    found = audit(manifest(tmp_path, "audit", type="order-audit", **spec))

    assert (found.state, found.count.value) == ("unknown", None)
    assert reason in found.unknown


@pytest.mark.parametrize("line", ["{", "3", '{"offset": "4"}'])
def test_findings_in_another_form_are_unknown(tmp_path: Path, line: str) -> None:
    findings = tmp_path / "found.jsonl"
    findings.write_text(line + "\n")

    found = audit(manifest(tmp_path, "audit", type="order-audit", findings=str(findings)))

    assert (found.state, found.count.value) == ("unknown", None)
    assert "its findings cannot be read" in found.unknown
