"""Requests of each member of a consumer group, with a broker whose answers the test chooses."""

import pytest

from orderlymq import Consumer, SettingError
from orderlymq_protocol.body.config import SubscriptionGroupConfig
from orderlymq_protocol.codes import RequestCode, ResponseCode
from tests.client.fakecluster import FakeCluster, Fault, refuse, reset
from tests.client.inbox import Inbox, fill
from tests.waiting import until

CONFIG = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG


def told(concurrency: str) -> Fault:
    body = SubscriptionGroupConfig("G", concurrency=concurrency).to_json()
    return lambda command, _conn: command.reply(body=body)


def member(cluster: FakeCluster, inbox: Inbox, *, ordered: bool) -> Consumer:
    listener = inbox.ordered if ordered else inbox.concurrent
    return Consumer(
        "G",
        cluster.address,
        topics="T",
        ordered=ordered,
        consume_from="first",
        listener=listener,
    )


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_group_by_key_is_not_joined_by_queue(cluster: FakeCluster, ordered: bool) -> None:
    """Law: a consumer by queue does not join a group by key, where it would get nothing; the error names ordered="key"."""
    cluster.faults[CONFIG] = [told("Key")]

    with pytest.raises(SettingError, match=r'pass ordered="key" .*--by-key') as refused:
        await member(cluster, Inbox(), ordered=ordered).start()

    assert "orderlymq group set G --concurrency queue" in str(refused.value)
    await until(lambda: not cluster.connections)


@pytest.mark.parametrize(
    "answer",
    [
        told("Queue"),
        refuse(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        refuse(ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
        refuse(ResponseCode.NO_PERMISSION),
        lambda command, _conn: command.reply(body=b"["),
        reset,
    ],
)
async def test_only_an_answer_keeps_a_consumer_from_its_group(
    cluster: FakeCluster, answer: Fault
) -> None:
    """Law: a consumer by queue starts if the group is by queue or missing, or if the broker does not answer the question."""
    fill(cluster, 1)
    cluster.faults[CONFIG] = [answer]
    inbox = Inbox()

    async with member(cluster, inbox, ordered=True):
        await until(lambda: inbox.texts == ["m0"])
