"""Leadership and membership change on request; locks of a dead client become free by themselves."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable

import pytest

from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_protocol.header.catalogue import PullMessageHeader
from orderlymq_runtime.remoting.client import ConnectionLost, RemotingClient
from tests.cluster.bareclient import (
    Sender,
    assert_kept_in_order,
    invoke,
    pull_all,
    report,
    send_command,
)
from tests.cluster.processes import Group

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

MakeGroup = Callable[..., Group]


def long_poll(offset: int) -> RemotingCommand:
    """Return a pull that waits up to 15 s for a message at *offset* of queue 0."""
    header = PullMessageHeader(
        consumer_group="TOOLS_CONSUMER",
        topic="orders",
        queue_id=0,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=6,
        commit_offset=0,
        suspend_timeout_millis=15_000,
        sub_version=0,
        subscription="*",
    )
    return request(RequestCode.PULL_MESSAGE, header.to_ext())


async def change(client: RemotingClient, group: Group, **body: object) -> RemotingCommand:
    """Request a membership change, and repeat it while the refusal has a temporary reason."""
    command = request(RequestCode.ORDERLYMQ_CHANGE_MEMBERSHIP, body=json.dumps(body).encode())
    for _ in range(100):
        reply = await invoke(client, group.address, command, 10.0)
        if reply.code == ResponseCode.SUCCESS:
            return reply
        await asyncio.sleep(0.1)
    raise AssertionError(reply.remark)


async def pull_on(consumer: RemotingClient, group: Group) -> None:
    """Pull as a client does until a message comes.

    The leader may answer a waiting pull with a request to repeat it, but it must answer.
    """
    code = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
    while code == ResponseCode.PULL_RETRY_IMMEDIATELY:
        with contextlib.suppress(ConnectionLost):
            code = (await consumer.invoke(group.address, long_poll(1), 20.0)).code
    assert code == ResponseCode.SUCCESS


async def test_leadership_moves_on_request_and_fails_nothing(
    make_group: MakeGroup, client: RemotingClient
) -> None:
    """20503 during sends and a held pull: the target leads, no send fails, and the client is told to repeat the pull."""
    group = make_group()
    senders = [Sender(client, group.address, f"s{number}", number) for number in range(1, 8)]
    await Sender(client, group.address, "first", 0).send(1)
    leader = group.wait_for_leader()
    target = next(node for node in group.brokers if node != leader)
    consumer = RemotingClient()
    held = asyncio.create_task(consumer.invoke(group.address, long_poll(1), 20.0))
    command = request(RequestCode.ORDERLYMQ_TRANSFER_LEADERSHIP, {"target": str(target)})

    async def keep_sending(sender: Sender) -> None:
        while not held.done():
            await sender.send(1, pause_s=0.002)

    async with asyncio.TaskGroup() as tasks:
        for sender in senders:
            tasks.create_task(keep_sending(sender))
        await asyncio.to_thread(group.wait_for_status, leader, heldPulls=1)
        began = time.monotonic()
        moved = await invoke(client, group.address, command, 5.0)
        report(f"moved in {1000 * (time.monotonic() - began):.0f} ms")
        told = await held

    assert (moved.code, moved.ext.get("leader")) == (0, str(target)), moved.remark
    assert told.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    gap = max(sender.longest_gap_s() for sender in senders)
    report(
        f"longest gap {1000 * gap:.0f} ms, failures {[s.failures for s in senders if s.failures]}"
    )
    assert sum(sender.refused for sender in senders) == 0
    stored = {each: await pull_all(client, group.address, "orders", each) for each in range(8)}
    assert_kept_in_order(senders, stored)

    # The consumer keeps its connection to the former leader, which forwards its pulls.
    again = asyncio.create_task(pull_on(consumer, group))
    await asyncio.sleep(0.1)
    fresh = RemotingClient()
    await Sender(fresh, group.address, "last", 0).send(1)
    await asyncio.wait_for(again, 20.0)
    await fresh.close()
    await consumer.close()


async def test_a_replica_is_added_and_another_removed(
    make_group: MakeGroup, client: RemotingClient
) -> None:
    """A fourth replica joins and votes, and stays when one of the first three is removed."""
    group = make_group()
    sender = Sender(client, group.address, "s0", 0)
    await sender.send(50)
    group.add(4, join=True).start()

    await change(
        client, group, action="add-learner", node=4, address=f"127.0.0.1:{group.raft_ports[4]}"
    )
    await change(client, group, action="promote", node=4)
    leader = group.wait_for_leader()
    gone = next(node for node in group.brokers if node not in {leader, 4})
    await change(client, group, action="remove", node=gone)
    await sender.send(50)
    group.brokers[gone].kill()

    statuses = await asyncio.to_thread(group.wait_until_equal)
    assert all(status["voters"] == sorted({1, 2, 3, 4} - {gone}) for status in statuses)
    # The new replica counts for the majority: it and the third one serve without the leader.
    group.brokers[leader].kill()
    await sender.send(1)
    stored = {each: await pull_all(client, group.address, "orders", each) for each in range(8)}
    assert_kept_in_order([sender], stored)


async def test_a_leader_answers_its_own_removal(
    make_group: MakeGroup, client: RemotingClient
) -> None:
    """Law: a committed removal is answered with success, because a second request would find that the node is no member."""
    group = make_group()
    await Sender(client, group.address, "s0", 0).send(1)
    leader = group.wait_for_leader()
    body = json.dumps({"action": "remove", "node": leader}).encode()

    reply = await invoke(
        client, group.address, request(RequestCode.ORDERLYMQ_CHANGE_MEMBERSHIP, body=body), 10.0
    )

    assert (reply.code, reply.remark) == (ResponseCode.SUCCESS, None)
    await Sender(client, group.address, "s1", 1).send(1)
    group.brokers[leader].kill()
    statuses = await asyncio.to_thread(group.wait_until_equal)
    assert all(status["voters"] == sorted({1, 2, 3} - {leader}) for status in statuses)


async def test_bad_steering_is_refused_with_a_reason(
    make_group: MakeGroup, client: RemotingClient
) -> None:
    """A request that cannot be carried out changes nothing, and the answer says what to write instead."""
    group = make_group(1)
    codes = RequestCode.ORDERLYMQ_CHANGE_MEMBERSHIP, RequestCode.ORDERLYMQ_TRANSFER_LEADERSHIP

    async def remark(code: RequestCode, body: bytes = b"", **ext: str) -> str:
        reply = await invoke(client, group.address, request(code, ext, body), 5.0)
        assert reply.code != ResponseCode.SUCCESS
        return reply.remark or ""

    assert "not a membership request" in await remark(codes[0], b"{")
    assert "use one of" in await remark(codes[0], b'{"action":"x","node":2}')
    assert "give the address" in await remark(codes[0], b'{"action":"add-learner","node":2}')
    assert "not a learner" in await remark(codes[0], b'{"action":"promote","node":2}')
    assert "last voter" in await remark(codes[0], b'{"action":"remove","node":1}')
    assert "not a node id" in await remark(codes[1], target="two")
    assert "not a voter" in await remark(codes[1], target="2")
    assert "no other voter" in await remark(codes[1])


# The default lease of a client that names none.
LEASE_S = 60.0

# A consumer in its own process: it names its process, takes a lock and waits for its end.
CLIENT = """
import asyncio, json, os, sys
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import request
from orderlymq_runtime.remoting.client import RemotingClient

