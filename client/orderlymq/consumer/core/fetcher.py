"""
The pulls of one assigned queue: the next offset, the next time, and the effect of a reply.

Shared by the ordered and the concurrent core. Rules: each queue has one pull in flight; the broker says the next
offset. A failed pull is tried again soon, and then less and less often, down to once a second.
"""

from dataclasses import dataclass, field
from typing import Final

from orderlymq.consumer.core.events import Instruction, Pull, Pulled, Report
from orderlymq.consumer.core.flowcontrol import REPORT_EVERY, FlowLimits, reason_to_wait
from orderlymq.consumer.core.processqueue import ProcessQueue
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.names import is_retry_topic

# A dead leader is replaced within some 300 ms; RocketMQ's fixed 3000 ms would stop the queue for ten times that.
RETRY_FIRST_MS: Final = 20
RETRY_MAX_MS: Final = 1_000


@dataclass(slots=True)
class Fetcher:
    """State of the pulls of one queue in one generation; a new generation gets a new object."""

    queue: MessageQueue
    generation: int
    next_offset: int = -1
    cache: ProcessQueue = field(default_factory=ProcessQueue)
    in_flight: bool = False
    not_before_ms: int = 0
    failures: int = 0
    flow_waits: int = 0

    def maybe_pull(
        self,
        now_ms: int,
        limits: FlowLimits,
        *,
        ordered: bool,
        commit_offset: int | None,
        epoch: int | None,
    ) -> list[Instruction]:
        """Return the pull that may start now, or the flow-control warning, or an empty list."""
        if self.in_flight or self.next_offset < 0 or now_ms < self.not_before_ms:
            return []
        reason = reason_to_wait(self.cache, limits, ordered=ordered)
        if reason is not None:
            self.flow_waits += 1
            # Report the first wait, too, so that the log shows why a queue stands still.
            if self.flow_waits % REPORT_EVERY == 1:
                text = f"{reason}, queue={self.queue}, flowControlTimes={self.flow_waits}"
                return [Report("warning", text)]
            return []
        self.in_flight = True
        return [Pull(self.queue, self.generation, self.next_offset, commit_offset, epoch)]

    def accept(self, event: Pulled, now_ms: int, interval_ms: int) -> list[Instruction]:
        """Put the messages of a reply into the cache and move to the next offset."""
        self.in_flight = False
        self.failures = 0
        self.not_before_ms = now_ms + interval_ms if event.messages else now_ms
        asked = self.next_offset
        first = event.messages[0].queue_offset if event.messages else event.next_offset
        self.next_offset = event.next_offset
        self.cache.put(event.messages)
        if min(first, event.next_offset) < asked:
            return [
                Report(
                    "warning",
                    f"[BUG] pull message result maybe data wrong, queue={self.queue}, "
                    f"nextBeginOffset={event.next_offset}, firstMsgOffset={first}, "
                    f"prevRequestOffset={asked}",
                )
            ]
        return []

    def fail(self, reason: str, now_ms: int) -> list[Instruction]:
        """Plan the next try after a failed pull."""
        self.in_flight = False
        delay_ms = min(RETRY_MAX_MS, RETRY_FIRST_MS << min(self.failures, 10))
        self.failures += 1
        self.not_before_ms = now_ms + delay_ms
        if is_retry_topic(self.queue.topic):
            return []  # RocketMQ does not log it either: a retry topic may not exist yet
        return [Report("debug", f"execute the pull request exception, {self.queue}: {reason}")]

    def wake_ms(self, now_ms: int) -> int | None:
        """Return when a waiting pull becomes due, or None if it does not wait for time alone."""
        if self.in_flight or self.next_offset < 0 or self.not_before_ms <= now_ms:
            return None
        return self.not_before_ms
