"""Since when a topic's queue list is valid, where the old queues ended, and what is kept of earlier growths."""

import msgspec
import pytest
from msgspec.structs import replace

from orderlymq_broker.state.records import Record
from orderlymq_broker.state.tables import TableWrites, read_rows
from orderlymq_broker.state.topics.expansionrecords import (
    ExpansionAborted,
    ExpansionFenced,
    ExpansionPhase,
    ExpansionPropagated,
    ExpansionSwitched,
)
from orderlymq_broker.state.topics.expansiontable import EARLIER_MAX, EarlierGrowth, Expansion
from orderlymq_broker.store.kv import Batch
from orderlymq_broker.store.layout import Table
from tests.broker.state.entries import WALL_MS, Replica
from tests.broker.state.topics.test_expansionphases import (
    ABORT,
    FENCE,
    FENCED,
    OPEN,
    OPENED,
    PROPAGATE,
    SWITCH,
    TOPIC,
    expansion,
)


def since(replica: Replica) -> int:
    """Return the time since which the present list is valid."""
    found = expansion(replica)
    assert found is not None
    return found.list_since_ms


@pytest.mark.parametrize(
    ("keeps_ends", "expected"),
    [(True, [0, 0, 0, 4, 4, 4, 4, 4, 4]), (False, [0, 0, 0, 4, 4, 6, 6, 6, 6])],
)
def test_an_expansion_that_is_given_up_does_not_move_the_time_of_growth(
    replica: Replica, expected: list[int], *, keeps_ends: bool
) -> None:
    """Law: only a switch changes the time of growth, not a fence or an abort;
    records of older releases change it when they open.
    """
    fence, abort = ExpansionFenced("orders", 2, 16, 9, 60_000), ExpansionAborted("orders", 2, "")
    steps: tuple[Record, ...] = (
        FENCE,
        ABORT,
        replace(FENCE, attempt=2),
        replace(SWITCH, attempt=2, keeps_ends=keeps_ends),
        PROPAGATE,
        OPENED,
    )
    later = (replace(fence, attempt=3), replace(abort, attempt=3), replace(fence, attempt=4))
    replica.take(TOPIC)

    times = []
    for number, record in enumerate((*steps, *later), start=1):
        replica.take(record, wall_ms=WALL_MS + number)
        times.append(max(0, since(replica) - WALL_MS))

    assert times == expected


def test_where_the_old_queues_ended_is_kept_until_the_next_growth(replica: Replica) -> None:
    """Law: the ends of the old queues (barriers) are kept until the next growth;
    messages behind them were sent by the present list.
    """
    replica.take(TOPIC, FENCE)
    # The copy of a transaction that began before the fence and is committed during it.
    replica.append(replica.topic_id(), 1)
    replica.take(SWITCH)
    replica.append(replica.topic_id(), 1)
    replica.append(replica.topic_id(), 3)
    kept = [grown_barriers(replica)]
    for record in (
        PROPAGATE,
        OPENED,
        ExpansionFenced("orders", 2, 16, 9, 60_000),
        ExpansionAborted("orders", 2, ""),
        ExpansionFenced("orders", 3, 16, 9, 60_000),
    ):
        replica.take(record)
        kept.append(grown_barriers(replica))
    replica.take(ExpansionSwitched("orders", 3, 16, 9, keeps_ends=True))

    assert kept == [((0, 0), (1, 1))] * 6
    assert grown_barriers(replica) == ((0, 0), (1, 2), (2, 0), (3, 1))
    found = expansion(replica)
    assert found is not None
    assert found.earlier == (EarlierGrowth(8, WALL_MS, ((0, 0), (1, 1))),)


def test_earlier_growths_are_kept_while_the_list_grows_on(replica: Replica) -> None:
    """Law: earlier growths are kept, up to a limit, for readers that are several growths behind.

    For one by an older release only the time is known.
    """
    replica.take(TOPIC, FENCE, replace(SWITCH, keeps_ends=False), PROPAGATE, OPENED)
    kept = []
    for total in range(9, 9 + EARLIER_MAX + 1):
        for record in (
            ExpansionFenced("orders", 2 * total, total, 4, 60_000),
            ExpansionAborted("orders", 2 * total, ""),
            ExpansionFenced("orders", 2 * total + 1, total, 4, 60_000),
            ExpansionSwitched("orders", 2 * total + 1, total, 4, keeps_ends=True),
            ExpansionPropagated("orders", total, 40_000),
            OPENED,
        ):
            replica.take(record)
            found = expansion(replica)
            assert found is not None
            kept.append(found.earlier)

    ends = tuple((number, 0) for number in range(4))
    growths = [
        EarlierGrowth(8, WALL_MS, None),
        *(EarlierGrowth(total, WALL_MS, ends) for total in range(9, 9 + EARLIER_MAX)),
    ]
    known = [tuple(growths[max(0, n - EARLIER_MAX) : n]) for n in range(EARLIER_MAX + 2)]
    assert kept == [
        each for n in range(EARLIER_MAX + 1) for each in (known[n], known[n + 1]) for _ in range(3)
    ]


@pytest.mark.parametrize(
    ("keeps_barriers", "grown_ms", "kept"),
    [(False, WALL_MS + 7, None), (True, WALL_MS, ((0, 0), (1, 0)))],
)
def test_a_record_of_an_earlier_version_keeps_the_barriers_of_the_fence_or_none(
    replica: Replica,
    grown_ms: int,
    kept: tuple[tuple[int, int], ...] | None,
    *,
    keeps_barriers: bool,
) -> None:
    """Law: a record of an older release keeps the barriers of the fence, or none,
    so that a replica that applies an old log has the same rows.
    """
    replica.take(TOPIC, FENCE)
    replica.append(replica.topic_id(), 1)
    replica.take(replace(SWITCH, keeps_ends=False, keeps_barriers=keeps_barriers), PROPAGATE)
    replica.take(OPENED, wall_ms=WALL_MS + 7)

    assert expansion(replica) == Expansion(
        *("orders", OPEN, 8),
        attempt=1,
        since_ms=WALL_MS + 7,
        grown_ms=grown_ms,
        grown_barriers=kept,
    )


def grown_barriers(replica: Replica) -> tuple[tuple[int, int], ...] | None:
    """Return where the queues of the list before ended."""
    found = expansion(replica)
    assert found is not None
    return found.grown_barriers


@pytest.mark.parametrize("phase", [OPEN, FENCED])
def test_a_row_of_an_earlier_version_grew_before_its_phase_began(
    phase: ExpansionPhase,
) -> None:
    """Law: a stored row of an older release, which lacks three fields, can be read;
    its growth counts from its phase's begin.
    """
    replica = Replica()
    replica.take(TOPIC, FENCE, SWITCH, PROPAGATE)
    replica.take(OPENED, wall_ms=WALL_MS + 1)
    fence, abort = ExpansionFenced("orders", 2, 16, 9, 60_000), ExpansionAborted("orders", 2, "")
    if phase is FENCED:
        replica.take(fence, wall_ms=WALL_MS + 2)
    (row,) = read_rows(replica.store, Table.EXPANSIONS)
    writes, batch = TableWrites(), Batch()
    writes.put(Table.EXPANSIONS, "orders", value=msgspec.msgpack.decode(row)[:-3])
    writes.flush(batch)
    replica.store.write(batch, sync=True)

    old = replica.restarted()
    known = since(old)
    old.take(fence, abort, wall_ms=WALL_MS + 9)

    assert (known, since(old)) == (WALL_MS + 1 + (phase is FENCED), known)
