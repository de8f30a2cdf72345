"""Answers to requests: by this replica when it is certain, later when it is not, never by guess."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from orderlymq_broker.core.bodylimits import body_size_max
from orderlymq_broker.server.leadership import FOLLOWER_CLIENT_S
from orderlymq_broker.server.router import WAITING_BYTES_MAX, WAITING_MAX, Admission
from orderlymq_protocol.codes import LanguageCode, RequestCode
from orderlymq_protocol.frame.command import RemotingCommand, request
from tests.broker.server.router import Client, World, ask, told

SEND = RequestCode.SEND_MESSAGE_V2
PULL = RequestCode.PULL_MESSAGE


def test_a_serving_leader_answers() -> None:
    """The usual case."""
    world = World()
    world.routers[1].lead(1)
    client = world.connect(1)

    world.ask(1, client, ask(SEND, 1), ask(SEND, 2))

    assert told(client) == [(1, 0, "node 1"), (2, 0, "node 1")]


def test_requests_wait_in_order_while_the_leader_is_not_certain() -> None:
    """A lease that has run out holds everything back, in the order it came."""
    world = World()
    router = world.routers[1]
    router.lead(1)
    client = world.connect(1)
    router.certain = False
    world.ask(1, client, ask(SEND, 1))
    router.certain = True
    # The first request goes first, also before those that come when certainty is back.
    world.ask(1, client, ask(SEND, 2))

    assert told(client) == [(1, 0, "node 1"), (2, 0, "node 1")]


def test_waiting_ends_with_the_connection() -> None:
    """Nobody is left without an answer until its own time-out: the client notices a reset immediately."""
    world = World()
    router = world.routers[1]
    router.lead(1)
    client = world.connect(1)
    router.certain = False
    world.ask(1, client, ask(SEND, 1))

    world.pass_time(0.1)
    world.pass_time(1.0)
    assert client.closed == ""
    world.pass_time(1.0)

    assert (client.closed, router.clients.waiting) == ("reset", 0)


def test_a_lost_client_waits_for_nothing() -> None:
    """The router drops its requests, and the core hears of its end."""
    world = World()
    router = world.routers[1]
    router.lead(1)
    client = world.connect(1)
    router.certain = False
    world.ask(1, client, ask(SEND, 1))

    router.clients.connection_lost(client)
    router.certain = True
    router.clients.retry()

    assert (router.handled, router.gone) == ([], [1])


def test_the_waiting_room_has_a_limit() -> None:
    """A flood while nobody leads costs its sender the connection, not us the memory."""
    world = World()
    client = world.connect(1)

    world.ask(1, client, *(ask(SEND, number) for number in range(WAITING_MAX + 1)))

    assert client.closed == "reset"


@pytest.mark.parametrize(
    ("node", "size", "count"),
    [(1, 0, WAITING_MAX), (2, 1 << 20, WAITING_BYTES_MAX >> 20)],
    ids=["requests", "bytes, passed on"],
)
def test_who_holds_the_waiting_room_leaves_it(node: int, size: int, count: int) -> None:
    """Law: the places that one client takes are taken from no other, connected here or elsewhere."""
    world = World()
    router = world.routers[1]
    router.lead(1)
    world.routers[2].follow(1, 1)
    router.certain = False
    others = {at: world.connect(at) for at in (1, 2)}
    largest = world.connect(node, 7)

    for at, other in others.items():
        world.ask(at, other, ask(SEND, 1))
    body = bytes(size)
    world.ask(node, largest, *(replace(ask(SEND, 1), body=body) for _ in range(count)))
    for at, other in others.items():
        world.ask(at, other, ask(SEND, 2))
    # A request that it sends before it knows of its end is nobody's.
    world.ask(node, largest, ask(SEND, 2))
    router.certain = True
    router.clients.retry()

    assert (largest.closed, largest.told) == ("reset", [])
    for other in others.values():
        assert (other.closed, told(other)) == ("", [(1, 0, "node 1"), (2, 0, "node 1")])
    assert router.clients.waiting == 0


def test_what_a_client_that_is_gone_left_takes_no_place_of_others() -> None:
    """Law: nobody is closed for the requests of somebody who hung up."""
    world = World()
    others = [world.connect(1, number) for number in range(40)]
    for other in others:
        world.ask(1, other, ask(SEND, 1))
    gone = world.connect(1, 99)
    large = replace(ask(SEND, 1), body=bytes(2_000_000))
    world.ask(1, gone, *[large] * (WAITING_BYTES_MAX // 2_000_000 - 1))
    assert gone.closed == ""

    world.routers[1].clients.connection_lost(gone)
    for other in others[:3]:
        world.ask(1, other, large)

    assert {other.closed for other in others} == {""}
    assert world.routers[1].clients.waiting == 43


@pytest.mark.parametrize(
    ("request_", "bytes_least"),
    [
        (RemotingCommand(11, remark="x" * 1_000_000), 1_000_000),
        (RemotingCommand(11, remark="\U0001f600" * 250_000), 1_000_000),
        (RemotingCommand(11, ext={f"{number:x}": "" for number in range(100_000)}), 5_000_000),
        (RemotingCommand(11, body=bytes(60_000)), 60_000),
    ],
    ids=["remark", "wide letters", "fields", "body"],
)
def test_what_waits_is_bounded_by_the_memory_that_it_takes(
    request_: RemotingCommand, bytes_least: int
) -> None:
    """Law: 64 MiB wait for a leader at most, whatever part of a request they are."""
    world = World()
    count = WAITING_BYTES_MAX // bytes_least + 1
    lines = [world.connect(1, number) for number in range(count)]

    for line in lines:
        world.ask(1, line, request_)

    assert {line.closed for line in lines} == {"reset", ""}
    assert world.routers[1].clients.waiting * bytes_least <= WAITING_BYTES_MAX


def test_a_failing_handler_is_answered_and_the_rest_is_served() -> None:
    """One request that trips over a fault of ours does not take the others with it."""
    world = World()
    router = world.routers[1]
    router.lead(1)
    client = world.connect(1)

    def explode(line: object, command: object) -> None:
        raise RuntimeError("boom")

    setattr(router, "handle", explode)  # noqa: B010 - a fault of ours
    world.ask(1, client, ask(SEND, 1), ask(SEND, 2))

    assert told(client) == [(1, 1, "RuntimeError: boom"), (2, 1, "RuntimeError: boom")]


def test_an_offset_query_that_fails_closes_the_connection() -> None:
    """Law: it gets no error code; clients up to 4.9 would jump to the end of the queue."""
    world = World()
    router = world.routers[1]
    router.lead(1)
    failed, too_long = world.connect(1), world.connect(1, 2)

    def explode() -> None:
        raise RuntimeError("boom")

    router.on_handle = explode
    query = {"consumerGroup": "billing", "topic": "orders", "queueId": "0"}
    world.ask(1, failed, ask(RequestCode.QUERY_CONSUMER_OFFSET, 1, **query))
    world.ask(1, too_long, request(RequestCode.QUERY_CONSUMER_OFFSET, query, bytes(64 << 20)))

    assert [(each.told, each.closed) for each in (failed, too_long)] == [([], "reset")] * 2


@pytest.mark.parametrize("code", [36, 38])
def test_a_request_that_fails_is_not_answered_to_who_would_take_it_for_success(code: int) -> None:
    """Law: Go's client keeps its message and its queues when no answer comes, and skips or leaves them for a refusal."""
    world = World()
    world.routers[1].lead(1)
    client = world.connect(1)

    def explode() -> None:
        raise RuntimeError("boom")

    world.routers[1].on_handle = explode
    world.ask(1, client, replace(ask(code, 1), language=LanguageCode.GO), ask(code, 2))

    assert [(each.opaque, each.code) for each in client.told] == [(2, 1)]
    assert client.closed == ""


