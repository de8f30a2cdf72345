"""Consumer groups: the list, and one group with its members, assignment, locks, lag and lanes."""

import asyncio
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from orderlymq.consumer.assignment import uneven_shares
from orderlymq_console.cluster import Answers, ClusterReader
from orderlymq_console.models import (
    Figure,
    GroupListPage,
    GroupPage,
    GroupQueue,
    GroupRow,
    MemberRow,
    Trouble,
    bounded,
)
from orderlymq_console.pages import changes, findings
from orderlymq_console.pages.blocked import Parts, group_parts, lane_counts, standing
from orderlymq_console.pages.lags import group_lag
from orderlymq_console.pages.notfound import NotThere
from orderlymq_console.pages.pagination import cut, search
from orderlymq_console.parameters import Parameters
from orderlymq_console.status import StatusReport
from orderlymq_protocol.body.clients import ConsumerConnection
from orderlymq_protocol.body.config import SubscriptionGroupConfig
from orderlymq_protocol.body.lanes import BY_KEY
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.names import is_retry_topic, is_system_group

#: Queues of a consumer group that one page shows; a group of a topic with 16,384 queues has a row for each.
QUEUES_MAX: Final = 500


async def groups(reader: ClusterReader, parameters: Parameters) -> GroupListPage:
    """Return a page of consumer groups, with the lag of each."""
    catalogue, statuses = await asyncio.gather(reader.groups(), reader.statuses())
    with_system = parameters.flag("system")
    query = parameters.text("q", length_max=255)
    names = reader.sorted_names(
        ("groups", with_system),
        catalogue,
        lambda name: with_system or not is_system_group(name),
    )
    page = cut(search(names, query, str), parameters)

    return GroupListPage(
        sources=reader.sources(catalogue, statuses),
        query=query,
        number=page.number,
        pages=page.pages,
        total=bounded(page.total, catalogue.unknown),
        with_system=with_system,
        rows=tuple(
            _row(name, config, statuses)
            for name in page.items
            if (config := _config(catalogue, name)) is not None
        ),
    )


def _row(name: str, config: SubscriptionGroupConfig, statuses: Answers[StatusReport]) -> GroupRow:
    lag, seconds = group_lag(statuses, name)
    return GroupRow(
        group=name,
        ordering=ordering(config),
        lag=lag,
        lag_seconds=seconds,
        blocked=_blocked(statuses, name),
    )


def _blocked(statuses: Answers[StatusReport], group: str) -> Figure:
    """Return how many queues, lanes and keys of a consumer group stand still."""

    def count(status: StatusReport) -> int:
        watch = status.examined
        blocked = sum(row.group == group for row in status.blocked)
        if watch is None:
            return blocked
        return (
            blocked
            + sum(row.keys for row in watch.parked_keys if row.group == group)
            + sum(row.lanes for row in watch.lanes if row.group == group)
        )

    return statuses.total(count, missing=lambda status: status.blocked_unknown or status.cut)


def ordering(config: SubscriptionGroupConfig | None) -> str:
    """Return how a consumer group consumes, as far as its configuration says."""
    if config is None:
        return "unknown"
    if config.concurrency == BY_KEY:
        return "by key"
    return "ordered" if config.consume_message_orderly else "as its members request"


def _config(
    catalogue: Answers[dict[str, SubscriptionGroupConfig]], name: str
) -> SubscriptionGroupConfig | None:
    found = [table[name] for _, table in catalogue.known() if name in table]
    return found[-1] if found else None


