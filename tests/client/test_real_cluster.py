"""The SDK and the command with real broker processes."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from orderlymq import (
    AdminClient,
    ConcurrentResult,
    Consumer,
    ConsumerSettings,
    LitePullConsumer,
    Message,
    OrderedContext,
    OrderedResult,
    Producer,
    PullConsumer,
    PullStatus,
    ReceivedMessage,
)
from orderlymq.cli import cli
from tests.cluster.orderedload import ordered_load
from tests.cluster.processes import Group
from tests.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(60)]


def _run(group: Group, *arguments: str) -> Result:
    return CliRunner().invoke(cli, [*arguments, "--name-server", group.name_server_address])


def test_the_life_of_a_topic_at_the_command_line(group: Group) -> None:
    """Law: the quick start's commands work: create, list, send, show, consume, group show, message, reset, delete."""
    assert _run(group, "topic", "create", "shop", "--queues", "4", "--ordered").exit_code == 0
    listed = json.loads(_run(group, "topic", "list", "--output", "json").stdout)
    assert {"topic": "shop", "queues": 4, "ordered": True, "brokerGroups": ["g"]} in listed
    sent = json.loads(
        _run(
            group, "send", "shop", "paid", "--key", "4711", "--keys", "K1", "--output", "json"
        ).stdout
    )
    assert (sent["status"], sent["queue"]) == ("OK", 3)
    assert _run(group, "send", "shop", "more", "--key", "4711", "--count", "3").exit_code == 0

    shown = json.loads(_run(group, "topic", "show", "shop", "--output", "json").stdout)
    assert [each["messages"] for each in shown["queues"]] == [0, 0, 0, 4]
    assert shown["ordered"] is True
    consumed = _run(
        group,
        *("consume", "shop", "--group", "till", "--ordered"),
        *("--from", "earliest", "--max", "4", "--output", "json"),
    )
    bodies = [json.loads(line)["body"] for line in consumed.stdout.splitlines()]
    assert bodies == ["paid", "more", "more", "more"]
    described = json.loads(_run(group, "group", "show", "till", "--output", "json").stdout)
    assert described["lag"] == 0
    found = _run(group, "message", "show", sent["offsetMessageId"])
    assert "paid" in found.stdout
    by_key = json.loads(
        _run(group, "message", "find", "--topic", "shop", "--key", "K1", "--output", "json").stdout
    )
    assert [each["messageId"] for each in by_key] == [sent["messageId"]]
    reset = json.loads(
        _run(
            group,
            *("group", "reset", "till", "--topic", "shop", "--to", "earliest", "--output", "json"),
        ).stdout
    )
    assert [each["offset"] for each in reset] == [0, 0, 0, 0]
    again = _run(group, "consume", "shop", "--group", "till", "--ordered", "--max", "1")
    assert "paid" in again.stdout
    status = json.loads(_run(group, "status", "--output", "json").stdout)
    assert status["healthy"] is True
    assert _run(group, "topic", "delete", "shop", "--yes").exit_code == 0


def test_what_does_not_exist_ends_with_code_3(group: Group) -> None:
    """Law: unknown topics, groups and messages end with code 3."""
    for arguments in (
        ["topic", "show", "nowhere"],
        ["consume", "nowhere"],
        ["group", "show", "nobody"],
        ["message", "show", "7F0000010000000100000000000003E8"],
        ["topic", "delete", "nowhere", "--yes"],
    ):
        assert _run(group, *arguments).exit_code == 3, arguments


async def test_concurrent_failures_come_back_and_end_as_dead_letters(
    group: Group, admin: AdminClient
) -> None:
    """Law: failed concurrent messages are returned, redelivered, become dead letters and can be sent again (RTY-02,
    RTY-03, RTY-16).
    """
    await admin.create_topic("mail", queues=2)
    seen: list[tuple[str, int]] = []

    async def listener(messages: Sequence[ReceivedMessage], _context: object) -> ConcurrentResult:
        seen.extend((message.text, message.reconsume_times) for message in messages)
        bad = any(message.text == "poison" for message in messages)
        return ConcurrentResult.RECONSUME_LATER if bad else ConcurrentResult.SUCCESS

    async with (
        Producer("p", group.name_server_address) as producer,
        Consumer(
            "mailer",
            group.name_server_address,
            topics="mail",
            consume_from="first",
            listener=listener,
            settings=ConsumerSettings(max_reconsume_times=0),
        ),
    ):
        await producer.send("mail", "fine")
        await producer.send("mail", "poison")
        await until(lambda: len(seen) == 2)
        async with PullConsumer("inspector", group.name_server_address) as inspector:
            dead: list[ReceivedMessage] = []
            while not dead:
                try:
                    (queue,) = await inspector.fetch_queues("%DLQ%mailer")
                except LookupError:
                    await asyncio.sleep(0.02)
                    continue
                dead += (await inspector.pull(queue, None, 0)).messages
        assert [message.text for message in dead] == ["poison"]
        result = await admin.resend(dead[0])
        await until(lambda: len(seen) == 3)

    assert result.queue.topic == "mail"


