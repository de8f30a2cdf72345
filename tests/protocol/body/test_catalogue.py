"""JSON bodies: bodies of real peers are read, and written again with the same meaning."""

import json
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq_protocol.body import catalogue, fastjson
from orderlymq_protocol.body.catalogue import (
    BrokerData,
    ClusterInfo,
    Connection,
    ConsumerConnection,
    ConsumerData,
    ConsumeStats,
    DataVersion,
    HeartbeatData,
    JsonModel,
    LockBatchRequest,
    MessageQueue,
    ModelError,
    OffsetWrapper,
    ProducerData,
    QueueData,
    RegisterBrokerBody,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicConfigTable,
    TopicOffset,
    TopicRouteData,
    TopicStats,
)
from orderlymq_protocol.body.config import QUEUES_MAX
from orderlymq_protocol.body.fastjson import JsonError
from orderlymq_protocol.body.routes import (
    REGISTRATION_SIZE_MAX,
    REGISTRATION_TOPICS_MAX,
    ROUTE_QUEUES_MAX,
)
from orderlymq_protocol.frame.codec import FRAME_SIZE_MAX
from orderlymq_protocol.message.record import body_crc
from tests.protocol import golden

GOLDEN_BODIES: list[tuple[int, str, type[JsonModel]]] = [
    (21, "response", catalogue.TopicConfigTable),
    (28, "response", catalogue.KVTable),
    (34, "request", catalogue.HeartbeatData),
    (38, "response", catalogue.ConsumerIdList),
    (41, "request", catalogue.LockBatchRequest),
    (42, "request", catalogue.LockBatchRequest),
    (46, "request", catalogue.CheckClientRequest),
    (105, "response", catalogue.TopicRouteData),
    (106, "response", catalogue.ClusterInfo),
    (200, "request", catalogue.SubscriptionGroupConfig),
    (201, "response", catalogue.SubscriptionGroupTable),
    (202, "response", catalogue.TopicStats),
    (203, "response", catalogue.ConsumerConnection),
    (204, "response", catalogue.ProducerConnection),
    (206, "response", catalogue.TopicList),
    (208, "response", catalogue.ConsumeStats),
    (220, "request", catalogue.OffsetTable),
    (222, "response", catalogue.OffsetTable),
    (300, "response", catalogue.GroupList),
    (305, "response", catalogue.TopicList),
    (315, "response", catalogue.BrokerStatsData),
    (321, "response", catalogue.ConsumeQueueView),
]
# Members that our models do not keep or that older peers do not send: those of newer versions, and a renamed one.
NOT_KEPT = {
    "heartbeatFingerprint",
    "withoutSub",
    "attributes",
    "groupRetryPolicy",
    "extFields",
    "consumeMessageOrderly",
    "consumeTimeoutMinute",
    "groupSysFlag",
    "topicSynFlag",
    "enableActingMaster",
    "onlyThisBroker",
    "onDeadLetter",
    "concurrency",
    "laneKeyProperty",
    "retryPauseMillis",
    "retryPauseMaxMillis",
}


def without_newer(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_newer(v) for k, v in value.items() if k not in NOT_KEPT}
    if isinstance(value, list):
        items = [without_newer(item) for item in value]
        return sorted(items, key=fastjson.dumps)
    return value


@pytest.mark.parametrize(("code", "kind", "body_type"), GOLDEN_BODIES)
def test_golden_bodies_are_read_and_written_with_the_same_meaning(
    code: int, kind: str, body_type: type[JsonModel]
) -> None:
    """No member of a real peer's body is lost by reading and writing it."""
    bodies = [body for body in golden.bodies(code, kind) if body.startswith(b"{")]
    assert bodies

    for body in bodies:
        read = body_type.from_json(body)
        written = read.to_json()

        assert without_newer(fastjson.loads(written)) == without_newer(fastjson.loads(body))
        assert body_type.from_json(written) == read


