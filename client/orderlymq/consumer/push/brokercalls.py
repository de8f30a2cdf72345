"""
Calls of a push consumer to brokers; each ends in the event that its core waits for.

Rules: a call for a core never raises because of trouble with a broker; trouble is an event, too. A lease counts from
the time before its request was sent, so it never outlives the broker's own count.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from orderlymq.connection.instance import ClientInstance
from orderlymq.connection.wire import check
from orderlymq.consumer.core.events import (
    DeadLetter,
    Event,
    FindStart,
    LocksAnswered,
    LocksFailed,
    OffsetIllegal,
    ParkedFrom,
    Pull,
    Pulled,
    PullFailed,
    SendBack,
    SendBackResult,
    StartFailed,
    StartFound,
)
from orderlymq.consumer.group.calls import (
    RETURN_TIMEOUT_S,
    TROUBLE,
    GroupCalls,
    hand_back,
    send_copy,
)
from orderlymq.consumer.group.offsets import OffsetStore
from orderlymq.consumer.group.requests import (
    RESUBSCRIBE,
    PullOptions,
    PullStatus,
    fence,
    is_sent_away,
    lock_request,
    park_request,
    pull_request,
    read_locks,
    read_pull,
    read_verdict,
)
from orderlymq.consumer.group.subscriptions import Subscription
from orderlymq.consumer.listeners.pool import left_behind
from orderlymq.consumer.settings import ConsumerSettings, MessageModel
from orderlymq.consumer.stats import ConsumerStats
from orderlymq.durations import milliseconds, seconds
from orderlymq.errors import BrokerError
from orderlymq.message import ReceivedMessage
from orderlymq_protocol.body.clients import LOCK_QUEUES_MAX
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.names import is_retry_topic
from orderlymq_runtime.remoting.client import RemotingError, RequestTimeout

_log = logging.getLogger(__name__)

_NO_ADDRESS: Final = "no leader's address"
_LOCK_TIMEOUT_S: Final = 1.0  # as in RocketMQ; a lease is long enough for several tries
# The time-out for a broker with slow disks; never longer than the pause between renewals.
_LOCK_TIMEOUT_MAX_S: Final = 4.0
_PULL_MARGIN_S: Final = 15.0  # beyond the time a broker may hold the pull; 30 s in all, as RocketMQ

# Like the broker's clock, this one also runs while a laptop or virtual machine sleeps: a member that slept holds
# nothing.
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", None)


class BrokerCalls(GroupCalls):
    """The calls of one push consumer.

    Args:
        post: gets every event.
        now_ms: the core's clock.
        stats: counts the pulls.

    Attributes:
        filters: the user's filters, applied after the tags were compared.
    """

    def __init__(  # noqa: PLR0913 - what one consumer shares with its calls
        self,
        instance: ClientInstance,
        group: str,
        settings: ConsumerSettings,
        offsets: OffsetStore,
        *,
        ordered: bool,
        subscriptions: dict[str, Subscription],
        post: Callable[[Event], None],
        now_ms: Callable[[], int],
        stats: ConsumerStats,
    ) -> None:
        super().__init__(instance, group, settings, offsets, subscriptions)
        self._post = post
        self._now_ms = now_ms
        self._stats = stats
        # Longer time-outs, by broker, after a lock request was not answered.
        self._lock_timeouts_s: dict[str, float] = {}
        self._reconsume_max = settings.reconsume_max(ordered=ordered)
        self.filters: list[Callable[[list[ReceivedMessage]], list[ReceivedMessage]]] = []

    @property
    def _left_behind(self) -> set[MessageQueue]:
        return left_behind(self._instance.client_id, self._group, self._now_ms())

    # -- locks

    async def ask_locks(self, queues: Sequence[MessageQueue]) -> None:
        """Ask every broker for the locks of its queues, all brokers at the same time.

        Queues that a thread of a closed consumer still works on are refused here while the lease may last, because
        brokers would renew the lease.
        """
        left = self._left_behind.intersection(queues)
        if left:
            self._post(LocksAnswered(tuple(left), {}, self._now_ms()))
        parts = _by_broker(each for each in queues if each not in left)
        await asyncio.gather(*(self._ask_locks(name, part) for name, part in parts))

    async def _ask_locks(self, broker_name: str, queues: tuple[MessageQueue, ...]) -> None:
        command = lock_request(
            RequestCode.LOCK_BATCH_MQ,
            self._instance.client_id,
            self._group,
            queues,
            milliseconds(self._settings.lock_lease),
        )
        address = await self._instance.address(broker_name, queues[0].topic)
        if address is None:
            self._instance.troubles.failed(broker_name, "locks", _NO_ADDRESS)
            self._post(LocksFailed(queues, f"{broker_name} has no leader's address"))
            return
        asked_at_ms = self._now_ms()
        timeout_s = self._lock_timeouts_s.get(broker_name, _LOCK_TIMEOUT_S)
        try:
            answer = check(await self._instance.invoke(address, command, timeout_s), address)
            granted, parked = read_locks(answer.body)
        except TROUBLE as error:
            if isinstance(error, RequestTimeout):
                longest_s = min(_LOCK_TIMEOUT_MAX_S, seconds(self._settings.lock_renew))
                self._lock_timeouts_s[broker_name] = max(
                    _LOCK_TIMEOUT_S, min(2 * timeout_s, longest_s)
                )
            self._instance.troubles.failed(broker_name, "locks", error)
            self._post(LocksFailed(queues, str(error)))
            return
        if self._now_ms() - asked_at_ms < 1000 * _LOCK_TIMEOUT_S:
            self._lock_timeouts_s.pop(broker_name, None)
        self._instance.troubles.answered(broker_name, "locks")
        self._post(LocksAnswered(queues, granted, asked_at_ms, parked))

    async def give_locks(self, queues: Iterable[MessageQueue]) -> None:
        """Give locks back, at all brokers at the same time; a lock that cannot be given back ends with its lease."""
        await asyncio.gather(*(self._give_locks(*part) for part in _by_broker(queues)))

    async def _give_locks(self, broker_name: str, queues: tuple[MessageQueue, ...]) -> None:
        address = self._instance.routes.address(broker_name)
        command = lock_request(
            RequestCode.UNLOCK_BATCH_MQ, self._instance.client_id, self._group, queues, None
        )
        try:
            if address is not None:
                check(await self._instance.invoke(address, command, _LOCK_TIMEOUT_S), address)
        except TROUBLE as error:
            _log.warning("unlockBatchMQ exception, %s: %s", queues, error)

    # -- where to begin

    async def find_start(self, ask: FindStart) -> None:
        """Find the offset to start at; never guess one."""
        queue = ask.queue
        # This can be true only for broadcasting: a queue that needs a lock was not granted.
        if queue in self._left_behind:
            text = "a thread of a closed consumer still works on it"
            _log.warning("%s is not consumed yet: %s", queue, text)
            self._post(StartFailed(queue, ask.generation, text))
            return
        try:
            start = await self.start_offset(queue)
        except TROUBLE as error:
            self._failed(queue, error)
            self._post(StartFailed(queue, ask.generation, str(error)))
            return
        self._post(StartFound(queue, ask.generation, *start))

    # -- pulls

    async def pull(self, ask: Pull) -> None:
        """Pull once and post the result."""
        queue = ask.queue
        subscription = self._subscriptions.get(queue.topic)
        address = await self._instance.address(queue.broker_name, queue.topic)
        if address is None or subscription is None:
            reason = _NO_ADDRESS if subscription else "the topic is not subscribed"
            if subscription:
                self._failed(queue, reason)
            self._post(PullFailed(queue, ask.generation, reason))
            return
        suspend_ms = milliseconds(self._settings.broker_suspend_max_time)
        is_clustering = self._settings.message_model is MessageModel.CLUSTERING
        command = pull_request(
            PullOptions(
                group=self._group,
                queue=queue,
                offset=ask.offset,
                count=self._settings.pull_batch_size,
                subscription=subscription.data,
                suspend_ms=suspend_ms,
                commit_offset=ask.commit_offset if is_clustering else None,
                with_subscription=self._settings.post_subscription_when_pull,
                fence=fence(self._instance.client_id, ask.epoch),
            )
        )
        asked_at_ms = self._now_ms()
        try:
            answer = await self._instance.invoke(
                address, command, suspend_ms / 1000 + _PULL_MARGIN_S
            )
            if answer.code in RESUBSCRIBE:
                await self._instance.heartbeats.beat_all()
            result = read_pull(answer, queue, self._group, address)
        except RemotingError as error:
            self._failed(queue, error)
            self._post(PullFailed(queue, ask.generation, str(error)))
            return
        except TROUBLE as error:
            self._failed(queue, error)
            self._post(PullFailed(queue, ask.generation, str(error), refused=True))
            return
        self._instance.troubles.answered(queue.broker_name, f"pulls of {queue.topic}")
        if result.status is PullStatus.OFFSET_ILLEGAL:
            self._post(OffsetIllegal(queue, ask.generation, result.next_offset))
            return
        if is_sent_away(result, ask.offset):
            self._post(
                PullFailed(queue, ask.generation, answer.remark or "the broker ended it early")
            )
            return
        wanted = self.filtered(result.messages, subscription)
        if result.status is PullStatus.FOUND:
            now_ms = self._now_ms()
            self._stats.pulled(queue.topic, len(wanted), now_ms - asked_at_ms, now_ms)
        self._post(Pulled(queue, ask.generation, wanted, result.next_offset))

    def _failed(self, queue: MessageQueue, error: object) -> None:
        """Record a failed call about a queue, except a refusal about a retry topic, which may not exist yet."""
        if not (isinstance(error, BrokerError) and is_retry_topic(queue.topic)):
            self._instance.troubles.failed(queue.broker_name, f"pulls of {queue.topic}", error)

    def filtered(
        self, messages: tuple[ReceivedMessage, ...], subscription: Subscription
    ) -> tuple[ReceivedMessage, ...]:
        """Drop messages that only share a tag's hash code, then those that the user's filters reject."""
        matches = subscription.tags.matches_tag
        found = [message for message in messages if matches(message.tags)]
        if self._instance.settings.namespace:
            for message in found:
                message.topic = self._instance.bare(message.topic)
        unread = [message for message in found if message.unreadable]
        found = [message for message in found if not message.unreadable]
        for each in self.filters:
            try:
                found = list(each([*found]))
            except Exception:
                _log.exception("the filter hook %r failed and is left out", each)
        return tuple(
            sorted([*found, *unread], key=lambda each: each.queue_offset) if unread else found
        )

    # -- handing messages back

    async def dead_letter(self, ask: DeadLetter) -> None:
        """Hand a message over to the dead-letter queue through the group's retry topic.

        The broker is asked first whether the message's key is parked; the dead letter is sent only when that is
        certain.
        """
        message, times = ask.message, ask.message.reconsume_times
        place = (ask.queue, ask.generation, message.queue_offset)
        verdict, parked, reason = await self._ask_parking(ask)
        if verdict not in ("held", "continue"):
            self._post(SendBackResult(*place, False, reason, parked, verdict == "released"))
            return
        behind = parked is not None and parked.precedes(message.queue_offset)
        ok, reason = await send_copy(
            self._instance,
            self._group,
            message,
            times=times,
            delay_level=0,
            maximum=times if parked is not None else self._reconsume_max,
            behind=parked.message_id if parked is not None and behind else "",
        )
        self._post(SendBackResult(*place, ok, reason, parked))

    async def _ask_parking(self, ask: DeadLetter) -> tuple[str, ParkedFrom | None, str]:
        """Return the broker's verdict, the dead letter that parks or may park the key, and the reason of a refusal."""
        queue = ask.queue
        if ask.epoch is None:
            return "continue", None, ""  # broadcasting, or a RocketMQ broker
        command = park_request(ask, self._group, self._instance.client_id)
        try:
            address = await self._instance.leader(queue.broker_name, queue.topic)
            answer = await self._instance.invoke(address, command, RETURN_TIMEOUT_S)
            verdict, parked = read_verdict(check(answer, address))
        except TROUBLE as error:
            return "", ask.presumed, str(error)
        return verdict, parked, answer.remark or ""

    async def send_back(self, ask: SendBack) -> None:
        """Give a message back for a later retry; if the broker refuses, send it a copy."""
        level, maximum = ask.delay_level, self._reconsume_max
        ok, reason = await hand_back(
            self._instance, self._group, ask.message, delay_level=level, maximum=maximum
        )
        self._post(SendBackResult(ask.queue, ask.generation, ask.message.queue_offset, ok, reason))


def lease_clock_ms() -> int:
    """Return the current time of the clock that counts leases."""
    now_ns = time.monotonic_ns() if _CLOCK is None else time.clock_gettime_ns(_CLOCK)
    return now_ns // 1_000_000


def _by_broker(queues: Iterable[MessageQueue]) -> list[tuple[str, tuple[MessageQueue, ...]]]:
    """Return the queues to lock or give back at each broker, in parts that fit into one request."""
    parts: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        parts.setdefault(queue.broker_name, []).append(queue)
    return [
        (name, tuple(part[start : start + LOCK_QUEUES_MAX]))
        for name, part in parts.items()
        for start in range(0, len(part), LOCK_QUEUES_MAX)
    ]