async def test_nobody_stays_at_a_follower_for_an_answer_that_may_never_come() -> None:
    """Law: a client that came to a follower is let go, also when the leader sends it no refusal."""
    world = World(always_open=True)
    world.routers[2].lead(1)
    world.routers[1].follow(2, 1)
    world.routers[2].holds = {36}
    client = world.connect(1)
    world.ask(1, client, replace(ask(36, 1), language=LanguageCode.GO))

    world.pass_time(0.1)
    world.pass_time(2 * FOLLOWER_CLIENT_S)

    async with asyncio.timeout(10.0):
        while not client.closed:  # noqa: ASYNC110 - nothing signals it
            await asyncio.sleep(0.01)


def test_an_open_follower_passes_on_what_a_service_brought_to_it() -> None:
    """Behind a service, which follows the leader late, a follower that knows the leader refuses nobody.

    What is asked of this replica itself, as its status is, it answers itself.
    """
    world = World(always_open=True)
    world.routers[2].lead(1)
    world.routers[1].follow(2, 1)
    router = world.routers[1]
    router.clients.intercept(
        RequestCode.ORDERLYMQ_GROUP_STATUS,
        lambda line, command: line.send(command.reply(remark="status of node 1")),
        of_replica=True,
    )
    client = world.connect(1)

    world.ask(1, client, ask(SEND, 1), ask(RequestCode.ORDERLYMQ_GROUP_STATUS, 2), ask(PULL, 3))

    assert sorted(told(client)) == [
        (1, 0, "node 2"),
        (2, 0, "status of node 1"),
        (3, 0, "node 2"),
    ]

    stranger = world.connect(1, 2)
    router.refused.add(stranger.id)
    world.ask(1, stranger, ask(RequestCode.ORDERLYMQ_GROUP_STATUS, 1))
    assert told(stranger) == [(1, 1, "no right")]


