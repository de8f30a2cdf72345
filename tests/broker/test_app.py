"""A broker process, run inside the test process: it starts, serves, reports its state, and ends in order."""

import asyncio
import os
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import msgspec
import pytest

from orderlymq_broker.__main__ import check, main
from orderlymq_broker.app import EXIT_STORE_FAILED, BrokerProcess
from orderlymq_broker.replication.snapshots import SentSnapshot
from orderlymq_broker.server import leadership
from orderlymq_broker.settings import Address, BrokerSettings, RaftSettings, StorageSettings
from orderlymq_broker.store.kv import Batch, Family, WriteTicket
from orderlymq_broker.store.layout import META_APPLIED, decode_applied
from orderlymq_broker.store.rocks import RocksStore
from orderlymq_broker.store.snapshot import export_snapshot, store_path
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_raft.types import HardState, NodeId
from orderlymq_runtime.remoting.client import RemotingClient, RemotingError
from orderlymq_runtime.settingsfile import SettingsError
from tests.broker.processors.requests import heartbeat_body
from tests.cluster.bareclient import Sender, pull_all, send_command
from tests.ports import free_ports
from tests.waiting import until

ANSWER_S = 15.0  # In seconds; an answer takes milliseconds, so only a failure waits so long.


@pytest.fixture
def settings(tmp_path: Path) -> BrokerSettings:
    """Return the settings of a broker group with one broker."""
    client, http, raft = (Address("127.0.0.1", port) for port in free_ports(3))
    return BrokerSettings(
        cluster="C",
        group="g",
        node_id=1,
        peers={1: raft},
        address=client,
        http=http,
        data_dir=tmp_path / "data",
    )


@asynccontextmanager
async def running(settings: BrokerSettings) -> AsyncIterator[BrokerProcess]:
    """Run a broker until the block ends, then end it as SIGTERM does."""
    process = BrokerProcess(settings)
    task = asyncio.create_task(process.run())
    try:
        yield process
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def get(settings: BrokerSettings, page: str) -> tuple[int, str]:
    """Return status and text of a page; wait until the page is served."""
    async with asyncio.timeout(10.0), aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(f"http://{settings.http}/{page}") as answer:
                    return answer.status, await answer.text()
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.01)


async def ready(settings: BrokerSettings) -> None:
    """Wait until the broker says that it is ready."""
    async with asyncio.timeout(10.0):
        while (await get(settings, "readyz"))[0] != 200:  # noqa: ASYNC110 - its end is an HTTP page
            await asyncio.sleep(0.01)


async def held_pulls(settings: BrokerSettings) -> int:
    """Return how many pulls wait for a message."""
    _, text = await get(settings, "status")
    return int(msgspec.json.decode(text)["heldPulls"])


async def test_the_brief_status_has_no_text_of_a_client(settings: BrokerSettings) -> None:
    """Law: texts of clients, such as message fields, do not enlarge the brief status that the operator reads."""
    async with running(settings):
        await ready(settings)
        texts = [(await get(settings, page))[1] for page in ("status?brief", "status")]

    brief, whole = (msgspec.json.decode(text) for text in texts)
    assert {"role", "term", "leader", "replicas", "voters", "disk"} <= brief.keys() < whole.keys()
    assert {"watch", "transactions", "duplicateClients"} <= whole.keys() - brief.keys()


async def test_what_was_sent_is_there_after_a_restart(settings: BrokerSettings) -> None:
    """Law: sent messages are still there after the process has ended and started again."""
    for expected in (3, 6):
        async with running(settings):
            await ready(settings)
            client = RemotingClient()
            await Sender(client, str(settings.address), "s", 0).send(3)
            found = await pull_all(client, str(settings.address), "orders", 0)
            await client.close()
        assert [offset for offset, _ in found] == list(range(expected))


async def test_a_refused_replica_leaves_no_address(settings: BrokerSettings) -> None:
    """Law: the address of a replica is stored only if the membership change was carried out."""
    async with running(settings) as process:
        await ready(settings)
        client = RemotingClient()
        body = b'{"action":"promote","node":7,"address":"127.0.0.1:9"}'
        command = request(RequestCode.ORDERLYMQ_CHANGE_MEMBERSHIP, body=body)
        reply = await client.invoke(str(settings.address), command, ANSWER_S)
        await client.close()

        assert (reply.code, "not a learner" in (reply.remark or "")) == (1, True)
        assert process._peers.book.get(NodeId(7)) is None


