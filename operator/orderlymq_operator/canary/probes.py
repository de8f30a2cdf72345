"""
The producer and the two consumers of a canary, which use only the SDK.

Rules: a send is repeated as the same `Message` until its outcome is known, so that the next number never overtakes
it. One consumer ends at intervals, and the other takes its queues. Errors of the SDK go to the judge and never end
the canary.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from orderlymq.admin.client import AdminClient
from orderlymq.consumer.listeners.context import OrderedContext
from orderlymq.consumer.push.consumer import Consumer
from orderlymq.consumer.settings import ConsumerSettings
from orderlymq.errors import BrokerUnreachable, OrderlyMQError, SendRefused, SendUnknown
from orderlymq.message import Message, ReceivedMessage
from orderlymq.producer.producer import Producer
from orderlymq_operator.canary.probe import AlteredError, Probe, decode
from orderlymq_operator.canary.troubles import Kind, Lane
from orderlymq_operator.canary.verdict import Canary
from orderlymq_operator.resources.cluster.canary import CANARY_QUEUES
from orderlymq_protocol.body.catalogue import SubscriptionGroupConfig
from orderlymq_protocol.body.config import TopicConfig
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.names import is_retry_topic

_log = logging.getLogger(__name__)

_SEND_TIMEOUT_S: Final = 2.0
_PAUSE_S: Final = 0.2
_POLL_S: Final = 0.5
# How long a consumer works on a message: if two hold one queue, they are seen within this time.
_WORK_S: Final = 0.02
_CLOSE_S: Final = 10.0
now_s: Final = time.monotonic  # seconds of the canary's clock
_MEMBERS: Final = ("first", "second")
Filter: TypeAlias = Callable[[list[ReceivedMessage]], list[ReceivedMessage]]


@dataclass(frozen=True, slots=True)
class Plan:
    """Where a canary works.

    Attributes:
        groups: the broker groups, each of which has its own topic.
        prefix: prefix of the topics, and the name of the consumer group.
        takeover_s: time from the end of one consumer to the end of the other.
        makes_topics: whether the canary creates its topics; otherwise the operator does, and the canary waits.
    """

    groups: tuple[str, ...]
    prefix: str
    name_servers: str | None = None
    takeover_s: float = 60.0
    makes_topics: bool = True

    def topic(self, group: str) -> str:
        """Return the topic that exists only in *group*."""
        return f"{self.prefix}_{group}"

    def lanes(self) -> list[Lane]:
        """Return all queues."""
        return [Lane(group, queue) for group in self.groups for queue in range(CANARY_QUEUES)]


class Probes:
    """Sends and consumes; `run` until cancelled.

    Args:
        filters: change what consumers pull before the judge sees it; tests use them to inject faults that no broker
            makes.
    """

    def __init__(self, plan: Plan, canary: Canary, filters: Sequence[Filter] = ()) -> None:
        self.filters = filters
        self._plan = plan
        self._canary = canary
        self._groups = {plan.topic(group): group for group in plan.groups}
        self._gone: set[str] = set()
        self._made = asyncio.Event()

    async def run(self) -> None:
        """Send and consume until cancelled."""
        async with (
            AdminClient(self._plan.name_servers) as admin,
            Producer("orderlymq_canary", instance=admin.instance) as producer,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(self._tick(), name="ticks")
            tasks.create_task(self._consume(), name="consumers")
            for lane in self._canary.ledgers:
                tasks.create_task(self._send(admin, producer, lane), name=f"sends to {lane}")

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_POLL_S)
            self._canary.tick(now_s())

    # -- topics

    async def _until_made(self, admin: AdminClient, lane: Lane) -> None:
        """Create the topic and the consumer group; retry until it succeeds, without delaying other broker groups."""
        while True:
            try:
                await make(admin, self._plan, lane.group)
            except OrderlyMQError as error:
                self._canary.fail(lane, f"{type(error).__name__}: {error}")
                await asyncio.sleep(_POLL_S)
            else:
                self._made.set()
                return

    async def _look_after(self, admin: AdminClient, lane: Lane) -> None:
        """Create the topic again if the broker group's leader reports that it is gone."""
        with contextlib.suppress(OrderlyMQError):
            address = (await admin.brokers()).get(lane.group)
            if address is None:
                return
            found = await admin.at(lane.group, address).topic_configs()
            if self._plan.topic(lane.group) not in found:
                if lane.group not in self._gone:
                    self._gone.add(lane.group)
                    text = f"{lane.group} has no topic of this canary"
                    self._canary.report(Kind.TOPIC_GONE, lane, text, now_s())
                await make(admin, self._plan, lane.group)

    # -- the sender

    async def _send(self, admin: AdminClient, producer: Producer, lane: Lane) -> None:
        await self._until_made(admin, lane)
        interval_s = self._canary.limits.interval_s
        due = now_s()
        while True:
            number = self._canary.send(lane, now_s())
            body = Probe(self._canary.run, lane, number).encode()
            message = Message(
                topic=self._plan.topic(lane.group), body=body, key=f"key-{lane.queue}"
            )
            await self._until_known(admin, producer, lane, message, number)
            due = max(due + interval_s, now_s())
            await asyncio.sleep(due - now_s())

    async def _until_known(
        self, admin: AdminClient, producer: Producer, lane: Lane, message: Message, number: int
    ) -> None:
        """Send one message until it is stored, or certainly is not."""
        queue = MessageQueue(message.topic, lane.group, lane.queue)
        may_be_stored = False
        while True:
            try:
                result = await producer.send(message, queue=queue, timeout=_SEND_TIMEOUT_S)
            except OrderlyMQError as error:
                self._canary.fail(lane, f"{type(error).__name__}: {error}")
                may_be_stored |= isinstance(error, SendUnknown)
                await self._look_after(admin, lane)
                await asyncio.sleep(_PAUSE_S)
                if isinstance(error, SendRefused) and not may_be_stored:
                    self._canary.refuse(lane, number)
                    return
            else:
                self._gone.discard(lane.group)
                place = result.queue.queue_id
                self._canary.acknowledge(lane, number, result.queue_offset, place, now_s())
                return

    # -- the consumers

    async def _consume(self) -> None:
        """Run two consumers as soon as there is a topic, and end one of them at intervals."""
        await self._made.wait()
        async with contextlib.AsyncExitStack() as stack:
            members = [await stack.enter_async_context(self._member(name)) for name in _MEMBERS]
            turn = 0
            while True:
                await asyncio.sleep(self._plan.takeover_s)
                await members[turn].change()
                self._canary.takeovers += 1
                turn = (turn + 1) % len(members)

    @contextlib.asynccontextmanager
    async def _member(self, name: str) -> AsyncIterator["Member"]:
        member = Member(self, self._plan, name)
        try:
            await member.begin()
            yield member
        finally:
            await member.end()

    async def listen(self, member: str, messages: Sequence[ReceivedMessage]) -> None:
        """Judge the messages that *member* got, one after the other."""
        for message in messages:
            group = self._groups.get(message.topic)
            if group is None:
                continue  # a message of the retry topic
            lane = Lane(group, message.queue.queue_id)
            if lane not in self._canary.ledgers:
                continue
            self._canary.take(lane, member, now_s())
            try:
                self._judge(lane, message)
                await asyncio.sleep(_WORK_S)
            finally:
                self._canary.leave(lane, member)

    def _judge(self, lane: Lane, message: ReceivedMessage) -> None:
        now, offset = now_s(), message.queue_offset
        try:
            probe = decode(message.body)
        except AlteredError as error:
            text = f"the message at offset {offset} was altered: {error}"
            self._canary.report(Kind.ALTERED, lane, text, now)
            return
        if probe.run != self._canary.run:
            self._canary.foreign(lane, now)
        elif probe.lane != lane:
            text = f"message {probe.number} of {probe.lane} lies at offset {offset}"
            self._canary.report(Kind.MISPLACED, lane, text, now)
        else:
            self._canary.deliver(lane, probe.number, offset, now)


