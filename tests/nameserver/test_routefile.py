"""Routes of ordered topics survive a restart of the name server."""

import logging
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orderlymq_nameserver import routefile
from orderlymq_nameserver.registrations import Identity
from orderlymq_nameserver.routefile import RouteFile
from orderlymq_nameserver.routes import RouteRegistry
from orderlymq_protocol.body.catalogue import DataVersion, TopicConfig, TopicRouteData
from orderlymq_protocol.body.config import QUEUES_MAX
from orderlymq_protocol.integers import INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN
from tests.nameserver.registrations import EXPIRY_MS, GROUP_A, GROUP_B, registration, topic

BODY = registration(7, topic("orders", 4, order=True), topic("plain", 8))


def registry(*, listed: str = "") -> RouteRegistry:
    return RouteRegistry(
        expiry_ms=EXPIRY_MS, ordered_conf=lambda name: "by hand" if name == listed else None
    )


def enter(
    routes: RouteRegistry,
    who: Identity,
    *,
    counter: int = 7,
    queues: int = 4,
    timestamp: int = 1,
    restored_with: frozenset[str] = frozenset(),
) -> None:
    body = registration(
        counter, topic("orders", queues, order=True), topic("plain", 8), timestamp=timestamp
    )
    routes.register(who, body, ha_address="", connection=1, now_ms=0, restored_with=restored_with)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the file of a name server that knew two broker groups that sign, and one that does not."""
    routes = registry()
    for who in (GROUP_A, GROUP_B):
        routes.reserve(who.broker_name)
        enter(routes, who)
    enter(routes, Identity("C", "stranger", 0, "192.0.2.1:10911"))
    path = tmp_path / "routes.json"
    RouteFile(path, routes).save()
    return path


def route_of(routes: RouteRegistry, name: str = "orders") -> TopicRouteData:
    found = routes.route(name)
    assert found is not None
    return found


def test_a_group_that_is_away_when_the_name_server_restarts_keeps_its_queues(path: Path) -> None:
    """Law: no key moves, no matter which group returns first, even for clients that ask before."""
    routes = registry()
    RouteFile(path, routes)
    before = route_of(routes)

    enter(routes, GROUP_B)

    for route in (before, route_of(routes)):
        assert [(each.broker_name, each.write_queue_nums) for each in route.queue_datas] == [
            ("group-a", 4),
            ("group-b", 4),
        ]
        assert [dict(each.broker_addrs) for each in route.broker_datas] == [
            {0: GROUP_A.address},
            {0: GROUP_B.address},
        ]
        assert route.order_topic_conf == "group-a:4;group-b:4"


def test_topics_without_order_and_names_that_do_not_sign_are_not_kept(path: Path) -> None:
    """Law: a possibly dead address is published only if a key would move without it."""
    routes = registry()
    RouteFile(path, routes)

    assert routes.topics() == ["orders"]
    assert routes.cluster_info().broker_addr_table == {}
    assert routes.is_reserved("group-a")
    assert not routes.is_reserved("stranger")


def numbers(routes: RouteRegistry) -> list[int]:
    return [each.write_queue_nums for each in route_of(routes).queue_datas]


@pytest.mark.parametrize("counter", [1, 7, 9])
def test_what_a_group_registers_then_is_believed(path: Path, counter: int) -> None:
    """Law: a later registration counts with any version number, because a new group begins to count at the start."""
    routes = registry()
    RouteFile(path, routes)

    enter(routes, GROUP_A, counter=counter, queues=6, timestamp=2)

    assert numbers(routes) == [6, 4]


def test_what_comes_from_a_backup_is_believed(path: Path) -> None:
    """Law: a restored group has the version of its backup, which is older than the last one of the former cluster."""
    routes = registry()
    RouteFile(path, routes)

    enter(routes, GROUP_A, counter=5, queues=6, timestamp=0, restored_with=frozenset({"group-a"}))

    assert numbers(routes) == [6, 4]


def test_a_replica_that_lags_and_comes_first_does_not_shrink_a_topic(path: Path) -> None:
    """Law: clients that ignore the list would use the queues from before the growth; this holds after a second restart."""
    for counter, timestamp in ((5, 0), (6, 1)):
        routes = registry()
        file = RouteFile(path, routes)
        enter(routes, GROUP_A, counter=counter, queues=2, timestamp=timestamp)
        file.save()
        assert numbers(routes) == [4, 4]

    enter(routes, GROUP_A, counter=8, queues=8, timestamp=3)
    file.save()
    enter(routes, GROUP_A, counter=9, queues=8, timestamp=4)
    file.save()
    later = registry()
    RouteFile(path, later)
    enter(later, GROUP_A, counter=7, queues=4, timestamp=2)
    assert numbers(later) == [8, 4]
    enter(later, GROUP_A, counter=9, queues=8, timestamp=4)
    assert numbers(later) == [8, 4]


def test_a_file_without_versions_keeps_nothing_from_a_group(path: Path) -> None:
    """An earlier release wrote the file without versions, so any registration counts."""
    groups = msgspec.json.decode(path.read_bytes())
    for group in groups.values():
        del group["version"]
    path.write_bytes(msgspec.json.encode(groups))
    routes = registry()
    RouteFile(path, routes)

    enter(routes, GROUP_A, counter=1, queues=6, timestamp=0)

    assert numbers(routes) == [6, 4]


@given(
    counts=st.tuples(st.integers(0, QUEUES_MAX), st.integers(0, QUEUES_MAX)),
    bits=st.tuples(st.integers(INT32_MIN, INT32_MAX), st.integers(INT32_MIN, INT32_MAX)),
    broker_id=st.integers(INT64_MIN, INT64_MAX),
)
@example(counts=(4, 4), bits=(6, -1), broker_id=0)
def test_what_a_group_registers_is_read_again(
    tmp_path_factory: pytest.TempPathFactory,
    counts: tuple[int, int],
    bits: tuple[int, int],
    broker_id: int,
) -> None:
    """Law: no registration makes the saved routes of other groups unreadable; their keys would move."""
    path, routes = tmp_path_factory.mktemp("kept") / "routes.json", registry()
    for name in ("group-a", "group-b"):
        routes.reserve(name)
    odd = TopicConfig("odd", *counts, bits[0], topic_sys_flag=bits[1], order=True)
    who = replace(GROUP_A, broker_id=broker_id)
    routes.register(who, registration(7, odd), ha_address="", connection=1, now_ms=0)
    enter(routes, GROUP_B)
    RouteFile(path, routes).save()
    later = registry()

    RouteFile(path, later)

    assert later.topics() == ["odd", "orders"]
    assert [later.route(each) for each in later.topics()] == [
        routes.route("odd"),
        routes.route("orders"),
    ]


def test_routes_that_could_not_be_read_again_replace_none(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that would be too large to read is not written, and a restart begins with the former routes."""
    routes = registry()
    file = RouteFile(path, routes)
    monkeypatch.setattr(routefile, "FILE_SIZE_MAX", path.stat().st_size)
    enter(routes, GROUP_A, counter=8, queues=4_000)
    file.save()

    later = registry()
    RouteFile(path, later)

    assert "a restart would begin with older routes" in caplog.text
    assert [each.write_queue_nums for each in route_of(later).queue_datas] == [4, 4]


