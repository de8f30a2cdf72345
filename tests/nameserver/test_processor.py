"""Answers to every request code, compared with those of RocketMQ's name server."""

import json
from dataclasses import replace
from typing import Any

import pytest

from orderlymq_nameserver.kv import KvTable
from orderlymq_nameserver.negativecache import NEGATIVE_TTL_MS
from orderlymq_nameserver.processor import BODY_SIZE_MAX, KNOWS_ALL_AFTER_MS, NameServerCore
from orderlymq_nameserver.registrations import Identity
from orderlymq_nameserver.routes import BROKERS_MAX
from orderlymq_protocol.body.catalogue import TopicRouteData
from orderlymq_protocol.codes import LanguageCode
from orderlymq_protocol.frame.codec import FrameDecoder, encode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_protocol.unsupported import remark_of
from tests.nameserver.registrations import (
    GROUP_A,
    GROUP_B,
    ask,
    core,
    identity_ext,
    register,
    register_request,
    registration,
    route,
    topic,
)
from tests.protocol import golden

GOLDEN = [frame for frame in golden.frames() if frame.server == "namesrv"]


def play(server: NameServerCore, frame: golden.GoldenFrame) -> RemotingCommand:
    """Let the server answer a captured request, encoded and decoded in both directions."""
    (command,) = FrameDecoder().receive_data(frame.wire)
    (reply,) = FrameDecoder().receive_data(encode(server.handle(command, 1, 0)))
    assert (reply.opaque, reply.is_response) == (command.opaque, True)
    return reply


def captured(code: int, kind: str, version: int = 409) -> list[golden.GoldenFrame]:
    return [
        frame
        for frame in GOLDEN
        if (frame.code, frame.kind, frame.client_version) == (code, kind, version)
    ]


def registered_as_captured() -> NameServerCore:
    server = core()
    assert play(server, captured(103, "request")[0]).code == 0
    return server


def without_flag_names(body: bytes) -> Any:
    """Return the route without members that differ between versions: the topic flag's second name, and the acting master."""
    value = json.loads(body.replace(b"{0:", b'{"0":'))
    for broker in value["brokerDatas"]:
        assert broker.pop("enableActingMaster", False) is False
    for queue in value["queueDatas"]:
        queue.pop("topicSynFlag", None)
    return value


@pytest.mark.parametrize("version", [275, 409, 479])
def test_routes_are_those_that_real_name_servers_gave(version: int) -> None:
    """Law: the 105 answers equal the captured ones: code 17 with its remark, and the route of TBW102."""
    unknown, known = captured(105, "response", version)
    request_105 = captured(105, "request", version)[0]
    server = core()

    missing = play(server, request_105)
    play(server, captured(103, "request")[0])
    # The template is shown only to a connection that got this answer before: see negativecache.py.
    found = server.handle(request(105, {"topic": "TBW102"}), 1, 0)

    assert (missing.code, missing.remark) == (17, unknown.fields["remark"])
    assert without_flag_names(found.body) == without_flag_names(known.body)
    assert b'"topicSynFlag":0,"topicSysFlag":0' in found.body


def test_the_cluster_is_described_as_captured() -> None:
    """Law: the answer to 106 equals the captured one, with quoted ids."""
    expected = captured(106, "response", 409)[0].body.replace(b"{0:", b'{"0":')

    reply = play(registered_as_captured(), captured(106, "request", 409)[0])

    # RocketMQ 5 sends this remark, and the Rust client expects it.
    assert reply.body.replace(b',"enableActingMaster":false', b"") == expected


@pytest.mark.parametrize("version", [409, 479])
def test_administration_answers_as_captured(version: int) -> None:
    """Law: answers to KV, permission and deletion requests equal the captured ones in code, ext fields and empty body."""
    server = registered_as_captured()
    count = len(server.routes.topics())
    for code in (100, 101, 102, 205, 327, 216, 318):
        (expected,) = captured(code, "response", version)
        reply = play(server, captured(code, "request", version)[0])

        ext = dict(expected.fields.get("extFields", {}))
        for name in ("wipeTopicCount", "addTopicCount"):
            if name in ext:
                ext[name] = str(count)  # the captured server had other topics by then
        assert (reply.code, reply.ext, reply.body) == (expected.fields["code"], ext, expected.body)


