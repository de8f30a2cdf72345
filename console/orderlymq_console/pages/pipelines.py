"""
Spark pipelines: the list, and one pipeline with its progress by queue, its last error and the result of its last audit.

Rules: Spark is never asked. The last report of a driver comes from `orderlymq_console.pipelines`, and the ends of queues come from the
brokers, so the lag is the present one. If a pipeline reads another cluster, its lag is unknown.
"""

import asyncio
import time
from typing import Final

from orderlymq_console.cluster import Answers, ClusterReader
from orderlymq_console.collector import Reading
from orderlymq_console.links import pipeline_link
from orderlymq_console.models import Figure, Source, Trouble, bounded, figure
from orderlymq_console.pages.notfound import NotThere
from orderlymq_console.pages.topics import topic_ends
from orderlymq_console.parameters import Parameters
from orderlymq_console.pipelinemodels import (
    PipelinePage,
    PipelineQueue,
    PipelineRow,
    PipelinesPage,
)
from orderlymq_console.pipelines.reports import PipelineReport, QueueReport
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.body.stats import TopicOffset

#: Queues that one page shows, and queues whose first unread message is looked up for its age.
QUEUES_MAX: Final = 500
AGED_MAX: Final = 32
# Topics whose ends are asked for one page.
_TOPICS_MAX: Final = 50
# How often a waiting message is read for its age.
_AGES_S: Final = 5.0
_NOT_CONFIGURED: Final = "the console does not know where pipelines are: start it with --pipelines FILE, or in a Cluster's spec.console"
_OF_TOPICS: Final = (
    "archive",
    "order-audit",
    "skew-report",
    "replay",
    "mirror",
    "cdc-apply",
    "lag",
)

_Ends = dict[str, Answers[dict[MessageQueue, TopicOffset]]]


async def pipelines(reader: ClusterReader, _: Parameters) -> PipelinesPage:
    """Return all pipelines."""
    reading = await _read(reader)
    found = reading.value or ()
    ends = await _ends(reader, found)

    return PipelinesPage(
        sources=_sources(reader, reading, ends),
        rows=tuple(_row(reader, each, ends) for each in found),
        troubles=tuple(
            sorted(
                (trouble for each in found for trouble in _troubles(each)),
                key=lambda each: each.severity != "critical",
            )
        ),
    )


async def pipeline(reader: ClusterReader, parameters: Parameters) -> PipelinePage:
    """Return one pipeline.

    Raises:
        NotThere: There is no pipeline of this name.
    """
    name = parameters.text("pipeline")
    reading = await _read(reader)
    known = next((each for each in reading.value or () if each.name == name), None)
    if known is None:
        raise NotThere(reading.unknown or f"there is no pipeline {name}")
    ends = await _ends(reader, (known,))
    row = _row(reader, known, ends)
    queues = tuple(_queue(reader, known, each, ends) for each in known.queues)
    shown = sorted(queues, key=lambda each: -(each.lag.value or 0))[:QUEUES_MAX]

    return PipelinePage(
        sources=_sources(reader, reading, ends),
        row=row,
        troubles=tuple(_troubles(known)),
        note=known.note,
        result=known.result,
        queues=await _with_ages(reader, shown),
        queues_left_out=len(queues) - len(shown),
        queues_unknown="" if queues else known.unknown or "its driver has reported no offsets yet",
        audit=known.audit,
    )


async def troubles(reader: ClusterReader) -> tuple[list[Trouble], tuple[Source, ...]]:
    """Return what is wrong with pipelines, and the sources; both are empty if the console is configured without pipelines."""
    if reader.pipelines is None:
        return [], ()
    reading = await _read(reader)
    found = [trouble for each in reading.value or () for trouble in _troubles(each)]
    return found, _sources(reader, reading, {})


def _troubles(known: PipelineReport) -> list[Trouble]:
    found, link = [], pipeline_link(known.name)
    if known.phase in ("Failed", "Died"):
        cause = known.last_error or "its driver was killed"
        found.append(
            Trouble(
                severity="warning",
                text=f"Pipeline {known.name} has stopped: {cause}",
                todo="Repair the cause, then run it again; it continues from its checkpoint.",
                link=link,
            )
        )
    if known.audit is not None and known.audit.state == "broken":
        reads = "" if known.spec is None else known.spec.reads
        found.append(
            Trouble(
                severity="critical",
                text=f"Pipeline {known.name} found the order of {reads} broken.",
                todo="See the findings: each names queue, offset and key.",
                link=link,
            )
        )
    return found


async def _read(reader: ClusterReader) -> Reading[tuple[PipelineReport, ...]]:
    source = reader.pipelines
    if source is None:
        return Reading(None, _NOT_CONFIGURED, reader.collector.now_s())
    return await reader.collector.read("pipelines", source.read)


def _sources(
    reader: ClusterReader, reading: Reading[tuple[PipelineReport, ...]], ends: _Ends
) -> tuple[Source, ...]:
    age_s = round(reader.collector.age_s(reading), 1)
    own = Source(name="pipelines", age_seconds=age_s, unknown=reading.unknown)
    return (own, *reader.sources(*ends.values()))


# -- progress


