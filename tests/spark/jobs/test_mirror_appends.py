"""Appends to one queue with several in progress: the stored messages are a prefix, whatever becomes of each append."""

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import product

import pytest

from orderlymq_spark.jobs.mirror.appends import UNDER_WAY_MAX, appended

_CHUNKS = [b"%d" % offset for offset in range(10)]


@dataclass
class Queue:
    """A queue of a broker that decides in the order of the requests and answers later.

    A request whose offset is in *lost* is not stored, and fails.
    """

    lost: frozenset[int] = frozenset()
    stored: list[int] = field(default_factory=list)
    begun: int = 0
    most: int = 0
    answers: list["Future[int | None]"] = field(default_factory=list)

    def append(self, chunk: bytes, *, begins: bool) -> "Future[int | None]":
        offset, answer = int(chunk), Later()
        if offset in self.lost:
            answer.outcome = ConnectionError("lost")
        elif begins if not self.stored else self.stored[-1] + 1 == offset:
            self.stored.append(offset)
            answer.outcome = offset + 1
        self.answers.append(answer)
        self.most = max(self.most, sum(not each.done() for each in self.answers))
        return answer


class Later(Future["int | None"]):
    """An answer that arrives when a task waits for it."""

    outcome: int | Exception | None = None

    def result(self, timeout: float | None = None) -> int | None:
        if isinstance(self.outcome, Exception):
            self.set_exception(self.outcome)
        else:
            self.set_result(self.outcome)
        return super().result(timeout)


def test_a_queue_with_messages_gets_several_appends_at_a_time() -> None:
    """Law: over a long link several requests share a round trip, and their number never exceeds the limit."""
    queue = Queue(stored=[-1])

    assert list(appended(_CHUNKS, queue.append, is_empty=False)) == list(range(1, 11))
    assert queue.most == UNDER_WAY_MAX


def test_the_first_append_of_an_empty_queue_is_alone() -> None:
    """Law: the first message may be stored at any offset, so no other append may be in progress before it is stored."""
    seen: list[int] = []
    queue = Queue()
    ends = appended(_CHUNKS, queue.append, is_empty=True)

    seen.append(next(ends))

    assert (seen, queue.stored) == ([1], [0])
    assert list(ends) == list(range(2, 11))


@pytest.mark.parametrize("is_empty", [True, False])
def test_whatever_is_lost_a_queue_is_a_prefix(is_empty: bool) -> None:
    """Law: whichever requests are lost, the stored messages have no hole, and all reported ones are stored."""
    for kept in product([True, False], repeat=6):
        lost = frozenset(offset for offset, each in enumerate(kept) if not each)
        queue = Queue(lost, stored=[] if is_empty else [-1])

        reported = list(_until_failure(appended(_CHUNKS, queue.append, is_empty=is_empty)))

        whole = [offset for offset in queue.stored if offset >= 0]
        assert whole == list(range(len(whole)))
        assert len(whole) >= len(reported) == min(lost, default=10)
        assert all(each.done() for each in queue.answers)


def test_what_comes_late_begins_no_queue() -> None:
    """Law: if the topic was created again after the first append, a later one must not become its first message."""
    queue = Queue(stored=[4])
    ends = appended(_CHUNKS[5:], queue.append, is_empty=False)
    queue.stored.clear()

    assert list(ends) == []
    assert queue.stored == []


def test_where_the_queue_ends_elsewhere_nothing_more_is_begun() -> None:
    """Law: another mirror has gone on, so no append is begun any more, and those in progress are given up."""
    queue = Queue(stored=[4])

    assert list(appended(_CHUNKS, queue.append, is_empty=False)) == []
    assert len(queue.answers) == UNDER_WAY_MAX
    assert all(each.done() for each in queue.answers)


def _until_failure(ends: Iterator[int]) -> Iterator[int]:
    try:
        yield from ends
    except ConnectionError:
        return