async def test_it_shows_how_it_is(settings: BrokerSettings) -> None:
    """Law: status, readiness, health and metrics show what the process knows."""
    async with running(settings):
        await ready(settings)
        client = RemotingClient()
        await Sender(client, str(settings.address), "s", 0).send(3)
        health, (_, text), (_, metrics) = [
            await get(settings, page) for page in ("healthz", "status", "metrics")
        ]
        reply = await client.invoke(
            str(settings.address), request(RequestCode.ORDERLYMQ_GROUP_STATUS), ANSWER_S
        )
        await client.close()

    assert health == (200, "ok\n")
    for body in (text, reply.body):
        status = msgspec.json.decode(body)
        shown = {key: status[key] for key in ("cluster", "group", "node", "role", "leader")}
        assert shown == {"cluster": "C", "group": "g", "node": 1, "role": "leader", "leader": 1}
        assert status["commit"] == status["applied"] == status["last_index"]
        assert status["replicas"]["1"]["lag"] == 0
        assert {"ratio", "bytes"} <= status["disk"].keys()
        assert status["address"] == str(settings.address)
    for name in (
        "orderlymq_is_leader 1.0",
        "orderlymq_commit_seconds_count",
        "orderlymq_sync_seconds_count",
        "orderlymq_raft_batch_size_count",
        "orderlymq_disk_used_ratio",
        "orderlymq_topics ",
        "orderlymq_members 0.0",
        "orderlymq_locks_held 0.0",
        "orderlymq_held_pulls 0.0",
        "orderlymq_transactions_open 0.0",
        "orderlymq_store_write_stalls_total 0.0",
        'orderlymq_replica_lag_entries{node="1"} 0.0',
    ):
        assert name in metrics


async def test_while_a_store_is_replaced_metrics_show_what_is_not_in_it(
    settings: BrokerSettings,
) -> None:
    """Law: while a replica installs a snapshot, metrics still show the replica,
    but no series of a state that is not there.
    """
    async with running(settings) as process:
        await ready(settings)
        process._reporter.close()

        code, text = await get(settings, "metrics")

    assert (code, "orderlymq_commit_index " in text) == (200, True)
    for name in ("orderlymq_topics ", "orderlymq_transactions_open ", "orderlymq_lanes"):
        assert name not in text


