"""The ordered consumer core, row by row of what ordered consumption means."""

from orderlymq.consumer.core.events import (
    AskLocks,
    Closing,
    DeliveryDropped,
    FindStart,
    LocksAnswered,
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
    StartFound,
    StopPull,
)
from orderlymq.consumer.core.flowcontrol import FlowLimits
from orderlymq.consumer.core.queuestate import OrderedRules, Phase
from orderlymq_protocol.body.messagequeue import MessageQueue
from tests.client.consumer.core.orderedscript import Script, without_reports
from tests.client.messages import OTHER, QUEUE, message, messages

# -- locks ---------------------------------------------------------------------------------------------


def test_a_queue_is_locked_then_its_offset_is_asked_and_only_then_it_is_pulled() -> None:
    """LCK-01, RBL-06: lock, committed offset, pull, in this order."""
    script = Script()

    first = script.assign(QUEUE)
    second = script.grant(epoch=7)
    third = script.found(42)

    assert first == [AskLocks((QUEUE,))]
    assert without_reports(second) == [FindStart(QUEUE, script.generation())]
    assert without_reports(third) == [Pull(QUEUE, script.generation(), 42, None, 7)]


def test_where_a_group_begins_that_has_no_offset_is_committed() -> None:
    """Law: a group that begins at the end and stops before its first message continues there, and says where it is."""
    script = Script()
    script.assign(QUEUE)
    script.grant(epoch=7)

    said = script.play(StartFound(QUEUE, script.generation(), 42, is_new=True))

    assert without_reports(said) == [
        SetOffset(QUEUE, 42, 7, increase_only=False),
        Pull(QUEUE, script.generation(), 42, 42, 7),
    ]


def test_locks_of_all_new_queues_are_asked_in_one_request() -> None:
    """LCK-02: one request names the whole set, sorted."""
    script = Script()

    said = script.assign(OTHER, QUEUE)

    assert said == [AskLocks((QUEUE, OTHER))]


def test_only_the_granted_subset_is_consumed() -> None:
    """LCK-03, LCK-09: what is not in the answer is not ours."""
    script = Script()
    script.assign(QUEUE, OTHER)

    script.play(_granted_only(QUEUE, asked=(QUEUE, OTHER)))

    assert (script.phase(QUEUE), script.phase(OTHER)) == (Phase.STARTING, Phase.LOCKING)
    assert script.reports("because lock failed")


def test_a_refused_lock_is_asked_again_after_three_seconds_and_at_once_when_the_group_changes() -> (
    None
):
    """LCK-21, RBL-04: 3000 ms, or the notification that somebody left."""
    script = Script()
    script.assign(QUEUE)
    script.refuse()

    quiet = script.tick(2_999)
    due = script.tick(1)
    script.refuse()
    notified = script.assign(QUEUE)

    assert (without_reports(quiet), due, notified) == (
        [],
        [AskLocks((QUEUE,))],
        [AskLocks((QUEUE,))],
    )


def test_a_lock_request_without_an_answer_is_repeated_after_100_ms() -> None:
    """LCK-04: trouble is no grant, and is tried again soon."""
    script = Script()
    script.assign(QUEUE)
    script.fail_locks()

    assert without_reports(script.tick(99)) == []
    assert script.tick(1) == [AskLocks((QUEUE,))]


def test_a_lock_is_renewed_every_five_seconds_under_the_same_epoch() -> None:
    """LCK-11: a renewal changes nothing but the end of the lease."""
    script = Script()
    script.running_at(0)
    script.pulled(next_offset=0)
    generation = script.generation()

    asked = script.tick(5_000)
    renewed = script.grant()

    assert AskLocks((QUEUE,)) in asked
    assert without_reports(renewed) == []
    assert script.generation() == generation
    assert script.core.queues[QUEUE].lease_until_ms == 20_000


def test_a_lease_counts_from_before_its_request_was_sent() -> None:
    """The client's end of the lease never lies behind the broker's."""
    script = Script()
    script.assign(QUEUE)
    script.now = 900

    script.grant(asked_at=0)

    assert script.core.queues[QUEUE].lease_until_ms == 15_000


def test_without_renewal_the_consumer_stops_by_itself_when_its_lease_is_over() -> None:
    """ODL-06, section 2: no delivery, no pull and no commit after the lease by our own clock."""
    script = Script()
    script.running_at(0)
    script.pulled(0, 1, 2)
    script.tick(14_999)
    assert script.phase() is Phase.RUNNING

    script.tick(1)
    before = len(script.said)
    script.done()

    assert script.phase() is Phase.LOCKING
    assert [type(each) for each in script.said[before:]] == []
    assert script.committed == []
    assert script.reports("the message queue lock expired, so consume later")


