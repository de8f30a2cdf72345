"""Half messages, and how their transactions end."""

import re

import pytest

from orderlymq_broker.core.effects import Caller, Propose
from orderlymq_broker.core.messagedraft import Properties
from orderlymq_broker.processors.transactions.halves import is_half
from orderlymq_broker.state.records import (
    Append,
    QueueFloor,
    RetentionAdvanced,
    TopicDeleted,
    TopicSet,
)
from orderlymq_broker.state.transactions.halfrecords import HalfEnded, HalfGivenUp
from orderlymq_protocol.message.properties import decode_properties
from orderlymq_protocol.names import TRANS_HALF_TOPIC
from tests.broker.processors.driver import BOB, Shell
from tests.broker.processors.halves import (
    COMMIT,
    GROUP,
    ROLLBACK,
    UNKNOWN,
    begin,
    end,
    end_ext,
    found,
    half_properties,
    stored_at,
    with_orders,
)
from tests.broker.processors.requests import (
    STORED_WITH,
    create,
    messages,
    properties,
    pull,
    send,
    send_ext,
)


@pytest.fixture
def orders(shell: Shell) -> Shell:
    """A leader with the ordered topic orders of two queues."""
    return with_orders(shell)


# -- half messages -----------------------------------------------------------------------------------


def test_a_half_message_is_seen_by_nobody_and_answered_with_its_number_among_the_halves(
    orders: Shell,
) -> None:
    """Law: a half message is not delivered; the answer has its requested queue and its offset among the half messages."""
    send(orders, body=b"before")

    reply = send(orders, body=b"half", props=half_properties(), a=GROUP, e=1, f=4)

    assert (reply.code, reply.ext["queueId"], reply.ext["queueOffset"]) == (0, "1", "0")
    assert found(orders) == [b"before"]
    assert found(orders, queue=1) == []


def test_a_half_message_rests_as_rocketmq_keeps_it(orders: Shell) -> None:
    """Law: a half message is stored as RocketMQ does: in queue 0 of the half topic, without transaction bits,
    with its real topic and queue.
    """
    _, physical = begin(orders, queue=1, WAIT="true")

    (stored,) = stored_at(orders, physical)
    assert (stored.topic, stored.queue_id, stored.queue_offset) == (
        "RMQ_SYS_TRANS_HALF_TOPIC",
        0,
        0,
    )
    assert stored.sys_flag == 0
    assert decode_properties(stored.properties) == {
        "KEYS": "c1",
        "TRAN_MSG": "true",
        "UNIQ_KEY": "U1",
        "PGROUP": GROUP,
        "WAIT": "true",
        **STORED_WITH,
        "REAL_TOPIC": "orders",
        "REAL_QID": "1",
    }


def test_a_half_keeps_no_long_texts_of_its_sender_in_memory(orders: Shell) -> None:
    """Law: long texts of a half message are not kept in memory; the message itself has them."""
    by_header = orders.call(310, send_ext("orders", properties(TRAN_MSG="true"), a="g" * 300), b"")
    by_property = orders.call(
        310, send_ext("orders", properties(TRAN_MSG="true", PGROUP="g" * 30_000)), b""
    )
    assert (by_header.code, by_property.code) == (13, 13)
    assert not orders.state.transactions.open
    assert not orders.core.context.sessions.senders("g" * 300)

    half = begin(orders, key="U" * 30_000)

    opened = orders.state.transactions.open[half[0]].opened
    assert (opened.group, opened.unique_key) == (GROUP, "U" * 255)
    assert end(orders, half, COMMIT).code == 0
    (paid,) = messages(pull(orders))
    assert decode_properties(paid.properties)["UNIQ_KEY"] == "U" * 30_000


def test_the_bit_or_the_property_makes_a_half(orders: Shell) -> None:
    """Law: the flag bit or the property alone makes a half message; else one would be delivered early, or never."""
    topic = orders.state.topics.by_name["orders"]

    assert is_half(topic, 4, Properties(""))
    assert is_half(topic, 0, Properties(properties(TRAN_MSG="true")))
    assert is_half(topic, 0, Properties(properties(TRAN_MSG="TRUE")))
    assert not is_half(topic, 0, Properties(properties(TRAN_MSG="false")))
    assert not is_half(topic, 8, Properties(""))


