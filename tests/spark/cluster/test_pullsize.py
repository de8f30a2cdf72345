"""Pulls of one queue ask for what the broker brings, whatever it brought before."""

from collections.abc import Callable, Sequence

from orderlymq_spark.cluster.pullsize import PullSize

AT_ONCE = 8
ANSWER_BYTES = 1 << 20


def rounds_for(sizes: Sequence[int], give: Callable[[Sequence[int]], int]) -> int:
    """Return how many rounds of eight pulls read messages of these sizes."""
    asks, position, rounds = PullSize(512), 0, 0
    while position < len(sizes):
        rounds += 1
        step = asks.count
        first = None
        for place in range(position, min(len(sizes), position + AT_ONCE * step), step):
            if place != position:
                break
            asked = min(step, len(sizes) - place)
            brought = give(sizes[place : place + asked])
            position += brought
            first = first or (asked, brought)
        assert first is not None
        asks.note(*first)
    return rounds


def by_bytes(wanted: Sequence[int]) -> int:
    """Give as many as fit an answer, and one at least."""
    count = size = 0
    for each in wanted:
        if count and size + each > ANSWER_BYTES:
            break
        count, size = count + 1, size + each
    return count


def rocketmq(wanted: Sequence[int]) -> int:
    return min(32, by_bytes(wanted))


def test_a_large_message_does_not_slow_down_what_comes_behind_it() -> None:
    """One of 4 MiB, then a hundred thousand of 1 KiB: as fast as without it, but for the time to find that out."""
    alone = rounds_for([1024] * 100_000, by_bytes)

    assert rounds_for([4 << 20] + [1024] * 100_000, by_bytes) < 3 * alone + 60
    assert alone == 25


def test_brokers_that_give_few_are_asked_for_few() -> None:
    """RocketMQ's give 32: rounds that asked for more are few beside those that brought eight times 32."""
    best = 100_000 / (32 * AT_ONCE)

    assert rounds_for([1024] * 100_000, rocketmq) < best * 1.1


def test_large_messages_are_asked_for_one_answer_at_a_time() -> None:
    best = 20_000 / (16 * AT_ONCE)

    assert rounds_for([64 << 10] * 20_000, by_bytes) < best * 1.15