# -- heartbeats and locks ----------------------------------------------------------------------------


def test_a_heartbeat_is_read_field_by_field() -> None:
    """The documented example of a heartbeat."""
    body = (
        b'{"clientID":"192.0.2.2@23913#1266485203808","consumerDataSet":[{"consumeFromWhere":'
        b'"CONSUME_FROM_FIRST_OFFSET","consumeType":"CONSUME_PASSIVELY","groupName":"CG",'
        b'"messageModel":"CLUSTERING","subscriptionDataSet":[{"classFilterMode":false,"codeSet":'
        b'[2598919],"expressionType":"TAG","subString":"TagA","subVersion":1795190252688,'
        b'"tagsSet":["TagA"],"topic":"T"}],"unitMode":false}],'
        b'"producerDataSet":[{"groupName":"CLIENT_INNER_PRODUCER"},{"groupName":"PG"}]}'
    )
    expected = HeartbeatData(
        "192.0.2.2@23913#1266485203808",
        (ProducerData("CLIENT_INNER_PRODUCER"), ProducerData("PG")),
        (
            ConsumerData(
                "CG",
                "CONSUME_PASSIVELY",
                "CLUSTERING",
                "CONSUME_FROM_FIRST_OFFSET",
                (SubscriptionData.of_tags("T", "TagA", 1_795_190_252_688),),
            ),
        ),
    )

    assert HeartbeatData.from_json(body) == expected
    assert expected.to_json() == body


def test_names_that_nobody_knows_do_not_break_a_heartbeat() -> None:
    """Unknown names are ignored: RocketMQ retired some and will add others, and members come and go, too."""
    body = json.dumps(
        {
            "clientID": "c",
            "consumerDataSet": [
                {
                    "groupName": "g",
                    "consumeFromWhere": "CONSUME_FROM_MAX_OFFSET",
                    "consumeType": "CONSUME_POP",
                    "messageModel": None,
                    "subscriptionDataSet": None,
                    "somethingNew": {"a": [1]},
                }
            ],
            "heartbeatFingerprint": 0,
        }
    ).encode()

    assert HeartbeatData.from_json(body) == HeartbeatData(
        "c", (), (ConsumerData("g", "CONSUME_POP", "CLUSTERING", "CONSUME_FROM_MAX_OFFSET"),)
    )


def test_the_numbers_of_the_cpp_client_are_names() -> None:
    """The C++ client writes its enumerations as numbers, and so do the Python and Node clients that are built on it."""

    def read(kind: int, model: int, where: int) -> tuple[str, str, str]:
        consumer = {
            "consumeFromWhere": where,
            "consumeType": kind,
            "groupName": "g",
            "messageModel": model,
            "subscriptionDataSet": [{"subString": "*", "subVersion": "17", "topic": "t"}],
        }
        body = json.dumps({"clientID": "c", "consumerDataSet": [consumer]}).encode()
        (found,) = HeartbeatData.from_json(body).consumer_data_set
        return found.consume_type, found.message_model, found.consume_from_where

    assert read(0, 0, 0) == ("CONSUME_ACTIVELY", "BROADCASTING", "CONSUME_FROM_LAST_OFFSET")
    assert read(1, 1, 4) == ("CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_FIRST_OFFSET")
    assert read(2, 1, 5)[::2] == ("CONSUME_POP", "CONSUME_FROM_TIMESTAMP")
    assert [read(1, 1, number)[2] for number in (1, 2, 3)] == [
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
        "CONSUME_FROM_MIN_OFFSET",
        "CONSUME_FROM_MAX_OFFSET",
    ]
    for numbers, name in (
        ((3, 1, 0), "consumeType"),
        ((1, 2, 0), "messageModel"),
        ((1, 1, -1), ""),
    ):
        with pytest.raises(
            ModelError, match=f"ConsumerData.{name or 'consumeFromWhere'}: .* is not one of"
        ):
            read(*numbers)


