"""
One member of a consumer group: its report about itself, and the stacks of its threads (307).

Rules: a member is asked only when somebody opens its page, because a client that dumps all its threads pauses for a moment.
Its report consists of a stranger's texts; they are bounded, and shown as text.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from orderlymq.admin.client import AdminClient
from orderlymq_console.cluster import ClusterReader
from orderlymq_console.models import MemberPage, MemberQueue, MemberTopic, Source
from orderlymq_console.pages.bodies import visible
from orderlymq_console.parameters import BadParameter, Parameters
from orderlymq_console.threads import busy_threads
from orderlymq_protocol.body.messagequeue import MessageQueue

STACKS_MAX: Final = 256 * 1024
QUEUES_MAX: Final = 500
TEXTS_MAX: Final = 100
TEXT_LENGTH_MAX: Final = 1_000
_TIMEOUT_S: Final = 12.0
_THREADS: Final = "PROP_THREADPOOL_CORE_SIZE"


async def member(reader: ClusterReader, parameters: Parameters) -> MemberPage:
    """Return the report of a member about itself.

    Raises:
        BadParameter: A parameter cannot be used.
    """
    group, client_id = parameters.name("group"), parameters.text("client", length_max=512)
    if not client_id:
        raise BadParameter("client must be the id of a member")
    admin = await _near(reader, group, client_id)
    reading = await reader.collector.read(
        ("member", group, client_id),
        lambda: admin.running_info(group, client_id, stacks=True),
        timeout_s=_TIMEOUT_S,
    )
    source = Source(
        name=client_id,
        age_seconds=round(reader.collector.age_s(reading), 1),
        unknown=reading.unknown,
    )
    if reading.value is None:
        return MemberPage(
            sources=(source,), group=group, client_id=client_id, unknown=reading.unknown
        )
    said = reading.value
    table = said.get("mqTable")
    table = table if isinstance(table, Mapping) else {}
    properties = dict(_texts(said.get("properties")))
    threads, stacks = properties.get(_THREADS, ""), _text(said.get("jstack"), STACKS_MAX)

    return MemberPage(
        sources=(source,),
        group=group,
        client_id=client_id,
        is_suspended=_suspended(table),
        properties=properties,
        queues=tuple(_queues(table)),
        topics=tuple(listener_topics(said.get("statusTable"))),
        threads=int(threads) if re.fullmatch(r"[1-9][0-9]{0,5}", threads) else None,
        busy=busy_threads(stacks, group, is_cut=len(stacks) == STACKS_MAX),
        stacks=visible(stacks),
    )


async def _near(reader: ClusterReader, group: str, client_id: str) -> AdminClient:
    """Return a client of a broker group that has a connection of the member; a client of all of them if none reports one."""
    found = await reader.of_each(("connections", group), lambda client: client.connections(group))
    addresses = (await reader.brokers()).value or {}
    for name, known in found.known():
        ids = {member.client_id for each in known for member in each.connection_set}
        if client_id in ids and name in addresses:
            return reader.admin.at(name, addresses[name])
    return reader.admin


def _suspended(table: Mapping[Any, Any]) -> bool | None:
    reported = [info.get("omqSuspended") for info in table.values() if isinstance(info, Mapping)]
    known = [each for each in reported if isinstance(each, bool)]

    return any(known) if known else None


def _queues(table: Mapping[Any, Any]) -> Iterator[MemberQueue]:
    rows = [(queue, info) for queue, info in table.items() if isinstance(queue, MessageQueue)]
    for queue, info in sorted(rows, key=lambda each: each[0])[:QUEUES_MAX]:
        if not isinstance(info, Mapping):
            continue
        locked = info.get("locked")
        yield MemberQueue(
            topic=queue.topic,
            broker_group=queue.broker_name,
            queue=queue.queue_id,
            cached=_number(info.get("cachedMsgCount")),
            committed=_number(info.get("commitOffset")),
            locked=locked if isinstance(locked, bool) else None,
            called_ms=_number(info.get("lastConsumeTimestamp")) or None,
            tries=_number(info.get("omqTries")),
            last_error=visible(_text(info.get("omqLastError"))),
        )


def listener_topics(value: object) -> Iterator[MemberTopic]:
    """Yield what a member reports of its listener, by topic (`statusTable`)."""
    rows = value.items() if isinstance(value, Mapping) else ()
    for topic, rates in sorted(rows, key=str)[:TEXTS_MAX]:
        if isinstance(topic, str) and isinstance(rates, Mapping):
            yield MemberTopic(
                topic=topic[:TEXT_LENGTH_MAX],
                call_ms=_rate(rates.get("consumeRT")),
                consumed_per_second=_rate(rates.get("consumeOKTPS")),
                failed_per_second=_rate(rates.get("consumeFailedTPS")),
                failed_hour=_rate(rates.get("consumeFailedMsgs")),
            )


def _texts(value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, text in sorted(value.items(), key=str)[:TEXTS_MAX]:
            if isinstance(name, str) and isinstance(text, str):
                yield name[:TEXT_LENGTH_MAX], visible(text[:TEXT_LENGTH_MAX])


def _text(value: object, length_max: int = TEXT_LENGTH_MAX) -> str:
    return value[:length_max] if isinstance(value, str) else ""


def _number(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 2**63 else None


def _rate(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < 2**53 else None
