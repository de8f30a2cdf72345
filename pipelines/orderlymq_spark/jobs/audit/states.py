"""
The states of a streaming order audit: one file per queue and batch, next to the checkpoint.

Rules: a repeated batch continues from the states before it. Each queue has its own folder. Earlier versions wrote `/`
in a queue's name as `_`, so that queues could share a folder. In such a folder only the queue's own files count.
"""

from typing import Final
from urllib.parse import quote

import orjson

from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_spark.jobs.audit.order import OrderCheck
from orderlymq_spark.locations.location import Location

_KEPT: Final = 2  # the batch that may be repeated, and the previous one


def name_of(queue: MessageQueue) -> str:
    """Return the name of a queue in findings."""
    return f"{queue.topic}/{queue.broker_name}:{queue.queue_id}"


def restore(
    states: Location | None, batch: int, queue: MessageQueue, first: int | None
) -> OrderCheck:
    """Return the check as it was before this batch, also if the batch is repeated."""
    if states is not None:
        kept = [path for path in _files(_folder(states, queue)) if int(path.stem) < batch]
        former = states / name_of(queue).replace("/", "_")
        for path in reversed(kept or _files(former)):
            check = _read(path)
            if int(path.stem) < batch and check.queue == name_of(queue):
                return check
    return OrderCheck(name_of(queue), first)


def keep(states: Location, batch: int, queue: MessageQueue, check: OrderCheck) -> None:
    """Store the check after this batch; delete the states that no repeat needs."""
    folder = _folder(states, queue)
    (folder / f"{batch:020}.json").write(orjson.dumps(check.to_state()))
    for old in [each for each in _files(folder) if int(each.stem) < batch][:-_KEPT]:
        old.delete()


def newest(states: Location) -> list[OrderCheck]:
    """Return the last check of each queue, sorted by queue name."""
    last = [_files(states / name)[-1] for name in states.names()]
    found: dict[str, OrderCheck] = {}
    for path in sorted(last, key=lambda each: int(each.stem)):
        check = _read(path)
        found[check.queue] = check
    return [found[name] for name in sorted(found)]


def _folder(states: Location, queue: MessageQueue) -> Location:
    # A topic cannot contain `=`, and quoting removes it from broker names.
    return states / f"{queue.topic}={quote(queue.broker_name, safe='')}:{queue.queue_id}"


def _files(folder: Location) -> list[Location]:
    return [folder / name for name in folder.names() if name.endswith(".json")]


def _read(path: Location) -> OrderCheck:
    return OrderCheck.from_state(orjson.loads(path.read_bytes()))
