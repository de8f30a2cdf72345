"""
Requests to brokers and name servers: reading what they have, and changing it.

Rule: every request goes to the leader of a raft group or to a name server. It ends within seconds with a value or with
`AdminError`, which names the server and its answer. The planner decides which requests are sent.
"""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeVar, assert_never

import orjson

from orderlymq.connection.signatures import RequestSigner
from orderlymq_operator.brokers import answers
from orderlymq_operator.brokers.answers import (
    MISSHAPEN,
    GroupMember,
    Lock,
    LockHolder,
    MembershipView,
)
from orderlymq_operator.brokers.objectthread import beside_loop
from orderlymq_operator.plan.actions import (
    AbortExpansion,
    ExpansionStep,
    FenceTopic,
    GroupConfig,
    ObservedExpansion,
    PublishTopic,
    SwitchTopic,
    TopicConfig,
    UserConfig,
)
from orderlymq_operator.plan.consumergroups import SetAssignment
from orderlymq_protocol.body import config as configbodies
from orderlymq_protocol.body.config import SINGLE_TAG
from orderlymq_protocol.body.lanes import QueueLanes
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_protocol.header.catalogue import (
    CreateTopicHeader,
    DeleteSubscriptionGroupHeader,
    KVKeyHeader,
    PutKVConfigHeader,
)
from orderlymq_protocol.header.extensions import (
    EXT_BYTES,
    EXT_CONNECTIONS,
    EXT_NEW,
    EXT_OVERLAP,
    EXT_REQUESTS,
    EXT_TOKEN,
)
from orderlymq_protocol.names import AUTO_CREATE_TOPIC, ORDER_NAMESPACE
from orderlymq_protocol.sealedsecrets import EXT_SEALED, NONCE_SIZE, seal
from orderlymq_protocol.signature import Signer
from orderlymq_runtime.remoting.client import RemotingClient, RemotingError
from orderlymq_runtime.remoting.signedcalls import invoke_signed, name_server_signer
from orderlymq_runtime.security.cleartext import SecretInClear, check_protection

T = TypeVar("T")

_READ_TIMEOUT_S: Final = 1.0
# A change waits for its replication; during an election it waits for that as well.
_CHANGE_TIMEOUT_S: Final = 5.0
# Longer answers, as tables of hundreds of topics, are decoded beside the loop: they take milliseconds.
_QUICK_MAX: Final = 1 << 16
# Brokers say what a group by key has not consumed to who names this at all; its committed offset does not say it.
_WITH_BACKLOG: Final = {"orderlymq": "false"}


class AdminError(Exception):
    """A call failed; the text says who answered what, or that nobody did."""


class SilentError(AdminError):
    """Nobody has answered, or the connection was lost; *address* is where."""

    def __init__(self, text: str, address: str) -> None:
        super().__init__(text)
        self.address = address


class GroupInUseError(AdminError):
    """A consumer group was not deleted, because its members consume; it goes when they have stopped."""


