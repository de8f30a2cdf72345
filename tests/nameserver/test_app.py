"""The name server over real sockets, and as a process."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from orderlymq_nameserver import app
from orderlymq_nameserver.__main__ import main
from orderlymq_nameserver.app import (
    HELD_MAX,
    HELD_OF_ONE_MAX,
    LOOKED_AT_MAX,
    NameServer,
)
from orderlymq_nameserver.kv import KvFile, KvTable
from orderlymq_nameserver.processor import NameServerCore
from orderlymq_nameserver.proofs import Proofs
from orderlymq_nameserver.settings import NameServerSettings
from orderlymq_protocol.codes import LanguageCode
from orderlymq_protocol.frame.command import FLAG_ONEWAY, request
from orderlymq_runtime.remoting.client import RemotingClient
from orderlymq_runtime.remoting.outside import OutsideListener
from orderlymq_runtime.security.clustersecret import NAME_SERVERS
from orderlymq_runtime.settingsfile import ServerAddress
from orderlymq_runtime.wallclock import monotonic_ms
from tests.nameserver.registrations import (
    GROUP_A,
    GROUP_B,
    core,
    register,
    register_request,
    registration,
    topic,
)

LOOPBACK = ServerAddress("127.0.0.1", 0)
TIMEOUT_S = 20.0


@asynccontextmanager
async def running(**settings: object) -> AsyncIterator[NameServer]:
    server = NameServer(NameServerSettings(listen=LOOPBACK, **settings))  # type: ignore[arg-type]  # checked at run time
    await server.start()
    try:
        yield server
    finally:
        await server.close()


async def until_code(client: RemotingClient, address: str, name: str, code: int) -> None:
    """Ask for a route until the answer has *code*: the server may notice a lost connection a little later."""
    code_seen = -1
    async with asyncio.timeout(TIMEOUT_S):
        while code_seen != code:
            reply = await client.invoke(address, request(105, {"topic": name}), TIMEOUT_S)
            code_seen = reply.code


async def test_a_group_is_routed_while_one_of_its_replicas_is_connected() -> None:
    """Law: a broker group leaves the routes when its last connection is lost, and immediately then."""
    replicas = [RemotingClient(), RemotingClient()]
    client = RemotingClient()
    async with running() as server:
        address = str(server.address)
        for replica in replicas:
            body = registration(1, topic("T"))
            reply = await replica.invoke(address, register_request(GROUP_A, body), TIMEOUT_S)
            assert reply.code == 0
        await replicas[0].close()
        found = await client.invoke(address, request(105, {"topic": "T"}), TIMEOUT_S)
        status = server.status()
        await replicas[1].close()
        await until_code(client, address, "T", 17)
        await client.close()

    assert json.loads(found.body)["brokerDatas"][0]["brokerAddrs"] == {"0": GROUP_A.address}
    live = status["brokerLiveTable"]
    assert isinstance(live, dict)
    assert live[GROUP_A.address]["brokerName"] == "group-a"


async def test_a_question_that_comes_before_the_brokers_is_answered_when_they_are_there() -> None:
    """Law: a client that asks before the brokers have registered does not hear "topic does not exist"."""
    replica, client = RemotingClient(), RemotingClient()
    async with running() as server:
        address = str(server.address)
        asked = asyncio.create_task(client.invoke(address, request(105, {"topic": "T"}), TIMEOUT_S))
        known = await client.invoke(address, request(106), TIMEOUT_S)
        assert (known.code, asked.done()) == (0, False)
        body = registration(1, topic("T"))
        await replica.invoke(address, register_request(GROUP_A, body), TIMEOUT_S)
        found = await asked
        for each in (replica, client):
            await each.close()

    assert found.code == 0


async def test_a_name_server_that_may_not_know_a_topic_does_not_deny_it_to_a_go_client() -> None:
    """Law: after a denial, the client would take the queues of TBW102 and so move the keys of an existing topic."""
    question = request(105, {"topic": "T"})
    clients = [RemotingClient(), RemotingClient()]
    async with running() as server:
        address = str(server.address)
        go = replace(question, language=LanguageCode.GO, opaque=1)
        unanswered = asyncio.create_task(clients[0].invoke(address, go, TIMEOUT_S))
        told = await clients[1].invoke(address, question, TIMEOUT_S)
        await asyncio.wait([unanswered], timeout=0.2)
        is_answered = unanswered.done()
        unanswered.cancel()
        for each in clients:
            await each.close()

    assert (told.code, is_answered) == (17, False)


def test_a_deletion_waits_only_where_it_would_be_refused_for_want_of_a_signature() -> None:
    """Law: a deletion waits only if brokers sign, an ordinary topic exists, and the request lacks the cluster's signature."""
    proofs = Proofs(b"k" * 32, allow_unsigned=True)
    guarded, free = NameServerCore(KvTable(), expiry_ms=120_000, proofs=proofs), core()
    for server in (guarded, free):
        register(server, GROUP_A, registration(1, topic("T"), topic("%RETRY%g")))

    def waits(server: NameServerCore, **ext: str) -> bool:
        return server.knows_too_little(request(216, ext), 0)

    assert waits(guarded, topic="T")
    assert waits(guarded, topic="T", OmqSignature="s", OmqKey="an account")
    assert not waits(guarded, topic="T", OmqSignature="s", OmqKey=NAME_SERVERS)
    assert not waits(guarded, topic="none")
    assert not waits(guarded, topic="%RETRY%g")
    assert not waits(guarded)
    assert not waits(free, topic="T")


