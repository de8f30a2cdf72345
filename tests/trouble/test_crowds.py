"""Too many clients, and clients that do not do their part: memory stays bounded, others are served."""

import asyncio
import contextlib
import resource
import time
from collections.abc import Callable, Iterator

import pytest

from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.codec import encode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_runtime.remoting.client import RemotingClient
from tests.cluster.bareclient import Sender, report, send_command
from tests.cluster.processes import Group
from tests.trouble.rawsocket import RawSocket, memory_bytes

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(90)]

MEBIBYTE = 1 << 20

# The send time-out of RocketMQ's clients: users do not notice shorter delays. Send times are measured in bench/.
SEND_TIMEOUT_S = 3.0

CROWD = 10_000
# Open files of the test process in addition to the crowd: sockets, logs and libraries.
SPARE_FILES = 200
# The largest cost of a connection in the runtime's accounts, and as much again for the kernel's accounts and the
# allocator.
CONNECTION_SIZE_MAX = 10 * 1024

# The crowd has its own source address, so that it takes no port from the servers under test.
CROWD_ADDRESS = "127.0.0.9"

# The rest of a frame must arrive within 30 s, which is checked every 5 s; see ConnectionLimits.
HALF_FRAME_TIMEOUT_S = 36.0


@pytest.fixture(scope="module", autouse=True)
def files() -> Iterator[int]:
    """Allow as many open files as the machine permits, in child processes, too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="module")
def group(files: int, make_group: Callable[..., Group]) -> Group:
    made = make_group(1)
    with RawSocket(made.port) as connection:
        for number in range(64):
            answer = connection.call(send_command("large", 0, bytes(256 * 1024)))
            assert answer is not None, number
            assert answer.code == ResponseCode.SUCCESS
    return made


@pytest.fixture(scope="module")
def silent(group: Group) -> Iterator[tuple[RawSocket, float]]:
    """Return a connection that has sent half a frame, and the time from which it is silent."""
    with RawSocket(group.port) as made:
        made.send(encode(send_command("large", 0, b"half"))[:40])
        yield made, time.monotonic()


async def longest_send_s(group: Group, client: RemotingClient, count: int = 50) -> float:
    """Send one message after the other; return the longest time between two acknowledgements.

    The result is the best of three rounds: a pause of the disk or the machine spoils one round, a crowd spoils all.
    """
    gaps_s = []
    for _ in range(3):
        sender = Sender(client, group.address, "s0", 0)
        await sender.send(count)
        gaps_s.append(sender.longest_gap_s())
        if not sender.failures:
            break
    return min(gaps_s)


async def test_ten_thousand_idle_connections_cost_little_and_slow_nobody(
    silent: tuple[RawSocket, float], files: int, group: Group, client: RemotingClient
) -> None:
    """Neither a broker nor a name server uses much memory for 10 000 silent connections, and sends are still served."""
    count = min(CROWD, files - SPARE_FILES)
    if count < CROWD:
        report(f"only {files} open files are allowed: a crowd of {count} instead of {CROWD}")
    await longest_send_s(group, client)
    for port, child in (
        (group.port, group.brokers[1]),
        (group.name_server_port, group.name_server),
    ):
        before = memory_bytes(child.pid)
        began = time.monotonic()
        crowd = [RawSocket(port, source=CROWD_ADDRESS) for _ in range(count)]
        took_s = time.monotonic() - began
        try:
            # This connection is the last in the queue: when it is answered, all are accepted.
            with RawSocket(port) as last:
                assert last.call(request(9_999)) is not None
            grown = memory_bytes(child.pid) - before
            gap_s = await longest_send_s(group, client)
            report(
                f"{count} idle: {took_s:.1f} s, {grown / count:.0f} bytes each, gap {gap_s:.3f} s"
            )

            assert grown < count * CONNECTION_SIZE_MAX
            assert gap_s < SEND_TIMEOUT_S
            # The idle connections are still open.
            assert crowd[0].call(request(9_999)) is not None
            assert crowd[-1].call(request(9_999)) is not None
        finally:
            for each in crowd:
                each.close()
        assert await longest_send_s(group, client) < SEND_TIMEOUT_S


async def test_a_crowd_cannot_take_the_files_that_the_store_needs(
    make_group: Callable[..., Group], client: RemotingClient
) -> None:
    """If few open files are allowed, most of the crowd is disconnected, and the store can still write new files."""
    group = make_group(1)
    await longest_send_s(group, client)
    limit = 200
    resource.prlimit(group.brokers[1].pid, resource.RLIMIT_NOFILE, (limit, limit))

    crowd: list[RawSocket] = []
    for _ in range(2 * limit):
        with contextlib.suppress(ConnectionResetError):  # disconnected while still connecting
            crowd.append(RawSocket(group.port, source=CROWD_ADDRESS))
    try:
        body = bytes(MEBIBYTE)
        for _ in range(100):
            reply = await client.invoke(group.address, send_command("orders", 0, body), 30.0)
            assert reply.code == ResponseCode.SUCCESS
        assert crowd[-1].call(request(9_999)) is not None
        assert crowd[0].is_hung_up()
    finally:
        for each in crowd:
            each.close()

    assert await longest_send_s(group, client) < SEND_TIMEOUT_S
    with RawSocket(group.port) as newcomer:
        assert newcomer.call(request(9_999)) is not None
    assert "Traceback" not in group.logs(lines=100_000)


def large_pull(opaque: int) -> RemotingCommand:
    """Return a pull whose answer holds 256 KiB."""
    ext = {
        "consumerGroup": "TOOLS_CONSUMER",
        "topic": "large",
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "1",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subVersion": "0",
        "subscription": "*",
    }
    command = request(RequestCode.PULL_MESSAGE, ext)
    command.opaque = opaque
    return command


async def test_consumers_that_never_read_are_not_read_either(
    group: Group, client: RemotingClient
) -> None:
    """Ten clients ask for 2.5 GiB and read nothing: a few MiB are kept for each, and others are served."""
    pid = group.brokers[1].pid
    await longest_send_s(group, client)
    before = memory_bytes(pid)
    pulls = b"".join(encode(large_pull(number)) for number in range(1_000))
    deaf = [RawSocket(group.port, receive_buffer=4096) for _ in range(10)]
    try:
        for each in deaf:
            await asyncio.to_thread(each.send_some, pulls, timeout_s=0.1)
        gap_s = await longest_send_s(group, client)
        grown = memory_bytes(pid) - before
        report(f"deaf consumers: {grown / MEBIBYTE:.0f} MiB for ten, longest gap {gap_s:.3f} s")

        assert grown < 10 * 16 * MEBIBYTE
        assert gap_s < SEND_TIMEOUT_S
        # The answers are kept: a client that begins to read gets them in their order.
        for number in range(20):
            answer = await asyncio.to_thread(deaf[0].receive)
            assert answer is not None
            assert (answer.opaque, answer.code) == (number, ResponseCode.SUCCESS)
    finally:
        for each in deaf:
            each.close()
    assert await longest_send_s(group, client) < SEND_TIMEOUT_S


async def test_long_polls_without_number_are_bounded(group: Group, client: RemotingClient) -> None:
    """A client that sends 20 000 pulls for future messages takes a bounded amount of memory and delays no other client."""
    pid = group.brokers[1].pid
    await longest_send_s(group, client)
    before = memory_bytes(pid)
    waiting = request(
        RequestCode.PULL_MESSAGE,
        large_pull(0).ext
        | {"queueId": "1", "sysFlag": "6", "suspendTimeoutMillis": "30000", "queueOffset": "0"},
    )
    frame = encode(waiting)
    with RawSocket(group.port) as hungry:
        await asyncio.to_thread(hungry.send, frame * 20_000)
        gap_s = await longest_send_s(group, client)
        grown = memory_bytes(pid) - before
        report(f"20 000 long polls: {grown / MEBIBYTE:.0f} MiB, longest gap {gap_s:.3f} s")

        assert grown < 20_000 * 4096
        assert gap_s < SEND_TIMEOUT_S
    await asyncio.to_thread(group.wait_for_status, 1, heldPulls=0)


@pytest.mark.long
async def test_half_a_frame_is_waited_for_half_a_minute(
    silent: tuple[RawSocket, float], group: Group, client: RemotingClient
) -> None:
    """A client that falls silent after half a frame is disconnected after 30 s; other clients notice nothing."""
    stranger, since = silent
    left_s = HALF_FRAME_TIMEOUT_S - (time.monotonic() - since)

    hung_up = await asyncio.to_thread(stranger.is_hung_up, max(left_s, 0.1))

    assert hung_up
    assert await longest_send_s(group, client) < SEND_TIMEOUT_S