async def main():
    client, address, name = RemotingClient(), sys.argv[1], f"127.0.0.1@{os.getpid()}#1"
    for code, body in json.loads(sys.argv[2].replace("CLIENT", name)):
        reply = await client.invoke(address, request(code, body=json.dumps(body).encode()), 5.0)
        assert reply.code == 0, reply
    print(reply.body.decode(), flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_the_locks_of_a_killed_local_client_are_free_immediately(
    make_group: MakeGroup, client: RemotingClient
) -> None:
    """After SIGKILL of a local lock holder, its lock is granted to another client long before its lease ends."""
    group = make_group()
    await Sender(client, group.address, "s0", 0).send(1)
    queue = {"brokerName": "g", "queueId": 0, "topic": "orders"}
    heartbeat = {
        "clientID": "CLIENT",
        "producerDataSet": [],
        "consumerDataSet": [
            {
                "groupName": "G",
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "subscriptionDataSet": [],
            }
        ],
    }
    lock = {"clientId": "CLIENT", "consumerGroup": "G", "mqSet": [queue]}
    calls = json.dumps([(34, heartbeat), (41, lock)])
    holder = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CLIENT, group.address, calls), stdout=asyncio.subprocess.PIPE
    )
    assert holder.stdout is not None
    line = await holder.stdout.readline()
    assert json.loads(line)["lockOKMQSet"]
    # A client that dies before the broker has looked up its process keeps its lock until the lease ends.
    leader = group.wait_for_leader()
    await asyncio.to_thread(group.wait_for_status, leader, identified_clients=1)

    mine = json.dumps(lock | {"clientId": f"127.0.0.1@{os.getpid()}#2"}).encode()

    async def granted() -> bool:
        reply = await invoke(
            client, group.address, request(RequestCode.LOCK_BATCH_MQ, body=mine), 5.0
        )
        return bool(json.loads(reply.body)["lockOKMQSet"])

    assert not await granted()
    holder.send_signal(signal.SIGKILL)
    killed_at = time.monotonic()
    while not await granted():
        assert time.monotonic() - killed_at < LEASE_S / 2
        await asyncio.sleep(0.005)
    took_s = time.monotonic() - killed_at
    report(f"lock of a killed client free after {1000 * took_s:.0f} ms")
    await holder.wait()


