"""
Runs a stream: keeps its status next to the checkpoint until the stream ends.

Rules: SIGTERM ends a stream after its batch. If the stream should have ended by itself, this counts as a failure, so
that its starter runs it again. `status.json` has the phase, last batch, offsets, lag and rate; it keeps the last error
after the driver has died.
"""

import logging
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from prometheus_client import Gauge
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from orderlymq.errors import OrderlyMQError
from orderlymq_runtime.wallclock import machine_ms
from orderlymq_spark.errors import CheckpointInUse
from orderlymq_spark.locations.addresses import canonical
from orderlymq_spark.locations.location import Location
from orderlymq_spark.offsets import begun_again, entered_queues, from_json, to_json
from orderlymq_spark.options import START_FILE, parse_source
from orderlymq_spark.run.checkpoint import Claim, hold_checkpoint, last_batch, last_end
from orderlymq_spark.run.lag import lag_behind
from orderlymq_spark.run.status import Status, gauges_at, kept_status, show
from orderlymq_spark.source.bounds import start_in
from orderlymq_spark.sparkversion import HAS_LIMITS, progress_offsets
from orderlymq_spark.specs import StreamSpec

_log = logging.getLogger(__name__)

_WAIT_S: Final = 1
_LAG_EVERY_MS: Final = 30_000  # during a long batch, or without new batches
_CAUSE_MAX: Final = 600
# Spark waits 10 s for the Python process that plans or commits, without a setting; a busy machine may need longer.
_LATE: Final = "Python worker failed to connect back"
_TRIES: Final = 10
# The text that Py4J puts before Java's text.
_CALLED: Final = re.compile(r"An error occurred while calling \S+\n:? ?")
# The errors for a store whose address scheme Hadoop knows, and for any other scheme.
_NO_JARS: Final = re.compile(
    r"Class org\.apache\.hadoop\.fs\.\S+ not found|No FileSystem for scheme"
)


class PipelineFailed(OrderlyMQError):  # noqa: N818 - says what happened
    """The query ended with an error; finished work is not lost. Run again after fixing the cause."""


class PipelineStopped(OrderlyMQError):  # noqa: N818 - says what happened
    """A signal stopped the query before it had read all messages; run again, and it continues where it stopped."""


def run_stream(
    name: str,
    spec: StreamSpec,
    make: Callable[[], DataStreamWriter],
    *,
    begin: Callable[[], None] = lambda: None,
    counts_offsets: bool = False,
) -> Status:
    """Run a stream to its end, or until SIGTERM or SIGINT.

    Args:
        name: of the pipeline.
        spec: checkpoint, trigger, port of the metrics.
        make: returns the writer, without checkpoint and trigger.
        begin: called once, when no other driver holds the checkpoint.
        counts_offsets: Spark's rows are ranges; the status counts the messages in them.

    Raises:
        CheckpointInUse: As in `hold_checkpoint`, or the checkpoint belongs to another pipeline.
        PipelineFailed: The query failed.
        PipelineStopped: A signal stopped a query that ends by itself.
    """
    status = Status(name, spec.type, counts_offsets=counts_offsets)
    gauges = gauges_at(spec.metrics_port)
    with hold_checkpoint(spec.checkpoint) as claim:
        _check_about(spec)
        status.about = spec.about
        begin()
        done = last_end(spec.checkpoint / "spark")
        status.offsets = None if done is None else to_json(from_json(done))
        status.write(claim)
        tries = _TRIES
        while True:
            # Before Spark 4.2, a run that repeats a dead driver's batch ends after it, even if more messages wait.
            repeats = not HAS_LIMITS and spec.ends and _has_open_batch(spec.checkpoint / "spark")
            try:
                _run_query(status, spec, make(), gauges, claim)
            except PipelineFailed as error:
                tries -= 1
                if not tries or _LATE not in str(error):
                    raise
                _log.warning("%s; the query begins again", error)
                status.last_error = None
            else:
                if not repeats:
                    return status


def _check_about(spec: StreamSpec) -> None:
    """Refuse the checkpoint of another pipeline: this one would begin where that one ended, with an unnoticed gap.

    Raises:
        CheckpointInUse: The checkpoint belongs to another pipeline.
    """
    kept = kept_status(spec.checkpoint)
    if kept.get("source"):
        raise CheckpointInUse(
            f"the checkpoint {spec.checkpoint} belongs to the mirror {kept['name']}; give this pipeline a checkpoint of its own"
        )
    before, now = kept.get("about") or spec.about, spec.about
    if "keys" in now:
        before = {"keys": now["keys"], **before}  # earlier versions did not store the keys
    names = sorted(before.keys() | now.keys())
    other = next((it for it in names if _plain(it, before) != _plain(it, now)), None)
    if other is None:
        return
    if last_batch(spec.checkpoint / "spark", "offsets") < 0:
        # Nothing was read with the old values, for example a wrong name, so the old start does not matter either.
        (spec.checkpoint / START_FILE).delete()
        return
    raise CheckpointInUse(
        f"the checkpoint {spec.checkpoint} belongs to the pipeline {kept['name']}, whose {other} is "
        f"{before.get(other, 'not set')} and not {now.get(other, 'absent')}; give this pipeline a checkpoint of its own. If both "
        f"name the same place, for example by two mounts, write the present one into about of {spec.checkpoint / 'status.json'}"
    )