def test_a_registration_is_answered_as_captured() -> None:
    """Law: the answer to 103 of a master has an empty header and, without an order configuration, no body."""
    expected = captured(103, "response")[0]

    for frame in captured(103, "request"):
        reply = play(core(), frame)
        assert (reply.code, reply.ext, reply.body) == (0, expected.fields["extFields"], b"")


def test_all_topics_of_the_capture_are_listed_in_order() -> None:
    """Law: 206 lists every topic once, sorted by name."""
    body = json.loads(captured(103, "request")[0].body)
    names = sorted(body["topicConfigSerializeWrapper"]["topicConfigTable"])

    reply = play(registered_as_captured(), captured(206, "request")[0])

    assert json.loads(reply.body) == {"topicList": names}


def test_the_properties_can_be_read_and_stay_as_they_are() -> None:
    """Law: 318 refuses settings that would have no effect and says what to do; 319 shows the real values."""
    server = NameServerCore(KvTable(), expiry_ms=1, properties={"listenPort": "9876"})

    assert ask(server, 318, b"orderMessageEnable=true\nnothing=1\n# note\n").code == 0
    unordered = ask(server, 318, b"orderMessageEnable=false\n")
    moved = ask(server, 318, b"nothing=1\nlistenPort=1\n")
    refusal = ask(server, 318, b"kvConfigPath=/etc/passwd\n")
    broken = ask(server, 318, b"\xff\xfe=1")

    assert (unordered.code, unordered.remark) == (
        1,
        "orderMessageEnable is still true: without their queue lists, keys of ordered topics would move to other queues",
    )
    assert (moved.code, moved.remark) == (
        1,
        "listenPort stays 9876 while this name server runs: start it with another value",
    )
    assert (refusal.code, refusal.remark) == (16, "Can not update config kvConfigPath.")
    assert broken.code == 1
    assert ask(server, 319).body == b"listenPort=9876\norderMessageEnable=true\n"


@pytest.mark.parametrize("compressed", [False, True])
def test_plain_and_compressed_registrations_register_the_same(compressed: bool) -> None:
    """Law: both forms of the body register the same topics."""
    server = core()
    body = registration(3, topic("T", 4), topic("%RETRY%g", 1))

    reply = server.handle(register_request(GROUP_A, body, compressed=compressed), 1, 0)

    assert reply.code == 0
    assert ask(server, 206).body == b'{"topicList":["%RETRY%g","T"]}'
    assert route(server, "T")["queueDatas"] == [
        {
            "brokerName": "group-a",
            "perm": 6,
            "readQueueNums": 4,
            "topicSynFlag": 0,
            "topicSysFlag": 0,
            "writeQueueNums": 4,
        }
    ]


def test_a_checksum_that_does_not_match_changes_nothing() -> None:
    """Law: a torn body is refused; the checksum 0 means that the broker computed none."""
    server = core()
    body = registration(1, topic("T"))

    refusal = server.handle(register_request(GROUP_A, body, crc32=12345), 1, 0)
    before = route(server, "T")
    unchecked = server.handle(register_request(GROUP_A, body, crc32=0), 1, 0)

    assert (refusal.code, refusal.remark) == (1, "crc32 not match")
    assert before is None
    assert unchecked.code == 0
    assert route(server, "T") is not None


def test_every_registration_is_answered_with_the_order_configuration() -> None:
    """Law: the body of the answer to 103 is the namespace ORDER_TOPIC_CONFIG."""
    server = core()
    ask(server, 100, namespace="ORDER_TOPIC_CONFIG", key="T", value="group-a:4")

    reply = register(server, GROUP_A, registration(1))

    assert reply.body == b'{"table":{"T":"group-a:4"}}'


def test_a_queue_list_that_no_client_could_read_is_refused() -> None:
    """The topic's clients would make a list of all those queues."""
    server = core()
    register(server, GROUP_A, registration(1, topic("T")))
    order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T"}

    refused = ask(server, 100, **order, value="group-a:922337203")

    assert refused.code == 1
    assert "922337203 queues, the limit is 65536" in (refused.remark or "")
    assert "orderTopicConf" not in route(server, "T")
    assert ask(server, 100, namespace="n", key="T", value="group-a:922337203").code == 0


