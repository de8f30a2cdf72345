"""Evaluation of consumers' lines: order per key, repeats, pauses."""

from bench.handled import (
    Done,
    longest_pause_s,
    messages,
    p99_ms,
    per_second,
    read,
    repeats,
    violations,
    whole,
)

SECOND = 1_000_000_000


def done(key: str, sent: int, begun: int, ended: int) -> Done:
    """Return a message whose offset is its send time."""
    return Done(key, sent, sent, begun, ended)


def test_lines_are_read_once_they_are_whole() -> None:
    """A consumer writes while the bench reads; lines that are not messages begin with a sign."""
    text = "# started\nkey-1 7 10 20 30\nkey-2 8 11 2"

    assert list(read(whole(text))) == [Done("key-1", 7, 10, 20, 30)]


def test_order_holds_when_each_begins_after_the_one_before_of_its_key_has_ended() -> None:
    found = [done("a", 1, 10, 20), done("b", 2, 12, 22), done("a", 3, 20, 30)]

    assert violations(found) == 0


def test_a_message_that_begins_too_early_is_out_of_order() -> None:
    """This counts whether the later message overtakes the earlier one or only runs in parallel with it."""
    beside = [done("a", 1, 10, 20), done("a", 2, 19, 29)]
    before = [done("a", 1, 30, 40), done("a", 2, 10, 20)]

    assert violations(beside) == violations(before) == 1


def test_a_message_that_comes_again_is_a_repeat_and_no_violation() -> None:
    found = [done("a", 1, 10, 20), done("a", 2, 20, 30), done("a", 1, 40, 50)]

    assert violations(found) == 0
    assert repeats(found) == 1
    assert messages(found) == {("a", 1), ("a", 2)}


def test_rate_delay_and_pause_are_of_ends() -> None:
    found = [done("a", 0, 0, each * SECOND) for each in (1, 2, 4)]

    assert per_second(found) == 2 / 3
    assert longest_pause_s(found, 0, 9 * SECOND) == 5.0
    assert p99_ms(found) > 4_000
