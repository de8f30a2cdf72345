"""A consumer's requests to brokers: how long it waits, and which answers it needs before it goes on."""

import asyncio
import subprocess
import sys
import time
from itertools import pairwise

from orderlymq.consumer.core.events import OrderedResult
from orderlymq.consumer.push.brokercalls import _by_broker, lease_clock_ms
from orderlymq_protocol.body.clients import LOCK_QUEUES_MAX
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.connection import Connection
from tests.client.consumer.pulls import send_away
from tests.client.fakecluster import FakeCluster, Fault, reset
from tests.client.inbox import Inbox, fill, ordered_consumer
from tests.waiting import until


async def test_a_lock_request_waits_a_second_for_its_answer(cluster: FakeCluster) -> None:
    """Law: a lock request waits one second for its answer, then is repeated, as in RocketMQ (CFG-T4)."""
    fill(cluster, 1, queues=1)
    inbox = Inbox()
    asked: list[float] = []

    def once_silent(command: RemotingCommand, conn: Connection) -> RemotingCommand | None:
        if b'"topic":"T"' not in command.body:
            # That of the retry topic, which is asked for at the same time.
            cluster.faults[41].insert(0, once_silent)
            return cluster.serve(command, conn)
        asked.append(time.monotonic())
        cluster.faults[41].insert(0, seen_again)
        return None

    def seen_again(command: RemotingCommand, conn: Connection) -> RemotingCommand | None:
        asked.append(time.monotonic())
        return cluster.serve(command, conn)

    cluster.faults[41] = [once_silent]
    async with ordered_consumer(cluster, inbox):
        await until(lambda: inbox.texts == ["m0"], 10)

    assert 1.0 <= asked[1] - asked[0] < 3


async def test_a_broker_that_takes_longer_for_each_lock_is_waited_for(
    cluster: FakeCluster,
) -> None:
    """Law: a broker that needs longer for each lock is waited for; else no queue would ever be consumed."""
    fill(cluster, 1, queues=1)
    inbox = Inbox()

    def late(command: RemotingCommand, conn: Connection) -> None:
        cluster.faults[41].insert(0, late)
        reply = cluster.serve(command, conn)
        assert reply is not None
        asyncio.get_running_loop().call_later(1.5, conn.send, reply)

    cluster.faults[41] = [late]
    async with ordered_consumer(cluster, inbox):
        await until(lambda: inbox.texts == ["m0"], 10)


async def test_a_pull_that_is_sent_away_leaves_its_place_to_others_for_a_while(
    cluster: FakeCluster,
) -> None:
    """Law: a pull that the broker has no room for is repeated with growing pauses, so that others get the place."""
    fill(cluster, 1, queues=1)
    inbox = Inbox()
    asked: list[int] = []  # in the whole milliseconds that a consumer counts

    def away(command: RemotingCommand, conn: Connection) -> RemotingCommand | None:
        if command.ext["topic"] != "T" or command.ext["queueId"] != "0" or len(asked) == 4:
            return cluster.serve(command, conn)
        asked.append(lease_clock_ms())
        return send_away(command, conn)

    cluster.faults[11] = [away] * 99
    async with ordered_consumer(cluster, inbox):
        await until(lambda: inbox.texts == ["m0"], 10)

    gaps = [later - earlier for earlier, later in pairwise(asked)]
    assert all(gap >= least for gap, least in zip(gaps, (20, 40, 80), strict=True)), gaps


# As on a system without POSIX clocks, such as Windows.
_WITHOUT_CLOCKS = """
import time
for name in [each for each in dir(time) if each.startswith(("CLOCK_", "clock_", "pthread_"))]:
    delattr(time, name)
from orderlymq import Consumer, Producer, PullConsumer
from orderlymq.consumer.push.brokercalls import lease_clock_ms
assert lease_clock_ms() <= lease_clock_ms()
"""


def test_a_consumer_needs_no_posix_clock() -> None:
    """Law: the SDK can be imported without POSIX clocks; leases then use the clock that exists."""
    ended = subprocess.run(
        [sys.executable, "-c", _WITHOUT_CLOCKS], check=False, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_more_queues_than_a_request_may_name_are_divided() -> None:
    """Law: a request names at most as many queues as brokers accept, each queue once and at its own broker."""
    queues = [MessageQueue("T", "a", number) for number in range(LOCK_QUEUES_MAX + 1)]
    queues.append(MessageQueue("T", "b", 0))

    parts = _by_broker(queues)

    assert [(name, len(part)) for name, part in parts] == [
        ("a", LOCK_QUEUES_MAX),
        ("a", 1),
        ("b", 1),
    ]
    assert [queue for _, part in parts for queue in part] == queues


# -- dead letters ------------------------------------------------------------------------------------------


def held_since(offset: int) -> Fault:
    """Answer that the key is parked from the message at *offset* on."""
    ext = {"verdict": "held", "firstOffset": str(offset), "firstMessageId": "FIRST"}
    return lambda command, _conn: command.reply(ext=ext)


def asked(cluster: FakeCluster) -> list[tuple[int, str]]:
    """Return the parking requests and dead letters in order, with what distinguishes them."""
    codes = (RequestCode.ORDERLYMQ_HOLD_KEY, RequestCode.SEND_MESSAGE_V2)
    return [
        (each.code, each.ext.get("following", each.ext.get("offset", "")))
        for each in cluster.seen
        if each.code in codes
    ]


async def test_a_dead_letter_leaves_only_after_its_key_is_held_and_others_follow_it(
    cluster: FakeCluster,
) -> None:
    """Law: a dead letter is sent only after its key is parked; a lost answer is asked for again (PRB-08)."""
    for text in ("m0", "m1"):
        cluster.append("T", 0, text.encode(), b"__SHARDINGKEY\x01k")
    cluster.append("T", 0, b"other")
    parked = RequestCode.ORDERLYMQ_HOLD_KEY
    cluster.faults[parked] = [reset, held_since(0), held_since(0)]
    inbox = Inbox()
    inbox.answers = [OrderedResult.SUSPEND]

    async with ordered_consumer(cluster, inbox, max_reconsume_times=0):
        await until(lambda: "other" in inbox.texts, 15)

    assert inbox.texts == ["m0", "other"]
    send = RequestCode.SEND_MESSAGE_V2
    assert asked(cluster) == [
        (parked, "0"),
        (parked, "0"),
        (send, ""),
        (parked, "true"),
        (send, ""),
    ]
    first, second = (each.ext["i"] for each in cluster.seen if each.code == send)
    assert "OMQ_HELD_BEHIND" not in first
    assert "OMQ_HELD_BEHIND\x01FIRST" in second
