"""Topics: the list with search and pages, and one topic with its queues, heads and ends."""

import asyncio
from typing import Any, Final

from orderlymq.admin.calls import unless_foreign
from orderlymq.admin.client import AdminClient
from orderlymq.connection.instance import unless_missing, unless_refused
from orderlymq.connection.routes import NO_ROUTE
from orderlymq_console.cluster import NAME_SERVERS, Answers, ClusterReader
from orderlymq_console.models import (
    Figure,
    HotSpot,
    TopicList,
    TopicPage,
    TopicQueue,
    TopicRow,
    bounded,
)
from orderlymq_console.pages.lags import lag_rows
from orderlymq_console.pages.notfound import NotThere
from orderlymq_console.pages.pagination import cut, search
from orderlymq_console.parameters import Parameters
from orderlymq_console.status import StatusReport
from orderlymq_protocol.body.config import TopicConfig
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.body.stats import BrokerStatsData, TopicOffset
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.findings import FINDINGS
from orderlymq_protocol.names import is_hidden_topic

#: Queues that one page shows.
QUEUES_MAX: Final = 500
# Brokers update their counts every few seconds.
RATE_S: Final = 5.0
# The result for brokers of RocketMQ, which know no expansion.
_NOTHING: Final[dict[str, dict[str, Any]]] = {}


async def topics(reader: ClusterReader, parameters: Parameters) -> TopicList:
    """Return a page of topics."""
    catalogue = await reader.topics()
    tables = dict(catalogue.known())
    with_system = parameters.flag("system")
    query = parameters.text("q", length_max=255)
    own = set(catalogue.readings)
    names = reader.sorted_names(
        ("topics", with_system),
        catalogue,
        lambda name: with_system or not is_hidden_topic(name, own),
    )
    page = cut(search(names, query, str), parameters)

    return TopicList(
        sources=reader.sources(catalogue),
        query=query,
        number=page.number,
        pages=page.pages,
        total=bounded(page.total, catalogue.unknown),
        with_system=with_system,
        rows=tuple(
            _row(topic, {name: table[topic] for name, table in tables.items() if topic in table})
            for topic in page.items
        ),
    )


def _row(topic: str, parts: dict[str, TopicConfig]) -> TopicRow:
    return TopicRow(
        topic=topic,
        ordered=any(config.order for config in parts.values()),
        queues=sum(config.write_queue_nums for config in parts.values()),
        broker_groups=tuple(sorted(parts)),
        readable=all(config.readable for config in parts.values()),
        writable=all(config.writable for config in parts.values()),
    )


async def topic(reader: ClusterReader, parameters: Parameters) -> TopicPage:
    """Return one topic.

    Raises:
        NotThere: No broker has the topic.
    """
    name = parameters.name("topic")
    statuses, rates, stats, groups, expansion, route = await asyncio.gather(
        reader.statuses(),
        reader.of_each(("rate of", name), lambda client: _rate(client, name), every_s=RATE_S),
        topic_ends(reader, name),
        reader.of_each(
            ("groups of", name), lambda client: unless_missing(client.topic_groups(name), [])
        ),
        reader.of_each(("expansion", name), lambda client: _expansion(client, name)),
        reader.collector.read(("route", name), lambda: _route(reader.admin, name)),
    )
    if route.value == ():
        raise NotThere(f"there is no topic {name}")
    queues = _queues(stats, route.value or ())
    consumers = sorted({group for _, found in groups.known() for group in found})

    return TopicPage(
        sources=reader.sources(
            statuses, stats, rates, groups, expansion, Answers({NAME_SERVERS: route})
        ),
        topic=name,
        ordered=None if route.value is None else any(ordered for _, ordered in route.value),
        messages=kept_messages(stats),
        messages_in=rates.total(float),
        queues=tuple(queues[:QUEUES_MAX]),
        groups=tuple(consumers),
        groups_unknown=groups.unknown,
        lags=lag_rows(statuses, lambda _, each: each == name),
        hot=tuple(_hot(statuses, name)),
        expansion=tuple(text for _, texts in expansion.known() for text in texts),
        expansion_unknown=expansion.unknown,
    )


async def _route(admin: AdminClient, topic: str) -> tuple[tuple[MessageQueue, bool], ...]:
    """Return the queues of a topic, each with whether its queue list is declared; empty if there is no such topic."""
    route = await unless_missing(admin.route(topic), NO_ROUTE)
    return tuple((queue, route.is_ordered) for queue in sorted({*route.publish, *route.subscribe}))


async def topic_ends(reader: ClusterReader, topic: str) -> Answers[dict[MessageQueue, TopicOffset]]:
    """Return the offsets of a topic's queues at each broker group; empty where a broker group has no queue of it."""
    return await reader.of_each(
        ("stats", topic), lambda client: unless_missing(client.topic_stats(topic), {})
    )


def kept_messages(stats: Answers[dict[MessageQueue, TopicOffset]]) -> Figure:
    """Return how many messages of a topic are kept."""
    return stats.total(
        lambda table: sum(each.max_offset - each.min_offset for each in table.values())
    )


async def _rate(client: AdminClient, topic: str) -> float:
    """Return how many messages per second came in the last minute."""
    (address,) = (await client.brokers()).values()
    asked = client.broker_stats(address, "TOPIC_PUT_NUMS", topic)
    # If the broker refuses, nothing has come since its leader took over.
    found = await unless_refused(asked, BrokerStatsData(), ResponseCode.SYSTEM_ERROR)
    return found.stats_minute.tps


async def _expansion(admin: AdminClient, topic: str) -> list[str]:
    """Return the progress of a queue expansion that is under way; empty if there is none."""
    known = unless_missing(admin.expansion(topic), _NOTHING)
    found = await unless_foreign(known, _NOTHING)
    return [
        f"{name}: expanding to more queues, phase {each['phase']}"
        for name, each in found.items()
        if each.get("phase", "open") != "open"
    ]


def _queues(
    stats: Answers[dict[MessageQueue, TopicOffset]],
    route: tuple[tuple[MessageQueue, bool], ...],
) -> list[TopicQueue]:
    offsets = {queue: each for _, table in stats.known() for queue, each in table.items()}
    rows = []
    for queue in sorted({*offsets, *(each for each, _ in route)}):
        found = offsets.get(queue)
        if found is None:
            reading = stats.readings.get(queue.broker_name)
            reason = reading.unknown if reading is not None else "no leader is registered"
            nothing = Figure(unknown=reason or "its broker does not report this queue")
            head = end = count = nothing
        else:
            head, end = Figure(value=found.min_offset), Figure(value=found.max_offset)
            count = Figure(value=found.max_offset - found.min_offset)
        rows.append(
            TopicQueue(
                broker_group=queue.broker_name,
                queue=queue.queue_id,
                head=head,
                end=end,
                messages=count,
                last_stored_ms=(found.last_update_timestamp or None) if found is not None else None,
            )
        )
    return rows


def _hot(statuses: Answers[StatusReport], topic: str) -> list[HotSpot]:
    found = []
    for name, status in statuses.known():
        if status.examined is None:
            continue
        found += [
            HotSpot(
                kind="queue",
                name=f"{name}:{row.queue_id}",
                share=row.share,
                todo=FINDINGS["hotQueues"].cure,
            )
            for row in status.examined.hot_queues
            if row.topic == topic
        ]
        found += [
            HotSpot(kind="key", name=row.key, share=row.share, todo=FINDINGS["hotKeys"].cure)
            for row in status.examined.hot_keys
            if row.topic == topic
        ]
    return found
