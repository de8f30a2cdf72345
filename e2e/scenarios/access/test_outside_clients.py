"""Apache's unmodified clients on another network, by node ports and by a load balancer for each broker group."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from ipaddress import IPv4Address
from itertools import pairwise

import pytest
from tests.clients.programs import (
    GO_VERSIONS,
    JAVA_VERSIONS,
    Event,
    Go,
    Java,
    Program,
    build_node,
    missing,
    options,
    survive,
)

from e2e.balancers import balanced
from e2e.manifests import made, part
from e2e.space import Property, Space

KINDS = ("java", "go", "node")
KEYS = 8
# More messages than are ever sent: senders stop when sends have followed the kill, and then consumers do.
ENDLESS = 10**6
LISTENERS = [
    {"name": "public", "type": "NodePort", "port": 9094},
    {"name": "balanced", "type": "LoadBalancer", "port": 9095},
]


class Clients:
    """The client programs of three languages, built."""

    def __init__(self) -> None:
        self._java = Java(JAVA_VERSIONS[-1])
        self._java.build()
        self._go = Go(next(reversed(GO_VERSIONS)))
        self._go.build()
        self._node = build_node()

    def start(self, kind: str, program: str, **values: object) -> Program:
        """Start `send` or `consume` of one language."""
        if kind == "java":
            return self._java.start(program, **values)
        if kind == "go":
            return self._go.start(program, **values)
        return Program(["node", "main.js", program, *options(**values)], cwd=self._node)


@pytest.fixture(scope="module")
def clients() -> Clients:
    """Build the programs if their tools are here."""
    if (reason := missing("java", "mvn", "go", "node", "npm")) is not None:
        pytest.skip(reason)
    return Clients()


@pytest.fixture
def bootstraps(space: Space) -> Iterator[dict[str, str]]:
    """Make a Cluster with both listeners; return the name servers of each from its status."""
    if not space.machine.kind:
        pytest.skip("the addresses of the nodes may not be reached from here")
    with balanced(space) as places:
        space.apply(
            made("Cluster", "demo", groups=1, replicasPerGroup=3, listeners=LISTENERS),
            *(
                part("Topic", f"{kind}-{listener['name']}", "demo", type="Ordered", queues=4)
                for kind in KINDS
                for listener in LISTENERS
            ),
        )
        space.ready("cluster/demo")
        space.says("cluster/demo", "AddressesKnown", "ListenersReady")
        found = {
            each["name"]: str(each["bootstrap"])
            for each in space.must("cluster/demo")["status"]["listeners"]
        }
        assert IPv4Address(found["balanced"].partition(":")[0]) in places
        yield found


@pytest.mark.parametrize("listener", [each["name"] for each in LISTENERS])
def test_unmodified_clients_outside_survive_a_killed_leader(
    space: Space,
    clients: Clients,
    bootstraps: dict[str, str],
    listener: str,
    record_property: Property,
) -> None:
    """Each client sends and consumes only through the listener; every acknowledged message arrives in order."""
    with ExitStack() as running:
        senders: dict[str, Program] = {}
        consumers: dict[str, Program] = {}
        for kind in KINDS:
            where = {"ns": bootstraps[listener], "topic": f"{kind}-{listener}"}
            consumer = clients.start(
                kind, "consume", **where, group=f"{kind}-{listener}", expected=ENDLESS, seconds=300
            )
            consumers[kind] = running.enter_context(consumer)
            sender = clients.start(
                kind, "send", **where, count=ENDLESS, keys=KEYS, pause=20, retry=True
            )
            senders[kind] = running.enter_context(sender)
        survive(lambda: space.kill(space.leader("demo")), *senders.values())
        for program in senders.values():
            program.kill()
        sent = {kind: program.events for kind, program in senders.items()}
        for kind, program in consumers.items():
            program.until(partial(_has_all, acknowledged(sent[kind])), timeout_s=120)

    for kind, program in consumers.items():
        acks = [event["at"] for event in sent[kind] if event["event"] == "ack"]
        longest_ns = max(later - sooner for sooner, later in pairwise(acks))
        record_property(f"{kind}_longest_gap_ms", str(longest_ns // 1_000_000))
        if kind != "node":  # ali-ons has no ordered consumer
            wanted, got = acknowledged(sent[kind]), delivered(program.events)
            # The last message of a key may have been delivered although its sender was killed before the answer.
            came = {key: steps[: len(wanted[key])] for key, steps in got.items()}
            assert came == wanted, kind


def acknowledged(events: Iterable[Event]) -> dict[str, list[int]]:
    """Return the steps of each key in the order of their acknowledgements."""
    steps: dict[str, list[int]] = {}
    for event in events:
        if event["event"] == "ack":
            steps.setdefault(event["key"], []).append(int(event["body"]))
    return steps


def delivered(events: Iterable[Event]) -> dict[str, list[int]]:
    """Return the steps of each key in the order of their first deliveries."""
    bodies = dict.fromkeys(event["body"] for event in events if event["event"] == "deliver")
    steps: dict[str, list[int]] = {}
    for body in bodies:
        key, _, step = body.partition(":")
        steps.setdefault(key, []).append(int(step))
    return steps


def _has_all(wanted: dict[str, list[int]], program: Program) -> bool:
    got = delivered(list(program.events))
    return all(set(steps) <= set(got.get(key, ())) for key, steps in wanted.items())
