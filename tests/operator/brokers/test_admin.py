import json
from collections.abc import AsyncIterator
from dataclasses import fields, replace
from typing import Any

import pytest

from orderlymq_operator.brokers.admin import Admin, AdminError
from orderlymq_operator.brokers.requests import perform_remote
from orderlymq_operator.plan.actions import (
    ConsumerGroupConfig,
    SetConsumerGroup,
    SwitchTopic,
    TopicConfig,
    UserConfig,
)
from orderlymq_operator.resources.quotas import Limits
from orderlymq_protocol.body.lanes import LaneTable, QueueLanes
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.body.stats import ConsumeStats, OffsetWrapper
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.client import RemotingClient
from tests.operator.scripted import Answer, serving

ACCOUNT_WITH_A_LIST = json.dumps(
    {
        "accounts": [
            {
                "accessKey": "a",
                "admin": True,
                "defaultTopicPerm": "",
                "defaultGroupPerm": "",
                "topicPerms": [],
                "groupPerms": {},
            }
        ]
    }
).encode()


@pytest.fixture
async def admin() -> AsyncIterator[Admin]:
    client = RemotingClient()
    yield Admin(client)
    await client.close()


async def test_a_topic_is_created_with_every_field_that_brokers_require(admin: Admin) -> None:
    """Law: a topic is created with code 17 and all fields that RocketMQ's tools send;
    its queues are read and write queues.
    """
    async with serving({}) as (broker, address):
        await admin.set_topic(address, "orders", TopicConfig(8, 6, order=True))

        assert broker.asked == [
            (
                17,
                {
                    "topic": "orders",
                    "defaultTopic": "TBW102",
                    "readQueueNums": "8",
                    "writeQueueNums": "8",
                    "perm": "6",
                    "topicFilterType": "SINGLE_TAG",
                    "topicSysFlag": "0",
                    "order": "true",
                },
                b"",
            )
        ]


async def test_attributes_of_a_topic_are_read_and_given_on(admin: Admin) -> None:
    """Law: attributes of a topic are read and sent in the form of RocketMQ 5's tools; brokers of RocketMQ 4 have none."""
    facts = {"readQueueNums": 8, "writeQueueNums": 8, "perm": 6, "order": False}
    told = {"message.type": "MIXED", "cleanup.policy": "DELETE"}
    table = {
        "orders": {"topicName": "orders", **facts, "attributes": told},
        "bare": {"topicName": "bare", **facts},
    }
    body = json.dumps({"topicConfigTable": table, "dataVersion": {}}).encode()
    codes: dict[int, Answer] = {
        RequestCode.GET_ALL_TOPIC_CONFIG: lambda request: request.reply(body=body)
    }
    async with serving(codes) as (broker, address):
        found = await admin.topics(address)
        await admin.set_topic(address, "orders", found["orders"])

    plain = TopicConfig(8, 6, order=False)
    assert found == {
        "orders": replace(plain, attributes=tuple(sorted(told.items()))),
        "bare": plain,
    }
    assert broker.asked[-1][1]["attributes"] == "+cleanup.policy=DELETE,+message.type=MIXED"


async def test_a_group_is_created_as_the_manifest_says(admin: Admin) -> None:
    """Law: a group is created with code 200 and the manifest's fields, consumeMessageOrderly included."""
    async with serving({}) as (broker, address):
        await admin.set_group(
            address,
            "billing",
            ConsumerGroupConfig(True, False, 3, 2, 7, "HoldKey", retry_pause_ms=250),
        )

        ((code, _, body),) = broker.asked
        found = json.loads(body)
        assert code == 200
        assert {key: found[key] for key in sorted(found) if key != "attributes"} == {
            "brokerId": 0,
            "consumeBroadcastEnable": True,
            "consumeEnable": False,
            "consumeFromMinEnable": False,
            "consumeMessageOrderly": True,
            "consumeTimeoutMinute": 7,
            "groupName": "billing",
            "groupSysFlag": 0,
            "notifyConsumerIdsChangedEnable": True,
            "onDeadLetter": "HoldKey",
            "concurrency": "Queue",
            "consumeConcurrently": False,
            "laneKeyProperty": "__SHARDINGKEY",
            "retryMaxTimes": 3,
            "retryPauseMaxMillis": 300_000,
            "retryPauseMillis": 250,
            "retryQueueNums": 2,
            "whichBrokerWhenConsumeSlowly": 1,
        }


