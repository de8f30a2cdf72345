"""A real broker in this process: eight programs send without a pause while the secret of their account changes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from orderlymq_broker.app import BrokerProcess
from orderlymq_broker.processors.admin.access import signature
from orderlymq_broker.settings import AccessSettings, Address, BrokerSettings
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_protocol.header.extensions import EXT_OVERLAP
from orderlymq_runtime.remoting.client import RemotingClient, RemotingError
from tests.cluster.bareclient import send_command
from tests.ports import free_ports

OPERATOR = ("operator", "operator-secret")
KEY, FIRST, SECOND = "shop-app", "first-secret", "second-secret"
PROGRAMS = 8
# Longer than any pause of a busy machine.
PATIENCE_S = 30.0


class Programs:
    """Clients of one account; each sends with its own copy of the secret."""

    def __init__(self, address: str) -> None:
        self.client = RemotingClient()
        self.address = address
        self.secrets = [FIRST] * PROGRAMS
        self.sent = [0] * PROGRAMS
        self.refusals: list[str] = []
        self.moved = asyncio.Event()

    async def ask(self, who: tuple[str, str], command: RemotingCommand) -> RemotingCommand:
        ext = {**command.ext, "AccessKey": who[0]}
        ext["Signature"] = signature(ext, command.body, who[1])
        signed = request(RequestCode(command.code), ext, command.body)
        return await self.client.invoke(self.address, signed, PATIENCE_S)

    async def set_account(self, secret: str, overlap_s: int) -> None:
        ext = {"accessKey": KEY, "secretKey": secret, "defaultTopicPerm": "PUB"}
        ext[EXT_OVERLAP] = str(overlap_s)
        command = request(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, ext)
        reply = await self.ask(OPERATOR, command)
        assert reply.code == 0, reply.remark

    async def run(self, number: int) -> None:
        while True:
            reply = await self.ask((KEY, self.secrets[number]), send_command("orders", 0, b"paid"))
            if reply.code:
                self.refusals.append(f"{self.secrets[number]}: {reply.remark}")
            self.sent[number] += 1
            self.moved.set()

    async def go_on(self) -> None:
        """Wait until every program has sent some more messages."""
        goal = [count + 5 for count in self.sent]
        async with asyncio.timeout(PATIENCE_S):
            while any(count < wanted for count, wanted in zip(self.sent, goal, strict=True)):
                self.moved.clear()
                await self.moved.wait()


@pytest.fixture
async def programs(tmp_path: Path) -> AsyncIterator[Programs]:
    client, http, raft = (Address("127.0.0.1", port) for port in free_ports(3))
    settings = BrokerSettings(
        cluster="C",
        group="g",
        node_id=1,
        peers={1: raft},
        address=client,
        http=http,
        data_dir=tmp_path / "data",
        access=AccessSettings(enable=True, operator_key=OPERATOR[0], operator_secret=OPERATOR[1]),
    )
    broker = asyncio.create_task(BrokerProcess(settings).run())
    made = Programs(str(client))
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(RemotingError, AssertionError):
                await made.set_account(FIRST, 0)
                break
            await asyncio.sleep(0.01)
    tasks = [asyncio.create_task(made.run(number)) for number in range(PROGRAMS)]
    yield made
    for task in (*tasks, broker):
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    await made.client.close()


async def test_no_send_is_refused_while_programs_change_one_by_one(programs: Programs) -> None:
    """With an overlap of two secrets; when it is ended on demand, only a program with the former secret is refused."""
    await programs.go_on()
    await programs.set_account(SECOND, 600)
    await programs.go_on()
    for number in range(PROGRAMS - 1):
        programs.secrets[number] = SECOND
        await programs.go_on()
    assert programs.refusals == []

    await programs.set_account(SECOND, 0)
    await programs.go_on()

    assert programs.refusals
    assert all(text.startswith(f"{FIRST}: ") for text in programs.refusals)


async def test_without_an_overlap_sends_are_refused(programs: Programs) -> None:
    """The same change without an overlap causes the refusals that the overlap prevents."""
    await programs.go_on()

    await programs.set_account(SECOND, 0)
    await programs.go_on()

    assert len({text.partition(":")[0] for text in programs.refusals}) == 1
