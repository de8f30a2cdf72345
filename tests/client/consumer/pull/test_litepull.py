"""The lite pull consumer: queues take turns, and only finished messages are committed."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from orderlymq.connection.instance import ClientInstance
from orderlymq.consumer.pull import litepull
from orderlymq.consumer.pull.litepull import LitePullConsumer
from orderlymq.errors import BodyUnreadable, BrokerError, PullError, StateError, TopicNotFound
from orderlymq.message import ReceivedMessage
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.message.sysflag import COMPRESSED
from orderlymq_runtime.remoting.connection import Connection
from tests.client.consumer.pulls import send_away
from tests.client.fakecluster import (
    BROKER,
    FakeCluster,
    Fault,
    refuse,
    reset,
    running,
    silence,
)
from tests.waiting import until

QUEUES = [MessageQueue("T", BROKER, number) for number in range(3)]
HEARTBEAT, LITE_PULL, COMMIT, QUERY_OFFSET = 34, 361, 15, 14


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with running(topics={"T": 3}) as found:
        yield found


def consumer(cluster: FakeCluster, *, auto_commit: bool = True) -> LitePullConsumer:
    return LitePullConsumer(
        "G",
        cluster.address,
        auto_commit=auto_commit,
        auto_commit_interval=1,
        consume_from="first",
    )


def fill(cluster: FakeCluster, *counts: int) -> None:
    for queue, count in enumerate(counts):
        for number in range(count):
            cluster.append("T", queue, f"{queue}/{number}".encode())


def committed(cluster: FakeCluster) -> list[int | None]:
    return [cluster.offsets.get(("G", "T", queue)) for queue in range(3)]


async def poll_until(lite: LitePullConsumer, count: int) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    while len(found) < count:
        found += await lite.poll(5, count - len(found))
    return found


async def buffered(lite: LitePullConsumer, cluster: FakeCluster) -> None:
    """Wait until all stored messages have arrived."""
    total = sum(map(len, cluster.logs.values()))
    await until(lambda: sum(len(each.buffer) for each in lite._positions.values()) == total)


async def test_a_start_that_fails_leaves_nothing_open(cluster: FakeCluster) -> None:
    lite = consumer(cluster)
    lite.subscribe("missing")

    with pytest.raises(TopicNotFound):
        await lite.start()

    await until(lambda: not cluster.connections)


async def test_a_queue_that_is_assigned_during_the_start_is_pulled_once(
    cluster: FakeCluster,
) -> None:
    """Law: a queue assigned during the start has one pull; two once delivered each message twice."""
    fill(cluster, 2)
    instance = ClientInstance(cluster.address)
    await instance.start()
    await instance.route("T")  # So that the start has a broker that it tells about the group.
    lite = LitePullConsumer("G", consume_from="first", instance=instance)

    def assigned(command: RemotingCommand, conn: Connection) -> RemotingCommand | None:
        lite.assign(QUEUES[:1])
        return cluster.serve(command, conn)

    cluster.faults[HEARTBEAT] = [assigned]
    async with lite:
        found = await poll_until(lite, 2)
        await until(lambda: len(cluster.held) == 1)
        fill(cluster, 1)
        found += await poll_until(lite, 1)
        await until(lambda: len(cluster.held) == 1)
        assert await lite.poll(0) == []
    await instance.close()

    assert [message.queue_offset for message in found] == [0, 1, 2]
    assert Counter(cluster.codes())[LITE_PULL] == 3


@pytest.mark.parametrize("count", [1, 2, 7, 32])
async def test_queues_with_messages_take_turns(cluster: FakeCluster, count: int) -> None:
    """Law: queues with messages take turns in a poll; a busy one once starved the others."""
    fill(cluster, 300, 60, 60)
    lite = consumer(cluster)
    lite.assign(QUEUES)
    taken: Counter[int] = Counter()
    async with lite:
        await buffered(lite, cluster)
        while sum(taken.values()) < 105:
            for message in await lite.poll(5, count):
                assert message.queue_offset == taken[message.queue.queue_id]
                taken[message.queue.queue_id] += 1
            assert max(taken.values()) - min(taken[queue] for queue in range(3)) <= 1


async def test_a_paused_queue_gives_its_turn_to_the_others(cluster: FakeCluster) -> None:
    fill(cluster, 10, 10, 10)
    lite = consumer(cluster)
    lite.assign(QUEUES)
    async with lite:
        await buffered(lite, cluster)
        lite.pause([QUEUES[1]])
        found = await lite.poll(5, 8)

    assert Counter(m.queue.queue_id for m in found) == {0: 4, 2: 4}


async def test_a_buffer_is_full_by_its_bytes_too(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a buffer is limited by bytes too; a thousand messages of 4 MiB once filled gigabytes."""
    monkeypatch.setattr(litepull, "_CACHED_BYTES_MAX", 30)
    fill(cluster, 25)
    lite = consumer(cluster)
    lite.assign(QUEUES[:1])
    buffer = lite._positions[QUEUES[0]].buffer
    async with lite:
        await until(lambda: len(buffer) == 10)
        await asyncio.sleep(0.1)
        assert len(buffer) == 10
        assert len(await poll_until(lite, 25)) == 25


