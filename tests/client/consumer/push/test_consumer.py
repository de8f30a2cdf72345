"""The push consumer with a cluster on loopback."""

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from orderlymq.consumer.core.events import ConcurrentResult, OrderedResult
from orderlymq.consumer.group.offsets import LocalOffsets
from orderlymq.consumer.listeners.context import (
    ConsumeContext,
    ConsumeHook,
    ConsumeReturn,
    OrderedContext,
)
from orderlymq.consumer.push.consumer import Consumer
from orderlymq.consumer.settings import ConsumerSettings, MessageModel
from orderlymq.message import ReceivedMessage
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode
from tests.client import fakecluster
from tests.client.fakecluster import BROKER, FakeCluster
from tests.client.inbox import Inbox, fill, ordered_consumer
from tests.waiting import until

QUEUE = MessageQueue("T", BROKER, 0)


async def test_an_ordered_consumer_gets_every_queue_in_order_and_commits(
    cluster: FakeCluster,
) -> None:
    """Law: an ordered consumer gets each queue in order without gaps, and commits when it closes (ORD-02, OFS-02)."""
    fill(cluster, 40)
    inbox = Inbox()

    async with ordered_consumer(cluster, inbox):
        await until(lambda: len(inbox.seen) == 40)

    for queue in (0, 1):
        assert [offset for at, offset, _ in inbox.seen if at == queue] == list(range(20))
        assert cluster.offsets["G", "T", queue] == 20


async def test_locks_come_before_pulls_and_are_given_back_at_the_end(cluster: FakeCluster) -> None:
    """Law: requests have the order 34, 38, 41, 14, 11 at the start and 15, 42, 35 at the end (LCK-01, LCK-23, PSH-03)."""
    fill(cluster, 2)
    inbox = Inbox()

    async with ordered_consumer(cluster, inbox):
        await until(lambda: len(inbox.seen) == 2)
        assert {queue for _, queue in cluster.locks} == {
            MessageQueue("T", BROKER, 0),
            MessageQueue("T", BROKER, 1),
            MessageQueue("%RETRY%G", BROKER, 0),
        }

    codes = cluster.codes()
    assert codes.index(34) < codes.index(38) < codes.index(41) < codes.index(14) < codes.index(11)
    assert codes.index(15) < codes.index(42) < codes.index(35)
    assert cluster.locks == {}