def _plain(name: str, about: Mapping[str, str]) -> str | None:
    """Return a value of `about` in its canonical spelling, if it has one."""
    value = about.get(name)
    if value and name == "path":
        return canonical(value)
    if value and name == "targetBootstrap":
        return ";".join(sorted(set(value.split(";"))))
    return value


def _run_query(
    status: Status,
    spec: StreamSpec,
    writer: DataStreamWriter,
    gauges: Mapping[str, Gauge],
    claim: Claim,
) -> None:
    """Run a query to its end, or until a signal arrives."""
    writer = writer.option("checkpointLocation", str(spec.checkpoint / "spark"))
    try:
        query = writer.trigger(**spec.trigger_options).queryName(status.name).start()
    except Exception as error:  # Spark raises many kinds
        status.fail(claim, cause(error))
        raise PipelineFailed(f"{status.name}: {status.last_error}") from error
    try:
        _follow(status, query, spec, gauges, claim)
    except StreamingQueryException as error:
        _note(status, query, spec, gauges, claim)
        status.fail(claim, cause(error))
        raise PipelineFailed(f"{status.name}: {status.last_error}") from error
    except (CheckpointInUse, PipelineStopped):
        raise  # the status belongs to the other driver, or is already written
    except Exception as error:
        status.fail(claim, cause(error))
        raise
    finally:
        query.stop()  # stop before the checkpoint is released, even if the disk is full


def _follow(
    status: Status,
    query: StreamingQuery,
    spec: StreamSpec,
    gauges: Mapping[str, Gauge],
    claim: Claim,
) -> None:
    """Update the status of a query until the query ends."""
    status.phase = "Running"
    status.write(claim)  # the first messages may come much later
    with _stopped_by_signals(query) as stopped:
        while not query.awaitTermination(_WAIT_S):
            claim.check()
            _note(status, query, spec, gauges, claim)
    _note(status, query, spec, gauges, claim)
    if stopped.is_set() and spec.ends:
        status.fail(claim, "stopped by a signal")
        raise PipelineStopped(
            f"{status.name}: stopped by a signal before its end; run it again, and it continues from its checkpoint"
        )
    status.phase = "Finished"
    status.write(claim)


def _has_open_batch(spark: Location) -> bool:
    """Return whether Spark's last planned batch is unfinished."""
    return last_batch(spark, "offsets") > last_batch(spark, "commits")


def cause(error: Exception) -> str:
    """Return the useful part of Spark's long error text: the last Python error in it, or otherwise the first line."""
    if _NO_JARS.search(str(error)):
        return (
            "Spark lacks the jars for the address of its checkpoint; name them in spark.settings (spark.jars.packages), or "
            "set checkpoint to a mounted file system"
        )
    lines = _CALLED.sub("", str(error)).splitlines()
    own = [
        line.strip()
        for line in lines
        if line.startswith(("orderlymq", "OSError", "PermissionError", "pyarrow", "_internal"))
    ]
    text = own[-1] if own else (lines[0] if lines else "the query failed")
    if own and ": " in text:
        text = text.partition(": ")[2]
    return text[:_CAUSE_MAX]


@contextmanager
def _stopped_by_signals(query: StreamingQuery) -> Iterator[threading.Event]:
    """Stop the query at SIGTERM and SIGINT; in another thread than the main one, do nothing."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    def stop(*_: object) -> None:
        stopped.set()
        # Stop it in a thread, because a call of Spark's gateway must not call the gateway again.
        threading.Thread(target=query.stop, name="stop query", daemon=True).start()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _note(
    status: Status,
    query: StreamingQuery,
    spec: StreamSpec,
    gauges: Mapping[str, Gauge],
    claim: Claim,
) -> None:
    seen = -1 if status.last_batch is None else status.last_batch
    now_ms = machine_ms()
    changed = status.offsets is not None and now_ms >= status.updated_at_ms + _LAG_EVERY_MS
    for progress in query.recentProgress:
        if progress["batchId"] <= seen or not progress["numInputRows"]:
            continue
        seen = status.last_batch = progress["batchId"]
        status.batches += 1
        source = progress["sources"][0]
        start, end = progress_offsets(source["startOffset"]), progress_offsets(source["endOffset"])
        rows = progress["numInputRows"]
        if status.counts_offsets:
            # For the first batch Spark does not report the start.
            rows = _messages(_began(spec.checkpoint) if start is None else start, end)
        status.rows += rows
        status.rows_per_second = round(rows * 1000 / max(1, progress["batchDuration"]), 1)
        status.offsets = to_json(from_json(end))
        changed = True
    if changed:
        lag = lag_behind(parse_source(spec.source.all_options()).connect, from_json(status.offsets))
        status.lag, status.lag_seconds = (lag.messages, lag.seconds) if lag else (None, None)
        status.write(claim)
        show(status, gauges)


def _began(checkpoint: Location) -> dict[str, Any]:
    """Return where a stream began, in the form of `to_json`."""
    file = checkpoint / START_FILE
    return start_in(file) if file.exists() else {}


def _messages(start: dict[str, Any], end: dict[str, Any]) -> int:
    """Return the number of offsets in a batch; a new or replaced queue counts from 0.

    From Spark 4.2 on, the first batch with a queue of a new topic or broker group counts none of it.
    """
    known, ends = from_json(start), from_json(end)
    known |= dict.fromkeys(begun_again(start, end), 0)
    if HAS_LIMITS:
        known |= {queue: ends[queue] for queue in entered_queues(known, ends)}
    return sum(offset - known.get(queue, 0) for queue, offset in ends.items())
