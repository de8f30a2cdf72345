"""Apache's unmodified Java client knows a cluster by a further listener alone."""

import asyncio
from pathlib import Path

import pytest

from orderlymq import AdminClient
from orderlymq.oracle.verdict import judge
from tests.clients.programs import Java
from tests.clients.test_java import history
from tests.cluster.outside import OUTSIDE, bootstrap, called, listen_outside

pytestmark = [
    pytest.mark.java,
    pytest.mark.cluster,
    pytest.mark.timeout(240),
]


def test_order_and_messages_survive_the_leader_outside(tmp_path: Path, java: Java) -> None:
    """Law: routes, heartbeats, locks and pulls go by the listener alone, and the promise is the same."""
    group = listen_outside(tmp_path / "group", 3)

    async def make() -> None:
        async with AdminClient(group.name_server_address) as admin:
            await admin.create_topic("orders", queues=4, ordered=True)

    with group:
        asyncio.run(make())
        where = {"ns": bootstrap(group), "topic": "orders"}
        with java.start("consume", **where, group="billing", expected=600, seconds=120) as consumer:
            consumer.heard("started")
            with java.start("send", **where, count=600, keys=12, pause=5, retry=True) as sender:
                sender.heard("ack", 150)
                leader = group.leader()
                assert leader is not None
                group.brokers[leader].kill()
                sender.heard("ack", 300)
                places = called(group, sender.pid) | called(group, consumer.pid)
                sent = sender.finish(timeout_s=90)
            got = consumer.finish(timeout_s=150)

    verdict = judge(history("orders", sent, {"c1": got}))
    assert verdict.findings == ()
    assert verdict.counts["acknowledged"] == 600
    assert {place.removeprefix("::ffff:") for place in places} == {OUTSIDE}