def test_a_lock_request_carries_the_lease_of_our_own_client() -> None:
    """Java clients do not send a lease, and get the default."""
    queue = MessageQueue("T", "b", 0)
    java = (
        b'{"clientId":"c","consumerGroup":"g","mqSet":[{"brokerName":"b","queueId":0,"topic":"T"}],'
        b'"onlyThisBroker":false}'
    )

    assert LockBatchRequest.from_json(java) == LockBatchRequest("c", "g", (queue,))
    assert LockBatchRequest("c", "g", (queue,)).to_json() == java
    assert json.loads(LockBatchRequest("c", "g", (), 30_000, True).to_json()) == {
        "clientId": "c",
        "consumerGroup": "g",
        "mqSet": [],
        "leaseMillis": 30_000,
        "onlyThisBroker": True,
    }


def test_golden_lock_bodies_are_written_byte_by_byte() -> None:
    """The broker must return the queues exactly as they were sent, because Java compares them as objects."""
    for body in golden.bodies(41, "request"):
        request = LockBatchRequest.from_json(body)
        assert request.to_json().replace(b',"onlyThisBroker":false', b"") == body.replace(
            b',"onlyThisBroker":false', b""
        )


def test_empty_collections_are_written() -> None:
    """Empty collections are written, because Java fails if the members are absent."""
    assert catalogue.ConsumerIdList().to_json() == b'{"consumerIdList":[]}'
    assert TopicStats().to_json() == b'{"offsetTable":{}}'
    assert TopicRouteData().to_json() == (
        b'{"brokerDatas":[],"filterServerTable":{},"queueDatas":[]}'
    )
    assert ConsumerConnection().to_json() == b'{"connectionSet":[],"subscriptionTable":{}}'


# -- routes ------------------------------------------------------------------------------------------


def test_a_route_is_written_as_every_client_reads_it() -> None:
    """Ids are quoted with 0 first, the flag has both spellings, there are no blanks, and lists keep their order."""
    route = TopicRouteData(
        (QueueData("broker-b", 4, 4, 6), QueueData("broker-a", 8, 8, 6, 1)),
        (BrokerData("C", "broker-a", {10: "h:3", 2: "h:2", 0: "h:1"}),),
        "broker-a:4;broker-b:4",
    )

    assert route.to_json() == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"h:1","2":"h:2","10":"h:3"},"brokerName":"broker-a",'
        b'"cluster":"C","enableActingMaster":false}],"filterServerTable":{},"orderTopicConf":"broker-a:4;broker-b:4",'
        b'"queueDatas":[{"brokerName":"broker-b","perm":6,"readQueueNums":4,"topicSynFlag":0,'
        b'"topicSysFlag":0,"writeQueueNums":4},{"brokerName":"broker-a","perm":6,'
        b'"readQueueNums":8,"topicSynFlag":1,"topicSysFlag":1,"writeQueueNums":8}]}'
    )
    assert TopicRouteData.from_json(route.to_json()) == route


@pytest.mark.parametrize("flag", ["topicSysFlag", "topicSynFlag"])
def test_either_spelling_of_the_topic_flag_is_read(flag: str) -> None:
    """Go, and Java up to 4.9.1, know one spelling; later versions of Java know the other."""
    assert QueueData.from_json_value({"brokerName": "b", flag: 1}) == QueueData(
        "b", topic_sys_flag=1
    )


def test_unquoted_broker_ids_are_read() -> None:
    """Java's name server writes them to older clients."""
    body = (
        b'{"brokerAddrTable":{"b":{"brokerAddrs":{0:"h:1",1:"h:2"},"brokerName":"b","cluster":"C"}},'
        b'"clusterAddrTable":{"C":["b"]}}'
    )

    assert ClusterInfo.from_json(body) == ClusterInfo(
        {"b": BrokerData("C", "b", {0: "h:1", 1: "h:2"})}, {"C": ("b",)}
    )


