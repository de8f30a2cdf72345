"""Processes that end, pause or restart under load: no acknowledged message is lost, and no answer is stale."""

import asyncio
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from orderlymq_protocol.body import fastjson
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.codec import encode
from orderlymq_protocol.frame.command import request
from orderlymq_runtime.remoting.client import RemotingClient, RemotingError
from tests.cluster.bareclient import Sender, assert_kept_in_order, pull_all, report, send_command
from tests.cluster.processes import Group
from tests.ports import free_ports
from tests.runtime.certificates import make_authority, make_certificate
from tests.trouble.inspection import assert_all_clean
from tests.trouble.rawsocket import RawSocket
from tests.trouble.stubborn import stubborn_callers

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

# The time in which a process must end, even on a busy machine.
EXIT_TIMEOUT_S = 15.0
ROUTES_TIMEOUT_S = 30.0
# The consumer group and the queue whose offset is committed.
WHERE = {"consumerGroup": "TOOLS_CONSUMER", "topic": "orders", "queueId": "0"}


@pytest.fixture(scope="module")
def endured(make_group: Callable[..., Group]) -> Group:
    """Return a group of three whose processes the tests of this module end."""
    return make_group(3)


@pytest.fixture
def trio(endured: Group) -> Group:
    """Return the group with all replicas running: a failed test may have left some of them stopped."""
    for child in (endured.name_server, *endured.brokers.values()):
        if not child.is_running:
            child.start()
    endured.wait_for_leader()
    return endured


async def stored(client: RemotingClient, group: Group) -> dict[int, list[tuple[int, bytes]]]:
    return {
        queue_id: await pull_all(client, group.address, "orders", queue_id) for queue_id in range(8)
    }


def senders(client: RemotingClient, group: Group, name: str) -> list[Sender]:
    return [Sender(client, group.address, f"{name}{number}", number) for number in range(8)]


async def commit(client: RemotingClient, address: str, offset: int) -> int:
    ext = WHERE | {"commitOffset": str(offset)}
    reply = await client.invoke(address, request(RequestCode.UPDATE_CONSUMER_OFFSET, ext), 3.0)
    return reply.code


@pytest.mark.long
async def test_sigterm_of_every_leader_in_turn_loses_nothing(
    trio: Group, client: RemotingClient
) -> None:
    """Each leader in turn gets SIGTERM under load: no send is refused, and the process exits within seconds."""
    busy = senders(client, trio, "turn")
    logs = [child.log_path for child in trio.brokers.values()]
    # Ignore lines that an earlier attempt of this test has logged.
    logged = [path.stat().st_size for path in logs]
    done = False

    async def keep_sending(sender: Sender) -> None:
        while not done:
            await sender.send(1)

    took: list[float] = []
    async with asyncio.TaskGroup() as tasks:
        for sender in busy:
            tasks.create_task(keep_sending(sender))
        for _ in range(3):
            await asyncio.sleep(0.3)
            leader = await asyncio.to_thread(trio.wait_for_leader)
            told_at = time.monotonic()
            trio.brokers[leader].signal(signal.SIGTERM)
            assert await asyncio.to_thread(trio.brokers[leader].wait) == 0
            took.append(time.monotonic() - told_at)
            trio.brokers[leader].start()
            await asyncio.to_thread(trio.wait_for_leader)
            await asyncio.to_thread(trio.wait_until_equal)
        done = True

    gap = max(sender.longest_gap_s() for sender in busy)
    report(f"SIGTERM of leaders: exits {[f'{each:.2f}' for each in took]}, longest gap {gap:.2f} s")
    assert max(took) < EXIT_TIMEOUT_S
    for path, size in zip(logs, logged, strict=True):
        assert b"leadership was not handed over" not in path.read_bytes()[size:]
    assert sum(sender.refused for sender in busy) == 0, [sender.failures for sender in busy]
    assert_kept_in_order(busy, await stored(client, trio))


async def test_sigterm_of_all_at_once_under_load_and_everything_is_there_again(
    trio: Group, client: RemotingClient
) -> None:
    """The whole group gets SIGTERM under load: it exits within seconds, and serves everything after a restart."""
    busy = senders(client, trio, "all")
    await asyncio.gather(*(sender.send(20) for sender in busy))
    tasks = [asyncio.create_task(sender.send(1_000_000, pause_s=0.002)) for sender in busy]
    await asyncio.sleep(0.3)

    told_at = time.monotonic()
    for child in trio.brokers.values():
        child.signal(signal.SIGTERM)
    codes = [await asyncio.to_thread(child.wait) for child in trio.brokers.values()]
    took = time.monotonic() - told_at
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    report(f"SIGTERM of all: exits {codes} after {took:.2f} s")

    assert codes == [0, 0, 0]
    assert took < EXIT_TIMEOUT_S
    for child in trio.brokers.values():
        child.start()
    await asyncio.to_thread(trio.wait_for_leader)
    assert_kept_in_order(busy, await stored(client, trio))