def test_a_broker_learns_whether_its_version_is_known() -> None:
    """Law: 322 compares the broker's version with ours, returns ours, and counts as a sign of life."""
    server = core()
    ext = identity_ext(GROUP_A)
    first, second = (b'{"counter":%d,"timestamp":1}' % n for n in (1, 2))
    unknown = server.handle(request(322, ext, first), 1, 0)
    register(server, GROUP_A, registration(1, topic("T")), connection=1, now_ms=0)

    same = server.handle(request(322, ext, first), 1, 100_000)
    other = server.handle(request(322, ext, second), 1, 100_000)
    lost, _ = server.routes.expire(200_000)

    assert (unknown.ext, unknown.body) == ({"changed": "true"}, b"")
    assert (same.ext, same.body) == ({"changed": "false"}, first)
    assert other.ext == {"changed": "true"}
    assert lost == []


def test_a_heartbeat_renews_and_a_replica_that_reconnects_is_adopted() -> None:
    """Law: after 322 or 904 on a new connection, the registration survives the end of the old connection."""
    server = core()
    register(server, GROUP_A, registration(1, topic("T")), connection=1)

    reply = server.handle(request(904, identity_ext(GROUP_A)), 2, 0)
    server.routes.connection_closed(1)

    assert reply.code == 0
    assert route(server, "T") is not None


def test_unregistering_takes_the_group_out() -> None:
    """Law: 104 on the registering connection ends its registration."""
    server = core()
    register(server, GROUP_A, registration(1, topic("T")), connection=1)

    assert server.handle(request(104, identity_ext(GROUP_A)), 1, 0).code == 0
    assert route(server, "T") is None


def test_lists_are_sorted_and_of_the_right_topics() -> None:
    """Law: the lists of 224, 304, 311-313, 901 and 219 are complete and in a stable order."""
    server = core()
    register(server, GROUP_B, registration(1, topic("z"), topic("unit", flag=1)), connection=2)
    register(
        server,
        GROUP_A,
        registration(1, topic("a"), topic("sub", flag=2), topic("both", flag=3)),
        connection=1,
    )
    ask(server, 100, namespace="n", key="b", value="2")
    ask(server, 100, namespace="n", key="a", value="1")

    def topics(code: int, **ext: str) -> list[str]:
        names: list[str] = json.loads(ask(server, code, **ext).body)["topicList"]
        return names

    assert topics(224, cluster="C") == ["a", "both", "sub", "unit", "z"]
    assert topics(224, cluster="D") == []
    assert topics(311) == ["both", "unit"]
    assert topics(312) == ["both", "sub"]
    assert topics(313) == ["sub"]
    assert json.loads(ask(server, 304).body) == {
        "brokerAddr": "10.0.0.1:10911",
        "topicList": ["C", "group-a", "group-b"],
    }
    assert ask(server, 901, clusterName="C", brokerName="group-a").body == (
        b'{"brokerMemberGroup":{"brokerAddrs":{"0":"10.0.0.1:10911"},'
        b'"brokerName":"group-a","cluster":"C","enableActingMaster":false}}'
    )
    assert json.loads(ask(server, 901, clusterName="C", brokerName="x").body) == {
        "brokerMemberGroup": {
            "brokerAddrs": {},
            "brokerName": "x",
            "cluster": "C",
            "enableActingMaster": False,
        }
    }
    assert ask(server, 219, namespace="n").body == b'{"table":{"a":"1","b":"2"}}'
    assert ask(server, 219, namespace="m").code == 22


def test_lists_of_topics_are_made_once_for_each_change() -> None:
    """Law: any client may ask for lists, so they are cached until a real change; lists of unknown clusters are not cached."""
    server = core()
    body = registration(1, topic("a"), topic("unit", flag=1))
    register(server, GROUP_A, body)
    questions: tuple[tuple[int, dict[str, str]], ...]
    questions = (206, {}), (224, {"cluster": "C"}), (311, {}), (105, {"topic": "a"})

    def answers() -> list[bytes]:
        return [server.handle(request(code, ext), 99, 0).body for code, ext in questions]

    first = answers()
    for number in range(100):
        assert ask(server, 224, cluster=f"x{number}").body == b'{"topicList":[]}'
    for connection in (1, 2):
        register(server, GROUP_A, body, connection=connection)
    assert all(again is kept for again, kept in zip(answers(), first, strict=True))
    assert len(server.routes._encoded) == len(questions)

    register(server, replace(GROUP_A, address="10.0.0.9:10911"), body)
    assert b"10.0.0.9" in answers()[3]
    register(server, GROUP_A, registration(2, topic("b")))
    assert b'"b"' in answers()[0]