async def test_what_exists_is_read_from_the_brokers_tables(admin: Admin) -> None:
    """Law: topics (21) and groups (201) are read from the brokers; fields of newer versions are ignored."""
    topics = {
        "topicConfigTable": {
            "a": {"topicName": "a", "readQueueNums": 4, "writeQueueNums": 2, "perm": 4},
            "b": {"topicName": "b", "readQueueNums": 8, "writeQueueNums": 8, "order": True, "x": 1},
        }
    }
    groups = {
        "subscriptionGroupTable": {
            "g": {"groupName": "g", "retryMaxTimes": 5},
            "h": {"groupName": "h", "consumeConcurrently": True},
        }
    }
    answers = {
        21: lambda request: request.reply(body=json.dumps(topics).encode()),
        201: lambda request: request.reply(body=json.dumps(groups).encode()),
    }
    async with serving(answers) as (_, address):
        assert await admin.topics(address) == {
            "a": TopicConfig(4, 4, order=False),
            "b": TopicConfig(8, 6, order=True),
        }
        assert await admin.consumer_groups(address) == {
            "g": ConsumerGroupConfig(False, True, 5, 1, 15),
            "h": ConsumerGroupConfig(False, True, 16, 1, 15, concurrent=True),
        }


def _other(value: Any) -> Any:
    """Return another value of the same type."""
    if isinstance(value, tuple):
        return (*value, ("message.type", "MIXED"))
    assert isinstance(value, int), "say here how a field of this type changes"
    return value + 1 if type(value) is int else not value


def _as_stored(ext: dict[str, str]) -> dict[str, object]:
    """Return how a broker lists what a request with these fields has set."""
    values = {"true": True, "false": False}
    changes = [each.removeprefix("+").split("=") for each in ext.get("attributes", "").split(",")]
    return {
        key: values.get(value, int(value) if value.isdecimal() else value)
        for key, value in ext.items()
    } | {"attributes": {each[0]: each[1] for each in changes if each[0]}}


@pytest.mark.parametrize("field", [field.name for field in fields(TopicConfig)])
async def test_every_field_of_a_topic_is_set_and_read(admin: Admin, field: str) -> None:
    """Law: every field of a topic that is set is also read; else it would be set again and again, or never."""
    topics: dict[str, object] = {}
    table = {"topicConfigTable": topics}
    answers: dict[int, Answer] = {
        21: lambda request: request.reply(body=json.dumps(table).encode())
    }
    plain = TopicConfig(8, 5, order=True)
    wanted = replace(plain, **{field: _other(getattr(plain, field))})

    async with serving(answers) as (broker, address):
        await admin.set_topic(address, "orders", wanted)
        topics["orders"] = {"topicName": "orders"} | _as_stored(broker.asked[0][1])

        assert await admin.topics(address) == {"orders": wanted}


@pytest.mark.parametrize("field", [field.name for field in fields(TopicConfig)])
async def test_a_switch_gives_a_raft_group_every_field_of_the_topic(
    admin: Admin, field: str
) -> None:
    """Law: a broker group that gets a topic by an expansion gets every field of it. Only ordered topics expand.

    Attributes of RocketMQ 5 are not sent with a switch, because no manifest names them.
    """
    if field in ("order", "attributes"):
        return
    plain = TopicConfig(8, 5, order=True)
    other = replace(plain, **{field: _other(getattr(plain, field))})

    async with serving({}) as (broker, address):
        for config in (plain, other):
            await admin.change_queues(address, SwitchTopic("orders", "b", 1, 16, config, ()))

        (_, first, _), (_, second, _) = broker.asked
        assert first != second


async def test_lanes_are_read_where_the_group_is_known(admin: Admin) -> None:
    """Law: lanes are read with code 20514; a broker group that does not know the group yet has none."""
    queue = QueueLanes("orders", "demo-0", 0, 9, 2, 7, 1, 0, 2, 1)
    body = LaneTable("Key", (queue,)).to_json()
    async with serving({20514: lambda request: request.reply(body=body)}) as (_, address):
        assert await admin.lanes(address, "billing") == (queue,)
    async with serving({20514: lambda request: request.reply(26)}) as (_, address):
        assert await admin.lanes(address, "billing") == ()


