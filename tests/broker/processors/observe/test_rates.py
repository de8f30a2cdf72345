"""Counters over time: their growth in the last minute, hour and day, and their memory."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from orderlymq_broker.processors.observe.rates import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    SECOND_MS,
    Series,
)
from orderlymq_broker.state.records import GroupSet, TopicSet
from tests.broker.processors.driver import Shell
from tests.broker.processors.requests import create, properties, send

# The bucket widths of a minute, an hour and a day.
_WIDTHS = {MINUTE_MS: 2 * SECOND_MS, HOUR_MS: 2 * MINUTE_MS, DAY_MS: HOUR_MS}


@given(
    st.lists(st.tuples(st.sampled_from([500, 1_000, 30_000, 400_000, HOUR_MS]), st.integers(1, 9)))
)
def test_a_series_grows_by_what_came_since_its_span_began(steps: list[tuple[int, int]]) -> None:
    """Law: growth over a span equals that of a slow twin that keeps all events."""
    now_ms = 5_000
    series = Series(now_ms)
    came: list[tuple[int, int]] = []
    for pause_ms, count in steps:
        now_ms += pause_ms
        series.add(now_ms, count)
        came.append((now_ms, count))

        for span_ms, width_ms in _WIDTHS.items():
            first = (now_ms - span_ms) // width_ms + 1
            grown = sum(count for at_ms, count in came if at_ms // width_ms >= first)
            assert series.grown(now_ms, span_ms) == grown


def test_send_backs_are_counted_under_topics_alone(shell: Shell) -> None:
    """Law: returned messages are counted only under topics of this broker, whatever origin a client names."""
    create(shell, TopicSet("orders", 1, 1), TopicSet("%RETRY%billing", 1, 1), GroupSet("billing"))
    for number in range(3):
        said = properties(UNIQ_KEY=f"U{number}", RETRY_TOPIC="x" * 10_000 + str(number))
        assert send(shell, "%RETRY%billing", props=said).code == 0
    send(shell, props=properties(UNIQ_KEY="V"))
    queues = shell.state.topics.queues()
    places = sorted(entry.physical for queue in queues for entry in queue.tail)

    for place in places:
        ext = {"offset": str(place), "group": "billing", "delayLevel": "0"}
        assert shell.call(36, ext).code == 0

    assert len(places) == 4
    assert shell.core.context.sent_back == {("orders", "billing"): 1}


def test_a_series_takes_some_two_kilobytes_at_most() -> None:
    """Law: a series takes about two kilobytes at most, because a leader may have forty thousand."""
    count = 20
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()

    made = [Series(0) for _ in range(count)]
    for step in range(400):
        for series in made:
            series.add(5 * step * MINUTE_MS, 1)

    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (after - before) / count < 2_500
