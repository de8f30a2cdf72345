"""An administrator's reset of a queue that the ordered core does not consume at that moment."""

import pytest

from orderlymq.consumer.core.events import (
    FindStart,
    OffsetsReset,
    Persist,
    Pull,
    Release,
    SetOffset,
    StartFound,
)
from orderlymq.consumer.core.queuestate import Phase
from tests.client.consumer.core.orderedscript import Script, without_reports
from tests.client.messages import QUEUE

COMMIT = [SetOffset(QUEUE, 5, 1, increase_only=False), Persist(QUEUE, 1)]


def test_a_leaving_queue_commits_the_reset_and_not_what_its_listener_ends_with() -> None:
    """Law: a leaving queue commits the reset and not the result of its running listener, which once undid the reset."""
    script = Script()
    script.running_at(50)
    script.pulled(50, 51)
    script.assign()

    reset = script.play(OffsetsReset({QUEUE: 5}))
    said = script.done()

    assert reset == COMMIT
    assert without_reports(said) == [Release(QUEUE, 1, commit=True, unlock=True)]
    assert script.committed == [5]


def test_a_queue_that_leaves_and_comes_back_goes_on_at_the_reset() -> None:
    """Law: a queue that leaves and comes back goes on at the reset offset."""
    script = Script()
    script.running_at(50)
    script.pulled(50)
    script.assign()
    script.play(OffsetsReset({QUEUE: 5}))

    said = script.assign(QUEUE)

    assert without_reports(said) == [Pull(QUEUE, script.generation(), 5, 5, 1)]


def test_an_offset_that_was_asked_before_the_reset_counts_no_more() -> None:
    """Law: an offset read before the reset does not count, whichever answer comes first."""
    script = Script()
    script.assign(QUEUE)
    script.grant()
    asked = script.generation()

    reset = script.play(OffsetsReset({QUEUE: 5}))
    late = script.play(StartFound(QUEUE, asked, 500))

    assert reset == [*COMMIT, Pull(QUEUE, script.generation(), 5, 5, 1)]
    assert late == []


def test_a_queue_whose_lease_is_over_asks_for_its_offset_again_after_a_reset() -> None:
    """Law: after a reset, a queue without a lease reads its offset again; cache and late results do not count."""
    script = Script()
    script.running_at(50)
    script.pulled(50, 51)
    script.tick(15_000)
    script.done()

    reset = script.play(OffsetsReset({QUEUE: 5}))
    phase = script.phase()
    said = script.grant()

    assert (without_reports(reset), phase) == (COMMIT, Phase.LOCKING)
    assert without_reports(said) == [FindStart(QUEUE, script.generation())]
    assert script.committed == [5]


@pytest.mark.parametrize("epoch", [None, 1])
def test_a_queue_of_which_nothing_is_known_commits_no_reset(epoch: int | None) -> None:
    """Law: a queue that this member has not locked commits no reset; its holder does."""
    script = Script()
    script.assign(QUEUE)

    assert script.play(OffsetsReset({QUEUE: 5})) == []

    assert without_reports(script.grant(epoch=epoch)) == [FindStart(QUEUE, script.generation())]
