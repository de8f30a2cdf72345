"""A client on another network, which knows a Cluster by the ports of its nodes alone."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

from e2e.manifests import made, part
from e2e.person import Person
from e2e.space import Property, Space
from orderlymq import (
    AdminClient,
    Consumer,
    OrderedContext,
    OrderedResult,
    Producer,
    ReceivedMessage,
)
from orderlymq.errors import OrderlyMQError

pytestmark = pytest.mark.ci

LISTENER = {"name": "public", "type": "NodePort", "port": 9094}
KEYS = [f"order-{number}" for number in range(8)]
KILLS = 3


def test_the_sdk_keeps_order_from_outside_while_leaders_are_killed(
    space: Space, record_property: Property, tmp_path: Path
) -> None:
    """It sends and consumes over node ports; every acknowledged message comes, in order; an address changes without a roll."""
    if not space.machine.kind:
        pytest.skip("the addresses of the nodes may not be reached from here")
    space.apply(
        made("Cluster", "demo", groups=1, replicasPerGroup=3, listeners=[LISTENER]),
        part("Topic", "orders", "demo", type="Ordered", queues=4),
        part("ConsumerGroup", "billing", "demo", ordering="Ordered", topics=[{"name": "orders"}]),
    )
    space.ready("cluster/demo", "topic/orders", "consumergroup/billing")
    space.says("cluster/demo", "AddressesKnown", "ListenersReady")
    person = Person(space, tmp_path, {" shop ": " demo "})
    bootstrap = person.types("howto/outside", "kubectl get cluster")
    nodes = _addresses_of_nodes(space)

    outside = _Outside(space, bootstrap)
    asyncio.run(outside.run())

    assert {place.rpartition(":")[0] for place in bootstrap.split(";")} <= nodes
    assert {place.rpartition(":")[0] for place in outside.brokers.values()} <= nodes
    for key in KEYS:
        # A listener call that ran at the moment of a crash may be repeated; order allows no more.
        assert list(dict.fromkeys(outside.delivered[key])) == outside.acknowledged[key]
    record_property("longest_gap_ms", str(round(1000 * outside.longest_gap_s)))

    pods = space.uids("orderlymq.io/cluster=demo")
    (told,) = outside.brokers.values()
    other = sorted(nodes - {told.rpartition(":")[0]})[0]
    space.patch("cluster/demo", {"listeners": [LISTENER | {"advertisedHost": other}]})
    took_s = space.until(
        lambda: asyncio.run(_brokers(bootstrap)).get("demo-0", "").startswith(f"{other}:"),
        "the name servers publish the new address",
        timeout_s=120,
    )
    record_property("new_address_s", str(round(took_s, 1)))
    assert space.uids("orderlymq.io/cluster=demo") == pods
    assert _bootstrap(space).startswith(f"{other}:")


def _bootstrap(space: Space) -> str:
    (listener,) = space.must("cluster/demo")["status"]["listeners"]
    return str(listener["bootstrap"])


def _addresses_of_nodes(space: Space) -> set[str]:
    return {
        str(address["address"])
        for node in space.items("nodes")
        for address in node["status"]["addresses"]
        if address["type"] == "InternalIP"
    }


async def _brokers(bootstrap: str) -> dict[str, str]:
    try:
        async with AdminClient(bootstrap) as admin:
            return await admin.brokers()
    except OrderlyMQError:
        return {}


class _Outside:
    """A producer and a consumer on this machine, and what they received."""

    def __init__(self, space: Space, bootstrap: str) -> None:
        self._space = space
        self._bootstrap = bootstrap
        self.acknowledged: dict[str, list[str]] = defaultdict(list)
        self.delivered: dict[str, list[str]] = defaultdict(list)
        self.brokers: dict[str, str] = {}
        self.longest_gap_s = 0.0
        self._ends = asyncio.Event()

    async def run(self) -> None:
        """Send and consume while leaders are killed, and until everything has come."""
        self.brokers = await _brokers(self._bootstrap)
        async with (
            Producer("p", self._bootstrap) as producer,
            Consumer(
                "billing",
                self._bootstrap,
                topics="orders",
                ordered=True,
                consume_from="first",
                listener=self._listen,
            ),
            asyncio.TaskGroup() as tasks,
        ):
            for key in KEYS:
                tasks.create_task(self._produce(producer, key))
            for _ in range(KILLS):
                await asyncio.sleep(4)
                await asyncio.to_thread(self._kill_leader)
            await asyncio.sleep(4)
            self._ends.set()
            async with asyncio.timeout(90):
                while not self._all_came():  # noqa: ASYNC110 - the listener may end before the last send
                    await asyncio.sleep(0.2)

    def _kill_leader(self) -> None:
        self._space.ready("cluster/demo")
        self._space.kill(self._space.leader("demo"))

    def _all_came(self) -> bool:
        return all(set(self.acknowledged[key]) <= set(self.delivered[key]) for key in KEYS)

    async def _produce(self, producer: Producer, key: str) -> None:
        loop = asyncio.get_running_loop()
        number, last = 0, loop.time()
        while not self._ends.is_set():
            text = f"{key}/{number}"
            await producer.send("orders", text, key=key, timeout=30)
            self.acknowledged[key].append(text)
            self.longest_gap_s = max(self.longest_gap_s, loop.time() - last)
            number, last = number + 1, loop.time()
            await asyncio.sleep(0.02)

    async def _listen(
        self, messages: Sequence[ReceivedMessage], _context: OrderedContext
    ) -> OrderedResult:
        for message in messages:
            assert message.key is not None
            self.delivered[message.key].append(message.text)
        return OrderedResult.SUCCESS