async def test_a_connection_that_is_merely_closed_frees_nothing(
    make_group: MakeGroup, client: RemotingClient
) -> None:
    """A living client that loses its connection keeps its lock, because a closed connection does not prove its end."""
    group = make_group()
    await Sender(client, group.address, "s0", 0).send(1)
    queue = {"brokerName": "g", "queueId": 0, "topic": "orders"}

    async def lock(asking: RemotingClient, name: str) -> bool:
        body = json.dumps({"clientId": name, "consumerGroup": "G", "mqSet": [queue]}).encode()
        reply = await invoke(
            asking, group.address, request(RequestCode.LOCK_BATCH_MQ, body=body), 5.0
        )
        return bool(json.loads(reply.body)["lockOKMQSet"])

    holder = RemotingClient()
    assert await lock(holder, f"127.0.0.1@{os.getpid()}#1")
    await asyncio.sleep(0.2)
    await holder.close()
    await asyncio.sleep(1.0)

    assert not await lock(client, f"127.0.0.1@{os.getpid()}#2")


async def test_a_leader_that_cannot_reach_the_others_closes_instead_of_answering(
    make_group: MakeGroup, client: RemotingClient
) -> None:
    """Without a majority the leader answers no request from stale state; it closes connections within seconds."""
    group = make_group()
    offset = request(RequestCode.GET_MAX_OFFSET, {"topic": "TBW102", "queueId": "0"})
    assert (await invoke(client, group.address, offset)).code == ResponseCode.SUCCESS
    leader = group.wait_for_leader()
    others = [child for node, child in group.brokers.items() if node != leader]
    answered_s = 0.0

    async def ask_on() -> None:
        nonlocal answered_s
        while True:
            asked_s = time.monotonic()
            await client.invoke(group.address, offset, 60.0)
            answered_s = asked_s

    try:
        for child in others:
            child.signal(signal.SIGSTOP)
        stopped_s = time.monotonic()
        with pytest.raises(ConnectionLost):
            await asyncio.wait_for(ask_on(), 60)
    finally:
        for child in others:
            child.signal(signal.SIGCONT)
    # The lease from before the pause is shorter than the 0.2 s of an election.
    assert answered_s < stopped_s + 0.6


async def test_live_settings_of_a_changed_file_hold_for_every_leader_without_a_restart(
    make_group: MakeGroup, client: RemotingClient
) -> None:
    """Law: the leader applies changed settings within seconds, and so does the next leader, without any restart."""
    group = make_group()
    await Sender(client, group.address, "s", 0).send(1)
    pids = {node: child.pid for node, child in group.brokers.items()}
    large = send_command("orders", 0, b"x" * 2_048)
    assert (await invoke(client, group.address, large)).code == ResponseCode.SUCCESS

    for node in pids:
        path = group.directory / f"broker-{node}.json"
        said = json.loads(path.read_text())
        said["storage"] = {**said.get("storage", {}), "body_size_max": 1_024}
        path.write_text(json.dumps(said))

    async def obeyed() -> None:
        async with asyncio.timeout(40):
            while (  # noqa: ASYNC110 - it waits for other processes
                await invoke(client, group.address, large)
            ).code != ResponseCode.MESSAGE_ILLEGAL:
                await asyncio.sleep(0.1)

    await obeyed()
    group.brokers[group.wait_for_leader()].signal(signal.SIGKILL)
    # Each replica reads its own file, and the next leader may not have read it yet.
    await obeyed()
    assert sum(child.pid == pids[node] for node, child in group.brokers.items()) >= 2