async def test_an_ordered_poison_message_is_dead_lettered_immediately(
    group: Group, admin: AdminClient
) -> None:
    """Law: an ordered poison message becomes a dead letter immediately, and the next one follows (RTY-05, RTY-10)."""
    await admin.create_topic("steps", queues=1, ordered=True)
    texts: list[str] = []

    async def listener(
        messages: Sequence[ReceivedMessage], _context: OrderedContext
    ) -> OrderedResult:
        texts.append(messages[0].text)
        return OrderedResult.SUSPEND if messages[0].text == "m1" else OrderedResult.SUCCESS

    settings = ConsumerSettings(max_reconsume_times=2, suspend_current_queue_time=0.01)
    async with (
        Producer("p", group.name_server_address) as producer,
        Consumer(
            "stepper",
            group.name_server_address,
            topics="steps",
            ordered=True,
            consume_from="first",
            listener=listener,
            settings=settings,
        ),
    ):
        for number in range(3):
            await producer.send("steps", f"m{number}", key="k")
        await until(lambda: texts == ["m0", "m1", "m1", "m1", "m2"])

    stats = await admin.topic_stats("%DLQ%stepper")
    assert [offsets.max_offset for offsets in stats.values()] == [1]


async def test_pull_and_lite_pull_read_what_was_sent(group: Group, admin: AdminClient) -> None:
    """Law: pull and lite pull read all messages, with every status, seek, commit and time search (PUL-02 to PUL-05,
    PUL-14).
    """
    await admin.create_topic("log", queues=2)
    async with Producer("p", group.name_server_address) as producer:
        batch = [
            Message(topic="log", body=f"m{n}".encode(), tags="A" if n % 2 else "B")
            for n in range(10)
        ]
        await producer.send_batch(batch, queue=0)

    async with PullConsumer("reader", group.name_server_address) as reader:
        full, empty = await reader.fetch_queues("log")
        found = await reader.pull(full, None, 0)
        tagged = await reader.pull(full, "A", 0)
        beyond = await reader.pull(full, None, 99)
        at_end = await reader.pull(full, None, 10)
        nothing = await reader.pull(full, "C", 0)
        await reader.commit(full, 4)
        assert await reader.committed(full) == 4
        assert await reader.committed(empty) in (None, 0)
        assert (await reader.min_offset(full), await reader.max_offset(full)) == (0, 10)

    assert (found.status, len(found.messages), found.next_offset) == (PullStatus.FOUND, 10, 10)
    assert [message.text for message in tagged.messages] == ["m1", "m3", "m5", "m7", "m9"]
    assert (beyond.status, beyond.next_offset) == (PullStatus.OFFSET_ILLEGAL, 10)
    assert at_end.status is PullStatus.NO_NEW_MSG
    assert (nothing.status, nothing.next_offset) == (PullStatus.NO_MATCHED_MSG, 10)

    lite = LitePullConsumer("lite", group.name_server_address, consume_from="first")
    lite.subscribe("log")
    async with lite:
        polled: list[str] = []
        while len(polled) < 10:
            polled += [message.text for message in await lite.poll(1)]
        lite.seek(full, 8)
        polled += [message.text for message in await lite.poll(1)]
    assert polled == [*(f"m{n}" for n in range(10)), "m8", "m9"]


async def test_order_is_kept_while_the_leader_is_killed(tmp_path: Path) -> None:
    """Law: while the leader is killed, the acknowledged order per key is the delivered order;
    nothing is lost or doubled (ORD-08, SND-09).
    """
    group = Group(tmp_path / "three")
    try:
        group.start()
        async with AdminClient(group.name_server_address) as admin:
            await admin.create_topic("orders", queues=4, ordered=True)
        async with ordered_load(group, group.name_server_address):
            pass
    finally:
        group.stop()