class Admin:
    """Administration of one cluster; its requests are signed where there is a key.

    Args:
        operator_token: rises with every operator that takes over; rides with every change, and brokers refuse one that
            is smaller than they have seen. 0 for who is no operator.
        overtaken: is called with a greater token that a broker has seen.
        cluster_secret: signs changes at name servers.
        others: clients of processes that are spoken to otherwise, by address.
    """

    def __init__(
        self,
        client: RemotingClient,
        access_key: str = "",
        secret_key: str = "",
        operator_token: int = 0,
        overtaken: Callable[[int], None] | None = None,
        cluster_secret: bytes = b"",
        others: Mapping[str, RemotingClient] | None = None,
    ) -> None:
        self._client = client
        self._others = others or {}
        self._signer = RequestSigner(access_key, secret_key)
        self._secret_key = secret_key
        self._name_server_signer = name_server_signer(cluster_secret) if cluster_secret else None
        self.operator_token = operator_token
        self._overtaken = overtaken

    def _of(self, address: str) -> RemotingClient:
        return self._others.get(address, self._client)

    async def topics(self, address: str) -> dict[str, TopicConfig]:
        """Return the topics of a group."""
        return await self._read(address, RequestCode.GET_ALL_TOPIC_CONFIG, {}, answers.topics)

    async def consumer_groups(self, address: str) -> dict[str, GroupConfig]:
        """Return the consumer groups of a raft group."""
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        return await self._read(address, code, {}, answers.consumer_groups)

    async def has_group(self, address: str, name: str) -> bool:
        """Return whether a raft group has a consumer group."""
        return await self._read(
            address,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
            {"group": name},
            lambda _: True,
            absent=(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, False),
        )

    async def users(self, address: str) -> dict[str, UserConfig]:
        """Return the accounts of a raft group, without their secrets."""
        code = RequestCode.GET_BROKER_CLUSTER_ACL_INFO
        return await self._read(address, code, {"orderlymq": "true"}, answers.users)

    async def set_user(
        self, address: str, access_key: str, secret_key: str, config: UserConfig
    ) -> None:
        """Create or change an account.

        Raises:
            AdminError: as always, and where its secret would travel in the clear because this has no account.
        """
        ext = {
            "accessKey": access_key,
            **self._protected(address, access_key, secret_key),
            "admin": str(config.admin).lower(),
            "defaultTopicPerm": config.default_topic_permission,
            "defaultGroupPerm": config.default_group_permission,
            "topicPerms": ",".join(f"{name}={right}" for name, right in config.topics),
            "groupPerms": ",".join(f"{name}={right}" for name, right in config.groups),
            "whiteRemoteAddress": config.white_remote_address,
            EXT_OVERLAP: str(config.overlap_s),
            EXT_REQUESTS: str(config.limits.requests_per_s),
            EXT_BYTES: str(config.limits.bytes_per_s),
            EXT_CONNECTIONS: str(config.limits.connections),
        }
        await self._change(address, request(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, ext))

    def _protected(self, address: str, access_key: str, secret_key: str) -> dict[str, str]:
        """Return the field with an account's secret: sealed where neither TLS nor loopback protects it."""
        try:
            check_protection(
                address,
                is_encrypted=self._of(address).is_encrypted,
                what=f"the secret of account {access_key}",
                cure="give the operator an account of its own, or set spec.tls.mode of the Cluster",
            )
        except SecretInClear as unprotected:
            if not self._secret_key:
                raise AdminError(str(unprotected)) from unprotected
            sealed = seal(secret_key, access_key, self._secret_key, os.urandom(NONCE_SIZE))
            return {EXT_SEALED: sealed}
        return {"secretKey": secret_key}

    async def delete_user(self, address: str, access_key: str) -> None:
        """Delete an account."""
        ext = {"accessKey": access_key}
        await self._change(address, request(RequestCode.DELETE_ACL_CONFIG, ext))

    async def order_config(self, address: str) -> Mapping[str, str]:
        """Return the queue lists that a name server publishes."""
        return await self._read(
            address,
            RequestCode.GET_KVLIST_BY_NAMESPACE,
            {"namespace": ORDER_NAMESPACE},
            answers.kv_table,
            absent=(ResponseCode.QUERY_NOT_FOUND, {}),
        )

    async def registered(self, address: str) -> frozenset[str]:
        """Return the names of the brokers that a name server knows."""
        return await self._read(address, RequestCode.GET_BROKER_CLUSTER_INFO, {}, answers.brokers)

    async def set_topic(
        self, address: str, name: str, config: TopicConfig, *, is_new: bool = False
    ) -> None:
        """Create or change a topic; attributes that it has and *config* does not name stay.

        One that *is_new* was not there when it was planned: brokers refuse it where a client has made it since.
        """
        changes = ",".join(f"+{key}={value}" for key, value in config.attributes)
        header = CreateTopicHeader(
            name,
            # RocketMQ copies its settings for topics that clients create; a header must name one.
            AUTO_CREATE_TOPIC,
            config.queues,
            config.queues,
            config.permission,
            SINGLE_TAG,
            config.order,
            attributes=changes or None,
        )
        ext = header.to_ext() | ({EXT_NEW: "true"} if is_new else {})
        await self._change(address, request(RequestCode.UPDATE_AND_CREATE_TOPIC, ext))

    async def expansion(
        self, address: str, topics: Collection[str]
    ) -> dict[str, ObservedExpansion]:
        """Return how far the expansion of these topics is, and of every topic that expands at present.

        What is read of the raft group after this no former operator changes any more.
        """
        ext = {"topics": ",".join(sorted(topics))}
        code = RequestCode.ORDERLYMQ_QUEUE_EXPANSION
        greatest, found = await self._read(address, code, ext, answers.expansions)
        if greatest > self.operator_token and self._overtaken is not None:
            self._overtaken(greatest)
        elif greatest < self.operator_token:
            try:
                await self._end_predecessors(address)
            except AdminError as error:
                # Refused for the token the changes are, too, and say why. Otherwise it may not be in the log.
                if EXT_TOKEN not in str(error):
                    raise
        return found

    async def _end_predecessors(self, address: str) -> None:
        """Let a raft group refuse what former operators have sent and it has not received: a decision about nothing does it."""
        ext = {"consumerGroup": "operator", "topic": ""}
        await self._change(address, request(RequestCode.ORDERLYMQ_SET_ASSIGNMENT, ext, b"[]"))

    async def change_queues(self, address: str, step: ExpansionStep) -> None:
        """Carry out one step of a topic's expansion on one raft group."""
        await self._operate(address, expansion_request(step))

    async def expire_client(
        self, address: str, client_id: str, proof: str, ends: Collection[str]
    ) -> None:
        """Free the locks of a client that is proven dead, and end its memberships.

        A lock that was asked for from an address that is not in *ends* is of a living one, and makes the proof void.
        """
        ext = {"clientId": client_id, "proof": proof}
        ext["addresses"] = ",".join(sorted(ends))
        await self._operate(address, request(RequestCode.ORDERLYMQ_CLIENT_DEAD, ext))

    async def lock_holders(self, address: str) -> dict[str, LockHolder]:
        """Return who holds queue locks in a raft group, by client id."""
        return await self._read(address, RequestCode.ORDERLYMQ_LOCK_TABLE, {}, answers.lock_holders)

    async def locks(self, address: str) -> list[Lock]:
        """Return every queue lock of a raft group."""
        return await self._read(address, RequestCode.ORDERLYMQ_LOCK_TABLE, {}, answers.locks)

    async def lanes(self, address: str, group: str) -> Sequence[QueueLanes]:
        """Return the figures of a group by key in a raft group; empty where nobody knows it yet."""
        return await self._read(
            address,
            RequestCode.ORDERLYMQ_LANES,
            {"consumerGroup": group},
            answers.lanes,
            absent=(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, ()),
        )

    async def members(self, address: str, group: str) -> list[GroupMember]:
        """Return the members of a consumer group; empty when nobody is online."""
        return await self._read(
            address,
            RequestCode.GET_CONSUMER_CONNECTION_LIST,
            {"consumerGroup": group, "orderlymq": "true"},
            answers.members,
            absent=(ResponseCode.CONSUMER_NOT_ONLINE, []),
        )

    async def all_members(self, address: str) -> dict[str, frozenset[str]]:
        """Return the members of all consumer groups of a raft group: their addresses by client id."""
        return await self._read(
            address, RequestCode.ORDERLYMQ_GROUP_MEMBERS, {}, answers.all_members
        )

    async def lag(self, address: str, group: str) -> int:
        """Return how many messages of a raft group a consumer group has not consumed."""
        ext = {"consumerGroup": group} | _WITH_BACKLOG
        command = request(RequestCode.GET_CONSUME_STATS, ext)
        answer = await self._invoke(address, command, _READ_TIMEOUT_S)
        # Refused: the group has consumed nothing here yet, and its topics are not known.
        return _decoded(address, answer, answers.lag) if answer.code == ResponseCode.SUCCESS else 0

    async def backlog(self, address: str, group: str, topic: str) -> int:
        """Return how many messages of one topic in a raft group a consumer group has not consumed."""
        ext = {"consumerGroup": group, "topic": topic} | _WITH_BACKLOG
        return await self._read(address, RequestCode.GET_CONSUME_STATS, ext, answers.lag)

    async def set_writable(self, address: str, *, writable: bool) -> None:
        """Let a raft group take messages, or refuse all of them and only give."""
        body = f"brokerPermission={6 if writable else 4}\n".encode()
        await self._change(address, request(RequestCode.UPDATE_BROKER_CONFIG, body=body))

    async def retained(self, address: str) -> dict[str, int]:
        """Return how many messages a raft group still holds, by topic; without topics that hold none."""
        found = {}
        for topic in await self.topics(address):
            code = RequestCode.GET_TOPIC_STATS_INFO
            if count := await self._read(address, code, {"topic": topic}, answers.stored):
                found[topic] = count
        return found

    async def membership(self, address: str, group: str) -> MembershipView:
        """Return what one raft group knows of a consumer group; empty where it is not known at all."""
        ext = {"consumerGroup": group}
        return await self._read(
            address, RequestCode.ORDERLYMQ_GROUP_MEMBERS, ext, answers.membership
        )

    async def set_assignment(self, address: str, step: SetAssignment) -> None:
        """Store who takes which queue of a topic, for members that ask."""
        ext = {"consumerGroup": step.consumer_group, "topic": step.topic}
        body = orjson.dumps(step.owners)
        await self._operate(address, request(RequestCode.ORDERLYMQ_SET_ASSIGNMENT, ext, body))

    async def notify_members(self, address: str, group: str) -> None:
        """Ask the members of a consumer group to look again."""
        ext = {"consumerGroup": group, "action": "notify"}
        await self._operate(address, request(RequestCode.ORDERLYMQ_SET_ASSIGNMENT, ext))

    async def route(self, address: str, topic: str) -> Mapping[str, int]:
        """Return how many queues of a topic are written per broker, as a name server answers clients."""
        return await self._read(
            address,
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            {"topic": topic, "acceptStandardJsonOnly": "true"},
            answers.route,
            absent=(ResponseCode.TOPIC_NOT_EXIST, {}),
        )

    async def delete_topic(self, address: str, name: str) -> None:
        """Delete a topic and its messages."""
        await self._change(address, request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name}))

    async def set_group(self, address: str, name: str, config: GroupConfig) -> None:
        """Create or change a consumer group."""
        body = configbodies.SubscriptionGroupConfig(
            group_name=name,
            consume_enable=config.enabled,
            consume_message_orderly=config.orderly,
            retry_queue_nums=config.retry_queues,
            retry_max_times=config.retry_times,
            consume_timeout_minute=config.consume_timeout_minutes,
            on_dead_letter=config.on_dead_letter,
            concurrency=config.concurrency,
            lane_key_property=config.lane_key_property,
            consume_concurrently=config.concurrent,
            retry_pause_millis=config.retry_pause_ms,
            retry_pause_max_millis=config.retry_pause_max_ms,
        )
        command = request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body.to_json())
        await self._change(address, command)

    async def delete_group(self, address: str, name: str) -> None:
        """Delete a consumer group and its offsets.

        Raises:
            GroupInUseError: its members hold queue locks or lanes.
            AdminError: as always.
        """
        header = DeleteSubscriptionGroupHeader(name, remove_offset=True, clean_offset=True)
        command = request(RequestCode.DELETE_SUBSCRIPTIONGROUP, header.to_ext())
        await self._change(address, command)

    async def seed_offset(
        self, address: str, group: str, topic: str, queue: int, *, latest: bool
    ) -> None:
        """Let a new consumer group begin behind the last message of a queue, or at the first one if it has no position."""
        code = RequestCode.GET_MAX_OFFSET if latest else RequestCode.GET_MIN_OFFSET
        place = {"topic": topic, "queueId": str(queue)}
        if not latest:
            asked = {"consumerGroup": group, "setZeroIfNotFound": "false", **place}
            command = request(RequestCode.QUERY_CONSUMER_OFFSET, asked)
            known = await self._invoke(address, command, _READ_TIMEOUT_S)
            if known.code != ResponseCode.QUERY_NOT_FOUND:
                _check(address, known)
                return
        answer = await self._change(address, request(code, place))
        ext = {"consumerGroup": group, "commitOffset": answer.ext.get("offset", "0"), **place}
        await self._change(address, request(RequestCode.UPDATE_CONSUMER_OFFSET, ext))

    async def put_order_config(self, address: str, topic: str, value: str) -> None:
        """Publish a queue list on a name server."""
        header = PutKVConfigHeader(ORDER_NAMESPACE, topic, value)
        command = request(RequestCode.PUT_KV_CONFIG, header.to_ext())
        await self._change(address, command, self._name_server_signer)

    async def delete_order_config(self, address: str, topic: str) -> None:
        """Withdraw a queue list."""
        header = KVKeyHeader(ORDER_NAMESPACE, topic)
        command = request(RequestCode.DELETE_KV_CONFIG, header.to_ext())
        await self._change(address, command, self._name_server_signer)

    async def transfer_leadership(self, address: str, target: int) -> None:
        """Transfer the leadership to replica *target*."""
        ext = {"target": str(target)}
        await self._change(address, request(RequestCode.ORDERLYMQ_TRANSFER_LEADERSHIP, ext))

    async def change_membership(
        self, address: str, action: str, node: int, node_address: str
    ) -> None:
        """Add a learner, promote it, or remove a replica (*action*: add-learner, promote, remove)."""
        body = orjson.dumps({"action": action, "node": node, "address": node_address})
        await self._change(address, request(RequestCode.ORDERLYMQ_CHANGE_MEMBERSHIP, body=body))

    async def _read(
        self,
        address: str,
        code: RequestCode,
        ext: Mapping[str, str],
        decode: Callable[[bytes], T],
        *,
        absent: tuple[ResponseCode, T] | None = None,
    ) -> T:
        """Ask for something and decode the answer; *absent* is what another code of an answer means."""
        answer = await self._invoke(address, request(code, ext), _READ_TIMEOUT_S)
        if absent is not None and answer.code == absent[0]:
            return absent[1]
        if len(answer.body) > _QUICK_MAX:
            return await beside_loop(_decoded, address, answer, decode)
        return _decoded(address, answer, decode)

    async def _operate(self, address: str, command: RemotingCommand) -> None:
        """Change what an operator alone changes."""
        try:
            await self._change(address, command)
        except AdminError:
            # Perhaps for its token: the look shows whether the broker has seen a greater one.
            with suppress(AdminError):
                await self.expansion(address, ())
            raise

    async def _change(
        self, address: str, command: RemotingCommand, signer: Signer | None = None
    ) -> RemotingCommand:
        """Ask for a change, and return the answer; *signer* signs it in place of the account."""
        if self.operator_token:
            command.ext = {**command.ext, EXT_TOKEN: str(self.operator_token)}
        return _check(address, await self._invoke(address, command, _CHANGE_TIMEOUT_S, signer))

    async def _invoke(
        self,
        address: str,
        command: RemotingCommand,
        timeout_s: float,
        signer: Signer | None = None,
    ) -> RemotingCommand:
        client = self._of(address)
        try:
            if signer is not None:
                return await invoke_signed(client, signer, address, command, timeout_s)
            return await self._signer.invoke(client.invoke, address, command, timeout_s)
        except RemotingError as error:
            raise SilentError(str(error), address) from error