class Member:
    """One of the two consumers, which ends and starts again."""

    def __init__(self, probes: Probes, plan: Plan, name: str) -> None:
        self._probes = probes
        self._plan = plan
        self._name = name
        self._consumer: Consumer | None = None

    async def begin(self) -> None:
        """Start the consumer; retry until it succeeds."""
        while self._consumer is None:
            self._consumer = made = self._make()
            try:
                await _to_the_end(made.start())
            except OrderlyMQError as error:
                self._consumer = None
                _log.warning("the %s consumer cannot start: %s", self._name, error)
                await asyncio.sleep(_PAUSE_S)

    async def change(self) -> None:
        """End the consumer, let the other one take the queues, and start again."""
        await self.end()
        await asyncio.sleep(self._plan.takeover_s / 4)
        await self.begin()

    async def end(self) -> None:
        """End the consumer."""
        ended, self._consumer = self._consumer, None
        if ended is not None:
            await _to_the_end(ended.close())

    def _make(self) -> Consumer:
        async def listener(messages: Sequence[ReceivedMessage], context: OrderedContext) -> None:
            await self._probes.listen(self._name, messages)

        return Consumer(
            self._plan.prefix,
            self._plan.name_servers,
            topics=[self._plan.topic(group) for group in self._plan.groups],
            listener=listener,
            ordered=True,
            consume_from="first",
            filters=self._probes.filters,
            settings=ConsumerSettings(shutdown_timeout=_CLOSE_S),
        )


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Await *work* to its end even if this call is cancelled: half a start would leave its connections open."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


