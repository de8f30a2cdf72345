"""Consumers by key with a real broker in this process; the oracle checks the history of each test."""

import asyncio
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from click.testing import CliRunner, Result

from orderlymq import (
    AdminClient,
    ClientSettings,
    ConsumeContext,
    ConsumeHook,
    Consumer,
    ConsumerSettings,
    MessageModel,
    OrderedContext,
    OrderedResult,
    Producer,
    ReceivedMessage,
    SettingError,
    blocking,
)
from orderlymq.cli import cli
from orderlymq.oracle.verdict import Kind
from orderlymq_protocol.body.config import SubscriptionGroupConfig
from orderlymq_protocol.body.lanes import BY_KEY, BY_QUEUE
from orderlymq_testing.cluster import Cluster
from orderlymq_testing.plugin import orderlymq_cluster
from tests.waiting import until

__all__ = ["orderlymq_cluster"]

pytestmark = pytest.mark.timeout(60)


class Work:
    """A listener that records its messages by key, and waits and fails as the test says."""

    def __init__(self, *, takes: float = 0.0) -> None:
        self.seen: dict[str, list[str]] = defaultdict(list)
        self.contexts: list[OrderedContext] = []
        self.poison: dict[str, Exception] = {}
        self.takes_s = takes
        self.may_go_on: Callable[[], bool] = lambda: True
        self.running: set[str] = set()
        self.most = 0

    @property
    def count(self) -> int:
        return sum(map(len, self.seen.values()))

    async def __call__(
        self, messages: Sequence[ReceivedMessage], context: OrderedContext
    ) -> OrderedResult | None:
        assert context.lane is not None
        key = context.lane.key
        assert not key or key not in self.running, f"two calls of {key} at once"
        self.running.add(key)
        self.most = max(self.most, len(self.running))
        self.contexts.append(context)
        try:
            await until(self.may_go_on)
            await asyncio.sleep(self.takes_s)
            for message in messages:
                if message.text in self.poison:
                    raise self.poison[message.text]
                self.seen[key].append(message.text)
        finally:
            self.running.discard(key)
        return None


def by_key(work: Work, **more: object) -> Consumer:
    arguments: dict[str, object] = {
        "topics": "orders",
        "ordered": "key",
        "consume_from": "first",
        "listener": work,
        **more,
    }
    return Consumer("billing", **arguments)  # type: ignore[arg-type]  # named above


async def produce(*keyed: tuple[str, str]) -> None:
    async with Producer() as producer:
        sends = [producer.send_nowait("orders", text, key=key or None) for key, text in keyed]
        await asyncio.gather(*sends)


async def drained(admin: AdminClient) -> None:
    """Wait until the group owes no message."""
    owed = True
    while owed:
        owed = any(row.owed for row in (await admin.lanes("billing")).queues)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


async def command(*arguments: str) -> Result:
    return await asyncio.to_thread(run, *arguments)


def plenty(keys: int, each: int) -> list[tuple[str, str]]:
    return [(f"k{key}", f"k{key} {number}") for number in range(each) for key in range(keys)]


async def test_one_queue_feeds_many_workers(orderlymq_cluster: Cluster) -> None:
    """Law: 64 keys of one queue are consumed in parallel, each in order; the broker creates the group as by key."""
    orderlymq_cluster.create_topic("orders", queues=1)
    messages = plenty(keys=64, each=6)
    await produce(*messages)
    work = Work()
    work.may_go_on = lambda: work.most > 32

    async with by_key(work, concurrency=64) as consumer:
        await until(lambda: work.count == len(messages))
        stats = consumer.stats()["orders"]

    async with AdminClient() as admin:
        assert (await admin.groups())["billing"].concurrency == BY_KEY
        table = await admin.lanes("billing")
        assert [(row.owed, row.in_hand, row.committed) for row in table.queues] == [(0, 0, 384)]
    assert work.most > 32
    assert all(texts == [f"{key} {n}" for n in range(6)] for key, texts in work.seen.items())
    # On a busy machine some are fetched twice, and the second attempt learns that everything is done.
    assert (stats.ok, stats.failed) == (384, 0)
    assert stats.pulled >= 384


