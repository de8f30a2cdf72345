"""
Undelivered messages: messages that wait for their time, and half messages that wait for a decision.

Rule: the counts come from the leaders' statuses. Only the number of online producers is asked for, for at most `ASKED_MAX` groups.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from orderlymq_console.cluster import NAME_SERVERS, Answers, ClusterReader
from orderlymq_console.messagemodels import TransactionRow, WaitingPage, WaitingRow
from orderlymq_console.models import Figure, bounded, figure
from orderlymq_console.pages import findings
from orderlymq_console.parameters import Parameters
from orderlymq_console.status import TAKING_OVER, StatusReport

ASKED_MAX: Final = 20


async def waiting(reader: ClusterReader, _: Parameters) -> WaitingPage:
    """Return the messages that wait for a time or for a decision."""
    statuses = await reader.statuses()
    names = sorted(
        {
            group
            for _, status in statuses.known()
            if status.transactions is not None
            for group, each in status.transactions.groups.items()
            if each.open or each.given_up
        }
    )
    producers = await asyncio.gather(*(_producers(reader, name) for name in names[:ASKED_MAX]))

    return WaitingPage(
        sources=reader.sources(statuses),
        rows=tuple(
            _row(name, statuses) for name in sorted(statuses.readings) if name != NAME_SERVERS
        ),
        groups=tuple(
            _transactions(name, statuses, count)
            for name, count in zip(names[:ASKED_MAX], producers, strict=True)
        ),
        groups_left_out=Figure(
            value=max(0, len(names) - ASKED_MAX),
            at_least=any(
                status.transactions is not None and status.transactions.cut
                for _, status in statuses.known()
            ),
        ),
        troubles=tuple(
            trouble
            for name, status in statuses.known()
            for trouble in findings.of_transactions(name, status)
        ),
    )


def _row(name: str, statuses: Answers[StatusReport]) -> WaitingRow:
    reading = statuses.readings[name]
    status = reading.value
    if status is None:
        nothing = Figure(unknown=reading.unknown)
        return WaitingRow(
            broker_group=name,
            timers=nothing,
            levels=nothing,
            open=nothing,
            oldest_ms=None,
            given_up=nothing,
        )
    delays, transactions = status.delayed, status.transactions
    return WaitingRow(
        broker_group=name,
        timers=figure(None if delays is None else delays.timers, TAKING_OVER),
        levels=figure(None if delays is None else delays.levels, TAKING_OVER),
        open=figure(None if transactions is None else transactions.open, TAKING_OVER),
        oldest_ms=None if transactions is None else transactions.oldest_millis,
        given_up=figure(None if transactions is None else transactions.given_up, TAKING_OVER),
    )


def _transactions(group: str, statuses: Answers[StatusReport], producers: Figure) -> TransactionRow:
    def sum_of(count: Callable[[StatusReport], int | None]) -> Figure:
        return statuses.total(count, lambda status: _missing(status, group))

    return TransactionRow(
        group=group,
        open=sum_of(lambda status: _of(status, group, "open")),
        given_up=sum_of(lambda status: _of(status, group, "given_up")),
        producers=producers,
    )


def _of(status: StatusReport, group: str, kind: str) -> int | None:
    if status.transactions is None:
        return None
    found = status.transactions.groups.get(group)
    return 0 if found is None else int(getattr(found, kind))


def _missing(status: StatusReport, group: str) -> str:
    """Say why a broker group may have more transactions of a producer group than it names."""
    if status.transactions is None or group in status.transactions.groups:
        return status.unreported
    return status.transactions.cut


async def _producers(reader: ClusterReader, group: str) -> Figure:
    """Return how many producers of a producer group are online."""
    found = await reader.of_each(("producers", group), lambda client: client.producers(group))
    ids = {
        member.client_id
        for _, connections in found.known()
        for connection in connections
        for member in connection.connection_set
    }
    return bounded(len(ids), found.unknown)