def test_deleting_a_topic_in_one_cluster_leaves_the_other() -> None:
    """Law: 216 with a cluster name deletes the topic in that cluster only."""
    server = core()
    other = GROUP_B.__class__("D", "group-d", 0, "10.0.1.1:10911")
    register(server, GROUP_A, registration(1, topic("T")), connection=1)
    register(server, other, registration(1, topic("T")), connection=2)

    ask(server, 216, topic="T", clusterName="C")

    assert [q["brokerName"] for q in route(server, "T")["queueDatas"]] == ["group-d"]


def test_queues_can_be_entered_by_hand_on_known_brokers() -> None:
    """Law: 217 adds queues of registered brokers and ignores unknown brokers."""
    server = core()
    register(server, GROUP_A, registration(1))
    queues = [
        {"brokerName": name, "perm": 6, "readQueueNums": 2, "writeQueueNums": 2}
        for name in ("group-a", "nobody")
    ]

    reply = ask(server, 217, json.dumps({"queueDatas": queues}).encode(), topic="T")

    assert reply.code == 0
    assert [q["brokerName"] for q in route(server, "T")["queueDatas"]] == ["group-a"]


def test_an_absent_value_is_not_found() -> None:
    """Law: 101 answers 22 with RocketMQ's remark; 102 of a missing value succeeds."""
    server = core()

    reply = ask(server, 101, namespace="n", key="k")

    assert (reply.code, reply.remark) == (22, "No config item, Namespace: n Key: k")
    assert ask(server, 102, namespace="n", key="k").code == 0


def test_only_a_change_of_the_order_configuration_or_of_topics_makes_routes_again() -> None:
    """Law: no stranger's request can invalidate the cached routes."""
    server = core()
    register(server, GROUP_A, registration(1, topic("T")))
    order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T"}
    ask(server, 100, **order, value="group-a:4")
    kept = server.routes.encoded_route("T")

    ask(server, 100, namespace="n", key="T", value="2")
    ask(server, 102, namespace="n", key="T")
    ask(server, 100, **order, value="group-a:4")
    ask(server, 102, namespace="ORDER_TOPIC_CONFIG", key="no such")
    ask(server, 216, topic="no such")
    assert server.routes.encoded_route("T") is kept

    ask(server, 100, **order, value="group-a:8")
    assert route(server, "T")["orderTopicConf"] == "group-a:8"
    ask(server, 102, **order)
    assert "orderTopicConf" not in route(server, "T")
    ask(server, 216, topic="T")
    assert server.routes.encoded_route("T") is None


@pytest.mark.parametrize("code", [0, 10, 107, 108, 20500, 200050, -5])
def test_unknown_codes_are_not_supported(code: int) -> None:
    """Law: clients fall back to other requests only if they get exactly code 3 with this remark."""
    reply = ask(core(), code)

    assert (reply.code, reply.remark) == (3, remark_of(code))
    assert (reply.remark or "").startswith(f" request type {code} not supported")


BAD_INPUT = [
    (105, {}, b"", "<topic> is null"),
    (103, {}, b"", "<brokerName> is null"),
    (103, identity_ext(GROUP_A) | {"haServerAddr": "", "brokerId": "x"}, b"", "<brokerId>"),
    (103, identity_ext(GROUP_A) | {"haServerAddr": ""}, b"not JSON", ""),
    (103, identity_ext(GROUP_A) | {"haServerAddr": "", "compressed": "true"}, b"not zlib", ""),
    (103, identity_ext(GROUP_A) | {"haServerAddr": ""}, b"[]", "not a JSON object"),
    (322, identity_ext(GROUP_A), b"\xff", ""),
    (217, {"topic": "T"}, b'{"queueDatas":7}', "queueDatas"),
    (901, {"clusterName": "C"}, b"", "<brokerName> is null"),
    (901, {"clusterName": "C", "brokerName": "x" * 256}, b"", "at most 255 characters"),
    (100, {"namespace": "n", "key": "k"}, b"", "<value> is null"),
]


@pytest.mark.parametrize(("code", "ext", "body", "remark"), BAD_INPUT)
def test_bad_input_is_named_and_changes_nothing(
    code: int, ext: dict[str, str], body: bytes, remark: str
) -> None:
    """Law: a bad request gets code 1 with a remark, and the tables stay as they were."""
    server = core()
    before = server.routes.dump(0)

    reply = server.handle(request(code, ext, body), 1, 0)

    assert reply.code == 1
    assert remark in (reply.remark or "")
    assert server.routes.dump(0) == before


