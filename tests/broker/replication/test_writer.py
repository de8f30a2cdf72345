"""The writer commits in order, waits for space, and stops when an outcome is unknown."""

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from orderlymq_broker.replication.writer import WriterEvents, WriterThread
from orderlymq_broker.store.kv import Batch, Family, StoreError, StoreFailed, StoreFull, WriteTicket
from tests.broker.store.memory import MemoryStore

FULL_S = 1.0


@dataclass
class Loop:
    """Runs what the writer's thread posts, in the test's thread."""

    posted: "queue.Queue[Callable[[], None]]" = field(default_factory=queue.Queue)
    seen: list[str] = field(default_factory=list)

    def run_until(self, what: str) -> None:
        while what not in self.seen:
            self.posted.get(timeout=30.0)()

    def note(self, what: str) -> Callable[[float], None]:
        return lambda _: self.seen.append(what)


class BrokenStore(MemoryStore):
    """A store whose disk answers with an error."""

    def commit(self, ticket: WriteTicket, *, sync: bool) -> None:
        raise StoreFailed("input/output error")


class FilledStore(MemoryStore):
    """A store whose first write finds the disk full and takes FULL_S seconds."""

    was_full = False

    def commit(self, ticket: WriteTicket, *, sync: bool) -> None:
        if not self.was_full:
            self.was_full = True
            threading.Event().wait(FULL_S)
            raise StoreFull("no space left")
        super().commit(ticket, sync=sync)


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def make_writer(loop: Loop) -> Iterator[Callable[[MemoryStore], WriterThread]]:
    writers: list[WriterThread] = []

    def make(store: MemoryStore) -> WriterThread:
        def full(is_full: bool) -> None:
            loop.seen.append("full" if is_full else "space")

        def failed(error: StoreError) -> None:
            loop.seen.append(f"failed: {error}")

        events = WriterEvents(full, failed)
        writers.append(WriterThread(store, loop.posted.put, events, full_retry_s=0.001))
        return writers[-1]

    yield make
    for writer in writers:
        writer.close()


def ticket(store: MemoryStore, key: bytes) -> WriteTicket:
    batch = Batch()
    batch.put(Family.META, key, b"1")
    return store.prepare(batch)


def test_tickets_are_committed_in_order(
    loop: Loop, make_writer: Callable[[MemoryStore], WriterThread]
) -> None:
    """Law: tickets become durable in the order in which they were submitted."""
    store = MemoryStore()
    writer = make_writer(store)
    for name in ("a", "b", "c"):
        writer.submit(ticket(store, name.encode()), sync=True, done=loop.note(name))

    loop.run_until("c")

    assert loop.seen == ["a", "b", "c"]
    assert store.crash().get(Family.META, b"c") == b"1"


def test_a_full_disk_holds_writes_back_and_loses_none(
    loop: Loop, make_writer: Callable[[MemoryStore], WriterThread]
) -> None:
    """Law: on a full disk all writes wait in order and go on by themselves when there is space."""
    store = MemoryStore()
    store.full = True
    writer = make_writer(store)
    for name in ("a", "b"):
        writer.submit(ticket(store, name.encode()), sync=True, done=loop.note(name))
    loop.run_until("full")
    assert loop.seen == ["full"]

    store.full = False
    loop.run_until("b")

    assert loop.seen == ["full", "space", "a", "b"]


def test_the_wait_for_space_is_no_time_of_the_disk(
    loop: Loop, make_writer: Callable[[MemoryStore], WriterThread]
) -> None:
    """Law: waiting for space does not count as disk time, so that a slow disk is not reported."""
    took: list[float] = []

    def done(elapsed_s: float) -> None:
        took.append(elapsed_s)
        loop.seen.append("a")

    store = FilledStore()
    make_writer(store).submit(ticket(store, b"a"), sync=True, done=done)
    loop.run_until("a")

    assert took[0] < FULL_S


def test_after_an_unknown_outcome_nothing_more_is_written(
    loop: Loop, make_writer: Callable[[MemoryStore], WriterThread]
) -> None:
    """Law: after an I/O error nothing more is written; the process must recover from its log."""
    store = BrokenStore()
    writer = make_writer(store)
    writer.submit(ticket(store, b"a"), sync=True, done=loop.note("a"))
    writer.submit(ticket(store, b"b"), sync=True, done=loop.note("b"))

    loop.run_until("failed: input/output error")
    writer.close()

    assert loop.seen == ["failed: input/output error"]


def test_a_full_disk_does_not_hold_up_the_end(
    loop: Loop, make_writer: Callable[[MemoryStore], WriterThread]
) -> None:
    """Law: the end of the process does not wait for space on a full disk."""
    store = MemoryStore()
    store.full = True
    writer = make_writer(store)
    writer.submit(ticket(store, b"a"), sync=True, done=loop.note("a"))
    loop.run_until("full")

    writer.close(timeout_s=1.0)

    assert "a" not in loop.seen
