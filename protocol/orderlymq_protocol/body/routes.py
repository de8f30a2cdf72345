"""
Bodies of the name server: routes, the cluster, and what a broker registers.

Rules: broker ids are quoted keys, and id "0", to which clients write, stands first. The order of lists is
the caller's and is kept, because some clients take "the n-th queue" without sorting. The member
`topicSynFlag` was renamed to `topicSysFlag` in 4.9.2, so both are written and either is read.
"""

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from struct import Struct
from typing import Any, Final

from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.config import (
    QUEUES_MAX,
    QueueNums,
    TopicConfig,
    TopicConfigTable,
)
from orderlymq_protocol.body.declaration import JsonModel, ModelError, wire_name
from orderlymq_protocol.integers import INT32_MAX, INT32_MIN, Int, read_integer

MASTER_ID: Final = 0

# As much as a frame may hold: a compressed registration says no more than a plain one could.
REGISTRATION_SIZE_MAX: Final = 16 * 1024 * 1024

# Reading this many takes a fifth of a second on the loop of the name server. RocketMQ's clusters have some thousands.
REGISTRATION_TOPICS_MAX: Final = 50_000

# Queues of one topic over all brokers: four times as many as an ordered topic may have.
ROUTE_QUEUES_MAX: Final = 65_536

_DIGITS_MAX: Final = 10  # of a number in a declaration, which is an int32

_INT32: Final = Struct(">i")


@dataclass(frozen=True, slots=True)
class QueueData(JsonModel):
    """The number of queues of a topic on one broker."""

    broker_name: str
    read_queue_nums: QueueNums = 0
    write_queue_nums: QueueNums = 0
    perm: Int = 0
    topic_sys_flag: Int = 0

    @classmethod
    def from_json_value(cls, value: object) -> "QueueData":
        """Read the object with either spelling of the flag."""
        if isinstance(value, Mapping) and "topicSysFlag" not in value:
            value = {**value, "topicSysFlag": value.get("topicSynFlag")}
        # Not plain super(), because slots=True makes another class than the one that super() would look up.
        return super(QueueData, cls).from_json_value(value)

    def to_json_value(self) -> dict[str, Any]:
        """Return the object with both spellings of the flag."""
        return {
            "brokerName": self.broker_name,
            "perm": self.perm,
            "readQueueNums": self.read_queue_nums,
            "topicSynFlag": self.topic_sys_flag,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }


def declared_queues(part: str) -> tuple[str, int | None]:
    """Return the broker group and the number of queues from a part of an order declaration, `broker-a:4`; None if it is no number.

    If the number is longer than RocketMQ's clients can read, the result only says that it is too large.
    """
    name, _, count = part.strip().rpartition(":")
    count = count.strip()
    if not count.isdecimal():
        return name, None
    digits = count.lstrip("0")
    return name, int(digits or "0") if len(digits) < _DIGITS_MAX else 10**_DIGITS_MAX


@dataclass(frozen=True, slots=True)
class BrokerData(JsonModel):
    """The addresses of a broker name by broker id; id 0 takes writes."""

    cluster: str
    broker_name: str
    broker_addrs: Mapping[int, str]

    def to_json_value(self) -> dict[str, Any]:
        """Return the object with quoted ids in rising order, so that id 0 comes first."""
        return {
            "brokerAddrs": {str(key): self.broker_addrs[key] for key in sorted(self.broker_addrs)},
            "brokerName": self.broker_name,
            "cluster": self.cluster,
            # RocketMQ 5 writes it; the Rust client accepts no route without it.
            "enableActingMaster": False,
        }


@dataclass(frozen=True, slots=True)
class TopicRouteData(JsonModel):
    """Where the queues of a topic are (code 105)."""

    queue_datas: tuple[QueueData, ...] = ()
    broker_datas: tuple[BrokerData, ...] = ()
    order_topic_conf: str | None = None
    filter_server_table: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def from_json_value(cls, value: object) -> "TopicRouteData":
        """Read a route; too many queues are refused, because a reader makes a list of all of them."""
        route = super(TopicRouteData, cls).from_json_value(value)
        queues = sum(max(each.read_queue_nums, each.write_queue_nums) for each in route.queue_datas)
        declared = map(declared_queues, (route.order_topic_conf or "").split(";"))
        queues = max(queues, sum(count or 0 for _, count in declared))
        if queues > ROUTE_QUEUES_MAX:
            raise ModelError(
                f"the route has {queues} queues, the limit is {ROUTE_QUEUES_MAX}; check which "
                "brokers register the topic"
            )
        return route


