"""
The times at which a schedule is due: cron fields in a time zone, one Backup at a time.

Pure: the caller passes the time. Rules: if times pass while no operator can act, one Backup is made, for the newest of
them. A time that passes while the schedule is suspended is skipped. The next time is never later than the first time
from now, which a stored time may be if its clock was ahead. When clocks change for daylight saving time, times follow
Debian's cron: a time that comes once a day is neither skipped nor repeated.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

# The part of the past that is searched first for the newest time; each further search covers twice as much.
_SEARCH: Final = timedelta(minutes=1)
_WORDS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


class ScheduleInvalid(ValueError):  # noqa: N818 - says what is wrong
    """The schedule or the time zone is invalid; the text says which."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The times of one schedule, all in UTC."""

    text: str
    zone: ZoneInfo

    @classmethod
    def parse(cls, text: str, time_zone: str) -> "Schedule":
        """Parse a schedule.

        Raises:
            ScheduleInvalid: the schedule is invalid, or the zone is not known.
        """
        try:
            zone = ZoneInfo(time_zone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ScheduleInvalid(f"spec.timeZone: {time_zone!r} is not known") from error
        made = cls(_WORDS.get(text, text), zone)
        try:
            made.after(datetime(2026, 1, 1, tzinfo=UTC))
        except CronSimError as error:
            raise ScheduleInvalid(f"spec.schedule: {text!r}: {error}") from error
        except StopIteration as error:
            raise ScheduleInvalid(f"spec.schedule: {text!r} never becomes due") from error
        return made

    def after(self, moment: datetime) -> datetime:
        """Return the first time after *moment*."""
        times = CronSim(self.text, moment.astimezone(self.zone))
        # In the hour that clocks repeat, a daily time is in the first pass, which may be over already.
        return next(found for each in times if (found := each.astimezone(UTC)) > moment)

    def has(self, moment: datetime) -> bool:
        """Return whether *moment* is one of its times."""
        return self.after(moment - timedelta(seconds=1)) == moment

    def latest(self, now: datetime) -> datetime:
        """Return its newest time up to *now*; the caller knows that there is one."""
        span = _SEARCH
        while (found := self.after(now - span)) > now:
            span *= 2
        while (following := self.after(found)) <= now:
            found = following
        return found


@dataclass(frozen=True, slots=True)
class Due:
    """The next step of a schedule.

    Attributes:
        at: the time for which a Backup is made now; None for none.
        following: the next time; None while the schedule is suspended.
    """

    at: datetime | None
    following: datetime | None


def due(
    schedule: Schedule, noted: datetime | None, now: datetime, *, suspended: bool, busy: bool
) -> Due:
    """Return what is due; *noted* is the next time in the status, *busy* is True while a Backup has not ended.

    A noted time is ignored if it belongs to another schedule, or was computed by a clock that was ahead.
    """
    if suspended:
        return Due(None, None)
    first = schedule.after(now)
    if noted is None or not schedule.has(noted) or noted > first:
        return Due(None, first)
    if noted > now or busy:
        return Due(None, noted)
    at = schedule.latest(now)
    return Due(at, schedule.after(max(at, now)))
