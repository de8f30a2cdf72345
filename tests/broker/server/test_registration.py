"""A broker group registers with every name server: on a change, and again when one comes back."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from orderlymq_broker.server.registration import (
    PIECE_TOPICS,
    Registration,
    body_pieces,
    registration,
)
from orderlymq_broker.server.restoredgroups import RestoredGroups, note_groups
from orderlymq_broker.settings import Address, BrokerSettings
from orderlymq_broker.state.broker import BrokerState
from orderlymq_broker.state.records import Record, TopicDeleted, TopicSet, encode_records
from orderlymq_broker.state.statemachine import StateMachine
from orderlymq_broker.store.entry import encode_entry, split_entry
from orderlymq_broker.store.kv import Batch
from orderlymq_nameserver.app import NameServer
from orderlymq_nameserver.settings import NameServerSettings
from orderlymq_protocol.body.catalogue import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    TopicRouteData,
)
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_protocol.signature import TIME
from orderlymq_runtime.remoting.client import RemotingClient, RemotingError
from orderlymq_runtime.settingsfile import ServerAddress
from orderlymq_runtime.wallclock import machine_ms
from tests.broker.store.memory import MemoryStore
from tests.operator.scripted import serving
from tests.ports import free_ports
from tests.waiting import until

GROUP_ADDRESS = Address("127.0.0.1", 10911)

MakeNameServer = Callable[[int], Awaitable[NameServer]]
MakeRegistration = Callable[..., Registration]


class Topics:
    """A state whose topics the test can change."""

    def __init__(self) -> None:
        self.state = BrokerState(MemoryStore())
        self._machine = StateMachine(self.state)

    def create(self, name: str, queues: int) -> None:
        self.change(TopicSet(name, read_queues=queues, write_queues=queues, order=True))

    def change(self, *records: Record) -> None:
        entry = encode_entry(encode_records(list(records)), [], 0, 1_700_000_000_000)
        self._machine.apply(self.state.applied_index + 1, 1, split_entry(entry), Batch())


@pytest.fixture
async def make_name_server() -> AsyncIterator[MakeNameServer]:
    made: list[NameServer] = []

    async def make(port: int) -> NameServer:
        server = NameServer(NameServerSettings(listen=ServerAddress("127.0.0.1", port)))
        await server.start()
        made.append(server)
        return server

    yield make
    for server in made:
        await server.close()


@pytest.fixture
async def make_registration() -> AsyncIterator[MakeRegistration]:
    made: list[Registration] = []

    def make(
        state: BrokerState,
        *ports: int,
        secret: bytes = b"",
        ahead_ms: int = 0,
        restored: RestoredGroups | None = None,
    ) -> Registration:
        settings = BrokerSettings(
            cluster="C",
            group="g",
            node_id=1,
            peers={},
            address=GROUP_ADDRESS,
            http=GROUP_ADDRESS,
            data_dir=Path("unused"),
            name_servers=[Address("127.0.0.1", port) for port in ports],
            cluster_secret=secret,
        )
        keeper = Registration(
            state,
            settings,
            restored or RestoredGroups(MemoryStore, ()),
            lambda: machine_ms() + ahead_ms,
        )
        keeper.start()
        made.append(keeper)
        return keeper

    yield make
    for keeper in made:
        await keeper.close()


async def route(client: RemotingClient, port: int, topic: str) -> TopicRouteData:
    """Return a topic's route as soon as the name server has one."""
    command = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    async with asyncio.timeout(30.0):
        while True:
            try:
                reply = await client.invoke(f"127.0.0.1:{port}", command, 1.0)
            except RemotingError:
                await asyncio.sleep(0.01)
                continue
            if reply.code == ResponseCode.SUCCESS:
                return TopicRouteData.from_json(reply.body)
            await asyncio.sleep(0.005)


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    made = RemotingClient()
    yield made
    await made.close()


async def test_the_group_is_published_at_its_stable_address(
    make_name_server: MakeNameServer, make_registration: MakeRegistration, client: RemotingClient
) -> None:
    """Law: every name server knows broker id 0 at the group's stable address, whichever replica leads."""
    ports = free_ports(2)
    for port in ports:
        await make_name_server(port)
    topics = Topics()
    topics.create("orders", 8)

    make_registration(topics.state, *ports)

    for port in ports:
        found = await route(client, port, "orders")
        (broker,), (queues,) = found.broker_datas, found.queue_datas
        assert (broker.broker_name, dict(broker.broker_addrs)) == ("g", {0: "127.0.0.1:10911"})
        assert (queues.read_queue_nums, queues.write_queue_nums) == (8, 8)


