"""
The application in a table's commits, and how another checkpoint under its name is noticed.

The same for Delta and Iceberg tables. Rule: how far an application has come in each queue is committed with its rows, so
a batch that is repeated, and one that contradicts the table, are known before anything is written.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.dataset import Dataset

from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_spark.errors import SinkConflict
from orderlymq_spark.offsets import Offsets, TopicIds, from_json, to_json
from orderlymq_spark.tables.parquet import Part, compare_ends

_ENDS: Final = "orderlymq.ends"
_IDS: Final = "orderlymq.topicIds"


def said_ends(app_id: str, ends: Offsets) -> dict[str, str]:
    """Return the property of a commit that says how far its application has come."""
    return {f"{_ENDS}.{app_id}": json.dumps(to_json(ends))}


def ends_said(said: Mapping[str, str], app_id: str) -> dict[MessageQueue, int] | None:
    """Read `said_ends`; None where a commit says nothing of the application."""
    text = said.get(f"{_ENDS}.{app_id}")
    return None if text is None else from_json(json.loads(text))


def said_ids(ids: TopicIds) -> dict[str, str]:
    """Return the property of a commit that says of which topics its rows are."""
    return {_IDS: json.dumps([[*place, number] for place, number in sorted(ids.items())])}


def ids_said(said: Mapping[str, str]) -> TopicIds | None:
    """Read `said_ids`; None where a commit does not say it."""
    text = said.get(_IDS)
    return None if text is None else {(*place,): number for *place, number in json.loads(text)}


def ends_of(parts: Sequence[Part]) -> dict[MessageQueue, int]:
    """Return where the queues of a batch end."""
    return {each.part.queue: each.part.end for each in parts}


def check_ends(
    where: str, app_id: str, batch: int, parts: Sequence[Part], ends: Offsets, *, repeated: bool
) -> None:
    """Compare a batch with how far its application has come in the table.

    Raises:
        SinkConflict: The table was written from another checkpoint; nothing was changed.
    """
    for part in (each.part for each in parts):
        # A repeated batch is reported with all of its queues.
        end = ends.get(part.queue, 0 if repeated else part.start)
        if part.end > end if repeated else part.start < end:
            raise SinkConflict(
                f"batch {batch} of {app_id} brings {part}, and {where} has the queue up to {end} "
                f"{'and that batch ' if repeated else ''}already: it was written from another checkpoint, or the "
                "topic was created again; give this pipeline a table of its own"
            )


def check_repeated(where: str, rows: Dataset, parts: Sequence[Part]) -> None:
    """Refuse a batch that is committed with other messages; rows that were deleted from the table since are nobody's.

    Raises:
        SinkConflict: It is.
    """
    for part in parts:
        here = pc.field("queue_offset").isin(sorted(part.ends_by_place()))
        here &= of_queue(rows, part.part.queue)
        names = [name for name in part.ends[0] if name in rows.schema.names]
        batches = rows.to_batches(columns=[*{"queue_offset", *names}], filter=here)
        if not all(compare_ends(part, names, batches).values()):
            raise SinkConflict(
                f"{part.part} is in {where} with other messages: the topic was deleted and created again, or its "
                "cluster restored from a backup; give this pipeline a table and a checkpoint of its own"
            )


def of_queue(rows: Dataset, queue: MessageQueue) -> pc.Expression:
    """Return what chooses the rows of a queue."""
    here = pc.scalar(True)
    named = {"topic": queue.topic, "broker": queue.broker_name, "queue_id": queue.queue_id}
    for name, value in named.items():
        if name in rows.schema.names:
            # Arrow cannot compare its views of texts with texts.
            here &= pc.field(name).cast(pa.scalar(value).type) == value
    return here
