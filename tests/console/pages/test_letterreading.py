"""Reading dead letters: how many messages and questions that costs, and which next steps stay unknown."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from orderlymq import Producer
from orderlymq.admin.client import AdminClient
from orderlymq.consumer.group.queuereader import QueueReader
from orderlymq.consumer.group.requests import copy_to_retry
from orderlymq.message import Message, ReceivedMessage
from orderlymq_console.actions.plan import Plan
from orderlymq_console.actions.redrive import plan_redrive, redrive
from orderlymq_console.cluster import ClusterReader
from orderlymq_console.collector import Collector
from orderlymq_console.messagemodels import LettersPage
from orderlymq_console.pages.key import key as explained
from orderlymq_console.pages.letters import READ_MAX, Letters, letters, read_letters
from orderlymq_console.pages.notfound import NotThere
from orderlymq_console.parameters import BadParameter, Parameters
from orderlymq_console.sentletters import Begin
from orderlymq_protocol.body.config import PERM_READ, SubscriptionGroupConfig
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.names import ORDER_NAMESPACE
from orderlymq_testing.cluster import Cluster
from tests.cluster.conftest import make_group  # noqa: F401 - a fixture
from tests.cluster.processes import Group
from tests.console.actions.test_actions import park
from tests.ports import free_ports

pytestmark = pytest.mark.cluster


class Clock:
    """A clock that only the test moves."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("letters")) as running:
        yield running


@pytest.fixture
async def admin(cluster: Cluster) -> AsyncIterator[AdminClient]:
    async with AdminClient(cluster.name_server) as client:
        yield client


async def give_up(admin: AdminClient, group: str, topic: str, keys: list[str]) -> MessageQueue:
    """Send a message for each key and make it a dead letter; return the letters' queue."""
    await admin.create_topic(topic, queues=1, ordered=True)
    await admin.set_group(SubscriptionGroupConfig(group))
    async with Producer("sender", instance=admin.instance) as producer:
        await producer.send_batch(
            [Message(topic=topic, body=b"x", key=key) for key in keys], queue=0
        )
    (queue,) = (await admin.route(topic)).subscribe
    pulls = QueueReader(admin.instance, "TOOLS_CONSUMER")
    offset, end = 0, await pulls.max_offset(queue)
    while offset < end:
        result = await pulls.pull(queue, offset, unreadable=True)
        offset = result.next_offset
        for each in result.messages:
            await hand_over(admin, group, each)
    await admin.set_offsets(group, topic, {queue: end})

    return MessageQueue(f"%DLQ%{group}", queue.broker_name, 0)


async def hand_over(admin: AdminClient, group: str, message: ReceivedMessage) -> None:
    """Make a dead letter of a message, as a consumer does."""
    address = (await admin.brokers())[message.queue.broker_name]
    copy = copy_to_retry(message, group, times=1, maximum=1, delay_level=0, born_ms=1)
    await admin.instance.call(address, RequestCode(copy.code), copy.ext, copy.body)


async def page(reader: ClusterReader, group: str) -> LettersPage:
    return await letters(reader, Parameters({"group": group}))


def offsets(found: Letters) -> list[int]:
    return [each.offset for each in found.found]


