"""After a restore no client gets a part of the queues of an ordered topic, because its keys would move."""

from pathlib import Path

import pytest

from orderlymq_nameserver.kv import KvTable
from orderlymq_nameserver.processor import KNOWS_ALL_AFTER_MS, NameServerCore
from orderlymq_nameserver.proofs import Proofs
from orderlymq_nameserver.routefile import RouteFile
from orderlymq_nameserver.routes import BROKERS_MAX, RouteRegistry
from orderlymq_protocol.frame.command import request
from tests.nameserver.registrations import (
    EXPIRY_MS,
    GROUP_A,
    GROUP_B,
    core,
    queues,
    register,
    register_request,
    registration,
    route,
    topic,
)

LATER = 10 * KNOWS_ALL_AFTER_MS
BOTH = "group-a;group-b"
TOPICS = registration(
    1, topic("orders", order=True), topic("logs"), topic("TBW102", 8), timestamp=1
)


def waits(server: NameServerCore, name: str) -> bool:
    return server.knows_too_little(request(105, {"topic": name}), LATER)


def test_an_ordered_topic_has_no_route_until_all_restored_groups_have_registered() -> None:
    """Law: topics that another broker group may have, and the template, have no route either; other topics have theirs."""
    server = core()
    reply = register(server, GROUP_A, TOPICS, restored=BOTH)

    assert reply.ext["awaitedGroups"] == "group-b"
    assert [waits(server, name) for name in ("orders", "unknown", "TBW102")] == [True] * 3
    assert [route(server, name) for name in ("orders", "unknown", "TBW102")] == [None] * 3
    assert not waits(server, "logs")
    assert queues(server, "logs") == {"group-a": 4}

    before = server.judges_by(LATER)
    reply = register(server, GROUP_B, TOPICS, connection=2, restored=BOTH)

    assert server.judges_by(LATER) != before, "who waits is looked at again"
    assert "awaitedGroups" not in reply.ext
    assert not waits(server, "orders")
    assert queues(server, "orders") == {"group-a": 4, "group-b": 4}


def test_what_comes_from_a_backup_is_believed_by_a_name_server_that_knew_more() -> None:
    """Law: a restored group replaces what the name server knew of the former one; a replica that lags changes nothing."""
    server = core()
    later = registration(9, topic("orders", 8, order=True), topic("bills", order=True), timestamp=9)
    grown = registration(2, topic("orders", 6, order=True), timestamp=10)
    register(server, GROUP_A, later)
    server.routes.connection_closed(1)
    assert queues(server, "orders") == {"group-a": 8}

    register(server, GROUP_A, TOPICS, connection=2, restored="group-a")
    assert queues(server, "orders") == {"group-a": 4}
    assert route(server, "bills") is None

    register(server, GROUP_A, grown, connection=3, restored="group-a")
    register(server, GROUP_A, TOPICS, connection=4, restored="group-a")
    assert queues(server, "orders") == {"group-a": 6}


def test_a_group_that_has_registered_once_is_not_awaited_again() -> None:
    """Law: a group counts as heard after its first registration, so that one that goes away later withholds no route."""
    server = core()
    empty = registration(1, topic("logs"))
    register(server, GROUP_A, TOPICS, restored=BOTH)
    register(server, GROUP_B, empty, connection=2, restored=BOTH)
    server.routes.connection_closed(2)

    assert queues(server, "orders") == {"group-a": 4}
    # Another name server may not have answered yet, so the reply still names the broker groups.
    reply = register(server, GROUP_A, TOPICS, restored=BOTH)
    assert "awaitedGroups" not in reply.ext
    assert queues(server, "orders") == {"group-a": 4}


def test_a_group_that_was_there_before_its_fellow_is_not_awaited_again() -> None:
    server = core()
    register(server, GROUP_B, registration(1, topic("logs")), connection=2)
    register(server, GROUP_A, TOPICS, restored=BOTH)
    server.routes.connection_closed(2)
    register(server, GROUP_A, TOPICS, restored=BOTH)

    assert queues(server, "orders") == {"group-a": 4}


def test_a_replica_that_was_not_restored_itself_ends_no_waiting() -> None:
    server = core()
    register(server, GROUP_A, TOPICS, restored=BOTH)
    register(server, GROUP_A, TOPICS, connection=3)

    assert route(server, "orders") is None


def test_a_group_that_is_gone_again_still_names_the_others() -> None:
    """The lost group's ordered topics stay published, so clients would see a part of their queues."""
    server = core()
    register(server, GROUP_A, TOPICS, restored=BOTH)
    server.routes.connection_closed(1)

    assert route(server, "orders") is None


def test_other_clusters_of_the_name_server_have_their_routes() -> None:
    server = core()
    register(server, GROUP_A, TOPICS, restored="group-a;group-c")
    register(server, GROUP_B, registration(1, topic("bills", order=True)), connection=2)

    assert queues(server, "bills") == {"group-b": 4}


def test_a_stranger_keeps_no_route_away() -> None:
    """Law: if brokers sign, only signed registrations name broker groups that the server waits for."""
    server = NameServerCore(
        KvTable(), expiry_ms=EXPIRY_MS, proofs=Proofs(b"k" * 32, allow_unsigned=True)
    )
    register(server, GROUP_A, TOPICS, restored="group-a;nobody")

    assert queues(server, "orders") == {"group-a": 4}


def test_a_stranger_is_none_of_the_groups_that_are_awaited() -> None:
    server = NameServerCore(
        KvTable(), expiry_ms=EXPIRY_MS, proofs=Proofs(b"k" * 32, allow_unsigned=True)
    )
    server.routes.reserve(GROUP_A.broker_name)
    server.routes.register(
        GROUP_A,
        TOPICS,
        ha_address="",
        connection=1,
        now_ms=0,
        restored_with=frozenset(BOTH.split(";")),
    )
    register(server, GROUP_B, TOPICS, connection=2)

    assert server.routes.awaited("group-a") == {"group-b"}
    assert route(server, "orders") is None


@pytest.mark.parametrize(
    "names", ["n" * 256, ";".join(f"g-{number}" for number in range(BROKERS_MAX + 1))]
)
def test_names_without_end_are_refused(names: str) -> None:
    server = core()
    assert server.handle(register_request(GROUP_A, TOPICS, restoredGroups=names), 1, 0).code == 1
    assert route(server, "logs") is None


def test_a_name_server_that_starts_again_awaits_the_same(tmp_path: Path) -> None:
    def make() -> RouteRegistry:
        return NameServerCore(KvTable(), expiry_ms=EXPIRY_MS).routes

    first = core()
    first.routes.reserve(GROUP_A.broker_name)
    kept = RouteFile(tmp_path / "routes.json", first.routes)
    register(first, GROUP_A, TOPICS, restored=BOTH)
    kept.save()

    again = make()
    RouteFile(tmp_path / "routes.json", again)
    assert again.awaits("orders")
    assert again.awaited("group-a") == {"group-b"}

    register(first, GROUP_B, registration(1, topic("logs")), connection=2)
    kept.save()
    again = make()
    RouteFile(tmp_path / "routes.json", again)
    again.register(
        GROUP_A,
        TOPICS,
        ha_address="",
        connection=1,
        now_ms=0,
        restored_with=frozenset(BOTH.split(";")),
    )
    assert not again.awaits("orders"), "it was heard in a former life"