async def test_a_deletion_waits_until_brokers_report_that_the_topic_is_gone() -> None:
    """Law: tools delete a topic at its brokers and then here; the answer is success, or a refusal if the topic stays."""
    broker, tool = RemotingClient(), RemotingClient()
    async with running(
        cluster_secret=b"0123456789abcdef", allow_unsigned_registrations=True
    ) as server:
        address = str(server.address)
        body = registration(1, topic("gone"), topic("stays"))
        await broker.invoke(address, register_request(GROUP_A, body), TIMEOUT_S)
        gone, stays = (
            asyncio.create_task(tool.invoke(address, request(216, {"topic": each}), TIMEOUT_S))
            for each in ("gone", "stays")
        )
        await asyncio.wait([gone, stays], timeout=0.2)
        is_early = gone.done() or stays.done()
        body = registration(2, topic("stays"))
        await broker.invoke(address, register_request(GROUP_A, body), TIMEOUT_S)
        deleted = await gone
        server._held = deque((0, conn, question) for _, conn, question in server._held)
        refused = await stays
        for each in (broker, tool):
            await each.close()

    assert (is_early, deleted.code, refused.code) == (False, 0, 16)


async def test_a_go_client_asks_elsewhere_for_a_listed_topic_that_nobody_has_registered() -> None:
    """Law: the server answers other clients and not Go, even if it started long ago or can hold no further question."""
    client = RemotingClient()
    async with running() as server:
        await client.invoke(str(server.address), request(106), TIMEOUT_S)
        (connection,) = server._connections.values()
        server._core.kv.put("ORDER_TOPIC_CONFIG", "orders", "group-a:8")
        server._core._began_ms = None
        question = request(105, {"topic": "orders"})
        for each in (question, replace(question, language=LanguageCode.GO)):
            server._held = deque([(0, connection, question)] * HELD_MAX)
            server.received(connection, each)
        sent = server._core.requests[(105, 17)]
        server._held.clear()
        await client.close()

    assert sent == 1, "the one that is not of Go"


