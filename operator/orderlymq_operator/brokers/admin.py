"""
Requests to brokers and name servers: they read what these have, and change it.

Rule: every request goes to the leader of a raft group or to a name server. It ends within seconds with a value or
with `AdminError`, which names the server and its answer. The planner decides which requests are sent.
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
    ConsumerGroupConfig,
    ExpansionStep,
    FenceTopic,
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
# A change waits for its replication, and during an election also for the election.
_CHANGE_TIMEOUT_S: Final = 5.0
# Longer answers, such as tables of hundreds of topics, take milliseconds, so they are decoded in another thread.
_QUICK_MAX: Final = 1 << 16
# Brokers include the backlog of a consumer group by key only if the request has this field; its committed offset does
# not show it.
_WITH_BACKLOG: Final = {"orderlymq": "false"}


class AdminError(Exception):
    """A call failed; the text says which server answered what, or that none did."""


class SilentError(AdminError):
    """The server at *address* did not answer, or the connection was lost."""

    def __init__(self, text: str, address: str) -> None:
        super().__init__(text)
        self.address = address


class GroupInUseError(AdminError):
    """A consumer group was not deleted because its members consume; it can be deleted when they have stopped."""


class Admin:
    """Administration of one cluster; its requests are signed if it has a key.

    Args:
        operator_token: rises with every operator that takes over. Every change carries it, and brokers refuse a
            smaller one than they have seen. 0 for a caller that is not an operator.
        overtaken: called with the greater token that a broker has seen.
        cluster_secret: signs changes at name servers.
        others: clients for processes that need another kind of connection, by address.
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
        """Return the topics of a raft group."""
        return await self._read(address, RequestCode.GET_ALL_TOPIC_CONFIG, {}, answers.topics)

    async def consumer_groups(self, address: str) -> dict[str, ConsumerGroupConfig]:
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
            AdminError: as always, and if its secret would be sent in clear because this client has no account.
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
        """Return the field with an account's secret; the secret is sealed if neither TLS nor loopback protects it."""
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
        """Return the names of the broker groups that a name server knows."""
        return await self._read(address, RequestCode.GET_BROKER_CLUSTER_INFO, {}, answers.brokers)

    async def set_topic(
        self, address: str, name: str, config: TopicConfig, *, is_new: bool = False
    ) -> None:
        """Create or change a topic; its attributes that *config* does not name stay.

        If *is_new*, the topic did not exist when it was planned: brokers refuse it if a client has created it since.
        """
        changes = ",".join(f"+{key}={value}" for key, value in config.attributes)
        header = CreateTopicHeader(
            name,
            # RocketMQ copies the settings of this topic when clients create topics; a header must name one.
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
        """Return the progress of the expansion of these topics, and of every topic that expands at present.

        After this call, no former operator can change what is read from the raft group.
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
                # If refused for the token, later changes are refused too, and say why. Otherwise the request may not
                # be in the log.
                if EXT_TOKEN not in str(error):
                    raise
        return found

    async def _end_predecessors(self, address: str) -> None:
        """Make a raft group refuse later requests of former operators.

        The request is an assignment of no topic; its token is what counts.
        """
        ext = {"consumerGroup": "operator", "topic": ""}
        await self._change(address, request(RequestCode.ORDERLYMQ_SET_ASSIGNMENT, ext, b"[]"))

    async def change_queues(self, address: str, step: ExpansionStep) -> None:
        """Carry out one step of a topic's expansion on one raft group."""
        await self._operate(address, expansion_request(step))

    async def expire_client(
        self, address: str, client_id: str, proof: str, ends: Collection[str]
    ) -> None:
        """Free the locks of a client that is proven dead, and end its memberships.

        A lock that was requested from an address outside *ends* belongs to a living client and makes the proof void.
        """
        ext = {"clientId": client_id, "proof": proof}
        ext["addresses"] = ",".join(sorted(ends))
        await self._operate(address, request(RequestCode.ORDERLYMQ_CLIENT_DEAD, ext))

    async def lock_holders(self, address: str) -> dict[str, LockHolder]:
        """Return the clients that hold queue locks in a raft group, by client id."""
        return await self._read(address, RequestCode.ORDERLYMQ_LOCK_TABLE, {}, answers.lock_holders)

    async def locks(self, address: str) -> list[Lock]:
        """Return every queue lock of a raft group."""
        return await self._read(address, RequestCode.ORDERLYMQ_LOCK_TABLE, {}, answers.locks)

    async def lanes(self, address: str, group: str) -> Sequence[QueueLanes]:
        """Return the figures of a consumer group by key in a raft group; empty if it is not known there yet."""
        return await self._read(
            address,
            RequestCode.ORDERLYMQ_LANES,
            {"consumerGroup": group},
            answers.lanes,
            absent=(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, ()),
        )

    async def members(self, address: str, group: str) -> list[GroupMember]:
        """Return the members of a consumer group; empty if none is online."""
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
        # On a refusal the consumer group has consumed nothing here yet, and its topics are not known.
        return _decoded(address, answer, answers.lag) if answer.code == ResponseCode.SUCCESS else 0

    async def backlog(self, address: str, group: str, topic: str) -> int:
        """Return how many messages of one topic in a raft group a consumer group has not consumed."""
        ext = {"consumerGroup": group, "topic": topic} | _WITH_BACKLOG
        return await self._read(address, RequestCode.GET_CONSUME_STATS, ext, answers.lag)

    async def set_writable(self, address: str, *, writable: bool) -> None:
        """Let a raft group accept messages, or only serve reads."""
        body = f"brokerPermission={6 if writable else 4}\n".encode()
        await self._change(address, request(RequestCode.UPDATE_BROKER_CONFIG, body=body))

    async def retained(self, address: str) -> dict[str, int]:
        """Return how many messages a raft group still stores, by topic; topics without messages are left out."""
        found = {}
        for topic in await self.topics(address):
            code = RequestCode.GET_TOPIC_STATS_INFO
            if count := await self._read(address, code, {"topic": topic}, answers.stored):
                found[topic] = count
        return found

    async def membership(self, address: str, group: str) -> MembershipView:
        """Return what one raft group knows of a consumer group; empty if it knows nothing."""
        ext = {"consumerGroup": group}
        return await self._read(
            address, RequestCode.ORDERLYMQ_GROUP_MEMBERS, ext, answers.membership
        )

    async def set_assignment(self, address: str, step: SetAssignment) -> None:
        """Store the owners of a topic's queues, for members that ask."""
        ext = {"consumerGroup": step.consumer_group, "topic": step.topic}
        body = orjson.dumps(step.owners)
        await self._operate(address, request(RequestCode.ORDERLYMQ_SET_ASSIGNMENT, ext, body))

    async def notify_members(self, address: str, group: str) -> None:
        """Ask the members of a consumer group to assign and lock again."""
        ext = {"consumerGroup": group, "action": "notify"}
        await self._operate(address, request(RequestCode.ORDERLYMQ_SET_ASSIGNMENT, ext))

    async def route(self, address: str, topic: str) -> Mapping[str, int]:
        """Return how many queues of a topic producers write to per broker group, as a name server answers clients."""
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

    async def set_group(self, address: str, name: str, config: ConsumerGroupConfig) -> None:
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
        """Set the start position of a new consumer group in a queue.

        With *latest* that is behind the last message; otherwise the first message, and only if the consumer group has
        no position.
        """
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
        """Send a request and decode the answer; *absent* is (answer code, value to return for it)."""
        answer = await self._invoke(address, request(code, ext), _READ_TIMEOUT_S)
        if absent is not None and answer.code == absent[0]:
            return absent[1]
        if len(answer.body) > _QUICK_MAX:
            return await beside_loop(_decoded, address, answer, decode)
        return _decoded(address, answer, decode)

    async def _operate(self, address: str, command: RemotingCommand) -> None:
        """Send a change that only an operator may make."""
        try:
            await self._change(address, command)
        except AdminError:
            # The token may be the reason: this request shows whether the broker has seen a greater one.
            with suppress(AdminError):
                await self.expansion(address, ())
            raise

    async def _change(
        self, address: str, command: RemotingCommand, signer: Signer | None = None
    ) -> RemotingCommand:
        """Send a change and return the answer; *signer* signs it instead of the account."""
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
        raise AdminError(f"{address} sent an unreadable answer: {error}") from error


def _check(address: str, answer: RemotingCommand) -> RemotingCommand:
    if answer.code != ResponseCode.SUCCESS:
        is_used = answer.code == ResponseCode.ORDERLYMQ_GROUP_IN_USE
        error = GroupInUseError if is_used else AdminError
        raise error(f"{address} answered code {answer.code}: {answer.remark or 'no remark'}")
    return answer
