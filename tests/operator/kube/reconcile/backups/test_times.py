"""The times of a schedule, in virtual time."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from orderlymq_operator.kube.reconcile.backups.times import Due, Schedule, ScheduleInvalid, due

NIGHTLY = Schedule.parse("30 2 * * *", "Europe/Berlin")


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_times_are_those_of_the_zone() -> None:
    """Law: times are in the schedule's time zone: half past two in Berlin is 01:30 UTC in winter and 00:30 in summer."""
    assert NIGHTLY.after(at("2026-01-10T12:00")) == at("2026-01-11T01:30")
    assert NIGHTLY.after(at("2026-07-10T12:00")) == at("2026-07-11T00:30")


def test_no_day_is_left_out_or_doubled_when_clocks_change() -> None:
    """Law: there is one Backup a day, even if 02:30 is skipped or comes twice when the clocks change."""
    for first in ("2026-03-26T12:00", "2026-10-22T12:00"):
        moment, days = at(first), []
        for _ in range(6):
            moment = NIGHTLY.after(moment)
            days.append(moment.astimezone(ZoneInfo("Europe/Berlin")).date())
        assert days == [days[0] + timedelta(days=number) for number in range(6)]


@pytest.mark.parametrize("text", ["30 2 * * *", "15 2,3 * * *", "*/20 * * * *", "@hourly"])
def test_the_next_time_is_never_a_past_one(text: str) -> None:
    """Law: the next time is never in the past, not even near a change of the clocks; such a time would fire immediately."""
    schedule = Schedule.parse(text, "Europe/Berlin")
    for first in ("2026-03-29T00:00", "2026-10-25T00:00"):
        for minutes in range(0, 240, 5):
            now = at(first) + timedelta(minutes=minutes)
            following = schedule.after(now)

            assert following > now
            assert schedule.after(following - timedelta(seconds=1)) == following


@pytest.mark.parametrize(
    ("text", "zone", "named"),
    [
        ("61 * * * *", "UTC", "spec.schedule"),
        ("0 0 30 2 *", "UTC", "spec.schedule"),
        ("@reboot", "UTC", "spec.schedule"),
        ("x y z a b", "UTC", "spec.schedule"),
        ("* * * * *", "Europe/Atlantis", "spec.timeZone"),
        ("* * * * *", "posixrules/..", "spec.timeZone"),
    ],
)
def test_what_never_comes_is_refused_by_the_field(text: str, zone: str, named: str) -> None:
    with pytest.raises(ScheduleInvalid, match=named):
        Schedule.parse(text, zone)


def test_a_time_is_noted_before_it_comes_and_fires_once() -> None:
    """Law: with one look each minute, each hour of a day fires exactly once, at its time."""
    hourly = Schedule.parse("@hourly", "UTC")
    noted, fired, now = None, [], at("2026-01-01T00:10")
    for _ in range(24 * 60):
        found = due(hourly, noted, now, suspended=False, busy=False)
        noted = found.following
        if found.at is not None:
            fired.append((found.at, now))
        now += timedelta(minutes=1)

    assert [of for of, _ in fired] == [
        at("2026-01-01T01:00") + timedelta(hours=n) for n in range(24)
    ]
    assert all(of == when for of, when in fired)


def test_the_newest_of_those_that_were_missed_is_made_up_for() -> None:
    """Law: an operator that was away for days makes up for the newest missed time only."""
    found = due(
        NIGHTLY, at("2026-01-02T01:30"), at("2026-01-09T12:00"), suspended=False, busy=False
    )

    assert found == Due(at("2026-01-09T01:30"), at("2026-01-10T01:30"))


@pytest.mark.parametrize(
    ("text", "newest"),
    [
        ("* * * * *", "2026-11-30T12:00"),
        ("@hourly", "2026-11-30T12:00"),
        ("* 3 1 1 *", "2026-01-01T03:59"),
        ("0 0 29 2 *", "2024-02-29T00:00"),
    ],
)
def test_the_newest_time_is_found_however_many_were_missed(text: str, newest: str) -> None:
    """Law: an operator that was away for months makes up for the newest time, not for one of long ago."""
    schedule = Schedule.parse(text, "UTC")
    noted = schedule.after(at("2024-01-01T00:30"))

    found = due(schedule, noted, at("2026-11-30T12:00:30"), suspended=False, busy=False)

    assert found.at == at(newest)


def test_one_that_runs_holds_the_next_back() -> None:
    """Law: a Backup that still runs delays the next one, which is not forgotten."""
    noted, now = at("2026-01-02T01:30"), at("2026-01-02T02:00")

    assert due(NIGHTLY, noted, now, suspended=False, busy=True) == Due(None, noted)
    assert due(NIGHTLY, noted, now, suspended=False, busy=False).at == noted


def test_what_is_due_in_a_suspension_is_not_made_up_for() -> None:
    """Law: times during a suspension are not made up for; the first time after it is the next one."""
    now = at("2026-01-09T12:00")
    asleep = due(NIGHTLY, at("2026-01-02T01:30"), now, suspended=True, busy=False)
    awake = due(NIGHTLY, asleep.following, now, suspended=False, busy=False)

    assert asleep == Due(None, None)
    assert awake == Due(None, at("2026-01-10T01:30"))


def test_a_time_of_another_schedule_counts_no_more() -> None:
    """Law: an edit of the schedule does not fire by itself."""
    found = due(
        NIGHTLY, at("2026-01-02T05:00"), at("2026-01-02T06:00"), suspended=False, busy=False
    )

    assert found == Due(None, at("2026-01-03T01:30"))


def test_a_time_that_a_clock_ahead_has_noted_counts_no_more() -> None:
    """Law: a time far in the future, noted while a clock was wrong, is dropped, so no Backups are left out."""
    noted, now = at("2026-02-10T01:30"), at("2026-01-09T12:00")
    found = due(NIGHTLY, noted, now, suspended=False, busy=False)

    assert found == Due(None, at("2026-01-10T01:30"))


@pytest.mark.parametrize("text", ["30 2 * * *", "15 2,3 * * *", "*/20 * * * *", "@hourly"])
def test_a_time_stands_from_when_it_is_noted_until_it_comes(text: str) -> None:
    """Law: a noted time stays the same until it comes, also near a change of the clocks; otherwise it might never come."""
    schedule = Schedule.parse(text, "Europe/Berlin")
    for first in ("2026-03-29T00:00", "2026-10-25T00:00"):
        now = at(first)
        noted = schedule.after(now)
        for _ in range(48):
            now += timedelta(minutes=5)
            if now >= noted:
                noted = schedule.after(now)
            assert due(schedule, noted, now, suspended=False, busy=False) == Due(None, noted)