async def test_what_the_caller_still_works_on_is_not_committed_at_the_end(
    cluster: FakeCluster,
) -> None:
    """Law: closing does not commit messages that the caller still works on, also from another task or after an exception."""
    fill(cluster, 4)
    lite = consumer(cluster)
    lite.assign(QUEUES[:1])

    async def work() -> None:
        async with lite:
            await poll_until(lite, 2)
            await poll_until(lite, 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await work()

    assert committed(cluster)[0] == 2


async def test_commit_says_that_everything_is_done(cluster: FakeCluster) -> None:
    fill(cluster, 4)
    for auto_commit in (True, False):
        lite = consumer(cluster, auto_commit=auto_commit)
        lite.assign(QUEUES[:1])
        async with lite:
            await poll_until(lite, 2)
            await lite.commit()

    assert committed(cluster)[0] == 4


async def test_a_poll_waits_for_no_commit(cluster: FakeCluster) -> None:
    """Law: a poll does not wait for commits, even if a broker hangs."""
    fill(cluster, 4)
    lite = consumer(cluster)
    lite.assign(QUEUES[:1])
    async with lite:
        await poll_until(lite, 2)
        cluster.faults[COMMIT] = [silence] * 9
        for due in (True, False):
            lite._commit_due_s = 0.0 if due else lite._commit_due_s
            async with asyncio.timeout(1):
                found = await poll_until(lite, 1)
            assert [each.queue_offset for each in found] == [2 if due else 3]
        async with asyncio.timeout(1):
            lite._commit_due_s = 0.0
            assert await lite.poll(0.1) == []
        assert cluster.codes().count(COMMIT) == 1, "one commit at a time"
        cluster.faults[COMMIT] = []
        await lite.commit()

    assert committed(cluster)[0] == 4


async def test_a_commit_that_fails_raises_and_the_next_one_tries_again(
    cluster: FakeCluster,
) -> None:
    """Law: a failed commit raises, and the next one tries again; other queues are committed, and `poll` does not raise."""
    fill(cluster, 1, 1)
    lite = consumer(cluster)
    lite.assign(QUEUES[:2])
    async with lite:
        await poll_until(lite, 2)
        cluster.faults[COMMIT] = [refuse(1)]
        with pytest.raises(BrokerError, match="refused by the test"):
            await lite.commit()
        one = committed(cluster)
        await lite.commit()
        both = committed(cluster)
        cluster.append("T", 0, b"0/1")
        await poll_until(lite, 1)
        cluster.faults[COMMIT] = [refuse(1)] * 9
        assert await lite.poll(0) == []

    assert sorted(one, key=str) == [1, None, None]
    assert both == [1, 1, None]


async def test_a_queue_that_goes_to_another_member_is_committed_as_far_as_it_is_done(
    cluster: FakeCluster,
) -> None:
    """Law: a queue that goes to another member is committed only as far as the caller has finished."""
    fill(cluster, 6, 6, 6)
    lite = consumer(cluster)
    lite.subscribe("T")
    async with lite:
        done = await poll_until(lite, 6)
        await lite.poll(5, 3)  # The caller works on these.
        cluster.members["G"]["~another"] = next(iter(cluster.members["G"].values()))
        cluster.notify("G")
        await until(lambda: len(lite.assignment) == 2)
        left = {queue.queue_id for queue in QUEUES} - {q.queue_id for q in lite.assignment}

        counts = Counter(message.queue.queue_id for message in done)
        assert [committed(cluster)[queue] for queue in left] == [counts[queue] for queue in left]


async def test_a_topic_in_trouble_leaves_the_rebalance_of_the_others_alone(
    cluster: FakeCluster,
) -> None:
    """Law: a topic whose queues cannot be learned keeps its assignment, and other topics are rebalanced.

    The queues of a dead member once stood still until every topic was well.
    """
    cluster.topics["A"] = cluster.topics["T"]
    lite = consumer(cluster)
    lite.subscribe("A")
    lite.subscribe("T")
    async with lite:
        await until(lambda: len(lite.assignment) == 6)
        del cluster.topics["A"]
        await lite._instance.try_refresh("A")
        cluster.members["G"]["~another"] = next(iter(cluster.members["G"].values()))
        cluster.notify("G")
        await until(lambda: len(lite.assignment) == 5, 10)

        assert Counter(queue.topic for queue in lite.assignment) == {"A": 3, "T": 2}


async def test_what_no_filter_lets_through_is_committed_only_with_what_is_before_it(
    cluster: FakeCluster,
) -> None:
    """Law: filtered messages are committed only together with those before them."""
    for number in range(6):
        tags = b"TAGS\x01A\x02" if number < 2 else b"TAGS\x01B\x02"
        cluster.append("T", 0, b"x", tags)
    lite = consumer(cluster)
    lite.subscribe("T", "A")
    async with lite:
        await poll_until(lite, 2)
        await until(lambda: lite._positions[QUEUES[0]].next_offset == 6)
    assert committed(cluster)[0] is None

    lite = consumer(cluster)
    lite.subscribe("T", "A")
    async with lite:
        await poll_until(lite, 2)
        await until(lambda: lite._positions[QUEUES[0]].next_offset == 6)
        assert await lite.poll(0) == []
    assert committed(cluster)[0] == 6


@pytest.mark.parametrize("error", [KeyError("a bug"), asyncio.CancelledError()], ids=repr)
async def test_a_pull_that_fails_in_a_hook_is_tried_again(
    cluster: FakeCluster, error: BaseException
) -> None:
    """Law: a pull that fails in a hook is tried again; its queue was once never read again."""
    fill(cluster, 2)
    failed: list[int] = []

    def before(_address: str, command: RemotingCommand) -> None:
        if command.code == LITE_PULL and not failed:
            failed.append(command.code)
            raise error

    instance = ClientInstance(cluster.address, before_request=before)
    lite = LitePullConsumer("G", instance=instance, consume_from="first")
    lite.assign(QUEUES[:1])
    async with lite:
        found = await poll_until(lite, 2)

    assert failed == [LITE_PULL]
    assert [message.text for message in found] == ["0/0", "0/1"]


async def test_a_pull_that_is_sent_away_leaves_its_place_to_others_for_a_while(
    cluster: FakeCluster,
) -> None:
    """Law: a pull that the broker has no room for is repeated with growing pauses."""
    fill(cluster, 1)
    lite = consumer(cluster)
    lite.assign(QUEUES[:1])
    cluster.faults[LITE_PULL] = [send_away] * 4
    began_s = time.monotonic()
    async with lite:
        await poll_until(lite, 1)

    assert time.monotonic() - began_s >= 0.02 + 0.04 + 0.08 + 0.16


@pytest.mark.parametrize(
    ("code", "refusal"),
    [
        (LITE_PULL, refuse(16, "the group consumes by key")),
        (LITE_PULL, refuse(1, "queue 0 of topic T is not locked; lock it (code 41)")),
        (QUERY_OFFSET, refuse(1, "AclException: No permission")),
    ],
    ids=["by key", "ordered", "no right"],
)
async def test_what_is_refused_for_good_is_logged_and_raised(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture, code: int, refusal: Fault
) -> None:
    """Law: a final refusal is logged and raised by `poll`, which once returned nothing for ever."""
    fill(cluster, 0, 1)
    lite = consumer(cluster)
    lite.assign(QUEUES[:1])
    cluster.faults[code] = [refusal] * 3
    async with lite:
        await until(lambda: lite._positions[QUEUES[0]].refusal is not None)
        with pytest.raises(
            PullError, match=r"T.*code \d+ from .*(by key|not locked|No permission)"
        ):
            await lite.poll(0)
        assert "broker-a refuses pulls of T: code" in caplog.text
        fill(cluster, 1)
        found = await poll_until(lite, 1)
        assert await lite.poll(0) == [], "it is not refused any more"

    assert [message.text for message in found] == ["0/0"]


@pytest.mark.parametrize("fault", [silence, reset, refuse(1, "this replica does not lead")])
async def test_what_passes_is_logged_and_not_raised(
    cluster: FakeCluster,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    fault: Fault,
) -> None:
    """Law: a temporary trouble is logged and not raised."""
    monkeypatch.setattr(litepull, "SUSPENDED_TIMEOUT_S", 0.3)
    fill(cluster, 1)
    lite = consumer(cluster)
    lite.assign(QUEUES[:1])
    cluster.faults[LITE_PULL] = [fault] * 2
    async with lite:
        found = await poll_until(lite, 1)

    assert [message.text for message in found] == ["0/0"]
    assert "the connection to broker-a is lost and will be retried" in caplog.text
    assert "broker-a is back" in caplog.text


async def test_close_ends_a_poll_that_waits(cluster: FakeCluster) -> None:
    """Law: `close` ends a waiting poll, whatever its time-out."""
    lite = consumer(cluster)
    lite.assign(QUEUES)
    await lite.start()
    polling = asyncio.create_task(lite.poll(float("inf")))
    await until(lambda: len(cluster.held) == 3)
    await lite.close()

    with pytest.raises(StateError, match="G was closed while this call ran"):
        async with asyncio.timeout(10):
            await polling


async def test_a_seek_and_a_revocation_stop_pulls_in_silence(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Law: a seek or a revoked queue stops its pulls without a log line."""
    fill(cluster, 5, 5)
    lite = consumer(cluster)
    lite.assign(QUEUES[:2])
    async with lite:
        await buffered(lite, cluster)
        lite.seek(QUEUES[0], 3)
        lite.assign(QUEUES[:1])
        found = await poll_until(lite, 2)

    assert [message.text for message in found] == ["0/3", "0/4"]
    assert caplog.text == ""


async def test_a_body_that_cannot_be_inflated_stops_its_own_queue_until_seek(
    cluster: FakeCluster,
) -> None:
    """Law: a body that cannot be decompressed stops its own queue until a seek; earlier messages and other queues arrive."""
    fill(cluster, 1, 3)
    cluster.append("T", 0, b"no zlib stream", sys_flag=COMPRESSED)
    cluster.append("T", 0, b"0/2")
    lite = consumer(cluster)
    lite.assign(QUEUES[:2])
    other = lite._positions[QUEUES[1]]
    async with lite:
        texts = [message.text for message in await poll_until(lite, 4)]
        with pytest.raises(BodyUnreadable) as caught:
            await lite.poll(5)
        cluster.append("T", 1, b"1/3")
        await until(lambda: len(other.buffer) == 1)
        texts += [message.text for message in await lite.poll(5)]
        with pytest.raises(BodyUnreadable):
            await lite.poll(5)
        await lite.commit()
        assert committed(cluster) == [1, 4, None]

        lite.seek(caught.value.queue, caught.value.offset + 1)
        texts += [message.text for message in await lite.poll(5)]
        await lite.commit()

    assert (caught.value.queue, caught.value.offset) == (QUEUES[0], 1)
    assert sorted(texts) == ["0/0", "0/2", "1/0", "1/1", "1/2", "1/3"]
    assert committed(cluster) == [3, 4, None]
