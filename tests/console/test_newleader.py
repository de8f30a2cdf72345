"""A new leader has looked for too short a time to know what stands still: pages say so, and keep what was known."""

from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Any

import pytest

from orderlymq.admin.client import AdminClient
from orderlymq_console.cluster import Answers, ClusterReader, Standstills, T
from orderlymq_console.collector import Collector, Reading
from orderlymq_console.models import Figure
from orderlymq_console.pages.blocked import blocked
from orderlymq_console.pages.overview import overview
from orderlymq_console.parameters import Parameters
from orderlymq_console.status import StatusTold
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.body.stats import OffsetWrapper

ROW = {"group": "shipping", "topic": "orders", "queue": 0, "offset": 7, "since": 1_000}


def told(
    *rows: Mapping[str, Any], leader: int = 1, known: bool = True, examined: int = 1
) -> StatusTold:
    watch = {"examinedAt": examined, "blocked": rows, "blockedKnown": known}
    watch |= {"lanes": (), "parkedKeys": ()}
    return StatusTold.model_validate({"leader": leader, "term": leader, "watch": watch})


class Readings(ClusterReader):
    """A reader of one broker group whose answers a test gives."""

    def __init__(self, status: StatusTold) -> None:
        super().__init__(AdminClient("127.0.0.1:1"), Collector())
        self.status = status
        self.answers: dict[str, Any] = {}

    async def of_each(
        self,
        about: Hashable,
        ask: Callable[[AdminClient], Awaitable[T]],
        *,
        every_s: float = 1.0,
        marks: Mapping[str, Hashable] | None = None,
    ) -> Answers[T]:
        kind = about[0] if isinstance(about, tuple) else about
        value = self.status if kind == "status" else self.answers.get(str(kind))
        reason = "" if value is not None else f"no answer about {kind}"
        return Answers({"broker-a": Reading(value, reason, self.collector.now_s())})


def test_what_stood_still_before_is_kept_until_the_new_leader_knows() -> None:
    """And has the time since when it really stands, at the same offset alone."""
    standstills = Standstills()
    standstills.told("a", told(ROW))

    unexamined = standstills.told("a", told(leader=2, known=False, examined=0))
    young = standstills.told("a", told(leader=2, known=False))
    again = standstills.told("a", told({**ROW, "since": 99_000}, leader=2))
    moved = standstills.told("a", told({**ROW, "offset": 8, "since": 200_000}, leader=2))

    assert [(row.offset, row.since) for row in unexamined.blocked] == [(7, 1_000)]
    assert [(row.offset, row.since) for row in young.blocked] == [(7, 1_000)]
    assert (young.blocked_unknown != "", again.blocked_unknown) == (True, "")
    assert [(row.offset, row.since) for row in again.blocked] == [(7, 1_000)]
    assert [(row.offset, row.since) for row in moved.blocked] == [(8, 200_000)]
    assert standstills.told("a", told(leader=2)).blocked == ()


def test_a_queue_that_the_new_leader_names_elsewhere_is_not_kept_beside_it() -> None:
    """One queue stands at one offset."""
    standstills = Standstills()
    standstills.told("a", told(ROW))

    (row,) = standstills.told("a", told({**ROW, "offset": 9}, leader=2, known=False)).blocked

    assert row.offset == 9


async def test_the_first_page_does_not_call_a_cluster_healthy_whose_leader_is_new() -> None:
    """Nothing blocked is unknown then, with the reason; what stood before is still counted."""
    young = await overview(Readings(told(known=False)), Parameters({}))
    old = await overview(Readings(told()), Parameters({}))
    kept = told(known=False).model_copy(update={"kept": told(ROW).blocked})
    after = await overview(Readings(kept), Parameters({}))

    assert (young.state, young.blocked.value) == ("unknown", None)
    assert young.sentence == (
        "What is blocked is unknown: its leader is new and has not looked for 30 s yet."
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
    assert "What is blocked in broker-a is unknown" in page.left_out
