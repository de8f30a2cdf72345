"""Who answers a request: this replica when it is certain, later when it is not, never by guess."""

from orderlymq_broker.net.clients import WAITING_MAX
from orderlymq_protocol.codes import RequestCode
from tests.broker.net.desk import World, ask, told

SEND = RequestCode.SEND_MESSAGE_V2
PULL = RequestCode.PULL_MESSAGE


def test_a_serving_leader_answers() -> None:
    """The usual case."""
    world = World()
    world.desks[1].lead(1)
    client = world.connect(1)

    world.ask(1, client, ask(SEND, 1), ask(SEND, 2))

    assert told(client) == [(1, 0, "node 1"), (2, 0, "node 1")]


def test_requests_wait_in_order_while_the_leader_is_not_certain() -> None:
    """A lease that has run out holds everything back, in the order it came."""
    world = World()
    desk = world.desks[1]
    desk.lead(1)
    client = world.connect(1)
    desk.certain = False
    world.ask(1, client, ask(SEND, 1))
    desk.certain = True
    # What came first goes first, also before what comes when certainty is back.
    world.ask(1, client, ask(SEND, 2))

    assert told(client) == [(1, 0, "node 1"), (2, 0, "node 1")]


def test_waiting_ends_with_the_connection() -> None:
    """Nobody is left without an answer until its own time-out: the client notices a reset at once."""
    world = World()
    desk = world.desks[1]
    desk.lead(1)
    client = world.connect(1)
    desk.certain = False
    world.ask(1, client, ask(SEND, 1))

    world.pass_time(0.1)
    world.pass_time(1.0)
    assert client.closed == ""
    world.pass_time(1.0)

    assert (client.closed, desk.clients.waiting) == ("reset", 0)


def test_a_lost_client_waits_for_nothing() -> None:
    """What it asked is not done for it any more, and the core hears of its end."""
    world = World()
    desk = world.desks[1]
    desk.lead(1)
    client = world.connect(1)
    desk.certain = False
    world.ask(1, client, ask(SEND, 1))

    desk.clients.line_lost(client)
    desk.certain = True
    desk.clients.retry()

    assert (desk.handled, desk.gone) == ([], [1])


def test_the_waiting_room_has_a_limit() -> None:
    """A flood while nobody leads costs its sender the connection, not us the memory."""
    world = World()
    client = world.connect(1)

    world.ask(1, client, *(ask(SEND, number) for number in range(WAITING_MAX + 1)))

    assert client.closed == "reset"


def test_a_failing_handler_is_answered_and_the_rest_is_served() -> None:
    """One request that trips over a fault of ours does not take the others with it."""
    world = World()
    desk = world.desks[1]
    desk.lead(1)
    client = world.connect(1)

    def explode(line: object, command: object) -> None:
        raise RuntimeError("boom")

    setattr(desk, "handle", explode)  # noqa: B010 - a fault of ours
    world.ask(1, client, ask(SEND, 1), ask(SEND, 2))

    assert told(client) == [(1, 1, "RuntimeError: boom"), (2, 1, "RuntimeError: boom")]


def test_an_open_follower_passes_on_what_a_service_brought_to_it() -> None:
    """Behind a service, which follows the leader late, a follower that knows the leader refuses nobody.

    What is asked of this replica itself, as its status is, it answers itself.
    """
    world = World(always_open=True)
    world.desks[2].lead(1)
    world.desks[1].follow(2, 1)
    desk = world.desks[1]
    desk.clients.intercept(
        RequestCode.ORDERLYMQ_GROUP_STATUS,
        lambda line, command: line.send(command.reply(remark="status of node 1")),
    )
    client = world.connect(1)

    world.ask(1, client, ask(SEND, 1), ask(RequestCode.ORDERLYMQ_GROUP_STATUS, 2), ask(PULL, 3))

    assert sorted(told(client)) == [
        (1, 0, "node 2"),
        (2, 0, "status of node 1"),
        (3, 0, "node 2"),
    ]


def test_an_open_follower_without_a_leader_lets_the_core_answer() -> None:
    """Nobody can serve it: the core knows what a follower may say, a definite refusal for a send."""
    world = World(always_open=True)
    world.desks[1].follow(None, 1)
    client = world.connect(1)

    world.ask(1, client, ask(PULL, 1))

    assert told(client) == [(1, 0, "node 1")]
