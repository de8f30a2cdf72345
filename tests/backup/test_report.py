"""The final report of a program in a pod: complete if it fits, always bounded, and an error without other fields."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from orderlymq.cli.exitcodes import ExitCode
from orderlymq.cli.session import CommandFailed
from orderlymq_backup.command import backup as command
from orderlymq_backup.manifest import Backup, BackupFile, Part
from orderlymq_backup.report import REPORT_MAX, report_of, reported, write_report

DIGEST = "0" * 64
LARGE = 2**52


def made(cluster: str, groups: int) -> Backup:
    file = BackupFile(name="CURRENT", size=LARGE // 1000, sha256=DIGEST, tail=DIGEST)
    parts = tuple(
        Part(
            cluster=cluster,
            group=f"{cluster}-{index}",
            node=1,
            index=LARGE,
            term=LARGE,
            physical_end=LARGE,
            taken_ms=4_000_000_000_000,
            files=(file,),
        )
        for index in range(groups)
    )
    return Backup(
        id="20260101T000000000Z-00000000",
        cluster=cluster,
        began_ms=4_000_000_000_000,
        ended_ms=4_000_000_000_000,
        release="0.1.0",
        new_bytes=LARGE,
        parts=parts,
    )


def test_the_groups_of_the_largest_cluster_fit(tmp_path: Path) -> None:
    """Law: 64 groups with the longest name and the largest figures fit below Kubernetes' limit."""
    backup = made("c" * 40, 64)
    write_report(tmp_path / "report", report_of(backup, verified=True))
    text = (tmp_path / "report").read_text()
    found = json.loads(text)

    assert len(text) <= REPORT_MAX
    assert found["groups"][63] == ["63", LARGE, 4_000_000_000_000, LARGE // 1000]
    assert (found["id"], found["files"], found["verified"]) == (backup.id, 64, True)


def test_what_does_not_fit_is_left_out(tmp_path: Path) -> None:
    """Law: a backup of a cluster without an operator may have more groups; these are left out, and the rest is reported."""
    write_report(tmp_path / "report", report_of(made("c", 1000)))
    text = (tmp_path / "report").read_text()

    assert len(text) <= REPORT_MAX
    assert json.loads(text)["groups"] == []
    assert json.loads(text)["files"] == 1000


def test_an_error_is_reported_and_goes_on(tmp_path: Path) -> None:
    """Law: the report has the bounded error text, and the command still fails."""
    with pytest.raises(CommandFailed), reported(tmp_path / "report"):
        raise CommandFailed(ExitCode.FAILED, "ü" * 10_000)
    text = (tmp_path / "report").read_text()

    assert len(text) <= REPORT_MAX
    assert json.loads(text) == {"error": "ü" * len(json.loads(text)["error"])}


def test_a_command_reports_what_it_says(tmp_path: Path) -> None:
    """Law: the report has the same text as a terminal shows."""
    report = tmp_path / "report"
    words = ["show", "--from", str(tmp_path), "--report", str(report)]
    done = CliRunner().invoke(command, words)
    told = json.loads(report.read_text())["error"]

    assert done.exit_code == ExitCode.NOT_FOUND
    assert "holds no backup" in told
    assert told in done.stderr