async def test_the_lag_of_a_group_by_key_is_what_it_has_not_consumed(admin: Admin) -> None:
    """Law: the lag of a group by key counts messages that are not completed,
    because a held lane stops its committed offset.
    """

    def answer(request: RemotingCommand) -> RemotingCommand:
        offsets = OffsetWrapper(60, 2, backlog=4 if "orderlymq" in request.ext else None)
        table = {MessageQueue("orders", "demo-0", 0): offsets}
        return request.reply(body=ConsumeStats(table).to_json())

    async with serving({RequestCode.GET_CONSUME_STATS: answer}) as (_, address):
        assert await admin.lag(address, "billing") == 4
        assert await admin.backlog(address, "billing", "orders") == 4


async def test_a_name_server_without_queue_lists_has_none(admin: Admin) -> None:
    """Law: code 22 for an empty namespace of queue lists means that there are none."""
    table = json.dumps({"table": {"orders": "demo-0:8"}}).encode()
    async with serving({219: lambda request: request.reply(22)}) as (_, address):
        assert await admin.order_config(address) == {}
    async with serving({219: lambda request: request.reply(body=table)}) as (_, address):
        assert await admin.order_config(address) == {"orders": "demo-0:8"}


@pytest.mark.parametrize(("latest", "code"), [(True, 30), (False, 31)])
async def test_a_start_position_is_asked_and_committed(
    admin: Admin, latest: bool, code: int
) -> None:
    """Law: a start position is looked up and committed: behind the last message, or at the first kept one."""
    answers: dict[int, Answer] = {
        code: lambda request: request.reply(ext={"offset": "42"}),
        14: lambda request: request.reply(ResponseCode.QUERY_NOT_FOUND),
    }
    async with serving(answers) as (broker, address):
        await admin.seed_offset(address, "billing", "orders", 3, latest=latest)

        assert [
            (asked, ext.get("commitOffset")) for asked, ext, _ in broker.asked if asked != 14
        ] == [(code, None), (15, "42")]


async def test_the_first_message_is_no_start_where_a_position_is_known(admin: Admin) -> None:
    """Law: the first message is no start position if the group has a position already in another broker group,
    or has consumed here.
    """
    async with serving({14: lambda request: request.reply(ext={"offset": "7"})}) as (
        broker,
        address,
    ):
        await admin.seed_offset(address, "billing", "orders", 3, latest=False)

        assert [asked for asked, *_ in broker.asked] == [14]


class Leaders:
    """Start positions in broker groups, by name."""

    def __init__(self, addresses: dict[str, str]) -> None:
        self._addresses = addresses

    def group_address(self, group: str) -> str:
        return self._addresses[group]

    def replica_address(self, group: str, node: int) -> str:
        raise NotImplementedError

    def name_server_addresses(self) -> list[str]:
        raise NotImplementedError

    def secret_of(self, user: str) -> str | None:
        raise NotImplementedError