async def test_a_go_client_that_waits_for_a_late_group_keeps_no_other_client_waiting() -> None:
    """Law: a held question is judged by its client's language, regardless of which client asked first."""
    client = RemotingClient()
    async with running() as server:
        await client.invoke(str(server.address), request(106), TIMEOUT_S)
        (connection,) = server._connections.values()
        server._core.kv.put("ORDER_TOPIC_CONFIG", "orders", "group-a:8;group-b:8")
        register(server._core, GROUP_A, registration(1, topic("orders", 8, order=True)))
        server._core._began_ms = None
        question = request(105, {"topic": "orders"})
        go = replace(question, language=LanguageCode.GO)
        due_ms = 1 << 62
        server._held = deque((due_ms, connection, each) for each in (go, question))
        server._answer_held(2, is_changed=True)
        left = [each.language for _, _, each in server._held]
        server._held.clear()
        await client.close()

    assert left == [LanguageCode.GO]


async def test_questions_that_wait_keep_little_memory() -> None:
    """Law: clients of a starting name server decide neither the size nor the number of the questions that it holds."""
    client = RemotingClient()
    async with running() as server:
        await client.invoke(str(server.address), request(106), TIMEOUT_S)
        (connection,) = server._connections.values()
        for ext in ({"topic": "T", "junk": "x" * 100_000}, {"topic": "x" * 100_000}):
            server.received(connection, replace(request(105, ext), flag=FLAG_ONEWAY))
        kept = [each.ext for _, _, each in server._held]

        server._core._began_ms = sys.maxsize  # it stays young, however long this test takes
        question = replace(request(105, {"topic": "T"}), flag=FLAG_ONEWAY)
        for _ in range(2 * HELD_MAX):
            server.received(connection, question)
        count = len(server._held)
        await client.close()

    assert (kept, count) == ([{"topic": "T"}], HELD_OF_ONE_MAX)


async def test_however_many_questions_wait_the_loop_turns_between_some_of_them() -> None:
    """Law: looking at the held questions never blocks the loop for long: strangers choose their number and topics."""
    client = RemotingClient()
    async with running() as server, asyncio.timeout(TIMEOUT_S):
        await client.invoke(str(server.address), request(106), TIMEOUT_S)
        (connection,) = server._connections.values()
        for number in range(HELD_OF_ONE_MAX):
            question = replace(request(105, {"topic": f"T{number}"}), flag=FLAG_ONEWAY)
            server.received(connection, question)
        server._held = deque((0, conn, question) for _, conn, question in server._held)

        server._look_at_held()
        assert len(server._held) == HELD_OF_ONE_MAX - LOOKED_AT_MAX
        while server._held:  # noqa: ASYNC110 - turns of the loop are what is looked at
            await asyncio.sleep(0)
        assert server._core.requests[(105, 17)] == HELD_OF_ONE_MAX
        assert not server._held_of
        await client.close()


async def test_questions_that_wait_are_judged_again_only_after_a_change() -> None:
    """Law: the server looks at held questions again only after the routes have changed."""
    client = RemotingClient()
    async with running() as server:
        await client.invoke(str(server.address), request(106), TIMEOUT_S)
        (connection,) = server._connections.values()
        routes = server._core.routes
        server._core._began_ms = sys.maxsize  # it stays young, however long this test takes
        server.received(connection, replace(request(105, {"topic": "T"}), flag=FLAG_ONEWAY))
        server._look_at_held()
        server._core.handle(register_request(GROUP_A, registration(1, topic("T"))), 99, 0)
        routes.changes -= 1
        server._look_at_held()
        before = len(server._held)
        routes.changes += 1
        server._look_at_held()
        after = len(server._held)
        await client.close()

    assert (before, after) == (1, 0)


async def test_a_crowd_of_clients_leaves_room_for_brokers() -> None:
    """Law: a new connection replaces that of the client that has been silent longest; registered brokers stay."""
    lost: asyncio.Queue[str] = asyncio.Queue()

    def client_named(name: str) -> RemotingClient:
        return RemotingClient(on_connection_lost=lambda _: lost.put_nowait(name))

    known, late = client_named("known"), client_named("late")
    clients = [client_named(name) for name in ("a", "b", "c")]
    async with running() as server, asyncio.timeout(TIMEOUT_S):
        server.clients_max = 2
        address = str(server.address)
        body = registration(1, topic("T"))
        await known.invoke(address, register_request(GROUP_A, body), TIMEOUT_S)
        for client in (clients[0], clients[1], clients[0], clients[2]):
            await client.invoke(address, request(106), TIMEOUT_S)
        crowded_out = [await lost.get()]
        reply = await late.invoke(address, register_request(GROUP_B, body), TIMEOUT_S)
        crowded_out.append(await lost.get())
        table = server.status()["brokerAddrTable"]
        for each in (known, late, *clients):
            await each.close()

    assert (crowded_out, reply.code) == (["b", "a"], 0)
    assert isinstance(table, dict)
    assert set(table) == {"group-a", "group-b"}


