"""A broker group that is lost for good blocks administrative changes only until it is withdrawn."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from orderlymq import AdminClient
from orderlymq.errors import BrokerUnreachable, OrderlyMQError
from orderlymq_protocol.body.catalogue import SubscriptionGroupConfig
from orderlymq_protocol.names import ORDER_NAMESPACE
from tests.cluster.processes import Group
from tests.ports import free_ports

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

T = TypeVar("T")
BILLING = SubscriptionGroupConfig("billing")


async def test_a_group_that_is_lost_for_good_is_withdrawn(
    make_group: Callable[..., Group],
) -> None:
    """Law: the refusal names the steps that withdraw the group, and no others are needed."""
    group = make_group(1)
    (port,) = free_ports(1)
    own = {"peers": {"2": {"host": "127.0.0.1", "port": group.raft_ports[2]}}}
    lost = group.add(2, group="lost", address={"host": "127.0.0.1", "port": port}, **own)
    lost.start()
    async with AdminClient(group.name_server_address) as admin:
        await _until(admin.brokers, lambda found: len(found) == 2)
        await _until(lambda: admin.create_topic("orders", queues=2, ordered=True), bool)
        lost.kill()
        await _until(admin.absent_groups, bool)
        with pytest.raises(BrokerUnreachable) as refusal:
            await admin.set_group(BILLING)

        await admin.put_kv(ORDER_NAMESPACE, "orders", "g:1")
        group.name_server.kill()
        group.name_server.start()
        await _until(admin.brokers, bool)
        await admin.set_group(BILLING)
        await admin.create_topic("orders", queues=1, ordered=True)
        await admin.delete_topic("orders")

    assert "put_kv" in str(refusal.value)
    assert "restart the name servers" in str(refusal.value)


async def _until(ask: Callable[[], Awaitable[T]], is_wanted: Callable[[T], bool]) -> None:
    """Ask until the answer is as wanted: the start or end of a process is noticed a moment later."""
    async with asyncio.timeout(60.0):
        while True:
            try:
                if is_wanted(await ask()):
                    return
            except OrderlyMQError:
                pass
            await asyncio.sleep(0.05)