async def test_a_group_gets_its_position_in_every_raft_group_before_it_is_made(
    admin: Admin,
) -> None:
    """Law: a new group gets its position in every broker group before it is created,
    so that "Latest" never delivers the history.
    """
    orders = {"topicName": "orders", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    table = {"topicConfigTable": {"orders": orders}}
    answers: dict[int, Answer] = {
        21: lambda request: request.reply(body=json.dumps(table).encode()),
        30: lambda request: request.reply(ext={"offset": "42"}),
        352: lambda request: request.reply(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    }
    config = ConsumerGroupConfig(True, True, 16, 1, 15)
    action = SetConsumerGroup("billing", "demo-0", config, "Latest", ("orders",), ("demo-1",))

    async with serving(answers) as (one, first), serving(answers) as (other, second):
        await perform_remote(action, admin, Leaders({"demo-0": first, "demo-1": second}))

        assert [asked for asked, *_ in other.asked] == [352, 21, 30, 15]
        assert [asked for asked, *_ in one.asked] == [352, 21, 30, 15, 200]


async def test_steering_requests_name_their_node(admin: Admin) -> None:
    """Law: leadership transfers (20503) and membership changes (20504) have the form that brokers read."""
    async with serving({}) as (broker, address):
        await admin.transfer_leadership(address, 2)
        await admin.change_membership(address, "add-learner", 4, "127.0.0.1:9")

        assert broker.asked[0] == (20503, {"target": "2"}, b"")
        assert (broker.asked[1][0], json.loads(broker.asked[1][2])) == (
            20504,
            {"action": "add-learner", "node": 4, "address": "127.0.0.1:9"},
        )


async def test_failures_say_who_answered_what(admin: Admin) -> None:
    """Law: an error names the broker, whether it is an error code, an unreadable body or a failed connection."""
    answers = {
        17: lambda request: request.reply(1, remark="no such thing"),
        21: lambda request: request.reply(body=b"{"),
        20501: lambda request: request.reply(body=b'{"locks": ["x"]}'),
        52: lambda request: request.reply(body=ACCOUNT_WITH_A_LIST),
    }
    async with serving(answers) as (_, address):
        with pytest.raises(AdminError, match=f"{address} answered code 1: no such thing"):
            await admin.set_topic(address, "x", TopicConfig(1, 6, order=False))
        with pytest.raises(AdminError, match="unreadable"):
            await admin.topics(address)
        with pytest.raises(AdminError, match="unreadable"):
            await admin.locks(address)
        with pytest.raises(AdminError, match="unreadable"):
            await admin.users(address)
    with pytest.raises(AdminError, match="cannot connect"):
        await admin.topics("127.0.0.1:1")


async def test_a_broker_that_has_seen_a_greater_token_is_reported() -> None:
    """Law: after a refused change the operator looks up the greatest token and reports it."""
    seen: list[int] = []
    client = RemotingClient()
    admin = Admin(client, operator_token=7, overtaken=seen.append)
    status = json.dumps({"operatorToken": 9, "topics": []}).encode()
    answers: dict[int, Answer] = {
        20502: lambda request: request.reply(1, remark="operatorToken 7 is smaller than 9"),
        20506: lambda request: request.reply(body=status),
    }
    async with serving(answers) as (_, address):
        with pytest.raises(AdminError):
            await admin.expire_client(address, "one@1", "pod gone", ["192.0.2.1:5"])
    await client.close()

    assert seen == [9]


async def test_an_account_is_set_with_overlap_and_quotas_and_read_with_the_end_of_its_former_secret(
    admin: Admin,
) -> None:
    """Law: an account is set (50) with overlap and quotas and read (52) with its former secret's end;
    older brokers do not report that.
    """
    rights = {"topicPerms": {"orders": "PUB"}, "groupPerms": {}, "whiteRemoteAddress": ""}
    shown = {"admin": False, "defaultTopicPerm": "DENY", "defaultGroupPerm": "DENY", **rights}
    limits = {"requestsPerSecond": 5, "bytesPerSecond": 0, "connections": 2}
    accounts = [
        {"accessKey": "now", "fingerprint": "f", "formerSecretUntil": 17, **limits, **shown},
        {"accessKey": "earlier", "fingerprint": "f", **shown},
    ]
    body = json.dumps({"accounts": accounts, "globalWhiteAddrs": []}).encode()
    wanted = UserConfig(
        False, "DENY", "DENY", (("orders", "PUB"),), (), "", "f", Limits(5, 0, 2), 60
    )
    async with serving({52: lambda request: request.reply(body=body)}) as (broker, address):
        await admin.set_user(address, "now", "secret", wanted)
        found = await admin.users(address)

        sent = broker.asked[0][1]
        assert {name: sent[name] for name in sent if name.startswith("omq")} == {
            "omqSecretOverlapSeconds": "60",
            "omqRequestsPerSecond": "5",
            "omqBytesPerSecond": "0",
            "omqConnections": "2",
        }
        assert [found[key].limits for key in ("now", "earlier")] == [Limits(5, 0, 2), Limits()]
        assert {key: config.former_until_ms for key, config in found.items()} == {
            "now": 17,
            "earlier": 0,
        }