async def test_a_oneway_registration_counts_and_gets_no_answer() -> None:
    """Law: a oneway registration counts and gets no answer, so the next answer belongs to the next request."""
    client = RemotingClient()
    async with running() as server:
        address = str(server.address)
        await client.send_oneway(address, register_request(GROUP_A, registration(1, topic("T"))))
        found = await client.invoke(address, request(105, {"topic": "T"}), TIMEOUT_S)
        await client.close()

    assert found.code == 0
    assert client.traffic.frames_in == 1


async def test_a_silent_broker_is_dropped_and_its_connection_closed() -> None:
    """Law: the periodic scan ends a connection that was cut without notice."""
    closed = asyncio.Event()
    broker, client = RemotingClient(on_connection_lost=lambda _: closed.set()), RemotingClient()
    async with running(scan_ms=20, expiry_ms=20) as server:
        address = str(server.address)
        body = registration(1, topic("T"))
        await broker.invoke(address, register_request(GROUP_A, body), TIMEOUT_S)
        await until_code(client, address, "T", 17)
        await asyncio.wait_for(closed.wait(), TIMEOUT_S)
        await broker.close()
        await client.close()


async def test_a_name_server_that_stood_still_reads_first_what_has_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: after a pause the server reads waiting requests first, so no broker counts as silent, and no topic is denied."""
    ahead_ms = 0
    monkeypatch.setattr(app, "monotonic_ms", lambda: monotonic_ms() + ahead_ms)
    broker, client = RemotingClient(), RemotingClient()
    async with running(scan_ms=20, expiry_ms=1_000) as server:
        address = str(server.address)
        body = registration(1, topic("T"))
        await broker.invoke(address, register_request(GROUP_A, body), TIMEOUT_S)

        ahead_ms += 200_000
        asked = asyncio.create_task(client.invoke(address, request(105, {"topic": "U"}), TIMEOUT_S))
        await asyncio.sleep(0.1)  # time for some scans
        known = await client.invoke(address, request(105, {"topic": "T"}), TIMEOUT_S)
        assert (known.code, asked.done()) == (0, False)
        body = registration(2, topic("T"), topic("U"))
        await broker.invoke(address, register_request(GROUP_A, body), TIMEOUT_S)
        assert (await asked).code == 0

        for _ in range(2):
            ahead_ms += 2_000
            await client.invoke(address, request(106), TIMEOUT_S)
        await until_code(client, address, "T", 17)
        await broker.close()
        await client.close()


async def test_the_http_pages_show_the_tables_and_metrics() -> None:
    """Law: /status shows the five tables, and /metrics counts requests."""
    client = RemotingClient()
    async with running(http=LOOPBACK) as server:
        body = registration(1, topic("T"))
        await client.invoke(str(server.address), register_request(GROUP_A, body), TIMEOUT_S)
        await client.invoke(str(server.address), request(105, {"topic": "none"}), TIMEOUT_S)
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(connector=connector) as session:
            pages = {}
            for path in ("healthz", "readyz", "status", "metrics"):
                async with session.get(f"http://{server.http_address}/{path}") as response:
                    pages[path] = (response.status, await response.text())
        await client.close()

    status = json.loads(pages["status"][1])
    assert {code for code, _ in pages.values()} == {200}
    assert status["role"] == "name-server"
    assert status["topicQueueTable"]["T"]["group-a"]["writeQueueNums"] == 4
    assert status["clusterAddrTable"] == {"C": ["group-a"]}
    assert status["filterServerTable"] == {}
    metrics = pages["metrics"][1]
    assert 'orderlymq_nameserver_brokers{cluster="C"} 1.0' in metrics
    assert 'orderlymq_nameserver_requests_total{code="105",result="17"} 1.0' in metrics
    assert 'orderlymq_remoting_frames_total{direction="in",role="server"} 2.0' in metrics


@pytest.mark.parametrize("namespace", ["ORDER_TOPIC_CONFIG", "n"])
async def test_the_key_value_configuration_survives_a_restart(
    tmp_path: Path, namespace: str
) -> None:
    """Law: a saved value exists after a restart of the process."""
    client = RemotingClient()
    put = request(100, {"namespace": namespace, "key": "T", "value": "a:4"})
    get = request(101, {"namespace": namespace, "key": "T"})
    for _ in range(2):
        async with running(kv_path=tmp_path / "kv.json") as server:
            found = await client.invoke(str(server.address), get, TIMEOUT_S)
            await client.invoke(str(server.address), put, TIMEOUT_S)
    await client.close()

    assert found.ext == {"value": "a:4"}


@pytest.mark.parametrize("secret", ["0123456789abcdef", ""])
async def test_routes_of_ordered_topics_survive_a_restart_where_brokers_sign(
    tmp_path: Path, secret: str
) -> None:
    """Law: keys do not move while the broker group is away; addresses of brokers that do not sign are not kept."""
    settings = {"kv_path": tmp_path / "kv.json", "cluster_secret": secret.encode()}
    async with running(**settings) as server:
        routes = server._core.routes
        routes.reserve(GROUP_A.broker_name)
        body = registration(1, topic("orders", order=True))
        routes.register(GROUP_A, body, ha_address="", connection=0, now_ms=0)
    async with running(**settings) as server:
        found = server._core.routes.topics()

    assert found == (["orders"] if secret else [])


async def test_a_change_that_cannot_be_saved_is_answered_with_code_1(tmp_path: Path) -> None:
    """Law: the administrator gets an error if the disk refuses the change."""
    client = RemotingClient()
    put = request(100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "k", "value": "v"})
    (tmp_path / "kv").mkdir()
    async with running(kv_path=tmp_path / "kv" / "kv.json") as server:
        (tmp_path / "kv").rmdir()
        (tmp_path / "kv").write_text("a file where the directory was")
        reply = await client.invoke(str(server.address), put, TIMEOUT_S)
        await client.close()

    assert reply.code == 1
    assert "cannot be written" in (reply.remark or "")


async def test_texts_of_other_namespaces_are_saved_while_the_server_runs(tmp_path: Path) -> None:
    """Law: a process that is killed loses at most the texts of the last second."""
    client = RemotingClient()
    path = tmp_path / "kv.json"
    async with running(kv_path=path) as server:
        put = request(100, {"namespace": "n", "key": "k", "value": "v"})
        await client.invoke(str(server.address), put, TIMEOUT_S)
        async with asyncio.timeout(TIMEOUT_S):
            while not path.exists():
                await client.invoke(str(server.address), put, TIMEOUT_S)
        await client.close()

        assert KvFile(path).load() == {"n": {"k": "v"}}


def start(path: Path, settings: dict[str, object]) -> "subprocess.Popen[str]":
    path.write_text(json.dumps(settings))
    return subprocess.Popen(
        [sys.executable, "-m", "orderlymq_nameserver", "--settings", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_process_says_when_it_listens_and_ends_with_sigterm(tmp_path: Path) -> None:
    """Law: the process prints one line when it listens, and ends with exit code 0 after SIGTERM."""
    listen = {"host": "127.0.0.1", "port": 0}
    with start(tmp_path / "s.json", {"listen": listen, "http": listen}) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        port = int(line.split(",")[0].rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S):
            process.send_signal(signal.SIGTERM)
            assert process.stdout.read() == ""

    assert line.startswith("name server listens on 127.0.0.1:")
    assert process.returncode == 0


@pytest.mark.parametrize("which", ["listen", "http"])
def test_a_port_in_use_ends_the_start_with_one_line(tmp_path: Path, which: str) -> None:
    """Law: exit code 2, and one line that names the port and says what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings: dict[str, object] = {"listen": {"host": "127.0.0.1", "port": 0}}
        settings[which] = {"host": "127.0.0.1", "port": port}
        with start(tmp_path / "s.json", settings) as process:
            _, errors = process.communicate(timeout=TIMEOUT_S)

    (line,) = errors.splitlines()
    assert process.returncode == 2
    assert line.startswith(f"name server: port {port} of 127.0.0.1 is in use: stop the process")


