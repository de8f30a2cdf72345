"""The ordered consumer core, one test per rule of ordered consumption."""

import pytest

from orderlymq.consumer.core.events import (
    AskLocks,
    Assigned,
    Closing,
    DeliveryDropped,
    FindStart,
    OffsetIllegal,
    OffsetsReset,
    OrderedResult,
    Paused,
    Persist,
    Pull,
    Pulled,
    PullFailed,
    Release,
    Released,
    Resumed,
    SetOffset,
    StartFailed,
    StopPull,
)
from orderlymq.consumer.core.flowcontrol import FlowLimits
from orderlymq.consumer.core.queuestate import OrderedRules
from tests.client.consumer.core.orderedscript import Script, without_reports
from tests.client.messages import OTHER, QUEUE, message, messages

# -- hand-out ------------------------------------------------------------------------------------------


def test_one_call_at_a_time_and_in_the_order_of_the_offsets() -> None:
    """Law: a queue has one listener call at a time, in the order of offsets,
    however many pulls arrive meanwhile (ODL-02, ODL-04, GRP-08).
    """
    script = Script()
    script.running_at(0)
    script.pulled(0, 1)
    script.pulled(2, 3)
    script.pulled(4)

    for _ in range(5):
        script.done()

    assert script.delivered == [[0], [1], [2], [3], [4]]
    assert script.committed == [1, 2, 3, 4, 5]


def test_batches_hold_at_most_the_configured_number_in_order() -> None:
    """Law: a batch has at most batch_max messages, in ascending order (ODL-08)."""
    script = Script(OrderedRules(batch_max=5))
    script.running_at(0)
    script.pulled(*range(7))

    script.done()

    assert script.delivered == [[0, 1, 2, 3, 4], [5, 6]]


def test_two_queues_are_consumed_side_by_side() -> None:
    """Law: two queues are consumed in parallel, with one call each (ODL-23)."""
    script = Script()
    script.assign(QUEUE, OTHER)
    script.grant(QUEUE, OTHER)
    script.found(0, QUEUE)
    script.found(0, OTHER)

    script.pulled(0, queue=QUEUE)
    script.pulled(0, queue=OTHER)

    assert set(script.running) == {QUEUE, OTHER}


def test_after_a_minute_of_continuous_work_the_queue_rests_10_ms() -> None:
    """Law: after a minute of continuous work a queue rests for 10 ms, so that others get a worker (ODL-07)."""
    script = Script(OrderedRules(lease_ms=1_000_000, renew_ms=400_000))
    script.running_at(0)
    script.pulled(0, 1, 2)
    script.now = 60_001
    script.done()
    assert script.delivered == [[0]]

    early = script.tick(9)
    script.tick(1)

    assert without_reports(early) == []
    assert script.delivered == [[0], [1]]


def test_a_delivery_that_waited_too_long_for_a_worker_is_not_started() -> None:
    """Law: right before the listener is called, lock and assignment are checked again,
    because the delivery may have waited long (ODL-09).
    """
    script = Script(has_worker=False)
    script.running_at(0)
    script.pulled(0)
    deliver = script.running[QUEUE]

    assert not script.core.maybe_start(deliver, 15_000)
    assert script.core.maybe_start(deliver, 14_999)
    script.assign()
    assert not script.core.maybe_start(deliver, script.now)


def test_a_delivery_that_was_not_started_comes_again() -> None:
    """Law: a delivery that was not started is delivered again."""
    script = Script(has_worker=False)
    script.running_at(0)
    script.pulled(0, 1)
    deliver = script.running.pop(QUEUE)

    script.play(DeliveryDropped(QUEUE, deliver.generation, deliver.delivery))

    assert script.delivered == [[0], [0]]


def test_a_paused_consumer_starts_nothing_and_keeps_its_locks() -> None:
    """Law: a suspended consumer delivers nothing and keeps its locks."""
    script = Script()
    script.running_at(0)
    script.play(Paused())
    script.pulled(0)
    assert script.delivered == []

    asked = script.tick(5_000)
    script.play(Resumed())

    assert AskLocks((QUEUE,)) in asked
    assert script.delivered == [[0]]


# -- pulls ---------------------------------------------------------------------------------------------


def test_there_is_one_pull_in_flight_per_queue_and_it_carries_the_commit() -> None:
    """Law: a queue has one pull at a time, which also reports the committed offset (RBL-10, ODL-19, OFS-06)."""
    script = Script()
    script.running_at(0)

    said = script.pulled(0)
    script.done()
    next_said = script.pulled(1)

    assert [each for each in said if isinstance(each, Pull)] == [
        Pull(QUEUE, script.generation(), 1, None, 1)
    ]
    assert [each for each in next_said if isinstance(each, Pull)] == [
        Pull(QUEUE, script.generation(), 2, 1, 1)
    ]


