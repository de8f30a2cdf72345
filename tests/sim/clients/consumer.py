"""
An ordered consumer: the SDK's core with a small shell of events around it.

The shell does with events what ``consumer.py`` and ``brokercalls.py`` of the SDK do with tasks. A *plain* consumer
speaks as an unmodified RocketMQ client does: no epoch, no client id, and the broker's own lease. The messages that
the core lets the listener see are compared with an account of which offset must come next under one lock.
"""

import zlib
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, assert_never

from orderlymq.connection.wire import check
from orderlymq.consumer.assignment import Averagely, assign
from orderlymq.consumer.core.events import (
    AskLocks,
    Assigned,
    Closing,
    DeadLetter,
    Deliver,
    DeliveryDropped,
    Event,
    FindStart,
    Instruction,
    ListenerDone,
    ListenerStarted,
    LocksAnswered,
    LocksFailed,
    OffsetIllegal,
    OrderedResult,
    Persist,
    Pull,
    Pulled,
    PullFailed,
    Release,
    Released,
    Report,
    SendBack,
    SendBackResult,
    SetOffset,
    StartFailed,
    StartFound,
    StopPull,
    Tick,
)
from orderlymq.consumer.core.ordered import OrderedConsumer
from orderlymq.consumer.core.queuestate import OrderedRules
from orderlymq.consumer.group.requests import (
    PullOptions,
    PullStatus,
    commit_request,
    fence,
    lock_request,
    pull_request,
    read_locks,
    read_offset,
    read_pull,
)
from orderlymq.errors import OrderlyMQError
from orderlymq.oracle.verdict import Kind
from orderlymq_protocol.body.catalogue import (
    ConsumerData,
    ConsumerIdList,
    HeartbeatData,
    SubscriptionData,
)
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import FLAG_ONEWAY, RemotingCommand, request
from orderlymq_protocol.header.catalogue import (
    ConsumerGroupHeader,
    QueryConsumerOffsetHeader,
)
from orderlymq_runtime.remoting.client import RemotingError
from tests.sim.broker.nameservers import Lookup
from tests.sim.clients.client import ADDRESS, Client
from tests.sim.clients.expected import Expected
from tests.sim.clients.handover import RECONSUME_MAX, HandOver
from tests.sim.timeline import MS, SECOND

if TYPE_CHECKING:
    from tests.sim.world import World

LEASE_MS: Final = 3_000
RENEW_MS: Final = 1_000
CALL_TIMEOUT_US: Final = SECOND
SUSPEND_MS: Final = 2_000
WORKERS: Final = 2
STALE_SHARE: Final = 0.1

Answer = RemotingCommand | RemotingError
_TROUBLE: Final = (RemotingError, OrderlyMQError, ValueError)


