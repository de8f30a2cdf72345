"""`onDeadLetter: HoldKey` and `StopQueue` with real brokers, consumers and the command."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from orderlymq import (
    AdminClient,
    Consumer,
    ConsumerSettings,
    OrderedContext,
    OrderedResult,
    Producer,
    PullConsumer,
    ReceivedMessage,
)
from orderlymq.cli import cli
from orderlymq_protocol.body.config import SubscriptionGroupConfig
from orderlymq_protocol.codes import RequestCode
from tests.cluster.processes import Group
from tests.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(90)]


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    found = Group(tmp_path_factory.mktemp("holding"), replicas=1)
    try:
        found.start()
        yield found
    finally:
        found.stop()


@pytest.fixture
async def admin(group: Group) -> AsyncIterator[AdminClient]:
    async with AdminClient(group.name_server_address) as client:
        yield client


@dataclass
class Till:
    """A listener that fails for bodies that begin with `bad`."""

    texts: list[str] = field(default_factory=list)

    async def __call__(
        self, messages: Sequence[ReceivedMessage], _context: OrderedContext
    ) -> OrderedResult:
        self.texts.append(messages[0].text)
        bad = messages[0].text.startswith("bad")
        return OrderedResult.SUSPEND if bad else OrderedResult.SUCCESS


async def make(admin: AdminClient, topic: str, name: str, policy: str) -> None:
    await admin.create_topic(topic, queues=1, ordered=True)
    config = SubscriptionGroupConfig(name, consume_message_orderly=True, on_dead_letter=policy)
    for address in (await admin.brokers()).values():
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        await admin.instance.call(address, code, {}, config.to_json())


def consumer(group: Group, topic: str, name: str, till: Till) -> Consumer:
    return Consumer(
        name,
        group.name_server_address,
        topics=topic,
        ordered=True,
        consume_from="first",
        listener=till,
        settings=ConsumerSettings(max_reconsume_times=1, suspend_current_queue_time=0.01),
    )


async def letters(group: Group, name: str) -> list[tuple[str, str | None]]:
    """Return the text and the held-behind property of every dead letter, in order."""
    async with PullConsumer("inspector", group.name_server_address) as inspector:
        try:
            (queue,) = await inspector.fetch_queues(f"%DLQ%{name}")
        except LookupError:
            return []
        found = (await inspector.pull(queue, None, 0)).messages
    return [(message.text, message.properties.get("OMQ_HELD_BEHIND")) for message in found]


def run(group: Group, *arguments: str) -> Result:
    return CliRunner().invoke(cli, [*arguments, "--name-server", group.name_server_address])


async def test_a_parked_key_waits_for_its_release_while_members_come_and_go(
    group: Group, admin: AdminClient
) -> None:
    """Later messages of a parked key follow its dead letter in order; other keys are still consumed."""
    await make(admin, "orders", "billing", "HoldKey")
    first, second = Till(), Till()
    async with Producer("p", group.name_server_address) as producer:
        sent = await producer.send("orders", "bad1", key="k")
        await producer.send("orders", "k2", key="k")
        await producer.send("orders", "o1", key="other")
        async with consumer(group, "orders", "billing", first):
            await until(lambda: "o1" in first.texts, 20)
        await producer.send("orders", "k3", key="k")
        await producer.send("orders", "o2", key="other")
        async with consumer(group, "orders", "billing", second):
            await until(lambda: "o2" in second.texts, 20)
            listed = await asyncio.to_thread(
                run, group, "group", "parked", "billing", "--output", "json"
            )
            release = ("group", "release", "billing", "--topic", "orders", "--key", "k")
            (row,) = json.loads(listed.stdout)
            seen = ("--offset", str(row["firstOffset"]))
            elsewhere = await asyncio.to_thread(
                run, group, *release, "--offset", str(row["firstOffset"] + 1)
            )
            released = await asyncio.to_thread(run, group, *release, *seen)
            again = await asyncio.to_thread(run, group, *release)
            await producer.send("orders", "k4", key="k")
            await until(lambda: "k4" in second.texts, 20)

    assert first.texts == ["bad1", "bad1", "o1"]
    assert second.texts == ["o2", "k4"]
    assert await letters(group, "billing") == [
        ("bad1", None),
        ("k2", sent.message_id),
        ("k3", sent.message_id),
    ]
    assert (row["key"], row["firstLetter"], row["behind"]) == ("k", sent.message_id, 2)
    assert [each.exit_code for each in (elsewhere, released, again)] == [3, 0, 3]
    assert await admin.parked_keys("billing") == []


async def test_a_stopped_queue_hands_nothing_over(group: Group, admin: AdminClient) -> None:
    """With StopQueue, the message is retried without end, regardless of the maximum of its consumer."""
    await make(admin, "bills", "printing", "StopQueue")
    till = Till()
    async with Producer("p", group.name_server_address) as producer:
        await producer.send("bills", "bad1", key="k")
        await producer.send("bills", "next", key="other")
        async with consumer(group, "bills", "printing", till):
            await until(lambda: len(till.texts) > 3, 30)

    assert set(till.texts) == {"bad1"}
    assert await letters(group, "printing") == []


async def test_holds_survive_the_death_of_the_leader(tmp_path: Path) -> None:
    """With three replicas, the next leader tells the next consumer which keys are held."""
    group = Group(tmp_path / "three")
    group.start()
    try:
        async with (
            AdminClient(group.name_server_address) as admin,
            Producer("p", group.name_server_address) as producer,
        ):
            await make(admin, "orders", "billing", "HoldKey")
            first, second = Till(), Till()
            await producer.send("orders", "bad1", key="k")
            await producer.send("orders", "o1", key="other")
            async with consumer(group, "orders", "billing", first):
                await until(lambda: "o1" in first.texts, 20)
            group.brokers[group.wait_for_leader()].kill()
            await producer.send("orders", "k2", key="k")
            await producer.send("orders", "o2", key="other")
            async with consumer(group, "orders", "billing", second):
                await until(lambda: "o2" in second.texts, 40)
            held = [(each.key, each.behind) for each in await admin.parked_keys("billing")]
        dead = await letters(group, "billing")
    finally:
        group.stop()

    assert second.texts == ["o2"]
    assert [text for text, _ in dead] == ["bad1", "k2"]
    assert held == [("k", 1)]