def test_pulling_stops_at_the_limit_and_goes_on_when_messages_are_done() -> None:
    """Law: pulling stops at the limit of messages and goes on when some are done (FLW-03, FLW-04)."""
    script = Script(OrderedRules(limits=FlowLimits(queue_count=3)))
    script.running_at(0)

    script.pulled(0, 1, 2)
    stopped = script.pulled(3, 4)
    resumed = [*script.done(), *script.done()]

    assert not [each for each in stopped if isinstance(each, Pull)]
    assert [each for each in resumed if isinstance(each, Pull)] == [
        Pull(QUEUE, script.generation(), 5, 2, 1)
    ]
    assert script.reports("so do flow control")


def test_a_queue_whose_messages_never_match_still_moves_its_offset() -> None:
    """Law: if no message matches the filter, the committed offset still moves (OFS-08)."""
    script = Script()
    script.running_at(0)

    script.pulled(next_offset=500)

    assert script.committed == [500]


def test_a_failed_pull_is_repeated_soon_and_then_less_often() -> None:
    """Law: a failed pull is repeated after 20 ms, 40 ms, ... at most one second, each with a log line (PUL-12)."""
    script = Script(OrderedRules(lease_ms=1_000_000, renew_ms=400_000))
    script.running_at(0)
    waits = []
    for _ in range(8):
        began = script.now
        script.play(PullFailed(QUEUE, script.generation(), "reset"))
        while not any(isinstance(each, Pull) for each in script.tick(1)):
            pass
        waits.append(script.now - began)

    assert waits == [20, 40, 80, 160, 320, 640, 1_000, 1_000]
    assert len(script.reports("execute the pull request exception")) == 8


def test_an_illegal_offset_is_fixed_persisted_and_pulled_from() -> None:
    """Law: after an illegal offset the broker's correction is persisted and pulled from immediately (OFS-09, LOG-08)."""
    script = Script()
    script.running_at(100)

    said = script.play(OffsetIllegal(QUEUE, script.generation(), 7))

    assert without_reports(said) == [
        StopPull(QUEUE),
        SetOffset(QUEUE, 7, 1, increase_only=False),
        Persist(QUEUE, 1),
        Pull(QUEUE, script.generation(), 7, 7, 1),
    ]
    assert script.reports("the pull request offset illegal")
    assert script.reports("fix the pull request offset")


def test_a_broker_that_goes_backwards_is_reported_as_a_bug() -> None:
    """Law: an answer with lower offsets than asked for is logged as a bug (PUL-11, LOG-07)."""
    script = Script()
    script.running_at(10)

    script.pulled(3, next_offset=4)

    assert script.reports("[BUG] pull message result maybe data wrong")


def test_an_offset_that_cannot_be_asked_is_asked_again_and_never_guessed() -> None:
    """Law: if the offset cannot be read, it is read again and never guessed (RBL-05)."""
    script = Script()
    script.assign(QUEUE)
    script.grant()

    script.play(StartFailed(QUEUE, script.generation(), "no leader"))
    said = script.tick(500)

    assert said == [FindStart(QUEUE, script.generation())]
    assert script.reports("add new mq failed")


def test_a_reset_goes_on_at_the_new_offset_even_backwards() -> None:
    """Law: after a reset, also backwards, the queue goes on at the new offset,
    and a running call's result does not count (ODL-22).
    """
    script = Script()
    script.running_at(50)
    script.pulled(50, 51)

    script.play(OffsetsReset({QUEUE: 5}))
    script.done()

    assert script.committed == [5]
    assert script.core.queues[QUEUE].fetcher.next_offset == 5


def test_a_reset_waits_for_no_worker_that_a_former_message_waits_for() -> None:
    """Law: after a reset, the queue does not wait for the worker that a former message waits for;
    that message never begins.
    """
    script = Script(has_worker=False)
    script.running_at(50)
    script.pulled(50)
    former = script.running.pop(QUEUE)

    script.play(OffsetsReset({QUEUE: 5}))
    script.pulled(5)

    assert script.delivered == [[50], [5]]
    assert not script.core.maybe_start(former, script.now)
    assert script.core.maybe_start(script.running[QUEUE], script.now)


# -- leaving -------------------------------------------------------------------------------------------


def test_a_queue_assigned_away_is_released_after_its_listener_is_done_and_committed() -> None:
    """Law: a queue assigned away is released after its running listener has ended and is committed (ODL-21)."""
    script = Script()
    script.running_at(0)
    script.pulled(0, 1)

    leaving = script.assign()
    said = script.done()

    assert without_reports(leaving) == [StopPull(QUEUE)]
    assert said == [
        SetOffset(QUEUE, 1, 1, increase_only=False),
        Release(QUEUE, 1, commit=True, unlock=True),
    ]
    assert script.delivered == [[0]]


@pytest.mark.parametrize("why", [Assigned(frozenset()), Closing()])
def test_a_queue_whose_message_no_listener_has_is_released_at_once(why: Assigned | Closing) -> None:
    """Law: a queue assigned away without a running listener is released immediately; it once kept its lock without end."""
    script = Script(has_worker=False)
    script.running_at(0)
    script.pulled(0, 1)
    script.core.maybe_start(script.running[QUEUE], script.now)
    script.done()
    waiting = script.running[QUEUE]

    said = script.play(why)

    assert without_reports(said) == [StopPull(QUEUE), Release(QUEUE, 1, commit=True, unlock=True)]
    assert not script.core.maybe_start(waiting, script.now)
    assert without_reports(script.done(None, raised="lost")) == [], "nothing waits for it any more"


