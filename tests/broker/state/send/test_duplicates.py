"""The window of known sends: how it moves, and what it forgets."""

import pytest

from orderlymq_broker.state.records import Append, DedupTrimmed, TopicSet, Trimmed
from orderlymq_broker.state.send import duplicates
from orderlymq_broker.state.send.duplicates import (
    UNIQUE_KEY_LENGTH_MAX,
    DedupWindow,
    origin_of,
    send_identity,
    with_origin,
)
from orderlymq_broker.state.send.firstsend import FirstSend
from orderlymq_broker.store.kv import Batch, Family
from orderlymq_protocol.names import TOPIC_LENGTH_MAX
from tests.broker.calls import calls_in
from tests.broker.state.entries import WALL_MS, Replica
from tests.broker.store.memory import MemoryStore


def filled(replica: Replica, *times: int) -> list[int]:
    """Send a message at each of *times*; return their physical offsets."""
    replica.take(TopicSet("orders", 2, 2))
    starts = []
    for number, time in enumerate(times):
        starts.append(replica.state.physical_end)
        replica.append(replica.topic_id(), identity=f"I{number}".encode(), timestamp=WALL_MS + time)
    return starts


@pytest.mark.parametrize("floor", [0, 1, 2, 3])
def test_what_lies_below_the_floor_is_forgotten_and_counted(replica: Replica, floor: int) -> None:
    """Law: a trim forgets exactly the sends below the floor, in memory and in the store, and counts them."""
    starts = filled(replica, 0, 1, 2)
    bounds = [*starts, replica.state.physical_end]

    assert replica.take(DedupTrimmed(bounds[floor])) == [Trimmed(floor)]

    left = [f"I{number}".encode() for number in range(floor, 3)]
    window = replica.state.dedup
    assert (list(window.sends), len(window)) == (left, 3 - floor)
    assert len(replica.store.scan(Family.DEDUP, b"", b"\xff" * 9, limit=9)) == 3 - floor
    assert [row[1] for row in window.rows()] == left


@pytest.mark.parametrize(
    ("count_max", "oldest", "leave"),
    [
        (3, 0, 0),
        (2, 0, 1),
        (1, 0, 2),
        (0, 0, 3),
        (9, 1, 1),
        (9, 2, 2),
        (9, 3, 3),
        (2, 2, 2),
        (1, 1, 2),
    ],
)
def test_the_window_is_bounded_by_number_and_by_age(
    replica: Replica, count_max: int, oldest: int, leave: int
) -> None:
    """Law: a send leaves the window if its number or its age exceeds the limit; exactly at the limit it stays."""
    starts = filled(replica, 0, 1, 2)

    floor, _ = replica.state.dedup.floor(count_max=count_max, oldest_ms=WALL_MS + oldest, most=9)

    assert floor == (starts[leave - 1] + 1 if leave else 0)
    assert replica.take(DedupTrimmed(floor)) == [Trimmed(leave)]


def test_an_empty_window_has_no_floor() -> None:
    """Law: an empty window has the floor 0."""
    assert DedupWindow(MemoryStore()).floor(count_max=0, oldest_ms=WALL_MS, most=9) == (0, True)


def test_an_identity_that_was_forgotten_may_come_again(replica: Replica) -> None:
    """Law: an identity that was forgotten counts as a first send again, with its own place."""
    (start,) = filled(replica, 0)
    replica.take(DedupTrimmed(start + 1))
    second = replica.state.physical_end

    replica.append(replica.topic_id(), 1, identity=b"I0", timestamp=WALL_MS + 5)

    assert replica.state.dedup.sends == {b"I0": FirstSend(1, 0, second, WALL_MS + 5)}
    assert list(replica.restarted().state.dedup.rows()) == [
        (second, b"I0", 1, 0, second, WALL_MS + 5, 0)
    ]


def test_what_was_taken_back_is_forgotten_by_its_place(replica: Replica) -> None:
    """Law: a send that was taken back is removed by its place, in memory and in the store; the window goes on."""
    starts = filled(replica, 0, 1, 2)
    window, batch = replica.state.dedup, Batch()

    for physical in (starts[1], starts[1], starts[0] + 1):
        window.forget(physical, batch)

    replica.store.write(batch, sync=True)
    window.check()
    assert [row[1] for row in window.rows()] == list(window.sends) == [b"I0", b"I2"]
    assert list(replica.restarted().state.dedup.rows()) == list(window.rows())
    assert window.floor(count_max=1, oldest_ms=0, most=9) == (starts[0] + 1, True)
    assert replica.take(DedupTrimmed(starts[2] + 1)) == [Trimmed(2)]