def test_a_repeated_half_gets_the_place_of_the_first(orders: Shell) -> None:
    """Law: a repeated half message gets the place of the first."""
    first = begin(orders, key="U1")
    again = begin(orders, key="U1")
    other = begin(orders, key="U2")

    assert first == again
    assert other[0] == 1
    assert len(orders.state.transactions.open) == 2


def test_a_message_object_sent_again_is_another_transaction(orders: Shell) -> None:
    """Law: a message object sent again, to another topic or after its end in a Normal topic, is another transaction."""
    create(orders, TopicSet("plain", 1, 1))
    begin(orders)
    halves = []
    for _ in range(3):
        halves.append(begin(orders, topic="plain"))
        assert end(orders, halves[-1], COMMIT).code == 0

    assert [offset for offset, _ in halves] == [1, 2, 3]
    assert found(orders, topic="plain") == [b"paid"] * 3


@pytest.mark.parametrize("topic", ["orders", "plain"])
@pytest.mark.parametrize("how", ["same turn", "applied", "restarted"])
def test_what_was_rolled_back_can_be_sent_again_and_committed(topic: str, how: str) -> None:
    """Law: a rolled-back message may be sent again and committed, and is delivered once."""
    shell = with_orders(Shell().lead())
    create(shell, TopicSet("plain", 1, 1))
    first = begin(shell, topic=topic)
    shell.submit(37, end_ext(first, ROLLBACK), oneway=True)
    if how != "same turn":
        shell.settle()
    if how == "restarted":
        shell = shell.restart().lead()

    second, repeated = begin(shell, topic=topic), begin(shell, topic=topic)

    assert (second[0], repeated) == (1, second)
    for choice in (COMMIT, ROLLBACK):
        assert end(shell, second, choice).code == 0
    assert found(shell, topic=topic) == [b"paid"]
    shell.replay()


def test_a_rollback_that_is_lost_takes_nothing_back(orders: Shell) -> None:
    """Law: a lost rollback changes nothing; the half message is open, and its repeat gets its place."""
    first = begin(orders)
    orders.submit(37, end_ext(first, ROLLBACK), oneway=True)
    orders.follow()
    orders.lose_proposals()
    orders.lead()

    assert begin(orders) == first
    assert list(orders.state.transactions.open) == [0]


@pytest.mark.parametrize("settled", [True, False])
def test_a_message_that_an_ordered_topic_has_by_a_commit_begins_no_transaction_again(
    orders: Shell, *, settled: bool
) -> None:
    """Law: an ordered topic refuses a half message that it has committed already, because its end would change nothing."""
    orders.submit(37, end_ext(begin(orders), COMMIT), oneway=True)
    if settled:
        orders.settle()

    again = send(orders, "orders", b"paid", half_properties(), a=GROUP, e=0, f=4)

    assert (again.code, "U1 has ended" in (again.remark or "")) == (13, True)
    assert found(orders) == [b"paid"]
    assert not orders.state.transactions.open


def test_a_topic_that_is_made_again_gets_a_message_that_the_former_one_had(orders: Shell) -> None:
    """Law: a topic created again accepts a message that the former one had."""
    assert end(orders, begin(orders), COMMIT).code == 0
    create(orders, TopicDeleted("orders"))
    with_orders(orders)

    assert end(orders, begin(orders), COMMIT).code == 0

    assert found(orders) == [b"paid"]
    again = send(orders, "orders", b"paid", half_properties(), a=GROUP, e=0, f=4)
    assert again.code == 13