BAD_SETTINGS = [
    ({"listn": {}}, "unknown field `listn`"),
    ({"listen": {"host": "127.0.0.1", "port": "x"}}, "$.listen.port"),
    ({"expiry_ms": 0}, "Expected `int` >= 1 - at `$.expiry_ms`"),
    ({"kv_path": 7}, "$.kv_path"),
    ({"log_level": "LOUD"}, "$.log_level"),
]


@pytest.mark.parametrize(("settings", "reason"), BAD_SETTINGS)
def test_bad_settings_end_the_start_with_the_field(
    tmp_path: Path,
    settings: dict[str, object],
    reason: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Law: exit code 2, and one line that names the file and the field."""
    path = tmp_path / "s.json"
    path.write_text(json.dumps(settings))

    assert main(["--settings", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"name server: {path}: ")
    assert reason in line


def test_a_missing_settings_file_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Law: the error names the path and the next step."""
    assert main(["--settings", str(tmp_path / "none.json")]) == 2
    assert "none.json: No such file or directory; give the path" in capsys.readouterr().err


async def test_each_listener_answers_with_its_own_addresses(tmp_path: Path) -> None:
    """Law: clients get the addresses of the listener that they ask; a new address in the file needs no restart."""
    addresses = tmp_path / "addresses.json"
    addresses.write_text('{"outside": {}}')
    listener = OutsideListener(name="outside", host="127.0.0.2", port=0)
    replica, client = RemotingClient(), RemotingClient()
    async with running(listeners=[listener], outside_addresses=addresses) as server:
        body = registration(1, topic("T"))
        await replica.invoke(str(server.address), register_request(GROUP_A, body), TIMEOUT_S)
        inside = await client.invoke(str(server.address), request(105, {"topic": "T"}), TIMEOUT_S)
        outside = str(server.outside["outside"])
        refused = await client.invoke(outside, request(105, {"topic": "T"}), TIMEOUT_S)
        addresses.write_text('{"outside": {"group-a": "203.0.113.1:31001"}}')
        await until_code(client, outside, "T", 0)
        found = await client.invoke(outside, request(105, {"topic": "T"}), TIMEOUT_S)
        for each in (replica, client):
            await each.close()

    assert outside.startswith("127.0.0.2:")
    assert json.loads(inside.body)["brokerDatas"][0]["brokerAddrs"] == {"0": GROUP_A.address}
    assert "OutsideAddressMissing" in (refused.remark or "")
    assert json.loads(found.body)["brokerDatas"][0]["brokerAddrs"] == {"0": "203.0.113.1:31001"}


@pytest.mark.parametrize(
    ("listeners", "problem"),
    [
        ([{"name": "a", "host": "h", "port": 1}, {"name": "a", "host": "h", "port": 2}], "name a"),
        ([{"name": "A", "host": "h", "port": 1}], "listeners"),
        ([{"name": "a", "host": "h", "port": 1, "tls": {"mode": "enforcing"}}], "certificate"),
    ],
)
def test_listeners_that_cannot_be_served_are_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    listeners: list[dict[str, object]],
    problem: str,
) -> None:
    """The error is one sentence that begins with the path."""
    path = tmp_path / "settings.json"
    path.write_text(json.dumps({"listeners": listeners}))

    assert main(["--settings", str(path)]) == 2
    assert problem in capsys.readouterr().err