async def test_a_consumer_starts_in_rocketmqs_order_and_says_so(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Law: the start is logged in RocketMQ's order: offsets, routes, heartbeat, rebalance, locks, pulls (PSH-03, LOG-01)."""
    caplog.set_level(logging.INFO, "orderlymq.consumer")
    fill(cluster, 1)
    inbox = Inbox()

    async with ordered_consumer(cluster, inbox):
        await until(lambda: len(inbox.seen) == 1)

    # RocketMQ's clients do not ask about the group (352).
    first = [code for code in dict.fromkeys(cluster.codes()) if code != 352]
    assert first[:6] == [105, 34, 38, 41, 14, 11]
    lines = [each.getMessage() for each in caplog.records]
    began = lines.index(
        "the consumer [G] start beginning. messageModel=CLUSTERING, isUnitMode=False"
    )
    ready = next(
        at for at, line in enumerate(lines) if line.startswith("the consumer [G] start OK.")
    )
    got = next(at for at, line in enumerate(lines) if "the message queue lock OK" in line)
    assert began < ready < got


async def test_pulls_and_commits_name_the_client_and_its_epoch(cluster: FakeCluster) -> None:
    """Law: pulls and commits carry client id and epoch; a concurrent consumer locks nothing."""
    fill(cluster, 2)
    inbox = Inbox()
    async with ordered_consumer(cluster, inbox) as consumer:
        await until(lambda: len(inbox.seen) == 2)
        client_id = consumer.client_id

    for code in (11, 15):
        sent = next(each for each in cluster.seen if each.code == code)
        assert (sent.ext["omqClientId"], sent.ext["omqEpoch"]) == (client_id, "1")


async def test_a_queue_held_by_another_is_taken_over_when_it_is_given_back(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Law: a queue held by another member is taken over when it is free; until then the log says why (ODL-26, LOG-06,
    LOG-13).
    """
    caplog.set_level(logging.INFO, "orderlymq.consumer")
    fill(cluster, 1)
    cluster.locks["G", QUEUE] = fakecluster.Lock("other", 5, time.monotonic() + 60)
    cluster.epochs["G", QUEUE] = 5
    inbox = Inbox()

    async with ordered_consumer(cluster, inbox):
        await until(lambda: "because lock failed" in caplog.text)
        assert inbox.seen == []
        del cluster.locks["G", QUEUE]
        cluster.notify("G")
        await until(lambda: inbox.texts == ["m0"])

    assert cluster.epochs["G", QUEUE] == 6


async def test_two_members_share_the_queues_and_hand_over_without_a_gap(
    cluster: FakeCluster,
) -> None:
    """Law: a joining member gets a share, and a closing one gives it back immediately, without a gap (RBL-03, GRP-04,
    LCK-13).
    """
    first, second = Inbox(), Inbox()
    async with ordered_consumer(cluster, first) as one:
        await until(lambda: len(cluster.locks) == 3)
        async with ordered_consumer(cluster, second) as two:
            await until(
                lambda: (
                    {lock.client_id for lock in cluster.locks.values()}
                    == {one.client_id, two.client_id}
                )
            )
            fill(cluster, 20)
            await until(lambda: len(first.seen) + len(second.seen) == 20)
            assert first.seen
            assert second.seen
        fill(cluster, 10)
        await until(lambda: len(first.seen) + len(second.seen) == 30)

    for queue in (0, 1):
        offsets = [offset for at, offset, _ in [*second.seen, *first.seen] if at == queue]
        assert sorted(offsets) == list(range(15))


async def test_a_failing_listener_sees_the_same_message_again_before_later_ones(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Law: after an exception, SUSPEND or an unknown result the same message comes again before later ones (ODL-11,
    ODL-12, RTY-04).
    """
    fill(cluster, 3, queues=1)
    inbox = Inbox()
    inbox.answers = [ValueError("bad"), OrderedResult.SUSPEND, "nonsense"]

    async with ordered_consumer(cluster, inbox, suspend_current_queue_time=0.01):
        await until(lambda: len(inbox.seen) == 6)

    assert inbox.texts == ["m0", "m0", "m0", "m0", "m1", "m2"]
    assert 36 not in cluster.codes()
    assert "consumeMessage exception: ValueError: bad" in caplog.text
    assert "the listener returned 'nonsense'" in caplog.text
    assert "m0" not in caplog.text


async def test_a_poison_message_ends_in_the_dead_letter_queue_immediately(
    cluster: FakeCluster,
) -> None:
    """Law: a poison message becomes a dead letter with body, properties and true origin; the next one follows (RTY-05,
    RTY-09, RTY-10).
    """
    cluster.append(
        "T", 0, b"poison", b"TAGS\x01A\x02UNIQ_KEY\x01U1\x02DELAY\x013\x02RETRY_TOPIC\x01other\x02"
    )
    cluster.append("T", 0, b"next")
    inbox = Inbox()
    inbox.answers = [OrderedResult.SUSPEND] * 4

    async with ordered_consumer(
        cluster, inbox, suspend_current_queue_time=0.01, max_reconsume_times=3
    ):
        await until(lambda: inbox.texts == ["poison"] * 4 + ["next"])

    (dead,) = cluster.logs["%DLQ%G", 0]
    found = dict(each.split("\x01") for each in dead.properties.decode().split("\x02") if each)
    assert dead.body == b"poison"
    assert found == {
        "TAGS": "A",
        "UNIQ_KEY": "U1",
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": "U1",
        "RECONSUME_TIME": "3",
        "MAX_RECONSUME_TIMES": "3",
    }
    assert cluster.offsets["G", "T", 0] == 2


@pytest.mark.skipif(sys.version_info < (3, 12), reason="there is no eager task factory")
@pytest.mark.parametrize("ordered", [True, False])
async def test_every_message_is_seen_once_where_tasks_begin_immediately(
    cluster: FakeCluster, ordered: bool
) -> None:
    """Law: with eager tasks every message is seen once, also if the listener ends inside the call."""
    fill(cluster, 900, queues=1)
    seen: list[int] = []

    async def listener(messages: Sequence[ReceivedMessage], _context: object) -> None:
        seen.append(messages[0].queue_offset)
        if len(seen) == 1:
            await asyncio.sleep(0.5)  # Until all others are cached.

    consumer = Consumer(
        "G",
        cluster.address,
        topics="T",
        ordered=ordered,
        concurrency=1,
        consume_from="first",
        listener=listener,
        settings=ConsumerSettings(max_reconsume_times=0),
    )
    if sys.version_info >= (3, 12):
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    async with consumer:
        await until(lambda: len(seen) >= 900)

    assert seen == list(range(900))
    assert cluster.offsets["G", "T", 0] == 900
    assert {topic for (topic, _), log in cluster.logs.items() if log} == {"T"}


async def test_a_plain_function_listens_in_a_thread_and_may_block(cluster: FakeCluster) -> None:
    """Law: a plain function runs in a thread, one per queue at a time, and the loop stays free."""
    fill(cluster, 2)
    both = threading.Barrier(2, timeout=30)
    names: set[str] = set()

    def listener(_messages: Sequence[ReceivedMessage], _context: OrderedContext) -> OrderedResult:
        both.wait()
        names.add(threading.current_thread().name)
        return OrderedResult.SUCCESS

    consumer = Consumer(
        "G", cluster.address, topics="T", ordered=True, consume_from="first", listener=listener
    )
    async with consumer:
        await until(lambda: len(names) == 2)

    assert all(name.startswith("ConsumeMessageThread-G") for name in names)


async def test_a_lost_connection_is_greeted_and_consumption_goes_on(cluster: FakeCluster) -> None:
    """Law: after a lost connection a heartbeat is sent immediately, and consumption goes on (PUL-12, CLI-05)."""
    fill(cluster, 2)
    inbox = Inbox()
    async with ordered_consumer(cluster, inbox):
        await until(lambda: len(inbox.seen) == 2)
        before = len(cluster.heartbeats)

        for conn in list(cluster.connections):
            conn.close(orderly=False)
        fill(cluster, 2)

        await until(lambda: len(inbox.seen) == 4 and len(cluster.heartbeats) > before)


async def test_a_consumer_that_leaves_while_another_leader_is_elected_frees_its_queues(
    cluster: FakeCluster,
) -> None:
    """Law: a consumer that closes during an election still frees its queues."""
    inbox = Inbox()
    async with ordered_consumer(cluster, inbox):
        await until(lambda: len(cluster.locks) == 3)
        for code in (RequestCode.UNLOCK_BATCH_MQ, RequestCode.UNREGISTER_CLIENT):
            cluster.faults[code] = [fakecluster.refuse(1, "no leader"), fakecluster.reset] * 2

    assert cluster.locks == {}


async def test_a_consumer_stops_by_itself_when_its_locks_cannot_be_renewed(
    cluster: FakeCluster,
) -> None:
    """Law: if its locks cannot be renewed, a consumer stops by its own clock."""
    inbox = Inbox()
    async with ordered_consumer(cluster, inbox, lock_lease=0.2, lock_renew=0.05) as consumer:
        await until(lambda: len(cluster.locks) == 3)
        await until(lambda: all(s.fetcher.in_flight for s in consumer.core.queues.values()))
        cluster.faults[41] = [fakecluster.refuse(1, "no quorum")] * 1000
        await until(
            lambda: not any(each.fetcher.in_flight for each in consumer.core.queues.values())
        )
        fill(cluster, 2)
        await asyncio.sleep(0.05)
        assert inbox.seen == []

        cluster.faults[41] = []
        await until(lambda: len(inbox.seen) == 2)


async def test_an_error_instead_of_an_offset_never_starts_a_queue_at_a_guess(
    cluster: FakeCluster,
) -> None:
    """Law: only code 22 means that there is no offset; another error never starts a queue at a guess (wire 4.6)."""
    fill(cluster, 4, queues=1)
    cluster.offsets["G", "T", 0] = 2
    cluster.faults[14] = [fakecluster.refuse(1, "loading")] * 3
    inbox = Inbox()

    async with ordered_consumer(cluster, inbox):
        await until(lambda: inbox.texts == ["m2", "m3"])


async def test_an_offset_outside_the_queue_is_corrected(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Law: an offset below the oldest message is corrected to it (OFS-09, LOG-08)."""
    fill(cluster, 10, queues=1)
    cluster.trimmed["T", 0] = 7
    cluster.offsets["G", "T", 0] = 3
    inbox = Inbox()

    async with ordered_consumer(cluster, inbox):
        await until(lambda: inbox.texts == ["m7", "m8", "m9"])

    assert "fix the pull request offset" in caplog.text


@pytest.mark.parametrize(
    ("where", "trimmed", "expected"),
    [
        ("first", 0, ["m0", "m1", "late"]),
        ("first", 1, ["m1", "late"]),
        # It may be newer than the consumer, which must miss none of it.
        ("last", 0, ["m0", "m1", "late"]),
        ("last", 1, ["late"]),
    ],
)
async def test_a_new_group_starts_where_it_says(
    cluster: FakeCluster, where: str, trimmed: int, expected: list[str]
) -> None:
    """Law: a new group begins at FIRST, LAST or a time; a second start ignores it (OFS-07)."""
    fill(cluster, 2, queues=1)
    cluster.trimmed["T", 0] = trimmed
    inbox = Inbox()
    consumer = Consumer(
        "G", cluster.address, topics="T", consume_from=where, listener=inbox.concurrent
    )
    async with consumer:
        await until(lambda: sum(held.header.topic == "T" for held in cluster.held) == 2)
        cluster.append("T", 0, b"late")
        await until(lambda: inbox.texts == expected)
    again = Inbox()
    async with Consumer(
        "G", cluster.address, topics="T", consume_from="first", listener=again.concurrent
    ):
        await until(lambda: sum(held.header.topic == "T" for held in cluster.held) == 2)

    assert again.seen == []
    assert cluster.offsets["G", "T", 0] == 3


async def test_concurrent_failures_come_back_by_the_retry_topic_under_their_own_topic(
    cluster: FakeCluster,
) -> None:
    """Law: a failed concurrent message comes again by the retry topic, with its own topic and one more try (CON-04,
    CON-09, RTY-02, RTY-14).
    """
    fill(cluster, 1, queues=1)
    inbox = Inbox()
    inbox.answers = [ConcurrentResult.RECONSUME_LATER]

    async with Consumer(
        "G", cluster.address, topics="T", consume_from="first", listener=inbox.concurrent
    ):
        await until(lambda: len(inbox.seen) == 2)

    first, second = inbox.messages
    assert (first.topic, first.reconsume_times) == ("T", 0)
    assert (second.topic, second.reconsume_times) == ("T", 1)
    assert second.queue.topic == "%RETRY%G"
    assert 41 not in cluster.codes()
    assert cluster.offsets["G", "T", 0] == 1


async def test_a_refused_send_back_becomes_a_copy(cluster: FakeCluster) -> None:
    """Law: if 36 is refused, the consumer sends its own copy to the retry topic with a delay (wire 4.3)."""
    fill(cluster, 1, queues=1)
    cluster.faults[36] = [fakecluster.refuse(1)]
    inbox = Inbox()
    inbox.answers = [ConcurrentResult.RECONSUME_LATER]

    async with Consumer(
        "G", cluster.address, topics="T", consume_from="first", listener=inbox.concurrent
    ):
        await until(lambda: len(inbox.seen) == 2)

    assert inbox.messages[1].reconsume_times == 1
    assert inbox.messages[1].properties["DELAY"] == "3"


async def test_tags_are_compared_as_text_after_the_broker_compared_hashes(
    cluster: FakeCluster,
) -> None:
    """Law: tags are also compared as text, because `Aa` and `BB` share a hash (FLT-01, PUL-13)."""
    cluster.append("T", 0, b"yes", b"TAGS\x01Aa\x02")
    cluster.append("T", 0, b"no", b"TAGS\x01BB\x02")
    inbox = Inbox()

    async with Consumer(
        "G",
        cluster.address,
        topics={"T": "Aa || C"},
        consume_from="first",
        listener=inbox.concurrent,
    ):
        await until(lambda: inbox.texts == ["yes"])

    subscription = next(
        each
        for each in cluster.heartbeats[0].consumer_data_set[0].subscription_data_set
        if each.topic == "T"
    )
    assert subscription.tags_set == ("Aa", "C")


async def test_filters_may_drop_messages_before_the_listener(cluster: FakeCluster) -> None:
    """Law: a user's filter may drop messages before the listener (FLT-04)."""
    fill(cluster, 4, queues=1)
    inbox = Inbox()

    async with Consumer(
        "G",
        cluster.address,
        topics="T",
        consume_from="first",
        listener=inbox.concurrent,
        filters=[lambda found: [each for each in found if each.queue_offset % 2]],
    ):
        await until(lambda: len(inbox.seen) == 2)

    assert sorted(inbox.texts) == ["m1", "m3"]


async def test_a_filter_that_returns_nothing_is_left_out(cluster: FakeCluster) -> None:
    """Law: a filter that returns None is ignored, as one that raises, so that it does not stop the queue."""
    fill(cluster, 2, queues=1)
    inbox = Inbox()

    async with Consumer(
        "G",
        cluster.address,
        topics="T",
        consume_from="first",
        listener=inbox.concurrent,
        filters=[lambda found: found.clear()],  # type: ignore[list-item, return-value]  # as users err
    ):
        await until(lambda: len(inbox.seen) == 2)


async def test_broadcasting_members_all_get_everything_and_keep_offsets_in_a_file(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    """Law: broadcasting members all get everything and keep their offsets in a file (BRD-01, BRD-02, BRD-04)."""
    fill(cluster, 4)

    def member(number: int, inbox: Inbox) -> Consumer:
        return Consumer(
            "G",
            cluster.address,
            topics="T",
            consume_from="first",
            message_model=MessageModel.BROADCASTING,
            listener=inbox.ordered,
            ordered=True,
            offset_store=LocalOffsets(tmp_path / f"{number}.json"),
        )

    one, two, again = Inbox(), Inbox(), Inbox()
    async with member(1, one), member(2, two):
        await until(lambda: len(one.seen) == len(two.seen) == 4)
    async with member(1, again):
        cluster.append("T", 0, b"new")
        await until(lambda: again.texts == ["new"])

    assert not {14, 15, 41} & set(cluster.codes())
    (data,) = cluster.heartbeats[0].consumer_data_set
    assert [each.topic for each in data.subscription_data_set] == ["T"]
    assert cluster.heartbeats[0].client_id.endswith("@DEFAULT")


async def test_an_orderly_broadcast_keeps_its_order_through_a_suspension(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    """Law: an ordered broadcasting member tries a failed message again before later ones (BRD-06)."""
    fill(cluster, 3, queues=1)
    inboxes = [Inbox(), Inbox()]
    inboxes[0].answers = [None, OrderedResult.SUSPEND, OrderedResult.SUSPEND]
    members = [
        Consumer(
            "G",
            cluster.address,
            topics="T",
            consume_from="first",
            message_model=MessageModel.BROADCASTING,
            listener=inbox.ordered,
            ordered=True,
            offset_store=LocalOffsets(tmp_path / f"{number}.json"),
            settings=ConsumerSettings(suspend_current_queue_time=0.01),
        )
        for number, inbox in enumerate(inboxes)
    ]

    async with members[0], members[1]:
        await until(lambda: [len(inbox.seen) for inbox in inboxes] == [5, 3])

    assert [inbox.texts for inbox in inboxes] == [
        ["m0", "m1", "m1", "m1", "m2"],
        ["m0", "m1", "m2"],
    ]


async def test_hooks_see_every_call_and_what_they_raise_is_dropped(cluster: FakeCluster) -> None:
    """Law: hooks see every call, and what they raise is dropped (TRC-01, ODL-13, ODL-15)."""
    fill(cluster, 1, queues=1)
    inbox = Inbox()
    inbox.answers = [OrderedResult.SUSPEND]
    seen: list[tuple[str, bool, str, ConsumeReturn | None]] = []

    class Hook(ConsumeHook):
        def before(self, context: ConsumeContext) -> None:
            seen.append(("before", context.success, context.status, context.returned))
            raise RuntimeError("a broken hook")

        def after(self, context: ConsumeContext) -> None:
            seen.append(("after", context.success, context.status, context.returned))

    consumer = Consumer(
        "G",
        cluster.address,
        topics="T",
        ordered=True,
        consume_from="first",
        listener=inbox.ordered,
        hooks=[Hook()],
        settings=ConsumerSettings(suspend_current_queue_time=0.01),
    )
    async with consumer:
        await until(lambda: len(seen) == 4)

    assert seen == [
        ("before", False, "", None),
        ("after", False, "SUSPEND_CURRENT_QUEUE_A_MOMENT", ConsumeReturn.FAILED),
        ("before", False, "", None),
        ("after", True, "SUCCESS", ConsumeReturn.SUCCESS),
    ]
