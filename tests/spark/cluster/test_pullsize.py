"""Pulls of one queue ask for as many messages as the broker returns, regardless of earlier answers."""

from collections.abc import Callable, Sequence

from orderlymq_spark.cluster.pullsize import PullSize

AT_ONCE = 8
ANSWER_BYTES = 1 << 20


def rounds_for(sizes: Sequence[int], give: Callable[[Sequence[int]], int]) -> int:
    """Return the number of rounds of eight pulls that read messages of these sizes."""
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
    """Return as many messages as fit into an answer, and at least one."""
    count = size = 0
    for each in wanted:
        if count and size + each > ANSWER_BYTES:
            break
        count, size = count + 1, size + each
    return count


def rocketmq(wanted: Sequence[int]) -> int:
    return min(32, by_bytes(wanted))


def test_a_large_message_does_not_slow_down_what_comes_behind_it() -> None:
    """One message of 4 MiB before a hundred thousand of 1 KiB costs only the rounds that notice the change."""
    alone = rounds_for([1024] * 100_000, by_bytes)

    assert rounds_for([4 << 20] + [1024] * 100_000, by_bytes) < 3 * alone + 60
    assert alone == 25


def test_brokers_that_give_few_are_asked_for_few() -> None:
    """RocketMQ's brokers return 32 messages: few rounds ask for more than eight times 32."""
    best = 100_000 / (32 * AT_ONCE)

    assert rounds_for([1024] * 100_000, rocketmq) < best * 1.1


def test_large_messages_are_asked_for_one_answer_at_a_time() -> None:
    best = 20_000 / (16 * AT_ONCE)

    assert rounds_for([64 << 10] * 20_000, by_bytes) < best * 1.15
