"""The connection for the log: raft's small messages do not wait behind entries, and older peers work without it."""

from orderlymq_broker.replication.transport.frames import encode_messages
from orderlymq_broker.replication.transport.handshake import Identity
from orderlymq_broker.replication.transport.links import dial
from orderlymq_broker.replication.transport.server import LOG_DOWN_TICKS_MAX
from orderlymq_broker.settings import Address
from orderlymq_raft import Message, TimeoutNow
from orderlymq_raft.types import NodeId, Term
from tests.broker.replication.transport.peers import KEY, MakePeer, Peer, append, beat
from tests.faultyproxy import UP, faulty_proxy
from tests.ports import free_ports

# Larger than the largest message that the default settings permit.
LARGE = bytes(8 << 20)


async def until_up(one: Peer) -> None:
    """Wait until *one* sends entries to node 2 on their own connection."""
    await one.recorder.wait_for(lambda: one.transport._links[NodeId(2), "log"].is_up)


async def test_a_heartbeat_waits_behind_no_entry(make_peer: MakePeer) -> None:
    """Law: a heartbeat arrives while a large entry is still on its way."""
    one, two = await make_peer(1), await make_peer(2)
    async with faulty_proxy((two.address.host, two.address.port)) as slow:
        one.transport.set_peers({NodeId(2): Address("127.0.0.1", slow.port)})
        await until_up(one)
        slow.piece, slow.delays_s[UP] = 1 << 16, 0.005

        one.transport.send([append(0, LARGE), beat(1, 2, 1)])
        one.transport.send([beat(1, 2, 2)])
        await two.recorder.wait_for(lambda: append(0, LARGE) in two.recorder.messages)

    assert two.recorder.messages == [beat(1, 2, 1), beat(1, 2, 2), append(0, LARGE)]


async def test_what_goes_with_the_log_arrives_in_order(make_peer: MakePeer) -> None:
    """Law: messages that belong to entries (appends, the request to campaign) arrive in order behind them."""
    one, two = await make_peer(1), await make_peer(2)
    async with faulty_proxy((two.address.host, two.address.port)) as slow:
        one.transport.set_peers({NodeId(2): Address("127.0.0.1", slow.port)})
        await until_up(one)
        slow.delays_s[UP] = 0.001
        asked = TimeoutNow(NodeId(1), NodeId(2), Term(1))

        one.transport.send([append(0, LARGE), append(1), asked])
        await two.recorder.wait_for(lambda: asked in two.recorder.messages)

    assert two.recorder.messages == [append(0, LARGE), append(1), asked]


async def test_entries_reach_a_peer_that_knows_no_connection_for_them(make_peer: MakePeer) -> None:
    """Law: a peer of an older version, which refuses a log connection, gets entries on the raft connection."""
    one, two = await make_peer(1), await make_peer(2)
    two.transport._process = b""  # As its greeting is.
    one.call(two)
    await one.recorder.wait_for(lambda: one.transport.is_connected(NodeId(2)))

    for index in range(9):
        one.transport.send([append(index), beat(1, 2, index)])
    await two.recorder.wait_for(lambda: len(two.recorder.messages) == 18)

    assert not one.transport._links[NodeId(2), "log"].is_up
    assert (two.transport.violations, two.transport.closes) == (0, 0)


async def test_entries_go_to_no_process_that_has_not_said_whether_it_lost_its_log(
    make_peer: MakePeer,
) -> None:
    """Law: entries are sent only to a process that has said whether it lost its log."""
    one, former = await make_peer(1), await make_peer(2)
    async with faulty_proxy((former.address.host, former.address.port)) as way:
        one.transport.set_peers({NodeId(2): Address("127.0.0.1", way.port)})
        await until_up(one)
        again = await make_peer(2, recovering=True)
        way.target = again.address.host, again.address.port
        way.cuts[UP] = 1
        forgot_before: list[bool] = []

        def taken(messages: list[Message]) -> None:
            forgot_before.append("2 forgot" in one.recorder.events)

        again.recorder.messages_received = taken  # type: ignore[method-assign] # notes when
        one.transport.send([append(0, b"x")])
        await one.recorder.wait_for(lambda: one.recorder.events == ["unreachable 2"])

        def arrived() -> bool:
            if one.transport._links[NodeId(2), "log"].is_up:
                one.transport.send([append(0, b"x")])
            return bool(forgot_before)

        await one.recorder.wait_for(arrived)

    assert forgot_before[0]
    assert former.recorder.messages == []


