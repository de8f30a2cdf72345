"""Readings of the leaders' tables, with our own leaders and real remoting."""

import asyncio
import json

import pytest

from orderlymq_operator.brokers.admin import Admin
from orderlymq_operator.kube.observe.pods import pod_facts
from orderlymq_operator.kube.takeover.clients import NamedClients, Target
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.client import RemotingClient
from tests.operator.kube.samples import NAMESPACE, pod
from tests.operator.scripted import Answer, serving

POD = pod_facts(pod())
LOCK_TABLE = RequestCode.ORDERLYMQ_LOCK_TABLE
MEMBERS = RequestCode.ORDERLYMQ_GROUP_MEMBERS
NO_LOCKS: dict[int, Answer] = {LOCK_TABLE: lambda request: request.reply(body=b'{"locks": []}')}
NOBODY = {**NO_LOCKS, MEMBERS: lambda request: request.reply(body=b'{"members": []}')}


def _members(*members: tuple[str, str]) -> Answer:
    body = json.dumps({"members": members}).encode()
    return lambda request: request.reply(body=body)


@pytest.mark.parametrize(
    ("member", "is_in"),
    [
        (("10.244.1.9@1#7", "10.244.1.9:4711"), True),
        (("10.244.1.9@1#7", "[::ffff:10.244.1.9]:4711"), True),
        (("10.244.1.9@1#7", "172.18.0.3:4711"), False),
        (("web-1@1#7", "10.244.1.9:4711"), False),
        (("10.244.1.8@1#7", "10.244.1.8:4711"), False),
    ],
)
async def test_a_client_is_in_a_pod_only_when_id_and_connection_say_so(
    member: tuple[str, str], is_in: bool
) -> None:
    """Law: a client is in a pod only if its id and its connection's address say so; otherwise (address translation,
    another id) its lease decides.
    """
    client = RemotingClient()
    async with serving({**NO_LOCKS, MEMBERS: _members(member)}) as (_, address):
        target = Target((NAMESPACE, "demo"), Admin(client), (address,), complete=True)
        found = await NamedClients(lambda: [target]).are_in(POD)
    await client.close()

    assert found is is_in


@pytest.mark.parametrize("named", [True, False])
async def test_a_silent_leader_keeps_nobody_waiting_whom_another_one_names(
    named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a silent leader does not delay the answer if another one names the client; until it answers,
    nobody says that there is none.
    """
    monkeypatch.setattr(
        "orderlymq_operator.brokers.admin._READ_TIMEOUT_S", 600.0 if named else 0.05
    )
    client = RemotingClient()
    there = {**NO_LOCKS, MEMBERS: _members(("10.244.1.9@1#7", "10.244.1.9:4711"))}
    async with (
        serving(there if named else NOBODY) as (_, one),
        serving(dict.fromkeys(NOBODY, lambda request: None)) as (_, silent),
        asyncio.timeout(10),
    ):
        target = Target((NAMESPACE, "demo"), Admin(client), (silent, one), complete=True)
        clients = NamedClients(lambda: [target])
        found = await clients.are_in(POD)
        await clients.close()
    await client.close()

    assert found is (True if named else None)


async def test_who_asks_during_a_reading_is_told_of_the_next_one() -> None:
    """Law: a question during a reading gets the next reading, as the leader may have answered too early;
    waiting questions share it.
    """
    client = RemotingClient()
    later: list[asyncio.Task[bool | None]] = []

    def members(request: RemotingCommand) -> RemotingCommand:
        if later:
            return _members(("10.244.1.9@1#7", "10.244.1.9:4711"))(request) or request.reply()
        later.extend(asyncio.create_task(clients.are_in(POD)) for _ in range(3))
        return request.reply(body=b'{"members": []}')

    async with serving({**NO_LOCKS, MEMBERS: members}) as (scripted, address):
        target = Target((NAMESPACE, "demo"), Admin(client), (address,), complete=True)
        clients = NamedClients(lambda: [target])
        first = await asyncio.gather(*(clients.are_in(POD) for _ in range(3)))
        found = await asyncio.gather(*later)
    await client.close()

    assert (first, found) == ([False] * 3, [True] * 3)
    assert len(scripted.asked) == 4


async def test_a_cluster_with_a_group_without_a_leader_leaves_it_open() -> None:
    """Law: while a group has no leader the answer is open, because the next leader may know the client."""
    client = RemotingClient()
    async with serving(NOBODY) as (_, address):
        target = Target((NAMESPACE, "demo"), Admin(client), (address,), complete=False)
        found = await NamedClients(lambda: [target]).are_in(POD)
    await client.close()

    assert found is None
