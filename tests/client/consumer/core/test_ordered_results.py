"""The ordered consumer core: the effect of each result of a listener, and dead letters."""

import pytest

from orderlymq.consumer.core.events import (
    DeadLetter,
    Deliver,
    OrderedResult,
)
from orderlymq.consumer.core.queuestate import OrderedRules
from tests.client.consumer.core.orderedscript import Script
from tests.client.messages import QUEUE

# -- results -------------------------------------------------------------------------------------------


def test_a_failed_message_comes_again_after_one_second_and_its_queue_waits() -> None:
    """Law: SUSPEND delivers the same message again after one second; later ones wait (ODL-14, ODL-20, RTY-06)."""
    script = Script()
    script.running_at(0)
    script.pulled(0, 1)

    script.done(OrderedResult.SUSPEND)
    quiet = script.tick(999)
    script.tick(1)

    assert not [each for each in quiet if isinstance(each, Deliver)]
    assert script.delivered == [[0], [0]]
    assert script.running[QUEUE].messages[0].reconsume_times == 1
    assert script.committed == []
    assert script.reports("consumeMessage Orderly return not OK")


def test_an_exception_is_reported_with_ids_and_the_message_comes_again() -> None:
    """Law: an exception is logged with group, ids and queue, and the message is delivered again (ODL-11, LOG-17)."""
    script = Script()
    script.running_at(0)
    script.pulled(0)

    script.done(None, raised="ValueError: bad order")
    script.tick(1_000)

    (text,) = script.reports("consumeMessage exception")
    assert all(part in text for part in ("ValueError: bad order", "Group: G", "M0", "orders"))
    assert script.delivered == [[0], [0]]


@pytest.mark.parametrize(
    ("asked_ms", "waited_ms"), [(5_000, 5_000), (1, 10), (99_999, 30_000), (-1, 1_000)]
)
def test_the_wait_after_a_failure_is_the_contexts_within_10_ms_and_30_s(
    asked_ms: int, waited_ms: int
) -> None:
    """Law: the pause after a failure is the context's, within 10 ms and 30 s (RTY-13)."""
    script = Script(OrderedRules(lease_ms=1_000_000, renew_ms=400_000))
    script.running_at(0)
    script.pulled(0)

    script.done(OrderedResult.SUSPEND, suspend_ms=asked_ms)
    script.tick(waited_ms - 1)
    assert script.delivered == [[0]]
    script.tick(1)

    assert script.delivered == [[0], [0]]


@pytest.mark.parametrize("result", [OrderedResult.COMMIT, OrderedResult.ROLLBACK])
def test_commit_and_rollback_under_auto_commit_are_warned_about_and_acknowledge(
    result: OrderedResult,
) -> None:
    """Law: with auto_commit, COMMIT and ROLLBACK are warned about and acknowledge the messages (ODL-18, LOG-19)."""
    script = Script()
    script.running_at(0)
    script.pulled(0)

    script.done(result)

    assert script.committed == [1]
    assert script.reports("consume result is illegal, we think you want to ack")


def test_without_auto_commit_only_commit_moves_the_offset() -> None:
    """Law: without auto_commit only COMMIT moves the offset, over everything since the last one (ACM-03, ACM-05)."""
    script = Script()
    script.running_at(0)
    script.pulled(0, 1, 2)

    script.done(auto_commit=False)
    script.done(auto_commit=False)
    assert script.committed == []
    script.done(OrderedResult.COMMIT, auto_commit=False)

    assert script.delivered == [[0], [1], [2]]
    assert script.committed == [3]


def test_rollback_delivers_everything_uncommitted_again_in_order() -> None:
    """Law: ROLLBACK delivers everything since the last COMMIT again, in order, after the pause (ACM-05, PQ-04)."""
    script = Script()
    script.running_at(0)
    script.pulled(0, 1, 2)
    script.done(auto_commit=False)

    script.done(OrderedResult.ROLLBACK, auto_commit=False)
    script.tick(1_000)
    script.done(auto_commit=False)

    assert script.delivered == [[0], [1], [0], [1]]
    assert script.committed == []


def test_many_uncommitted_messages_are_warned_about() -> None:
    """Law: many messages without a COMMIT are warned about, because pulling stops in the end (ACM-04)."""
    script = Script(OrderedRules(uncommitted_warning=2))
    script.running_at(0)
    script.pulled(*range(5))

    for _ in range(5):
        script.done(auto_commit=False)

    assert len(script.reports("consumed but not committed")) == 2


