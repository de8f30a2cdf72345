"""
The lag of a stream in messages and seconds, read from the brokers after a batch.

Spark has no metrics for Python sources, so the driver asks the brokers: `run_stream` for its status, `LagListener`
for any other query. Rule: a failed request reports nothing and disturbs no query.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from orderlymq.errors import OrderlyMQError
from orderlymq_spark.cluster.access import access_to
from orderlymq_spark.errors import OptionError
from orderlymq_spark.offsets import Offsets, from_json
from orderlymq_spark.options import Connect
from orderlymq_spark.sparkversion import progress_offsets

_log = logging.getLogger(__name__)
_PATIENCE_MS: Final = 2_000  # a batch must not wait for this figure


@dataclass(frozen=True, slots=True)
class Lag:
    """The stored messages that a stream has not read.

    Attributes:
        messages: of all queues together.
        seconds: since the oldest of them was stored; 0 if there is none.
    """

    messages: int
    seconds: float


def lag_behind(connect: Connect, offsets: Offsets) -> Lag | None:
    """Return the current lag of a stream that has read up to *offsets*; None if the cluster does not answer."""
    access = access_to(replace(connect, retry_timeout_ms=_PATIENCE_MS))
    try:
        lows, highs = access.bounds(offsets)
        first = {queue: max(lows[queue], offset) for queue, offset in offsets.items()}
        waiting = {queue: at for queue, at in first.items() if at < highs[queue]}
        stored = [access.stored_at(queue, at) for queue, at in waiting.items()]
    except OrderlyMQError as error:
        _log.info("the lag is unknown now: %s", error)
        return None
    oldest_ms = min((each for each in stored if each is not None), default=None)
    oldest_s = 0.0 if oldest_ms is None else time.time() - oldest_ms / 1000
    messages = sum(highs[queue] - at for queue, at in waiting.items())
    return Lag(messages, round(max(0.0, oldest_s), 3))


class LagListener(StreamingQueryListener):
    """A listener that reports the lag of every query that reads topics, after each batch.

    `spark.streams.addListener(LagListener(connect, tell))`; *tell* receives the query's name or id and its lag.
    """

    def __init__(self, connect: Connect, tell: Callable[[str, Lag], object]) -> None:
        self._connect = connect
        self._tell = tell

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Report the lag at the end of the batch."""
        progress = event.progress
        for source in progress.sources:
            offsets = _of_topics(progress_offsets(source.endOffset))
            lag = lag_behind(self._connect, offsets) if offsets else None
            if lag is not None:
                self._tell(progress.name or str(progress.id), lag)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""


def _of_topics(value: Any) -> Offsets:
    """Return the offsets of one of our sources; empty for other sources."""
    try:
        return from_json(value)
    except OptionError:
        return {}
