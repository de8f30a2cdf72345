"""A name server keeps a limited number of bytes of registrations, and strangers cannot take the room of brokers that sign."""

import json
import tracemalloc
from dataclasses import replace

from orderlymq_nameserver.answers import ENCODED_BYTES_MAX, ROWS_SHOWN_MAX
from orderlymq_nameserver.capacity import NAME_BYTES_MAX, SESSIONS_MAX
from orderlymq_nameserver.processor import NameServerCore
from orderlymq_nameserver.registrations import Identity
from orderlymq_protocol.body.catalogue import QueueData, RegisterBrokerBody, TopicRouteData
from orderlymq_protocol.frame.command import request
from tests.nameserver.registrations import (
    GROUP_A,
    GROUP_B,
    core,
    identity_ext,
    register,
    register_request,
    registration,
    topic,
)
from tests.security.test_names_registrations import Cluster

# Nearly as long as a name may be.
LARGE = registration(1, *(topic(f"{number:020000}") for number in range(800)))


def broker(number: int) -> Identity:
    return Identity("C", f"b-{number}", 0, f"10.0.0.1:{number}")


def offer(server: NameServerCore, who: Identity, body: RegisterBrokerBody) -> tuple[int, str]:
    """Return the code and the remark of the answer to a registration."""
    reply = server.handle(register_request(who, body), 1, 0)
    server.routes.check()
    return reply.code, reply.remark or ""


def test_what_brokers_without_a_signature_register_has_a_limit() -> None:
    """Law: there is a limit for each name and one for all; known brokers can renew and shrink, and removed ones make room."""
    server = core()

    code, remark = offer(server, broker(0), registration(1, topic("t" * NAME_BYTES_MAX)))
    assert (code, remark.partition(":")[0]) == (1, "TooMuchRegistered")
    assert "give the broker the secret, or divide its topics" in remark

    answers = [offer(server, broker(number), LARGE) for number in range(5)]
    assert [code for code, _ in answers] == [0, 0, 0, 1, 1]
    assert "give this broker the secret of the cluster, stop brokers" in answers[-1][1]
    assert server.routes.master("b-4") is None

    assert offer(server, broker(0), LARGE) == (0, "")
    assert offer(server, broker(0), registration(2)) == (0, "")
    assert offer(server, broker(3), LARGE) == (0, "")
    assert offer(server, broker(4), LARGE)[0] == 1
    server.handle(request(104, identity_ext(broker(1))), 1, 0)
    assert offer(server, broker(4), LARGE) == (0, "")


def test_the_size_of_a_name_is_about_what_it_takes() -> None:
    """Law: the counted size is not less than the memory that a registration takes."""
    server = core()
    tracemalloc.start()
    for number in range(3):
        names = [topic(f"t{number}-{each}") for each in range(2_000)]
        offer(server, broker(number), registration(1, *names))
    del names
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert taken < server.routes.unsigned_bytes < 1.5 * taken


def test_brokers_that_sign_have_room_when_others_have_filled_theirs() -> None:
    """Law: brokers that sign and brokers that do not sign each have room of their own."""
    cluster = Cluster(mixed=True)
    cluster.register(GROUP_A, LARGE)
    assert [offer(cluster.core, broker(number), LARGE)[0] for number in range(4)] == [0, 0, 0, 1]

    cluster.register(GROUP_B, LARGE)

    assert offer(cluster.core, broker(4), LARGE)[0] == 1


def test_a_gone_broker_counts_for_the_ordered_topics_that_are_kept() -> None:
    """Law: after the loss of its connections a broker name counts only for the ordered topics that are still published."""
    server = core()
    ordered = registration(1, topic("T", order=True), *LARGE.topics.topic_config_table.values())
    for number in range(10):
        assert offer(server, broker(number), ordered) == (0, "")
        server.routes.connection_closed(1)


