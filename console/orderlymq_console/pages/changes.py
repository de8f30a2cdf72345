"""Changes as rows: those of the whole cluster in the last hour, and those of the locks of one consumer group."""

from collections.abc import Iterable
from typing import Final

from orderlymq_console.journal import Change, Journal
from orderlymq_console.models import ChangeRow

#: The newest changes say the most; the rest would make the first page long.
SHOWN_MAX: Final = 30


def last_hour(journal: Journal) -> tuple[tuple[ChangeRow, ...], int]:
    """Return the changes of the last hour, the newest first, and how many changes are not shown."""
    found = journal.last_hour()
    return _rows(found[:SHOWN_MAX]), max(0, len(found) - SHOWN_MAX)


def of_locks(journal: Journal, group: str) -> tuple[ChangeRow, ...]:
    """Return how the locks of a consumer group changed hands, mixed with the changes of leaders, the newest first."""
    return _rows(journal.locks_of(group))


def _rows(changes: Iterable[Change]) -> tuple[ChangeRow, ...]:
    return tuple(
        ChangeRow(
            at_ms=change.at_ms,
            broker_group=change.broker_group,
            text=change.text,
            link=change.link,
            topic="" if change.queue is None else change.queue.topic,
            queue=None if change.queue is None else change.queue.queue_id,
        )
        for change in changes
    )
