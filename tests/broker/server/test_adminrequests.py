"""The broker reads an administrator's request strictly, and names a mistake."""

import pytest

from orderlymq_broker.server.adminrequests import membership_change
from orderlymq_broker.settings import Address
from orderlymq_raft import AddLearner, PromoteLearner, RemoveNode
from orderlymq_raft.types import NodeId

FOUR = NodeId(4)


def test_each_action_is_a_change() -> None:
    """The three steps by which a replica comes and goes."""
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
        (b"", "no membership request"),
        (b'{"action":"promote"}', "node"),
        (b'{"action":"promote","node":"4"}', "int"),
        (b'{"action":"promote","node":0}', ">= 1"),
        (b'{"action":"add","node":4}', "use one of add-learner, promote, remove"),
        (b'{"action":"add-learner","node":4}', "with the address"),
        (b'{"action":"add-learner","node":4,"address":"here"}', "not host:port"),
        (b'{"action":"add-learner","node":4,"address":":7000"}', "not host:port"),
        # An address that a restart could not read would keep the replica from starting for good.
        (b'{"action":"add-learner","node":4,"address":"here:0"}', "a port is"),
        (b'{"action":"add-learner","node":4,"address":"here:70000"}', "not host:port"),
        ('{"action":"add-learner","node":4,"address":"here:²"}'.encode(), "not host:port"),
        (
            b'{"action":"add-learner","node":4,"address":"here:%s"}' % (b"9" * 5_000),
            "not host:port",
        ),
        (b'{"action":"add-learner","node":4,"address":"%s:7000"}' % (b"h." * 128), "a host has"),
        (b'{"action":"add-learner","node":9223372036854775808,"address":"here:1"}', "node"),
        (b'{"action":"remove","node":%s}' % (b"9" * 30), "node"),
        (b'{"action":"remove","node":true}', "int"),
    ],
)
def test_a_mistake_is_named(body: bytes, reason: str) -> None:
    """Nothing is proposed that was not meant."""
    with pytest.raises(ValueError, match=reason):
        membership_change(body)