def test_every_code_of_the_reference_is_served() -> None:
    """Law: the server serves exactly these request codes."""
    assert core().codes == [
        100, 101, 102, 103, 104, 105, 106, 205, 206, 216, 217, 219, 224, 304, 311, 312, 313,
        318, 319, 322, 327, 901, 904,
    ]  # fmt: skip


def test_a_name_server_that_has_just_begun_lets_nobody_make_topics() -> None:
    """A starting name server does not know yet who has which topic, so it does not show the template topic.

    RocketMQ's producers ask for their topic and then for TBW102, and take four queues of it: if a
    broker came back between the two questions, keys of an existing topic would change queues.
    """
    server = NameServerCore(KvTable(), expiry_ms=120_000, began_ms=50_000)

    def code(name: str, now_ms: int) -> int:
        return server.handle(request(105, {"topic": name}), 99, now_ms).code

    assert code("orders", 50_100) == 17
    body = registration(1, topic("orders", 8, order=True), topic("TBW102", 8))
    register(server, GROUP_A, body, now_ms=50_101)
    soon, later = 50_102, 50_000 + KNOWS_ALL_AFTER_MS

    assert [code("TBW102", soon), code("orders", soon)] == [17, 0]
    assert [code("TBW102", later), code("orders", later)] == [0, 0]
    found = TopicRouteData.from_json(
        server.handle(request(105, {"topic": "TBW102"}), 99, later).body
    )
    assert found.queue_datas == (), "an answer that came too early does not count"


def test_a_question_waits_while_a_name_server_may_not_know_the_topic_yet() -> None:
    """Law: only answers of "does not exist" and the template topic wait; known topics are answered immediately."""
    server = NameServerCore(KvTable(), expiry_ms=120_000, began_ms=50_000)
    soon, later = 50_102, 50_000 + KNOWS_ALL_AFTER_MS
    questions = [request(105, {"topic": name}) for name in ("orders", "new", "TBW102")]
    questions.append(request(106))

    def waiting(now_ms: int) -> list[bool]:
        return [server.knows_too_little(each, now_ms) for each in questions]

    assert waiting(soon) == [True, True, True, False]
    body = registration(1, topic("orders", 8, order=True), topic("TBW102", 8))
    register(server, GROUP_A, body, now_ms=50_101)
    assert waiting(soon) == [False, True, True, False]
    assert waiting(later) == [False] * 4


def test_a_question_waits_while_a_group_that_the_list_of_its_topic_names_has_not_registered() -> (
    None
):
    """Law: a client that ignores the list gets no partial route from a name server that has just started."""
    table = KvTable({"ORDER_TOPIC_CONFIG": {"orders": "group-a:4;group-b:4"}})
    server = NameServerCore(table, expiry_ms=120_000, began_ms=0)
    question = request(105, {"topic": "orders"})
    body = registration(1, topic("orders", 4, order=True))

    assert server.knows_too_little(question, KNOWS_ALL_AFTER_MS), (
        "it exists, although others are late"
    )
    register(server, GROUP_A, body, now_ms=100)
    assert server.knows_too_little(question, 101)
    assert not server.knows_too_little(question, KNOWS_ALL_AFTER_MS), "a group gone for good"
    register(server, GROUP_B, body, connection=2, now_ms=200)
    assert not server.knows_too_little(question, 201)


def test_a_go_client_waits_for_every_group_of_a_list_however_late_one_is() -> None:
    """Law: the Go client ignores the list, and would hash its keys over the queues of the registered groups alone.

    A broker group knows a name server that was added only after the group has restarted.
    """
    table = KvTable({"ORDER_TOPIC_CONFIG": {"orders": "group-a:4;group-b:4"}})
    server = NameServerCore(table, expiry_ms=120_000, began_ms=0)
    question = request(105, {"topic": "orders"})
    go = replace(question, language=LanguageCode.GO)
    body = registration(1, topic("orders", 4, order=True), topic("logs"))
    late = 100 * KNOWS_ALL_AFTER_MS

    register(server, GROUP_A, body, now_ms=late)
    assert not server.knows_too_little(question, late)
    assert server.knows_too_little(go, late)
    assert not server.knows_too_little(replace(go, ext={"topic": "logs"}), late)

    register(server, GROUP_B, body, connection=2, now_ms=late)
    assert not server.knows_too_little(go, late)
    server.routes.connection_closed(2)
    assert not server.knows_too_little(go, late), "its queues stay in the route"


