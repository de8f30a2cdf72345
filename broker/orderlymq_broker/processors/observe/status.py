"""
Observations of a broker group for operators: its status, metrics with labels, and warnings.

The rules: reading the status changes nothing, and its cost does not grow with the number of messages. The shell adds
what only it knows (role, replicas, disk) and serves the status as /status and as 20500. A warning is logged once,
with its cure, and again only if its reason lasts long. ``watch.py`` finds the reasons.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from orderlymq_broker.core.effects import Now
from orderlymq_broker.core.requestcontext import Context
from orderlymq_protocol.findings import FINDINGS, words
from orderlymq_protocol.names import SCHEDULE_TOPIC

# Producer groups with open transactions that the status names; those with the most come first.
TRANSACTION_GROUPS_MAX: Final = 100
# A warning whose reason lasts is repeated, because the beginnings of logs are cut off.
REPEAT_MS: Final = 600_000
SHOWN_MAX: Final = 100
# Texts that clients wrote, by their names in a row; and the text that other accounts see instead.
_TEXTS: Final = frozenset(
    {"messageId", "offsetId", "key", "listener", "listenerError", "difference"}
)
HIDDEN: Final = "(hidden)"
SERIES_MAX: Final = 1_000  # of each metric: groups times topics may be many


def status(context: Context, rates: Mapping[str, float], *, held_pulls: int) -> dict[str, Any]:
    """Return the status as a mapping ready for JSON."""
    state = context.state

    return {
        "leading": context.leading,
        "applied": state.applied_index,
        "topics": len(state.topics.by_name),
        "groups": len(state.groups.by_name),
        "members": sum(len(state.members.of_group(name)) for name in state.members.groups()),
        "topicsVersion": state.topics_version,
        "connections": len(context.sessions),
        "heldPulls": held_pulls,
        "uncommittedBytes": context.entries.uncommitted,
        "locksHeld": state.locks.held_count,
        "duplicateWindow": len(state.dedup),
        "physicalEnd": state.physical_end,
        "floor": state.floor,
        "transactions": _transactions(context),
        "delayed": _delayed(context),
        "diskFull": context.disk_full,
        "rates": {name: round(rate, 1) for name, rate in rates.items()},
        "counters": dict(sorted(context.counters.items())),
        "duplicateClients": {
            client: [caller.connection for caller in callers]
            for client, callers in sorted(context.duplicate_clients.items())
        },
    }


def findings_for(
    report: Mapping[str, Any], may_read: Callable[[Mapping[str, Any]], bool]
) -> dict[str, Any]:
    """Return a leader's findings; in rows that the asker may not read, hide the texts that clients wrote."""
    return {
        kind: [row if may_read(row) else _without_texts(row) for row in found]
        if isinstance(found, list)
        else found
        for kind, found in report.items()
    }


def _without_texts(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: HIDDEN if name in _TEXTS and value else value for name, value in row.items()}


def _transactions(context: Context) -> dict[str, Any]:
    """Return the number of open and given up transactions, when the oldest was opened, and their producer groups."""
    table = context.state.transactions
    oldest = table.oldest_open()
    names = [name for name, _ in table.open_by_group.most_common(TRANSACTION_GROUPS_MAX)]
    names += [name for name, _ in table.given_up_by_group.most_common(TRANSACTION_GROUPS_MAX)]

    return {
        "open": len(table.open),
        "givenUp": len(table.given_up),
        "oldestMillis": oldest.opened.opened_ms if oldest is not None else None,
        "groups": {
            name: {"open": table.open_by_group[name], "givenUp": table.given_up_by_group[name]}
            for name in sorted(set(names))
        },
    }


def _delayed(context: Context) -> dict[str, int]:
    """Return how many messages wait for their own time, and how many for a delay level; these include retries."""
    state = context.state
    schedule = state.topics.by_name.get(SCHEDULE_TOPIC)
    queues = () if schedule is None else tuple(schedule.queues.items())

    return {
        "timers": state.timers.count,
        "levels": sum(
            queue.next_offset - max(state.delay.get(number, 0), queue.min_offset)
            for number, queue in queues
        ),
    }


@dataclass(frozen=True, slots=True)
class Series:
    """One metric with labels; *rises* for a counter."""

    text: str
    labels: tuple[str, ...]
    rows: list[tuple[tuple[str, ...], float]]
    rises: bool = False


def series(
    labels: tuple[str, ...],
    metrics: Mapping[str, tuple[str, list[tuple[tuple[str, ...], float]]]],
) -> dict[str, Series]:
    """Return metrics that have the same labels, by name; each is given as (text, rows), and its rows are limited."""
    return {name: Series(text, labels, rows[:SERIES_MAX]) for name, (text, rows) in metrics.items()}


def quota_series(context: Context) -> dict[str, Series]:
    """Return the refusals by quotas, the most refused accounts first; addresses are not used as labels."""
    found = sorted(context.quotas.refused.items(), key=lambda each: -each[1])
    rows: list[tuple[tuple[str, ...], float]] = [
        (labels, float(count)) for labels, count in found[:SERIES_MAX]
    ]
    text = (
        "Requests that a quota refused, by quota and account; the account is empty for quotas of "
        "addresses"
    )

    return {"quota_refusals": Series(text, ("quota", "account"), rows, rises=True)}


class Warnings:
    """Log lines about a leader's findings: those that wait to be written, and when each is due again."""

    def __init__(self) -> None:
        self._due: dict[tuple[str, ...], int] = {}
        self._waiting: list[str] = []

    def take(self) -> list[str]:
        """Return the warnings since the last call."""
        waiting, self._waiting = self._waiting, []

        return waiting

    def forget(self) -> None:
        """Start over, because another replica leads and warns."""
        self._due.clear()

    def say(self, found: Mapping[str, Sequence[Mapping[str, Any]]], now: Now) -> None:
        """Turn findings into warnings: once, and again if they last long."""
        present: set[tuple[str, ...]] = set()
        for kind, rows in found.items():
            for row in rows[:SHOWN_MAX]:
                about = (kind, *(str(row[name]) for name in FINDINGS[kind].subject))
                present.add(about)
                due = self._due.get(about)
                if due is None or now.monotonic_ms >= due:
                    self._due[about] = now.monotonic_ms + REPEAT_MS
                    self._waiting.append(" ".join(words(kind, row)))
        self._due = {about: due for about, due in self._due.items() if about in present}
        # On a replica without a shell, nothing takes the warnings away; keep the newest, which are the most useful.
        del self._waiting[:-SHOWN_MAX]
