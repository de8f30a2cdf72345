from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from orderlymq_operator.brokers.status import (
    CAUGHT_UP_LAG_MAX,
    Peer,
    ReplicaStatus,
    observe_replicas,
    parse_status,
    read_status,
)
from orderlymq_operator.plan.actions import ObservedReplica

_KNOWN = {node: ObservedReplica(running=True) for node in (1, 2, 3)}


def _status(
    role: str, leader: int | None, *, term: int = 1, lag: int = 0, active: bool = True
) -> ReplicaStatus:
    peers = {node: Peer(lag, active=active) for node in (1, 2, 3)}
    return ReplicaStatus(role, term, leader, peers, frozenset({1, 2, 3}), frozenset())


def test_the_page_of_a_broker_is_understood() -> None:
    """Law: the fields that the operator needs are read from a broker's page; others are ignored."""
    page = {
        "role": "leader",
        "term": 7,
        "leader": 1,
        "replicas": {"2": {"match": 9, "lag": 3, "active": True, "state": "replicate"}},
        "voters": [1, 2],
        "learners": [3],
        "pid": 1,
    }

    assert parse_status(page) == ReplicaStatus(
        "leader", 7, 1, {2: Peer(3, active=True)}, frozenset({1, 2}), frozenset({3})
    )


@pytest.mark.parametrize(
    "page",
    [
        {},
        {"role": "leader", "term": "x", "leader": 1},
        {"role": 1},
        [1],
        {"role": "leader", "term": 1, "leader": 1, "replicas": [1]},
        {"role": "leader", "term": 1, "leader": 1, "replicas": {"1": 3}},
        {"role": "leader", "term": 1, "leader": 1, "disk": "x"},
        {"role": "leader", "term": 1, "leader": 1, "voters": 5},
    ],
)
async def test_a_page_of_somebody_else_is_no_status(page: Any) -> None:
    """Law: a page of another program on the port is no status and raises nothing."""

    async def answer(_: web.Request) -> web.Response:
        return web.json_response(page)

    app = web.Application()
    app.router.add_get("/status", answer)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        assert await read_status(session, str(server.make_url("")).rstrip("/")) is None


def test_a_group_with_a_leader_is_healthy() -> None:
    """Law: with a leader, the followers that follow it are healthy and have caught up."""
    statuses = {1: _status("leader", 1), 2: _status("follower", 1), 3: _status("follower", 1)}

    leader, replicas = observe_replicas(_KNOWN, statuses)

    well = ObservedReplica(
        "voter", running=True, answers=True, healthy=True, caught_up=True, keeps_up=True
    )
    assert (leader, replicas) == (1, {1: well, 2: well, 3: well})


def test_of_two_leaders_the_one_of_the_later_term_counts() -> None:
    """Law: of two leaders the one with the later term counts; the other one is not healthy."""
    statuses = {
        1: _status("leader", 1, term=4),
        2: _status("leader", 2, term=5),
        3: _status("follower", 2, term=5),
    }

    leader, replicas = observe_replicas(_KNOWN, statuses)

    assert leader == 2
    assert {node: item.healthy for node, item in replicas.items()} == {1: False, 2: True, 3: True}


def test_a_silent_replica_is_not_healthy_and_a_lagging_one_not_caught_up() -> None:
    """Law: a silent replica is not healthy and a lagging one has not caught up; neither gets the leadership."""
    statuses = {1: _status("leader", 1, lag=CAUGHT_UP_LAG_MAX + 1), 2: _status("follower", 1)}

    _, replicas = observe_replicas(_KNOWN, statuses)

    facts = {node: (item.healthy, item.caught_up) for node, item in replicas.items()}
    assert facts == {1: (True, True), 2: (True, False), 3: (False, False)}


def test_a_follower_that_the_leader_has_not_heard_of_for_a_moment_keeps_up() -> None:
    """Law: a follower that the leader has not heard of for a moment still keeps up, but does not get the leadership now."""
    statuses = {
        1: _status("leader", 1, active=False),
        2: _status("follower", 1),
        3: _status("candidate", None),
    }

    _, replicas = observe_replicas(_KNOWN, statuses)

    facts = {node: (item.caught_up, item.keeps_up) for node, item in replicas.items()}
    assert facts == {1: (True, True), 2: (False, True), 3: (False, False)}


def test_a_replica_that_waits_to_be_added_is_outside_and_alive() -> None:
    """Law: a replica that waits to be added is outside, and healthy without a leader."""
    known = {**_KNOWN, 4: ObservedReplica(running=True, join=True)}
    statuses = {1: _status("leader", 1), 4: _status("follower", None)}

    _, replicas = observe_replicas(known, statuses)

    assert (replicas[4].member, replicas[4].healthy) == ("outside", True)


def test_a_member_that_nobody_keeps_running_is_a_replica_that_is_lost() -> None:
    """Law: a member without a running process counts as a lost replica, so that the group is not called healthy."""
    leading = replace(
        _status("leader", 1), voters=frozenset({1, 2, 3, 4}), learners=frozenset({5, 6})
    )
    statuses = {1: leading, 2: _status("follower", 1), 3: _status("follower", 1)}
    known = {**_KNOWN, 6: ObservedReplica(running=True, join=True)}

    _, replicas = observe_replicas(known, statuses)

    assert replicas.keys() == {1, 2, 3, 4, 5, 6}
    assert replicas[4] == ObservedReplica("voter", join=True)
    assert replicas[5] == ObservedReplica("learner", join=True)
    assert replicas[6].running


def test_without_a_leader_nobody_is_a_member_for_sure() -> None:
    """Law: without a leader no replica is surely a member, because a follower's list may be old."""
    statuses = {1: _status("follower", None), 2: _status("follower", None)}

    leader, replicas = observe_replicas(_KNOWN, statuses)

    assert leader is None
    assert {item.member for item in replicas.values()} == {"outside"}
