"""Apache's unmodified Java client reaches a cluster only through an outside listener, plain or with TLS."""

import asyncio
from pathlib import Path

import pytest

from orderlymq import AdminClient
from orderlymq.oracle.verdict import judge
from tests.clients.javaclient.test_java import history
from tests.clients.programs import Java, consumed, survive
from tests.cluster.outside import OUTSIDE, bootstrap, called, listen_outside
from tests.cluster.processes import Group

pytestmark = [
    pytest.mark.java,
    pytest.mark.cluster,
    pytest.mark.timeout(240),
]


@pytest.mark.parametrize("tls", [False, True])
def test_order_and_messages_survive_the_leader_outside(
    tmp_path: Path, java: Java, tls: bool
) -> None:
    """Law: routes, heartbeats, locks and pulls use only the listener, with the same guarantees."""
    group = listen_outside(tmp_path / "group", 3, tls=tls)
    if tls:  # the listener refuses plain connections
        java = java.speaking("tls.enable=true")

    async def make() -> None:
        async with AdminClient(group.name_server_address) as admin:
            await admin.create_topic("orders", queues=4, ordered=True)

    with group:
        asyncio.run(make())
        where = {"ns": bootstrap(group), "topic": "orders"}
        with java.start("consume", **where, group="billing", seconds=220) as consumer:
            consumer.heard("started")
            with java.start("send", **where, count=10**6, keys=12, pause=5, retry=True) as sender:
                survive(lambda: _kill_leader(group), sender)
                places = called(group, sender.pid) | called(group, consumer.pid)
                sent = consumed(sender, consumer)
            got = consumer.stop()

    assert judge(history("orders", sent, {"c1": got})).findings == ()
    assert {place.removeprefix("::ffff:") for place in places} == {OUTSIDE}


def _kill_leader(group: Group) -> None:
    leader = group.leader()
    assert leader is not None
    group.brokers[leader].kill()