def test_a_topic_that_is_deleted_stays_deleted(path: Path) -> None:
    """A tool deleted it, or its list by hand was removed; it stays deleted after the next restart, too."""
    routes = registry()
    file = RouteFile(path, routes)
    routes.delete_topic("orders")
    file.save()

    later = registry()
    RouteFile(path, later)

    assert later.topics() == []


def test_who_deletes_the_file_withdraws_what_is_lost_for_good(path: Path) -> None:
    """A running name server does not write an unchanged file again, as the page of errors says."""
    routes = registry()
    file = RouteFile(path, routes)
    file.save()
    path.unlink()
    file.save()

    later = registry()
    RouteFile(path, later)

    assert later.topics() == []


def test_a_list_by_hand_makes_a_topic_ordered_here_too(tmp_path: Path) -> None:
    """The topic counts as ordered as long as the list exists."""
    path, routes = tmp_path / "routes.json", registry(listed="plain")
    routes.reserve("group-a")
    enter(routes, GROUP_A)
    RouteFile(path, routes).save()
    listed, not_listed = registry(listed="plain"), registry()

    RouteFile(path, listed)
    RouteFile(path, not_listed)

    assert (listed.topics(), not_listed.topics()) == (["orders", "plain"], ["orders"])


def test_nothing_is_written_while_nothing_changes(path: Path) -> None:
    """Law: registrations that only renew, and those of strangers, cause no write."""
    routes = registry()
    file = RouteFile(path, routes)
    for _ in range(2):
        enter(routes, GROUP_A)
        enter(routes, Identity("C", "stranger", 0, "192.0.2.1:10911"))
        file.save()
    written = path.stat().st_ino

    enter(routes, GROUP_A)
    file.save()

    assert path.stat().st_ino == written


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b'{"group-a":{"cluster":"C","addresses":{"0":"x:1"},"topics":{"t":[-1,4,6,0,true]}}}',
        b'{"group-a":{"cluster":"C","addresses":{"0":"x:1"},"topics":{"t":[4,99999999,6,0,true]}}}',
        b'{"group-a":{"cluster":7}}',
    ],
)
def test_a_file_that_cannot_be_used_is_as_good_as_none(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Law: the name server starts, logs the error, and saves what broker groups register next."""
    path, routes = tmp_path / "routes.json", registry()
    path.write_bytes(content)
    with caplog.at_level(logging.ERROR):
        file = RouteFile(path, routes)
    assert routes.topics() == []
    assert "routes are available when the broker groups have registered" in caplog.text

    routes.reserve("group-a")
    enter(routes, GROUP_A)
    file.save()

    later = registry()
    RouteFile(path, later)
    assert later.topics() == ["orders"]


def test_a_file_that_cannot_be_written_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The name server tries again, because a restart would begin with the last saved routes."""
    routes = registry()
    file = RouteFile(tmp_path / "nothing" / "routes.json", routes)
    (tmp_path / "nothing").write_text("a file")
    routes.reserve("group-a")
    enter(routes, GROUP_A)
    with caplog.at_level(logging.ERROR):
        file.save()

    assert "a restart would begin with older routes" in caplog.text
    (tmp_path / "nothing").unlink()
    file.save()
    later = registry()
    RouteFile(tmp_path / "nothing" / "routes.json", later)
    assert later.topics() == ["orders"]


def test_a_version_is_read_as_of_a_group_that_is_not_there(path: Path) -> None:
    """Law: a broker that asks whether it must register (322) hears that it must."""
    routes = registry()
    RouteFile(path, routes)

    assert routes.version(GROUP_A) is None
    enter(routes, GROUP_A)
    assert routes.version(GROUP_A) == DataVersion(7, 1)