async def test_no_file_of_the_store_is_asked_for_its_size_on_the_event_loop(
    settings: BrokerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: the sizes of the store's files are read in a thread.

    There may be ten thousand files, and a silent leader is replaced.
    """
    own, walkers, scandir = threading.get_ident(), set[int](), os.scandir

    def seen(path: os.PathLike[str] | str) -> object:
        if settings.data_dir in Path(path).parents:
            walkers.add(threading.get_ident())
        return scandir(path)

    async with running(settings) as process:
        await ready(settings)
        monkeypatch.setattr(os, "scandir", seen)
        process._reporter._sized_at -= 60
        async with asyncio.timeout(10.0):
            while not (walkers and process._reporter.replica_status()["disk"]["bytes"]):  # type: ignore[index]  # noqa: ASYNC110 - a thread finds it
                await asyncio.sleep(0.01)

    assert own not in walkers


async def test_it_shows_the_last_snapshot_that_a_replica_took_over(
    settings: BrokerSettings,
) -> None:
    """Law: the status shows the last snapshot sent to a replica, with its age; null if it needed none from this leader."""
    async with running(settings) as process:
        await ready(settings)
        (without,) = msgspec.json.decode((await get(settings, "status"))[1])["replicas"].values()
        process._sender.sent[NodeId(1)] = SentSnapshot(17, 4_096, time.monotonic() - 60)
        (told,) = msgspec.json.decode((await get(settings, "status"))[1])["replicas"].values()

    assert without["snapshot"] is None
    assert (told["snapshot"]["index"], told["snapshot"]["bytes"]) == (17, 4_096)
    assert 60_000 <= told["snapshot"]["age_ms"] < 120_000


async def test_a_held_pull_is_answered_before_the_end(settings: BrokerSettings) -> None:
    """Law: when the broker ends, a held pull is answered with "retry immediately",
    so that the consumer does not wait for its time-out.
    """
    client = RemotingClient()
    async with running(settings):
        await ready(settings)
        await Sender(client, str(settings.address), "s", 0).send(1)
        ext = {
            "consumerGroup": "TOOLS_CONSUMER",
            "topic": "orders",
            "queueId": "0",
            "queueOffset": "1",
            "maxMsgNums": "32",
            "sysFlag": "6",
            "commitOffset": "0",
            "suspendTimeoutMillis": "15000",
            "subVersion": "0",
            "subscription": "*",
        }
        pull = asyncio.create_task(
            client.invoke(str(settings.address), request(RequestCode.PULL_MESSAGE, ext), 10.0)
        )
        async with asyncio.timeout(10.0):
            while not (await held_pulls(settings)):  # noqa: ASYNC110 - its sign is an HTTP page
                await asyncio.sleep(0.01)

    reply = await pull
    assert reply.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    with pytest.raises(RemotingError):
        await client.invoke(str(settings.address), request(RequestCode.GET_MAX_OFFSET), 1.0)
    await client.close()


async def test_who_fetches_lanes_before_its_heartbeat_speaks_for_its_client(
    settings: BrokerSettings,
) -> None:
    """Law: a client is identified by its lanes fetch even before its heartbeat.

    Otherwise, after a change of leader, the death of another program with its id would count for it.
    """
    one, other = RemotingClient(), RemotingClient()
    heartbeat = msgspec.json.decode(heartbeat_body("10.0.0.1@orders"))
    heartbeat["consumerDataSet"][0]["concurrency"] = "Key"
    joins = request(RequestCode.HEART_BEAT, {}, msgspec.json.encode(heartbeat))
    fetch = {
        "consumerGroup": "billing",
        "topic": "orders",
        "clientId": "10.0.0.1@orders",
        "sequence": "1",
        "maxLanes": "1",
    }
    async with running(settings) as process:
        await ready(settings)
        await Sender(one, str(settings.address), "s", 0).send(1)
        where = str(settings.address)
        refused = await other.invoke(where, request(RequestCode.ORDERLYMQ_FETCH_LANES, fetch), 10.0)
        assert refused.code != ResponseCode.SUCCESS
        assert (await one.invoke(where, joins, 10.0)).code == ResponseCode.SUCCESS
        fetched = await other.invoke(where, request(RequestCode.ORDERLYMQ_FETCH_LANES, fetch), 10.0)
        assert fetched.code == ResponseCode.SUCCESS

        await one.close()
        async with asyncio.timeout(10.0):
            while len(process._liveness._known) > 1:  # noqa: ASYNC110 - nothing signals it
                await asyncio.sleep(0.01)

        assert process._liveness._speaks("10.0.0.1@orders")
        await other.close()


async def test_an_unnamed_client_may_be_a_member_that_spoke_from_its_host(
    settings: BrokerSettings,
) -> None:
    """Law: for an unnamed client, only members from the same host are possible;
    a host counts as the same in its IPv4 and mapped IPv6 form.
    """
    client = RemotingClient()
    joins = request(RequestCode.HEART_BEAT, {}, heartbeat_body("127.0.0.1@17#1"))
    async with running(settings) as process:
        await ready(settings)
        await Sender(client, str(settings.address), "s", 0).send(1)
        assert (await client.invoke(str(settings.address), joins, 10.0)).code == 0

        hosts = ("127.0.0.1", "::ffff:127.0.0.1", "10.0.0.1")
        found = [process._members_at("billing", host) for host in hosts]
        await client.close()

    assert found == [["127.0.0.1@17#1"], ["127.0.0.1@17#1"], []]


async def test_an_open_replica_listens_before_it_leads(settings: BrokerSettings) -> None:
    """Law: with bind="always" the broker listens from the start; a follower refuses requests with a definite answer."""
    lonely = msgspec.structs.replace(
        settings,
        bind="always",
        peers={1: settings.peers[1], 2: Address("127.0.0.1", 1)},
    )
    client = RemotingClient()
    async with running(lonely):
        assert (await get(lonely, "readyz"))[0] == 503
        reply = await client.invoke(
            str(lonely.address),
            request(RequestCode.LOCK_BATCH_MQ, body=b'{"clientId":"c","consumerGroup":"G"}'),
            ANSWER_S,
        )
    await client.close()

    assert (reply.code, reply.body) == (1, b"")


async def test_a_leader_that_ends_behind_a_service_passes_on_what_still_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: behind a Service, a leader that ends keeps its clients and forwards their requests until the Service can have
    followed the new leader.
    """
    follows_s = 5.0  # In this time two sends arrive, even on a busy machine.
    monkeypatch.setattr(leadership, "SERVICE_FOLLOWS_S", follows_s)
    # A client that is silent so long leaves a follower.
    monkeypatch.setattr(leadership, "FOLLOWER_CLIENT_S", 60.0)
    address, *ports = (Address("127.0.0.1", port) for port in free_ports(10))
    group = {
        node: BrokerSettings(
            cluster="C",
            group="g",
            node_id=node,
            peers={number: ports[number - 1] for number in (1, 2, 3)},
            address=address,
            listen=ports[node + 2],
            http=ports[node + 5],
            data_dir=tmp_path / str(node),
            bind="always",
            cluster_secret=bytes(32),
        )
        for node in (1, 2, 3)
    }
    processes = {node: BrokerProcess(settings) for node, settings in group.items()}
    tasks = {node: asyncio.create_task(each.run()) for node, each in processes.items()}
    early, late = RemotingClient(), RemotingClient()
    try:

        def leading() -> list[int]:
            return [node for node, each in processes.items() if _serves(each)]

        await until(lambda: bool(leading()))
        (former,) = leading()
        here = str(group[former].listen)
        assert (await early.invoke(here, _message(), ANSWER_S)).code == ResponseCode.SUCCESS

        tasks[former].cancel()
        cancelled_s = time.monotonic()
        await until(lambda: any(node != former for node in leading()))
        for client in (early, late):
            assert (await client.invoke(here, _message(), ANSWER_S)).code == ResponseCode.SUCCESS

        await asyncio.gather(tasks[former], return_exceptions=True)
        assert time.monotonic() - cancelled_s >= follows_s
        with pytest.raises(RemotingError):
            await late.invoke(here, _message(), 1.0)
    finally:
        for client in (early, late):
            await client.close()
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)


