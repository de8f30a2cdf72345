"""The queue of a key: the same as in Java."""

from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq.errors import SettingError
from orderlymq.message import Message
from orderlymq.producer.selectors import (
    RoundRobin,
    by_hash,
    by_machine_room,
    by_modulo,
    by_random,
    by_selector,
    hash_index,
    java_hash,
    modulo_index,
)
from orderlymq_protocol.body.messagequeue import MessageQueue

QUEUES = tuple(MessageQueue("T", "broker-a", number) for number in range(4))
MESSAGE = Message(topic="T", body=b"x")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("", 0),
        ("a", 97),
        ("TagA", 2598919),
        ("hello", 99162322),
        ("4711", 1603555),
        ("中文", 646394),
        ("😀", 1772899),
        ("polygenelubricants", -(2**31)),
        (0, 0),
        (5, 5),
        (-5, -5),
        (2**31 - 1, 2**31 - 1),
        (2**31, -(2**31)),
        (2**32, 1),
        (2**40 + 3, 259),
        (True, 1231),
        (False, 1237),
    ],
)
def test_the_hash_is_javas(key: object, value: int) -> None:
    """Law: the hash equals Java's hashCode of String, Integer, Long and Boolean."""
    assert java_hash(key) == value


def test_a_hash_of_the_smallest_integer_has_a_queue() -> None:
    """Law: a key whose hash is the smallest integer has queue 0; Java's selector fails there (SEL-03)."""
    assert hash_index("polygenelubricants", 4) == 0


@pytest.mark.parametrize(
    ("key", "index"), [("TagA", 3), ("hello", 2), ("4711", 3), ("a", 1), (-5, 1)]
)
def test_a_key_takes_the_remainder_of_its_absolute_hash(key: str | int, index: int) -> None:
    """Law: a key's queue is abs(hashCode) % n (SEL-03)."""
    assert by_hash(QUEUES, MESSAGE, key) == QUEUES[index]


@given(st.integers(0, 2**63 - 1), st.integers(1, 64))
def test_ids_go_to_their_remainder(number: int, count: int) -> None:
    """Law: by_modulo gives id mod n, also for 64-bit ids (SEL-02, SEL-08)."""
    assert modulo_index(number, count) == number % count


@given(st.integers(-(2**63), -1), st.integers(1, 64))
def test_a_negative_id_takes_the_queue_of_its_absolute_value(number: int, count: int) -> None:
    """Law: a negative id has the queue of its absolute value (SEL-02)."""
    assert modulo_index(number, count) == -number % count


def test_every_message_of_a_key_goes_to_one_queue() -> None:
    """Law: every message of a key goes to one queue (SEL-04)."""
    for order in range(100):
        assert len({by_hash(QUEUES, MESSAGE, f"order-{order}") for _ in range(3)}) == 1


@pytest.mark.parametrize("key", [1.5, b"raw", None, 2**63])
def test_a_key_without_a_java_hash_is_refused(key: object) -> None:
    """Law: a key without a Java hash is refused with what to pass instead."""
    with pytest.raises(SettingError, match=r"text or a 64-bit integer|pass str"):
        java_hash(key)


def test_modulo_wants_an_integer() -> None:
    """Law: by_modulo refuses a text, which belongs to key=."""
    with pytest.raises(SettingError, match="takes an integer, not str"):
        by_modulo(QUEUES, MESSAGE, "7")
    assert by_modulo(QUEUES, MESSAGE, 7) == QUEUES[3]


def test_random_asks_for_a_number_below_the_count() -> None:
    """Law: by_random asks for a number below the count (SelectMessageQueueByRandom)."""
    assert by_random(lambda count: count - 1)(QUEUES, MESSAGE, None) == QUEUES[3]


def test_machine_rooms_restrict_the_queues() -> None:
    """Law: by_machine_room restricts the queues to brokers whose name has the room before the @."""
    far = MessageQueue("T", "room1@b", 0)
    near = MessageQueue("T", "room2@b", 0)

    chosen = by_machine_room(frozenset({"room2"}), lambda _: 0)((far, near), MESSAGE, None)

    assert chosen == near
    with pytest.raises(SettingError, match="no queue of the topic lies"):
        by_machine_room(frozenset({"room3"}), lambda _: 0)((far, near), MESSAGE, None)


def test_what_a_selector_returns_is_checked() -> None:
    """Law: a selector that returns nothing, or a queue of another topic, sends nothing (SEL-09)."""

    def chosen(selected: object) -> MessageQueue:
        return by_selector(lambda *_: selected, QUEUES, MESSAGE, None)  # type: ignore[arg-type]  # as users err

    assert chosen(QUEUES[1]) == QUEUES[1]
    with pytest.raises(SettingError, match="returned no queue; nothing was sent"):
        chosen(None)
    with pytest.raises(SettingError, match="not a queue of the topic"):
        chosen(MessageQueue("T", "broker-b", 0))


def test_plain_sends_are_spread_evenly() -> None:
    """Law: plain sends are spread evenly (PRO-14)."""
    turn = RoundRobin()
    counts = dict.fromkeys(QUEUES, 0)

    for _ in range(400):
        counts[turn.select(QUEUES)] += 1

    assert set(counts.values()) == {100}


def test_the_broker_that_failed_last_is_left_out_when_there_is_another() -> None:
    """Law: round robin avoids the broker that failed last, if there is another (PRO-14)."""
    mixed = (*QUEUES[:2], MessageQueue("T", "broker-b", 0))
    turn = RoundRobin()

    chosen = [turn.select(mixed, {"broker-a"}) for _ in range(3)]
    alone = [turn.select(QUEUES, {"broker-a"}) for _ in range(3)]

    assert chosen == [mixed[2]] * 3
    assert len(set(alone)) == 3
    assert next(cycle(alone)) in QUEUES
