"""A group of real processes keeps its promises when its leader ends, planned or not."""

import asyncio
import signal
import time
from collections.abc import Callable

import pytest

from orderlymq_runtime.remoting.client import RemotingClient
from tests.cluster.bareclient import Sender, assert_kept_in_order, pull_all, report
from tests.cluster.processes import Group
from tests.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

MakeGroup = Callable[..., Group]
MIDWAY = 300


def acknowledged(senders: list[Sender]) -> int:
    return sum(len(sender.acknowledged) for sender in senders)


async def stored(
    client: RemotingClient, group: Group, queues: int = 8
) -> dict[int, list[tuple[int, bytes]]]:
    return {
        queue_id: await pull_all(client, group.address, "orders", queue_id)
        for queue_id in range(queues)
    }


async def test_what_was_acknowledged_survives_the_death_of_the_leader(
    make_group: MakeGroup, client: RemotingClient
) -> None:
    """The leader is killed in the middle of 1 000 sends by 8 senders: no acknowledged message is lost or moved."""
    group = make_group()
    senders = [Sender(client, group.address, f"s{number}", number) for number in range(8)]
    leader = group.wait_for_leader()

    async with asyncio.TaskGroup() as tasks:
        for sender in senders:
            tasks.create_task(sender.send(125, pause_s=0.005))
        await until(lambda: acknowledged(senders) >= MIDWAY)
        group.brokers[leader].signal(signal.SIGKILL)
        killed_at = time.monotonic()

    first_after = min(
        each.at for sender in senders for each in sender.acknowledged if each.at > killed_at
    )
    gap = max(sender.longest_gap_s() for sender in senders)
    report(
        f"fail-over: first ack {first_after - killed_at:.3f} s after SIGKILL, longest gap {gap:.3f} s"
    )
    assert acknowledged(senders) == 1000
    assert_kept_in_order(senders, await stored(client, group))


async def test_a_planned_end_of_the_leader_fails_no_send(
    make_group: MakeGroup, client: RemotingClient
) -> None:
    """After SIGTERM of the leader, leadership moves, no send is refused, and the process soon exits with 0."""
    group = make_group()
    senders = [Sender(client, group.address, f"s{number}", number) for number in range(8)]
    leader = group.wait_for_leader()

    async with asyncio.TaskGroup() as tasks:
        for sender in senders:
            tasks.create_task(sender.send(125, pause_s=0.005))
        await until(lambda: acknowledged(senders) >= MIDWAY)
        group.brokers[leader].signal(signal.SIGTERM)
        told_at = time.monotonic()
        code = await asyncio.to_thread(group.brokers[leader].wait)
        took_s = time.monotonic() - told_at

    gap = max(sender.longest_gap_s() for sender in senders)
    report(f"planned move: exit {code} after {took_s:.3f} s, longest gap {gap:.3f} s")
    assert code == 0
    assert took_s < 20.0
    assert sum(sender.refused for sender in senders) == 0
    assert_kept_in_order(senders, await stored(client, group))
