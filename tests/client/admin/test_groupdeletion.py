"""A consumer group is deleted at every broker group, or at none while its members consume at one."""

import json
from typing import Any

import pytest

from orderlymq.admin.client import AdminClient
from orderlymq.errors import BrokerError
from orderlymq_protocol.body.lanes import BY_KEY, LaneTable, QueueLanes
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.connection import Connection
from tests.client.fakecluster import FakeCluster, Fault, refuse, running

LOCK = {"consumerGroup": "billing", "topic": "orders", "brokerName": "broker-a", "queueId": 0}
LOCKED = json.dumps({"locks": [{**LOCK, "clientId": "alice", "epoch": 1}]}).encode()
UNLOCKED = b'{"locks":[]}'
UNKNOWN = refuse(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
FOREIGN = refuse(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)


def says(body: bytes) -> Fault:
    return lambda command, _: command.reply(body=body)


def lanes(in_hand: int) -> Fault:
    row = QueueLanes("orders", "broker-a", 0, 5, 0, 5, in_hand, 0, 0, 0)
    return says(LaneTable(BY_KEY, (row,), ()).to_json())


def deleting(cluster: FakeCluster, locks: Fault, table: Fault) -> None:
    """Let the broker answer in this way, and delete groups."""

    def delete(command: RemotingCommand, _: Connection) -> RemotingCommand:
        return command.reply()

    cluster.faults |= {
        RequestCode.ORDERLYMQ_LOCK_TABLE: [locks],
        RequestCode.ORDERLYMQ_LANES: [table],
        RequestCode.DELETE_SUBSCRIPTIONGROUP: [delete],
    }


@pytest.mark.parametrize(
    ("locks", "table", "hold"),
    [
        (says(LOCKED), UNKNOWN, "1 queue lock"),
        (says(UNLOCKED), lanes(2), "2 lanes"),
    ],
)
async def test_nothing_is_deleted_while_a_member_consumes_anywhere(
    locks: Fault, table: Fault, hold: str
) -> None:
    """Law: while a member consumes at one broker group, no broker group deletes the consumer group and its offsets."""
    async with running(topics={"orders": 1}) as cluster, AdminClient(cluster.address) as admin:
        deleting(cluster, locks, table)

        with pytest.raises(BrokerError, match=rf"its members hold {hold} \(") as refused:
            await admin.delete_group("billing")

        assert refused.value.code == ResponseCode.ORDERLYMQ_GROUP_IN_USE
        assert RequestCode.DELETE_SUBSCRIPTIONGROUP not in cluster.codes()


@pytest.mark.parametrize(
    "answers",
    [(says(UNLOCKED), lanes(0)), (says(UNLOCKED), UNKNOWN), (FOREIGN, FOREIGN)],
    ids=["ours", "gone already", "RocketMQ's"],
)
async def test_a_group_that_nobody_consumes_goes(answers: Any) -> None:
    """Law: an unused group is deleted, also where one broker group has deleted it already, and at RocketMQ's brokers."""
    async with running(topics={"orders": 1}) as cluster, AdminClient(cluster.address) as admin:
        deleting(cluster, *answers)

        await admin.delete_group("billing")

        assert RequestCode.DELETE_SUBSCRIPTIONGROUP in cluster.codes()