def test_only_who_knows_that_its_topic_does_not_exist_sees_queues_to_make_topics_after() -> None:
    """A producer that got its answer too late, or none, asks for the template, too, and would move keys of its topic."""
    server = core()
    register(server, GROUP_A, registration(1, topic("orders", 8, order=True), topic("TBW102", 8)))
    mine, another = 7, 8

    def template(connection: int, now_ms: int) -> tuple[list[str], list[int]]:
        found = server.handle(request(105, {"topic": "TBW102"}), connection, now_ms)
        route = TopicRouteData.from_json(found.body)
        queues = [each.write_queue_nums for each in route.queue_datas]
        return [each.broker_name for each in route.broker_datas], queues

    assert template(mine, 1) == (["group-a"], [])
    server.handle(request(105, {"topic": "orders"}), mine, 2)
    assert template(mine, 3_000) == (["group-a"], [])

    server.handle(request(105, {"topic": "new"}), mine, 4_000)
    assert template(mine, 4_001) == (["group-a"], [8])
    assert template(mine, 4_002) == (["group-a"], [8])
    assert template(another, 4_003) == (["group-a"], [])
    assert template(mine, 4_000 + NEGATIVE_TTL_MS) == (["group-a"], [])

    server.handle(request(105, {"topic": "new"}), mine, 20_000)
    server.negative_cache.closed(mine)
    assert template(mine, 20_001) == (["group-a"], [])


def test_nobody_makes_a_listed_topic_whose_groups_have_not_registered() -> None:
    """Law: a listed topic exists, so a client that gets no queues of it gets no template either, and asks again."""
    table = KvTable({"ORDER_TOPIC_CONFIG": {"orders": "group-a:8"}})
    server = NameServerCore(table, expiry_ms=120_000)
    register(server, GROUP_B, registration(1, topic("TBW102", 8)))

    assert server.handle(request(105, {"topic": "orders"}), 7, 1).code == 17
    found = TopicRouteData.from_json(server.handle(request(105, {"topic": "TBW102"}), 7, 2).body)

    assert found.queue_datas == ()


def test_the_go_client_makes_a_topic_over_two_name_servers() -> None:
    """After "does not exist" it asks the next name server for TBW102, and it keeps an empty route for ever."""
    began = 50_000
    servers = [NameServerCore(KvTable(), expiry_ms=120_000, began_ms=began) for _ in range(2)]
    for server in servers:
        register(server, GROUP_A, registration(1, topic("TBW102", 8)), now_ms=began)

    def asked(server: NameServerCore, name: str, now_ms: int) -> RemotingCommand:
        question = replace(request(105, {"topic": name}), language=LanguageCode.GO)
        return server.handle(question, 7, now_ms)

    assert asked(servers[1], "TBW102", began + 1).code == 17, "it may not know the topic yet"
    later = began + KNOWS_ALL_AFTER_MS
    assert asked(servers[0], "new", later).code == 17
    found = TopicRouteData.from_json(asked(servers[1], "TBW102", later + 1).body)
    assert [each.write_queue_nums for each in found.queue_datas] == [8]


def test_strangers_cannot_register_brokers_without_end() -> None:
    """Law: the number of broker names is bounded; known brokers can renew, and unregistered ones make room."""
    server = core()
    empty = registration(1)
    names = [Identity("C", f"b-{number}", 0, "10.0.0.1:1") for number in range(BROKERS_MAX + 1)]
    replies = [server.handle(register_request(who, empty), 1, 0) for who in names]

    assert {reply.code for reply in replies[:-1]} == {0}
    assert replies[-1].code == 1
    assert "broker names are registered" in (replies[-1].remark or "")
    assert server.handle(register_request(names[0], empty), 1, 1).code == 0
    server.handle(request(104, identity_ext(names[0])), 1, 1)
    assert server.handle(register_request(names[-1], empty), 1, 1).code == 0
    assert server.routes.master("b-0") is None


@pytest.mark.parametrize("code", [217, 318, 322])
def test_a_large_body_is_not_read(code: int) -> None:
    """Reading megabytes of JSON would block the loop that answers all clients."""
    ext = {**identity_ext(GROUP_A), "topic": "orders", "namespace": "n", "key": "k"}

    reply = core().handle(request(code, ext, b"[" + b"{}," * BODY_SIZE_MAX + b"{}]"), 1, 0)

    assert (reply.code, "send less in one request" in (reply.remark or "")) == (1, True)
