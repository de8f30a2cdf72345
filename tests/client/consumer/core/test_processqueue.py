"""The local cache of a queue, compared with a simple twin, and its operations one by one."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from orderlymq.consumer.core.processqueue import NOTHING, ProcessQueue
from tests.client.messages import message, messages


def _offsets(found: object) -> list[int]:
    return [each.queue_offset for each in found]  # type: ignore[attr-defined]  # received messages


def _cache(*offsets: int) -> ProcessQueue:
    cache = ProcessQueue()
    cache.put(messages(*offsets))
    return cache


def test_messages_put_out_of_order_leave_in_order_and_duplicates_once() -> None:
    """Law: the cache is ordered by offset and holds each offset once (PQ-01)."""
    cache = _cache(3, 1)

    cache.put(messages(2, 3, 1))

    assert cache.count == 3
    assert _offsets(cache.take(9)) == [1, 2, 3]


def test_take_moves_the_first_messages_aside() -> None:
    """Law: take(3) of 1..5 leaves 4 and 5 waiting, with 1, 2, 3 taken (PQ-02)."""
    cache = _cache(1, 2, 3, 4, 5)

    taken = cache.take(3)

    assert (_offsets(taken), _offsets(cache.waiting), _offsets(cache.taken)) == (
        [1, 2, 3],
        [4, 5],
        [1, 2, 3],
    )


def test_an_unreadable_message_is_taken_alone() -> None:
    """Law: an unreadable message is taken alone, so that it does not fail others."""
    cache = _cache(1, 2, 4, 5)
    broken = message(3)
    broken.unreadable = "no zlib stream"
    cache.put([broken])

    taken = [_offsets(cache.take(9)) for _ in range(3)]

    assert taken == [[1, 2], [3], [4, 5]]


def test_commit_forgets_what_was_taken_and_returns_the_next_offset() -> None:
    """Law: commit forgets the taken messages and returns the last offset + 1, or NOTHING (PQ-03, PQ-10)."""
    cache = _cache(1, 2, 3)
    cache.take(2)

    assert (cache.commit(), cache.count, cache.commit()) == (3, 1, NOTHING)


def test_rollback_makes_everything_taken_wait_again_except_what_is_kept() -> None:
    """Law: rollback lets all taken messages wait again in order, except the dead letters that are kept (PQ-04)."""
    cache = _cache(1, 2, 3, 4)
    cache.take(3)

    cache.rollback(keep={2})

    assert (_offsets(cache.waiting), _offsets(cache.taken)) == ([1, 3, 4], [2])


def test_messages_given_back_come_first_again() -> None:
    """Law: messages given back come first again (PQ-05)."""
    cache = _cache(1, 2, 3)
    cache.take(3)

    cache.again((1, 2, 3))

    assert _offsets(cache.take(2)) == [1, 2]


def test_the_commit_offset_is_the_lowest_unfinished() -> None:
    """Law: the commit offset is the lowest unfinished one (PQ-06, OFS-03): finish 3, 5, 7 of 0..9 -> 0; finish 0 -> 1;
    all -> 10.
    """
    cache = _cache(*range(10))
    cache.take(10)

    assert cache.remove((3, 5, 7)) == 0
    assert cache.remove((0,)) == 1
    assert cache.remove(range(10)) == 10
    assert ProcessQueue().remove((1,)) == NOTHING


def test_the_span_is_the_distance_of_the_ends() -> None:
    """Law: the span is the distance between the first and last offset, taken ones included; 0 if empty (PQ-07)."""
    cache = _cache(5, 9)
    assert cache.span == 4
    cache.take(1)

    assert (cache.span, ProcessQueue().span) == (4, 0)


class Twin(RuleBasedStateMachine):
    """The twin; under any interleaving nothing is lost, doubled or reordered (PQ-09)."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = ProcessQueue()
        self.waiting: set[int] = set()
        self.taken: set[int] = set()
        self.highest = -1

    @rule(offsets=st.lists(st.integers(0, 60), max_size=8))
    def put(self, offsets: list[int]) -> None:
        fresh = {offset for offset in offsets if offset not in self.waiting | self.taken}
        count = self.cache.count
        self.cache.put([message(offset) for offset in offsets])
        assert self.cache.count == count + len(fresh)
        self.waiting |= fresh
        self.highest = max([self.highest, *fresh])

    @rule(limit=st.integers(1, 6))
    def take(self, limit: int) -> None:
        expected = sorted(self.waiting)[:limit]
        assert _offsets(self.cache.take(limit)) == expected
        self.waiting -= set(expected)
        self.taken |= set(expected)

    @rule()
    def commit(self) -> None:
        ends = {offset for offset in self.taken if offset < min(self.waiting, default=61)}
        assert self.cache.commit() == (max(ends) + 1 if ends else NOTHING)
        self.taken -= ends

    @rule(keep=st.sets(st.integers(0, 60), max_size=3))
    def rollback(self, keep: set[int]) -> None:
        self.cache.rollback(keep)
        self.waiting |= self.taken - keep
        self.taken &= keep

    @rule(offsets=st.sets(st.integers(0, 60), max_size=5))
    def again(self, offsets: set[int]) -> None:
        self.cache.again(offsets)
        self.waiting |= offsets & self.taken
        self.taken -= offsets

    @rule(offsets=st.sets(st.integers(0, 60), max_size=5))
    def remove(self, offsets: set[int]) -> None:
        self.waiting -= offsets
        self.taken -= offsets
        left = self.waiting | self.taken
        expected = NOTHING if self.highest < 0 else min(left, default=self.highest + 1)
        assert self.cache.remove(offsets) == expected

    @invariant()
    def same(self) -> None:
        self.cache.check()
        assert _offsets(self.cache.waiting) == sorted(self.waiting)
        assert _offsets(self.cache.taken) == sorted(self.taken)
        ends = self.waiting | self.taken
        assert self.cache.first_waiting == min(self.waiting, default=NOTHING)
        assert self.cache.min_offset == min(ends, default=NOTHING)
        assert self.cache.max_offset == max(ends, default=NOTHING)


TestTwin = Twin.TestCase
TestTwin.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@given(st.lists(st.integers(0, 1000), unique=True))
def test_size_and_count_follow_every_message(offsets: list[int]) -> None:
    """Law: size and count cover waiting and taken messages, for flow control."""
    cache = ProcessQueue()
    cache.put([message(offset, size=offset) for offset in offsets])
    cache.take(len(offsets) // 2)

    assert (cache.count, cache.size_bytes) == (len(offsets), sum(offsets))