def test_a_lost_lock_is_asked_again_after_10_ms() -> None:
    """LCK-21: lost inside the loop -> 10 ms."""
    script = Script()
    script.running_at(0)
    script.pulled(next_offset=0)
    script.tick(5_000)
    script.fail_locks()
    script.now = 15_000

    lost = script.tick(0)
    asked = script.tick(10)

    assert AskLocks((QUEUE,)) not in lost
    assert asked == [AskLocks((QUEUE,))]


def test_a_lock_regained_under_the_same_epoch_goes_on_where_it_was() -> None:
    """Nobody else had it, so the cache and even the waiting result still count."""
    script = Script()
    script.running_at(0)
    script.pulled(0, 1)
    script.now = 15_001
    script.tick(0)
    script.done()

    said = script.grant(epoch=1)

    assert SetOffset(QUEUE, 1, 1, increase_only=False) in said
    assert script.delivered == [[0], [1]]


def test_a_lock_regained_under_another_epoch_starts_again_at_the_committed_offset() -> None:
    """LCK-17, OFS-10: somebody else was there; what is cached means nothing any more."""
    script = Script()
    script.running_at(0)
    script.pulled(0, 1, 2)
    script.now = 15_001
    script.tick(0)

    said = script.grant(epoch=2)
    script.done()
    script.found(5)

    assert FindStart(QUEUE, script.generation()) in said
    assert script.committed == []
    assert script.reports("processQueue is dropped without process consume result")
    assert script.said[-2:] != []
    assert isinstance(script.said[-1], Pull)
    assert script.said[-1] == Pull(QUEUE, script.generation(), 5, None, 2)


def test_a_committed_offset_behind_the_own_plan_is_followed_and_reported() -> None:
    """LCK-17, LOG-05: the broker's offset wins over a plan that was ahead."""
    script = Script()
    script.running_at(0)
    script.pulled(*range(10))
    script.now = 20_000
    script.tick(0)

    script.grant(epoch=2)
    script.found(3)

    assert script.reports("[NOTIFYME]the first time to pull message")


def test_a_broker_without_epochs_makes_every_lapse_a_new_start() -> None:
    """A RocketMQ broker cannot say who had the queue meanwhile."""
    script = Script()
    script.running_at(0, epoch=None)
    script.pulled(0)
    script.tick(5_000)
    generation = script.generation()
    script.grant(epoch=None)
    assert script.generation() == generation
    script.now = 30_000
    script.tick(0)

    said = script.grant(epoch=None)

    assert FindStart(QUEUE, script.generation()) in said
    assert script.generation() != generation


def test_a_refused_renewal_ends_consumption_at_once() -> None:
    """The broker's word counts more than our clock."""
    script = Script()
    script.running_at(0)
    script.pulled(0, 1)
    script.tick(5_000)

    script.refuse()
    script.done()

    assert script.phase() is Phase.LOCKING
    assert script.delivered == [[0]]
    assert script.committed == []


def test_a_pull_that_the_fence_refuses_makes_the_consumer_ask_for_its_lock() -> None:
    """After a fail-over the new leader may not see us as the holder."""
    script = Script()
    script.running_at(0)

    said = script.play(PullFailed(QUEUE, script.generation(), "held by B", refused=True))

    assert AskLocks((QUEUE,)) in said


def test_broadcasting_needs_no_lock() -> None:
    """BRD-05: each member has every queue for itself."""
    script = Script(OrderedRules(needs_lock=False))

    said = script.assign(QUEUE)
    script.found(0)
    script.pulled(0)

    assert said == [FindStart(QUEUE, script.generation())]
    assert script.delivered == [[0]]
    assert script.tick(10_000_000) == []


# -- hand-out ------------------------------------------------------------------------------------------


def test_one_call_at_a_time_and_in_the_order_of_the_offsets() -> None:
    """ODL-02, ODL-04, GRP-08: many pulls while the listener runs, still one call after the other."""
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
    """ODL-08: lists of at most batch_max, ascending."""
    script = Script(OrderedRules(batch_max=5))
    script.running_at(0)
    script.pulled(*range(7))

    script.done()

    assert script.delivered == [[0, 1, 2, 3, 4], [5, 6]]


def test_two_queues_are_consumed_side_by_side() -> None:
    """ODL-23: one call per queue, several queues in parallel."""
    script = Script()
    script.assign(QUEUE, OTHER)
    script.grant(QUEUE, OTHER)
    script.found(0, QUEUE)
    script.found(0, OTHER)

    script.pulled(0, queue=QUEUE)
    script.pulled(0, queue=OTHER)

    assert set(script.running) == {QUEUE, OTHER}


def test_after_a_minute_of_continuous_work_the_queue_rests_10_ms() -> None:
    """ODL-07: other queues get a worker."""
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
    """ODL-09: lock and assignment are looked at again right before the listener is called."""
    script = Script()
    script.running_at(0)
    script.pulled(0)
    deliver = script.running[QUEUE]

    assert script.core.may_start(deliver, script.now)
    assert not script.core.may_start(deliver, 15_000)
    script.assign()
    assert not script.core.may_start(deliver, script.now)


