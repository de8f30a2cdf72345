"""A client on another network, which reaches a Cluster only through the ports of its nodes."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.cluster.sniproxy import resolve
from tests.runtime.certificates import make_authority, make_certificate

from e2e.gateways import served
from e2e.manifests import made, part, secret
from e2e.person import Person
from e2e.space import Property, Space
from orderlymq import (
    AdminClient,
    ClientSettings,
    Consumer,
    OrderedContext,
    OrderedResult,
    Producer,
    ReceivedMessage,
)
from orderlymq.errors import OrderlyMQError

pytestmark = pytest.mark.ci

LISTENER = {"name": "public", "type": "NodePort", "port": 9094}
DOMAIN = "mq.test"
SNI = {
    "name": "sni",
    "type": "TLSRoute",
    "port": 9096,
    "advertisedHost": f"{{service}}.{DOMAIN}",
    "tls": {"secretName": "sni-tls"},
}
KEYS = [f"order-{number}" for number in range(8)]
KILLS = 3


def test_the_sdk_keeps_order_from_outside_while_leaders_are_killed(
    space: Space, record_property: Property, tmp_path: Path
) -> None:
    """Over node ports, every acknowledged message is delivered in order; an address can change without a roll."""
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

    _judge(outside, record_property)
    assert {place.rpartition(":")[0] for place in bootstrap.split(";")} <= nodes
    assert {place.rpartition(":")[0] for place in outside.brokers.values()} <= nodes
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
    space.until(lambda: _bootstrap(space).startswith(f"{other}:"), "the status names it", 60)


def test_the_sdk_keeps_order_through_a_gateway_while_leaders_are_killed(
    space: Space, record_property: Property, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All use one address: the gateway knows only the TLSRoutes, and cannot read the encrypted bytes."""
    if not space.machine.kind:
        pytest.skip("the addresses of Services may not be reached from here")
    authority = make_authority(tmp_path)
    made_for = make_certificate(authority, "sni", host=f"*.{DOMAIN}")
    pair = {"tls.crt": made_for.certificate, "tls.key": made_for.key}
    space.apply(secret("sni-tls", {key: path.read_text() for key, path in pair.items() if path}))
    resolve(monkeypatch, DOMAIN)
    with served(space) as port:
        gateway = {"name": "edge", "namespace": "ingress", "sectionName": "mq", "port": port}
        space.apply(
            made(
                "Cluster",
                "demo",
                groups=1,
                replicasPerGroup=3,
                listeners=[SNI | {"gateway": gateway}],
            ),
            part("Topic", "orders", "demo", type="Ordered", queues=4),
            part(
                "ConsumerGroup", "billing", "demo", ordering="Ordered", topics=[{"name": "orders"}]
            ),
        )
        space.ready("cluster/demo", "topic/orders", "consumergroup/billing")
        space.says("cluster/demo", "AddressesKnown", "ListenersReady")
        settings = ClientSettings(use_tls=True, tls_ca_file=str(authority))
        outside = _Outside(space, _bootstrap(space), settings)
        asyncio.run(outside.run())

    assert outside.brokers == {"demo-0": f"demo-0.{DOMAIN}:{port}"}
    _judge(outside, record_property)


def _judge(outside: "_Outside", record_property: Property) -> None:
    for key in KEYS:
        # The listener call that ran during a crash may be repeated; no other deviation is allowed.
        assert list(dict.fromkeys(outside.delivered[key])) == outside.acknowledged[key]
    record_property("longest_gap_ms", str(round(1000 * outside.longest_gap_s)))


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


async def _brokers(bootstrap: str, settings: ClientSettings | None = None) -> dict[str, str]:
    try:
        async with AdminClient(bootstrap, client_settings=settings) as admin:
            return await admin.brokers()
    except OrderlyMQError:
        return {}


class _Outside:
    """A producer and a consumer on this machine, and the messages that they received."""

    def __init__(
        self, space: Space, bootstrap: str, settings: ClientSettings | None = None
    ) -> None:
        self._space = space
        self._bootstrap = bootstrap
        self._settings = settings or ClientSettings()
        self.acknowledged: dict[str, list[str]] = defaultdict(list)
        self.delivered: dict[str, list[str]] = defaultdict(list)
        self.brokers: dict[str, str] = {}
        self.longest_gap_s = 0.0
        self._ends = asyncio.Event()

    async def run(self) -> None:
        """Send and consume while leaders are killed, until all messages have arrived."""
        self.brokers = await _brokers(self._bootstrap, self._settings)
        async with (
            Producer("p", self._bootstrap, client_settings=self._settings) as producer,
            Consumer(
                "billing",
                self._bootstrap,
                topics="orders",
                ordered=True,
                consume_from="first",
                listener=self._listen,
                client_settings=self._settings,
            ),
        ):
            async with asyncio.TaskGroup() as tasks:
                for key in KEYS:
                    tasks.create_task(self._produce(producer, key))
                for _ in range(KILLS):
                    await asyncio.sleep(4)
                    await asyncio.to_thread(self._space.lose_leader, "demo")
                await asyncio.sleep(4)
                self._ends.set()
            # No send is in progress any more: the messages that are acknowledged now must all arrive.
            async with asyncio.timeout(90):
                while not self._all_came():  # noqa: ASYNC110 - the listener may end before the last send
                    await asyncio.sleep(0.2)

    def _all_came(self) -> bool:
        return all(set(self.acknowledged[key]) <= set(self.delivered[key]) for key in KEYS)

    async def _produce(self, producer: Producer, key: str) -> None:
        loop = asyncio.get_running_loop()
        number, last = 0, loop.time()
        while not self._ends.is_set():
            text = f"{key}/{number}"
            await producer.send("orders", text, key=key, timeout=120)
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
