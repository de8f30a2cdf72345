"""Looks at consumer groups through a fake leader; remoting is real."""

import asyncio
import json

import pytest

from orderlymq_operator.brokers.admin import Admin
from orderlymq_operator.brokers.consumergroups import GroupReconciler
from orderlymq_operator.plan.actions import TopicConfig
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.client import RemotingClient
from tests.operator.examples import desired, group
from tests.operator.scripted import Answer, serving


async def test_the_table_of_locks_is_read_once_for_all_consumer_groups() -> None:
    """Law: the lock table, which covers all consumer groups and may be long, is read once."""
    tables = 0

    def locks(request: RemotingCommand) -> RemotingCommand:
        nonlocal tables
        tables += 1
        return request.reply(body=json.dumps({"locks": []}).encode())

    client = RemotingClient()
    async with serving({RequestCode.ORDERLYMQ_LOCK_TABLE: locks}) as (_, address):
        reconciler = GroupReconciler(Admin(client))
        wanted = desired(group("billing"), group("audit"), group("mail"))
        await reconciler.reconcile(wanted, {"demo-0": address}, {"demo-0": {}}, 0)
        await reconciler.reconcile(desired(), {"demo-0": address}, {"demo-0": {}}, 5_000)
    await client.close()

    assert tables == 1


async def test_members_are_not_notified_again_and_again_of_queues_that_nobody_will_lock() -> None:
    """Law: members are not notified again and again of free queues that nobody will lock: groups by key,
    and topics that no member reads.
    """
    notices = {"billing": 0, "audit": 0, "mail": 0}

    def noticed(request: RemotingCommand) -> RemotingCommand:
        notices[request.ext["consumerGroup"]] += 1
        return request.reply()

    member = {"clientId": "a", "address": "a:1", "sinceMillis": 0}
    members = [{**member, "subscriptions": [["orders", "*", 1]]}]
    body = json.dumps({"ordered": True, "members": members, "assignments": {}}).encode()
    codes: dict[int, Answer] = {
        RequestCode.ORDERLYMQ_LOCK_TABLE: lambda request: request.reply(body=b'{"locks":[]}'),
        RequestCode.ORDERLYMQ_GROUP_MEMBERS: lambda request: request.reply(body=body),
        RequestCode.ORDERLYMQ_SET_ASSIGNMENT: noticed,
    }
    client = RemotingClient()
    async with serving(codes) as (_, address):
        reconciler = GroupReconciler(Admin(client))
        unread = group("mail", topics=[{"name": "log"}])
        wanted = desired(group("billing", concurrency="Key"), group("audit"), unread)
        for minute in range(5):
            now_ms = 60_000 * minute
            two = TopicConfig(2, 6, order=True)
            topics = {"demo-0": {"orders": two, "log": two}}
            await reconciler.reconcile(wanted, {"demo-0": address}, topics, now_ms)
    await client.close()

    assert notices["audit"]
    assert (notices["billing"], notices["mail"]) == (0, 0)


async def test_a_leader_that_falls_silent_is_asked_about_no_further_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: if a leader does not answer, no further groups are asked about there, because each would wait for a time-out."""
    monkeypatch.setattr("orderlymq_operator.brokers.admin._READ_TIMEOUT_S", 2.0)
    codes: dict[int, Answer] = {
        RequestCode.ORDERLYMQ_LOCK_TABLE: lambda request: request.reply(body=b'{"locks":[]}'),
        RequestCode.ORDERLYMQ_GROUP_MEMBERS: lambda request: None,
    }
    client = RemotingClient()
    async with serving(codes) as (scripted, address), asyncio.timeout(30):
        wanted = desired(*(group(f"group-{number}") for number in range(20)))
        await GroupReconciler(Admin(client)).reconcile(wanted, {"demo-0": address}, {}, 0)
    await client.close()

    asked = [ext["consumerGroup"] for code, ext, _ in scripted.asked if "consumerGroup" in ext]
    assert asked == ["group-0"]
