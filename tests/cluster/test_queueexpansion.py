"""An ordered topic gets more queues under load, with real processes and manifests; the oracle checks the order."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import pytest

from orderlymq import Consumer, OrderedResult, Producer
from orderlymq.admin.client import AdminClient
from orderlymq.consumer.listeners.context import OrderedContext
from orderlymq.errors import BrokerError, BrokerUnreachable, SendRefused, SendUnknown
from orderlymq.message import ReceivedMessage
from orderlymq.oracle.verdict import Event, Kind, Verdict, judge
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_runtime.remoting.client import RemotingClient
from tests.clients.localcluster import LocalCluster
from tests.cluster.bareclient import invoke, report, send_command

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

KEYS = 24
OLD, NEW = 4, 10
_BEHIND = r"group billing has \d+ messages? of queue \d+ left to consume"
SETTLE_S = 4.0

TOPIC = """
apiVersion: orderlymq.io/v1alpha1
kind: Topic
metadata: {{name: orders}}
spec:
  clusterRef: {{name: clients}}
  type: Ordered
  queues: {queues}
  queueChangePolicy: DrainAndSwitch
  drainTimeout: {drain}
  routePropagationTime: 4s
"""
GROUP = """
---
apiVersion: orderlymq.io/v1alpha1
kind: ConsumerGroup
metadata: {{name: billing}}
spec:
  clusterRef: {{name: clients}}
  topics: [{{name: orders}}]
  startFrom: Earliest
"""


class Story:
    """The events for the oracle, which producers and consumers record."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.events: list[Event] = []
        self.ended = asyncio.Event()
        self.refused = 0
        self.longest_pause_s = 0.0

    def note(self, kind: Kind, **facts: str | int) -> None:
        self.events.append(Event(time.monotonic_ns(), kind, topic="orders", **facts))  # type: ignore[arg-type]  # fields of an event

    async def produce(self, key: int) -> None:
        """Send the messages of one key, each after the former one is stored."""
        async with Producer("shop", self.cluster.name_server) as producer:
            step, last = 0, time.monotonic()
            while not self.ended.is_set():
                name = f"{key}:{step}"
                self.note(Kind.SEND, process="p", key=str(key), message=name)
                try:
                    sent = await producer.send("orders", name, key=str(key))
                except SendRefused:
                    self.note(Kind.REFUSED, message=name)
                    self.refused += 1
                except SendUnknown:
                    self.note(Kind.UNKNOWN, message=name)
                else:
                    queue, offset = _name(sent.queue), sent.queue_offset
                    self.note(Kind.ACK, message=name, queue=queue, offset=offset)
                now = time.monotonic()
                self.longest_pause_s = max(self.longest_pause_s, now - last)
                last = now
                step += 1
                await asyncio.sleep(0.02)

    def consumer(self, client: str, *, pause_s: float = 0.0) -> Consumer:
        async def listener(
            messages: Sequence[ReceivedMessage], context: OrderedContext
        ) -> OrderedResult:
            for message in messages:
                facts: dict[str, str | int] = {
                    "message": message.text,
                    "queue": _name(message.queue),
                    "offset": message.queue_offset,
                    "group": "billing",
                    "client": client,
                }
                self.note(Kind.DELIVER, **facts)
                await asyncio.sleep(pause_s)
                self.note(Kind.DONE, **facts)
            return OrderedResult.SUCCESS

        return Consumer(
            "billing",
            self.cluster.name_server,
            topics="orders",
            ordered=True,
            consume_from="first",
            listener=listener,
        )

    def apply(self, queues: int, *, group: bool = True) -> None:
        path = self.cluster.directory / f"topic-{queues}.yaml"
        path.write_text((TOPIC + GROUP * group).format(queues=queues, drain="60s"))
        self.cluster.command("apply", "-f", str(path), "--timeout", "110")

    async def apply_in_background(self, queues: int) -> None:
        """Start the growth; the call returns when `apply` has ended."""
        self.note(Kind.GROWN)
        await asyncio.to_thread(self.apply, queues)

    async def drained(self) -> Verdict:
        """Wait until every acknowledged message was consumed, including sends in progress; return the oracle's verdict."""
        async with asyncio.timeout(60):
            while self._messages(Kind.ACK) - self._messages(Kind.DONE):  # noqa: ASYNC110 - the listener only writes
                await asyncio.sleep(0.1)
        self.note(Kind.DRAINED, group="billing")
        return judge(self.events)

    def _messages(self, kind: Kind) -> set[str]:
        return {event.message for event in self.events if event.kind is kind}


def _name(queue: MessageQueue) -> str:
    return f"{queue.broker_name}:{queue.queue_id}"