MEMBER = textwrap.dedent(
    """
    import asyncio, sys
    from orderlymq import ClientSettings, Consumer, OrderedResult

    async def listener(messages, context):
        for message in messages:
            print(message.text, flush=True)
        return OrderedResult.SUCCESS

    async def main():
        async with Consumer("crew", sys.argv[1], topics="jobs", ordered=True,
                            consume_from="first", listener=listener,
                            client_settings=ClientSettings(instance_name="orders")):
            await asyncio.Event().wait()

    asyncio.run(main())
    """
)


async def test_the_queues_of_a_killed_process_are_taken_over_immediately(
    group: Group, admin: AdminClient
) -> None:
    """Law: the queues of a killed process are taken over immediately,
    also if it has an instance name and just joined (LCK-13).
    """
    await admin.create_topic("jobs", queues=1, ordered=True)
    leader = group.wait_for_leader()
    await asyncio.to_thread(group.wait_for_status, leader, identified_clients=0)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", MEMBER, group.name_server_address), stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    texts: list[str] = []

    async def listener(
        messages: Sequence[ReceivedMessage], _context: OrderedContext
    ) -> OrderedResult:
        texts.extend(message.text for message in messages)
        return OrderedResult.SUCCESS

    try:
        await asyncio.to_thread(group.wait_for_status, leader, identified_clients=1)
        async with Producer("p", group.name_server_address) as producer:
            await producer.send("jobs", "first", key="k")
            assert await process.stdout.readline() == b"first\n"
            async with Consumer(
                "crew",
                group.name_server_address,
                topics="jobs",
                ordered=True,
                consume_from="first",
                listener=listener,
            ):
                os.kill(process.pid, signal.SIGKILL)
                await process.wait()
                began = time.monotonic()
                await producer.send("jobs", "second", key="k")
                await until(lambda: "second" in texts, 30.0)
                took_s = time.monotonic() - began
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()

    assert took_s < 10.0, "the lease of 15 s was waited for"


async def test_a_topic_of_one_queue_has_one_order_for_all_producers(
    group: Group, admin: AdminClient
) -> None:
    """Law: in a topic of one queue, a send acknowledged before another began comes first, for all producers (ORD-03)."""
    await admin.create_topic("ledger", queues=1, ordered=True)
    moments: dict[str, tuple[float, float]] = {}
    texts: list[str] = []

    async def produce(name: str) -> None:
        async with Producer(name, group.name_server_address) as producer:
            for number in range(40):
                text = f"{name}-{number}"
                began = time.monotonic()
                await producer.send("ledger", text, key=name)
                moments[text] = (began, time.monotonic())

    async def listener(
        messages: Sequence[ReceivedMessage], _context: OrderedContext
    ) -> OrderedResult:
        texts.extend(message.text for message in messages)
        return OrderedResult.SUCCESS

    async with Consumer(
        "auditors",
        group.name_server_address,
        topics="ledger",
        ordered=True,
        consume_from="first",
        listener=listener,
    ):
        await asyncio.gather(*(produce(f"till{number}") for number in range(3)))
        await until(lambda: len(texts) == 120, 20)

    assert len(set(texts)) == 120
    latest_begin = 0.0
    for text in texts:
        began, acknowledged = moments[text]
        assert acknowledged > latest_begin, f"{text} came after one that began when it was stored"
        latest_begin = max(latest_begin, began)


async def test_a_holder_begins_again_where_an_administrator_sets_its_offset(
    group: Group, admin: AdminClient
) -> None:
    """Law: after a reset, the holder locks again under a new epoch and commits what it consumes again."""
    await admin.create_topic("again", queues=1, ordered=True)
    seen: list[str] = []

    async def listener(messages: Sequence[ReceivedMessage], _: OrderedContext) -> None:
        seen.extend(message.text for message in messages)

    async with (
        Producer("p", group.name_server_address) as producer,
        Consumer(
            "again-group",
            group.name_server_address,
            topics="again",
            ordered=True,
            consume_from="first",
            listener=listener,
        ),
    ):
        for number in range(3):
            await producer.send("again", f"m{number}", key="k")
        await until(lambda: seen == ["m0", "m1", "m2"])
        before = (await admin.locks("again-group")).popitem()[1]

        await admin.reset_offsets("again-group", "again", "earliest")
        await until(lambda: seen[3:] == ["m0", "m1", "m2"])
        after = (await admin.locks("again-group")).popitem()[1]

    assert (after.client_id, after.epoch) == (before.client_id, before.epoch + 1)
    progress = await admin.progress("again-group", "again")
    assert [each.consumer_offset for each in progress.values()] == [3]
