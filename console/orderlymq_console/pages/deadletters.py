"""Dead letters: which consumer groups have some, how many, and how many of their keys are parked behind one."""

import asyncio

from orderlymq_console.cluster import Answers, ClusterReader
from orderlymq_console.messagemodels import DeadLetterRow, DeadLettersPage
from orderlymq_console.models import Figure, bounded
from orderlymq_console.pages.pagination import cut, search
from orderlymq_console.pages.topics import kept_messages, topic_ends
from orderlymq_console.parameters import Parameters
from orderlymq_console.status import StatusReport
from orderlymq_protocol.names import DLQ_PREFIX, is_dlq_topic


async def dead_letters(reader: ClusterReader, parameters: Parameters) -> DeadLettersPage:
    """Return a page of the consumer groups that have dead letters or parked keys."""
    catalogue, configs, statuses = await asyncio.gather(
        reader.topics(), reader.groups(), reader.statuses()
    )
    policies = {name: config for _, table in configs.known() for name, config in table.items()}
    found = {
        topic.removeprefix(DLQ_PREFIX)
        for _, table in catalogue.known()
        for topic in table
        if is_dlq_topic(topic)
    }
    found |= {
        row.group
        for _, status in statuses.known()
        if status.examined is not None
        for row in status.examined.parked_keys
    }
    query = parameters.text("q", length_max=255)
    page = cut(search(sorted(found), query, str), parameters)
    ends = await asyncio.gather(*(topic_ends(reader, DLQ_PREFIX + group) for group in page.items))

    return DeadLettersPage(
        sources=reader.sources(catalogue, statuses),
        query=query,
        number=page.number,
        pages=page.pages,
        total=bounded(page.total, catalogue.unknown)
        if any(True for _ in catalogue.known())
        else Figure(unknown=catalogue.unknown),
        rows=tuple(
            DeadLetterRow(
                group=group,
                topic=DLQ_PREFIX + group,
                letters=kept_messages(each),
                parked_keys=_parked(statuses, group),
                on_dead_letter=policies[group].on_dead_letter if group in policies else "unknown",
            )
            for group, each in zip(page.items, ends, strict=True)
        ),
    )


def _parked(statuses: Answers[StatusReport], group: str) -> Figure:
    def count(status: StatusReport) -> int | None:
        if status.examined is None:
            return None
        return sum(row.keys for row in status.examined.parked_keys if row.group == group)

    return statuses.total(count, lambda status: status.unexamined)