@dataclass(frozen=True, slots=True)
class ClusterInfo(JsonModel):
    """All brokers by name, and the broker names of each cluster (code 106)."""

    broker_addr_table: Mapping[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RegisterBrokerBody(JsonModel):
    """A broker's report to a name server (code 103): its topics, as plain JSON or compressed."""

    topics: TopicConfigTable = field(
        metadata=wire_name("topicConfigSerializeWrapper"), default_factory=TopicConfigTable
    )
    filter_server_list: tuple[str, ...] = ()

    def encode(self, *, compressed: bool = False) -> bytes:
        """Return the body of a registration; its `body_crc` goes into the header."""
        return _deflate(self) if compressed else self.to_json()

    @classmethod
    def decode(cls, body: bytes, *, compressed: bool) -> "RegisterBrokerBody":
        """Read the body of a registration; an empty one registers no topics.

        Raises:
            ModelError: The body is not what a broker registers.
            JsonError: The plain body is not JSON.
        """
        if not body:
            return cls()
        if compressed:
            return _inflate(body)
        value = fastjson.loads_standard(body)
        wrapper = value.get("topicConfigSerializeWrapper") if isinstance(value, Mapping) else None
        table = wrapper.get("topicConfigTable") if isinstance(wrapper, Mapping) else None
        _check_topics(len(table) if isinstance(table, Mapping) else 0)
        return cls.from_json_value(value)


def _deflate(body: RegisterBrokerBody) -> bytes:
    table = body.topics.topic_config_table
    parts = [_with_length(fastjson.dumps(body.topics.data_version)), _INT32.pack(len(table))]
    parts += (_with_length(_topic_line(topic)) for topic in table.values())
    parts.append(_with_length(fastjson.dumps(body.filter_server_list)))
    return zlib.compress(b"".join(parts))


def _inflate(body: bytes) -> RegisterBrokerBody:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, REGISTRATION_SIZE_MAX)
        if not inflater.eof:
            raise ModelError("the compressed registration is cut short or too large")
        version, at = _take(data, 0)
        (count,) = _INT32.unpack_from(data, at)
        at += 4
        _check_topics(count)
        table: dict[str, TopicConfig] = {}
        for _ in range(count):
            line, at = _take(data, at)
            topic = _parse_topic_line(line.decode())
            table[topic.topic_name] = topic
        servers, _ = _take(data, at)
    except (zlib.error, struct.error, UnicodeDecodeError) as error:
        raise ModelError(f"the compressed registration cannot be read: {error}") from error
    # In 5.x a description of static topics follows, which do not exist here.
    read = RegisterBrokerBody.from_json_value(
        {
            "topicConfigSerializeWrapper": {"dataVersion": fastjson.loads(version)},
            "filterServerList": fastjson.loads(servers),
        }
    )
    return replace(read, topics=replace(read.topics, topic_config_table=table))


def _check_topics(count: int) -> None:
    if count > REGISTRATION_TOPICS_MAX:
        raise ModelError(
            f"the registration has {count} topics, the limit is {REGISTRATION_TOPICS_MAX}; divide "
            "them over several broker groups"
        )


def _topic_line(topic: TopicConfig) -> bytes:
    return (
        f"{topic.topic_name} {topic.read_queue_nums} {topic.write_queue_nums}"
        f" {topic.perm} {topic.topic_filter_type}"
    ).encode()


def _parse_topic_line(line: str) -> TopicConfig:
    # 5.x appends the attributes as JSON.
    words = line.split(" ")
    try:
        name, read, write, perm, filter_type = words[:5]
        return TopicConfig(
            name,
            read_integer(read, 0, QUEUES_MAX),
            read_integer(write, 0, QUEUES_MAX),
            read_integer(perm, INT32_MIN, INT32_MAX),
            filter_type,
        )
    except ValueError as error:
        raise ModelError(f"not a topic: {line[:200]!r}: {error}") from error


def _with_length(data: bytes) -> bytes:
    return _INT32.pack(len(data)) + data


def _take(data: bytes, at: int) -> tuple[bytes, int]:
    (size,) = _INT32.unpack_from(data, at)
    start = at + 4
    if size < 0 or start + size > len(data):
        raise ModelError(f"a length of {size} points outside the registration")
    return data[start : start + size], start + size