def test_a_delivery_that_was_not_started_comes_again() -> None:
    """Nothing is lost between the core and a worker."""
    script = Script()
    script.running_at(0)
    script.pulled(0, 1)
    deliver = script.running.pop(QUEUE)

    script.play(DeliveryDropped(QUEUE, deliver.generation, deliver.delivery))

    assert script.delivered == [[0], [0]]


def test_a_paused_consumer_starts_nothing_and_keeps_its_locks() -> None:
    """Suspend and resume of the whole consumer."""
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
    """RBL-10, ODL-19, OFS-06: the next pull tells the broker how far we are."""
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
    """FLW-03, FLW-04: bounded by count, not by span; no polling needed to resume."""
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
    """OFS-08: nothing matched, nothing cached -> the offset follows."""
    script = Script()
    script.running_at(0)

    script.pulled(next_offset=500)

    assert script.committed == [500]


def test_a_failed_pull_is_repeated_soon_and_then_less_often() -> None:
    """PUL-12: 20 ms, 40 ms, ... at most one second; one line each."""
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
    """OFS-09, LOG-08: the broker's correction counts, immediately."""
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
    """PUL-11, LOG-07: must never appear."""
    script = Script()
    script.running_at(10)

    script.pulled(3, next_offset=4)

    assert script.reports("[BUG] pull message result maybe data wrong")


def test_an_offset_that_cannot_be_asked_is_asked_again_and_never_guessed() -> None:
    """RBL-05: not started, tried again."""
    script = Script()
    script.assign(QUEUE)
    script.grant()

    script.play(StartFailed(QUEUE, script.generation(), "no leader"))
    said = script.tick(500)

    assert said == [FindStart(QUEUE, script.generation())]
    assert script.reports("add new mq failed")


def test_a_reset_goes_on_at_the_new_offset_even_backwards() -> None:
    """ODL-22: an administrator may move an ordered group back; a running call no longer counts."""
    script = Script()
    script.running_at(50)
    script.pulled(50, 51)

    script.play(OffsetsReset({QUEUE: 5}))
    script.done()

    assert script.committed == [5]
    assert script.core.queues[QUEUE].fetcher.next_offset == 5


# -- leaving -------------------------------------------------------------------------------------------


def test_a_queue_assigned_away_is_released_after_its_listener_is_done_and_committed() -> None:
    """ODL-21 and ordering 2: while the lease lives the running result still counts, then the lock goes."""
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


def test_a_queue_assigned_away_whose_lease_ended_commits_and_unlocks_nothing() -> None:
    """RBL-08: dropped for good, no commit leaves."""
    script = Script()
    script.running_at(0)
    script.pulled(0)
    script.assign()
    script.now = 15_001

    said = script.done()

    assert without_reports(said) == [Release(QUEUE, 1, commit=False, unlock=False)]


def test_the_lock_of_a_leaving_queue_is_renewed_while_its_listener_runs() -> None:
    """A slow listener must not lose its queue in the middle of the hand-over."""
    script = Script()
    script.running_at(0)
    script.pulled(0)
    script.assign()

    asked = script.tick(5_000)

    assert asked == [AskLocks((QUEUE,))]


def test_a_queue_that_comes_back_is_locked_only_after_its_release_is_done() -> None:
    """An unlock on its way must not free the lock that was asked for after it."""
    script = Script()
    script.running_at(0)
    script.assign()

    again = script.assign(QUEUE)
    released = script.play(Released(QUEUE))

    assert without_reports(again) == []
    assert released == [AskLocks((QUEUE,))]


def test_a_queue_that_comes_back_before_it_was_released_just_goes_on() -> None:
    """The listener still runs, so nobody else can have had it."""
    script = Script()
    script.running_at(0)
    script.pulled(0, 1)
    script.assign()

    script.assign(QUEUE)
    script.done()

    assert script.delivered == [[0], [1]]


def test_closing_finishes_what_runs_and_gives_everything_back() -> None:
    """LCK-23, PSH-21: the consumer is idle when its locks are free."""
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
    """RBL-08: whatever belongs to a former assignment of the queue is ignored."""
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
    """RTY-06: the number rises by one with every failure."""
    script = Script()
    script.running_at(0)
    script.pulled_messages([message(0, tries=2)])

    script.done(OrderedResult.SUSPEND)
    script.tick(1_000)

    assert script.running[QUEUE].messages[0].reconsume_times == 3


def _granted_only(queue: MessageQueue, *, asked: tuple[MessageQueue, ...]) -> LocksAnswered:
    return LocksAnswered(asked, {queue: 1}, 0)


def _pulled_before(generation: int) -> Pulled:
    return Pulled(QUEUE, generation, messages(0, 1), 2)