@pytest.mark.parametrize("admission", Admission)
def test_a_ping_is_answered_before_whatever_waits(admission: Admission) -> None:
    """Law: a process that is there says so, whatever its disk, its group and its access control do."""
    world = World()
    world.routers[1].clients.set_admission(admission)
    client = world.connect(1)
    world.routers[1].refused.add(client.id)

    world.ask(1, client, ask(PULL, 1), ask(RequestCode.ORDERLYMQ_PING, 2))

    assert (2, 0, None) in told(client)


def test_an_open_follower_without_a_leader_lets_the_core_answer() -> None:
    """Nobody can serve it: the core knows what a follower may say, a definite refusal for a send."""
    world = World(always_open=True)
    world.routers[1].follow(None, 1)
    client = world.connect(1)

    world.ask(1, client, ask(PULL, 1))

    assert told(client) == [(1, 0, "node 1")]


def test_a_body_that_is_too_large_to_be_read_is_refused_unread() -> None:
    """Reading would hold up the loop that runs raft; messages are not read and pass."""
    world = World()
    world.routers[1].lead(1)
    client = world.connect(1)
    size = body_size_max(RequestCode.QUERY_ASSIGNMENT)
    assert size is not None

    for code, length in (
        (RequestCode.QUERY_ASSIGNMENT, size),
        (RequestCode.QUERY_ASSIGNMENT, size + 1),
        (RequestCode.SEND_MESSAGE, 4 << 20),
    ):
        world.ask(1, client, request(code, {}, b"x" * length))

    assert [answer.code for answer in client.told] == [0, 1, 0]
    assert "send less in one request" in (client.told[1].remark or "")
    assert [code for code, _ in world.routers[1].handled] == [400, 10]


class _CountingClient(Client):
    """Counts how often anybody asks which line it is."""

    looked = 0

    def __getattribute__(self, name: str) -> Any:
        if name == "id":
            _CountingClient.looked += 1
        return super().__getattribute__(name)


