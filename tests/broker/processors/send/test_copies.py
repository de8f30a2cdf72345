"""Copies of another cluster's queue (20515): the copy is a prefix of the source's queue, with any number of writers."""

from dataclasses import replace
from random import Random
from typing import Any

import msgspec
import pytest

from orderlymq_broker.core.effects import Caller
from orderlymq_broker.state.records import TopicSet
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.message.record import (
    RecordTemplate,
    StoredMessage,
    encode_with_positions,
    iter_records,
    pack_host,
)
from tests.broker.processors.driver import ALICE, BOB, Shell, settings
from tests.broker.processors.requests import create, messages, properties, pull, send

ORDERED = TopicSet("orders", 2, 2, order=True)


def source(count: int) -> Shell:
    """Return a broker with so many messages of two keys in queue 1."""
    shell = Shell().lead()
    create(shell, ORDERED)
    for number in range(count):
        text = properties(KEYS=f"k{number}", TAGS="T", UNIQ_KEY=f"U{number}", __SHARDINGKEY="a")
        send(shell, body=f"body {number}".encode(), props=text, e=1, h=number, f=1)
    return shell


def target() -> Shell:
    """Return a broker of another cluster, to whose topic clients cannot send."""
    shell = Shell(settings(cluster="shop-2", group="broker-x")).lead()
    create(shell, TopicSet("orders", 2, 2, perm=4, order=True))
    return shell


def record(message: StoredMessage) -> bytes:
    """Return a message as it is stored."""
    template = RecordTemplate(
        topic=message.topic.encode(),
        queue_id=message.queue_id,
        body=message.body,
        properties=message.properties,
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp=message.born_timestamp,
        born_host=pack_host(*message.born_host),
        store_timestamp=message.store_timestamp,
        store_host=pack_host(*message.store_host),
        checksum=message.body_crc,
    )
    return encode_with_positions(template, message.queue_offset, message.physical_offset)


def records(shell: Shell, start: int = 0) -> list[bytes]:
    """Return the stored records of queue 1 from an offset on."""
    body = pull(shell, queue=1, offset=start).body
    return [record(each) for each in iter_records(body)]


def append(
    shell: Shell,
    *copies: bytes,
    queue: int = 1,
    topic: str = "orders",
    caller: Caller = ALICE,
    **more: str,
) -> RemotingCommand:
    """Append copies."""
    ext = {"topic": topic, "queueId": str(queue), **more}
    return shell.call(RequestCode.ORDERLYMQ_APPEND_COPIES, ext, b"".join(copies), caller=caller)


def content(message: StoredMessage) -> StoredMessage:
    """Return the parts that a copy shares with its message."""
    return replace(message, physical_offset=0, store_timestamp=0, store_host=("", 0))


def test_a_copy_is_its_message_but_for_where_and_when_it_is_stored() -> None:
    """Law: a copy equals its message except for place and store time, and needs no write permission on the topic."""
    mine, theirs = source(5), target()
    theirs.wall_ms += 1_000

    reply = append(theirs, *records(mine))

    assert (reply.code, reply.ext) == (0, {"queueOffset": "5"})
    copies, originals = (messages(pull(each, queue=1)) for each in (theirs, mine))
    assert list(map(content, copies)) == list(map(content, originals))
    assert [each.store_timestamp for each in copies] == [theirs.wall_ms] * 5
    assert send(theirs, e=1).code == ResponseCode.NO_PERMISSION
    theirs.replay()
    theirs.restart()


def test_copies_that_do_not_follow_are_refused_and_nothing_of_them_is_stored() -> None:
    """Law: copies that do not continue the queue exactly (a repeat, gap or overlap) are refused,
    and none of them is stored.
    """
    mine, theirs = source(9), target()
    every = records(mine)
    append(theirs, *every[:4])

    for wrong in (every[:4], every[3:6], every[5:]):
        reply = append(theirs, *wrong, caller=BOB)
        assert reply.code == ResponseCode.ORDERLYMQ_QUEUE_ENDS_ELSEWHERE
        assert "the next offset of the queue is 4, but the copies begin at" in str(reply.remark)

    assert append(theirs, *every[4:]).ext == {"queueOffset": "9"}
    assert [each.body for each in messages(pull(theirs, queue=1))] == [
        f"body {number}".encode() for number in range(9)
    ]


def test_two_mirrors_in_one_entry_store_each_message_once() -> None:
    """Law: two mirrors in one entry store each message once, because the place is checked when the entry is built."""
    mine, theirs = source(6), target()
    every = records(mine)
    ext = {"topic": "orders", "queueId": "1"}
    code = RequestCode.ORDERLYMQ_APPEND_COPIES

    opaques = [
        theirs.submit(code, ext, b"".join(part), caller=caller)
        for part, caller in ((every[:3], BOB), (every[:3], BOB), (every[3:], BOB), (every[2:], BOB))
    ]
    theirs.settle()

    replies = [theirs.reply_to(each) for each in opaques]
    assert [each.code for each in replies if each is not None] == [0, 20515, 0, 20515]
    assert len(messages(pull(theirs, queue=1))) == 6
    assert theirs.core.context.entries.uncommitted == 0
    theirs.replay()