def test_a_normal_topic_gets_a_message_again_whose_commit_is_not_applied(orders: Shell) -> None:
    """Law: in a Normal topic the same object is another transaction, even while the first commit is uncommitted."""
    create(orders, TopicSet("plain", 1, 1))
    orders.submit(37, end_ext(begin(orders, topic="plain"), COMMIT), oneway=True)

    assert end(orders, begin(orders, topic="plain"), COMMIT).code == 0

    assert found(orders, topic="plain") == [b"paid"] * 2


def test_a_given_up_half_answers_for_its_repeats_until_retention_takes_it(orders: Shell) -> None:
    """Law: a given-up half message answers its repeats until retention removes it; then a repeat is a new transaction."""
    first = begin(orders)
    orders.run([Propose([HalfGivenUp(first[0])])])
    assert begin(orders) == first
    orders.run([Propose([RetentionAdvanced((), orders.state.physical_end)])])
    orders.settle()

    second = begin(orders)

    assert second[0] == 1
    assert end(orders, second, COMMIT).code == 0
    assert found(orders) == [b"paid"]


def test_a_batch_cannot_be_sent_in_a_transaction(orders: Shell) -> None:
    """Law: a batch in a transaction is refused."""
    entry = b"\x00\x00\x00\x17" + bytes(12) + b"\x00\x00\x00\x01x" + b"\x00\x00"

    reply = orders.call(320, send_ext("orders", half_properties(), f=4), entry)

    assert (reply.code, "transaction" in (reply.remark or "")) == (13, True)


# -- the end -----------------------------------------------------------------------------------------


def test_a_commit_shows_the_message_once_and_marks_the_end_in_the_same_proposal(
    orders: Shell,
) -> None:
    """Law: a commit's copy and the end of the half message are one proposal."""
    half = begin(orders, b"half", queue=1)
    orders.proposed.clear()

    assert end(orders, half, COMMIT).code == 0

    appended, ended = orders.proposed
    assert isinstance(appended, Append)
    assert ended == HalfEnded(half[0], committed=True)
    (message,) = messages(pull(orders, queue=1))
    assert (message.body, message.topic, message.queue_id) == (b"half", "orders", 1)
    assert message.sys_flag == COMMIT
    assert message.prepared_transaction_offset == half[1]
    assert message.born_timestamp == 1699999999000
    assert decode_properties(message.properties) == {
        "KEYS": "c1",
        "UNIQ_KEY": "U1",
        "PGROUP": GROUP,
        **STORED_WITH,
    }


@pytest.mark.parametrize("second", [COMMIT, ROLLBACK])
def test_what_was_committed_stays_committed_once(orders: Shell, second: int) -> None:
    """Law: a repeated or opposite end changes nothing, and the answer says so."""
    half = begin(orders, b"half")
    end(orders, half, COMMIT)

    reply = end(orders, half, second)

    assert (reply.code, reply.remark) == (0, "the transaction has ended already; nothing changed")
    assert found(orders) == [b"half"]


def test_two_commits_in_one_turn_make_one_copy(orders: Shell) -> None:
    """Law: two commits in one turn make one copy; the second gets the answer of the first."""
    half = begin(orders, b"half")

    first = orders.submit(37, end_ext(half, COMMIT))
    second = orders.submit(37, end_ext(half, COMMIT), caller=BOB)
    assert orders.reply_to(second) is None
    orders.settle()

    codes = [reply.code for number in (first, second) if (reply := orders.reply_to(number))]
    assert codes == [0, 0]
    assert found(orders) == [b"half"]


def test_a_rolled_back_message_is_never_seen(orders: Shell) -> None:
    """Law: a rolled-back message is never delivered; a later commit changes nothing."""
    half = begin(orders, b"half")

    assert end(orders, half, ROLLBACK).code == 0
    end(orders, half, COMMIT)
    orders.pass_time(10_000)

    assert found(orders) == []
    assert not orders.state.transactions.open


def test_ordered_transactional_sends_stand_where_they_were_committed(orders: Shell) -> None:
    """Law: in an ordered topic, a committed message stands where it was committed, not where it was sent."""
    first, second = begin(orders, b"A", "U1"), begin(orders, b"B", "U2")
    send(orders, body=b"C")
    end(orders, second, COMMIT)
    send(orders, body=b"D")
    end(orders, first, COMMIT)

    assert found(orders) == [b"C", b"B", b"D", b"A"]