async def test_a_new_topic_is_published_immediately(
    make_name_server: MakeNameServer, make_registration: MakeRegistration, client: RemotingClient
) -> None:
    """Law: a new topic is registered immediately, not at the next period of 30 s."""
    (port,) = free_ports(1)
    await make_name_server(port)
    topics = Topics()
    topics.create("first", 1)
    registration = make_registration(topics.state, port)
    await route(client, port, "first")

    topics.create("second", 2)
    registration.announce()

    found = await route(client, port, "second")
    assert found.queue_datas[0].write_queue_nums == 2


async def test_a_name_server_that_comes_back_gets_the_registration_again(
    make_name_server: MakeNameServer, make_registration: MakeRegistration, client: RemotingClient
) -> None:
    """Law: a name server that restarts gets the registration again as soon as its connection is lost."""
    (port,) = free_ports(1)
    first = await make_name_server(port)
    topics = Topics()
    topics.create("orders", 1)
    registration = make_registration(topics.state, port)
    await route(client, port, "orders")

    await first.close()
    assert registration.registered == {f"127.0.0.1:{port}": False}
    await make_name_server(port)

    await route(client, port, "orders")


async def test_a_name_server_that_dies_is_logged_once(
    make_name_server: MakeNameServer,
    make_registration: MakeRegistration,
    client: RemotingClient,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Law: a name server that dies is logged once."""
    (port,) = free_ports(1)
    name_server = await make_name_server(port)
    topics = Topics()
    topics.create("orders", 1)
    registration = make_registration(topics.state, port)
    await route(client, port, "orders")
    await until(lambda: registration.registered == {f"127.0.0.1:{port}": True})

    await name_server.close()
    await until(lambda: "does not answer" in caplog.text)
    for _ in range(3):
        registration.announce()
        await asyncio.sleep(0)
    await make_name_server(port)
    await until(lambda: registration.registered == {f"127.0.0.1:{port}": True})

    assert caplog.text.count("does not answer") == 1


async def test_a_refused_registration_is_sent_less_and_less_often(
    make_registration: MakeRegistration,
) -> None:
    """Law: a refused registration is repeated with growing pauses; changes do not shorten them,
    because building one takes long.
    """

    def refuse(command: RemotingCommand) -> RemotingCommand:
        asked.append(asyncio.get_running_loop().time())
        return command.reply(ResponseCode.SYSTEM_ERROR, remark="60000 topics in one registration")

    asked: list[float] = []
    async with serving({RequestCode.REGISTER_BROKER: refuse}) as (_, address):
        registration = make_registration(Topics().state, int(address.rpartition(":")[2]))
        while len(asked) < 5:
            registration.announce()
            await asyncio.sleep(0.01)

    # After 0.1 s, then twice as long each time.
    assert asked[4] - asked[0] >= 1.5
    assert asked[4] - asked[3] >= 0.8


async def test_a_registration_is_signed_with_the_time_that_the_group_goes_by(
    make_registration: MakeRegistration,
) -> None:
    """Law: a registration is signed with the group's corrected time,
    because a name server refuses signatures that are five minutes off.
    """

    def take(command: RemotingCommand) -> RemotingCommand:
        signed.append(int(command.ext[TIME]))
        arrived.set()
        return command.reply(ResponseCode.SUCCESS)

    signed: list[int] = []
    arrived = asyncio.Event()
    before_ms = machine_ms()
    async with serving({RequestCode.REGISTER_BROKER: take}) as (_, address):
        make_registration(
            Topics().state, int(address.rpartition(":")[2]), secret=b"x" * 32, ahead_ms=3_600_000
        )
        async with asyncio.timeout(30.0):
            await arrived.wait()

    assert signed[0] >= before_ms + 3_600_000


async def test_topics_that_are_too_many_for_a_frame_are_not_registered_and_that_is_reported(
    make_registration: MakeRegistration,
) -> None:
    """Law: if the topics do not fit a frame, the replica reports itself as not registered,
    and registers when there are fewer.
    """
    topics = Topics()
    names = [f"%RETRY%{number}".ljust(262, "x") for number in range(26_500)]
    async with serving({}) as (_, address):
        registration = make_registration(topics.state, int(address.rpartition(":")[2]))
        await until(lambda: registration.registered == {address: True})
        topics.change(*(TopicSet(name, 1, 1) for name in names))
        registration.announce()
        await until(lambda: registration.registered == {address: False})
        topics.change(*map(TopicDeleted, names))
        await until(lambda: registration.registered == {address: True})


@pytest.mark.parametrize("count", [0, 1, PIECE_TOPICS, 2 * PIECE_TOPICS + 1])
def test_the_pieces_are_the_body_of_the_topics_at_the_first(count: int) -> None:
    """Law: all pieces of a registration belong to the state at its start; a change between them waits for the next one."""
    topics = Topics()
    names = [f"topic-{number}" for number in range(count)]
    topics.change(*(TopicSet(name, 4, 8) for name in names))
    state = topics.state
    table = {name: TopicConfig(name, 4, 8) for name in names}
    version = DataVersion(state.topics_version, state.topics_timestamp)
    whole = RegisterBrokerBody(TopicConfigTable(table, version)).encode()

    pieces = body_pieces(state)
    first = next(pieces)
    topics.change(TopicSet("later", 1, 1), *(TopicDeleted(name) for name in names[-1:]))
    rest = list(pieces)

    assert b"".join([first, *rest]) == whole
    assert len(rest) == -(-count // PIECE_TOPICS) + 1


async def test_many_topics_and_name_servers_hold_no_turn_of_the_loop(
    make_registration: MakeRegistration,
) -> None:
    """Law: building and sending a large registration is split into turns, so that raft's heartbeats go out in time."""
    topics = Topics()
    topics.change(*(TopicSet(f"topic-{number}", 8, 8) for number in range(20 * PIECE_TOPICS)))
    began = time.thread_time()
    size = sum(map(len, body_pieces(topics.state)))
    table_s = time.thread_time() - began
    told: set[object] = set()

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1 << 20):
            told.add(writer)
        writer.close()

    sinks = [await asyncio.start_server(swallow, "127.0.0.1", 0) for _ in range(3)]
    make_registration(topics.state, *(sink.sockets[0].getsockname()[1] for sink in sinks))
    turns: list[float] = []
    async with asyncio.timeout(30.0):
        while len(told) < len(sinks):
            began = time.thread_time()
            await asyncio.sleep(0)
            turns.append(time.thread_time() - began)

    for sink in sinks:
        sink.close()
    assert size > 1 << 19
    assert max(turns) < table_s / 2