def expansion_request(step: ExpansionStep) -> RemotingCommand:
    """Return the request for one step of a topic's expansion, without the operator's token."""
    ext = {"topic": step.topic}
    body = b""
    match step:
        case FenceTopic():
            ext |= {"action": "fence", "limitMillis": str(step.limit_ms)}
            ext |= {"attempt": str(step.attempt), "total": str(step.total)}
            ext["queues"] = str(step.queues)
        case AbortExpansion():
            ext |= {"action": "abort", "attempt": str(step.attempt), "reason": step.reason}
        case SwitchTopic():
            ext |= {"action": "switch", "attempt": str(step.attempt), "total": str(step.total)}
            ext |= {"queues": str(step.config.queues), "perm": str(step.config.permission)}
            body = orjson.dumps({"groups": step.readers})
        case PublishTopic():
            ext |= {"action": "publish", "total": str(step.total)}
            ext["settleMillis"] = str(step.propagation_ms)
        case _:
            assert_never(step)
    return request(RequestCode.ORDERLYMQ_CHANGE_QUEUES, ext, body)


def _decoded(address: str, answer: RemotingCommand, decode: Callable[[bytes], T]) -> T:
    _check(address, answer)
    try:
        return decode(answer.body)
    except MISSHAPEN as error:
        raise AdminError(f"{address} answered something unreadable: {error}") from error


def _check(address: str, answer: RemotingCommand) -> RemotingCommand:
    if answer.code != ResponseCode.SUCCESS:
        is_used = answer.code == ResponseCode.ORDERLYMQ_GROUP_IN_USE
        error = GroupInUseError if is_used else AdminError
        raise error(f"{address} answered code {answer.code}: {answer.remark or 'no remark'}")
    return answer