def _serves(process: BrokerProcess) -> bool:
    return (
        hasattr(process, "instance")
        and process.instance.loop.may_answer()
        and process.instance.core.context.leading
    )


def _message() -> RemotingCommand:
    return send_command("orders", 0, b"hello")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"node_id": 2}, "not among peers"),
        ({"node_id": -1, "peers": {-1: Address("h", 1)}}, "number the replicas from 1"),
        ({"raft": RaftSettings(heartbeat_ms=100, election_ms=199)}, "do not fit"),
        ({"log_level": "LOUD"}, "use DEBUG"),
        ({"peers": {1: Address("h", 1), 2: Address("h", 2)}}, "needs cluster_secret_file"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    settings: BrokerSettings, changes: dict[str, object], reason: str
) -> None:
    """Law: the error says what to correct."""
    with pytest.raises(SettingsError, match=reason):
        check(msgspec.structs.replace(settings, **changes))


def test_a_missing_file_ends_with_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Law: a missing settings file gives one line of text, no traceback, and exit code 2."""
    assert main(["--settings", str(tmp_path / "none.json")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


async def test_a_leader_that_cannot_have_its_address_is_not_ready(settings: BrokerSettings) -> None:
    """Law: a leader whose port is taken is not ready, and its page says why."""
    with socket.create_server((settings.address.host, settings.address.port)):
        async with running(settings):
            async with asyncio.timeout(10.0):
                status, text = await get(settings, "readyz")
                while "cannot be reached" not in text:
                    status, text = await get(settings, "readyz")
            health = await get(settings, "healthz")

    assert (status, health) == (503, (200, "ok\n"))
    assert "cannot be reached" in text
    assert "in use" in text


async def test_a_swap_that_fails_ends_the_process(settings: BrokerSettings) -> None:
    """Law: if the new store cannot take the old one's place, the process ends, whatever the cause."""
    process = BrokerProcess(settings)
    running = asyncio.create_task(process.run())
    await ready(settings)
    staged = settings.data_dir / "snapshot-in"
    manifest = await asyncio.to_thread(export_snapshot, process.instance.store, staged)
    # The rename of the new store fails because the target directory is not empty.
    (settings.data_dir / "store.new").mkdir()
    (settings.data_dir / "store.new" / "left behind").touch()
    process._staged = staged

    process.instance.loop.stop()
    process.snapshot_ready(manifest.meta, HardState(manifest.meta.term, None, manifest.meta.index))

    async with asyncio.timeout(10.0):
        assert await running == EXIT_STORE_FAILED