async def test_groups_that_were_restored_together_are_named_until_all_name_servers_know_them(
    make_name_server: MakeNameServer, make_registration: MakeRegistration, client: RemotingClient
) -> None:
    """Law: after a restore, all restored broker groups are named until every name server knows them;
    until then ordered topics have no route.
    """
    ports = free_ports(2)
    for port in ports:
        await make_name_server(port)
    topics = Topics()
    topics.create("orders", 8)
    empty = b"".join(body_pieces(BrokerState(MemoryStore())))
    store = MemoryStore()
    batch = Batch()
    note_groups(batch, ["g", "other"])
    store.write(batch, sync=True)
    restored = RestoredGroups(lambda: store, [f"127.0.0.1:{port}" for port in ports])
    keeper = make_registration(topics.state, *ports, restored=restored)
    question = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
    await until(lambda: all(keeper.registered.values()))

    for port in ports:
        reply = await client.invoke(f"127.0.0.1:{port}", question, 10.0)
        assert reply.code == ResponseCode.TOPIC_NOT_EXIST
        assert restored.names == "g;other"
        other = registration(empty, cluster="C", group="other", address=GROUP_ADDRESS)
        assert (await client.invoke(f"127.0.0.1:{port}", other, 10.0)).code == ResponseCode.SUCCESS
    keeper.announce()
    await until(lambda: restored.names is None)

    for port in ports:
        assert len((await route(client, port, "orders")).queue_datas) == 1
    assert RestoredGroups(lambda: store, []).names is None
