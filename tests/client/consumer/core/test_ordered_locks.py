"""The ordered consumer core and its locks: when they are asked for, what they allow, where consumption begins."""

from orderlymq.consumer.core.events import (
    AskLocks,
    FindStart,
    LocksAnswered,
    Pull,
    PullFailed,
    SetOffset,
    StartFound,
)
from orderlymq.consumer.core.queuestate import OrderedRules, Phase
from orderlymq_protocol.body.messagequeue import MessageQueue
from tests.client.consumer.core.orderedscript import Script, without_reports
from tests.client.messages import OTHER, QUEUE


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


def test_a_refused_lock_is_asked_again_after_three_seconds_and_immediately_when_the_group_changes() -> (
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


def test_a_refused_renewal_ends_consumption_immediately() -> None:
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


def _granted_only(queue: MessageQueue, *, asked: tuple[MessageQueue, ...]) -> LocksAnswered:
    return LocksAnswered(asked, {queue: 1}, 0)