def test_callers_who_neither_read_nor_hang_up_hold_no_end_up(
    make_group: Callable[..., Group], tmp_path: Path
) -> None:
    """Broker and name server exit with 0 within seconds, with such callers on each port, plain and by TLS."""
    files = make_certificate(make_authority(tmp_path), "server")
    tls = {"mode": "permissive", "certificate": str(files.certificate), "key": str(files.key)}
    group = make_group(1, tls=tls)
    asking = encode(request(RequestCode.GET_BROKER_CLUSTER_INFO))
    page = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    callers = [
        (group.port, asking, True),
        (group.raft_ports[1], page, True),
        (group.http_ports[1], page, True),
        (group.name_server_port, asking, False),
    ]
    with ExitStack() as stack:
        for port, words, encrypted in callers:
            stack.enter_context(stubborn_callers(port, words, tls=encrypted))
        told_at = time.monotonic()
        codes = []
        for child in (group.brokers[1], group.name_server):
            child.signal(signal.SIGTERM)
            codes.append(child.wait(EXIT_TIMEOUT_S))
        report(
            f"SIGTERM with stubborn callers: exits {codes} after {time.monotonic() - told_at:.2f} s"
        )

    assert codes == [0, 0]


async def test_a_leader_that_stood_still_answers_nothing_from_its_past(
    make_group: Callable[..., Group], tmp_path: Path, client: RemotingClient
) -> None:
    """SIGSTOP beyond the election time-out, then SIGCONT, with requests waiting in its sockets.

    The old leader acknowledges no send that is lost and returns no offset that has changed: requests that
    arrived during its pause are answered from the present state or not at all. Every replica has its own
    address here, as behind a service, because a paused process keeps a shared port.
    """
    group = Group(tmp_path / "group", 3, {"bind": "always"})
    ports = dict(zip(group.brokers, free_ports(3), strict=True))
    for node, port in ports.items():
        group.add(node, listen={"host": "127.0.0.1", "port": port})
    address = {node: f"127.0.0.1:{port}" for node, port in ports.items()}
    other = RemotingClient()
    leader = None
    try:
        group.start()
        leader = await asyncio.to_thread(group.wait_for_leader)
        mine = Sender(client, address[leader], "former", 0)
        await mine.send(20)
        assert await commit(client, address[leader], 5) == ResponseCode.SUCCESS

        with RawSocket(ports[leader]) as old, RawSocket(ports[leader]) as late:
            group.brokers[leader].signal(signal.SIGSTOP)
            successor = await asyncio.to_thread(group.wait_for_leader, other_than=leader)
            after = Sender(other, address[successor], "after", 0)
            await after.send(20)
            assert await commit(other, address[successor], 17) == ResponseCode.SUCCESS
            ends_at = after.acknowledged[-1].offset + 1
            # The paused leader gets this question, and reads it first when it wakes.
            questions = [
                request(RequestCode.QUERY_CONSUMER_OFFSET, WHERE),
                request(RequestCode.GET_MAX_OFFSET, {"topic": "orders", "queueId": "0"}),
            ]
            for number, question in enumerate(questions):
                question.opaque = number
                old.send(encode(question))
            forgotten = send_command("orders", 0, b"late:0")
            late.send(encode(forgotten))
            group.brokers[leader].signal(signal.SIGCONT)

            answers = [await asyncio.to_thread(old.receive) for _ in questions]
            promise = await asyncio.to_thread(late.receive)
        await asyncio.to_thread(group.wait_for_status, leader, serving=False, role="follower")
        everything = await pull_all(other, address[successor], "orders", 0)

        report(f"woke up: {answers} {promise}")
        if answers[0] is not None and answers[0].code == ResponseCode.SUCCESS:
            assert answers[0].ext["offset"] == "17"
        if answers[1] is not None and answers[1].code == ResponseCode.SUCCESS:
            assert int(answers[1].ext["offset"]) >= ends_at
        if promise is not None and promise.code == ResponseCode.SUCCESS:
            offset = int(promise.ext["queueOffset"])
            assert everything[offset] == (offset, b"late:0")
        elif promise is not None:
            assert b"late:0" not in [body for _, body in everything]
        assert_kept_in_order([mine, after], {0: everything})
        assert_all_clean(group)
    finally:
        if leader is not None:
            group.brokers[leader].signal(signal.SIGCONT)
        group.stop()
        await other.close()


async def test_a_name_server_that_was_killed_has_its_routes_again(
    trio: Group, client: RemotingClient
) -> None:
    """Clients that know the routes continue without the name server; after its restart it soon has all routes."""
    sender = Sender(client, trio.address, "routes", 0)
    await sender.send(5)
    before = await known_route(client, trio)

    trio.name_server.kill()
    await sender.send(20)
    trio.name_server.start()
    restarted_at = time.monotonic()
    after = await known_route(client, trio)
    report(f"routes were back {time.monotonic() - restarted_at:.2f} s after the restart")

    assert after == before
    assert not sender.failures


async def known_route(client: RemotingClient, group: Group) -> object:
    """Return the route of the topic when the name server has it."""
    async with asyncio.timeout(ROUTES_TIMEOUT_S):
        while (found := await route(client, group)) is None:  # noqa: ASYNC110 - another process has it
            await asyncio.sleep(0.05)
    return found


async def route(client: RemotingClient, group: Group) -> object:
    """Return the route of the topic, None if the name server has none or does not answer."""
    command = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
    try:
        reply = await client.invoke(group.name_server_address, command, 2.0)
    except RemotingError:
        return None
    if reply.code != ResponseCode.SUCCESS:
        return None
    found: object = fastjson.loads(reply.body)
    return found


async def test_after_all_of_this_the_stores_are_clean(trio: Group) -> None:
    """`orderlymq doctor` finds no damage in any replica that went through this module."""
    await asyncio.to_thread(trio.wait_until_equal)

    await asyncio.to_thread(assert_all_clean, trio)
