"""
The administrator's client: topics, groups, offsets, locks, the state of the broker groups.

Rules: a question about a topic or a consumer group goes to every broker group that has a part of it, and the answers
are merged. A change goes to each of them, or the error names the first that refused. The `orderlymq` command and the
operator use it.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from orderlymq.admin.answers import LockTable
from orderlymq.admin.calls import unless_foreign
from orderlymq.admin.messages import MessageOperations
from orderlymq.admin.operations import topic_expansion
from orderlymq.admin.queuelists import agreed_list, check_present, declarations, named_groups
from orderlymq.connection.identity import NameServers
from orderlymq.connection.instance import ClientInstance, unless_refused
from orderlymq.connection.routes import TopicRoute
from orderlymq.consumer.group.queuereader import QueueReader
from orderlymq.errors import (
    BrokerError,
    BrokerUnreachable,
    SettingError,
    StateError,
    TopicNotFound,
)
from orderlymq.ownedtasks import Lifecycle, Shutdown
from orderlymq.settings import ClientSettings, check_name
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.catalogue import (
    MASTER_ID,
    PERM_READ,
    PERM_WRITE,
    SINGLE_TAG,
    ClusterInfo,
    Connection,
    ConsumerConnection,
    ConsumeStats,
    GroupList,
    OffsetTable,
    OffsetWrapper,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
    TopicList,
    TopicOffset,
    TopicStats,
)
from orderlymq_protocol.body.declaration import camel_case
from orderlymq_protocol.body.lanes import LaneTable
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_protocol.groupinuse import in_use
from orderlymq_protocol.header.catalogue import (
    ConsumerGroupHeader,
    CreateTopicHeader,
    DeleteSubscriptionGroupHeader,
    GetConsumeStatsHeader,
    ResetOffsetHeader,
    TopicHeader,
)
from orderlymq_protocol.header.extensions import EXT_MEMBERS
from orderlymq_protocol.names import (
    AUTO_CREATE_TOPIC,
    ORDER_NAMESPACE,
    check_group_name,
    check_topic_name,
)

_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class QueueLock:
    """The holder of a queue lock in an ordered consumer group.

    Attributes:
        is_connected: whether the leader has a connection of the holder; None if it does not report this.
        wanted_by: the client that was refused the lock in the last half minute; empty if there was none.
    """

    queue: MessageQueue
    client_id: str
    address: str
    epoch: int
    lease_ms: int
    held_since_ms: int
    is_connected: bool | None = None
    wanted_by: str = ""


class AdminClient(Lifecycle, MessageOperations):
    """Reads and changes the cluster.

    Life cycle: `start`, `close`; or `async with`.
    """

    def __init__(
        self,
        name_servers: NameServers = None,
        *,
        client_settings: ClientSettings | None = None,
        instance: ClientInstance | None = None,
        only: Mapping[str, str] | None = None,
    ) -> None:
        self._only = only
        self._instance = instance or ClientInstance(
            name_servers, client_settings, administrator=True
        )
        self._is_open = False
        self._shutdown = Shutdown()

    @property
    def instance(self) -> ClientInstance:
        """Return the connections, to share them with producers and consumers."""
        return self._instance

    async def start(self) -> None:
        """Open the client; sends nothing yet.

        Raises:
            StateError: It is open.
        """
        if self._is_open:
            raise StateError(
                "the admin client is already open; close it first, or create another one"
            )
        await self._instance.start()
        self._is_open = True

    async def close(self) -> None:
        """Close the client. A cancelled call still closes it; a later call waits for that."""
        if self._is_open:
            self._instance.check_caller()
            self._is_open = False
            self._shutdown.begin(self._instance.close(), "shutdown of an administrator")
        await self._shutdown.wait()

    def at(self, broker: str, address: str) -> "AdminClient":
        """Return a client over the same connections that asks one broker group only.

        So a broker group that does not answer does not affect the answers of the others. It needs no
        `start` and no `close`.

        Args:
            broker: name of the broker group.
            address: of its leader, from `brokers`.
        """
        return AdminClient(instance=self._instance, only={broker: address})

    # -- cluster

    async def cluster_info(self) -> ClusterInfo:
        """Return all broker groups and clusters.

        Raises:
            NameServersUnreachable: No name server answers.
        """
        command = request(RequestCode.GET_BROKER_CLUSTER_INFO)
        answer = await self._instance.ask_name_server(command)
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(answer.code, answer.remark)
        return ClusterInfo.from_json(answer.body)

    async def brokers(self) -> dict[str, str]:
        """Return the leader's address of every broker group that this client asks."""
        if self._only is not None:
            return dict(self._only)
        return _registered_leaders(await self.cluster_info())

    async def absent_groups(self) -> list[str]:
        """Return the broker groups that queue lists or name servers know but that have no leader registered now."""
        if self._only is not None:
            return []
        info = await self.cluster_info()
        named = await named_groups(self._instance, await self.topics())
        return sorted({*info.broker_addr_table, *named} - {*_registered_leaders(info)})

    async def group_status(self, address: str) -> dict[str, Any]:
        """Return the report of the leader at *address* about its raft group and its replicas."""
        answer = await self._instance.call(address, RequestCode.ORDERLYMQ_GROUP_STATUS)
        status = fastjson.loads(answer.body)
        if not isinstance(status, dict):
            raise BrokerError(0, "the status is not a JSON object", address)
        return status

    # -- topics

    async def topics(self) -> list[str]:
        """Return the names of all topics."""
        command = request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        answer = await self._instance.ask_name_server(command)
        return sorted(TopicList.from_json(answer.body).topic_list)

    async def route(self, topic: str) -> TopicRoute:
        """Return a topic's queues by a new request.

        Raises:
            TopicNotFound: No broker has it.
        """
        return await self._instance.route(topic, refresh=True, keep=False)

    async def topic_configs(self) -> dict[str, dict[str, TopicConfig]]:
        """Return the configuration of every topic by broker group."""
        found: dict[str, dict[str, TopicConfig]] = {}
        answers = await self._of_each(await self.brokers(), RequestCode.GET_ALL_TOPIC_CONFIG)
        for name, answer in answers.items():
            for topic, config in TopicConfigTable.from_json(answer.body).topic_config_table.items():
                found.setdefault(topic, {})[name] = config
        return found

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        ordered: bool = False,
        brokers: Iterable[str] | None = None,
        perm: int = PERM_READ | PERM_WRITE,
    ) -> dict[str, int]:
        """Create a topic with *queues* queues in all, spread evenly; return the queues per broker group.

        The name servers declare an ordered topic's queue list, which does not depend on which brokers are alive. An
        existing topic is changed.

        Raises:
            SettingError: The name or the number is not allowed, there is no such broker group, or the ordered
                topic has another queue list: that would move keys.
            BrokerUnreachable: A broker group of the ordered topic is away; nothing was changed.
            BrokerError: A broker refused.
        """
        check_name(check_topic_name, topic)
        if queues < 1:
            raise SettingError(f"queues is {queues}; a topic needs at least one")
        known = await self.brokers()
        names = sorted(known if brokers is None else brokers)
        if not names:
            raise BrokerUnreachable("no broker group is registered; try `orderlymq status`")
        for name in names:
            if name not in known:
                raise SettingError(f"there is no broker group {name}; known are {', '.join(known)}")
        share, rest = divmod(queues, len(names))
        counts = {name: share + (index < rest) for index, name in enumerate(names)}
        counts = {name: count for name, count in counts.items() if count}
        former: list[dict[str, int]] = []
        if ordered:
            counts = await agreed_list(self._instance, topic, counts, known, spread=brokers is None)
            former = await declarations(self._instance, topic)
            await self._declare_order(topic, counts)
        try:
            for name, count in counts.items():
                header = CreateTopicHeader(
                    topic, AUTO_CREATE_TOPIC, count, count, perm, SINGLE_TAG, ordered
                )
                await self._instance.call(
                    known[name],
                    RequestCode.UPDATE_AND_CREATE_TOPIC,
                    header.to_ext(),
                    timeout_s=_TIMEOUT_S,
                )
        except BrokerError:
            # An older declaration is not from this call: an expansion may be about to replace it.
            if ordered and (not former or any(each != counts for each in former)):
                await self._declare_present(topic, counts)
            raise
        await self._wait_for_route(topic)
        return counts

    async def _declare_present(self, topic: str, declared: dict[str, int]) -> None:
        """Declare the queues that an ordered topic has, if another administrator was faster with another number.

        The declaration keeps the queues of the declared list: repeating the command creates the missing ones. A
        shorter list could not grow again.
        """
        while True:
            # Read again after each declaration: the other change may have reached one broker and not yet the next.
            configs = (await self.topic_configs()).get(topic, {})
            present = {name: each.write_queue_nums for name, each in configs.items() if each.order}
            if present.items() <= declared.items():
                return
            await self._declare_order(topic, present)
            declared = present

    async def _declare_order(self, topic: str, counts: Mapping[str, int]) -> None:
        value = ";".join(f"{name}:{count}" for name, count in counts.items())
        await self.put_kv(ORDER_NAMESPACE, topic, value)

    async def _wait_for_route(self, topic: str) -> None:
        """Return when the name server knows the topic, so that the next command finds it."""
        for _ in range(50):
            try:
                await self.route(topic)
            except TopicNotFound:
                await asyncio.sleep(0.02)
            else:
                return

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic, its messages and its declaration, including remains of an earlier call that ended too soon.

        Raises:
            TopicNotFound: No broker has it, and no name server declares it.
            BrokerUnreachable: A broker group that has a part of it is away; nothing was deleted.
        """
        names: tuple[str, ...] = ()
        missing: TopicNotFound | None = None
        try:
            await self.route(topic)
            names = self._instance.routes.brokers(topic)
        except TopicNotFound as error:
            missing = error
        declared = await declarations(self._instance, topic)
        if missing is not None and not declared:
            raise missing
        known = await self.brokers()
        check_present({*names}.union(*declared), known)
        if not any(declared):
            # No server knows where the parts of an unordered topic are: any absent broker group may have one.
            check_present(await self.absent_groups(), ())
        for name in names:
            await self._instance.call(
                known[name],
                RequestCode.DELETE_TOPIC_IN_BROKER,
                TopicHeader(topic).to_ext(),
                timeout_s=_TIMEOUT_S,
            )
        await self.delete_kv(ORDER_NAMESPACE, topic)
        await self._tell_name_servers(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": topic})

    async def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return the offsets of every queue of a topic.

        Raises:
            TopicNotFound: No broker has it.
        """
        found: dict[MessageQueue, TopicOffset] = {}
        for answer in await self._of_topic(topic, RequestCode.GET_TOPIC_STATS_INFO):
            found.update(TopicStats.from_json(answer.body).offset_table)
        return dict(sorted(found.items()))

    async def expansion(self, topic: str) -> dict[str, dict[str, Any]]:
        """Return the progress of an ordered topic's queue expansion, by broker group."""
        return await topic_expansion(self._instance, topic, self._only)

    async def topic_groups(self, topic: str) -> list[str]:
        """Return the consumer groups that consume a topic, online or not."""
        answers = await self._of_topic(topic, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO)
        return sorted({g for each in answers for g in GroupList.from_json(each.body).group_list})

    # -- groups

    async def groups(self) -> dict[str, SubscriptionGroupConfig]:
        """Return the configuration of every consumer group.

        If broker groups differ (during a change, or after one that failed half way), the first broker
        group by name counts.
        """
        found: dict[str, SubscriptionGroupConfig] = {}
        for answer in await self._of_all(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG):
            table = SubscriptionGroupTable.from_json(answer.body).subscription_group_table
            found = {**table, **found}
        return dict(sorted(found.items()))

    async def set_group(
        self, config: SubscriptionGroupConfig, *, only: Iterable[str] | None = None
    ) -> None:
        """Create or change a consumer group at every broker group.

        *only* holds names of fields. Our brokers then leave the other fields of an existing group as they are, even
        if another administrator changes them meanwhile; RocketMQ's take the whole configuration.

        Raises:
            SettingError: The group's name is invalid, or a name in *only* is not a field.
            BrokerUnreachable: A broker group is away; nothing was changed.
        """
        check_name(check_group_name, config.group_name)
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        meant = None if only is None else [*only]
        if unknown := {*(meant or ())} - {each.name for each in fields(config)}:
            raise SettingError(f"a consumer group has no field {min(unknown)}")
        ext = None if meant is None else {EXT_MEMBERS: ",".join(map(camel_case, meant))}
        await self._change_all(code, ext, config.to_json())

    async def delete_group(self, group: str, *, offsets: bool = True) -> None:
        """Delete a consumer group with its offsets. The call may be repeated after it ended half way.

        Raises:
            BrokerUnreachable: A broker group is away; nothing was deleted.
            BrokerError: Its members hold queue locks or lanes (20517). Stop them, then call again. Nothing was
                deleted, unless they got them at one broker group while another one deleted the group.
        """
        locks = await unless_foreign(self.locks(group), {})
        table = await unless_foreign(self.lanes(group), LaneTable())
        in_hand = sum(queue.in_hand for queue in table.queues)
        if text := in_use(group, len(locks), in_hand):
            raise BrokerError(ResponseCode.ORDERLYMQ_GROUP_IN_USE, text)
        header = DeleteSubscriptionGroupHeader(group, offsets, offsets)
        await self._change_all(RequestCode.DELETE_SUBSCRIPTIONGROUP, header.to_ext())

    async def members(self, group: str) -> dict[str, Connection]:
        """Return the connected members of a consumer group by client id; empty if it is offline."""
        return {
            each.client_id: each
            for connection in await self.connections(group)
            for each in connection.connection_set
        }

    async def connections(self, group: str) -> list[ConsumerConnection]:
        """Return what every broker group knows about a consumer group's members and subscriptions."""
        ext = ConsumerGroupHeader(group).to_ext()
        absent = ResponseCode.CONSUMER_NOT_ONLINE
        answers = await self._of_all(RequestCode.GET_CONSUMER_CONNECTION_LIST, ext, absent=absent)
        return [ConsumerConnection.from_json(answer.body) for answer in answers]

    async def progress(
        self, group: str, topic: str | None = None, *, whole: bool = False
    ) -> dict[MessageQueue, OffsetWrapper]:
        """Return the progress of a consumer group in one topic, or in every queue for which it has an offset.

        Without a topic, topics that its members no longer subscribe to are left out, unless *whole* is true.
        """
        # Brokers report the unconsumed messages of a group by key only if the request has this
        # field, with either value.
        ext = GetConsumeStatsHeader(group, topic).to_ext() | {
            "orderlymq": "true" if whole else "false"
        }
        found: dict[MessageQueue, OffsetWrapper] = {}
        for answer in await self._of_all(RequestCode.GET_CONSUME_STATS, ext):
            found.update(ConsumeStats.from_json(answer.body).offset_table)
        return dict(sorted(found.items()))

    async def locks(self, group: str) -> dict[MessageQueue, QueueLock]:
        """Return the holder of every locked queue of an ordered consumer group."""
        found: dict[MessageQueue, QueueLock] = {}
        ext = {"consumerGroup": group}
        for answer in await self._of_all(RequestCode.ORDERLYMQ_LOCK_TABLE, ext):
            for each in LockTable.from_json(answer.body).locks:
                queue = MessageQueue(each.topic, each.broker_name, each.queue_id)
                found[queue] = QueueLock(
                    queue,
                    each.client_id,
                    each.address,
                    each.epoch,
                    each.lease_millis,
                    each.held_since_millis,
                    each.connected,
                    each.wanted_by,
                )
        return dict(sorted(found.items()))

    async def locking_groups(self) -> set[str]:
        """Return the consumer groups that hold a lock of any queue."""
        answers = await self._of_all(RequestCode.ORDERLYMQ_LOCK_TABLE)
        tables = (LockTable.from_json(answer.body) for answer in answers)
        return {each.consumer_group for table in tables for each in table.locks}

    async def reset_offsets(self, group: str, topic: str, to: int | str) -> dict[MessageQueue, int]:
        """Move a consumer group to `earliest`, `latest` or a store time in milliseconds.

        Members that are online are notified and continue there; an offline group's offsets are set.

        Raises:
            SettingError: *to* is another value. Brokers take -1 for the end of a queue, and
                clients for its beginning.
            TopicNotFound: No broker has the topic.
        """
        match to:
            case "earliest":
                timestamp = 0
            case "latest":
                timestamp = -1
            case int() if to >= 0:
                timestamp = to
            case _:
                raise SettingError(
                    f"{to!r} is neither earliest, latest nor a time in milliseconds since 1970"
                )
        await self.route(topic)
        found: dict[MessageQueue, int] = {}
        header = ResetOffsetHeader(topic, group, timestamp, is_force=True)
        for name, address in self._leaders(topic).items():
            asked = self._instance.call(
                address,
                RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
                header.to_ext(),
                timeout_s=_TIMEOUT_S,
            )
            try:
                # 206 means that no member is online, 3 that the broker leaves the reset to the client.
                answer = await unless_refused(
                    asked,
                    None,
                    ResponseCode.CONSUMER_NOT_ONLINE,
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                )
            except BrokerError as error:
                # A broker group lacks a consumer group that another one knows, because no member has come to it yet.
                if (
                    error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
                    or group not in await self.groups()
                ):
                    raise
                answer = None
            if answer is None:
                found.update(await self._reset_offline(group, topic, to, name))
            else:
                found.update(OffsetTable.from_json(answer.body).offset_table)
        return dict(sorted(found.items()))

    async def _reset_offline(
        self, group: str, topic: str, to: int | str, broker_name: str
    ) -> dict[MessageQueue, int]:
        reader = QueueReader(self._instance, group)
        found: dict[MessageQueue, int] = {}
        for queue in (await self.route(topic)).subscribe:
            if queue.broker_name != broker_name:
                continue
            if to == "earliest":
                offset = await reader.min_offset(queue)
            elif to == "latest":
                offset = await reader.max_offset(queue)
            else:
                offset = await reader.offset_at(queue, int(to))
            found[queue] = offset
        await self._set_offline(group, found)
        return found

    # -- messages

    async def transactions(self) -> dict[str, dict[str, int]]:
        """Return "open" and "givenUp" transactions of each producer group, over all broker groups."""
        found: dict[str, dict[str, int]] = {}
        for address in (await self.brokers()).values():
            # RocketMQ's own brokers do not report transactions.
            status = await unless_foreign(self.group_status(address), {})
            for name, counts in status.get("transactions", {}).get("groups", {}).items():
                sums = found.setdefault(name, {"open": 0, "givenUp": 0})
                for kind in sums:
                    sums[kind] += counts.get(kind, 0)
        return found

    # -- small parts

    def _leaders(self, topic: str) -> dict[str, str]:
        names = self._instance.routes.brokers(topic)
        asked = [name for name in names if self._only is None or name in self._only]
        return {name: self._leader(name) for name in asked}

    async def _of_topic(self, topic: str, code: RequestCode) -> list[RemotingCommand]:
        """Ask every broker group that has a part of the topic."""
        await self.route(topic)
        ext = TopicHeader(topic).to_ext()
        return [*(await self._of_each(self._leaders(topic), code, ext)).values()]


def _registered_leaders(info: ClusterInfo) -> dict[str, str]:
    return {
        name: data.broker_addrs[MASTER_ID]
        for name, data in sorted(info.broker_addr_table.items())
        if MASTER_ID in data.broker_addrs
    }