async def test_a_poison_message_stops_its_own_key_and_nothing_else(
    orderlymq_cluster: Cluster,
) -> None:
    """Law: a poison message stops its own key only: it is tried again, held after the maximum, shown, and released by the command."""
    orderlymq_cluster.create_topic("orders", queues=2)
    set_up = await command(
        *("group", "set", "billing", "--concurrency", "key"),
        *("--on-dead-letter", "hold-key", "--retry-max-times", "1"),
    )
    assert set_up.exit_code == 0, set_up.output
    messages = [("bad", "poison"), ("bad", "after"), *plenty(keys=20, each=5)]
    await produce(*messages)
    work = Work()
    work.poison["poison"] = ValueError("no such account")

    async with by_key(work, concurrency=8):
        await until(lambda: work.count == 100)
        shown: dict[str, Any] = {}
        while not shown.get("held"):
            answer = await command("group", "show", "billing", "--output", "json")
            shown = json.loads(answer.stdout)["lanes"]
        text = (await command("group", "show", "billing")).stdout
        work.poison.clear()
        released = await command("group", "release", "billing", "--key", "bad")
        assert released.exit_code == 0, released.output
        assert released.stdout.startswith("Released key bad of orders: the lane continues at ")
        await until(lambda: work.count == 102)

    (lane,) = shown["lanes"]
    assert (lane["key"], lane["state"], lane["waiting"]) == ("bad", "held", 2)
    assert lane["reason"] == "ValueError: no such account"
    assert "bad (offset" in text
    assert "1 held" in text
    assert work.seen["bad"] == ["poison", "after"]


async def test_skipping_makes_the_message_a_dead_letter(orderlymq_cluster: Cluster) -> None:
    """Law: a skipped message becomes a dead letter, and its lane goes on immediately."""
    orderlymq_cluster.create_topic("orders", queues=1)
    await produce(("bad", "poison"), ("bad", "after"))
    work = Work()
    work.poison["poison"] = ValueError("no")

    async def listener(
        messages: Sequence[ReceivedMessage], context: OrderedContext
    ) -> OrderedResult | None:
        context.suspend_current_queue_time = 3_600
        return await work(messages, context)

    async with by_key(work, listener=listener):
        parked: list[dict[str, Any]] = []
        while not parked:
            answer = await command("group", "show", "billing", "--output", "json")
            lanes = (json.loads(answer.stdout)["lanes"] or {}).get("lanes", ())
            parked = [each for each in lanes if each["state"] == "parked"]
        assert parked[0]["dueSeconds"] > 3_000
        orderlymq_cluster.recording.note(
            Kind.DEAD, topic="orders", key="bad", queue="broker-a:0", offset=0, group="billing"
        )
        assert (
            await command("group", "release", "billing", "--key", "bad", "--skip")
        ).exit_code == 0
        await until(lambda: work.seen["bad"] == ["after"])
    unknown = await command("group", "release", "billing", "--key", "nobody")
    assert unknown.exit_code == 3
    empty, misspelt = [await command("group", "parked", name) for name in ("billing", "biling")]
    assert (empty.exit_code, misspelt.exit_code) == (0, 3)
    assert empty.stdout == "billing has parked no key behind a dead letter.\n"
    assert "there is no consumer group biling" in misspelt.output
    assert "did you mean billing?" in misspelt.output