async def test_a_disk_is_as_full_as_it_is_when_a_write_has_found_space(
    settings: BrokerSettings,
) -> None:
    """Law: after a write found the disk full, sends stay refused until the free space that the settings require is back."""
    storage = StorageSettings(disk_refuse_ratio=0.000_002, disk_resume_ratio=0.000_001)
    async with running(msgspec.structs.replace(settings, storage=storage)) as process:
        await ready(settings)

        process._disk_full(True)
        process._disk_full(False)

        assert process.instance.core.context.disk_full


async def test_a_store_that_takes_a_full_ones_place_is_not_full(settings: BrokerSettings) -> None:
    """Law: a report of the former store's writer that the disk is full does not count for the store that replaced it."""
    async with running(settings) as process:
        await ready(settings)
        former, staged = process.instance, settings.data_dir / "snapshot-in"
        manifest = await asyncio.to_thread(export_snapshot, former.store, staged)
        process._staged = staged
        process._disk_full(True)

        former.loop.stop()
        hard_state = HardState(manifest.meta.term, None, manifest.meta.index)
        process.snapshot_ready(manifest.meta, hard_state)
        async with asyncio.timeout(10.0):
            while process.instance is former:  # noqa: ASYNC110 - nothing signals it
                await asyncio.sleep(0.01)
        process._report()

        assert not process.instance.core.context.disk_full


async def test_an_orderly_end_leaves_nothing_to_apply(settings: BrokerSettings) -> None:
    """Law: an orderly end makes all applied entries durable, so that only a crash makes a start apply entries again."""
    async with running(settings) as process:
        await ready(settings)
        client = RemotingClient()
        await Sender(client, str(settings.address), "s", 0).send(3)
        await client.close()

    store = RocksStore(store_path(settings.data_dir), read_only=True)
    stored = decode_applied(store.get(Family.META, META_APPLIED))
    store.close()
    assert stored.index == process.instance.state.applied_index
    pages = process._reporter.alive(), process._reporter.ready()
    assert pages == ((True, "ok"), (False, "was asked to end"))


@pytest.mark.interpreted
async def test_at_its_end_the_staged_layer_is_frozen_by_the_loop(
    settings: BrokerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: only the event loop freezes the staged layer; another thread could freeze half of an entry that is being
    applied.
    """
    threads: list[threading.Thread] = []
    async with running(settings) as process:
        await ready(settings)
        prepare, stop = process.instance.store.prepare, process.instance.loop.stop

        def prepared(batch: Batch | None = None) -> WriteTicket:
            threads.append(threading.current_thread())
            return prepare(batch)

        def stopped() -> None:
            threads.append(threading.current_thread())
            stop()

        monkeypatch.setattr(process.instance.store, "prepare", prepared)
        monkeypatch.setattr(process.instance.loop, "stop", stopped)

    assert len(threads) >= 2
    assert set(threads) == {threading.main_thread()}


@pytest.mark.interpreted
async def test_a_disk_that_hangs_does_not_keep_the_process(
    settings: BrokerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: at its end the process waits for a hanging disk only for a limited time,
    then leaves the store as a crash would.
    """
    settings = msgspec.structs.replace(settings, shutdown_max_ms=300)
    answers = threading.Event()
    async with running(settings) as process:
        await ready(settings)
        store, writer = process.instance.store, process.instance.writer
        monkeypatch.setattr(store, "commit", lambda ticket, *, sync: answers.wait())
        client = RemotingClient()
        with pytest.raises(RemotingError):
            await client.invoke(str(settings.address), send_command("TBW102", 0, b"x"), 0.2)
        await client.close()

    assert writer.close(0.0) is False, "the process has ended, the write has not"
    answers.set()
    assert writer.close() is True
    store.close()


async def test_nothing_that_hangs_outside_keeps_the_end(settings: BrokerSettings) -> None:
    """Law: peers, name servers and clients that neither answer nor hang up do not delay the end of the process."""
    with ExitStack() as stack:
        holes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        peer, other, name_server = (Address(*hole.getsockname()) for hole in holes)
        settings = msgspec.structs.replace(
            settings,
            peers={**settings.peers, 2: peer, 3: other},
            name_servers=[name_server],
            bind="always",
        )
        async with asyncio.timeout(settings.shutdown_max_ms / 1000):
            async with running(settings):
                await get(settings, "readyz")
                address = settings.address.host, settings.address.port
                silent = stack.enter_context(socket.create_connection(address))
                silent.sendall(b"\0\0")