def _is_here(reader: ClusterReader, known: PipelineReport) -> bool:
    """Return whether a pipeline reads the cluster that the console shows."""
    if known.own_cluster is not None or known.spec is None:
        return bool(known.own_cluster)
    own = ";".join(reader.admin.instance.name_servers)
    return bool(_servers(known.spec.name_servers) & _servers(own))


def _servers(text: str) -> set[str]:
    return {each.replace("localhost", "127.0.0.1") for each in text.split(";") if each}


async def _ends(reader: ClusterReader, found: tuple[PipelineReport, ...]) -> _Ends:
    """Return the ends of the topics that pipelines read in this cluster."""
    here = [each for each in found if _is_here(reader, each)]
    topics = sorted({queue.topic for each in here for queue in each.queues})[:_TOPICS_MAX]
    answers = await asyncio.gather(*(topic_ends(reader, topic) for topic in topics))
    return dict(zip(topics, answers, strict=True))


def _end(reader: ClusterReader, known: PipelineReport, queue: QueueReport, ends: _Ends) -> Figure:
    if not _is_here(reader, known):
        servers = "" if known.spec is None else known.spec.name_servers
        return Figure(unknown=f"it reads the cluster of {servers}, not the cluster of this console")
    answers = ends.get(queue.topic)
    if answers is None:
        return Figure(unknown=f"the console reads the ends of at most {_TOPICS_MAX} topics")
    reading = answers.readings.get(queue.broker_group)
    if reading is None or reading.value is None:
        reason = answers.unknown if reading is None else reading.unknown
        return Figure(unknown=reason or f"no broker group {queue.broker_group} is registered")
    found = reading.value.get(MessageQueue(queue.topic, queue.broker_group, queue.queue))
    if found is None:
        return Figure(unknown="its broker does not report this queue")
    return Figure(value=found.max_offset)


def _queue(
    reader: ClusterReader, known: PipelineReport, queue: QueueReport, ends: _Ends
) -> PipelineQueue:
    end = _end(reader, known, queue, ends)
    lag = end if end.value is None else Figure(value=max(0, end.value - queue.offset))
    nothing_waits = lag.value == 0
    return PipelineQueue(
        topic=queue.topic,
        broker_group=queue.broker_group,
        queue=queue.queue,
        offset=queue.offset,
        end=end,
        lag=lag,
        oldest_seconds=Figure() if nothing_waits else Figure(unknown=lag.unknown),
    )


def _lag(reader: ClusterReader, known: PipelineReport, ends: _Ends) -> Figure:
    """Return the present lag of all queues; the lag that the driver reported if no queue is known."""
    if not known.queues:
        return figure(known.lag, known.unknown or "its driver has reported no offsets yet")
    lags = [_queue(reader, known, each, ends).lag for each in known.queues]
    values = [each.value for each in lags if each.value is not None]
    missing = next((each.unknown for each in lags if each.value is None), "")
    if not values:
        return Figure(unknown=missing)
    return bounded(sum(values), missing)


async def _with_ages(
    reader: ClusterReader, queues: list[PipelineQueue]
) -> tuple[PipelineQueue, ...]:
    """Add the age of the first unread message to the queues with the greatest lags."""
    asked = [each for each in queues if each.lag.value][:AGED_MAX]
    ages = dict(
        zip(asked, await asyncio.gather(*(_age(reader, each) for each in asked)), strict=True)
    )
    late = Figure(unknown=f"it is read only for the {AGED_MAX} greatest lags")
    return tuple(
        each.model_copy(update={"oldest_seconds": ages.get(each, late)}) if each.lag.value else each
        for each in queues
    )


async def _age(reader: ClusterReader, queue: PipelineQueue) -> Figure:
    place = MessageQueue(queue.topic, queue.broker_group, queue.queue)
    reading = await reader.collector.read(
        ("stored", place, queue.offset),
        lambda: _stored_ms(reader, place, queue.offset),
        every_s=_AGES_S,
    )
    if reading.value is None:
        return Figure(unknown=reading.unknown)
    if not reading.value:
        return Figure(unknown="the message at its offset is no longer stored")
    return Figure(value=round(max(0.0, time.time() - reading.value / 1000), 1))


async def _stored_ms(reader: ClusterReader, queue: MessageQueue, offset: int) -> int:
    """Return when the first message from *offset* on was stored; 0 if there is none."""
    result = await reader.pulls.pull(queue, offset, count=1, unreadable=True, body_max=0)
    return next((message.store_timestamp for message in result.messages), 0)


# -- rows


def _row(reader: ClusterReader, known: PipelineReport, ends: _Ends) -> PipelineRow:
    spec = known.spec
    here = _is_here(reader, known)
    unreported = known.unknown or "its driver has not reported it"
    return PipelineRow(
        name=known.name,
        place=known.place,
        type="" if spec is None else spec.type,
        reads="" if spec is None else spec.reads,
        writes="" if spec is None else spec.writes,
        is_topic=here and spec is not None and spec.type in _OF_TOPICS and spec.archive is None,
        to_topic=here and spec is not None and spec.type == "replay",
        state=known.phase,
        state_unknown="" if known.phase else known.unknown,
        changed_ms=known.changed_ms,
        last_batch=known.last_batch,
        rows=figure(known.rows, unreported),
        rows_per_second=figure(known.rows_per_second, unreported),
        lag=_lag(reader, known, ends),
        last_error=known.last_error,
        audit=None if known.audit is None else known.audit.state,
    )
