"""Locks of the ordered consumer core: when they are requested, what they allow, and where consumption begins."""

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
    """Law: a queue is locked, then its committed offset is read, then it is pulled (LCK-01, RBL-06)."""
    script = Script()

    first = script.assign(QUEUE)
    second = script.grant(epoch=7)
    third = script.found(42)

    assert first == [AskLocks((QUEUE,))]
    assert without_reports(second) == [FindStart(QUEUE, script.generation())]
    assert without_reports(third) == [Pull(QUEUE, script.generation(), 42, None, 7)]


def test_where_a_group_begins_that_has_no_offset_is_committed() -> None:
    """Law: a group without an offset commits its start, so that it continues there if it stops before its first message."""
    script = Script()
    script.assign(QUEUE)
    script.grant(epoch=7)

    said = script.play(StartFound(QUEUE, script.generation(), 42, is_new=True))

    assert without_reports(said) == [
        SetOffset(QUEUE, 42, 7, increase_only=False),
        Pull(QUEUE, script.generation(), 42, 42, 7),
    ]


def test_locks_of_all_new_queues_are_asked_in_one_request() -> None:
    """Law: one request asks for the locks of all new queues, sorted (LCK-02)."""
    script = Script()

    said = script.assign(OTHER, QUEUE)

    assert said == [AskLocks((QUEUE, OTHER))]


def test_only_the_granted_subset_is_consumed() -> None:
    """Law: only granted queues are consumed (LCK-03, LCK-09)."""
    script = Script()
    script.assign(QUEUE, OTHER)

    script.play(_granted_only(QUEUE, asked=(QUEUE, OTHER)))

    assert (script.phase(QUEUE), script.phase(OTHER)) == (Phase.STARTING, Phase.LOCKING)
    assert script.reports("because lock failed")


def test_a_refused_lock_is_asked_again_after_three_seconds_and_immediately_when_the_group_changes() -> (
    None
):
    """Law: a refused lock is requested again after 3000 ms, or immediately when the group changes (LCK-21, RBL-04)."""
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
    """Law: a lock request without an answer grants nothing and is repeated after 100 ms (LCK-04)."""
    script = Script()
    script.assign(QUEUE)
    script.fail_locks()

    assert without_reports(script.tick(99)) == []
    assert script.tick(1) == [AskLocks((QUEUE,))]


def test_a_lock_is_renewed_every_five_seconds_under_the_same_epoch() -> None:
    """Law: a lock is renewed every five seconds under the same epoch (LCK-11)."""
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
    """Law: a lease counts from before its request was sent, so that it never ends later than the broker's."""
    script = Script()
    script.assign(QUEUE)
    script.now = 900

    script.grant(asked_at=0)

    assert script.core.queues[QUEUE].lease_until_ms == 15_000


def test_without_renewal_the_consumer_stops_by_itself_when_its_lease_is_over() -> None:
    """Law: without a renewal, delivery, pulls and commits end with the lease by the client's own clock (ODL-06)."""
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
    """Law: a lost lock is requested again after 10 ms (LCK-21)."""
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
    """Law: a lock regained under the same epoch goes on with its cache and the waiting result, because nobody else had it."""
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
    """Law: under another epoch the cache is dropped, and consumption begins at the committed offset (LCK-17, OFS-10)."""
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
    """Law: a committed offset behind the consumer's own position is followed and logged (LCK-17, LOG-05)."""
    script = Script()
    script.running_at(0)
    script.pulled(*range(10))
    script.now = 20_000
    script.tick(0)

    script.grant(epoch=2)
    script.found(3)

    assert script.reports("[NOTIFYME]the first time to pull message")


def test_a_broker_without_epochs_makes_every_lapse_a_new_start() -> None:
    """Law: at a broker without epochs, as RocketMQ's, each lapse of the lock is a new start."""
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
    """Law: a refused renewal ends consumption immediately."""
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
    """Law: a pull that the broker refuses for a missing lock makes the consumer request it,
    for example after a change of leader.
    """
    script = Script()
    script.running_at(0)

    said = script.play(PullFailed(QUEUE, script.generation(), "held by B", refused=True))

    assert AskLocks((QUEUE,)) in said


def test_broadcasting_needs_no_lock() -> None:
    """Law: broadcasting needs no lock (BRD-05)."""
    script = Script(OrderedRules(needs_lock=False))

    said = script.assign(QUEUE)
    script.found(0)
    script.pulled(0)

    assert said == [FindStart(QUEUE, script.generation())]
    assert script.delivered == [[0]]
    assert script.tick(10_000_000) == []


def _granted_only(queue: MessageQueue, *, asked: tuple[MessageQueue, ...]) -> LocksAnswered:
    return LocksAnswered(asked, {queue: 1}, 0)