async def test_a_look_reads_a_bounded_number_behind_what_was_sent(
    admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a look reads a limited number of letters behind the sent ones and says if there are more;
    a restarted topic is read from its begin.
    """
    queue = await give_up(admin, "window", "windows", ["a", "a", "b", "c", "a"])
    reader = ClusterReader(admin, Collector())

    with monkeypatch.context() as few:
        few.setattr("orderlymq_console.pages.letters.READ_MAX", 2)
        first = await read_letters(reader, "window")
        reader.sent.begin_at(queue, Begin(2, first.found[1].identity))
        second = await read_letters(reader, "window")
    whole = await read_letters(reader, "window")
    reader.sent.begin_at(queue, Begin(9, first.found[1].identity))
    again = await read_letters(reader, "window")
    reader.sent.begin_at(queue, Begin(2, "another letter"))
    other = await read_letters(reader, "window")

    assert (offsets(first), first.total, first.passed, bool(first.rest)) == ([0, 1], 5, 0, True)
    assert (offsets(second), second.total, second.passed, bool(second.rest)) == ([2, 3], 5, 2, True)
    assert (offsets(whole), whole.passed, whole.rest) == ([2, 3, 4], 2, "")
    assert (offsets(again), again.passed) == ([0, 1, 2, 3, 4], 0)
    assert (offsets(other), other.passed) == ([0, 1, 2, 3, 4], 0)
    assert [(each.key, each.topic) for each in first.found] == [("a", "windows")] * 2


async def test_nothing_is_redriven_into_a_topic_in_which_the_group_has_no_offset(
    admin: AdminClient,
) -> None:
    """Law: no letter is redriven into a topic in which the group has no offset; a forged letter could name any topic."""
    await give_up(admin, "crooked", "crooks", ["k"])
    await admin.create_topic("payments", queues=1, ordered=True)
    reader = ClusterReader(admin, Collector())

    with pytest.raises(BadParameter, match="no offset in payments"):
        await plan_redrive(
            reader, Parameters({"group": "crooked", "topic": "payments", "key": "k"})
        )


@pytest.mark.parametrize(
    "forged", [{"body": b"mine"}, {"properties": {"__SHARDINGKEY": "k", "color": "red"}}]
)
async def test_a_letter_that_its_topic_does_not_know_needs_a_consent(
    admin: AdminClient, forged: dict[str, Any]
) -> None:
    """Law: a letter whose topic does not have its message needs a consent, because consumers can write such letters."""
    group = "forging-" + "".join(forged)
    await give_up(admin, group, f"of-{group}", ["k", "k"])
    (queue,) = (await admin.route(f"of-{group}")).subscribe
    first = (await QueueReader(admin.instance, "TOOLS_CONSUMER").pull(queue, 0)).messages[0]
    reader = ClusterReader(admin, Collector())
    what = Parameters({"group": group, "topic": queue.topic, "key": "k"})

    before = await plan_redrive(reader, what)
    await hand_over(admin, group, replace(first, **forged))
    after = await plan_redrive(reader, what)

    assert (before.consent, len(before.letters), len(after.letters)) == ("", 2, 3)
    assert (
        f"{queue.topic} has no message with the same content as 1 letter of these" in after.consent
    )


@pytest.mark.parametrize("what", [{"key": "k"}, {"all": "1"}])
async def test_nothing_is_redriven_into_a_topic_that_nobody_may_write_to(
    admin: AdminClient, what: dict[str, str]
) -> None:
    """Law: nothing is redriven into a topic that takes no writes; the page of dead letters and that of a key say so."""
    topic = "closed-" + "".join(what)
    await give_up(admin, f"of-{topic}", topic, ["k"])
    await admin.put_kv(ORDER_NAMESPACE, topic, "")
    await admin.create_topic(topic, queues=1, perm=PERM_READ)
    while (await admin.route(topic)).publish:  # noqa: ASYNC110 - the name server takes it a moment later
        await asyncio.sleep(0.02)
    reader = ClusterReader(admin, Collector())

    page = await explained(reader, Parameters({"topic": topic, "key": "k"}))
    with pytest.raises(BadParameter, match=f"{topic} is not writable"):
        await plan_redrive(reader, Parameters({"group": f"of-{topic}", "topic": topic, **what}))

    assert page.unknown == f"the topic {topic} has no writable queue"


async def test_a_key_is_not_done_while_letters_are_not_read(admin: AdminClient) -> None:
    """Law: a key does not count as done while letters are unread; its last one may be among them,
    and the next look finds it.
    """
    await give_up(admin, "crowd", "crowds", ["many"] * READ_MAX + ["late"])
    reader = ClusterReader(admin, Collector(clock=(clock := Clock())))

    before = await page(reader, "crowd")
    with pytest.raises(NotThere, match="only some of the letters are read"):
        await plan_redrive(reader, Parameters({"group": "crowd", "topic": "crowds", "key": "late"}))
    for each in (await read_letters(reader, "crowd")).found:
        reader.sent.add(each.identity)
    sent = await page(reader, "crowd")
    clock.now_s += 1
    behind = await page(reader, "crowd")

    assert [(row.key, row.step) for row in before.rows] == [("many", "redrive")]
    assert (before.looked_at, before.total.value, before.unread != "") == (READ_MAX, 1_001, True)
    assert [(row.key, row.step, row.step_unknown != "") for row in sent.rows] == [
        ("many", "unknown", True)
    ]
    assert [(row.key, row.step) for row in behind.rows] == [("late", "redrive")]
    assert (behind.looked_at, behind.passed, behind.unread) == (1, READ_MAX, "")


async def test_all_keys_of_a_topic_are_redriven_in_order(admin: AdminClient) -> None:
    """Law: a redrive of a topic sends all keys in order, none twice, leaves other topics' letters,
    and the plan names what is sent.
    """
    await give_up(admin, "bulk", "others", ["a"])
    await give_up(admin, "bulk", "bulks", ["a", "b", "a", "c", "b"])
    reader = ClusterReader(admin, Collector())
    one = await plan_redrive(reader, Parameters({"group": "bulk", "topic": "bulks", "key": "b"}))
    assert await redrive(reader, one) == 2
    every = Parameters({"group": "bulk", "topic": "bulks", "all": "1"})

    lagging = await plan_redrive(reader, every)
    await admin.reset_offsets("bulk", "bulks", "latest")
    plan = await plan_redrive(reader, every)
    sent = await redrive(reader, plan)
    with pytest.raises(NotThere, match="no unsent dead letter of bulks"):
        await plan_redrive(reader, every)
    found = await QueueReader(admin.instance, "TOOLS_CONSUMER").pull(
        MessageQueue("bulks", plan.letters[0].queue.broker_name, 0), 5
    )

    assert "2 messages wait in queue" in lagging.consent
    assert lagging.stamp != plan.stamp
    assert (plan.name, plan.form, plan.consent, sent) == ("bulks", {"all": "1"}, "", 3)
    assert [each.key for each in plan.letters] == ["a", "a", "c"]
    assert "They belong to 2 keys; the letters of each key keep their order." in plan.effects
    assert [each.key for each in found.messages] == ["b", "b", "a", "a", "c"]


async def test_what_another_console_has_sent_since_the_plan_is_not_sent_again(
    admin: AdminClient,
) -> None:
    """Law: a letter that another console has sent since the plan is not sent again, because each one is checked before."""
    await give_up(admin, "twice", "twices", ["k", "k", "k"])
    named = Parameters({"group": "twice", "topic": "twices", "key": "k"})
    mine, other = (ClusterReader(admin, Collector()) for _ in range(2))
    plan = await plan_redrive(mine, named)
    first = beginning(await plan_redrive(other, named), 2)

    sent = [await redrive(other, first), await redrive(mine, plan), await redrive(mine, plan)]

    assert sent == [2, 1, 0]


def beginning(plan: Plan, count: int) -> Plan:
    """Return a copy of a plan with only its first letters."""
    return plan.model_copy(update={"letters": plan.letters[:count]})


async def test_any_number_of_viewers_ask_whether_a_letter_was_sent_every_ten_seconds(
    admin: AdminClient,
) -> None:
    """Law: whether a letter was sent is asked once in ten seconds for all viewers, and no longer after it was sent."""
    await give_up(admin, "watched", "watches", ["a", "b"])
    reader = ClusterReader(admin, Collector(clock=(clock := Clock())))
    await page(reader, "watched")
    asked = reader.collector.asked

    async def cost(after_s: float) -> int:
        """Return how many questions several viewers' pages cost."""
        nonlocal asked
        clock.now_s += after_s
        await asyncio.gather(*(page(reader, "watched") for _ in range(5)))
        new, asked = reader.collector.asked - asked, reader.collector.asked
        return new

    # The brokers, their status, their groups, parked keys and offsets; the letters.
    others = 5
    assert [await cost(0.5), await cost(1), await cost(9)] == [0, others, others + 1 + 2]
    for each in (await read_letters(reader, "watched")).found:
        reader.sent.add(each.identity)
    assert await cost(11) == others + 1
    assert {row.step for row in (await page(reader, "watched")).rows} == {"done"}


async def test_a_parked_key_without_letters_is_shown(cluster: Cluster, admin: AdminClient) -> None:
    """Law: a parked key is shown even if its letters are gone, because only this page leads to its release."""
    cluster.create_topic("parcels", queues=1)
    async with Producer("sender", instance=admin.instance) as producer:
        await producer.send("parcels", "x", key="k")
    await park(cluster, "posting", "k", topic="parcels")
    reader = ClusterReader(admin, Collector())
    while not (await read_letters(reader, "posting")).total:  # noqa: ASYNC110 - nothing signals it
        await asyncio.sleep(0.05)
    await admin.delete_topic("%DLQ%posting")
    await admin.reset_offsets("posting", "parcels", "latest")

    (row,) = (await page(reader, "posting")).rows

    assert (row.key, row.letters.value, row.first_offset, row.step) == ("k", 0, None, "release")


@pytest.mark.long
@pytest.mark.timeout(180)
async def test_a_broker_group_without_the_topic_or_without_a_leader_leaves_the_others(
    make_group: Callable[..., Group],  # noqa: F811 - the fixture
) -> None:
    """Law: a group without the topic counts as no lag; one without a leader is named,
    and the other groups' steps are known.
    """
    group = make_group(1)
    (port,) = free_ports(1)
    own = {"peers": {"2": {"host": "127.0.0.1", "port": group.raft_ports[2]}}}
    other = group.add(2, group="other", address={"host": "127.0.0.1", "port": port}, **own)
    async with AdminClient(group.name_server_address) as admin:
        group.wait_for_leader()
        queue = await give_up(admin, "lonely", "alone", ["a"])
        other.start()
        while len(await admin.brokers()) < 2:  # noqa: ASYNC110 - nothing signals it
            await asyncio.sleep(0.05)
        reader = ClusterReader(admin, Collector())
        (row,) = (await page(reader, "lonely")).rows
        while row.lag.value is None:  # It has no leader yet.
            await asyncio.sleep(0.5)
            (row,) = (await page(reader, "lonely")).rows
        other.kill()
        found = await page(reader, "lonely")
        while not found.missing:
            await asyncio.sleep(0.5)
            found = await page(reader, "lonely")

    assert (row.step, row.lag.value, row.lag.at_least) == ("redrive", 0, False)
    assert [each.name for each in found.missing] == ["other"]
    assert [(each.step, each.first_broker_group) for each in found.rows] == [
        ("redrive", queue.broker_name)
    ]
