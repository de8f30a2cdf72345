"""
Answers of brokers and name servers, in the form that the operator uses. Pure.

Rule: a function raises one of MISSHAPEN for an answer that it cannot read; `admin` adds the name of the server.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from orderlymq_operator.plan.actions import (
    ConsumerGroupConfig,
    ObservedBlocker,
    ObservedExpansion,
    TopicConfig,
    UserConfig,
)
from orderlymq_operator.plan.assignment import Member
from orderlymq_operator.plan.consumergroups import Owners
from orderlymq_operator.resources.quotas import Limits
from orderlymq_protocol.body import clients as clientbodies
from orderlymq_protocol.body import config as configbodies
from orderlymq_protocol.body import stats as statsbodies
from orderlymq_protocol.body.config import PERM_WRITE
from orderlymq_protocol.body.lanes import LaneTable, QueueLanes
from orderlymq_protocol.body.routes import ClusterInfo, TopicRouteData
from orderlymq_protocol.header.extensions import EXT_TOKEN
from orderlymq_protocol.names import is_retry_topic

# Errors of JSON values that have other types or bounds than those expected.
MISSHAPEN: Final = (ValueError, LookupError, TypeError, AttributeError, OverflowError)


@dataclass(frozen=True, slots=True)
class MembershipView:
    """What one raft group knows of a consumer group: its members, and decisions by topic."""

    ordered: bool = False
    members: tuple[Member, ...] = ()
    decisions: Mapping[str, Owners] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LockHolder:
    """A client that holds queue locks.

    Attributes:
        address: host and port of a connection that it requested a lock on.
        connected: whether the broker has a connection of it at this moment.
        addresses: the addresses of all locks that it holds.
    """

    address: str
    connected: bool
    addresses: frozenset[str]


@dataclass(frozen=True, slots=True)
class Lock:
    """A valid queue lock.

    Attributes:
        wanted_by: the client that was refused it a moment ago; empty if none was.
    """

    group: str
    topic: str
    queue: int
    client_id: str
    wanted_by: str = ""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a consumer group: its address, and its subscriptions (topic to expression)."""

    client_id: str
    address: str
    subscriptions: Mapping[str, str]


def topics(body: bytes) -> dict[str, TopicConfig]:
    """Return the topics by name."""
    read = orjson.loads(body)
    table = configbodies.TopicConfigTable.from_json_value(read).topic_config_table
    told = read["topicConfigTable"]
    return {
        name: TopicConfig(
            max(each.read_queue_nums, each.write_queue_nums),
            each.perm,
            each.order,
            tuple(sorted((told[name].get("attributes") or {}).items())),
        )
        for name, each in table.items()
    }


def consumer_groups(body: bytes) -> dict[str, ConsumerGroupConfig]:
    """Return the consumer groups by name."""
    table = configbodies.SubscriptionGroupTable.from_json(body).subscription_group_table
    return {
        name: ConsumerGroupConfig(
            config.consume_message_orderly,
            config.consume_enable,
            config.retry_max_times,
            config.retry_queue_nums,
            config.consume_timeout_minute,
            config.on_dead_letter,
            config.concurrency,
            config.lane_key_property,
            bool(config.consume_concurrently),
            config.retry_pause_millis,
            config.retry_pause_max_millis,
        )
        for name, config in table.items()
    }


def users(body: bytes) -> dict[str, UserConfig]:
    """Return the accounts by access key."""
    return {
        account["accessKey"]: UserConfig(
            account["admin"],
            account["defaultTopicPerm"],
            account["defaultGroupPerm"],
            tuple(sorted(account["topicPerms"].items())),
            tuple(sorted(account["groupPerms"].items())),
            account["whiteRemoteAddress"],
            account["fingerprint"],
            Limits(
                account.get("requestsPerSecond", 0),
                account.get("bytesPerSecond", 0),
                account.get("connections", 0),
            ),
            former_until_ms=account.get("formerSecretUntil", 0),
        )
        for account in orjson.loads(body)["accounts"]
    }


def kv_table(body: bytes) -> Mapping[str, str]:
    """Return the values of a name space by key."""
    return configbodies.KVTable.from_json(body).table