async def make(admin: AdminClient, plan: Plan, group: str) -> None:
    """Create the topic and the consumer group in one broker group; existing ones stay as they are.

    It does not matter whether other broker groups answer.

    Raises:
        TopicNotFound: the operator has not created the topic yet.
        OrderlyMQError: the broker group does not answer or refuses.
    """
    topic = plan.topic(group)
    if plan.makes_topics:
        await admin.create_topic(topic, queues=CANARY_QUEUES, ordered=True, brokers=[group])
    else:
        await admin.route(topic)
    address = (await admin.brokers()).get(group)
    if address is None:
        raise BrokerUnreachable(f"the broker group {group} is not registered now")
    await admin.at(group, address).set_group(
        SubscriptionGroupConfig(group_name=plan.prefix, consume_message_orderly=True)
    )


async def remove(
    admin: AdminClient, plan: Plan, agree: Callable[[Sequence[str]], None] = lambda _: None
) -> list[str]:
    """Delete the topics of a canary that has ended, and its consumer group; return the topics.

    Nothing else is deleted: a topic must have the form of a canary's, and the consumer group must have offsets only
    in these topics.

    Args:
        admin: client of the cluster.
        plan: names the broker groups; all registered ones if it names none.
        agree: called with the names of what will be deleted; it raises to prevent the deletion.

    Raises:
        OrderlyMQError: a broker group does not answer or refuses.
    """
    configs = await admin.topic_configs()
    groups = plan.groups or tuple(await admin.brokers())
    topics = sorted(plan.topic(group) for group in groups if _is_made(plan, group, configs))
    if not topics:
        return []
    has_group = plan.prefix in await admin.groups() and not {
        topic
        for topic in await admin.topics_of_group(plan.prefix)
        if topic not in topics and not is_retry_topic(topic)
    }
    agree([*topics, *([f"consumer group {plan.prefix}"] if has_group else [])])
    if has_group:  # first: a retry needs the topics to see that the consumer group is the canary's
        await admin.delete_group(plan.prefix)
    for topic in topics:
        await admin.delete_topic(topic)
    return topics


def _is_made(plan: Plan, group: str, configs: Mapping[str, Mapping[str, TopicConfig]]) -> bool:
    """Return whether the topic of *group* has the form that a canary gives it."""
    found = configs.get(plan.topic(group), {})
    config = found.get(group)
    if config is None or len(found) > 1:
        return False
    return config.order and config.read_queue_nums == config.write_queue_nums == CANARY_QUEUES
