"""A new leader has looked for too short a time to know what stands still: pages say so, and keep what was known."""

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
    """And has the time since when it really stands, at the same offset alone."""
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
    """One queue stands at one offset."""
    standstills = Standstills()
    standstills.reported("a", told(ROW))

    (row,) = standstills.reported("a", told({**ROW, "offset": 9}, leader=2, known=False)).blocked

    assert row.offset == 9


async def test_the_first_page_does_not_call_a_cluster_healthy_whose_leader_is_new() -> None:
    """Nothing blocked is unknown then, with the reason; what stood before is still counted."""
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
    """And says that more is unknown."""
    reader = Readings(told(known=False).model_copy(update={"kept": told(ROW).blocked}))
    queue = MessageQueue("orders", "broker-a", 0)
    reader.answers["progress"] = {queue: OffsetWrapper(10, committed, 0)}

    page = await blocked(reader, Parameters({}))

    assert len(page.rows) == rows
    what = "What else" if rows else "What"
    assert page.left_out.startswith(f"{what} is blocked in broker-a is unknown")