def brokers(body: bytes) -> frozenset[str]:
    """Return the names of the registered broker groups."""
    return frozenset(ClusterInfo.from_json(body).broker_addr_table)


def route(body: bytes) -> Mapping[str, int]:
    """Return how many queues of a topic producers may write to, by broker group.

    In an ordered topic, only the queues of its published list have the write permission.
    """
    queues = TopicRouteData.from_json(body).queue_datas
    return {each.broker_name: each.write_queue_nums for each in queues if each.perm & PERM_WRITE}


def expansions(body: bytes) -> tuple[int, dict[str, ObservedExpansion]]:
    """Return the greatest operator token that the broker has seen, and expansions by topic."""
    found = orjson.loads(body)
    topics = {each["topic"]: _expansion(each) for each in found["topics"]}
    return int(found.get(EXT_TOKEN, 0)), topics


def lock_holders(body: bytes) -> dict[str, LockHolder]:
    """Return the clients that hold queue locks, by client id."""
    found: dict[str, LockHolder] = {}
    for lock in orjson.loads(body)["locks"]:
        address, known = lock["address"], found.get(lock["clientId"])
        addresses = {address} if known is None else {address, *known.addresses}
        found[lock["clientId"]] = LockHolder(address, lock["connected"], frozenset(addresses))
    return found


def locks(body: bytes) -> list[Lock]:
    """Return every queue lock."""
    return [
        Lock(
            lock["consumerGroup"],
            lock["topic"],
            lock["queueId"],
            lock["clientId"],
            lock["wantedBy"],
        )
        for lock in orjson.loads(body)["locks"]
    ]


def lanes(body: bytes) -> Sequence[QueueLanes]:
    """Return the figures of each queue of a consumer group by key."""
    return LaneTable.from_json(body).queues


def members(body: bytes) -> list[GroupMember]:
    """Return the members of a consumer group."""
    return [
        GroupMember(each.client_id, each.client_addr, each.subscriptions or {})
        for each in clientbodies.ConsumerConnection.from_json(body).connection_set
    ]


def all_members(body: bytes) -> dict[str, frozenset[str]]:
    """Return the addresses of the members of all consumer groups, by client id."""
    found: dict[str, set[str]] = {}
    for client_id, address in orjson.loads(body)["members"]:
        found.setdefault(client_id, set()).add(address)
    return {client_id: frozenset(addresses) for client_id, addresses in found.items()}


def lag(body: bytes) -> int:
    """Return how many messages a consumer group has not consumed."""
    table = statsbodies.ConsumeStats.from_json(body).offset_table
    return sum(at.lag for at in table.values())


def stored(body: bytes) -> int:
    """Return how many messages of a topic are stored."""
    table = statsbodies.TopicStats.from_json(body).offset_table
    return sum(max(0, queue.max_offset - queue.min_offset) for queue in table.values())


def membership(body: bytes) -> MembershipView:
    """Return what one raft group knows of a consumer group."""
    found = orjson.loads(body)
    return MembershipView(
        found["ordered"],
        tuple(_member(each) for each in found["members"]),
        {
            topic: tuple((broker, queue, client) for broker, queue, client in owners)
            for topic, owners in found["assignments"].items()
        },
    )


def _member(found: Mapping[str, Any]) -> Member:
    subscriptions = frozenset(
        (topic, expression)
        for topic, expression, _ in found["subscriptions"]
        if not is_retry_topic(topic)
    )
    return Member(found["clientId"], "", found["address"], subscriptions, found["sinceMillis"])


def _expansion(found: Mapping[str, Any]) -> ObservedExpansion:
    return ObservedExpansion(
        found["phase"],
        found["total"],
        found["nextTotal"],
        found["queues"],
        found["writeQueues"],
        found["attempt"],
        found["ageMillis"],
        found["reason"],
        tuple((queue, offset) for queue, offset in found["barriers"]),
        tuple(
            ObservedBlocker(each["group"], each["queue_id"], each["messages"], each["reason"])
            for each in found["blockers"]
        ),
        tuple(found["readers"]),
    )