async def test_the_listener_knows_its_lane(orderlymq_cluster: Cluster) -> None:
    """Law: the listener's context has key, tries, waiting messages and time of its lane."""
    orderlymq_cluster.create_topic("orders", queues=1)
    await produce(("a", "one"), ("a", "two"), ("", "alone"))
    work = Work()
    work.poison["one"] = ValueError("no")
    tries: list[int] = []

    async def listener(
        messages: Sequence[ReceivedMessage], context: OrderedContext
    ) -> OrderedResult | None:
        assert context.lane is not None
        assert context.still_holds()
        context.suspend_current_queue_time = 0.01
        if messages[0].text == "one":
            tries.append(messages[0].reconsume_times)
            if context.lane.tries == 2:
                work.poison.clear()
        return await work(messages, context)

    async with by_key(work, listener=listener):
        await until(lambda: work.count == 3)

    lanes = [context.lane for context in work.contexts if context.lane and context.lane.key == "a"]
    assert [(lane.tries, lane.behind) for lane in lanes] == [(0, 1), (1, 1), (2, 1), (0, 0)]
    assert tries == [0, 1, 2]
    assert len({lane.attempt for lane in lanes}) == 3
    assert all(lane.waiting_since_ms > 1_600_000_000_000 for lane in lanes)
    assert not any(context.still_holds() for context in work.contexts)


async def test_results_of_ordered_listeners_mean_the_same(orderlymq_cluster: Cluster) -> None:
    """Law: SUCCESS and COMMIT complete a message, SUSPEND and ROLLBACK deliver it again; without auto_commit nothing is completed."""
    orderlymq_cluster.create_topic("orders", queues=1)
    await produce(("a", "one"), ("a", "two"))
    answers = [
        *(OrderedResult.SUSPEND, OrderedResult.ROLLBACK, OrderedResult.COMMIT),
        *(False, OrderedResult.SUCCESS),
    ]
    seen: list[str] = []

    async def listener(
        messages: Sequence[ReceivedMessage], context: OrderedContext
    ) -> OrderedResult:
        context.suspend_current_queue_time = 0.01
        seen.append(messages[0].text)
        answer = answers[len(seen) - 1]
        if isinstance(answer, OrderedResult):
            return answer
        context.auto_commit = False
        return OrderedResult.SUCCESS

    async with by_key(Work(), listener=listener):
        await until(lambda: len(seen) == 5)
        async with AdminClient() as admin:
            await drained(admin)

    assert seen == ["one", "one", "one", "two", "two"]
    orderlymq_cluster.recording.events.clear()  # COMMIT without auto_commit is no end


async def test_a_batch_has_messages_of_one_lane(orderlymq_cluster: Cluster) -> None:
    """Law: a batch holds messages of one lane, at most as many as the settings say."""
    orderlymq_cluster.create_topic("orders", queues=1)
    await produce(*plenty(keys=3, each=10))
    batches: list[list[str]] = []

    async def listener(messages: Sequence[ReceivedMessage], _context: OrderedContext) -> None:
        batches.append([message.text for message in messages])

    settings = ConsumerSettings(consume_message_batch_max_size=5)
    async with by_key(Work(), listener=listener, settings=settings):
        await until(lambda: sum(map(len, batches)) == 30)

    assert max(map(len, batches)) == 5
    assert all(len({text.split()[0] for text in batch}) == 1 for batch in batches)


@pytest.mark.long
async def test_a_slow_listener_keeps_its_lane(orderlymq_cluster: Cluster) -> None:
    """Law: a listener that is slower than its lease keeps its lane by renewals."""
    orderlymq_cluster.create_topic("orders", queues=1)
    await produce(("a", "slow"), ("b", "quick"))
    settings = ConsumerSettings(lock_lease=4, lock_renew=0.5)
    work = Work(takes=12)

    async with by_key(work, settings=settings):
        await until(lambda: work.count == 2)

    assert dict(work.seen) == {"a": ["slow"], "b": ["quick"]}


async def test_closing_waits_for_listeners_and_gives_the_rest_back(
    orderlymq_cluster: Cluster,
) -> None:
    """Law: closing completes running messages and gives waiting lanes to the next member, from their first message that is not done."""
    orderlymq_cluster.create_topic("orders", queues=1)
    await produce(*plenty(keys=10, each=3))
    first, second = Work(), Work()
    closing = by_key(first, concurrency=2)
    first.may_go_on = lambda: closing.state == "SHUTDOWN_ALREADY"

    async with closing:
        await until(lambda: len(first.running) == 2)
    taken = first.count
    async with by_key(second, concurrency=2):
        await until(lambda: first.count + second.count == 30)

    assert taken == 2
    assert all(
        first.seen[key] + second.seen[key] == [f"{key} {n}" for n in range(3)]
        for key in {*first.seen, *second.seen}
    )