@pytest.mark.parametrize("count", [50, 400])
def test_clients_that_go_while_requests_wait_cost_what_they_asked(count: int) -> None:
    """After a crash of the leader thousands of connections break: each must not walk through all that waits."""
    world = World()
    router = world.routers[1]
    lines = [_CountingClient(number) for number in range(count)]
    for line in lines:
        router.clients.connection_made(line)
        world.ask(1, line, request(11), request(11))
    assert router.clients.waiting == 2 * count
    _CountingClient.looked = 0

    for line in lines[1:]:
        router.clients.connection_lost(line)

    assert _CountingClient.looked <= 20 * count
    assert router.clients.waiting == 2
    router.lead(1)
    assert [peer.connection for _, peer in router.handled] == [0, 0]
    assert router.clients.waiting == 0


def test_a_request_of_a_client_that_is_gone_is_not_passed_on() -> None:
    """It stands in front of others; nobody would take its answer."""
    world = World()
    first, second = world.connect(1, 1), world.connect(1, 2)
    world.ask(1, first, request(11))
    world.ask(1, second, request(12), request(29))

    world.routers[1].clients.connection_lost(first)
    world.routers[2].lead(1)
    world.routers[1].follow(2, 1)

    assert [code for code, _ in world.routers[2].handled] == [12, 29]
    assert len(second.told) == 2
    assert world.routers[1].clients.waiting == 0


def test_without_a_lease_requests_wait_for_one_confirmation_together() -> None:
    """Law: a leader far from the others answers what it was asked before they confirmed it."""
    world = World()
    router = world.routers[1]
    router.certain = False
    client = world.connect(1)

    world.ask(1, client, ask(SEND, 1), ask(SEND, 2))
    router.lead(1)
    world.ask(1, client, ask(PULL, 3))
    assert router.asked == 2

    router.confirmed = 1
    router.clients.retry()
    assert [opaque for opaque, _, _ in told(client)] == [1, 2]
    router.confirmed = 2
    router.clients.retry()
    assert [opaque for opaque, _, _ in told(client)] == [1, 2, 3]


def test_a_confirmation_of_an_earlier_reign_is_asked_for_again() -> None:
    """A round of this reign confirms a request that waited while another led."""
    world = World()
    router = world.routers[1]
    router.lead(1)
    router.certain = False
    client = world.connect(1)
    world.ask(1, client, ask(SEND, 1))
    router.follow(None, 2)

    router.lead(3)

    assert router.asked == 2


def test_a_queue_that_moves_is_not_dropped() -> None:
    """On a slow link something always waits, each for one round trip."""
    world = World()
    router = world.routers[1]
    router.lead(1)
    router.certain = False
    client = world.connect(1)

    for number in range(20):
        world.ask(1, client, ask(SEND, number))
        world.pass_time(0.4)
        router.confirmed = router.asked - 1
        router.clients.retry()

    assert client.closed == ""
    assert [opaque for opaque, _, _ in told(client)] == list(range(19))


def test_what_is_too_large_to_be_read_does_not_wait() -> None:
    """Law: a request that nobody will read is refused immediately and takes no place among those that wait."""
    world = World()
    client = world.connect(1)
    size = body_size_max(RequestCode.QUERY_ASSIGNMENT)
    assert size is not None

    world.ask(1, client, request(RequestCode.QUERY_ASSIGNMENT, {}, bytes(size + 1)))

    assert [answer.code for answer in client.told] == [1]
    assert world.routers[1].clients.waiting == 0


def test_what_a_waiting_request_raises_ends_its_own_connection_alone() -> None:
    """Law: the loop that runs raft works off what waited, and one request's fault is not its own."""
    world = World()
    router = world.routers[1]

    def explode(line: object, command: object) -> None:
        raise RuntimeError("boom")

    router.clients.intercept(RequestCode.ORDERLYMQ_GROUP_STATUS, explode, of_replica=True)
    bad, good = world.connect(1, 1), world.connect(1, 2)
    world.ask(1, bad, ask(RequestCode.ORDERLYMQ_GROUP_STATUS, 1))
    world.ask(1, good, ask(SEND, 2))

    router.lead(1)

    assert (bad.closed, bad.told) == ("reset", [])
    assert told(good) == [(2, 0, "node 1")]
