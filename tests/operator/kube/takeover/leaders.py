"""Our own leaders for takeovers, and an operator beside them that has seen the client's pod."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from orderlymq_operator.brokers.admin import Admin
from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.takeover.clients import Target
from orderlymq_operator.kube.takeover.handover import Takeover
from orderlymq_operator.kube.takeover.proof import OUT_OF_SERVICE
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.process.supervisor import end_tasks
from orderlymq_runtime.remoting.client import RemotingClient
from tests.operator.kube.samples import NAMESPACE, pod
from tests.operator.scripted import Answer, serving

CLIENT = "10.244.1.9@1#7"
BEHIND_A_PROXY = "192.168.7.5@4242#1"
# The leader has no connection with the lock's holder.
LOCK = {
    "clientId": CLIENT,
    "address": "10.244.1.9:4711",
    "connected": False,
    "consumerGroup": "billing",
    "topic": "orders",
    "queueId": 0,
}
NOBODY: dict[int, Answer] = {
    RequestCode.ORDERLYMQ_LOCK_TABLE: lambda request: request.reply(body=b'{"locks": []}'),
    RequestCode.ORDERLYMQ_GROUP_MEMBERS: lambda request: request.reply(body=b'{"members": []}'),
}
OUT_OF_SERVICE_NODE = {
    "metadata": {"name": pod()["spec"]["nodeName"]},
    "spec": {"taints": [{"key": OUT_OF_SERVICE, "value": "lost", "effect": "NoExecute"}]},
}


@asynccontextmanager
async def taking_over(api: Api, answers: Mapping[int, Answer]) -> AsyncIterator[Takeover]:
    """Start an operator that has seen the client's pod, beside this leader."""
    client = RemotingClient()
    async with serving(NOBODY | dict(answers)) as (_, address):
        target = Target((NAMESPACE, "demo"), Admin(client), (address,), True)
        takeover = Takeover(api, OperatorMetrics(), lambda: [target], lambda: True)
        takeover.pod_shown(pod(), gone=False)
        yield takeover
        await end_tasks(takeover._checks.values())
    await client.close()


def end_others(takeover: Takeover, count: int) -> None:
    """Let that many pods without a consumer end."""
    for number in range(count):
        made = pod(f"app-{number}", uid=f"app-{number}", podIP=f"10.244.7.{number}")
        takeover.pod_shown(made, gone=True)


class Survivor:
    """A newly elected leader: one lock from its log, whose client has no connection with it."""

    def __init__(self) -> None:
        self.buried: list[str] = []

    def locks(self, request: RemotingCommand) -> RemotingCommand:
        """Show the lock until its client is reported dead."""
        locks = [] if self.buried else [LOCK]
        return request.reply(body=json.dumps({"locks": locks}).encode())

    def expire(self, request: RemotingCommand) -> RemotingCommand:
        """Note which client is dead."""
        self.buried.append(request.ext["clientId"])
        return request.reply()


class Holder:
    """A leader with one lock, whose holder is connected or not, until it is reported dead."""

    def __init__(self) -> None:
        self.buried: list[str] = []
        self.ends: str | None = None
        self.client = CLIENT
        self.address = str(LOCK["address"])
        self.connected = True
        self.looks = 0

    def locks(self, request: RemotingCommand) -> RemotingCommand:
        """Show the lock."""
        self.looks += 1
        place = {"address": self.address, "connected": self.connected}
        lock = {**LOCK, "clientId": self.client, **place}
        return request.reply(body=json.dumps({"locks": [] if self.buried else [lock]}).encode())

    def expire(self, request: RemotingCommand) -> RemotingCommand:
        """Note which client is dead."""
        self.buried.append(request.ext["clientId"])
        self.ends = request.ext.get("addresses")
        return request.reply()

    async def several_looks(self) -> None:
        """Wait until the operator has looked at the locks some more times."""
        seen = self.looks
        while self.looks < seen + 5:  # noqa: ASYNC110 - the leader signals it to nobody
            await asyncio.sleep(0.01)