async def test_a_listener_that_does_not_end_is_cut_off_and_its_lane_goes_on(
    orderlymq_cluster: Cluster,
) -> None:
    """Law: a listener that outlives the closing time is cancelled, and the next member gets its lane immediately."""
    orderlymq_cluster.create_topic("orders", queues=1)
    await produce(("a", "one"))
    stuck, after = Work(takes=3_600), Work()
    settings = ConsumerSettings(shutdown_timeout=0.1)

    async with by_key(stuck, settings=settings):
        await until(lambda: bool(stuck.running))
    assert not stuck.running
    assert not stuck.contexts[0].still_holds()
    async with by_key(after):
        await until(lambda: after.count == 1)


@pytest.mark.parametrize("orderlymq_cluster", [1, 3], indirect=True)
async def test_a_killed_leader_costs_a_pause(orderlymq_cluster: Cluster) -> None:
    """Law: after a leader is killed, fetches and completions go on with the next one; nothing is lost or overtakes."""
    orderlymq_cluster.create_topic("orders", queues=4)
    messages = plenty(keys=30, each=20)
    await produce(*messages)
    work = Work(takes=0.01)
    settings = ConsumerSettings(lock_lease=15, lock_renew=5)

    async with by_key(work, concurrency=16, settings=settings):
        await until(lambda: work.count > 100)
        await asyncio.to_thread(orderlymq_cluster.kill_leader)
        await until(
            lambda: (
                {f"k{n}" for n in range(30)}
                == {k for k, t in work.seen.items() if t[-1].endswith(" 19")}
            )
        )
        async with AdminClient() as admin:
            await drained(admin)

    for key, texts in work.seen.items():
        assert list(dict.fromkeys(texts)) == [f"{key} {n}" for n in range(20)]


async def test_a_dead_member_costs_its_own_lanes(orderlymq_cluster: Cluster) -> None:
    """Law: the lanes of a member proven dead go to another one long before their leases end."""
    orderlymq_cluster.create_topic("orders", queues=1)
    dead, alive = Work(takes=3_600), Work()
    long = ConsumerSettings(lock_lease=60, lock_renew=20, shutdown_timeout=0)
    await produce(("a", "one"), ("b", "one"))

    async with by_key(
        dead, settings=long, client_settings=ClientSettings(instance_name="dead")
    ) as victim:
        await until(lambda: len(dead.running) == 2)
        async with by_key(alive, client_settings=ClientSettings(instance_name="alive")):
            orderlymq_cluster.recording.note(Kind.GONE, client="billing")
            async with AdminClient() as admin:
                for address in (await admin.brokers()).values():
                    await admin.client_dead(address, victim.client_id, "killed by the test")
            await until(lambda: alive.count == 2)


VICTIM = """
import asyncio, sys
from orderlymq import Consumer, ConsumerSettings

async def listener(messages, context):
    print(messages[0].text, flush=True)
    await asyncio.sleep(3600)

settings = ConsumerSettings(lock_lease=60, lock_renew=20)
asyncio.run(
    Consumer(
        "billing", topics="orders", ordered="key", concurrency=8, consume_from="first",
        listener=listener, settings=settings,
    ).run()
)
"""


