"""Administrators' requests are read strictly, and a mistake is named."""

import asyncio

import pytest

from orderlymq_broker.server.adminrequests import AdminRequests, membership_change
from orderlymq_broker.settings import Address
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_raft import AddLearner, MembershipChange, NotLeader, PromoteLearner, RemoveNode
from orderlymq_raft.types import Index, NodeId, Term
from tests.broker.server.router import World

FOUR = NodeId(4)


def test_each_action_is_a_change() -> None:
    """Law: each action (add a learner, promote, remove) is read as one membership change."""
    read = [
        membership_change(body)
        for body in (
            b'{"action":"add-learner","node":4,"address":"10.0.0.4:7000"}',
            b'{"action":"promote","node":4}',
            b'{"action":"remove","node":4}',
        )
    ]

    assert read == [
        (AddLearner(FOUR), Address("10.0.0.4", 7000)),
        (PromoteLearner(FOUR), None),
        (RemoveNode(FOUR), None),
    ]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not a membership request"),
        (b'{"action":"promote"}', "node"),
        (b'{"action":"promote","node":"4"}', "int"),
        (b'{"action":"promote","node":0}', ">= 1"),
        (b'{"action":"add","node":4}', "use one of add-learner, promote, remove"),
        (b'{"action":"add-learner","node":4}', "give the address"),
        (b'{"action":"add-learner","node":4,"address":"here"}', "not host:port"),
        (b'{"action":"add-learner","node":4,"address":":7000"}', "not host:port"),
        # An address that a restart cannot read would keep the replica from starting.
        (b'{"action":"add-learner","node":4,"address":"here:0"}', "a port must be"),
        (b'{"action":"add-learner","node":4,"address":"here:70000"}', "not host:port"),
        ('{"action":"add-learner","node":4,"address":"here:²"}'.encode(), "not host:port"),
        (
            b'{"action":"add-learner","node":4,"address":"here:%s"}' % (b"9" * 5_000),
            "not host:port",
        ),
        (
            b'{"action":"add-learner","node":4,"address":"%s:7000"}' % (b"h." * 128),
            "a host must have",
        ),
        (b'{"action":"add-learner","node":9223372036854775808,"address":"here:1"}', "node"),
        (b'{"action":"remove","node":%s}' % (b"9" * 30), "node"),
        (b'{"action":"remove","node":true}', "int"),
    ],
)
def test_a_mistake_is_named(body: bytes, reason: str) -> None:
    """Law: a wrong request is refused with the reason, and nothing is proposed."""
    with pytest.raises(ValueError, match=reason):
        membership_change(body)


class Replica:
    """A process that proposes each change as entry 7 of term 3."""

    def status(self, asked: RemotingCommand | None = None) -> dict[str, object]:
        return {}

    async def move_leadership(self, target: NodeId | None) -> NodeId:
        raise NotLeader(None)

    def change_membership(
        self, change: MembershipChange, address: Address | None
    ) -> tuple[Index, Term]:
        return Index(7), Term(3)


@pytest.mark.parametrize(
    ("applied", "code"), [((7, 3), 0), ((7, 4), 1), (None, 1)], ids=["own", "other's", "none"]
)
async def test_a_change_is_answered_by_its_own_entry_when_leadership_is_lost(
    applied: tuple[int, int] | None, code: int
) -> None:
    """Law: a membership change is answered by its own entry, even if leadership ends before that is applied;
    another leader's entry at that index does not count.
    """
    world = World()
    requests = AdminRequests(world.routers[1].clients, Replica())
    world.routers[1].lead(3)
    client = world.connect(1)
    body = b'{"action":"remove","node":1}'
    world.ask(1, client, RemotingCommand(RequestCode.ORDERLYMQ_CHANGE_MEMBERSHIP, 1, body=body))

    requests.leadership_lost()
    await asyncio.sleep(0)
    if applied is not None:
        requests.membership_applied(Index(applied[0]), Term(applied[1]))
    async with asyncio.timeout(10.0):
        while not client.told:  # noqa: ASYNC110 - nothing signals it
            await asyncio.sleep(0.01)
    await requests.close()

    assert [each.code for each in client.told] == [code]
