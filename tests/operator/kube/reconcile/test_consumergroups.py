"""The loop over the consumer groups of all Clusters, with our own leaders and real remoting."""

import asyncio

import pytest

from orderlymq_operator.brokers.admin import Admin
from orderlymq_operator.kube.observe.zones import Zones
from orderlymq_operator.kube.reconcile.consumergroups import AssignmentTarget, ConsumerGroupLoop
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.process.supervisor import end_tasks
from orderlymq_runtime.remoting.client import RemotingClient
from tests.operator.examples import desired, group
from tests.operator.kube.samples import NAMESPACE
from tests.operator.scripted import serving


async def test_a_cluster_whose_leader_is_gone_keeps_no_other_one_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: each Cluster is looked at about once a second, even if another one's leader is gone and takes long."""
    monkeypatch.setattr("orderlymq_operator.kube.reconcile.consumergroups._POLL_S", 0.01)
    monkeypatch.setattr("orderlymq_operator.brokers.consumergroups.RECONCILE_PAUSE_MS", 0)
    monkeypatch.setattr("orderlymq_operator.brokers.admin._READ_TIMEOUT_S", 600.0)
    looks, several = 0, asyncio.Event()

    def locks(request: RemotingCommand) -> RemotingCommand:
        nonlocal looks
        looks += 1
        if looks == 5:
            several.set()
        return request.reply(body=b'{"locks":[]}')

    client, table = RemotingClient(), RequestCode.ORDERLYMQ_LOCK_TABLE
    async with (
        serving({table: locks}) as (_, living),
        serving({table: lambda request: None}) as (silent, gone),
    ):
        targets = {
            (NAMESPACE, name): AssignmentTarget(
                Admin(client), desired(group("billing")), {"demo-0": address}, {}, {}
            )
            for name, address in {"gone": gone, "living": living}.items()
        }
        loop = ConsumerGroupLoop(lambda: targets, lambda: True, Zones(lambda address: ""))
        running = asyncio.create_task(loop.run())
        async with asyncio.timeout(10):
            await several.wait()
        await end_tasks([running])
    await client.close()

    assert len(silent.asked) == 1