async def test_a_killed_process_costs_its_own_lanes(orderlymq_cluster: Cluster) -> None:
    """Law: the broker sees that a killed process is dead, and its lanes go on a minute before their leases end."""
    orderlymq_cluster.create_topic("orders", queues=1)
    await produce(*plenty(keys=8, each=2))
    victim = await asyncio.create_subprocess_exec(
        sys.executable, "-c", VICTIM, stdout=asyncio.subprocess.PIPE
    )
    assert victim.stdout is not None
    taken = {(await victim.stdout.readline()).decode().strip() for _ in range(8)}
    async with AdminClient() as admin, asyncio.timeout(30):
        (address,) = (await admin.brokers()).values()
        while not (await admin.group_status(address))["identified_clients"]:  # noqa: ASYNC110 - the broker looks for it
            await asyncio.sleep(0.02)
    work = Work()

    async with by_key(work, concurrency=8):
        victim.kill()
        await until(lambda: work.count == 16, timeout_s=20)
    await victim.wait()

    assert taken == {f"k{key} 0" for key in range(8)}
    assert all(texts == [f"{key} 0", f"{key} 1"] for key, texts in work.seen.items())


async def test_a_completion_that_comes_late_is_no_second_delivery(
    orderlymq_cluster: Cluster,
) -> None:
    """Law: a completion repeated after a late answer is confirmed once and delivers nothing twice."""
    orderlymq_cluster.create_topic("orders", queues=1)
    await produce(*plenty(keys=5, each=2))
    orderlymq_cluster.delay("complete", 4)
    orderlymq_cluster.delay("fetch", 0.2)
    work = Work()

    async with by_key(work) as consumer:
        await until(lambda: work.count == 10)
        async with AdminClient() as admin:
            await drained(admin)
        assert consumer.lanes is not None
        assert consumer.lanes.lost == 0

    assert all(texts == [f"{key} 0", f"{key} 1"] for key, texts in work.seen.items())


async def test_hooks_see_the_lane(orderlymq_cluster: Cluster) -> None:
    """Law: hooks see each call's lane before, and its outcome after."""
    orderlymq_cluster.create_topic("orders", queues=1)
    await produce(("a", "one"))
    seen: list[tuple[str, int, bool]] = []

    class Hook(ConsumeHook):
        def after(self, context: ConsumeContext) -> None:
            assert context.lane is not None
            seen.append((context.lane.key, context.lane.tries, context.success))

    work = Work()
    work.poison["one"] = ValueError("no")
    async with by_key(work, hooks=[Hook()]):
        await until(lambda: len(seen) == 1)
        work.poison.clear()
        await until(lambda: len(seen) == 2)

    assert seen == [("a", 0, False), ("a", 1, True)]


async def test_a_group_by_queue_is_not_changed(orderlymq_cluster: Cluster) -> None:
    """Law: a consumer by key does not change a group by queue; its error names the command, after which it joins."""
    orderlymq_cluster.create_topic("orders", queues=1)
    await produce(("a", "one"))
    async with AdminClient() as admin:
        await admin.set_group(SubscriptionGroupConfig("billing"))
        work = Work()

        with pytest.raises(SettingError, match="orderlymq group set billing --concurrency key"):
            await by_key(work).start()

        assert (await admin.groups())["billing"].concurrency == BY_QUEUE
        assert not await admin.members("billing")
    assert (await command("group", "set", "billing", "--concurrency", "key")).exit_code == 0
    async with by_key(work):
        await until(lambda: work.count == 1)


async def test_where_brokers_create_no_groups_the_error_says_how(
    orderlymq_cluster: Cluster,
) -> None:
    """Law: where brokers create no groups, the error says how to create one."""
    orderlymq_cluster.create_topic("orders", queues=1)
    async with AdminClient() as admin:
        for address in (await admin.brokers()).values():
            await admin.update_broker_config(address, {"autoCreateSubscriptionGroup": "false"})

        with pytest.raises(SettingError, match="do not create groups automatically"):
            await by_key(Work()).start()

        assert "billing" not in await admin.groups()


async def test_a_group_that_turns_to_queues_ends_loops_with_the_reason(
    orderlymq_cluster: Cluster,
) -> None:
    """Law: if the group changes to queues, `run` and loops end with the error that a start would raise."""
    orderlymq_cluster.create_topic("orders", queues=1)
    consumer = by_key(Work())
    running = asyncio.create_task(consumer.run())
    await until(lambda: consumer.state == "RUNNING")
    async with AdminClient() as admin:
        await until(lambda: consumer.lanes is not None)
        await admin.set_group(SubscriptionGroupConfig("billing", concurrency=BY_QUEUE))

        with pytest.raises(SettingError, match="consumes by queue"):
            await running


