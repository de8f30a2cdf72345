"""Flow control: when a pull must wait."""

from orderlymq.consumer.core.flowcontrol import MIB, FlowLimits, reason_to_wait
from orderlymq.consumer.core.processqueue import ProcessQueue
from tests.client.messages import message


def _cache(*offsets: int, size: int = 10) -> ProcessQueue:
    cache = ProcessQueue()
    cache.put([message(offset, size=size) for offset in offsets])
    return cache


def test_a_thousand_messages_pass_and_one_more_waits() -> None:
    """Law: a pull waits if more than 1000 messages of the queue are cached (FLW-04)."""
    assert reason_to_wait(_cache(*range(1000)), FlowLimits(), ordered=True) is None
    reason = reason_to_wait(_cache(*range(1001)), FlowLimits(), ordered=True)

    assert reason is not None
    assert "exceeds the threshold 1000" in reason


def test_a_hundred_mebibytes_pass_and_more_waits() -> None:
    """Law: a pull waits if more than 100 MiB of the queue are cached (FLW-04)."""
    cache = ProcessQueue()
    big = message(0)
    big.size_bytes = 100 * MIB
    cache.put([big])
    assert reason_to_wait(cache, FlowLimits(), ordered=True) is None
    cache.put([message(1)])

    reason = reason_to_wait(cache, FlowLimits(), ordered=True)

    assert reason is not None
    assert "100 MiB" in reason


def test_the_span_limits_concurrent_queues_only() -> None:
    """Law: the span limits concurrent queues only; the reason names minimum, maximum and span (FLW-01, FLW-03, LOG-03)."""
    cache = _cache(0, 2001)

    reason = reason_to_wait(cache, FlowLimits(), ordered=False)

    assert reason is not None
    assert all(part in reason for part in ("span too long", "minOffset=0", "maxOffset=2001"))
    assert reason_to_wait(cache, FlowLimits(), ordered=True) is None
    assert reason_to_wait(_cache(0, 2000), FlowLimits(), ordered=False) is None


def test_what_is_taken_and_not_committed_counts() -> None:
    """Law: messages that were delivered but not committed count, so that a listener that never commits cannot fill memory
    (ACM-04).
    """
    cache = _cache(*range(1001))
    cache.take(1001)

    assert reason_to_wait(cache, FlowLimits(), ordered=True) is not None


def test_limits_per_topic_are_divided_and_replace_those_per_queue() -> None:
    """Law: limits per topic are divided over its queues and replace those per queue (FLW-04, CFG-S12, CFG-S13)."""
    limits = FlowLimits(topic_count=100, topic_size_mib=50)

    assert limits.for_queue(8) == FlowLimits(queue_count=12, queue_size_mib=6)
    assert limits.for_queue(1000) == FlowLimits(queue_count=1, queue_size_mib=1)
    assert FlowLimits().for_queue(8) == FlowLimits()
