"""A consumer's statistics: RocketMQ's five rates, the histogram of its listener, and the results that count as done."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq.consumer.core.events import ConcurrentResult, ListenerDone, OrderedResult
from orderlymq.consumer.stats import CONSUME_RT_BOUNDS_MS, ConsumerStats, TopicCounters, outcome
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import request
from tests.client.fakecluster import FakeCluster, running
from tests.client.inbox import Inbox, fill, ordered_consumer
from tests.client.messages import QUEUE
from tests.waiting import until

HOUR_MS = 3_600_000


def done(
    result: OrderedResult | ConcurrentResult | None,
    *,
    auto_commit: bool = True,
    ack_index: int = 2**31 - 1,
) -> ListenerDone:
    return ListenerDone(QUEUE, 1, 1, result, auto_commit=auto_commit, ack_index=ack_index)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (done(OrderedResult.SUCCESS), (5, 0)),
        (done(OrderedResult.SUCCESS, auto_commit=False), (5, 0)),
        (done(OrderedResult.COMMIT), (5, 0)),
        (done(OrderedResult.COMMIT, auto_commit=False), (5, 0)),
        (done(OrderedResult.ROLLBACK), (5, 0)),
        (done(OrderedResult.ROLLBACK, auto_commit=False), (0, 0)),
        (done(OrderedResult.SUSPEND), (0, 5)),
        (done(None), (0, 5)),
        (done(ConcurrentResult.SUCCESS), (5, 0)),
        (done(ConcurrentResult.SUCCESS, ack_index=1), (2, 3)),
        (done(ConcurrentResult.SUCCESS, ack_index=-1), (0, 5)),
        (done(ConcurrentResult.RECONSUME_LATER), (0, 5)),
    ],
)
def test_each_result_of_a_listener_counts_its_messages(
    call: ListenerDone, expected: tuple[int, int]
) -> None:
    """Law: messages count as done or failed by the listener's result; COMMIT counts as done (MET-04, MET-05)."""
    assert outcome(call, 5) == expected


def test_rates_are_of_the_last_minute_and_totals_of_the_whole_life() -> None:
    """Law: rates cover the last minute, totals the whole life (MET-01 to MET-03)."""
    stats = ConsumerStats()
    for second in range(30):
        stats.pulled("T", 32, 20, second * 1_000)
        stats.listened("T", 1, done(OrderedResult.SUCCESS), 4, second * 1_000)
    stats.listened("T", 2, done(OrderedResult.SUSPEND), 100, 30_000)

    busy = stats.show(30_000)["T"]
    later = stats.show(30_000 + 61_000)["T"]
    much_later = stats.show(30_000 + HOUR_MS)["T"]

    assert (busy.pull_rt_ms, busy.pull_tps) == (20, 32)
    assert busy.consume_rt_ms == round((30 * 4 + 100) / 31, 2)
    assert (busy.consume_ok_tps, busy.consume_failed_tps) == (1, 0.07)
    assert (later.pull_tps, later.consume_ok_tps, later.consume_failed_msgs) == (0, 0, 2)
    assert much_later.consume_failed_msgs == 0
    assert (much_later.pulls, much_later.pulled) == (30, 960)
    assert (much_later.calls, much_later.ok, much_later.failed) == (31, 30, 2)


@given(st.lists(st.integers(0, 100_000), max_size=50))
def test_every_call_is_in_one_column_of_the_histogram(durations: list[int]) -> None:
    """Law: each call is in exactly one column of the histogram, by its duration (MET-03)."""
    stats = ConsumerStats()
    for at, duration_ms in enumerate(durations):
        stats.listened("T", 1, done(OrderedResult.SUCCESS), duration_ms, at)

    histogram = stats.show(0)["T"].consume_rt_histogram if durations else ()

    ends = (*CONSUME_RT_BOUNDS_MS, float("inf"))
    begins = (-1.0, *CONSUME_RT_BOUNDS_MS)
    expected = tuple(
        sum(begin < each <= end for each in durations)
        for begin, end in zip(begins, ends, strict=True)
    )
    assert histogram == (expected if durations else ())


async def test_a_consumer_reports_its_figures_to_its_user_and_to_rocketmqs_tools() -> None:
    """Law: `Consumer.stats` and statusTable of 307 (for `mqadmin consumerStatus`) show the same counts."""
    async with running(topics={"T": 1}, ordered=True) as cluster:
        fill(cluster, 3, queues=1)
        inbox = Inbox()
        inbox.answers = [OrderedResult.SUSPEND]
        async with ordered_consumer(cluster, inbox, suspend_current_queue_time=0.01) as consumer:
            await until(lambda: len(inbox.seen) == 4)
            await asyncio.sleep(0)
            stats = consumer.stats()["T"]
            told = await _ask(cluster)

    assert (stats.calls, stats.ok, stats.failed, stats.consume_failed_msgs) == (4, 3, 1, 1)
    assert (stats.pulls, stats.pulled) == (1, 3)
    assert sum(stats.consume_rt_histogram) == 4
    assert told["statusTable"]["T"].keys() == {
        "pullRT",
        "pullTPS",
        "consumeRT",
        "consumeOKTPS",
        "consumeFailedTPS",
        "consumeFailedMsgs",
    }
    assert told["statusTable"]["T"]["consumeFailedMsgs"] == 1
    assert isinstance(stats, TopicCounters)


async def _ask(cluster: FakeCluster) -> dict[str, dict[str, dict[str, float]]]:
    conn = next(iter(cluster.members["G"].values()))
    conn.send(request(RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "G"}))
    await until(lambda: bool(cluster.answers))
    found: dict[str, dict[str, dict[str, float]]] = fastjson.loads(cluster.answers[0].body)
    return found


async def test_pulls_that_wait_for_room_are_counted() -> None:
    """Law: pulls that wait for room are counted (MET-06)."""
    async with running(topics={"T": 1}, ordered=True) as cluster:
        fill(cluster, 10, queues=1)
        inbox = Inbox()
        inbox.answers = [OrderedResult.SUSPEND] * 1_000
        async with ordered_consumer(
            cluster,
            inbox,
            pull_threshold_for_queue=2,
            pull_batch_size=5,
            suspend_current_queue_time=0.01,
        ) as consumer:
            await until(lambda: consumer.flow_control_times >= 2)
            assert cluster.codes().count(RequestCode.PULL_MESSAGE) <= 3
