"""
The application's progress in a table's commits, by which another checkpoint with its name is detected.

Delta and Iceberg tables use the same form. Rule: a commit stores the progress in each queue together with the rows. A
repeated batch, or one that contradicts the table, is therefore detected before anything is written.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.dataset import Dataset

from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_spark.errors import SinkConflict
from orderlymq_spark.offsets import Offsets, TopicIds, from_json, to_json
from orderlymq_spark.tables.parquet import Part, compare_ends

_ENDS: Final = "orderlymq.ends"
_SEEN: Final = "orderlymq.seen"
_IDS: Final = "orderlymq.topicIds"


def ends_property(app_id: str, ends: Offsets) -> dict[str, str]:
    """Return the commit property that stores the progress of its application."""
    return {f"{_ENDS}.{app_id}": json.dumps(to_json(ends))}


def parse_ends(properties: Mapping[str, str], app_id: str) -> dict[MessageQueue, int] | None:
    """Read the property of `ends_property`; None if a commit has none for the application."""
    text = properties.get(f"{_ENDS}.{app_id}")
    return None if text is None else from_json(json.loads(text))


def others_ends(properties: Mapping[str, str], app_id: str) -> dict[MessageQueue, int]:
    """Return the progress of the other applications that a commit stores."""
    names = {name.removeprefix(f"{_ENDS}.") for name in properties if name.startswith(f"{_ENDS}.")}
    return farthest(*(parse_ends(properties, name) or {} for name in sorted(names - {app_id})))


def seen_property(app_id: str, ends: Offsets) -> dict[str, str]:
    """Return the commit property that stores the combined `others_ends` of all commits before it."""
    return {f"{_SEEN}.{app_id}": json.dumps(to_json(ends))}


def parse_seen(properties: Mapping[str, str], app_id: str) -> dict[MessageQueue, int]:
    """Read the property of `seen_property`; empty if a commit has none."""
    return from_json(json.loads(properties.get(f"{_SEEN}.{app_id}", "{}")))


def farthest(*places: Offsets) -> dict[MessageQueue, int]:
    """Return the highest end of each queue."""
    found: dict[MessageQueue, int] = {}
    for queue, end in chain.from_iterable(each.items() for each in places):
        found[queue] = max(end, found.get(queue, 0))
    return found


def ids_property(ids: TopicIds) -> dict[str, str]:
    """Return the commit property that stores the topic ids of its rows."""
    return {_IDS: json.dumps([[*place, number] for place, number in sorted(ids.items())])}


def parse_ids(properties: Mapping[str, str]) -> TopicIds | None:
    """Read the property of `ids_property`; None if a commit has none."""
    text = properties.get(_IDS)
    return None if text is None else {(*place,): number for *place, number in json.loads(text)}


def ends_of(parts: Sequence[Part]) -> dict[MessageQueue, int]:
    """Return the ends of the queues of a batch."""
    return {each.part.queue: each.part.end for each in parts}


def check_ends(
    where: str, app_id: str, batch: int, parts: Sequence[Part], ends: Offsets, *, repeated: bool
) -> None:
    """Compare a batch with the progress of its application in the table.

    Raises:
        SinkConflict: The table was written from another checkpoint; nothing was changed.
    """
    for part in (each.part for each in parts):
        # A repeated batch must be complete in the table, for all of its queues.
        end = ends.get(part.queue, 0 if repeated else part.start)
        if part.end > end if repeated else part.start < end:
            raise SinkConflict(
                f"batch {batch} of {app_id} brings {part}, and {where} has the queue up to {end} "
                f"{'and that batch ' if repeated else ''}already: it was written from another checkpoint, or the "
                "topic was created again; give this pipeline a table of its own"
            )


def check_others(where: str, app_id: str, parts: Sequence[Part], ends: Offsets) -> None:
    """Refuse messages that another pipeline may already have written to the table.

    Raises:
        SinkConflict: Another pipeline has progressed farther in a queue.
    """
    for part in (each.part for each in parts):
        if part.start < ends.get(part.queue, 0):
            raise SinkConflict(
                f"{app_id} brings {part}, and another pipeline has the queue up to {ends[part.queue]} in {where}: each message "
                "would be stored twice; give this pipeline a table of its own, or begin where the other pipeline has ended"
            )


def check_repeated(where: str, rows: Dataset, parts: Sequence[Part]) -> None:
    """Refuse a batch that was committed with other messages; rows that were later deleted from the table do not count.

    Raises:
        SinkConflict: The messages differ.
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
    """Return the filter that selects the rows of a queue."""
    here = pc.scalar(True)
    named = {"topic": queue.topic, "broker": queue.broker_name, "queue_id": queue.queue_id}
    for name, value in named.items():
        if name in rows.schema.names:
            # Cast, because Arrow cannot compare string views with strings.
            here &= pc.field(name).cast(pa.scalar(value).type) == value
    return here