def test_a_committed_message_with_a_delay_waits_for_it_after_the_commit(orders: Shell) -> None:
    """Law: the delay of a committed message begins with the commit."""
    half = begin(orders, b"half", DELAY="1")
    orders.pass_time(3_000)
    assert found(orders) == []

    end(orders, half, COMMIT)
    orders.pass_time(800)
    assert found(orders) == []
    orders.pass_time(400)

    assert found(orders) == [b"half"]


def test_an_end_that_does_not_know_its_half_is_refused(orders: Shell) -> None:
    """Law: an end with a wrong group, offset or choice is refused without revealing the right values."""
    begin(orders, b"before", "U0")
    half = begin(orders)

    replies = [
        end(orders, half, COMMIT, group="others"),
        end(orders, (half[0], half[1] + 1), COMMIT),
        end(orders, (77, 0), COMMIT),
        end(orders, (-1, 0), COMMIT),
        end(orders, half, 4),
    ]

    assert [reply.code for reply in replies] == [1] * 5
    remarks = [(reply.remark or "").split(":")[0] for reply in replies]
    assert remarks == [
        "the producer group wrong",
        "the commit log offset wrong",
        "find prepared transaction message failed",
        "find prepared transaction message failed",
        "commitOrRollback 4",
    ]
    assert GROUP not in str(replies[:2])
    assert not re.search(rf"\b{half[1]}\b", str(replies[:2]))
    assert found(orders) == []


def test_the_end_of_another_message_at_the_same_place_is_refused(orders: Shell) -> None:
    """
    Law: an end for another message at the same place is refused, so that producers do not end other transactions after a restore.

    Group and both offsets match a half message of the new cluster, but the message's id does not. Clients name the unique key, or
    the offset id if there is none.
    """
    halves = [begin(orders, key=key) for key in ("U1", "U2", "U3" * 200)]
    names = ("U1", f"C000026400002A9F{halves[1][1]:016X}", "U3" * 200)

    refused = [
        end(orders, half, choice, message_id=name)
        for half in halves
        for choice in (COMMIT, ROLLBACK)
        for name in ("U0", f"C000026400002A9F{halves[0][1] + 1:016X}")
    ]
    still_open = len(orders.state.transactions.open)
    ended = [
        end(orders, half, COMMIT, message_id=name).code
        for half, name in zip(halves, names, strict=True)
    ]

    assert {(reply.code, (reply.remark or "").split(":")[0]) for reply in refused} == {
        (1, "the message id wrong")
    }
    assert still_open == 3
    assert ended == [0, 0, 0]


def test_the_end_of_a_half_that_retention_has_taken_is_no_success(orders: Shell) -> None:
    """Law: the end of a half message that retention removed is refused, because it was never committed."""
    half = begin(orders)
    queue = orders.state.topics.by_name[TRANS_HALF_TOPIC].queue(0)
    floor = QueueFloor(queue.topic_id, 0, queue.next_offset)
    for record in (
        HalfGivenUp(half[0]),
        RetentionAdvanced((floor,)),
        RetentionAdvanced((), orders.state.physical_end),
    ):
        orders.run([Propose([record])])
    orders.settle()

    answer = end(orders, half, COMMIT)

    assert answer.code == 1
    assert "no longer known" in (answer.remark or "")
    assert found(orders) == []


@pytest.mark.parametrize(("choice", "seen"), [(COMMIT, [b"paid"]), (ROLLBACK, [])])
def test_an_end_that_retention_overtakes_in_the_log_is_carried_out(
    orders: Shell, choice: int, seen: list[bytes]
) -> None:
    """Law: an end requested before, but applied after, the removal by retention is still carried out."""
    half = begin(orders)
    orders.run([Propose([HalfGivenUp(half[0])])])
    orders.settle()
    # Retention is applied first, although the end was requested while the half message was there.
    orders.run([Propose([RetentionAdvanced((), orders.state.physical_end)])])

    assert end(orders, half, choice).code == 0
    assert found(orders) == seen
    assert not orders.state.transactions.given_up


