"""
The state of one queue of an ordered consumer: its phase, its lock, and what is with a listener or a broker.

Rule: this module only holds data and answers questions; `ordered` makes every change, so that its rules stand in one
place.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from orderlymq.consumer.core.events import ListenerDone, OrderedResult, ParkedFrom, Report
from orderlymq.consumer.core.fetcher import Fetcher
from orderlymq.consumer.core.flowcontrol import FlowLimits
from orderlymq.consumer.core.queues import AssignedQueue
from orderlymq.message import ReceivedMessage
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.integers import INT32_MAX
from orderlymq_protocol.plurals import counted

FOREVER: Final = 2**62
"""The end of the lease while broadcasting, where no broker grants one."""


class Phase(Enum):
    """The phase of a queue; see `OrderedConsumer` for the transitions."""

    LOCKING = auto()  # wanted, no live lock
    STARTING = auto()  # locked, the start offset is being asked for
    RUNNING = auto()  # locked, being consumed
    LEAVING = auto()  # given up as soon as the running listener is done


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedRules:
    """Settings of the core; times in milliseconds."""

    lease_ms: int = 15_000
    renew_ms: int = 5_000
    suspend_ms: int = 1_000
    batch_max: int = 1
    reconsume_max: int = INT32_MAX
    pull_interval_ms: int = 0
    continuous_max_ms: int = 60_000
    uncommitted_warning: int = 500
    needs_lock: bool = True  # False for broadcasting: each member has the queue to itself
    limits: FlowLimits = field(default_factory=FlowLimits)


@dataclass(slots=True)
class QueueState(AssignedQueue):
    """One queue that this consumer wants or is about to give up."""

    phase: Phase = Phase.LOCKING
    epoch: int | None = None
    lease_until_ms: int = 0
    ask_at_ms: int = 0
    asking: bool = False
    planned: int | None = None  # the next offset when the lock was lost
    auto_commit: bool = True
    delivery: int | None = (
        None  # the listener call that runs or waits for a worker, of any generation
    )
    begun: bool = False  # a worker has begun that call
    delivered: tuple[ReceivedMessage, ...] = ()
    copying: bool = False
    stalled: ListenerDone | None = None  # the listener's result that arrived without a live lease
    not_before_ms: int = 0
    busy_since_ms: int | None = None
    single_until: int = 0  # deliver messages one by one below this offset
    parked: dict[str, ParkedFrom] = field(
        default_factory=dict
    )  # by key, for as long as we hold the lock
    dead: set[int] = field(default_factory=set)  # offsets of dead letters, not yet committed
    uncommitted: int = 0

    @property
    def is_busy(self) -> bool:
        """Whether a listener has messages of the queue, or a message is being handed over."""
        return self.delivery is not None or self.copying

    def holds(self, now_ms: int) -> bool:
        """Return whether the lease still runs."""
        return now_ms < self.lease_until_ms

    @property
    def all_dead(self) -> bool:
        """Whether all messages that were taken and not committed are handed over as dead letters."""
        return all(message.queue_offset in self.dead for message in self.fetcher.cache.taken)

    def must_rest(self, now_ms: int, continuous_max_ms: int) -> bool:
        """Return whether the queue has had its worker so long that other queues are due; start the clock if it is stopped."""
        if self.busy_since_ms is None:
            self.busy_since_ms = now_ms
        elif now_ms - self.busy_since_ms > continuous_max_ms:
            self.busy_since_ms = None
            return True
        return False

    def restart(self, fetcher: Fetcher) -> None:
        """Forget the messages and counts of the former fetcher; a running listener call stays known."""
        self.fetcher = fetcher
        self.stalled = None
        self.finding = False
        self.find_at_ms = 0
        self.committed = None if fetcher.next_offset < 0 else fetcher.next_offset
        self.not_before_ms = 0
        self.busy_since_ms = None
        self.single_until = 0
        self.dead = set()
        self.uncommitted = 0
        self.dirty = False
        self.phase = Phase.STARTING if fetcher.next_offset < 0 else Phase.RUNNING

    def count_uncommitted(self, count: int, limit: int) -> list[Report]:
        """Count messages that were consumed without a commit; warn at each multiple of *limit*."""
        before, self.uncommitted = self.uncommitted, self.uncommitted + count
        if before // limit == self.uncommitted // limit:
            return []
        text = (
            f"{self.queue} has {counted(self.uncommitted, 'message')} consumed but not committed: the "
            "listener switched auto_commit off and has not returned COMMIT; pulling stops when the "
            "cache is full"
        )
        return [Report("warning", text)]

    def wants_lock(self, now_ms: int) -> bool:
        """Return whether the lock should be requested or renewed now."""
        return not self.asking and now_ms >= self.ask_at_ms and self._may_ask(now_ms)

    def wake_ms(self, now_ms: int, *, needs_lock: bool, paused: bool) -> int | None:
        """Return the next time at which time alone changes something, or None."""
        due: list[int] = []
        if needs_lock and not self.asking and self._may_ask(now_ms):
            due.append(self.ask_at_ms)
        if self.phase in (Phase.RUNNING, Phase.STARTING) and self.lease_until_ms < FOREVER:
            due.append(self.lease_until_ms)
        if self.phase is Phase.STARTING and not self.finding:
            due.append(self.find_at_ms)
        if self.phase is Phase.RUNNING and not paused:
            if self.fetcher.cache.waiting_count and not self.is_busy and self.stalled is None:
                due.append(self.not_before_ms)
            wake_ms = self.fetcher.wake_ms(now_ms)
            if wake_ms is not None:
                due.append(wake_ms)
        return min(due, default=None)

    def _may_ask(self, now_ms: int) -> bool:
        # A queue that is being given up is renewed only while its listener still runs.
        return self.phase is not Phase.LEAVING or (self.is_busy and self.holds(now_ms))


# -- what the log says; the words are RocketMQ's, so that they can be searched for


def message_ids(messages: Sequence[ReceivedMessage]) -> list[str]:
    """Return the ids of messages, for the log."""
    return [message.message_id for message in messages]


def result_reports(
    group: str, event: ListenerDone, messages: Sequence[ReceivedMessage]
) -> list[Report]:
    """Return the warning about a listener call that failed or returned anything but SUCCESS or COMMIT."""
    facts = f"Group: {group} Msgs: {message_ids(messages)} MQ: {event.queue}"
    if event.raised is not None:
        return [Report("warning", f"consumeMessage exception: {event.raised} {facts}")]
    if event.result in (OrderedResult.SUCCESS, OrderedResult.COMMIT):
        return []
    returned = "" if event.result is None else event.result.name
    return [Report("warning", f"consumeMessage Orderly return not OK ({returned}), {facts}")]


def dropped_report(queue: MessageQueue, messages: Sequence[ReceivedMessage]) -> Report:
    """Return the warning about a result that came too late to count."""
    return Report(
        "warning",
        f"processQueue is dropped without process consume result. messageQueue={queue}, "
        f"msgs={message_ids(messages)}",
    )


def refused_report(group: str, queue: MessageQueue) -> Report:
    """Return the warning about a queue that another member holds; without it, the wait would look like a hang."""
    return Report(
        "warning",
        f"doRebalance, {group}, add a new mq failed, {queue}, because lock failed; pull message later "
        f"because not locked in broker; see `orderlymq group show {group}` for its holder",
    )


def first_pull_reports(queue: MessageQueue, offset: int, planned: int | None) -> list[Report]:
    """Return the log lines about the start offset; one more if it is before the planned offset."""
    busy = planned is not None and offset < planned
    found = [
        Report(
            "info",
            "the first time to pull message, so fix offset from broker. "
            f"{queue} NewOffset: {offset} brokerBusy: {busy}",
        )
    ]
    if busy:
        found.append(
            Report(
                "info",
                "[NOTIFYME]the first time to pull message, but pull request offset larger than broker "
                f"consume offset. {queue} NewOffset: {offset} planned: {planned}",
            )
        )
    return found