# -- registration ------------------------------------------------------------------------------------


def test_golden_registrations_are_read_and_written_byte_by_byte() -> None:
    """The bodies are from a real broker's registration at its name server, with the checksum from its header."""
    frames = [f for f in golden.frames() if f.code == 103 and f.is_request]
    assert len(frames) == 2
    for frame in frames:
        ext = frame.fields["extFields"]

        body = RegisterBrokerBody.decode(frame.body, compressed=ext["compressed"] == "true")

        assert body.encode() == frame.body
        assert body_crc(frame.body) == int(ext["bodyCrc32"])
        assert body.topics.topic_config_table["SCHEDULE_TOPIC_XXXX"].read_queue_nums == 18
        assert RegisterBrokerBody.decode(body.encode(compressed=True), compressed=True) == body


NAMES = st.text("abcdefghijklmnopqrstuvwxyz%_-", min_size=1, max_size=20)
TOPICS = st.builds(TopicConfig, NAMES, st.integers(0, 100), st.integers(0, 100), st.integers(0, 7))
REGISTRATIONS = st.builds(
    lambda topics, version, servers: RegisterBrokerBody(
        TopicConfigTable({topic.topic_name: topic for topic in topics}, version), tuple(servers)
    ),
    st.lists(TOPICS, max_size=4),
    st.builds(DataVersion, st.integers(0, 2**40), st.integers(0, 2**50)),
    st.lists(NAMES, max_size=2),
)


@given(REGISTRATIONS, st.booleans())
def test_every_registration_survives(body: RegisterBrokerBody, compressed: bool) -> None:
    """A registration is the same after writing and reading, in plain and in compressed form."""
    data = body.encode(compressed=compressed)

    assert RegisterBrokerBody.decode(data, compressed=compressed) == body
    assert body_crc(data) == zlib.crc32(data) & 0x7FFFFFFF


def test_a_compressed_registration_says_no_more_than_a_plain_one_could() -> None:
    """Law: an inflated registration may be no larger than a frame, whatever size the compressed bytes announce."""
    assert REGISTRATION_SIZE_MAX <= FRAME_SIZE_MAX

    with pytest.raises(ModelError, match="cut short or too large"):
        RegisterBrokerBody.decode(zlib.compress(bytes(REGISTRATION_SIZE_MAX + 1)), compressed=True)


def test_an_empty_registration_has_no_topics() -> None:
    """A broker may register without topics, only to report that it is alive."""
    assert RegisterBrokerBody.decode(b"", compressed=True) == RegisterBrokerBody()


def test_a_compressed_registration_is_laid_out_as_documented() -> None:
    """A length stands before each part, and each topic has a line; the parts that 5.x adds at the end are ignored."""
    body = RegisterBrokerBody(TopicConfigTable({"T": TopicConfig("T", 4, 8, 6)}, DataVersion(2, 9)))
    plain = (
        b'\x00\x00\x00\x1b{"counter":2,"timestamp":9}'
        b"\x00\x00\x00\x01\x00\x00\x00\x12T 4 8 6 SINGLE_TAG"
        b"\x00\x00\x00\x02[]"
    )

    assert zlib.decompress(body.encode(compressed=True)) == plain
    newer = plain.replace(b"\x12T 4 8 6 SINGLE_TAG", b"\x15T 4 8 6 SINGLE_TAG {}") + bytes(4)
    assert RegisterBrokerBody.decode(zlib.compress(newer), compressed=True) == body


