"""Late requests of an operator at a real broker's core: another operator has followed it, or its plan is old."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from orderlymq_broker.state.records import AssignmentSet, GroupSet, TopicSet
from orderlymq_nameserver.kv import KvTable
from orderlymq_nameserver.processor import NameServerCore
from orderlymq_nameserver.proofs import Proofs
from orderlymq_operator.brokers.admin import Admin, AdminError
from orderlymq_operator.brokers.requests import perform_remote
from orderlymq_operator.brokers.tables import SILENT, read_tables
from orderlymq_operator.plan.actions import (
    ConsumerGroupConfig,
    CreateTopic,
    SetConsumerGroup,
    TopicConfig,
    UpdateTopic,
    UserConfig,
)
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.operatortoken import token_at
from orderlymq_runtime.remoting.client import RemotingClient
from orderlymq_runtime.security.clustersecret import NAME_SERVERS, derived_key
from tests.broker.processors.driver import Shell
from tests.broker.processors.requests import commit_ext, create, heartbeat, offset_of, send
from tests.operator.brokers.test_admin import Leaders
from tests.operator.examples import desired, topic
from tests.operator.scripted import Scripted, serving

_NEW_YEAR_MS = 1_798_761_600_000  # In 2027.


@dataclass
class Operated:
    """A broker, and two operators, of which the second has followed the first."""

    shell: Shell
    broker: Scripted
    address: str
    former: Admin
    latter: Admin


@asynccontextmanager
async def operated() -> AsyncIterator[Operated]:
    shell = Shell().lead()
    create(shell, TopicSet("orders", 4, 4, order=True), GroupSet("billing"))

    def answer(command: RemotingCommand) -> RemotingCommand:
        reply = shell.call(command.code, dict(command.ext), command.body)
        return command.reply(reply.code, ext=reply.ext, body=reply.body, remark=reply.remark)

    every = dict.fromkeys([*shell.core.codes], answer)
    client = RemotingClient()
    async with serving(every) as (broker, address):
        former, latter = (Admin(client, operator_token=token) for token in (7, 8))
        yield Operated(shell, broker, address, former, latter)
    await client.close()


_USER = UserConfig(False, "DENY", "DENY", (), (), "", "f")
_LATE: list[Callable[[Admin, str], Coroutine[Any, Any, None]]] = [
    lambda admin, address: admin.delete_topic(address, "orders"),
    lambda admin, address: admin.delete_group(address, "billing"),
    lambda admin, address: admin.set_topic(address, "orders", TopicConfig(4, 4, order=True)),
    lambda admin, address: admin.set_group(
        address, "billing", ConsumerGroupConfig(True, False, 3, 2, 7, "HoldKey")
    ),
    lambda admin, address: admin.set_user(address, "reader", "the-former-secret", _USER),
    lambda admin, address: admin.seed_offset(address, "billing", "orders", 0, latest=True),
    lambda admin, address: admin.set_writable(address, writable=False),
]


@pytest.mark.parametrize("late", _LATE)
async def test_what_a_former_operator_has_sent_does_nothing_once_another_has_looked(
    late: Callable[[Admin, str], Coroutine[Any, Any, None]],
) -> None:
    """Law: the first look of an operator at a broker group makes requests of its predecessors void there."""
    async with operated() as world:
        await read_tables(world.latter, world.address, desired(topic()), ())
        before = world.shell.state.digest()

        with pytest.raises(AdminError, match="operatorToken 7 is smaller than 8"):
            await late(world.former, world.address)

        assert world.shell.state.digest() == before
        await late(world.latter, world.address)


async def test_an_operator_ends_its_predecessors_before_it_reads_and_once() -> None:
    """Law: that look sends the token once, before anything is read."""
    async with operated() as world:
        for _ in range(2):
            await read_tables(world.latter, world.address, desired(topic()), ())
        codes = [code for code, *_ in world.broker.asked]

        assert codes == [20506, 20507, 21, 201, 20506, 21, 201]
        records = [each for each in world.shell.proposed if isinstance(each, AssignmentSet)]
        assert [each.token for each in records] == [8, 8]
        assert world.shell.state.assignments.of_group("operator") == {}


@pytest.mark.parametrize("reason", ["", "the leader changed before the change was stored"])
async def test_an_operator_reads_nothing_where_its_token_was_lost_on_its_way(
    monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    """Law: if that token was lost, the operator reads nothing, because its predecessor could still change it."""
    monkeypatch.setattr("orderlymq_operator.brokers.admin._CHANGE_TIMEOUT_S", 0.2)
    async with operated() as world:
        code = RequestCode.ORDERLYMQ_SET_ASSIGNMENT
        answer = world.broker.answers[code]
        world.broker.answers[code] = lambda command: (
            command.reply(1, remark=reason) if reason else None
        )
        lost = await read_tables(world.latter, world.address, desired(topic()), ())
        world.broker.answers[code] = answer
        topics, *_ = await read_tables(world.latter, world.address, desired(topic()), ())

        assert lost[:4] == SILENT[:4]
        assert reason in lost[4]
        assert topics is not None
        assert "orders" in topics
        with pytest.raises(AdminError, match="operatorToken 7 is smaller than 8"):
            await world.former.delete_topic(world.address, "orders")


async def test_an_operator_that_was_followed_learns_so_by_its_look_and_writes_nothing() -> None:
    """Law: an operator that was followed learns so from its look, and lowers no token."""
    async with operated() as world:
        seen: list[int] = []
        late = Admin(RemotingClient(), operator_token=7, overtaken=seen.append)
        await read_tables(world.latter, world.address, desired(topic()), ())
        await read_tables(late, world.address, desired(topic()), ())

        assert (seen, world.shell.state.operator_token) == ([8], 8)
        assert [code for code, *_ in world.broker.asked].count(20507) == 1


async def test_a_clock_that_was_ahead_and_is_set_back_locks_no_operator_out() -> None:
    """Law: after a clock that was ahead is set back, the operator and its successor still have greater tokens than the
    stored one.
    """
    async with operated() as world:
        config = TopicConfig(4, 4, order=True)
        world.shell.set_clock(_NEW_YEAR_MS + 7_200_000)
        world.latter.operator_token = token_at(world.shell.wall_ms / 1000)
        await read_tables(world.latter, world.address, desired(topic()), ())

        world.shell.set_clock(_NEW_YEAR_MS)
        await world.latter.set_topic(world.address, "orders", config)

        seen: list[int] = []
        follower = Admin(RemotingClient(), operator_token=1, overtaken=seen.append)
        await read_tables(follower, world.address, desired(topic()), ())
        follower.operator_token = seen[0] + 1
        await read_tables(follower, world.address, desired(topic()), ())
        await follower.set_topic(world.address, "orders", config)
        with pytest.raises(AdminError, match="is smaller than"):
            await world.latter.set_topic(world.address, "orders", config)


async def test_a_broker_that_believes_no_token_is_read_all_the_same() -> None:
    """Law: if clocks differ so much that brokers accept no token, changes are refused with the reason, but reading works."""
    async with operated() as world:
        ahead = Admin(RemotingClient(), operator_token=1 << 30)
        async with asyncio.timeout(30):
            topics, *_ = await read_tables(ahead, world.address, desired(topic()), ())

        assert topics is not None
        assert "orders" in topics
        with pytest.raises(AdminError, match="compare the clocks"):
            await ahead.delete_topic(world.address, "orders")


@pytest.mark.parametrize("commits", [True, False])
async def test_a_group_that_its_clients_have_made_since_it_was_planned_skips_nothing(
    commits: bool,
) -> None:
    """Law: if clients created the group after the plan was made, "Latest" skips nothing."""
    async with operated() as world:
        config = ConsumerGroupConfig(True, True, 16, 1, 15)
        action = SetConsumerGroup("shipping", "demo-0", config, "Latest", ("orders",))
        heartbeat(world.shell, "one@1", group="shipping")
        if commits:
            assert world.shell.call(15, commit_ext(0, group="shipping")).code == 0
        send(world.shell, "orders")
        before = offset_of(world.shell, group="shipping")

        with pytest.raises(AdminError, match="already has the consumer group shipping"):
            await perform_remote(action, world.latter, Leaders({"demo-0": world.address}))

        assert offset_of(world.shell, group="shipping") == before
        later = SetConsumerGroup("shipping", "demo-0", config)
        await perform_remote(later, world.latter, Leaders({"demo-0": world.address}))
        assert world.shell.state.groups.by_name["shipping"].orderly


async def test_a_topic_that_its_producers_have_made_since_it_was_planned_stays_as_it_is() -> None:
    """Law: if producers created the topic after the plan was made, it does not become ordered or lose queues."""
    async with operated() as world:
        create(world.shell, TopicSet("TBW102", 8, 8, perm=7))
        assert send(world.shell, "bills", d=8, e=7).code == 0
        made = world.shell.state.topics.by_name["bills"].config
        action = CreateTopic("bills", "demo-0", TopicConfig(4, 6, order=True))

        with pytest.raises(AdminError, match="was created meanwhile"):
            await perform_remote(action, world.latter, Leaders({"demo-0": world.address}))

        assert world.shell.state.topics.by_name["bills"].config == made
        fresh = CreateTopic("fresh", "demo-0", TopicConfig(4, 6, order=True))
        await perform_remote(fresh, world.latter, Leaders({"demo-0": world.address}))
        grown = UpdateTopic("bills", "demo-0", TopicConfig(16, 6, order=False))
        await perform_remote(grown, world.latter, Leaders({"demo-0": world.address}))
        assert world.shell.state.topics.by_name["bills"].config.write_queues == 16


async def test_a_queue_list_is_not_withdrawn_by_an_operator_that_was_followed() -> None:
    """Law: an operator that was followed neither withdraws nor restores a queue list that its successor has changed."""
    secret = b"x" * 32
    proofs = Proofs(derived_key(secret, NAME_SERVERS), "start-1")
    core = NameServerCore(KvTable(), expiry_ms=60_000, proofs=proofs)

    def answer(command: RemotingCommand) -> RemotingCommand:
        return core.handle(command, 1, 0, int(1000 * time.time()))

    client = RemotingClient()
    former, latter = (
        Admin(client, operator_token=token, cluster_secret=secret) for token in (7, 8)
    )
    async with serving(dict.fromkeys(core.codes, answer)) as (_, address):
        await former.put_order_config(address, "orders", "demo-0:8")
        await latter.put_order_config(address, "orders", "demo-0:12")
        with pytest.raises(AdminError, match="operatorToken 7 is smaller than 8"):
            await former.delete_order_config(address, "orders")
        with pytest.raises(AdminError, match="operatorToken 7 is smaller than 8"):
            await former.put_order_config(address, "orders", "demo-0:8")
        assert await latter.order_config(address) == {"orders": "demo-0:12"}
    await client.close()
