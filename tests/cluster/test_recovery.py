"""Replicas that lose their disk, are killed or paused come back, and the group's data stays correct."""

import asyncio
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import aiohttp
import pytest

from orderlymq_runtime.remoting.client import RemotingClient
from tests.cluster.bareclient import Sender, assert_kept_in_order, pull_all, report
from tests.cluster.processes import Group

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

MakeGroup = Callable[..., Group]

# The log keeps so few entries that a replica that was away needs a snapshot.
SMALL_LOG = {"tick_ms": 25, "entries_kept": 50, "snapshot_chunk_size": 65_536}


async def stored(client: RemotingClient, group: Group) -> dict[int, list[tuple[int, bytes]]]:
    return {
        queue_id: await pull_all(client, group.address, "orders", queue_id) for queue_id in range(8)
    }


def doctor(group: Group, node: int) -> None:
    """Run `orderlymq doctor` over a stopped replica; it must find nothing."""
    done = subprocess.run(
        [sys.executable, "-m", "orderlymq", "doctor", str(group.data_dir(node))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


async def ready(group: Group, node: int) -> list[str]:
    """Wait until a replica is ready; return the reasons why it was not."""
    url = f"http://127.0.0.1:{group.http_ports[node]}/readyz"
    reasons: list[str] = []
    async with asyncio.timeout(20), aiohttp.ClientSession() as session:
        while True:
            with suppress(aiohttp.ClientError):
                async with session.get(url) as answer:
                    if answer.status == 200:
                        return reasons
                    reasons.append(await answer.text())
            await asyncio.sleep(0.002)


async def test_all_replicas_of_an_idle_group_are_ready_and_one_that_was_wiped_when_it_has_the_log(
    make_group: MakeGroup,
) -> None:
    """Law: idle replicas are ready, because Kubernetes drains by readiness; a wiped one only when it has the log again."""
    group = make_group()
    leader = group.wait_for_leader()
    for node in group.brokers:
        await ready(group, node)
    follower = next(node for node in group.brokers if node != leader)
    group.brokers[follower].kill()
    shutil.rmtree(group.data_dir(follower))

    group.brokers[follower].start()
    reasons = await ready(group, follower)

    assert {*reasons} <= {
        "knows no leader of the group\n",
        "follows, but has not caught up with the log of its group\n",
    }
    status = group.status(follower)
    assert status is not None
    assert status["last_index"] > 0


@pytest.mark.long
async def test_a_wiped_follower_comes_back_by_snapshot(
    make_group: MakeGroup, client: RemotingClient
) -> None:
    """A follower whose directory was deleted takes over the whole state by snapshot and follows again."""
    group = make_group(raft=SMALL_LOG)
    senders = [Sender(client, group.address, f"s{number}", number) for number in range(8)]
    leader = group.wait_for_leader()
    # Send until the log is compacted: the number of entries depends on how many sends share an entry.
    while (await asyncio.to_thread(group.status, leader) or {}).get("first_index", 1) == 1:
        await asyncio.gather(*(sender.send(50) for sender in senders))
    follower = next(node for node in group.brokers if node != leader)
    group.brokers[follower].kill()
    shutil.rmtree(group.data_dir(follower))

    began = time.monotonic()
    group.brokers[follower].start()
    await asyncio.gather(*(sender.send(50) for sender in senders))
    statuses = await asyncio.to_thread(group.wait_until_equal)
    report(f"snapshot: equal after {time.monotonic() - began:.2f} s")

    first_indexes = {status["node"]: status["first_index"] for status in statuses}
    assert first_indexes[follower] > 1, "it came by the log, not by a snapshot"
    await ready(group, follower)
    # The replica counts again: without the leader it must have all data.
    group.brokers[group.wait_for_leader()].kill()
    assert_kept_in_order(senders, await stored(client, group))
    group.stop()
    for node in group.brokers:
        doctor(group, node)


@pytest.mark.long
async def test_twenty_kills_under_load_lose_nothing(
    make_group: MakeGroup, client: RemotingClient
) -> None:
    """After 20 SIGKILLs of leaders and followers during sends of 8 senders, the stores are clean."""
    group = make_group(raft=SMALL_LOG)
    senders = [Sender(client, group.address, f"s{number}", number) for number in range(8)]
    choose = random.Random(4711)
    done = False

    async def keep_sending(sender: Sender) -> None:
        while not done:
            await sender.send_next()

    async with asyncio.TaskGroup() as tasks:
        for sender in senders:
            tasks.create_task(keep_sending(sender))
        for _ in range(20):
            await asyncio.sleep(choose.uniform(0.1, 0.5))
            leader = await asyncio.to_thread(group.leader)
            victim = leader if leader and choose.random() < 0.6 else choose.choice([1, 2, 3])
            group.brokers[victim].kill()
            await asyncio.sleep(choose.uniform(0.0, 0.3))
            group.brokers[victim].start()
            await asyncio.to_thread(group.wait_for_leader)
        done = True

    total = sum(len(sender.acknowledged) for sender in senders)
    gap = max(sender.longest_gap_s() for sender in senders)
    kinds = Counter(text.partition(":")[0] for sender in senders for text in sender.failures)
    report(f"20 kills: {total} acknowledged, longest gap {gap:.2f} s, failures {dict(kinds)}")
    await asyncio.to_thread(group.wait_until_equal)
    assert_kept_in_order(senders, await stored(client, group))
    group.stop()
    for node in group.brokers:
        doctor(group, node)


async def test_a_paused_leader_does_not_answer_for_the_group_when_it_wakes(
    make_group: MakeGroup, client: RemotingClient
) -> None:
    """A leader is paused by SIGSTOP and another takes over; after SIGCONT no acknowledged send is lost or doubled."""
    group = make_group()
    senders = [Sender(client, group.address, f"s{number}", number) for number in range(8)]
    leader = group.wait_for_leader()

    async with asyncio.TaskGroup() as tasks:
        for sender in senders:
            tasks.create_task(sender.send(200, pause_s=0.002))
        await asyncio.sleep(0.3)
        group.brokers[leader].signal(signal.SIGSTOP)
        paused_at = time.monotonic()
        successor = await asyncio.to_thread(group.wait_for_leader, other_than=leader)
        paused_s = time.monotonic() - paused_at
        group.brokers[leader].signal(signal.SIGCONT)

    gap = max(sender.longest_gap_s() for sender in senders)
    report(f"paused {paused_s:.1f} s, {successor} led then: longest gap {gap:.2f} s")
    assert_kept_in_order(senders, await stored(client, group))


async def test_a_group_of_one_survives_its_restart(
    make_group: MakeGroup, client: RemotingClient
) -> None:
    """A single replica keeps all acknowledged messages after SIGKILL and after SIGTERM."""
    group = make_group(1)
    sender = Sender(client, group.address, "s0", 0)
    await sender.send(50)
    group.brokers[1].kill()
    group.brokers[1].start()
    await sender.send(50)
    group.brokers[1].signal(signal.SIGTERM)
    assert await asyncio.to_thread(group.brokers[1].wait) == 0
    group.brokers[1].start()
    await sender.send(1)

    assert_kept_in_order([sender], await stored(client, group))


def test_what_cannot_start_says_what_to_do(make_group: MakeGroup) -> None:
    """With a directory in use, a foreign directory, a port in use or bad settings, it exits with 2 and one sentence."""
    group = make_group(1)
    path = group.directory / "broker-1.json"

    def start(**changes: object) -> tuple[int, str]:
        path.write_text(json.dumps(group.settings(1) | changes))
        done = subprocess.run(
            [sys.executable, "-m", "orderlymq_broker", "--settings", str(path)],
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )
        return done.returncode, done.stderr.strip().splitlines()[-1]

    code, text = start()
    assert (code, "stop that process first" in text) == (2, True), text
    other = str(group.directory / "other")
    code, text = start(data_dir=other)
    assert (code, "is in use: stop the process" in text) == (2, True), text
    code, text = start(node_id=7)
    assert (code, "add this replica's own raft address" in text) == (2, True), text
    code, text = start(grup="g")
    assert code == 2
    group.brokers[1].signal(signal.SIGTERM)
    group.brokers[1].wait()
    code, text = start(group="another")
    assert (code, "belongs to node 1 of group 'g'" in text) == (2, True), text
