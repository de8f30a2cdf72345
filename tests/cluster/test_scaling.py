"""Consumers scale by the metric of examples/scaling/keda.yaml, from none to many and back, and the order is kept."""

import asyncio
import math
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from orderlymq import (
    AdminClient,
    Consumer,
    Message,
    OrderedContext,
    OrderedResult,
    Producer,
    ReceivedMessage,
)
from orderlymq.oracle.events import Kind
from orderlymq.oracle.history import Recorder, read
from orderlymq.oracle.verdict import judge
from orderlymq_operator.brokers.admin import Admin
from orderlymq_runtime.remoting.client import RemotingClient
from tests.cluster.processes import Group

EXAMPLE = Path(__file__).parents[2] / "examples" / "scaling" / "keda.yaml"
SPEC: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())["spec"]
(TRIGGER,) = (each["metadata"] for each in SPEC["triggers"])
QUEUES, KEYS, MESSAGES = 4, 24, 480
TARGET = 60  # messages for each consumer; the example's figure is for a day's load
WORK_S = 0.05
COOLDOWN_S = 3.0


@dataclass
class Fleet:
    """The consumers that an autoscaler starts and stops; `sizes` lists their numbers over time."""

    group: Group
    history: Recorder
    sizes: list[int] = field(default_factory=list)
    _running: list[AsyncExitStack] = field(default_factory=list)
    _made: int = 0

    async def resize(self, count: int) -> None:
        """Start or stop consumers; each one stops in order."""
        while len(self._running) > count:
            await self._running.pop().aclose()
        while len(self._running) < count:
            self._made += 1
            stack = AsyncExitStack()
            await stack.enter_async_context(self._consumer(f"consumer-{self._made}"))
            self._running.append(stack)
        if self.sizes[-1:] != [count]:
            self.sizes.append(count)

    def _consumer(self, name: str) -> Consumer:
        async def listener(
            messages: Sequence[ReceivedMessage], context: OrderedContext
        ) -> OrderedResult:
            for message in messages:
                facts: dict[str, str | int] = {
                    "topic": message.topic,
                    "key": str(message.key),
                    "message": message.text,
                    "queue": str(context.queue.queue_id),
                    "offset": message.queue_offset,
                    "group": "billing",
                    "client": name,
                }
                self.history.record(Kind.DELIVER, **facts)
                await asyncio.sleep(WORK_S)
                self.history.record(Kind.DONE, **facts)
            return OrderedResult.SUCCESS

        return Consumer(
            "billing",
            self.group.name_server_address,
            topics="orders",
            listener=listener,
            ordered=True,
            consume_from="first",
        )


async def backlog(session: aiohttp.ClientSession, url: str) -> float | None:
    """Return the value that the example's trigger reads from the leader; None if KEDA would find none."""
    name, _, rest = TRIGGER["valueLocation"].partition("{")
    label, _, value = rest.rstrip("}").partition("=")
    async with session.get(url) as answer:
        page = await answer.text()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == name and sample.labels.get(label) == value.strip('"'):
                return sample.value
    return None


async def autoscale(fleet: Fleet, url: str, maximum: int) -> None:
    """Scale as KEDA and the HPA do, with shorter pauses; end when there are no consumers again."""
    loop = asyncio.get_running_loop()
    busy_at = loop.time()
    async with aiohttp.ClientSession() as session:
        while True:
            value = await backlog(session, url)
            if value:
                busy_at = loop.time()
                await fleet.resize(min(maximum, math.ceil(value / TARGET)))
            elif value == 0 and loop.time() - busy_at > COOLDOWN_S:
                await fleet.resize(SPEC["minReplicaCount"])
                if max(fleet.sizes) > 0:
                    return
            await asyncio.sleep(0.3)


async def produce(group: Group, history: Recorder) -> None:
    """Send the messages of each key one after the other, with all keys in parallel."""
    async with Producer("orders", group.name_server_address) as producer:

        async def line(key: str) -> None:
            for step in range(MESSAGES // KEYS):
                text = f"{key}/{step}"
                history.record(Kind.SEND, topic="orders", key=key, message=text)
                result = await producer.send(Message(topic="orders", body=text.encode(), key=key))
                history.record(
                    Kind.ACK,
                    topic="orders",
                    key=key,
                    message=text,
                    queue=str(result.queue.queue_id),
                    offset=result.queue_offset,
                )

        await asyncio.gather(*(line(f"key-{number}") for number in range(KEYS)))


@pytest.mark.cluster
@pytest.mark.long
@pytest.mark.timeout(240)
async def test_consumers_scale_with_the_backlog_and_keep_the_order(
    tmp_path: Path, client: RemotingClient
) -> None:
    """There are no consumers without messages, at most one for each queue, and none at the end."""
    with (
        Group(tmp_path / "group", replicas=1) as group,
        Recorder(tmp_path / "history.jsonl", process="test") as history,
    ):
        leader = group.wait_for_leader()
        url = f"http://127.0.0.1:{group.http_ports[leader]}{TRIGGER['url'].partition('13910')[2]}"
        async with AdminClient(group.name_server_address) as admin:
            await admin.create_topic("orders", queues=QUEUES, ordered=True)
        # The operator does this for a ConsumerGroup with startFrom; otherwise there would be no metric to start the
        # first one.
        operator = Admin(client)
        for queue in range(QUEUES):
            await operator.seed_offset(group.address, "billing", "orders", queue, latest=False)
        fleet = Fleet(group, history)
        await fleet.resize(0)

        async with asyncio.timeout(200), asyncio.TaskGroup() as tasks:
            tasks.create_task(autoscale(fleet, url, maximum=QUEUES))
            tasks.create_task(produce(group, history))

    verdict = judge(read(tmp_path / "history.jsonl"))
    assert verdict.findings == ()
    assert verdict.counts["acknowledged"] == MESSAGES
    assert {
        event.message for event in read(tmp_path / "history.jsonl") if event.kind == Kind.DONE
    } == {f"key-{key}/{step}" for key in range(KEYS) for step in range(MESSAGES // KEYS)}
    assert (fleet.sizes[0], max(fleet.sizes), fleet.sizes[-1]) == (0, QUEUES, 0)


def test_the_example_asks_for_a_metric_that_exists() -> None:
    """The example names the port of the pages, and no more consumers than the topic has queues."""
    page = (EXAMPLE.parents[2] / "docs" / "reference" / "metrics.md").read_text()
    topics = yaml.safe_load_all((EXAMPLE.parents[1] / "quickstart.yaml").read_text())
    (queues,) = (each["spec"]["queues"] for each in topics if each["kind"] == "Topic")

    assert f"`{TRIGGER['valueLocation'].partition('{')[0]}`" in page
    assert SPEC["maxReplicaCount"] == queues
    assert TRIGGER["format"] == "prometheus"
