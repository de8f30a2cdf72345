"""A request is answered when this replica is certain of its leadership, later if it is not, and never by guess."""

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
    """Law: a serving leader answers its requests."""
    world = World()
    world.routers[1].lead(1)
    client = world.connect(1)

    world.ask(1, client, ask(SEND, 1), ask(SEND, 2))

    assert told(client) == [(1, 0, "node 1"), (2, 0, "node 1")]


def test_requests_wait_in_order_while_the_leader_is_not_certain() -> None:
    """Law: while the lease is over, requests wait in their order."""
    world = World()
    router = world.routers[1]
    router.lead(1)
    client = world.connect(1)
    router.certain = False
    world.ask(1, client, ask(SEND, 1))
    router.certain = True
    # The first request comes first, also before those that arrive when the lease is back.
    world.ask(1, client, ask(SEND, 2))

    assert told(client) == [(1, 0, "node 1"), (2, 0, "node 1")]


def test_waiting_ends_with_the_connection() -> None:
    """Law: after waiting too long, a client's connection is reset, so that it need not wait for its own time-out."""
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
    """Law: when a client ends, its waiting requests are dropped and the core is told."""
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
    """Law: too many waiting requests of a client cost it the connection, so that memory stays bounded."""
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
    """Law: when the waiting room is full, the client with the most requests is closed, and others keep their places."""
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
    # Requests that it sends before it learns of its end are ignored.
    world.ask(node, largest, ask(SEND, 2))
    router.certain = True
    router.clients.retry()

    assert (largest.closed, largest.told) == ("reset", [])
    for other in others.values():
        assert (other.closed, told(other)) == ("", [(1, 0, "node 1"), (2, 0, "node 1")])
    assert router.clients.waiting == 0


def test_what_a_client_that_is_gone_left_takes_no_place_of_others() -> None:
    """Law: requests of a client that has gone take no places from others."""
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
    """Law: at most 64 MiB of requests wait for a leader, counting all their parts."""
    world = World()
    count = WAITING_BYTES_MAX // bytes_least + 1
    connections = [world.connect(1, number) for number in range(count)]

    for connection in connections:
        world.ask(1, connection, request_)

    assert {connection.closed for connection in connections} == {"reset", ""}
    assert world.routers[1].clients.waiting * bytes_least <= WAITING_BYTES_MAX


def test_a_failing_handler_is_answered_and_the_rest_is_served() -> None:
    """Law: if a handler raises, that request gets an error and the others are served."""
    world = World()
    router = world.routers[1]
    router.lead(1)
    client = world.connect(1)

    def explode(connection: object, command: object) -> None:
        raise RuntimeError("boom")

    setattr(router, "handle", explode)  # noqa: B010 - a fault of ours
    world.ask(1, client, ask(SEND, 1), ask(SEND, 2))

    assert told(client) == [(1, 1, "RuntimeError: boom"), (2, 1, "RuntimeError: boom")]


def test_an_offset_query_that_fails_closes_the_connection() -> None:
    """Law: an offset query that fails closes the connection, because clients up to 4.9 would take an error code for
    "start at the end".
    """
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
    """Law: a failed request of Go's client gets no answer where that client would take a refusal for success."""
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
    """Law: a client at a follower is let go even if the leader never answers its request."""
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
    """Law: behind a Service, a follower that knows the leader forwards requests instead of refusing them.

    Requests about this replica itself, such as its status, are answered here.
    """
    world = World(always_open=True)
    world.routers[2].lead(1)
    world.routers[1].follow(2, 1)
    router = world.routers[1]
    router.clients.intercept(
        RequestCode.ORDERLYMQ_GROUP_STATUS,
        lambda connection, command: connection.send(command.reply(remark="status of node 1")),
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
    """Law: a ping is answered immediately, whatever disk, raft group and access control do."""
    world = World()
    world.routers[1].clients.set_admission(admission)
    client = world.connect(1)
    world.routers[1].refused.add(client.id)

    world.ask(1, client, ask(PULL, 1), ask(RequestCode.ORDERLYMQ_PING, 2))

    assert (2, 0, None) in told(client)


def test_an_open_follower_without_a_leader_lets_the_core_answer() -> None:
    """Law: at a follower without a known leader the core answers, for example with a definite refusal of a send."""
    world = World(always_open=True)
    world.routers[1].follow(None, 1)
    client = world.connect(1)

    world.ask(1, client, ask(PULL, 1))

    assert told(client) == [(1, 0, "node 1")]


def test_a_body_that_is_too_large_to_be_read_is_refused_unread() -> None:
    """Law: a body that is too large is refused before it is decoded, which would block raft's loop.

    Message bodies are not decoded and pass.
    """
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
    """A client that counts how often its connection is compared."""

    looked = 0

    def __getattribute__(self, name: str) -> Any:
        if name == "id":
            _CountingClient.looked += 1
        return super().__getattribute__(name)


@pytest.mark.parametrize("count", [50, 400])
def test_clients_that_go_while_requests_wait_cost_what_they_asked(count: int) -> None:
    """Law: when thousands of connections end, each costs only its own waiting requests, not a walk over all of them."""
    world = World()
    router = world.routers[1]
    connections = [_CountingClient(number) for number in range(count)]
    for connection in connections:
        router.clients.connection_made(connection)
        world.ask(1, connection, request(11), request(11))
    assert router.clients.waiting == 2 * count
    _CountingClient.looked = 0

    for connection in connections[1:]:
        router.clients.connection_lost(connection)

    assert _CountingClient.looked <= 20 * count
    assert router.clients.waiting == 2
    router.lead(1)
    assert [peer.connection for _, peer in router.handled] == [0, 0]
    assert router.clients.waiting == 0


def test_a_request_of_a_client_that_is_gone_is_not_passed_on() -> None:
    """Law: requests of a client that has ended are not forwarded."""
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
    """Law: without a lease, waiting requests share one confirmation; those that came after its round wait for the next."""
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
    """Law: a request that waited through another leadership is confirmed by a round of the new one."""
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
    """Law: on a slow link, requests that make progress are not dropped although something always waits."""
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
    """Law: a request that is too large to be read is refused immediately and does not wait."""
    world = World()
    client = world.connect(1)
    size = body_size_max(RequestCode.QUERY_ASSIGNMENT)
    assert size is not None

    world.ask(1, client, request(RequestCode.QUERY_ASSIGNMENT, {}, bytes(size + 1)))

    assert [answer.code for answer in client.told] == [1]
    assert world.routers[1].clients.waiting == 0


def test_what_a_waiting_request_raises_ends_its_own_connection_alone() -> None:
    """Law: if a waiting request raises when it is served, only its own connection ends."""
    world = World()
    router = world.routers[1]

    def explode(connection: object, command: object) -> None:
        raise RuntimeError("boom")

    router.clients.intercept(RequestCode.ORDERLYMQ_GROUP_STATUS, explode, of_replica=True)
    bad, good = world.connect(1, 1), world.connect(1, 2)
    world.ask(1, bad, ask(RequestCode.ORDERLYMQ_GROUP_STATUS, 1))
    world.ask(1, good, ask(SEND, 2))

    router.lead(1)

    assert (bad.closed, bad.told) == ("reset", [])
    assert told(good) == [(2, 0, "node 1")]
