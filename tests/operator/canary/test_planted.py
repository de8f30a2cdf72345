"""The whole canary on a real cluster: each planted trouble is found; the report's property `seen_s` says how soon."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final

import pytest

from orderlymq import (
    AdminClient,
    Consumer,
    Message,
    OrderlyMQError,
    Producer,
    ReceivedMessage,
)
from orderlymq_operator.canary.ledger import Bounds
from orderlymq_operator.canary.probe import Probe
from orderlymq_operator.canary.probes import Plan, remove
from orderlymq_operator.canary.process import Address, CanaryProcess
from orderlymq_operator.canary.troubles import Kind, Lane
from orderlymq_operator.canary.verdict import Limits, Verdict
from orderlymq_protocol.body.catalogue import SubscriptionGroupConfig
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.names import ORDER_NAMESPACE
from tests.cluster.processes import Group

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

GROUP: Final = "g"
LANE: Final = Lane(GROUP, 0)
LIMITS: Final = Limits(interval_s=0.1, target_s=0.5, stale_s=2.0, bounds=Bounds(replay_s=3.0))
_prefixes = itertools.count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """Three real brokers and a name server."""
    with Group(tmp_path_factory.mktemp("canary")) as found:
        yield found


@dataclass
class Run:
    """A running canary and its verdicts.

    Attributes:
        faults: changes of pulled messages; empty at the start.
    """

    cluster: Group
    plan: Plan
    admin: AdminClient
    process: CanaryProcess
    faults: list[Callable[[list[ReceivedMessage]], list[ReceivedMessage]]]
    said: list[Verdict] = field(default_factory=list)

    @property
    def topic(self) -> str:
        return self.plan.topic(GROUP)

    async def until(self, sight: Callable[[Verdict], bool], patience_s: float = 30.0) -> float:
        """Return after how many seconds the verdict is the wanted one."""
        begun = time.monotonic()
        while not sight(self.process.verdict()):
            assert time.monotonic() - begun < patience_s, self.process.status()
            await asyncio.sleep(0.02)
        return time.monotonic() - begun

    async def send(self, body: bytes, queue: int = 0) -> None:
        """Send a message as another program does."""
        async with Producer("somebody", self.cluster.name_server_address) as producer:
            message = Message(topic=self.topic, body=body, key=f"key-{queue}")
            await insist(
                lambda: producer.send(message, queue=MessageQueue(self.topic, GROUP, queue))
            )

    def probe(self, number: int, lane: Lane = LANE) -> bytes:
        """Return the body of a message of this run."""
        return Probe(self.process.canary.run, lane, number).encode()


@asynccontextmanager
async def running(cluster: Group, limits: Limits = LIMITS) -> AsyncIterator[Run]:
    """Run a canary with its own topics until it has verified the order."""
    faults: list[Callable[[list[ReceivedMessage]], list[ReceivedMessage]]] = []

    def plant(messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        for fault in faults:
            messages = fault(messages)
        return messages

    plan = Plan((GROUP,), f"canary{next(_prefixes)}", cluster.name_server_address, takeover_s=30.0)
    said: list[Verdict] = []
    process = CanaryProcess(plan, limits, Address("127.0.0.1", 0), said.append, [plant])
    async with AdminClient(cluster.name_server_address) as admin:
        run = Run(cluster, plan, admin, process, faults, said)
        task = asyncio.create_task(process.run())
        try:
            await run.until(lambda verdict: verdict.status == "True")
            yield run
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await insist(lambda: remove(admin, plan))


async def insist(call: Callable[[], Awaitable[object]]) -> None:
    """Repeat *call* until a leader serves it, because on a busy machine one may lose its lease."""
    while True:
        try:
            await call()
        except OrderlyMQError:
            await asyncio.sleep(0.05)
        else:
            return


async def store_an_older_message_again(run: Run) -> None:
    await run.until(lambda verdict: run.process.canary.ledgers[LANE].highest > 5)
    await run.send(run.probe(1))


async def send_garbage(run: Run) -> None:
    await run.send(b"\x00 no probe")


async def invent_a_message(run: Run) -> None:
    await run.send(run.probe(1_000_000))


async def send_into_the_wrong_queue(run: Run) -> None:
    await run.send(run.probe(1, Lane(GROUP, 1)))


async def delete_the_topic(run: Run) -> None:
    await insist(lambda: run.admin.delete_topic(run.topic))


async def drop_one_message(run: Run) -> None:
    once = [True]

    def drop(messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        if once and messages:
            once.clear()
            return messages[1:]
        return messages

    run.faults.append(drop)


async def swap_two_messages(run: Run) -> None:
    """Hold one message back until the next pull."""
    held: list[ReceivedMessage] = []
    done: list[bool] = []

    def swap(messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        if held and messages and messages[0].queue == held[0].queue:
            number = messages[0].queue_offset
            late, first = held.pop(), messages[0]
            done.append(True)
            # The SDK itself keeps offsets in order, so the bodies are exchanged.
            return [first, replace(late, queue_offset=number), *messages[1:]]
        if messages and not done and not held:
            held.append(messages[0])
            return messages[1:]
        return messages

    run.faults.append(swap)


async def alter_a_body(run: Run) -> None:
    def alter(messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        return [replace(each, body=each.body.replace(b" g ", b" h ")) for each in messages]

    run.faults.append(alter)


async def let_two_hold_one_queue(run: Run) -> None:
    """Let another consumer get the same messages at the same time, without the lock."""

    async def listener(messages: Sequence[ReceivedMessage], context: object) -> None:
        await run.process.probes.listen("a third", messages)

    stranger = Consumer(
        f"{run.plan.prefix}_third",
        run.cluster.name_server_address,
        topics=run.topic,
        listener=listener,
    )
    await stranger.start()
    await run.until(lambda verdict: verdict.status == "False")
    await stranger.close()


async def reset_the_group(run: Run) -> None:
    """End the locks, and let the next holder begin at the first message."""
    await run.until(lambda verdict: run.process.canary.ledgers[LANE].highest > 60)
    for lock in (await run.admin.locks(run.plan.prefix)).values():
        await run.admin.client_dead(run.cluster.address, lock.client_id, "planted")
    await insist(lambda: run.admin.reset_offsets(run.plan.prefix, run.topic, "earliest"))


async def suspend_the_group(run: Run) -> None:
    config = SubscriptionGroupConfig(
        group_name=run.plan.prefix, consume_message_orderly=True, consume_enable=False
    )
    await insist(lambda: run.admin.set_group(config))


async def close_the_topic(run: Run) -> None:
    """Make the topic read-only."""
    await insist(
        lambda: run.admin.create_topic(run.topic, queues=2, ordered=True, brokers=[GROUP], perm=4)
    )


Plant = Callable[[Run], Awaitable[None]]
Property = Callable[[str, object], None]  # Pytest's record_property.
BROKEN: Final[dict[Plant, set[Kind]]] = {
    drop_one_message: {Kind.SKIPPED},
    swap_two_messages: {Kind.SKIPPED, Kind.REWRITTEN, Kind.REORDERED},
    alter_a_body: {Kind.ALTERED},
    store_an_older_message_again: {Kind.STORED_TWICE},
    send_garbage: {Kind.ALTERED},
    invent_a_message: {Kind.ALTERED},
    send_into_the_wrong_queue: {Kind.MISPLACED},
    let_two_hold_one_queue: {Kind.TWO_HOLDERS},
    reset_the_group: {Kind.REPLAYED},
    delete_the_topic: {Kind.TOPIC_GONE, Kind.LOST},
}
TOLD: Final[dict[Plant, str]] = {
    suspend_the_group: "NotDelivered",
    close_the_topic: "SendsFail",
}


@pytest.mark.parametrize("plant", BROKEN, ids=lambda plant: plant.__name__)
async def test_each_planted_trouble_is_found(
    cluster: Group, plant: Plant, record_property: Property
) -> None:
    """Law: a broken promise makes the verdict False, with a fitting reason."""
    async with running(cluster) as run:
        await plant(run)
        record_property(
            "seen_s", round(await run.until(lambda verdict: verdict.status == "False"), 2)
        )

        assert set(run.process.canary.counts) & BROKEN[plant], run.process.status()


@pytest.mark.parametrize("plant", TOLD, ids=lambda plant: plant.__name__)
async def test_what_cannot_be_proven_is_reported(
    cluster: Group, plant: Plant, record_property: Property
) -> None:
    """Law: a group that accepts or delivers nothing, or late, makes the verdict Unknown, not False."""
    async with running(cluster) as run:
        await plant(run)
        record_property(
            "seen_s", round(await run.until(lambda verdict: verdict.reason == TOLD[plant]), 2)
        )

        assert run.process.canary.budget.bad > 0


async def test_a_cluster_that_misses_the_target_is_slow_and_in_order(cluster: Group) -> None:
    """Law: a cluster that misses the latency target is slow, but its order is kept."""
    async with running(cluster, replace(LIMITS, target_s=1e-6)) as run:
        await run.until(lambda verdict: verdict.reason == "Slow")

        assert run.process.verdict().status == "True"
        assert run.process.canary.budget.bad > 0


async def test_where_the_operator_makes_the_topics_the_canary_waits_for_them(
    cluster: Group,
) -> None:
    """Law: if the operator makes the topics, the canary waits for them and says why nothing is verified yet."""
    plan = Plan(
        (GROUP,), f"canary{next(_prefixes)}", cluster.name_server_address, makes_topics=False
    )
    process = CanaryProcess(plan, LIMITS, Address("127.0.0.1", 0))
    async with AdminClient(cluster.name_server_address) as admin:
        run = Run(cluster, plan, admin, process, [])
        task = asyncio.create_task(process.run())
        try:
            await run.until(lambda verdict: "TopicNotFound" in verdict.message)
            await insist(
                lambda: admin.create_topic(run.topic, queues=2, ordered=True, brokers=[GROUP])
            )
            await run.until(lambda verdict: verdict.status == "True")
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_a_group_that_is_away_leaves_the_proof_of_the_others(cluster: Group) -> None:
    """Law: a broker group that is away does not stop the verification of the others."""
    plan = Plan((GROUP, "away"), f"canary{next(_prefixes)}", cluster.name_server_address)
    process = CanaryProcess(plan, LIMITS, Address("127.0.0.1", 0))
    async with AdminClient(cluster.name_server_address) as admin:
        await admin.put_kv(ORDER_NAMESPACE, "orders", "away:4")
        run = Run(cluster, plan, admin, process, [])
        task = asyncio.create_task(process.run())
        try:
            await run.until(lambda verdict: "2 of 4 queues" in verdict.message)
            verdict = process.verdict()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await admin.delete_kv(ORDER_NAMESPACE, "orders")
            await insist(lambda: remove(admin, plan))

    assert (verdict.status, verdict.reason) == ("Unknown", "SendsFail")
    assert verdict.message.startswith("away/0: ")
    assert not process.canary.counts


async def test_a_canary_leaves_nothing_when_it_is_removed(cluster: Group) -> None:
    """Law: a removed canary leaves neither topics nor group."""
    async with running(cluster) as run:
        assert run.topic in await run.admin.topics()

    async with AdminClient(cluster.name_server_address) as admin:
        assert run.topic not in await admin.topics()
        assert run.plan.prefix not in await admin.groups()


async def test_the_removal_of_a_canary_takes_nothing_of_anybody_else(cluster: Group) -> None:
    """Law: removing a canary keeps topics with similar names, and a group that consumes other topics."""
    plan = Plan((), "billing", cluster.name_server_address)
    mine, bare = plan.topic(GROUP), plan.topic("eu")
    asked: list[Sequence[str]] = []
    async with AdminClient(cluster.name_server_address) as admin:
        await insist(lambda: admin.create_topic(bare, queues=2, ordered=True))
        await insist(lambda: admin.create_topic(mine, queues=4, ordered=True))
        await insist(lambda: admin.set_group(SubscriptionGroupConfig(group_name="billing")))
        assert await remove(admin, plan, asked.append) == []
        await insist(lambda: admin.delete_topic(mine))
        await insist(lambda: admin.create_topic(mine, queues=2, ordered=True))
        await insist(lambda: admin.set_offsets("billing", bare, {MessageQueue(bare, GROUP, 0): 0}))

        assert await remove(admin, replace(plan, groups=("eu",)), asked.append) == []
        assert await remove(admin, plan, asked.append) == [mine]

        assert asked == [[mine]]
        assert bare in await admin.topics()
        assert "billing" in await admin.groups()
        await insist(lambda: admin.delete_group("billing"))
        await insist(lambda: admin.delete_topic(bare))