def test_a_delivery_that_was_taken_back_never_begins_beside_the_next() -> None:
    """Law: if a queue comes back while a former delivery waits for a worker, that delivery never begins,
    so that there is one call per queue.
    """
    script = Script(has_worker=False)
    script.running_at(0)
    script.pulled(0, 1)
    former = script.running.pop(QUEUE)
    script.tick(5_000)  # The lock is requested.
    assert without_reports(script.assign()) == [StopPull(QUEUE)]

    script.assign(QUEUE)
    later = script.running[QUEUE]

    assert script.delivered == [[0], [0]]
    assert not script.core.maybe_start(former, script.now)
    script.play(DeliveryDropped(QUEUE, former.generation, former.delivery))
    assert script.core.maybe_start(later, script.now)
    script.done()
    assert script.delivered == [[0], [0], [1]]


def test_a_queue_assigned_away_whose_lease_ended_commits_and_unlocks_nothing() -> None:
    """Law: if the lease has ended, a queue assigned away commits and unlocks nothing (RBL-08)."""
    script = Script()
    script.running_at(0)
    script.pulled(0)
    script.assign()
    script.now = 15_001

    said = script.done()

    assert without_reports(said) == [Release(QUEUE, 1, commit=False, unlock=False)]


def test_the_lock_of_a_leaving_queue_is_renewed_while_its_listener_runs() -> None:
    """Law: the lock of a queue assigned away is renewed while its listener runs."""
    script = Script()
    script.running_at(0)
    script.pulled(0)
    script.assign()

    asked = script.tick(5_000)

    assert asked == [AskLocks((QUEUE,))]


def test_a_queue_that_comes_back_is_locked_only_after_its_release_is_done() -> None:
    """Law: a queue that comes back is locked only after its release is done; else that unlock could free the new lock."""
    script = Script()
    script.running_at(0)
    script.assign()

    again = script.assign(QUEUE)
    released = script.play(Released(QUEUE))

    assert without_reports(again) == []
    assert released == [AskLocks((QUEUE,))]


def test_a_queue_that_comes_back_before_it_was_released_just_goes_on() -> None:
    """Law: a queue that comes back before it was released goes on, because nobody else had it."""
    script = Script()
    script.running_at(0)
    script.pulled(0, 1)
    script.assign()

    script.assign(QUEUE)
    script.done()

    assert script.delivered == [[0], [1]]


@pytest.mark.parametrize(
    ("result", "next_one"), [(OrderedResult.SUCCESS, 1), (OrderedResult.SUSPEND, 0)]
)
def test_a_queue_that_comes_back_without_its_lease_forgets_no_result(
    result: OrderedResult, next_one: int
) -> None:
    """Law: a message that failed while its queue was leaving without a lease is delivered again before later ones."""
    script = Script()
    script.running_at(0)
    script.pulled(0, 1)
    script.assign()
    script.tick(14_999)  # The renewal gets no answer.
    script.now = 15_001

    script.done(result)
    script.assign(QUEUE)
    script.fail_locks()
    script.tick(100)
    script.grant()
    script.tick(1_000)

    assert script.delivered == [[0], [next_one]]


def test_closing_finishes_what_runs_and_gives_everything_back() -> None:
    """Law: closing finishes running calls and gives all locks back; then the consumer is idle (LCK-23, PSH-21)."""
    script = Script()
    script.assign(QUEUE, OTHER)
    script.grant(QUEUE, OTHER)
    script.found(0, QUEUE)
    script.pulled(0)

    at_once = script.play(Closing())
    later = script.done()
    idle_before = script.core.is_idle
    script.play(Released(QUEUE))
    script.play(Released(OTHER))

    assert Release(OTHER, 1, commit=False, unlock=True) in at_once
    assert Release(QUEUE, 1, commit=True, unlock=True) in later
    assert (idle_before, script.core.is_idle) == (False, True)
    assert script.assign(QUEUE) == []


def test_a_stale_event_changes_nothing() -> None:
    """Law: events of a former assignment of the queue are ignored (RBL-08)."""
    script = Script()
    script.running_at(0)
    old = script.generation()
    script.assign()
    script.play(Released(QUEUE))
    script.running_at(9)

    said = script.play(_pulled_before(old))

    assert without_reports(said) == []
    assert script.core.queues[QUEUE].fetcher.next_offset == 9


def test_messages_of_one_queue_keep_their_tries_when_they_come_again() -> None:
    """Law: the number of tries rises by one with each failure (RTY-06)."""
    script = Script()
    script.running_at(0)
    script.pulled_messages([message(0, tries=2)])

    script.done(OrderedResult.SUSPEND)
    script.tick(1_000)

    assert script.running[QUEUE].messages[0].reconsume_times == 3


def _pulled_before(generation: int) -> Pulled:
    return Pulled(QUEUE, generation, messages(0, 1), 2)
