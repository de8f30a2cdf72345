"""A consumer by key without answers to its requests: it repeats them as long as that makes sense."""

from orderlymq.consumer.core.events import Closing, Tick
from orderlymq.consumer.lanes.core import LaneRules
from orderlymq.consumer.lanes.events import CompleteFailed, Fetch, FetchEmpty, FetchFailed
from tests.client.consumer.lanes.test_core import (
    LEASE_MS,
    OTHER,
    Script,
    completed,
    completes,
    fetches,
    works,
)
from tests.client.consumer.lanes.world import PLACE


def test_a_refusal_of_a_repeated_fetch_is_no_answer_to_the_first_one() -> None:
    """Law: if a repeated fetch is refused, its number stays in use, because the first one may have handed out lanes."""
    script = Script()
    script.tell(10, FetchFailed(PLACE, 2, "reset"))
    assert script.tell(60, Tick()) == [Fetch(PLACE, 2, 4)]

    script.tell(61, FetchFailed(PLACE, 2, "write-only", refused=True))

    assert script.tell(5_061, Tick()) == [Fetch(PLACE, 2, 4)]
    found = script.give(5_062, ("a", (0,)))
    renewals = completes(found)
    assert works(script.verdict(5_070, renewals, "renewed")) == [(1, (0,))]
    assert script.fetch == 3


def test_what_is_done_is_said_to_the_next_leader_however_late() -> None:
    """Law: a completion is repeated to the next leader, however late, because its attempt may still be valid."""
    script = Script(LaneRules(workers=2, renew_ms=5_000))
    script.give(0, ("a", (0,)), ("b", (1,)))
    script.done(1, 1)
    now_ms, found = 3, script.done(1, 2) + script.tell(3, Tick())
    while now_ms < 2 * LEASE_MS:
        if completed(found):
            failed = CompleteFailed(PLACE, completes(found).reports, "no leader's address")
            script.tell(now_ms, failed)
        now_ms = script.core.next_wake_ms() or 2 * LEASE_MS
        found = script.tell(now_ms, Tick())

    said = completes(found)
    assert [(each.attempt, each.result) for each in said.reports] == [(1, "done"), (2, "done")]
    assert (script.core.figures().reported, script.core.figures().lost) == (2, 0)
    script.verdict(now_ms, said, "done", "stale")
    assert (script.core.is_idle, script.core.figures().lost) == (True, 1)


def test_closing_waits_no_longer_than_a_lease_for_a_broker_that_is_gone() -> None:
    """Law: closing waits for a missing broker no longer than a lease."""
    script = Script(LaneRules(workers=1, renew_ms=5_000))
    script.give(0, ("a", (0,)))
    said = completes(script.done(1, 1) + script.tell(3, Tick()))
    script.tell(4, CompleteFailed(PLACE, said.reports, "no leader's address"))

    script.tell(60_000, Closing())
    script.tell(64_999, Tick())
    assert not script.core.is_idle
    script.tell(65_000, Tick())

    assert (script.core.is_idle, script.core.figures().lost) == (True, 1)


def test_lanes_that_wait_for_their_renewal_keep_no_worker_from_the_lanes_of_others() -> None:
    """Law: lanes waiting for a renewal keep no worker from others; their broker is asked for nothing more until it
    answers.
    """
    script = Script(LaneRules(workers=4), [PLACE, OTHER])
    script.tell(10, FetchFailed(PLACE, 2, "reset"))
    script.tell(60, Tick())
    found = script.give(70, *((f"k{offset}", (offset,)) for offset in range(4)))
    assert (works(found), fetches(found)) == ([], [])

    assert fetches(script.tell(80, FetchEmpty(OTHER, 3))) == [Fetch(OTHER, 4, 2)]

    found = script.verdict(90, completes(found), *["renewed"] * 3, "stale")
    assert [offset for _, (offset,) in works(found)] == [0, 1, 2]
    assert script.core.figures().in_hand == 3
    assert fetches(found) == [Fetch(PLACE, 5, 1)]


def test_lanes_that_wait_for_their_renewal_go_back_when_the_consumer_closes() -> None:
    """Law: lanes waiting for a renewal are given back when the consumer closes."""
    script = Script(LaneRules(workers=4))
    script.tell(10, FetchFailed(PLACE, 2, "reset"))
    script.tell(60, Tick())
    renewals = completes(script.give(70, ("a", (0,))))

    script.tell(71, Closing())
    released = completes(script.verdict(75, renewals, "renewed"))

    assert [each.result for each in released.reports] == ["release"]
    script.verdict(76, released, "released")
    assert script.core.is_idle