def test_what_was_cancelled_is_known_by_its_time_until_it_is_sent_again(replica: Replica) -> None:
    """Law: a cancelled send is known by its time, also after a restart, until its identity is sent again."""
    starts = filled(replica, 0, 1)
    batch = Batch()

    for physical in (starts[0], starts[0] + 1):
        replica.state.dedup.cancel(physical, WALL_MS + 7, batch)

    replica.store.write(batch, sync=True)
    loaded = replica.restarted().state.dedup
    assert list(loaded.rows()) == list(replica.state.dedup.rows())
    assert loaded.sends[b"I0"] == FirstSend(-1, 0, starts[0], WALL_MS, WALL_MS + 7)
    assert loaded.floor(count_max=1, oldest_ms=0, most=9) == (starts[0] + 1, True)
    again = replica.state.physical_end
    for _ in range(2):
        replica.append(replica.topic_id(), 1, identity=b"I0", timestamp=WALL_MS + 9)
    replica.state.dedup.check()
    assert replica.state.dedup.sends[b"I0"] == FirstSend(1, 0, again, WALL_MS + 9)
    assert [row[1] for row in replica.restarted().state.dedup.rows()] == [b"I1", b"I0"]


@pytest.mark.parametrize("range_min", [1, 2, 3, 99])
@pytest.mark.parametrize("pattern", ["ccccc", "cxccc", "xcccx", "cxcxc", "ccxxc", "xxxxx", "xcccc"])
def test_copies_are_forgotten_in_memory_and_in_the_store_alike(
    pattern: str, range_min: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: copies are forgotten in memory and in the store alike; sends between them stay."""
    monkeypatch.setattr(duplicates, "_RANGE_MIN", range_min)
    store, batch = MemoryStore(), Batch()
    window = DedupWindow(store)
    for number, kind in enumerate(pattern):
        identity = send_identity(7, f"U{number}", 1, 5, {}, None)
        if kind == "c":
            identity = with_origin(identity, "orders")
        at = 10 * number
        window.add(Append(7, 0, number, at, 9, 7, WALL_MS, "", "", identity), batch)
        if number == 2:
            store.write(batch, sync=True)
            batch = Batch()

    window.forget_copies({7: {"orders"}, 8: {""}}, batch)

    store.write(batch, sync=True)
    window.check()
    assert [row[0] for row in window.rows()] == [10 * at for at in range(5) if pattern[at] == "x"]
    assert DedupWindow(store).sends == window.sends


def test_copies_that_fill_the_window_go_as_one_range() -> None:
    """Law: many adjacent copies are forgotten as one range, so that no replica deletes a hundred thousand rows in one
    turn.
    """
    window, batch = DedupWindow(MemoryStore()), Batch()
    for number in range(1_000):
        identity = with_origin(send_identity(7, f"U{number}", 1, 5, {}, None), f"t{number % 3}")
        record = Append(7, 0, number, number, 9, 7, WALL_MS, "", "", identity)
        window.add(record, Batch())

    window.forget_copies({7: {""}}, batch)

    assert (len(window), len(batch.puts), len(batch.range_deletes)) == (0, 0, 1)
    window.check()


@pytest.mark.parametrize("kept_each", [2, 7, 255])
def test_copies_among_other_sends_cost_no_call_for_each(kept_each: int) -> None:
    """Law: forgetting copies takes no function call per send, because the leader sends no heartbeats meanwhile."""

    def calls(count: int) -> int:
        window, batch = DedupWindow(MemoryStore()), Batch()
        for number in range(count):
            identity = send_identity(7, f"U{number}", 1, 5, {}, None)
            if number % kept_each:
                identity = with_origin(identity, "orders")
            record = Append(7, 0, number, number, 9, 7, WALL_MS, "", "", identity)
            window.add(record, Batch())
        return calls_in(lambda: window.forget_copies({7: {""}}, batch))

    assert calls(4_000) - calls(2_000) < 100


@pytest.mark.parametrize("length", [0, 1, UNIQUE_KEY_LENGTH_MAX, UNIQUE_KEY_LENGTH_MAX + 1])
def test_a_key_of_a_usual_length_makes_an_identity(length: int) -> None:
    """Law: a key makes an identity only if it has between one and the maximum number of characters."""
    found = send_identity(1, "U" * length, 2, 3, {}, 0)

    usual = 0 < length <= UNIQUE_KEY_LENGTH_MAX
    head = bytes.fromhex("000000010000000200000003") + b"U" * length
    assert (found.startswith(head), len(found) - len(head)) == (True, 16) if usual else not found


@pytest.mark.parametrize("key", ["\x01", "a\x01b", "ab\x01"])
def test_a_key_with_the_separator_of_origins_makes_none(key: str) -> None:
    """Law: a key that contains the separator of origins makes no identity, because its end would be read as an origin."""
    assert send_identity(1, key, 2, 3, {}, 0) == b""


def test_an_origin_is_a_text_that_can_name_a_topic() -> None:
    """Law: an origin is a valid topic name, without a separator that could be read as another message's place."""
    texts = ["orders", "o" * TOPIC_LENGTH_MAX, "o" * (TOPIC_LENGTH_MAX + 1), "orders\x01000A"]

    found = [origin_of({"RETRY_TOPIC": text}) for text in texts]

    assert found == [*texts[:2], "", ""]


def test_an_identity_is_the_same_in_every_process_and_release() -> None:
    """Law: an identity is the same in every process and release; otherwise a new leader would not recognise repeats."""
    said = {"TAGS": "a", "KEYS": "é", "WAIT": "true", "sw8": "1"}

    assert send_identity(1, "U", 2, 3, said, 0)[13:] == b"1048543f5f138f4d"
