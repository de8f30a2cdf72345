"""
Flow control of a consumer: when the next pull of a queue has to wait.

Rule: memory stays bounded even if the listener is slow or stuck. A queue holds at most 1000 messages or 100 MiB, plus
one pull; messages that were taken but not committed count, too. A concurrent queue also spans at most 2000 offsets, so
that the others cannot run far ahead of one stuck message. Limits per topic, if set, are shared among the topic's queues
and replace the limits per queue.
"""

from dataclasses import dataclass
from typing import Final

from orderlymq.consumer.core.processqueue import ProcessQueue

MIB: Final = 1024 * 1024
UNLIMITED: Final = -1
REPORT_EVERY: Final = 1000  # keeps the log short: RocketMQ also warns at each thousandth time


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """Limits of one consumer; sizes in MiB. UNLIMITED (-1) turns a limit per topic off."""

    queue_count: int = 1000
    queue_size_mib: int = 100
    span: int = 2000
    topic_count: int = UNLIMITED
    topic_size_mib: int = UNLIMITED

    def for_queue(self, topic_queues: int) -> "FlowLimits":
        """Return the limits for each of *topic_queues* assigned queues, at least 1 each."""
        queues = max(1, topic_queues)
        return FlowLimits(
            self.queue_count
            if self.topic_count == UNLIMITED
            else max(1, self.topic_count // queues),
            self.queue_size_mib
            if self.topic_size_mib == UNLIMITED
            else max(1, self.topic_size_mib // queues),
            self.span,
        )


def reason_to_wait(cache: ProcessQueue, limits: FlowLimits, *, ordered: bool) -> str | None:
    """Return why the next pull must wait, or None if it may start.

    A queue that is consumed in order has no span limit, because its messages leave one after the other.
    """
    if cache.count > limits.queue_count:
        return (
            f"the cached message count exceeds the threshold {limits.queue_count}, so do flow control, "
            f"minOffset={cache.min_offset}, maxOffset={cache.max_offset}, count={cache.count}"
        )
    if cache.size_bytes > limits.queue_size_mib * MIB:
        return (
            f"the cached message size exceeds the threshold {limits.queue_size_mib} MiB, "
            f"so do flow control, minOffset={cache.min_offset}, maxOffset={cache.max_offset}, "
            f"size={cache.size_bytes}"
        )
    if not ordered and cache.span > limits.span:
        return (
            "the queue's messages, span too long, so do flow control, "
            f"minOffset={cache.min_offset}, maxOffset={cache.max_offset}, maxSpan={cache.span}"
        )
    return None
