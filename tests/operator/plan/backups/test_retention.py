"""The Backups of a schedule that stay."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as some

from orderlymq_operator.plan.backups.retention import FAILED_KEPT, MadeBackup, surplus
from orderlymq_operator.resources.backups.scheduledbackup import Retention

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def made(days: int, phase: str | None = "Complete") -> MadeBackup:
    return MadeBackup(f"b{days}", NOW - timedelta(days=days), phase)


def test_the_newest_and_the_young_stay() -> None:
    """Law: a complete Backup is removed only if neither keepLast nor keepDays keeps it."""
    backups = [made(days) for days in range(10)]

    assert surplus(backups, Retention(keep_last=7), NOW) == ["b9", "b8", "b7"]
    assert surplus(backups, Retention(keep_last=1, keep_days=8), NOW) == ["b9"]
    assert surplus(backups, Retention(keep_last=20), NOW) == []


@given(
    some.lists(
        some.tuples(
            some.integers(0, 99),
            some.sampled_from(["Complete", "Failed", "Running", "Waiting", None]),
        ),
        unique_by=lambda each: each[0],
    ),
    some.integers(1, 9),
    some.none() | some.integers(1, 50),
)
def test_no_retention_takes_the_last_good_one(
    found: list[tuple[int, str | None]], keep_last: int, keep_days: int | None
) -> None:
    """Law: retention keeps enough complete Backups, newest first; it removes no running ones and keeps only a few failed
    ones.
    """
    backups = [made(days, phase) for days, phase in found]
    gone = set(surplus(backups, Retention(keep_last=keep_last, keep_days=keep_days), NOW))
    stays = [each for each in backups if each.name not in gone]
    complete = [each for each in backups if each.phase == "Complete"]
    kept = [each for each in stays if each.phase == "Complete"]

    assert all(each in stays for each in backups if each.phase not in {"Complete", "Failed"})
    assert len(kept) >= min(keep_last, len(complete))
    assert sum(each.phase == "Failed" for each in stays) <= FAILED_KEPT
    lost = [each.at for each in complete if each.name in gone]
    assert not lost or not kept or max(lost) < min(each.at for each in kept)