def test_an_unknown_result_leaves_the_transaction_open(orders: Shell) -> None:
    """Law: an unknown result leaves the transaction open."""
    half = begin(orders)

    assert end(orders, half, UNKNOWN).code == 0

    assert list(orders.state.transactions.open) == [0]


def test_a_oneway_end_gets_no_answer(orders: Shell) -> None:
    """Law: a one-way end gets no answer, whatever its outcome."""
    half = begin(orders, b"half")

    assert orders.ask(37, end_ext(half, COMMIT), oneway=True) is None
    assert orders.ask(37, end_ext((99, 0), COMMIT), oneway=True) is None

    assert found(orders) == [b"half"]


def test_a_commit_whose_topic_is_gone_keeps_the_transaction_open(orders: Shell) -> None:
    """Law: a commit whose topic is deleted keeps the transaction open; when the topic is back, the message is delivered."""
    half = begin(orders, b"half")
    create(orders, TopicDeleted("orders"))

    assert end(orders, half, COMMIT).code == 17

    create(orders, TopicSet("orders", 1, 1))
    assert end(orders, half, COMMIT).code == 0
    assert found(orders) == [b"half"]


def test_an_end_that_is_lost_with_its_leader_can_be_asked_for_again(orders: Shell) -> None:
    """Law: an end lost with its leader is answered with 1 to all callers, and may be repeated."""
    half = begin(orders, b"half")
    numbers = [orders.submit(37, end_ext(half, COMMIT)) for _ in range(2)]

    orders.follow()
    orders.lose_proposals()
    orders.settle()

    replies = [orders.reply_to(number) for number in numbers]
    assert [reply.code for reply in replies if reply is not None] == [1, 1]
    orders.lead()
    end(orders, half, COMMIT)
    assert found(orders) == [b"half"]


def test_a_replica_that_does_not_lead_answers_as_a_slave(orders: Shell) -> None:
    """Law: a replica that does not lead answers 11, and nothing changes."""
    half = begin(orders)
    orders.follow()

    assert end(orders, half, COMMIT).code == 11

    orders.lead()
    assert list(orders.state.transactions.open) == [0]


def test_a_producer_over_ipv6_stays_one_in_its_committed_message(orders: Shell) -> None:
    """Law: the IPv6 address of a producer is kept in its committed message."""
    caller = Caller(6, "2001:db8::6", 40_006)
    reply = send(orders, body=b"half", props=half_properties(), a=GROUP, f=4, caller=caller)
    half = int(reply.ext["queueOffset"]), int(reply.ext["msgId"][16:], 16)

    end(orders, half, COMMIT)

    (message,) = messages(pull(orders))
    assert (message.body, message.born_host) == (b"half", ("2001:db8::6", 40_006))
    assert message.sys_flag == COMMIT | 0x10
    assert message.prepared_transaction_offset == half[1]


def test_a_compressed_half_stays_compressed_in_its_committed_message(orders: Shell) -> None:
    """Law: a compressed half message keeps body and flags in its committed message."""
    compressed, flags = b"\x00\x01\x02", 0x301
    props = half_properties()
    reply = send(orders, body=compressed, props=props, a=GROUP, f=4 | flags)
    half = int(reply.ext["queueOffset"]), int(reply.ext["msgId"][16:], 16)

    end(orders, half, COMMIT)

    (message,) = messages(pull(orders))
    assert (message.body, message.sys_flag) == (compressed, COMMIT | flags)


def test_a_producer_that_says_good_bye_is_not_asked(orders: Shell) -> None:
    """Law: a producer that unregisters (35) is not asked; another one of the group is waited for."""
    begin(orders)
    orders.call(35, {"clientID": "c1", "producerGroup": GROUP})

    assert orders.core.context.sessions.senders(GROUP) == []
