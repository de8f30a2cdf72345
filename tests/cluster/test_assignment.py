"""Members that leave the division to the brokers, on real processes: what the operator decides is what they get."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from orderlymq import Consumer, OrderedResult
from orderlymq.admin import AdminClient
from orderlymq.contexts import OrderedContext
from orderlymq.message import ReceivedMessage
from orderlymq.settings import ClientSettings, ConsumerSettings
from orderlymq_protocol.messagequeue import MessageQueue
from tests.clients.localcluster import LocalCluster
from tests.cluster.messaging import report

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(200)]

MANIFEST = """
apiVersion: orderlymq.io/v1alpha1
kind: Topic
metadata: {name: orders}
spec: {clusterRef: {name: clients}, type: Ordered, queues: 9}
---
apiVersion: orderlymq.io/v1alpha1
kind: ConsumerGroup
metadata: {name: billing}
spec:
  clusterRef: {name: clients}
  topics: [{name: orders}]
  assignment: {strategy: Sticky, rebalanceDelay: 15s}
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    made = LocalCluster(tmp_path / "cluster", groups=2, replicas=1)
    made.up()
    yield made
    made.down()


async def listener(_messages: Sequence[ReceivedMessage], _context: OrderedContext) -> OrderedResult:
    return OrderedResult.SUCCESS


async def until(condition: Callable[[], Awaitable[bool]], timeout_s: float = 60) -> None:
    async with asyncio.timeout(timeout_s):
        while not await condition():  # noqa: ASYNC110 - other processes decide
            await asyncio.sleep(0.1)


async def test_a_rolling_restart_of_consumers_moves_each_queue_once(cluster: LocalCluster) -> None:
    """Three members are replaced one by one, the new one first: nine queues, nine moves."""
    path = cluster.directory / "topic.yaml"
    path.write_text(MANIFEST)
    cluster.command("apply", "-f", str(path))
    moves: dict[MessageQueue, list[str]] = {}

    async with AdminClient(cluster.name_server) as admin, AsyncExitStack() as stack:

        async def consumer(name: str) -> AsyncExitStack:
            one = await stack.enter_async_context(AsyncExitStack())
            made = Consumer(
                "billing",
                cluster.name_server,
                topics="orders",
                ordered=True,
                listener=listener,
                settings=ConsumerSettings(server_assignment=True),
                client_settings=ClientSettings(instance_name=name),
            )
            await one.enter_async_context(made)
            return one

        async def holders() -> dict[MessageQueue, str]:
            found = await admin.locks("billing")
            return {q: lock.client_id for q, lock in found.items() if q.topic == "orders"}

        async def settled(*names: str) -> None:
            async def is_settled() -> bool:
                found = await holders()
                online = {owner.partition("@")[2] for owner in found.values()}
                return len(found) == 9 and online <= set(names)

            await until(is_settled)
            for queue, owner in (await holders()).items():
                if moves.setdefault(queue, [owner])[-1] != owner:
                    moves[queue].append(owner)

        async def is_even() -> bool:
            return sorted(Counter((await holders()).values()).values()) == [3, 3, 3]

        old = [await consumer(f"old{number}") for number in range(3)]
        names = ["old0", "old1", "old2"]
        await until(is_even)
        await settled(*names)
        for number, gone in enumerate(old):
            await consumer(f"new{number}")
            names = [*names[1:], f"new{number}"]
            await asyncio.sleep(2)
            await gone.aclose()
            await settled(*names)
        owners = await holders()

    report(f"moves per queue: {sorted(len(found) - 1 for found in moves.values())}")
    assert all(len(found) <= 2 for found in moves.values()), moves
    shares = Counter(owner.partition("@")[2] for owner in owners.values())
    assert shares == {"new0": 3, "new1": 3, "new2": 3}