# -- dead letters --------------------------------------------------------------------------------------


def test_a_message_is_tried_once_more_than_the_maximum_then_dead_lettered_then_the_next_comes() -> (
    None
):
    """Law: with a maximum of 3 a message is delivered four times, then it becomes a dead letter and the next one follows
    (RTY-05, RTY-11).
    """
    script = Script(OrderedRules(reconsume_max=3))
    script.running_at(0)
    script.pulled(0, 1)

    for _ in range(4):
        script.done(OrderedResult.SUSPEND)
        script.tick(1_000)
    assert script.delivered == [[0]] * 4
    letters = [each for each in script.said if isinstance(each, DeadLetter)]
    script.copied()

    assert [(each.message.queue_offset, each.message.reconsume_times) for each in letters] == [
        (0, 3)
    ]
    assert script.committed == [1]
    assert script.delivered[-1] == [1]


def test_a_refused_dead_letter_keeps_the_queue_suspended() -> None:
    """Law: if the dead letter cannot be sent, the same message is delivered again and nothing is committed (RTY-07)."""
    script = Script(OrderedRules(reconsume_max=0))
    script.running_at(0)
    script.pulled(0, 1)
    script.done(OrderedResult.SUSPEND)

    script.copied(ok=False)
    script.tick(1_000)

    assert script.delivered == [[0], [0]]
    assert script.running[QUEUE].messages[0].reconsume_times == 1
    assert script.committed == []
    assert script.reports("sendMessageBack exception")


def test_no_delivery_while_a_dead_letter_is_on_its_way() -> None:
    """Law: while a dead letter is being sent, nothing of its queue is delivered."""
    script = Script(OrderedRules(reconsume_max=0))
    script.running_at(0)
    script.pulled(0, 1)

    script.done(OrderedResult.SUSPEND)
    script.tick(4_000)

    assert script.delivered == [[0]]


def test_a_poison_message_in_a_batch_is_found_alone_and_no_other_is_dead_lettered() -> None:
    """Law: in a batch only the poison message becomes a dead letter,
    and no message is both consumed and a dead letter (RTY-08).
    """
    script = Script(OrderedRules(reconsume_max=1, batch_max=5))
    script.running_at(0)
    script.pulled(0, 1, 2, 3, 4)
    poison = 2
    succeeded: list[int] = []

    for _ in range(20):
        script.tick(1_000)
        if QUEUE in script.running:
            offsets = [each.queue_offset for each in script.running[QUEUE].messages]
            if poison in offsets:
                script.done(OrderedResult.SUSPEND)
            else:
                succeeded += offsets
                script.done()
        elif script.core.queues[QUEUE].copying:
            script.copied()

    letters = [each.message.queue_offset for each in script.said if isinstance(each, DeadLetter)]
    assert letters == [poison]
    assert succeeded == [0, 1, 3, 4]
    assert script.committed[-1] == 5


def test_without_auto_commit_a_dead_letter_stays_uncommitted_and_is_not_rolled_back() -> None:
    """Law: without auto_commit a dead letter does not move the offset,
    and a later ROLLBACK does not deliver it again (ACM-02).
    """
    script = Script(OrderedRules(reconsume_max=0))
    script.running_at(0)
    script.pulled(0, 1)

    script.done(OrderedResult.SUSPEND, auto_commit=False)
    script.copied()
    assert (script.committed, script.delivered) == ([], [[0], [1]])
    script.done(OrderedResult.ROLLBACK, auto_commit=False)
    script.tick(1_000)
    script.done(OrderedResult.COMMIT, auto_commit=False)

    assert script.delivered == [[0], [1], [1]]
    assert script.committed == [2]


def test_a_commit_after_a_rollback_ends_before_what_waits_again() -> None:
    """Law: a commit after a rollback ends before the messages that are delivered again;
    a dead letter behind them does not skip them.
    """
    script = Script(OrderedRules(reconsume_max=0))
    script.running_at(0)
    script.pulled(0, 1, 2, 3)
    for _ in range(2):
        script.done(auto_commit=False)
    script.done(OrderedResult.SUSPEND, auto_commit=False)
    script.copied()
    script.done(OrderedResult.ROLLBACK, auto_commit=False)
    script.tick(1_000)

    for _ in range(3):
        script.done(OrderedResult.COMMIT, auto_commit=False)

    assert script.delivered == [[0], [1], [2], [3], [0], [1], [3]]
    assert script.committed == [1, 3, 4]