async def test_who_loses_the_connection_for_the_log_loses_no_leader(make_peer: MakePeer) -> None:
    """Law: if only the log connection is lost, entries are sent again and the peer does not lose its leader."""
    one, two = await make_peer(1), await make_peer(2)
    one.call(two)
    await until_up(one)
    two.recorder.events.clear()

    incoming = two.transport._incoming[NodeId(1), "log"]
    incoming.abort()
    await one.recorder.wait_for(lambda: one.recorder.events == ["unreachable 2"])
    await until_up(one)
    one.transport.send([append(0, b"x")])
    await two.recorder.wait_for(lambda: bool(two.recorder.messages))

    assert two.recorder.events == []
    assert one.recorder.events == ["unreachable 2"]


async def test_both_end_with_the_connection_for_raft(make_peer: MakePeer) -> None:
    """Law: both connections end together, so that none of a former process stays."""
    one, two = await make_peer(1), await make_peer(2)
    one.call(two)
    await until_up(one)
    former = two.transport._incoming[NodeId(1), "log"]

    two.transport._incoming[NodeId(1), "raft"].abort()
    await two.recorder.wait_for(lambda: not former.is_open)
    await two.recorder.wait_for(lambda: two.transport._incoming.get((NodeId(1), "log")) is not None)

    assert one.recorder.events[0] == "unreachable 2"


async def test_a_heartbeat_for_the_log_is_refused(make_peer: MakePeer) -> None:
    """Law: a heartbeat on the log connection is refused, because messages there may come from a former process."""
    one = await make_peer(2)
    caller = Identity("C", "g", NodeId(1), Address("127.0.0.1", 1), KEY)
    connection = await dial(caller, NodeId(2), one.address, "log")

    connection.send(encode_messages([append(0), beat(1, 2, 1)]))
    await one.recorder.wait_for(lambda: one.transport.violations == 1)

    assert one.recorder.messages == []


async def test_a_heartbeat_waits_behind_no_entry_while_the_connection_for_the_log_is_made_again(
    make_peer: MakePeer,
) -> None:
    """Law: while the log connection is being restored, large messages wait some seconds for it;
    small ones use the raft connection.
    """
    one, two = await make_peer(1), await make_peer(2)
    one.call(two)
    await until_up(one)
    log = one.transport._links[NodeId(2), "log"]
    log.renew()

    one.transport.send([append(0, LARGE), append(1, b"x"), beat(1, 2, 1)])
    dropped = list(one.recorder.events)
    await two.recorder.wait_for(lambda: len(two.recorder.messages) == 2)
    log.renew()
    log.down_ticks = LOG_DOWN_TICKS_MAX + 1
    one.transport.send([append(0, LARGE)])
    await two.recorder.wait_for(lambda: len(two.recorder.messages) == 3)

    assert dropped == ["unreachable 2"]
    assert two.recorder.messages == [append(1, b"x"), beat(1, 2, 1), append(0, LARGE)]


async def test_a_peer_that_was_away_gets_nothing_large_before_its_connection_for_the_log(
    make_peer: MakePeer,
) -> None:
    """Law: large messages for a peer that was away wait for the log connection;
    they do not use the raft connection meanwhile.
    """
    one, two = await make_peer(1), Peer(2, free_ports(1)[0])
    one.call(two)
    for _ in range(LOG_DOWN_TICKS_MAX + 2):
        one.transport.tick(0)
    one.recorder.on_reached = lambda node: one.transport.send([append(0, LARGE), beat(1, 2, 1)])

    await two.listen()
    await two.recorder.wait_for(lambda: bool(two.recorder.messages))
    await two.transport.close()

    assert two.recorder.messages == [beat(1, 2, 1)]
    assert one.recorder.events[0] == "unreachable 2"


async def test_what_still_waited_for_the_log_hides_no_end_of_a_peer(make_peer: MakePeer) -> None:
    """Law: the last event of a peer that ended is its loss, whichever of its connections is read last."""
    one, two = await make_peer(1), await make_peer(2)
    one.call(two)
    await until_up(one)
    await two.recorder.wait_for(lambda: (NodeId(1), "log") in two.transport._incoming)
    two.recorder.events.clear()

    incoming = dict(two.transport._incoming)
    one.transport.set_peers({})
    incoming[NodeId(1), "raft"].abort()
    await two.recorder.wait_for(lambda: (NodeId(1), "log") not in two.transport._incoming)

    assert two.recorder.events[-1] == "lost 1"
    assert two.recorder.events.count("lost 1") == 2