async def group(reader: ClusterReader, parameters: Parameters) -> GroupPage:
    """Return one consumer group.

    Raises:
        NotThere: All broker groups answer, and none knows the consumer group.
    """
    name = parameters.name("group")
    catalogue, statuses, connections, parts = await asyncio.gather(
        reader.groups(),
        reader.statuses(),
        reader.of_each(("connections", name), lambda client: client.connections(name)),
        group_parts(reader, name),
    )
    config = _config(catalogue, name)
    online = [each for _, found in connections.known() for each in found]
    if config is None and not online and not catalogue.unknown and not connections.unknown:
        raise NotThere(f"there is no consumer group {name}")
    subscriptions = {
        topic: data.sub_string for each in online for topic, data in each.subscription_table.items()
    }
    wanted = await _queues_of(reader, subscriptions)
    rows = list(_queue_rows(parts, wanted))
    lag, seconds = group_lag(statuses, name)
    by_key = config is not None and config.concurrency == BY_KEY
    members = _members(connections, parts)

    return GroupPage(
        sources=reader.sources(catalogue, statuses, connections, *parts.all),
        group=name,
        # Members of an ordered group lock its queues, even if its configuration does not say "ordered".
        ordering="ordered" if any(row.holder for row in rows) and not by_key else ordering(config),
        by_key=by_key,
        on_dead_letter="" if config is None else config.on_dead_letter,
        retry_max_times=None if config is None else config.retry_max_times,
        lag=exact_lag(parts, lag, subscriptions),
        lag_seconds=seconds,
        members=members,
        members_unknown=connections.unknown,
        subscriptions=dict(sorted(subscriptions.items())),
        queues=tuple(rows[:QUEUES_MAX]),
        queues_left_out=max(0, len(rows) - QUEUES_MAX),
        lanes=tuple(lane_counts(row) for _, table in parts.lanes.known() for row in table.queues),
        standing=tuple(
            sorted(
                standing(statuses, name, parts),
                key=lambda row: (row.state == "parked", row.since_ms),
            )
        ),
        troubles=tuple(_troubles(statuses, name, parts)),
        history=changes.of_locks(reader.journal, name),
        history_since_ms=reader.journal.since_ms,
        advice="" if by_key else uneven_shares(len(members), (row.topic for row in rows)),
    )


def _troubles(statuses: Answers[StatusReport], group: str, parts: Parts) -> Iterator[Trouble]:
    for _, table in parts.locks.known():
        yield from findings.of_locks(group, table.values())
    for _, status in statuses.known():
        if status.examined is not None:
            yield from findings.of_watch(status.examined, group)


async def _queues_of(reader: ClusterReader, topics: Iterable[str]) -> set[MessageQueue]:
    """Return the queues of the topics that the members want, as far as they could be read."""
    found: set[MessageQueue] = set()
    for topic in sorted(topics):
        if not is_retry_topic(topic):
            found |= (await reader.queues(topic)).value or set()
    return found


def exact_lag(parts: Parts, otherwise: Figure, wanted: Collection[str]) -> Figure:
    """Return the lag as each broker group reports it: in the topics that members want, or in all topics if *wanted* is empty."""
    if not any(True for _ in parts.progress.known()):
        return otherwise
    return parts.progress.total(
        lambda table: sum(
            each.lag
            for queue, each in table.items()
            if not wanted or queue.topic in wanted or is_retry_topic(queue.topic)
        )
    )


def _queue_rows(parts: Parts, wanted: set[MessageQueue]) -> Iterable[GroupQueue]:
    locks = {queue: lock for _, table in parts.locks.known() for queue, lock in table.items()}
    progress = {queue: each for _, table in parts.progress.known() for queue, each in table.items()}
    for queue in sorted({*locks, *progress, *wanted}):
        lock, offsets = locks.get(queue), progress.get(queue)
        # A queue without an offset has no figures; they are unknown only if its broker group could not be asked.
        nothing = Figure(unknown=parts.progress.reason(queue.broker_name))
        yield GroupQueue(
            topic=queue.topic,
            broker_group=queue.broker_name,
            queue=queue.queue_id,
            holder=None if lock is None else lock.client_id,
            holder_unknown=parts.locks.reason(queue.broker_name) if lock is None else "",
            address=None if lock is None else lock.address or None,
            pod=None if lock is None or parts.pods is None else parts.pods.at(lock.address),
            epoch=None if lock is None else lock.epoch,
            held_since_ms=None if lock is None else lock.held_since_ms or None,
            lease_seconds=None if lock is None else lock.lease_ms / 1000,
            committed=nothing if offsets is None else Figure(value=offsets.consumer_offset),
            end=nothing if offsets is None else Figure(value=offsets.broker_offset),
            lag=nothing if offsets is None else Figure(value=offsets.lag),
        )


def _members(connections: Answers[list[ConsumerConnection]], parts: Parts) -> tuple[MemberRow, ...]:
    held: dict[str, int] = {}
    for _, table in parts.locks.known():
        for lock in table.values():
            held[lock.client_id] = held.get(lock.client_id, 0) + 1
    found: dict[str, MemberRow] = {}
    for name, known in connections.known():
        for each in (member for connection in known for member in connection.connection_set):
            before = found.get(each.client_id)
            found[each.client_id] = MemberRow(
                client_id=each.client_id,
                address=each.client_addr,
                pod=None if parts.pods is None else parts.pods.at(each.client_addr),
                language=str(each.language),
                version=str(each.version),
                broker_groups=(*(before.broker_groups if before else ()), name),
                queues=bounded(held.get(each.client_id, 0), parts.locks.unknown),
            )

    return tuple(found[client_id] for client_id in sorted(found))
