"""How far consumer groups are behind, as the leaders' last examinations found: one request for all groups."""

from collections.abc import Callable
from typing import Final

from orderlymq_console.cluster import Answers
from orderlymq_console.models import Figure, LagRow, bounded
from orderlymq_console.status import SHOWN_MAX, StatusReport

_CUT: Final = f"a broker reports only the {SHOWN_MAX} greatest lags, and this one is not among them"


def lag_rows(
    statuses: Answers[StatusReport],
    wanted: Callable[[str, str], bool] = lambda _group, _topic: True,
) -> tuple[LagRow, ...]:
    """Return the lags of the groups and topics for which *wanted* holds, the greatest first."""
    rows = [
        LagRow(
            group=row.group,
            topic=row.topic,
            broker_group=name,
            messages=row.messages,
            seconds=row.seconds,
        )
        for name, status in statuses.known()
        if status.examined is not None
        for row in status.examined.lag
        if wanted(row.group, row.topic)
    ]

    return tuple(sorted(rows, key=lambda row: (-row.messages, row.group, row.topic)))


def lag_total(statuses: Answers[StatusReport]) -> Figure:
    """Return how many messages all consumer groups together have not consumed."""
    total = statuses.total(
        lambda status: (
            None if status.examined is None else sum(row.messages for row in status.examined.lag)
        ),
        lambda status: status.unexamined,
    )

    if total.value is None:
        return total
    return bounded(total.value, _missing(statuses))


def oldest(statuses: Answers[StatusReport]) -> Figure:
    """Return the age in seconds of the oldest message that a consumer group has not consumed."""
    ages = [
        max((row.seconds for row in status.examined.lag), default=0.0)
        for _, status in statuses.known()
        if status.examined is not None
    ]
    if not ages:
        return Figure(unknown=_missing(statuses))

    return bounded(max(ages), _missing(statuses))


def group_lag(statuses: Answers[StatusReport], group: str) -> tuple[Figure, Figure]:
    """Return how far one consumer group is behind, in messages and in seconds."""
    rows = lag_rows(statuses, lambda each, _: each == group)
    missing = _missing(statuses)

    return (
        bounded(sum(row.messages for row in rows), missing),
        bounded(max((row.seconds for row in rows), default=0.0), missing),
    )


def _missing(statuses: Answers[StatusReport]) -> str:
    """Say why lags may be missing; empty if every broker group has reported all of its lags."""
    if statuses.unknown:
        return statuses.unknown
    reasons = sorted({status.unexamined for _, status in statuses.known() if status.unexamined})
    is_cut = any(
        status.examined is not None and len(status.examined.lag) >= SHOWN_MAX
        for _, status in statuses.known()
    )
    return "; ".join(reasons) or (_CUT if is_cut else "")
