"""A new leader does not know yet what stands still: pages say so, and keep what was known before."""

import pytest

from orderlymq_console.cluster import Standstills
from orderlymq_console.models import Figure
from orderlymq_console.pages.blocked import blocked
from orderlymq_console.pages.overview import overview
from orderlymq_console.parameters import Parameters
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.body.stats import OffsetWrapper
from tests.console.readings import ROW, Readings, told


def test_what_stood_still_before_is_kept_until_the_new_leader_knows() -> None:
    """Law: a standstill from before is kept with its old time until the new leader knows, if the offset is still the same."""
    standstills = Standstills()
    standstills.reported("a", told(ROW))

    unexamined = standstills.reported("a", told(leader=2, known=False, examined=0))
    young = standstills.reported("a", told(leader=2, known=False))
    again = standstills.reported("a", told({**ROW, "since": 99_000}, leader=2))
    moved = standstills.reported("a", told({**ROW, "offset": 8, "since": 200_000}, leader=2))

    assert [(row.offset, row.since) for row in unexamined.blocked] == [(7, 1_000)]
    assert [(row.offset, row.since) for row in young.blocked] == [(7, 1_000)]
    assert (young.blocked_unknown != "", again.blocked_unknown) == (True, "")
    assert [(row.offset, row.since) for row in again.blocked] == [(7, 1_000)]
    assert [(row.offset, row.since) for row in moved.blocked] == [(8, 200_000)]
    assert standstills.reported("a", told(leader=2)).blocked == ()


def test_a_queue_that_the_new_leader_names_elsewhere_is_not_kept_beside_it() -> None:
    """Law: if the new leader names the queue at another offset, only that one is shown."""
    standstills = Standstills()
    standstills.reported("a", told(ROW))

    (row,) = standstills.reported("a", told({**ROW, "offset": 9}, leader=2, known=False)).blocked

    assert row.offset == 9


async def test_the_first_page_does_not_call_a_cluster_healthy_whose_leader_is_new() -> None:
    """Law: with a new leader the first page is not healthy: the count is unknown with its reason,
    earlier standstills still count.
    """
    young = await overview(Readings(told(known=False)), Parameters({}))
    old = await overview(Readings(told()), Parameters({}))
    kept = told(known=False).model_copy(update={"kept": told(ROW).blocked})
    after = await overview(Readings(kept), Parameters({}))

    assert (young.state, young.blocked.value) == ("unknown", None)
    assert young.sentence == (
        "What is blocked is unknown: its leader is new and has watched for less than 30 s."
    )
    assert (old.state, old.blocked) == ("healthy", Figure(value=0))
    assert (after.state, after.blocked) == ("troubled", Figure(value=1, at_least=True))
    assert after.sentence == "1 queue is blocked, and what else is blocked is unknown."


@pytest.mark.parametrize(("committed", "rows"), [(7, 1), (8, 0)])
async def test_the_page_keeps_a_queue_that_nobody_committed_behind(
    committed: int, rows: int
) -> None:
    """Law: a standing queue from before stays on the page until the group commits past it;
    the page says that more is unknown.
    """
    reader = Readings(told(known=False).model_copy(update={"kept": told(ROW).blocked}))
    queue = MessageQueue("orders", "broker-a", 0)
    reader.answers["progress"] = {queue: OffsetWrapper(10, committed, 0)}

    page = await blocked(reader, Parameters({}))

    assert len(page.rows) == rows
    what = "What else" if rows else "What"
    assert page.left_out.startswith(f"{what} is blocked in broker-a is unknown")