@given(
    st.binary(max_size=60) | st.binary(max_size=60).map(zlib.compress),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=3),
)
def test_arbitrary_compressed_registrations_raise_nothing_but_model_errors(
    data: bytes, mutations: list[tuple[int, int]]
) -> None:
    """The bytes are garbage, or a good body with flipped bytes inside the compressed part."""
    good = RegisterBrokerBody(TopicConfigTable({"T": TopicConfig("T")})).encode(compressed=True)
    flipped = bytearray(zlib.decompress(good))
    for place, value in mutations:
        flipped[place % len(flipped)] = value
    for body in (data, zlib.compress(flipped)):
        try:
            RegisterBrokerBody.decode(body, compressed=True)
        except (ModelError, JsonError):
            continue


# -- numbers -----------------------------------------------------------------------------------------


def test_tables_by_queue_are_written_with_raw_keys() -> None:
    """The tools of all versions can read such keys."""
    queue = MessageQueue("T", "b", 0)
    key = b'{"brokerName":"b","queueId":0,"topic":"T"}'

    assert TopicStats({queue: TopicOffset(1, 6, 9)}).to_json() == (
        b'{"offsetTable":{' + key + b':{"lastUpdateTimestamp":9,"maxOffset":6,"minOffset":1}}}'
    )
    assert ConsumeStats({queue: OffsetWrapper(6, 5, 9)}, 1.5).to_json() == (
        b'{"consumeTps":1.5,"offsetTable":{'
        + key
        + b':{"brokerOffset":6,"consumerOffset":5,"lastTimestamp":9}}}'
    )


def test_a_queue_that_is_a_key_may_be_text() -> None:
    """Newer versions of Java can write the key as a string that holds the object."""
    body = json.dumps({"offsetTable": {'{"brokerName":"b","queueId":0,"topic":"T"}': 5}}).encode()

    assert catalogue.OffsetTable.from_json(body) == catalogue.OffsetTable(
        {MessageQueue("T", "b", 0): 5}
    )


def test_group_defaults_are_those_of_the_tools() -> None:
    """`updateSubGroup` sends these values by default, except for members of newer versions."""
    assert without_newer(SubscriptionGroupConfig("g").to_json_value()) == {
        "brokerId": 0,
        "consumeBroadcastEnable": True,
        "consumeEnable": True,
        "consumeFromMinEnable": False,
        "groupName": "g",
        "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": 16,
        "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1,
    }


def test_connections_are_listed_with_language_and_version() -> None:
    """`consumerConnection` shows this."""
    connection = Connection("id", "1.2.3.4:5", "JAVA", 409)

    assert connection.to_json() == (
        b'{"clientAddr":"1.2.3.4:5","clientId":"id","language":"JAVA","version":409}'
    )


# -- bad bodies --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body_type", "body", "message"),
    [
        (HeartbeatData, b"[]", "HeartbeatData is not a JSON object"),
        (HeartbeatData, b"{}", "HeartbeatData.clientID is missing"),
        (HeartbeatData, b'{"clientID":[]}', "HeartbeatData.clientID: not a text"),
        (HeartbeatData, b'{"clientID":"c","producerDataSet":{}}', "not an array"),
        (HeartbeatData, b'{"clientID":"c","producerDataSet":[{}]}', "groupName is missing"),
        (LockBatchRequest, b'{"clientId":"c","consumerGroup":"g","mqSet":[{}]}', "not a queue"),
        (TopicConfig, b'{"topicName":"T","perm":"x"}', "TopicConfig.perm"),
        (TopicConfig, b'{"topicName":"T","perm":1.5}', "not a whole number"),
        (TopicConfig, b'{"topicName":"T","order":5}', "not true or false"),
        (ConsumeStats, b'{"consumeTps":true}', "not a number"),
        (BrokerData, b'{"cluster":"C","brokerName":"b","brokerAddrs":{"x":"y"}}', "brokerAddrs"),
        (BrokerData, b'{"cluster":"C","brokerName":"b","brokerAddrs":[]}', "not an object"),
        (TopicStats, b'{"offsetTable":{"no queue":{}}}', "offsetTable"),
    ],
)
def test_a_bad_body_is_refused_by_the_name_of_its_member(
    body_type: type[JsonModel], body: bytes, message: str
) -> None:
    """The error names the member that is wrong."""
    with pytest.raises(ModelError, match=message):
        body_type.from_json(body)


