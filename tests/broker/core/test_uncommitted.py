"""The leader's view of uncommitted requests: first sends, and the round robin over queues."""

from collections import Counter

import pytest

from orderlymq_broker.core.effects import Close, Effect
from orderlymq_broker.core.uncommitted import LeaderView, PendingSend, Place, count_down
from orderlymq_broker.state.records import Refused, TopicSet
from orderlymq_broker.state.send.duplicates import DedupWindow
from orderlymq_broker.state.send.firstsend import FirstSend
from orderlymq_broker.state.topics.topics import Topic
from tests.broker.store.memory import MemoryStore


def window(cancelled_ms: int = 0) -> DedupWindow:
    """Return a window of known sends that holds one, of identity k."""
    found = DedupWindow(MemoryStore())
    found.sends[b"k"] = FirstSend(1, 2, 3, 4, cancelled_ms)
    return found


def test_a_first_send_is_found_on_its_way_and_then_where_it_is_stored() -> None:
    """Law: a send's first place is looked up among uncommitted sends, then among stored ones;
    an unknown identity has none.
    """
    view, pending = LeaderView(), PendingSend()
    before = [view.first_send(key, window()) for key in (b"k", b"other")]

    view.sends[b"k"] = pending

    assert before == [Place(1, 2, 3), None]
    assert view.first_send(b"k", window()) is pending


@pytest.mark.parametrize(
    ("cancelled_ms", "taken_back", "known", "says_ms"),
    [
        (0, {}, True, 0),
        (7, {}, False, 7),
        (7, {3: 9}, False, 7),
        (0, {3: 9}, False, 9),
        (0, {3: 0}, False, 0),
        (0, {4: 9}, True, 0),
    ],
)
def test_what_was_taken_back_may_be_sent_again(
    cancelled_ms: int, taken_back: dict[int, int], *, known: bool, says_ms: int
) -> None:
    """Law: a send that was taken back may be repeated from the moment when that is proposed;
    its cancellation time is known.
    """
    view = LeaderView()
    view.taken_back.update(taken_back)

    assert (view.first_send(b"k", window(cancelled_ms)) is not None) == known
    assert view.cancelled_ms(b"k", window(cancelled_ms)) == says_ms
    assert view.cancelled_ms(b"other", window(cancelled_ms)) == 0


def test_queues_of_a_topic_take_turns() -> None:
    """Law: queues are chosen in turn, separately for each topic; a topic without writable queues yields queue 0."""
    view = LeaderView()
    first, second, shut = (
        Topic(number, TopicSet(f"t{number}", queues, queues))
        for number, queues in enumerate((3, 2, 0), 1)
    )

    turns = [[view.choose_queue(topic) for _ in range(4)] for topic in (first, second, shut)]

    assert turns == [[0, 1, 2, 0], [0, 1, 0, 1], [0, 0, 0, 0]]


def test_a_send_that_ends_answers_all_that_waited() -> None:
    """Law: when a send ends, all waiters are answered in order with its outcome."""
    pending, seen = PendingSend(), []

    def waiter(number: int) -> list[Effect]:
        seen.append(pending.outcome)
        return [Close(number, ""), Close(number, "again")]

    pending.waiters += [lambda: waiter(1), lambda: waiter(2)]
    outcome = Refused("gone")

    effects = pending.end(outcome)

    assert effects == [Close(n, why) for n in (1, 2) for why in ("", "again")]
    assert seen == [outcome, outcome]


def test_what_is_counted_down_to_none_is_forgotten() -> None:
    """Law: a count that reaches zero is removed; other counts stay."""
    counts = Counter({"a": 2, "b": 1, "c": 5})

    count_down(counts, ["a", "b"])

    assert dict(counts) == {"a": 1, "c": 5}
    count_down(counts, ["a"])
    assert dict(counts) == {"c": 5}


def test_a_view_begins_with_nothing_on_its_way() -> None:
    """Law: a new leader's view starts empty, with all counts at zero."""
    view = LeaderView()

    assert (view.repeats, view.creating_bytes, view.fetching_bytes, view.operator_token) == (0,) * 4
    assert not any((view.sends, view.answering, view.creating, view.ending, view.taken_back))
    assert not any((view.handing_on, view.fencing, view.fetching, view.timers_ending))
    assert not view.retrying