def apply_without_waiting(cluster: LocalCluster, path: Path) -> None:
    """Apply the manifests with a short time-out; the command reports that the change is not carried out yet."""
    data = str(cluster.directory / "data")
    words = ["apply", "-f", str(path), "--timeout", "1", "--data-dir", data]
    subprocess.run([sys.executable, "-m", "orderlymq", *words], timeout=60, check=False)


async def growths(cluster: LocalCluster) -> dict[str, dict[str, object]]:
    """Return the growth's state in each broker group; an empty dict while one of them has no leader."""
    async with AdminClient(cluster.name_server) as admin:
        try:
            return await admin.expansion("orders")
        except (BrokerError, BrokerUnreachable):
            return {}


async def until(condition: Callable[[], Awaitable[bool]], timeout_s: float = 60) -> None:
    async with asyncio.timeout(timeout_s):
        while not await condition():  # noqa: ASYNC110 - another process decides
            await asyncio.sleep(0.05)


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """Two broker groups, with one replica each unless the test asks for three."""
    replicas = getattr(request, "param", 1)
    made = LocalCluster(tmp_path / "cluster", groups=2, replicas=replicas)
    made.up()
    yield made
    made.down()


@pytest.mark.parametrize("cluster", [3], indirect=True)
@pytest.mark.long
async def test_a_topic_grows_under_load_and_keeps_every_keys_order(cluster: LocalCluster) -> None:
    """Producers of our SDK see a pause and no error, a leader dies meanwhile, and the order of all keys is kept."""
    story = Story(cluster)
    story.apply(OLD)
    async with (
        story.consumer("c1", pause_s=0.002),
        story.consumer("c2", pause_s=0.002),
        asyncio.TaskGroup() as tasks,
    ):
        for key in range(KEYS):
            tasks.create_task(story.produce(key))
        await asyncio.sleep(2)
        growing = tasks.create_task(story.apply_in_background(NEW))

        async def has_begun() -> bool:
            found = await growths(cluster)
            return bool(found) and all(each["phase"] != "open" for each in found.values())

        await until(has_begun)
        os.kill(cluster.leader(1)["pid"], signal.SIGKILL)
        await growing
        await asyncio.sleep(3)
        story.ended.set()
        verdict = await story.drained()

    used = {event.queue for event in story.events if event.kind is Kind.ACK}
    report(f"growth: {verdict.counts}, longest pause {story.longest_pause_s:.2f} s, {used}")
    assert verdict.findings == ()
    assert story.refused == 0
    assert len(used) > OLD
    assert {each["phase"] for each in (await growths(cluster)).values()} == {"open"}


@pytest.mark.long
async def test_a_growth_that_somebody_blocks_is_given_up_and_says_who(
    cluster: LocalCluster,
) -> None:
    """If a consumer group does not drain in time, writes resume with the old list, and the status names the group."""
    story = Story(cluster)
    story.apply(OLD)
    async with story.consumer("c1", pause_s=5.0), Producer("shop", cluster.name_server) as producer:
        for number in range(20):
            await producer.send("orders", f"0:{number}", key="0")

        async def is_consuming() -> bool:
            return any(event.kind is Kind.DELIVER for event in story.events)

        await until(is_consuming)
        path = cluster.directory / "blocked.yaml"
        path.write_text((TOPIC + GROUP).format(queues=NEW, drain="3s"))
        applied = asyncio.create_task(asyncio.to_thread(apply_without_waiting, cluster, path))
        sent = await producer.send("orders", "0:20", key="0")

        async def says_who() -> bool:
            found = (await growths(cluster)).values()
            return any(re.search(_BEHIND, str(each["reason"])) for each in found)

        await until(says_who)
        after = await producer.send("orders", "0:21", key="0")
        await applied

    assert sent.queue == after.queue
    shown = cluster.command("topic", "show", "orders")
    assert "was aborted" in shown
    assert re.search(_BEHIND, shown)


async def test_a_client_with_the_old_list_is_refused_until_everybody_must_know_the_new_one(
    cluster: LocalCluster,
) -> None:
    """RocketMQ's clients do not name their list, so their sends are refused for a time and then served."""
    story = Story(cluster)
    story.apply(OLD, group=False)
    client = RemotingClient()
    address = f"127.0.0.1:{cluster.base + 12}"
    growing = asyncio.create_task(asyncio.to_thread(story.apply, NEW, group=False))
    refused: list[float] = []
    codes: set[int] = set()
    try:
        while not (growing.done() and refused):
            answer = await invoke(client, address, send_command("orders", 0, b"x"), 3.0)
            codes.add(answer.code)
            if answer.code:
                refused.append(time.monotonic())
            await asyncio.sleep(0.02)
        await growing
        answer = await invoke(client, address, send_command("orders", 4, b"x"), 3.0)
    finally:
        await client.close()

    report(f"plain sends were refused for {refused[-1] - refused[0]:.1f} s")
    assert answer.code == 0
    assert codes == {0, 14}
    assert refused[-1] - refused[0] >= SETTLE_S
