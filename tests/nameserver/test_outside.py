"""Answers to clients of an outside listener: addresses that they can reach, or a refusal."""

import json

import pytest

from orderlymq_nameserver.kv import KvTable
from orderlymq_nameserver.outside import ANSWERS_BYTES_MAX
from orderlymq_nameserver.processor import NameServerCore
from orderlymq_protocol.body.catalogue import TopicRouteData
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand, request
from tests.nameserver.registrations import (
    EXPIRY_MS,
    GROUP_A,
    GROUP_B,
    core,
    identity_ext,
    register,
    registration,
    topic,
)

OUTSIDE = {"group-a": "203.0.113.1:31001", "group-b": "[2001:db8::1]:31002"}
INNER = b"10.0.0."


def ask(core: NameServerCore, code: int, listener: str = "outside", **ext: str) -> RemotingCommand:
    return core.handle(request(code, ext), 99, 0, listener=listener)


@pytest.fixture
def served() -> NameServerCore:
    """Return a name server with two broker groups, which both have an address for the listener `outside`."""
    made = core()
    for group in (GROUP_A, GROUP_B):
        register(made, group, registration(1, topic("T"), topic("TBW102", order=False)))
    register(made, GROUP_A, registration(2, topic("T"), topic("alone"), topic("TBW102")))
    made.outside.update({"outside": OUTSIDE, "half": {"group-a": "198.51.100.1:1"}})
    return made


def test_a_route_has_the_addresses_of_the_listener_that_it_is_asked_at(
    served: NameServerCore,
) -> None:
    """The route of an outside listener differs only in its addresses: queues and order stay the same."""
    inside = json.loads(ask(served, 105, "", topic="T").body)
    outside = json.loads(ask(served, 105, topic="T").body)

    addresses = {each["brokerName"]: each.pop("brokerAddrs") for each in outside["brokerDatas"]}
    for each in inside["brokerDatas"]:
        assert each.pop("brokerAddrs")["0"].startswith(INNER.decode())
    assert addresses == {name: {"0": address} for name, address in OUTSIDE.items()}
    assert outside == inside
    assert b" " not in ask(served, 105, topic="T").body


@pytest.mark.parametrize(("listener", "missing"), [("half", "group-b"), ("unknown", "group-a")])
def test_a_route_without_all_addresses_is_refused(
    served: NameServerCore, listener: str, missing: str
) -> None:
    """Law: the route is refused, because a shorter list would move keys, and an inner address is unreachable."""
    reply = ask(served, 105, listener, topic="T")

    # Not 17: that code would make a RocketMQ client ask for the template topic and create the topic.
    assert (reply.code, reply.body) == (ResponseCode.SYSTEM_ERROR, b"")
    assert reply.remark is not None
    assert reply.remark.startswith(f"OutsideAddressMissing: the broker group {missing} ")


def test_a_route_that_cannot_be_read_is_refused_with_the_reason() -> None:
    """A route is unreadable with a queue list of an earlier time, or if brokers have more queues of a topic than allowed."""
    table = KvTable({"ORDER_TOPIC_CONFIG": {"T": "group-a:922337203"}})
    served = NameServerCore(table, expiry_ms=EXPIRY_MS)
    register(served, GROUP_A, registration(1, topic("T")))
    served.outside.update({"outside": OUTSIDE})

    reply = ask(served, 105, topic="T")

    assert (reply.code, reply.body) == (ResponseCode.SYSTEM_ERROR, b"")
    assert (reply.remark or "").startswith("the route has 922337203 queues, the limit is 65536")


def test_a_topic_whose_groups_all_have_addresses_is_reported(served: NameServerCore) -> None:
    """A missing address of a broker group matters only for the topics of that group."""
    route = json.loads(ask(served, 105, "half", topic="alone").body)

    assert [each["brokerAddrs"] for each in route["brokerDatas"]] == [{"0": "198.51.100.1:1"}]


@pytest.mark.parametrize("code", core().codes)
def test_no_answer_of_any_code_has_an_inner_address(served: NameServerCore, code: int) -> None:
    """Law: an outside listener refuses every request code whose answer was not checked for inner addresses."""
    ext = {
        **identity_ext(GROUP_A),
        "topic": "T",
        "cluster": "C",
        "namespace": "N",
        "key": "k",
        "value": "v",
        "bodyCrc32": "0",
        "haServerAddr": "10.0.0.1:10912",
    }
    reply = ask(served, code, **ext)

    told = reply.body + json.dumps([reply.remark, reply.ext]).encode()
    assert INNER not in told
    assert b"9876" not in told