class Consumer(Client):
    """A member of an ordered consumer group."""

    def __init__(self, world: "World", group: str, number: int, *, plain: bool) -> None:
        super().__init__(world, f"{group}-{number}", f"10.0.2.{len(world.consumers) + 1}")
        self.group = group
        self.account = "auditing" if group == "audit" else group
        self.plain = plain
        self._births = 0
        self._lookup = Lookup(world, self, self.host)

    # -- life

    def start(self) -> None:
        """Start a new process of this member."""
        self.begin()
        self._births += 1
        self.client_id = f"{self.name}#{self._births}"
        random = self.timeline.random
        self._core = OrderedConsumer(
            self.group,
            OrderedRules(
                lease_ms=LEASE_MS,
                renew_ms=RENEW_MS,
                suspend_ms=20,
                batch_max=1,
                reconsume_max=RECONSUME_MAX,
            ),
        )
        self._offsets: dict[MessageQueue, tuple[int, int | None]] = {}
        self._stored: dict[MessageQueue, tuple[int, int | None]] = {}
        self._pulls: dict[MessageQueue, int] = {}
        self._pull_number = 0
        self._wake_ms: int | None = None
        self._busy = 0
        self._backlog: deque[Deliver] = deque()
        self._expected = Expected(self.world)
        self._lookup.start()
        self._members: list[str] = []
        self._closing = False
        self.subscription = SubscriptionData.of_tags(self.world.topic, "*", 1)
        self._subscriptions = {self.world.topic: self.subscription}
        self.after(random.randrange(50 * MS), "start", self._beat)
        self.after(200 * MS + random.randrange(50 * MS), "start", self._rebalance)
        self.after(SECOND, "persist", self._persist_all)

    def keeps_back(self, queue_id: int) -> int:
        """Return the number of a queue's messages that its listener has consumed but not committed yet."""
        if not self.alive:
            return 0
        return sum(
            len(state.fetcher.cache.taken)
            for queue, state in self._core.queues.items()
            if queue.queue_id == queue_id and state.uncommitted and not state.is_busy
        )

    def crash(self) -> None:
        """End without notice."""
        self.world.history.event(Kind.GONE, client=self.client_id)
        self._lookup.stop()
        self.forget_calls()
        self.end()

    def close(self) -> None:
        """Finish, commit, give back the queues, leave."""
        self._closing = True
        self.world.coverage["consumer closed"] += 1
        self._post(Closing())

    @property
    def core(self) -> OrderedConsumer:
        """Return the core, to inspect it."""
        return self._core

    # -- the core

    def _post(self, event: Event) -> None:
        for instruction in self._core.handle(event, self.now_ms()):
            self._do(instruction)
        wake_ms = self._core.next_wake_ms()
        if wake_ms is not None and wake_ms != self._wake_ms:
            self._wake_ms = wake_ms
            delay = max(0, self.true_time(wake_ms * MS) - self.timeline.now)
            self.after(delay, "wake", partial(self._wake, wake_ms))
        if self._closing and self._core.is_idle:
            self._closing = False
            ext = {"clientID": self.client_id, "consumerGroup": self.group}
            self.call(
                request(RequestCode.UNREGISTER_CLIENT, ext), CALL_TIMEOUT_US, lambda _: self._gone()
            )

    def _gone(self) -> None:
        self.world.history.event(Kind.GONE, client=self.client_id)
        self._lookup.stop()
        self.forget_calls()
        self.end()
        if self.world.calm:
            self.start()

    def _wake(self, wake_ms: int) -> None:
        if wake_ms == self._wake_ms:
            self._wake_ms = None
            self._post(Tick())

    def _do(self, instruction: Instruction) -> None:  # noqa: C901 - one arm per instruction
        match instruction:
            case Report():
                if "NOTIFYME" in instruction.text:
                    self.world.coverage["consumption restarted behind its plan"] += 1
                elif "without process consume result" in instruction.text:
                    self.world.coverage["late result of a lost queue dropped"] += 1
            case SetOffset():
                self._offsets[instruction.queue] = instruction.offset, instruction.epoch
            case Deliver():
                self._backlog.append(instruction)
                self._work()
            case Pull():
                self._pull(instruction)
            case StopPull():
                self._pulls.pop(instruction.queue, None)
            case AskLocks():
                self._ask_locks(instruction.queues)
            case FindStart():
                self._find_start(instruction)
            case DeadLetter():
                HandOver(self, instruction).begin()
            case Persist():
                self._persist([instruction.queue])
            case Release():
                self._release(instruction)
            case SendBack():
                raise AssertionError("an ordered core sends nothing back")
            case _:
                assert_never(instruction)

    # -- the listener

    def _work(self) -> None:
        while self._busy < WORKERS and self._backlog:
            deliver = self._backlog.popleft()
            identity = deliver.queue, deliver.generation, deliver.delivery
            if not self._core.maybe_start(deliver, self.now_ms()):
                self.world.coverage["delivery dropped before its listener"] += 1
                self._post(DeliveryDropped(*identity))
                continue
            self._busy += 1
            self._listen(deliver)
            self._post(ListenerStarted(*identity))

    def _listen(self, deliver: Deliver) -> None:
        world, queue = self.world, deliver.queue
        message = deliver.messages[0]
        key = (self.group, queue.topic, queue.queue_id)
        world.laws.delivered(
            key,
            self.client_id,
            deliver.epoch,
            message.queue_offset,
            lease_runs=self._core.queues[queue].holds(self.now_ms()),
        )
        world.laws.held.delivered(key, self.client_id, message)
        self._expected.check(self.client_id, deliver)
        world.history.event(
            Kind.DELIVER,
            topic=queue.topic,
            group=self.group,
            client=self.client_id,
            queue=str(queue.queue_id),
            offset=message.queue_offset,
            message=message.message_id,
            epoch=self._epoch(deliver),
        )
        random = self.timeline.random
        took = random.randrange(1 * MS, 20 * MS if world.calm else world.plan.listener_max_us)
        if not world.calm and random.random() < world.plan.long_listener:
            took = random.randrange(500 * MS, 2 * LEASE_MS * MS)
        self._watch_lease(deliver)
        self.after(took, "listener ends", partial(self._listened, deliver))

    def _epoch(self, deliver: Deliver) -> int:
        """Return the epoch of a delivery; for a plain client, the epoch in the log."""
        if deliver.epoch is not None:
            return deliver.epoch
        queue = deliver.queue
        return self.world.laws.model.locks[self.group, queue.topic, queue.queue_id].epoch

    def _watch_lease(self, deliver: Deliver) -> None:
        """Record in the history when a lease ends under a listener that still runs."""
        life = self.life

        def look() -> None:
            state = self._core.queues.get(deliver.queue)
            running = state is not None and state.delivery == deliver.delivery
            if self.life != life or not running or state is None:
                return
            until = self.true_time(state.lease_until_ms * MS)
            if until > self.timeline.now and state.fetcher.generation == deliver.generation:
                self.timeline.at(until, "lease watch", look)
                return
            self.world.coverage["listener outlived its lease"] += 1
            self.world.history.event(
                Kind.LAPSED,
                topic=deliver.queue.topic,
                group=self.group,
                client=self.client_id,
                queue=str(deliver.queue.queue_id),
            )

        look()

    def _listened(self, deliver: Deliver) -> None:
        world, queue = self.world, deliver.queue
        random = self.timeline.random
        message = deliver.messages[0]
        self._busy -= 1
        poison = zlib.crc32(message.message_id.encode()) % 1_000 < 1_000 * world.plan.poison
        result = OrderedResult.SUCCESS
        auto_commit = True
        if poison or random.random() < 0.03:
            result = OrderedResult.SUSPEND
        elif not world.calm and random.random() < world.plan.manual_commits:
            auto_commit = False
            result = random.choice(
                [OrderedResult.SUCCESS, OrderedResult.COMMIT, OrderedResult.ROLLBACK]
            )
        self._expected.listened(deliver, result, auto_commit=auto_commit)
        good = result in (OrderedResult.SUCCESS, OrderedResult.COMMIT)
        world.history.event(
            Kind.DONE if good else Kind.FAILED,
            topic=queue.topic,
            group=self.group,
            client=self.client_id,
            queue=str(queue.queue_id),
            offset=message.queue_offset,
            message=message.message_id,
        )
        self._post(
            ListenerDone(
                queue,
                deliver.generation,
                deliver.delivery,
                result,
                suspend_ms=10,
                auto_commit=auto_commit,
            )
        )
        self._work()

    def handed_over(self, copy: SendBackResult) -> None:
        """Handle the result of a dead letter."""
        if copy.ok:
            self._expected.passed_by(copy.queue, copy.generation, copy.offset)
        self._post(copy)

    # -- calls to the broker

    def _fence(self, epoch: int | None) -> dict[str, str]:
        return {} if self.plain else fence(self.client_id, epoch)

    def _ask_locks(self, queues: tuple[MessageQueue, ...]) -> None:
        asked_at_ms = self.now_ms()
        lease = None if self.plain else LEASE_MS
        command = lock_request(RequestCode.LOCK_BATCH_MQ, self.client_id, self.group, queues, lease)
        if self.plain:
            command.ext.clear()

        def answered(answer: Answer) -> None:
            try:
                if isinstance(answer, RemotingError):
                    raise answer
                granted, held = read_locks(check(answer, ADDRESS).body)
            except _TROUBLE as error:
                self._post(LocksFailed(queues, str(error)))
                return
            if self.plain:
                granted = dict.fromkeys(granted)
            self._post(LocksAnswered(queues, granted, asked_at_ms, held))

        self.call(command, CALL_TIMEOUT_US, answered)

    def _release(self, release: Release) -> None:
        queue = release.queue
        self._pulls.pop(queue, None)

        def unlock() -> None:
            self._offsets.pop(queue, None)
            self._stored.pop(queue, None)
            if not release.unlock:
                self._post(Released(queue))
                return
            command = lock_request(
                RequestCode.UNLOCK_BATCH_MQ, self.client_id, self.group, [queue], None
            )
            self.world.coverage["lock given back"] += 1
            self.call(command, CALL_TIMEOUT_US, lambda _: self._post(Released(queue)))

        entry = self._offsets.get(queue)
        if release.commit and entry is not None:
            command = commit_request(self.group, queue, entry[0], self._fence(entry[1]))
            if self.plain:
                # RocketMQ's clients wait for no answer; one that waits without being a member is a tool.
                command.flag |= FLAG_ONEWAY
                self.tell(command)
                self.after(0, "unlock", unlock)
                return
            self.call(command, CALL_TIMEOUT_US, lambda _: unlock())
        else:
            self.after(0, "unlock", unlock)

    def _find_start(self, ask: FindStart) -> None:
        queue, laws = ask.queue, self.world.laws
        key = (self.group, queue.topic, queue.queue_id)
        at_least = laws.observed[key]
        header = QueryConsumerOffsetHeader(self.group, queue.topic, queue.queue_id)
        command = request(
            RequestCode.QUERY_CONSUMER_OFFSET, {**header.to_ext(), **self._fence(None)}
        )

        def answered(answer: Answer) -> None:
            try:
                if isinstance(answer, RemotingError):
                    raise answer
                is_new = answer.code == ResponseCode.QUERY_NOT_FOUND
                offset = 0 if is_new else read_offset(check(answer, ADDRESS))
            except _TROUBLE as error:
                self._post(StartFailed(queue, ask.generation, str(error)))
                return
            laws.offset_answered(key, offset, at_least)
            self._expected.begun(queue, ask.generation, offset)
            self._post(StartFound(queue, ask.generation, offset, is_new))

        self.call(command, CALL_TIMEOUT_US, answered)

    def _pull(self, ask: Pull) -> None:
        queue = ask.queue
        self._pull_number += 1
        number = self._pulls[queue] = self._pull_number
        command = pull_request(
            PullOptions(
                group=self.group,
                queue=queue,
                offset=ask.offset,
                count=8,
                subscription=self.subscription,
                suspend_ms=SUSPEND_MS,
                commit_offset=ask.commit_offset,
                fence=self._fence(ask.epoch),
            )
        )

        had_lost = self._lost_already(queue, ask.epoch)
        floor = self.world.laws.floor(queue.queue_id)

        def answered(answer: Answer) -> None:
            if had_lost and isinstance(answer, RemotingCommand):
                self.world.laws.ensure(
                    answer.code != ResponseCode.SUCCESS,
                    "fence",
                    f"{self.client_id} pulls {queue.queue_id}@{ask.offset} of another's queue",
                )
            if self._pulls.get(queue) != number:
                return
            del self._pulls[queue]
            try:
                if isinstance(answer, RemotingError):
                    raise answer
                result = read_pull(answer, queue, self.group, ADDRESS)
            except RemotingError as error:
                self._post(PullFailed(queue, ask.generation, str(error)))
                return
            except _TROUBLE as error:
                self.world.coverage["pull refused"] += 1
                self._post(PullFailed(queue, ask.generation, str(error), refused=True))
                return
            if result.status is PullStatus.OFFSET_ILLEGAL:
                self._moved(ask, result.next_offset, floor)
                return
            for message in result.messages:
                self.world.laws.pulled(
                    queue.topic, queue.queue_id, message.queue_offset, message.message_id
                )
            self._post(Pulled(queue, ask.generation, result.messages, result.next_offset))

        self.call(command, SUSPEND_MS * MS + CALL_TIMEOUT_US, answered)

    def _moved(self, ask: Pull, offset: int, floor: int) -> None:
        """Continue at the queue's present beginning; earlier messages were dropped."""
        queue = ask.queue
        self.world.laws.passed_over(queue.queue_id, ask.offset, offset, floor)
        self._post(OffsetIllegal(queue, ask.generation, offset))
        state = self._core.queues.get(queue)
        if state is not None and state.fetcher.generation != ask.generation:
            self._expected.begun(queue, state.fetcher.generation, offset)

    def _persist_all(self) -> None:
        self.after(SECOND, "persist", self._persist_all)
        self._persist(sorted(self._offsets))

    def _persist(self, queues: list[MessageQueue]) -> None:
        for queue in queues:
            entry = self._offsets.get(queue)
            if entry is None or self._stored.get(queue) == entry:
                continue
            command = commit_request(self.group, queue, entry[0], self._fence(entry[1]))
            if self.plain:
                command.flag |= FLAG_ONEWAY
                self.tell(command)
                before = self._stored.get(queue)
                if before is not None and self.timeline.random.random() < STALE_SHARE:
                    # Two threads of a RocketMQ client persist offsets; the older offset may arrive later.
                    self.world.coverage["stale offset answered late"] += 1
                    late = commit_request(self.group, queue, before[0], {})
                    late.flag |= FLAG_ONEWAY
                    self.after(RENEW_MS * MS // 20, "persist late", partial(self.tell, late))
                self._stored[queue] = entry
                continue
            had_lost = self._lost_already(queue, entry[1])
            self.call(command, CALL_TIMEOUT_US, partial(self._persisted, queue, entry, had_lost))

    def _lost_already(self, queue: MessageQueue, epoch: int | None) -> bool:
        key = (self.group, queue.topic, queue.queue_id)
        return self.world.laws.has_lost(key, self.client_id, epoch)

    def _persisted(
        self, queue: MessageQueue, entry: tuple[int, int | None], had_lost: bool, answer: Answer
    ) -> None:
        if isinstance(answer, RemotingCommand) and answer.code == 0:
            self.world.laws.ensure(
                not had_lost, "fence", f"{self.client_id} commits {entry} of another's {queue}"
            )
            self.world.laws.offset_stored((self.group, queue.topic, queue.queue_id), entry[0])
            if queue in self._offsets:
                self._stored[queue] = entry
        elif isinstance(answer, RemotingCommand):
            self.world.coverage["commit refused"] += 1

    # -- membership

    def _beat(self) -> None:
        self.after(SECOND, "beat", self._beat)
        data = ConsumerData(self.group, subscription_data_set=(self.subscription,))
        body = HeartbeatData(self.client_id, (), (data,)).to_json()
        self.call(request(RequestCode.HEART_BEAT, None, body), CALL_TIMEOUT_US, lambda _: None)

    def answered(self, notice: RemotingCommand) -> None:
        """Handle a notice: read the members again."""
        if notice.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self.world.coverage["notified of a change"] += 1
            if "omqQueues" in notice.ext:
                self._lookup.look()
            self._ask_members()

    def _rebalance(self) -> None:
        self.after(2 * SECOND, "rebalance", self._rebalance)
        self._ask_members()

    def _ask_members(self) -> None:
        ext = ConsumerGroupHeader(self.group).to_ext()

        def answered(answer: Answer) -> None:
            if isinstance(answer, RemotingError) or answer.code != 0 or self._closing:
                return
            members = list(ConsumerIdList.from_json(answer.body).consumer_id_list)
            known = list(self._lookup.subscribe)
            if not known:
                return
            queues = assign(Averagely(), self.group, self.client_id, known, members)
            self._post(Assigned(frozenset(queues)))

        command = request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext)
        self.call(command, CALL_TIMEOUT_US, answered)