def test_what_has_no_lanes_is_refused() -> None:
    """Law: broadcasting, and a start position that brokers do not know, are refused with what to do."""
    nobody = "127.0.0.1:1"

    async def start(**more: object) -> None:
        await by_key(Work(), name_servers=nobody, **more).start()

    with pytest.raises(SettingError, match="share no lanes"):
        asyncio.run(start(message_model=MessageModel.BROADCASTING))
    with pytest.raises(SettingError, match="orderlymq group reset billing"):
        asyncio.run(start(consume_from="timestamp"))


async def test_a_loop_gets_one_message_at_a_time(orderlymq_cluster: Cluster) -> None:
    """Law: a loop gets one message at a time; it is done when the loop asks for the next, and comes again if the loop is left."""
    orderlymq_cluster.create_topic("orders", queues=1)
    await produce(("a", "one"), ("b", "two"), ("a", "three"))
    texts: list[str] = []

    async with by_key(Work(), listener=None) as consumer:
        async for message in consumer:
            texts.append(message.text)
            if len(texts) == 3:
                break

    assert sorted(texts) == ["one", "three", "two"]
    assert texts.index("one") < texts.index("three")
    async with AdminClient() as admin:
        assert (await admin.lanes("billing")).queues[0].owed == 0


def test_the_blocking_client_consumes_by_key(orderlymq_cluster: Cluster) -> None:
    """Law: with the blocking client, a plain function consumes several keys in threads."""
    orderlymq_cluster.create_topic("orders", queues=1)
    with blocking.Producer() as producer:
        for key, text in plenty(keys=5, each=3):
            producer.send("orders", text, key=key)

    with blocking.Consumer(
        "billing", topics="orders", ordered="key", consume_from="first"
    ) as found:
        texts = []
        for message in found:
            texts.append(message.text)
            if len(texts) == 15:
                break
        assert found.lanes is not None

    assert [text for text in texts if text.startswith("k0 ")] == ["k0 0", "k0 1", "k0 2"]


async def test_names_are_wrapped_in_the_namespace(orderlymq_cluster: Cluster) -> None:
    """Law: brokers see names with the namespace; the listener sees topics without it."""
    orderlymq_cluster.create_topic("shop%orders", queues=1)
    settings = ClientSettings(namespace="shop")
    topics: list[str] = []

    async def listener(messages: Sequence[ReceivedMessage], _context: OrderedContext) -> None:
        topics.extend(message.topic for message in messages)

    async with Producer(client_settings=settings) as producer:
        await producer.send("orders", "one", key="a")
    async with by_key(Work(), listener=listener, client_settings=settings) as consumer:
        await until(lambda: topics == ["orders"])
        assert consumer.group == "shop%billing"
    orderlymq_cluster.recording.events.clear()  # it has both forms of names


def test_the_command_consumes_by_key(orderlymq_cluster: Cluster) -> None:
    """Law: messages that the command has printed are completed; the rest stays for the next run."""
    orderlymq_cluster.create_topic("orders", queues=1)
    with blocking.Producer() as producer:
        for number in range(4):
            producer.send("orders", f"m{number}", key="a")
    consume = ("consume", "orders", "--group", "till", "--by-key", "--from", "earliest")

    first = run(*consume, "--max", "3", "--output", "json")
    second = run(*consume, "--max", "1", "--output", "json")

    texts = [json.loads(line)["body"] for line in (first.stdout + second.stdout).splitlines()]
    assert texts == ["m0", "m1", "m2", "m3"], first.output + second.output
    listed = json.loads(run("group", "list", "--output", "json").stdout)
    assert [each["concurrency"] for each in listed if each["group"] == "till"] == ["Key"]
    assert run(*consume, "--ordered").exit_code == 2