def test_tools_see_the_cluster_by_the_addresses_of_their_listener(served: NameServerCore) -> None:
    """Administrators begin with the codes 106 and 901; the answer to 304 leaves out the one address that it would name."""
    info = json.loads(ask(served, 106).body)
    members = json.loads(ask(served, 901, clusterName="C", brokerName="group-a").body)
    nobody = json.loads(ask(served, 901, clusterName="C", brokerName="no-such").body)
    system = json.loads(ask(served, 304).body)

    assert {name: data["brokerAddrs"] for name, data in info["brokerAddrTable"].items()} == {
        name: {"0": address} for name, address in OUTSIDE.items()
    }
    assert info["clusterAddrTable"] == {"C": ["group-a", "group-b"]}
    assert members["brokerMemberGroup"]["brokerAddrs"] == {"0": OUTSIDE["group-a"]}
    assert nobody["brokerMemberGroup"]["brokerAddrs"] == {}
    assert "brokerAddr" not in system
    assert system["topicList"] == ["C", "group-a", "group-b"]


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.QUERY_DATA_VERSION,
        RequestCode.BROKER_HEARTBEAT,
        RequestCode.UPDATE_NAMESRV_CONFIG,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
    ],
)
def test_nobody_outside_changes_where_clients_go(served: NameServerCore, code: int) -> None:
    """Law: the cluster's brokers are all inside, so an outside listener accepts no registrations."""
    before = ask(served, 106, "").body
    reply = ask(served, code, **identity_ext(GROUP_A) | {"brokerAddr": "203.0.113.9:1"})

    assert reply.code == ResponseCode.NO_PERMISSION
    assert ask(served, 106, "").body == before


def test_a_new_address_counts_from_the_next_answer_on(served: NameServerCore) -> None:
    """After a new address the server makes its cached answers again."""
    ask(served, 105, topic="alone")
    served.outside.update({"outside": OUTSIDE | {"group-a": "203.0.113.7:31001"}})

    route = json.loads(ask(served, 105, topic="alone").body)
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": "203.0.113.7:31001"}


def kept_bytes(served: NameServerCore) -> int:
    return sum(len(key[2]) + len(body) for key, body in served.outside._answers.items())


def test_answers_that_are_kept_have_a_limit_in_bytes(served: NameServerCore) -> None:
    """Law: a topic table that changes all the time does not fill the memory, and the newest answer is kept."""
    asked = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    for number in range(100):
        route = TopicRouteData((), (), f"{number}:" + "x" * 100_000, {})
        told = served.outside.translate(asked, asked.reply(body=route.to_json()), "outside")
        assert TopicRouteData.from_json(told.body) == route
        assert 200_000 < kept_bytes(served) <= ANSWERS_BYTES_MAX

    huge = TopicRouteData((), (), "x" * ANSWERS_BYTES_MAX, {})
    served.outside.translate(asked, asked.reply(body=huge.to_json()), "outside")
    assert kept_bytes(served) <= ANSWERS_BYTES_MAX


@pytest.mark.parametrize("length", [10, 100_000])
def test_no_answer_that_repeats_what_was_asked_is_kept(served: NameServerCore, length: int) -> None:
    """Law: answers that repeat a client's own words are not cached, so clients cannot fill the memory with them."""
    for number in range(100):
        name = f"{number}".rjust(length, "x")
        for code in served.codes:
            ask(served, code, clusterName=name, brokerName=name, topic=name, cluster=name)
            ask(served, code, clusterName="C", brokerName=name, namespace=name, key=name)

    assert kept_bytes(served) < 4_096


def test_texts_of_administrators_are_asked_and_changed_inside_alone(served: NameServerCore) -> None:
    """Law: a text may hold an inner address, so outside clients cannot read texts, and they cannot write them either."""
    put = {"namespace": "N", "key": "k", "value": INNER.decode() + "7"}
    ask(served, RequestCode.PUT_KV_CONFIG, "", **put)

    for code in (
        RequestCode.PUT_KV_CONFIG,
        RequestCode.GET_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.GET_KVLIST_BY_NAMESPACE,
    ):
        reply = ask(served, code, **put | {"value": "other"})
        assert (reply.code, reply.ext, reply.body) == (ResponseCode.NO_PERMISSION, {}, b"")
    assert served.kv.get("N", "k") == put["value"]