def test_topics_by_hand_and_their_deletion_count() -> None:
    """Law: a topic that is entered by hand (217) takes room like others, and its deletion frees that room."""
    server = core()
    offer(server, broker(0), registration(1))
    body = TopicRouteData((QueueData("b-0", 1, 1, 6),)).to_json()
    name = "t" * (NAME_BYTES_MAX // 3)

    def enter(letter: str) -> int:
        return server.handle(request(217, {"topic": letter + name}, body), 1, 0).code

    assert [enter(letter) for letter in "abac"] == [0, 0, 0, 1]
    server.handle(request(216, {"topic": "a" + name}), 1, 0)
    assert enter("c") == 0


def test_addresses_and_their_texts_have_a_limit() -> None:
    """Law: the limit of a broker name includes its addresses, their texts and its filter servers."""
    server = core()
    offer(server, broker(0), registration(1, topic("t" * (NAME_BYTES_MAX * 15 // 16))))
    many = [Identity("C", "b-0", number, f"10.0.0.1:{number}") for number in range(200)]
    codes = [offer(server, who, registration(1))[0] for who in many]

    assert 0 < codes.index(1) < 200
    text = "x" * 300
    for who in (
        Identity(text, "b", 0, "a"),
        Identity("C", text, 0, "a"),
        Identity("C", "b", 0, text),
    ):
        assert "at most 255" in offer(server, who, registration(1))[1]
    servers = replace(registration(1), filter_server_list=("f" * NAME_BYTES_MAX,))
    assert offer(server, broker(1), servers)[0] == 1


def test_the_status_page_has_a_limit_however_much_is_registered() -> None:
    """Law: the page is made in one step that blocks all clients, so it shows totals and a readable part of the tables."""
    server = core()
    server.routes.reserve(GROUP_A.broker_name)
    own = registration(1, *(topic(f"t-{number}") for number in range(20 * ROWS_SHOWN_MAX)))
    register(server, GROUP_A, own)
    servers = ("f" * 1_000,) * 10
    theirs = replace(registration(1, topic("x" * 10_000)), filter_server_list=servers)
    for number in range(ROWS_SHOWN_MAX):
        register(server, broker(number), theirs)

    found = server.routes.dump(0)

    tables = [table for table in found.values() if isinstance(table, dict)]
    assert len(tables) == 5
    assert max(map(len, tables)) <= ROWS_SHOWN_MAX
    assert len(json.dumps(found)) < 2 << 20
    assert (found["topics"], found["brokers"]) == (20 * ROWS_SHOWN_MAX + 1, ROWS_SHOWN_MAX + 1)


def test_an_address_has_few_sessions_and_the_one_silent_longest_gives_way() -> None:
    """Law: connections that only ask (322) cannot fill the memory, nor push out the registration of a replica."""
    server = core()
    register(server, GROUP_A, registration(1, topic("T")), connection=1, now_ms=0)
    for connection in range(2, 1_000):
        server.routes.renew(GROUP_A, 1, connection)
        server.routes.renew(GROUP_A, connection, connection)

    status = json.dumps(server.routes.dump(10_000)["brokerLiveTable"])
    assert f'"connections": {SESSIONS_MAX},' in status
    for connection in range(2, 1_000):
        assert server.routes.connection_closed(connection) == []
    assert server.routes.connection_closed(1) == ["group-a"]


def test_encoded_routes_are_forgotten_when_there_are_too_many() -> None:
    """Law: the cached answers have a limit in bytes; an evicted answer is made again and is the same."""
    server = core()
    names = [f"{number:0200}" for number in range(600)]
    for number in range(40):
        who = Identity("C" * 250, f"{number:0250}", 0, f"10.0.0.{number}:10911")
        register(server, who, registration(1, *map(topic, names)))
    first = server.routes.encoded_route(names[0])
    tracemalloc.start()
    for name in names:
        server.routes.encoded_route(name)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert used < 1.1 * ENCODED_BYTES_MAX
    assert first == server.routes.encoded_route(names[0])