def test_numbers_and_flags_may_come_as_text() -> None:
    """fastjson accepts numbers and flags as text, so some clients send them."""
    assert TopicConfig.from_json(b'{"topicName":7,"perm":"4","order":"true"}') == TopicConfig(
        "7", perm=4, order=True
    )


@given(
    st.sampled_from([body_type for _, _, body_type in GOLDEN_BODIES]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["clientID", "groupName", "offsetTable", "mqSet", "topic", "queueDatas", "0"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=8,
    ),
)
def test_arbitrary_values_raise_nothing_but_model_errors(
    body_type: type[JsonModel], value: object
) -> None:
    """Valid JSON of any shape."""
    try:
        body_type.from_json_value(value)
    except ModelError:
        return


@pytest.mark.parametrize("count", [-1, QUEUES_MAX + 1, 2**31 - 1])
@pytest.mark.parametrize("compressed", [False, True])
def test_a_broker_registers_no_more_queues_than_one_may_list(
    count: int, *, compressed: bool
) -> None:
    """A client that reads the number makes a list of that many queues."""
    topics = {"orders": TopicConfig("orders", read_queue_nums=count)}
    body = RegisterBrokerBody(TopicConfigTable(topics, DataVersion(1, 1)))

    with pytest.raises(ModelError, match="is not between 0 and 16384"):
        RegisterBrokerBody.decode(body.encode(compressed=compressed), compressed=compressed)


@pytest.mark.parametrize(
    "route",
    [
        TopicRouteData((QueueData("a", 2**31 - 1, 4, 6),)),
        TopicRouteData((QueueData("a", 4, QUEUES_MAX + 1, 6),)),
        TopicRouteData(tuple(QueueData(f"b{n}", 4, QUEUES_MAX, 6) for n in range(5))),
        TopicRouteData((QueueData("a", 4, 4, 6),), (), "a:99999999999999999999"),
        TopicRouteData((), (), ";".join(f"b{n}:{QUEUES_MAX}" for n in range(5))),
        TopicRouteData((), (), f"a:000000000{ROUTE_QUEUES_MAX + 1}"),
        TopicRouteData((), (), f"a:{'0' * 5_000}{ROUTE_QUEUES_MAX + 1}"),
        TopicRouteData((), (), "a:" + "1" * 5_000),
    ],
)
def test_a_route_of_queues_without_end_is_refused(route: TopicRouteData) -> None:
    """A registration by a stranger must not fill the memory of brokers and clients."""
    with pytest.raises(ModelError):
        TopicRouteData.from_json(route.to_json())


def test_a_route_of_as_many_queues_as_allowed_is_read() -> None:
    """Four brokers, each with the largest topic that it can have."""
    queues = tuple(QueueData(f"b{n}", QUEUES_MAX, QUEUES_MAX, 6) for n in range(4))
    route = TopicRouteData(queues, (), ";".join(f"b{n}:{QUEUES_MAX}" for n in range(4)))

    assert TopicRouteData.from_json(route.to_json()) == route
    assert 4 * QUEUES_MAX == ROUTE_QUEUES_MAX


@pytest.mark.parametrize("compressed", [False, True])
def test_a_registration_has_a_limited_number_of_topics(*, compressed: bool) -> None:
    """The limit exists because the name server reads a registration on its event loop."""
    topic = TopicConfig("t")
    topics = {str(number): topic for number in range(REGISTRATION_TOPICS_MAX + 1)}
    body = RegisterBrokerBody(TopicConfigTable(topics, DataVersion(1, 1)))

    with pytest.raises(ModelError, match=r"the registration has .* topics"):
        RegisterBrokerBody.decode(body.encode(compressed=compressed), compressed=compressed)
