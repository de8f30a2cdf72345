"""A body that cannot be decompressed fails its own message, as a listener that raises, and no other."""

from collections.abc import AsyncIterator

import pytest

from orderlymq.consumer.push.consumer import Consumer
from orderlymq.consumer.settings import ConsumerSettings
from orderlymq.message import ReceivedMessage
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.message.sysflag import COMPRESSED
from tests.client.fakecluster import BROKER, FakeCluster, running
from tests.client.inbox import Inbox, ordered_consumer
from tests.waiting import until

QUEUE = MessageQueue("T", BROKER, 0)
BODY = b"no zlib stream"
LETTERS = ("%DLQ%G", 0)


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """A queue with one such body between others, all brought by one pull."""
    async with running(topics={"T": 1}, ordered=True) as found:
        found.append("T", 0, b"m0")
        found.append("T", 0, BODY, sys_flag=COMPRESSED)
        found.append("T", 0, b"m2")
        yield found


async def test_it_is_tried_again_and_becomes_a_dead_letter_in_its_turn(
    cluster: FakeCluster,
) -> None:
    """Law: it is tried again and becomes a dead letter; messages before it arrive immediately,
    those behind it after the letter.
    """
    inbox = Inbox()
    settings = {"consume_message_batch_max_size": 8, "suspend_current_queue_time": 0.01}

    async with ordered_consumer(cluster, inbox, max_reconsume_times=2, **settings):
        await until(lambda: "m2" in inbox.texts)

    assert inbox.texts == ["m0", "m2"]
    (letter,) = cluster.logs[LETTERS]
    assert (letter.body, letter.sys_flag & COMPRESSED) == (BODY, COMPRESSED)
    assert letter.reconsume_times == 2
    assert cluster.offsets["G", "T", 0] == 3


async def test_its_queue_waits_for_it_when_no_number_of_tries_is_enough(
    cluster: FakeCluster,
) -> None:
    """Law: without a maximum of tries its queue waits, and an administrator sees the reason."""
    inbox = Inbox()

    async with ordered_consumer(cluster, inbox, suspend_current_queue_time=0.01) as consumer:
        assert consumer.listeners is not None
        pool = consumer.listeners
        await until(lambda: (found := pool.attempt(QUEUE)) is not None and found.tries > 3)
        attempt = pool.attempt(QUEUE)

    assert attempt is not None
    assert attempt.offset == 1
    assert "BodyUnreadable: the body of the message at offset 1" in (attempt.error or "")
    assert inbox.texts == ["m0"]
    assert cluster.offsets["G", "T", 0] == 1


async def test_without_order_it_is_handed_back_and_the_others_go_on(cluster: FakeCluster) -> None:
    """Law: a concurrent consumer returns it, and the others go on."""
    inbox = Inbox()
    consumer = Consumer(
        "G",
        cluster.address,
        topics="T",
        consume_from="first",
        listener=inbox.concurrent,
        settings=ConsumerSettings(max_reconsume_times=1, consume_message_batch_max_size=8),
    )

    async with consumer:
        await until(lambda: len(inbox.seen) == 2 and bool(cluster.logs[LETTERS]))

    assert sorted(inbox.texts) == ["m0", "m2"]
    assert [letter.body for letter in cluster.logs[LETTERS]] == [BODY]
    assert cluster.offsets["G", "T", 0] == 3


async def test_filters_of_the_user_do_not_see_it(cluster: FakeCluster) -> None:
    """Law: filters of the user do not see it, because they read bodies."""
    seen: list[bytes] = []

    def keep_all(messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        seen.extend(message.body for message in messages)
        return messages

    inbox = Inbox()
    consumer = Consumer(
        "G",
        cluster.address,
        topics="T",
        ordered=True,
        consume_from="first",
        listener=inbox.ordered,
        settings=ConsumerSettings(max_reconsume_times=0),
        filters=[keep_all],
    )

    async with consumer:
        await until(lambda: "m2" in inbox.texts)

    assert seen == [b"m0", b"m2"]
    assert len(cluster.logs[LETTERS]) == 1
