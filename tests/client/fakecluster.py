"""
A tiny cluster on loopback for tests of the SDK: one process acts as name server and broker.

It speaks the real codecs over real sockets and has the protocol's difficulties: held long polls, locks with
leases and epochs, lost answers, reset connections, queues that move.
It answers unknown requests with code 3. Faults are scripted per request code.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from orderlymq_protocol import names
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.catalogue import (
    BrokerData,
    ClusterInfo,
    ConsumerIdList,
    HeartbeatData,
    KVTable,
    LockBatchRequest,
    QueueData,
    TopicList,
    TopicRouteData,
)
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_protocol.header.catalogue import PullMessageHeader, SendMessageHeader
from orderlymq_protocol.message import properties, sysflag
from orderlymq_protocol.message.batch import read_batch
from orderlymq_protocol.message.ids import encode_offset_message_id
from orderlymq_protocol.message.record import StoredMessage
from orderlymq_protocol.message.tags import TagFilter
from orderlymq_runtime.remoting.connection import Connection
from orderlymq_runtime.remoting.server import RemotingServer
from tests.protocol.records import encode_record

BROKER = "broker-a"


@dataclass
class Held:
    """A pull that waits for a message."""

    conn: Connection
    command: RemotingCommand
    header: PullMessageHeader
    timer: asyncio.TimerHandle


@dataclass
class Lock:
    """The lock of a queue."""

    client_id: str
    epoch: int
    until: float


Fault = Callable[[RemotingCommand, Connection], RemotingCommand | None]


@dataclass
class FakeCluster:
    """The state and the request handler; `faults[code]` is a list of other reactions, used up one by one.

    Attributes:
        declared: the queue lists of ORDER_TOPIC_CONFIG; broker groups in them other than `BROKER` are away.
    """

    ordered: bool = False
    declared: dict[str, str] = field(default_factory=dict)
    topics: dict[str, int] = field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int = 0
    logs: dict[tuple[str, int], list[StoredMessage]] = field(
        default_factory=lambda: defaultdict(list)
    )
    trimmed: dict[tuple[str, int], int] = field(default_factory=dict)
    offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)
    locks: dict[tuple[str, MessageQueue], Lock] = field(default_factory=dict)
    epochs: dict[tuple[str, MessageQueue], int] = field(default_factory=lambda: defaultdict(int))
    members: dict[str, dict[str, Connection]] = field(default_factory=lambda: defaultdict(dict))
    heartbeats: list[HeartbeatData] = field(default_factory=list)
    seen: list[RemotingCommand] = field(default_factory=list)
    faults: dict[int, list[Fault]] = field(default_factory=lambda: defaultdict(list))
    dedup: dict[str, RemotingCommand] = field(default_factory=dict)
    held: list[Held] = field(default_factory=list)
    physical: dict[int, StoredMessage] = field(default_factory=dict)
    answers: list[RemotingCommand] = field(default_factory=list)
    connections: set[Connection] = field(default_factory=set)

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def codes(self) -> list[int]:
        """Return the codes of all requests in their order."""
        return [command.code for command in self.seen]

    def bodies(self, topic: str, queue_id: int) -> list[bytes]:
        """Return the bodies stored in a queue."""
        return [message.body for message in self.logs[topic, queue_id]]

    def notify(self, group: str) -> None:
        """Notify the members of a change (40)."""
        for conn in self.members[group].values():
            conn.send(
                request(
                    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group}, oneway=True
                )
            )

    # FrameHandler.

    def connection_made(self, conn: Connection) -> None:
        self.connections.add(conn)

    def connection_lost(self, conn: Connection) -> None:
        self.connections.discard(conn)
        self.held = [each for each in self.held if each.conn is not conn]
        for group in self.members.values():
            for client_id in [name for name, each in group.items() if each is conn]:
                del group[client_id]

    def received(self, conn: Connection, command: RemotingCommand) -> None:
        if command.is_response:
            self.answers.append(command)
            return
        self.seen.append(command)
        faults = self.faults[command.code]
        fault = faults.pop(0) if faults else self.serve
        answer = fault(command, conn)
        if answer is not None and not command.is_oneway:
            conn.send(answer)

    def serve(self, command: RemotingCommand, conn: Connection) -> RemotingCommand | None:
        """Answer as a broker and a name server in one."""
        handler = _HANDLERS.get(command.code)
        if handler is None:
            return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="not in the fake")
        return handler(self, command, conn)

    # name server

    def _route(self, command: RemotingCommand, _conn: Connection) -> RemotingCommand:
        topic = command.ext["topic"]
        if topic not in self.topics:
            return command.reply(
                ResponseCode.TOPIC_NOT_EXIST, remark=f"No topic route info {topic}"
            )
        count = self.topics[topic]
        data = TopicRouteData(
            (QueueData(BROKER, count, count, 7 if topic == "TBW102" else 6),),
            (BrokerData("fake", BROKER, {0: self.address}),),
            f"{BROKER}:{count}" if self.ordered else self.declared.get(topic),
        )
        return command.reply(body=data.to_json())

    def _cluster_info(self, command: RemotingCommand, _conn: Connection) -> RemotingCommand:
        table = {BROKER: BrokerData("fake", BROKER, {0: self.address})}
        return command.reply(body=ClusterInfo(table, {"fake": (BROKER,)}).to_json())

    def _topic_list(self, command: RemotingCommand, _conn: Connection) -> RemotingCommand:
        return command.reply(body=TopicList(tuple(self.topics)).to_json())

    def _list_declared(self, command: RemotingCommand, _conn: Connection) -> RemotingCommand:
        if not self.declared:
            return command.reply(ResponseCode.QUERY_NOT_FOUND, remark="no such namespace")
        return command.reply(body=KVTable(self.declared).to_json())

    def _declare(self, command: RemotingCommand, _conn: Connection) -> RemotingCommand:
        self.declared[command.ext["key"]] = command.ext["value"]
        return command.reply()

    def _forget(self, command: RemotingCommand, _conn: Connection) -> RemotingCommand:
        self.declared.pop(command.ext.get("key", ""), None)
        self.topics.pop(command.ext.get("topic", ""), None)
        return command.reply()

    def _create_topic(self, command: RemotingCommand, _conn: Connection) -> RemotingCommand:
        self.topics[command.ext["topic"]] = int(command.ext["writeQueueNums"])
        return command.reply()

    # sends

    def _send(self, command: RemotingCommand, _conn: Connection) -> RemotingCommand:
        header = SendMessageHeader.from_request(command.code, command.ext)
        topic = header.topic
        if names.is_retry_topic(topic) and header.reconsume_times >= (
            16 if header.max_reconsume_times is None else header.max_reconsume_times
        ):
            topic = names.dlq_topic(topic.removeprefix(names.RETRY_PREFIX))
            self.topics.setdefault(topic, 1)
        if topic not in self.topics:
            if "TBW102" not in self.topics and not names.is_retry_topic(topic):
                return command.reply(
                    ResponseCode.TOPIC_NOT_EXIST, remark=f"topic[{topic}] not exist"
                )
            self.topics[topic] = min(header.default_topic_queue_nums, 4)
        if not 0 <= header.queue_id < self.topics[topic]:
            return command.reply(ResponseCode.SYSTEM_ERROR, remark="request queueId is illegal")
        raw = header.properties.encode()
        entries = list(read_batch(command.body)) if header.batch else []
        own = entries[0].properties if entries else raw
        unique = properties.find_property(own, properties.UNIQ_KEY) or ""
        keyed = properties.find_property(own, properties.SHARDING_KEY) is not None
        place = "" if keyed else header.queue_id
        dedup_key = f"{topic}|{unique}|{header.reconsume_times}|{place}"
        if self.ordered and dedup_key in self.dedup:
            first = self.dedup[dedup_key]
            return command.reply(first.code, first.ext)
        if header.batch:
            base = len(self.logs[topic, header.queue_id])
            # As in RocketMQ, the batch's properties follow those of each message, and win.
            ids = [
                self.append(
                    topic,
                    header.queue_id,
                    entry.body,
                    entry.properties + raw,
                    flag=entry.flag,
                )
                for entry in entries
            ]
            ext = {
                "msgId": ",".join(ids),
                "queueId": str(header.queue_id),
                "queueOffset": str(base),
            }
        else:
            offset = len(self.logs[topic, header.queue_id])
            message_id = self.append(
                topic,
                header.queue_id,
                command.body,
                raw,
                flag=header.flag,
                sys_flag=header.sys_flag,
                reconsume_times=header.reconsume_times,
            )
            ext = {
                "msgId": message_id,
                "queueId": str(header.queue_id),
                "queueOffset": str(offset),
            }
        answer = command.reply(0, ext)
        self.dedup[dedup_key] = answer
        return answer

    def append(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        raw_properties: bytes = b"",
        *,
        flag: int = 0,
        sys_flag: int = 0,
        reconsume_times: int = 0,
    ) -> str:
        """Store a message as a leader would and wake the pulls that wait for it."""
        self.topics.setdefault(topic, queue_id + 1)
        physical = 1000 + 100 * len(self.physical)
        log = self.logs[topic, queue_id]
        now_ms = time.time_ns() // 1_000_000
        message = StoredMessage(
            topic=topic,
            queue_id=queue_id,
            flag=flag,
            queue_offset=len(log),
            physical_offset=physical,
            sys_flag=sys_flag,
            born_timestamp=now_ms,
            born_host=("127.0.0.1", 1),
            store_timestamp=now_ms,
            store_host=(self.host, self.port),
            reconsume_times=reconsume_times,
            prepared_transaction_offset=0,
            body=body,
            properties=raw_properties,
            body_crc=0,
        )
        log.append(message)
        self.physical[physical] = message
        for held in list(self.held):
            if (held.header.topic, held.header.queue_id) == (topic, queue_id):
                self._release(held)
        return encode_offset_message_id(self.host, self.port, physical)

    def _send_back(self, command: RemotingCommand, _conn: Connection) -> RemotingCommand:
        message = self.physical[int(command.ext["offset"])]
        group = command.ext["group"]
        level = int(command.ext["delayLevel"])
        dead = level < 0 or message.reconsume_times >= int(command.ext["maxReconsumeTimes"])
        topic = names.dlq_topic(group) if dead else names.retry_topic(group)
        raw = message.properties
        if properties.find_property(raw, properties.RETRY_TOPIC) is None:
            raw = properties.append_property(raw, properties.RETRY_TOPIC, message.topic)
        self.topics.setdefault(topic, 1)
        self.append(
            topic,
            0,
            message.body,
            raw,
            sys_flag=message.sys_flag,
            reconsume_times=message.reconsume_times + 1,
        )
        return command.reply()

    # pulls

    def _pull(self, command: RemotingCommand, conn: Connection) -> RemotingCommand | None:
        header = PullMessageHeader.from_ext(command.ext)
        queue = MessageQueue(header.topic, BROKER, header.queue_id)
        client_id = command.ext.get("omqClientId", "")
        lock = self.locks.get((header.consumer_group, queue))
        if lock is not None and lock.client_id != client_id and lock.until > time.monotonic():
            return command.reply(
                ResponseCode.SYSTEM_ERROR, remark=f"the queue is locked by {lock.client_id}"
            )
        if header.sys_flag & sysflag.PULL_COMMIT_OFFSET:
            self.offsets[header.consumer_group, header.topic, header.queue_id] = (
                header.commit_offset
            )
        answer = self._try_pull(command, header)
        if answer.code == ResponseCode.PULL_NOT_FOUND and header.sys_flag & sysflag.PULL_SUSPEND:
            held = Held(conn, command, header, None)  # type: ignore[arg-type]  # set in the next line
            held.timer = asyncio.get_running_loop().call_later(
                header.suspend_timeout_millis / 1000, self._release, held
            )
            self.held.append(held)
            return None
        return answer

    def _release(self, held: Held) -> None:
        if held in self.held:
            self.held.remove(held)
            held.timer.cancel()
            held.conn.send(self._try_pull(held.command, held.header))

    def _try_pull(self, command: RemotingCommand, header: PullMessageHeader) -> RemotingCommand:
        log = self.logs[header.topic, header.queue_id]
        low = self.trimmed.get((header.topic, header.queue_id), 0)
        offset = header.queue_offset
        if offset < low:
            return self._pull_reply(command, ResponseCode.PULL_OFFSET_MOVED, low, low, len(log))
        if offset > len(log):
            return self._pull_reply(
                command, ResponseCode.PULL_OFFSET_MOVED, len(log), low, len(log)
            )
        found = log[offset : offset + header.max_msg_nums]
        if not found:
            return self._pull_reply(command, ResponseCode.PULL_NOT_FOUND, offset, low, len(log))
        tags = TagFilter.parse(header.subscription)
        wanted = [
            message
            for message in found
            if tags.matches_tag(properties.find_property(message.properties, properties.TAGS))
        ]
        following = offset + len(found)
        if not wanted:
            return self._pull_reply(
                command, ResponseCode.PULL_RETRY_IMMEDIATELY, following, low, len(log)
            )
        body = b"".join(encode_record(message) for message in wanted)
        return self._pull_reply(command, ResponseCode.SUCCESS, following, low, len(log), body)

    def _pull_reply(
        self,
        command: RemotingCommand,
        code: int,
        following: int,
        low: int,
        high: int,
        body: bytes = b"",
    ) -> RemotingCommand:
        ext = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(following),
            "minOffset": str(low),
            "maxOffset": str(high),
        }
        return command.reply(code, ext, body)

    # offsets

    def _query_offset(self, command: RemotingCommand, _conn: Connection) -> RemotingCommand:
        ext = command.ext
        key = ext["consumerGroup"], ext["topic"], int(ext["queueId"])
        if key not in self.offsets:
            return command.reply(ResponseCode.QUERY_NOT_FOUND, remark="Not found")
        return command.reply(0, {"offset": str(self.offsets[key])})

    def _commit(self, command: RemotingCommand, _conn: Connection) -> RemotingCommand:
        ext = command.ext
        key = ext["consumerGroup"], ext["topic"], int(ext["queueId"])
        lock = self.locks.get((key[0], MessageQueue(key[1], BROKER, key[2])))
        if lock is not None and lock.client_id != ext.get("omqClientId"):
            return command.reply(ResponseCode.SYSTEM_ERROR, remark="not the holder")
        self.offsets[key] = int(ext["commitOffset"])
        return command.reply()

    def _max_offset(self, command: RemotingCommand, _conn: Connection) -> RemotingCommand:
        log = self.logs[command.ext["topic"], int(command.ext["queueId"])]
        return command.reply(0, {"offset": str(len(log))})

    def _min_offset(self, command: RemotingCommand, _conn: Connection) -> RemotingCommand:
        key = command.ext["topic"], int(command.ext["queueId"])
        return command.reply(0, {"offset": str(self.trimmed.get(key, 0))})

    def _search_offset(self, command: RemotingCommand, _conn: Connection) -> RemotingCommand:
        log = self.logs[command.ext["topic"], int(command.ext["queueId"])]
        when = int(command.ext["timestamp"])
        found = next((m.queue_offset for m in log if m.store_timestamp >= when), len(log))
        return command.reply(0, {"offset": str(found)})

    def _view(self, command: RemotingCommand, _conn: Connection) -> RemotingCommand:
        message = self.physical.get(int(command.ext["offset"]))
        if message is None:
            return command.reply(1, remark="can not find message by the offset")
        return command.reply(body=encode_record(message))

    def _query(self, command: RemotingCommand, _conn: Connection) -> RemotingCommand:
        found = b""
        for each in self.physical.values():
            key = properties.find_property(each.properties, properties.UNIQ_KEY)
            if (each.topic, key) == (command.ext["topic"], command.ext["key"]):
                found += encode_record(each)
        return command.reply(0 if found else ResponseCode.QUERY_NOT_FOUND, body=found)

    # groups

    def _heartbeat(self, command: RemotingCommand, conn: Connection) -> RemotingCommand:
        data = HeartbeatData.from_json(command.body)
        self.heartbeats.append(data)
        for consumer in data.consumer_data_set:
            group = consumer.group_name
            fresh = data.client_id not in self.members[group]
            self.members[group][data.client_id] = conn
            self.topics.setdefault(names.retry_topic(group), 1)
            if fresh:
                self.notify(group)
        return command.reply()

    def _unregister(self, command: RemotingCommand, _conn: Connection) -> RemotingCommand:
        group = command.ext.get("consumerGroup")
        if group is not None:
            client_id = command.ext["clientID"]
            self.members[group].pop(client_id, None)
            for key in [key for key, lock in self.locks.items() if lock.client_id == client_id]:
                if key[0] == group:
                    del self.locks[key]
            self.notify(group)
        return command.reply()

    def _member_list(self, command: RemotingCommand, _conn: Connection) -> RemotingCommand:
        found = tuple(self.members[command.ext["consumerGroup"]])
        return command.reply(body=ConsumerIdList(found).to_json())

    # locks

    def _lock(self, command: RemotingCommand, _conn: Connection) -> RemotingCommand:
        asked = LockBatchRequest.from_json(command.body)
        granted, epochs = [], []
        now = time.monotonic()
        for queue in asked.queues:
            key = asked.consumer_group, queue
            lock = self.locks.get(key)
            if lock is not None and lock.client_id != asked.client_id and lock.until > now:
                continue
            if lock is None or lock.client_id != asked.client_id:
                self.epochs[key] += 1
            until = now + (asked.lease_ms or 60_000) / 1000
            self.locks[key] = Lock(asked.client_id, self.epochs[key], until)
            granted.append(queue)
            epochs.append(self.epochs[key])
        return command.reply(
            body=fastjson.dumps({"lockOKMQSet": granted_json(granted), "epochs": epochs})
        )

    def _unlock(self, command: RemotingCommand, _conn: Connection) -> RemotingCommand:
        asked = LockBatchRequest.from_json(command.body)
        for queue in asked.queues:
            lock = self.locks.get((asked.consumer_group, queue))
            if lock is not None and lock.client_id == asked.client_id:
                del self.locks[asked.consumer_group, queue]
        self.notify(asked.consumer_group)
        return command.reply()

    def _hold_key(self, command: RemotingCommand, _conn: Connection) -> RemotingCommand:
        return command.reply(ext={"verdict": "continue"})


def granted_json(queues: list[MessageQueue]) -> list[dict[str, object]]:
    """Return queues as JSON objects."""
    return [queue.to_json_value() for queue in queues]


_HANDLERS: dict[
    int, Callable[[FakeCluster, RemotingCommand, Connection], RemotingCommand | None]
] = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: FakeCluster._route,
    RequestCode.GET_BROKER_CLUSTER_INFO: FakeCluster._cluster_info,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: FakeCluster._topic_list,
    RequestCode.GET_KVLIST_BY_NAMESPACE: FakeCluster._list_declared,
    RequestCode.PUT_KV_CONFIG: FakeCluster._declare,
    RequestCode.DELETE_KV_CONFIG: FakeCluster._forget,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: FakeCluster._forget,
    RequestCode.UPDATE_AND_CREATE_TOPIC: FakeCluster._create_topic,
    RequestCode.SEND_MESSAGE_V2: FakeCluster._send,
    RequestCode.SEND_BATCH_MESSAGE: FakeCluster._send,
    RequestCode.CONSUMER_SEND_MSG_BACK: FakeCluster._send_back,
    RequestCode.PULL_MESSAGE: FakeCluster._pull,
    RequestCode.LITE_PULL_MESSAGE: FakeCluster._pull,
    RequestCode.QUERY_CONSUMER_OFFSET: FakeCluster._query_offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: FakeCluster._commit,
    RequestCode.GET_MAX_OFFSET: FakeCluster._max_offset,
    RequestCode.GET_MIN_OFFSET: FakeCluster._min_offset,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: FakeCluster._search_offset,
    RequestCode.VIEW_MESSAGE_BY_ID: FakeCluster._view,
    RequestCode.QUERY_MESSAGE: FakeCluster._query,
    RequestCode.HEART_BEAT: FakeCluster._heartbeat,
    RequestCode.UNREGISTER_CLIENT: FakeCluster._unregister,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: FakeCluster._member_list,
    RequestCode.LOCK_BATCH_MQ: FakeCluster._lock,
    RequestCode.UNLOCK_BATCH_MQ: FakeCluster._unlock,
    RequestCode.ORDERLYMQ_HOLD_KEY: FakeCluster._hold_key,
}


@asynccontextmanager
async def running(**attributes: object) -> AsyncIterator[FakeCluster]:
    """Run a fake cluster on a free port."""
    cluster = FakeCluster(**attributes)  # type: ignore[arg-type]  # the caller names its fields
    server = RemotingServer(cluster, linger_reset=True)
    cluster.host, cluster.port = await server.listen("127.0.0.1", 0)
    try:
        yield cluster
    finally:
        for held in cluster.held:
            held.timer.cancel()
        await server.close()


@asynccontextmanager
async def nobody() -> AsyncIterator[str]:
    """Accept connections and answer nothing, as a hanging process does; yield the address."""
    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0)
    try:
        yield "{}:{}".format(*server.sockets[0].getsockname())
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await server.wait_closed()


# -- faults


def refuse(code: int, remark: str = "refused by the test") -> Fault:
    """Answer with an error."""
    return lambda command, _conn: command.reply(code, remark=remark)


def silence(_command: RemotingCommand, _conn: Connection) -> None:
    """Do nothing and send no answer."""


def reset(_command: RemotingCommand, conn: Connection) -> None:
    """Reset the connection before the request is executed."""
    conn.close(orderly=False)


def serve_then_reset(cluster: FakeCluster) -> Fault:
    """Execute the request, but lose the answer with the connection."""

    def fault(command: RemotingCommand, conn: Connection) -> None:
        cluster.serve(command, conn)
        conn.close(orderly=False)

    return fault