@pytest.mark.parametrize("seed", range(20))
def test_any_number_of_mirrors_make_a_prefix(seed: int) -> None:
    """Law: any number of mirrors, in any order and with lost entries, make a prefix of the source's queue."""
    chance = Random(seed)
    mine, theirs = source(12), target()
    every = records(mine)
    code, ext = RequestCode.ORDERLYMQ_APPEND_COPIES, {"topic": "orders", "queueId": "1"}
    for _ in range(60):
        at = chance.randrange(12)
        theirs.submit(code, ext, b"".join(every[at : at + chance.randrange(1, 5)]))
        match chance.randrange(6):
            case 0:
                theirs.lose_proposals()
            case 1 | 2:
                theirs.settle()
    theirs.settle()

    copies = messages(pull(theirs, queue=1))
    assert list(map(content, copies)) == list(
        map(content, messages(pull(mine, queue=1))[: len(copies)])
    )
    theirs.replay()


def test_a_queue_begins_where_the_source_does() -> None:
    """Law: a copied queue begins at the source's first offset and keeps its offsets over a restart."""
    mine, theirs = source(6), target()

    assert append(theirs, *records(mine, 4), begins="true").ext == {"queueOffset": "6"}

    queue = theirs.state.topics.by_name["orders"].queues[1]
    assert (queue.min_offset, queue.next_offset) == (4, 6)
    theirs.replay()
    again = theirs.restart()
    queue = again.state.topics.by_name["orders"].queues[1]
    assert (queue.min_offset, queue.next_offset) == (4, 6)


def test_late_copies_do_not_begin_a_topic_that_was_created_again() -> None:
    """Law: late copies do not begin a topic that was deleted and created again; its queue would have a hole."""
    mine, theirs = source(9), target()
    every = records(mine)
    append(theirs, *every[:4])
    theirs.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
    create(theirs, TopicSet("orders", 2, 2, perm=4, order=True))

    late = append(theirs, *every[4:])

    assert late.code == ResponseCode.ORDERLYMQ_QUEUE_ENDS_ELSEWHERE
    assert "the next offset of the queue is 0, but the copies begin at 4" in str(late.remark)
    assert append(theirs, *every[:4], begins="true").ext == {"queueOffset": "4"}
    assert append(theirs, *every[4:], begins="true").ext == {"queueOffset": "9"}
    theirs.replay()


def test_a_repeat_by_the_sender_is_recognised_by_the_copy() -> None:
    """Law: a producer's repeat at the target is recognised by the copy, so that it is not stored twice."""
    mine, theirs = source(2), target()
    append(theirs, *records(mine))
    create(theirs, msgspec.structs.replace(ORDERED, perm=6))

    text = properties(KEYS="k1", TAGS="T", UNIQ_KEY="U1", __SHARDINGKEY="a")
    reply = send(theirs, body=b"body 1", props=text, e=1, h=1, f=1)

    assert (reply.code, reply.ext["queueOffset"]) == (0, "1")
    assert len(messages(pull(theirs, queue=1))) == 2


def damaged(copy: bytes) -> bytes:
    """Return a copy with another body under the same checksum."""
    return copy.replace(b"body", b"bory")


@pytest.mark.parametrize(
    ("copies", "more", "code", "text"),
    [
        ([], {}, 13, "has no copy"),
        ([0, 2], {}, 13, "offset 2 of queue 1 of orders, but expected offset 1"),
        ([0], {"queue": 0}, 13, "but expected offset 0 of queue 0 of orders"),
        ([0], {"queue": 2}, 1, "has no queue 2"),
        ([0], {"topic": "others"}, 17, "does not create topics"),
        ([0], {"topic": "%RETRY%billing"}, 16, "cannot take copies"),
        ([0], {"topic": "SCHEDULE_TOPIC_XXXX"}, 16, "cannot take copies"),
    ],
)
def test_what_is_no_copy_of_the_queue_is_refused(
    copies: list[int], more: dict[str, Any], code: int, text: str
) -> None:
    """Law: what is no copy of the queue is refused with what to do, and nothing is stored."""
    mine, theirs = source(3), target()
    create(theirs, TopicSet("%RETRY%billing", 1, 1))
    every = records(mine)

    reply = append(theirs, *(every[each] for each in copies), **more)

    assert reply.code == code
    assert text in str(reply.remark)
    assert not pull(theirs, queue=1).body


def test_a_damaged_or_torn_copy_is_refused() -> None:
    """Law: damaged or cut copies are refused."""
    mine, theirs = source(2), target()
    every = records(mine)

    assert "is damaged" in str(append(theirs, damaged(every[0])).remark)
    assert append(theirs, every[0], every[1][:-1]).code == ResponseCode.MESSAGE_ILLEGAL
    assert not pull(theirs, queue=1).body


def test_a_broker_that_may_only_be_read_takes_no_copies() -> None:
    """Law: with brokerPermission 4 no copies are taken."""
    mine, theirs = source(2), Shell(settings(group="broker-x", permission=4)).lead()
    create(theirs, ORDERED)

    reply = append(theirs, *records(mine))

    assert reply.code == ResponseCode.NO_PERMISSION
    assert "an administrator can set it to 6" in str(reply.remark)
    assert not pull(theirs, queue=1).body


def test_while_the_topic_grows_nothing_is_appended() -> None:
    """Law: while the topic is fenced for an expansion, no copies are appended."""
    mine, theirs = source(2), target()
    theirs.core.context.view.fencing.add("orders")

    reply = append(theirs, *records(mine))

    assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert not pull(theirs, queue=1).body


def test_a_replica_that_does_not_lead_refuses_for_certain() -> None:
    """Law: a replica that does not lead refuses copies; nothing is stored."""
    mine, theirs = source(1), target()
    theirs.follow()

    assert append(theirs, *records(mine)).code == ResponseCode.SERVICE_NOT_AVAILABLE
