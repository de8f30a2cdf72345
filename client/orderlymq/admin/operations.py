"""
Requests of an administrator besides topics, groups and messages: settings, figures, clients, KV configuration.

Rules: each method is one request of RocketMQ's protocol; it returns the answer unchanged, under the protocol's own
names. A request about all broker groups goes to each leader; one about data that each name server keeps for itself
goes to each name server. ``AdminClient`` has all of these.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from orderlymq.admin.answers import Expansions, ParkedTable, Subscription
from orderlymq.admin.calls import AdminCalls
from orderlymq.admin.messageplace import find_message
from orderlymq.admin.queuelists import check_present, kv_table
from orderlymq.connection.instance import ClientInstance, unless_refused
from orderlymq.consumer.group.requests import commit_request
from orderlymq.errors import BrokerError, BrokerUnreachable
from orderlymq.message import ReceivedMessage
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.clients import (
    ConsumeDirectlyResult,
    OffsetTable,
    ProducerConnection,
    SubscriptionData,
)
from orderlymq_protocol.body.config import KVTable, TopicList
from orderlymq_protocol.body.javaproperties import java_properties
from orderlymq_protocol.body.lanes import BY_KEY, BY_QUEUE, LaneTable
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.body.stats import (
    BrokerStatsData,
    ConsumeQueueData,
    ConsumeQueueView,
    ConsumeTimeSpan,
    QueueTimeSpan,
)
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.header.catalogue import (
    BrokerNameHeader,
    CloneGroupOffsetHeader,
    ConsumeMessageDirectlyHeader,
    GetConsumerRunningInfoHeader,
    GetProducerConnectionListHeader,
    GroupHeader,
    KVKeyHeader,
    PutKVConfigHeader,
    QueryConsumeQueueHeader,
    QueueHeader,
    ResumeCheckHalfMessageHeader,
    SearchOffsetHeader,
    TopicOfGroupHeader,
    ViewBrokerStatsDataHeader,
)
from orderlymq_protocol.header.lanes import LanesHeader
from orderlymq_protocol.message.properties import SHARDING_KEY

_CHANGE_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class ParkedKey:
    """A key whose messages go to the dead letters until it is released.

    Attributes:
        queue: the queue in which its message failed.
        since_ms: when it was parked, ms since the epoch.
        first_offset: queue offset of the message that failed.
        first_message_id: id of that message.
        behind: messages that followed it into the dead letters.
    """

    queue: MessageQueue
    key: str
    since_ms: int
    first_offset: int
    first_message_id: str
    behind: int


class Operations(AdminCalls):
    """Requests of administrators."""

    # -- keys that are parked behind a dead letter (ours)

    async def parked_keys(self, group: str) -> list[ParkedKey]:
        """Return the keys that a group has parked (`onDeadLetter: HoldKey`), the oldest first."""
        answers = await self._of_all(RequestCode.ORDERLYMQ_PARKED_KEYS, {"consumerGroup": group})
        found = [each for answer in answers for each in _read_parked(answer.body)]
        return sorted(found, key=lambda each: (each.since_ms, each.queue, each.key))

    async def release_key(
        self,
        group: str,
        topic: str,
        key: str,
        *,
        skip: bool = False,
        at: tuple[MessageQueue, int] | None = None,
    ) -> list[ParkedKey]:
        """Release a key in every queue; return the released entries.

        The group consumes the key's messages from now on; those that went to the dead letters meanwhile stay there
        until they are sent again. A group by key gets the failed message again; with *skip* that message becomes a
        dead letter, and the lane continues behind it.

        *at* is the queue and the first offset that the caller has seen: a key that is parked elsewhere
        by now stays parked.

        Raises:
            BrokerError: No broker knows the group (26).
        """
        ext = {"consumerGroup": group, "topic": topic, "key": key}
        if skip:
            ext["action"] = "skip"
        if at is None:
            answers = await self._of_knowing(RequestCode.ORDERLYMQ_RELEASE_KEY, ext)
        else:
            queue, offset = at
            ext |= {"queueId": str(queue.queue_id), "firstOffset": str(offset)}
            await self._instance.route(queue.topic, keep=False)
            address = self._leader(queue.broker_name)
            answers = [await self._instance.call(address, RequestCode.ORDERLYMQ_RELEASE_KEY, ext)]
        return [each for answer in answers for each in _read_parked(answer.body)]

    async def lanes(
        self, group: str, topic: str | None = None, key: str | None = None
    ) -> LaneTable:
        """Return the lanes of a group by key: figures of each queue, and the lanes in trouble.

        Each broker names at most 256 lanes; with *key* it names those of that key, in any state. `concurrency` is Key
        if one broker reports that.

        Raises:
            BrokerError: No broker knows the group (26), or a broker knows no lanes (3).
        """
        ext = LanesHeader(group, topic, key).to_ext()
        answers = await self._of_knowing(RequestCode.ORDERLYMQ_LANES, ext)
        tables = [LaneTable.from_json(answer.body) for answer in answers]
        return LaneTable(
            BY_KEY if any(each.concurrency == BY_KEY for each in tables) else BY_QUEUE,
            tuple(row for each in tables for row in each.queues),
            tuple(row for each in tables for row in each.lanes),
            next((t.lane_key_property for t in tables if t.concurrency == BY_KEY), SHARDING_KEY),
        )

    # -- transactions

    async def check_transaction(self, message_id: str) -> None:
        """Make the broker ask a producer again about an open transaction, as if it had never asked.

        Args:
            message_id: offset id of the half message, or of its copy in TRANS_CHECK_MAX_TIME_TOPIC.

        Raises:
            SettingError: The text is not an offset id.
            BrokerError: The message is not a half message, or its transaction has ended.
        """
        brokers = await self.brokers()
        address, _ = await find_message(self._instance, message_id, brokers.values())
        header = ResumeCheckHalfMessageHeader(msg_id=message_id)
        code = RequestCode.RESUME_CHECK_HALF_MESSAGE
        await self._instance.call(address, code, header.to_ext())

    # -- replicas and leaders

    async def transfer_leadership(self, address: str, target: int | None = None) -> None:
        """Move the leadership of the broker group at *address* to a node, or to the best one."""
        ext = {} if target is None else {"target": str(target)}
        await self._instance.call(
            address, RequestCode.ORDERLYMQ_TRANSFER_LEADERSHIP, ext, timeout_s=10.0
        )

    async def change_membership(
        self, address: str, *, action: str, node: int, node_address: str | None = None
    ) -> None:
        """Change the replicas of the broker group: action is add-learner, promote or remove."""
        body: dict[str, object] = {"action": action, "node": node}
        if node_address is not None:
            body["address"] = node_address
        await self._instance.call(
            address,
            RequestCode.ORDERLYMQ_CHANGE_MEMBERSHIP,
            {},
            fastjson.dumps(body),
            timeout_s=10.0,
        )

    async def client_dead(self, address: str, client_id: str, proof: str) -> None:
        """Report to a broker group that a client is proven dead; its locks are then free immediately."""
        ext = {"clientId": client_id, "proof": proof}
        await self._instance.call(address, RequestCode.ORDERLYMQ_CLIENT_DEAD, ext)

    # -- settings and figures of brokers and name servers

    async def broker_config(self, address: str) -> dict[str, str]:
        """Return the settings of a broker under RocketMQ's names."""
        answer = await self._instance.call(address, RequestCode.GET_BROKER_CONFIG)
        return java_properties(answer.body.decode())

    async def update_broker_config(self, address: str, values: Mapping[str, str]) -> None:
        """Change settings of a running broker group.

        Raises:
            BrokerError: A name is unknown to the broker or a value is out of range; the text says which.
        """
        await self._instance.call(
            address, RequestCode.UPDATE_BROKER_CONFIG, {}, _written_config(values)
        )

    async def name_server_config(self) -> dict[str, dict[str, str]]:
        """Return the settings of each name server by its address."""
        return {
            address: java_properties(
                (await self._instance.call(address, RequestCode.GET_NAMESRV_CONFIG)).body.decode()
            )
            for address in self._instance.name_servers
        }

    async def update_name_server_config(self, values: Mapping[str, str]) -> None:
        """Change settings of every name server."""
        code = RequestCode.UPDATE_NAMESRV_CONFIG
        await self._tell_name_servers(code, {}, _written_config(values))

    async def broker_runtime(self, address: str) -> dict[str, str]:
        """Return the figures of a broker as mqadmin's brokerStatus shows them."""
        answer = await self._instance.call(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return dict(KVTable.from_json(answer.body).table)

    async def broker_stats(self, address: str, name: str, key: str) -> BrokerStatsData:
        """Return the rates of one counter: name such as TOPIC_PUT_NUMS, key such as a topic."""
        ext = ViewBrokerStatsDataHeader(name, key).to_ext()
        answer = await self._instance.call(address, RequestCode.VIEW_BROKER_STATS_DATA, ext)
        return BrokerStatsData.from_json(answer.body)

    async def wipe_write_permission(self, broker: str) -> int:
        """Let no new message be sent to a broker group; return the number of affected topics.

        Ordered topics stay as they are: keys are hashed over their whole list of queues.
        """
        return await self._set_writable(RequestCode.WIPE_WRITE_PERM_OF_BROKER, broker)

    async def add_write_permission(self, broker: str) -> int:
        """Undo `wipe_write_permission`; return the number of affected topics."""
        return await self._set_writable(RequestCode.ADD_WRITE_PERM_OF_BROKER, broker)

    async def delete_expired(self, address: str) -> None:
        """Make retention delete the messages that are old enough immediately."""
        for code in (RequestCode.DELETE_EXPIRED_COMMITLOG, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE):
            await self._instance.call(address, code)

    # -- KV configuration, kept by every name server for itself

    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Set one value of a namespace of the name servers' KV configuration."""
        await self._tell_name_servers(
            RequestCode.PUT_KV_CONFIG, PutKVConfigHeader(namespace, key, value).to_ext()
        )

    async def delete_kv(self, namespace: str, key: str) -> None:
        """Remove one value."""
        await self._tell_name_servers(
            RequestCode.DELETE_KV_CONFIG, KVKeyHeader(namespace, key).to_ext()
        )

    async def get_kv(self, namespace: str, key: str) -> str | None:
        """Return one value, None if there is none."""
        ext = KVKeyHeader(namespace, key).to_ext()
        asked = self._instance.call(self._instance.name_servers[0], RequestCode.GET_KV_CONFIG, ext)
        answer = await unless_refused(asked, None, ResponseCode.QUERY_NOT_FOUND)
        return None if answer is None else answer.ext.get("value")

    async def list_kv(self, namespace: str) -> dict[str, str]:
        """Return all values of a namespace."""
        first = self._instance.name_servers[0]
        return dict(await kv_table(self._instance, first, namespace))

    # -- clients

    async def producers(self, group: str) -> list[ProducerConnection]:
        """Return what each broker group knows about the connections of a producer group."""
        ext = GetProducerConnectionListHeader(group).to_ext()
        # With this code a broker reports that no member of the group is connected to it.
        absent = ResponseCode.SYSTEM_ERROR
        answers = await self._of_all(RequestCode.GET_PRODUCER_CONNECTION_LIST, ext, absent=absent)
        return [ProducerConnection.from_json(answer.body) for answer in answers]

    async def running_info(
        self, group: str, client_id: str, *, stacks: bool = False
    ) -> dict[str, Any]:
        """Return the report of a consumer about itself: queues, offsets, rates, and its threads if requested.

        Raises:
            BrokerError: No broker knows the client, or it does not answer.
        """
        ext = GetConsumerRunningInfoHeader(group, client_id, stacks).to_ext()
        answer = await self._of_any_broker(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
        found = fastjson.loads(answer)
        if not isinstance(found, dict):
            raise BrokerError(0, "the client's report about itself is not a JSON object")
        return found

    async def consume_directly(
        self, group: str, client_id: str, message: ReceivedMessage
    ) -> ConsumeDirectlyResult:
        """Have one consumer consume one message now, outside the order; offsets stay as they are.

        Raises:
            BrokerError: The client is not connected, or does not answer.
        """
        ext = ConsumeMessageDirectlyHeader(group, client_id, message.offset_message_id).to_ext()
        return ConsumeDirectlyResult.from_json(
            await self._of_any_broker(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext)
        )

    # -- groups and their offsets

    async def topics_of_group(self, group: str) -> list[str]:
        """Return the topics in which a consumer group has committed an offset."""
        ext = GroupHeader(group).to_ext()
        answers = await self._of_knowing(RequestCode.QUERY_TOPICS_BY_CONSUMER, ext)
        return sorted({t for each in answers for t in TopicList.from_json(each.body).topic_list})

    async def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """Return the subscription of a consumer group's members to a topic, None if no member has one.

        Raises:
            BrokerError: No broker knows the group (26).
            BrokerUnreachable: A broker does not answer, and no other broker knows the subscription.
        """
        ext = TopicOfGroupHeader(topic, group).to_ext()
        code = RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER
        failure: BrokerError | BrokerUnreachable | None = None
        is_known = False
        for address in (await self.brokers()).values():
            try:
                answer = await self._instance.call(address, code, ext)
            except BrokerUnreachable as error:
                failure = error
                continue
            except BrokerError as error:
                if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                    raise
                failure = failure or error
                continue
            data = Subscription.from_json(answer.body).subscription_data
            if data is not None:
                return data
            is_known = True
        if failure is not None and not (is_known and isinstance(failure, BrokerError)):
            raise failure
        return None

    async def clone_offsets(self, source: str, target: str, topic: str) -> None:
        """Give an offline consumer group the offsets of another.

        Raises:
            TopicNotFound: No broker has the topic.
            BrokerUnreachable: A broker group is away; nothing was changed.
            BrokerError: No broker group of the topic knows the source (26).
        """
        check_present(await self.absent_groups(), ())
        await self._instance.route(topic, keep=False)
        ext = CloneGroupOffsetHeader(source, target, topic, offline=True).to_ext()
        await self._of_knowing(RequestCode.CLONE_GROUP_OFFSET, ext, self._leaders(topic))

    async def set_offsets(
        self, group: str, topic: str, targets: Mapping[MessageQueue, int]
    ) -> None:
        """Move a consumer group to exactly these offsets of queues of a topic; its other queues stay.

        Members that are online are notified and continue there; an offline group's offsets are set.

        Raises:
            TopicNotFound: No broker has the topic.
            BrokerError: An offset is outside of its queue; nothing was changed in its broker group.
        """
        await self._instance.route(topic, refresh=True, keep=False)
        ext = {"topic": topic, "group": group, "isForce": "true"}
        for name in sorted({queue.broker_name for queue in targets}):
            table = {queue: at for queue, at in targets.items() if queue.broker_name == name}
            code, body = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, OffsetTable(table).to_json()
            asked = self._instance.call(
                self._leader(name), code, ext, body, timeout_s=_CHANGE_TIMEOUT_S
            )
            if await unless_refused(asked, None, ResponseCode.CONSUMER_NOT_ONLINE) is None:
                await self._set_offline(group, table)

    async def consume_time_span(self, topic: str, group: str) -> list[QueueTimeSpan]:
        """Return for each queue when its oldest, newest and last consumed messages were stored."""
        ext = TopicOfGroupHeader(topic, group).to_ext()
        await self._instance.route(topic, keep=False)
        leaders = self._leaders(topic)
        answers = (await self._of_each(leaders, RequestCode.QUERY_CONSUME_TIME_SPAN, ext)).values()
        spans = (ConsumeTimeSpan.from_json(answer.body) for answer in answers)
        return [queue for span in spans for queue in span.consume_time_span_set]

    # -- queues

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the queue's next message will get."""
        ext = QueueHeader(queue.topic, queue.queue_id).to_ext()
        return await self._number_of(queue, RequestCode.GET_MAX_OFFSET, ext)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the first offset that is kept."""
        ext = QueueHeader(queue.topic, queue.queue_id).to_ext()
        return await self._number_of(queue, RequestCode.GET_MIN_OFFSET, ext)

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset for a store time; the last one if all messages are older."""
        ext = SearchOffsetHeader(queue.topic, queue.queue_id, timestamp_ms).to_ext()
        return await self._number_of(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext)

    async def earliest_store_time(self, queue: MessageQueue) -> int:
        """Return when the queue's first message was stored, milliseconds since the epoch; -1 if there is none."""
        ext = QueueHeader(queue.topic, queue.queue_id).to_ext()
        code = RequestCode.GET_EARLIEST_MSG_STORETIME
        return await self._number_of(queue, code, ext, "timestamp")

    async def consume_queue(
        self, queue: MessageQueue, index: int = 0, count: int = 10, group: str | None = None
    ) -> tuple[ConsumeQueueData, ...]:
        """Return entries of a consume queue; with *group* also whether its subscription accepts them."""
        ext = QueryConsumeQueueHeader(queue.topic, queue.queue_id, index, count, group).to_ext()
        answer = await self._instance.call(
            self._leader(queue.broker_name), RequestCode.QUERY_CONSUME_QUEUE, ext
        )
        return tuple(ConsumeQueueView.from_json(answer.body).queue_data)

    # -- parts

    async def _set_offline(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        for queue, offset in offsets.items():
            # Sent without the fields that name a client: a tool sets offsets, while a member only moves them forward.
            command = commit_request(group, queue, offset, {})
            await self._instance.call(
                self._leader(queue.broker_name), RequestCode(command.code), command.ext
            )

    async def _set_writable(self, code: RequestCode, broker: str) -> int:
        ext = BrokerNameHeader(broker).to_ext()
        counts = [0]
        for address in self._instance.name_servers:
            answer = await self._instance.call(address, code, ext)
            counts += [
                int(text) for name, text in answer.ext.items() if name.endswith("TopicCount")
            ]
        return max(counts)


def _written_config(values: Mapping[str, str]) -> bytes:
    return "".join(f"{name}={value}\n" for name, value in values.items()).encode()


def _read_parked(body: bytes) -> list[ParkedKey]:
    return [
        ParkedKey(
            MessageQueue(each.topic, each.broker_name, each.queue_id),
            each.key,
            each.since_millis,
            each.first_offset,
            each.first_message_id,
            each.behind,
        )
        for each in ParkedTable.from_json(body).parked_keys
    ]


async def topic_expansion(
    instance: ClientInstance, topic: str, only: Mapping[str, str] | None = None
) -> dict[str, dict[str, Any]]:
    """Return phase, barriers and blockers of a topic's queue expansion, by broker group; with *only* of some.

    Raises:
        TopicNotFound: No broker has it.
        BrokerError: A broker cannot report it.
    """
    await instance.route(topic, keep=False)
    found: dict[str, dict[str, Any]] = {}
    for name in instance.routes.brokers(topic):
        address = instance.routes.address(name)
        if address is None or (only is not None and name not in only):
            continue
        answer = await instance.call(
            address, RequestCode.ORDERLYMQ_QUEUE_EXPANSION, {"topics": topic}
        )
        for each in Expansions.from_json(answer.body).topics:
            if each.get("topic") == topic:
                found[name] = dict(each)
    return found
