"""Transactions: half messages, their end, and the questions about those that nobody ends."""

from typing import Any

import pytest

from orderlymq_broker.processors.transacting import is_half
from orderlymq_broker.settings import StorageSettings, TimerSettings
from orderlymq_broker.state.records import (
    Append,
    HalfEnded,
    HalfGivenUp,
    HalfOpened,
    TopicDeleted,
    TopicSet,
)
from orderlymq_protocol import fastjson
from orderlymq_protocol.command import RemotingCommand
from orderlymq_protocol.properties import decode_properties
from orderlymq_protocol.record import StoredMessage, decode_record
from tests.broker.processors.driver import ALICE, BOB, START_MS, TOOL, Shell, settings
from tests.broker.processors.requests import (
    bodies,
    create,
    messages,
    properties,
    pull,
    send,
    send_ext,
)

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
GROUP = "PGTXA4b"


def half_properties(key: str = "U1", **more: str) -> str:
    return properties(KEYS="c1", TRAN_MSG="true", UNIQ_KEY=key, PGROUP=GROUP, **more)


def begin(
    shell: Shell,
    body: bytes = b"paid",
    key: str = "U1",
    *,
    topic: str = "orders",
    queue: int = 0,
    **more: str,
) -> tuple[int, int]:
    """Send a half message; return its offset among the halves and its physical offset."""
    reply = send(shell, topic, body, half_properties(key, **more), a=GROUP, e=queue, f=4)
    assert reply.code == 0, reply.remark
    return int(reply.ext["queueOffset"]), int(reply.ext["msgId"][16:], 16)


def end_ext(half: tuple[int, int], choice: int, group: str = GROUP) -> dict[str, str]:
    return {
        "producerGroup": group,
        "tranStateTableOffset": str(half[0]),
        "commitLogOffset": str(half[1]),
        "commitOrRollback": str(choice),
        "fromTransactionCheck": "false",
        "msgId": "U1",
    }


def end(shell: Shell, half: tuple[int, int], choice: int, **more: str) -> RemotingCommand:
    return shell.call(37, end_ext(half, choice, **more))


def found(shell: Shell, topic: str = "orders", queue: int = 0) -> list[bytes]:
    reply = pull(shell, topic=topic, queue=queue)
    return bodies(reply) if reply.body else []


def questions(shell: Shell) -> list[tuple[int, RemotingCommand]]:
    """Return the checks sent so far, and forget them."""
    asked = [(s.connection, s.command) for s in shell.sent if s.command.code == 39]
    shell.sent = [s for s in shell.sent if s.command.is_response or s.command.code != 39]
    return asked


def join(shell: Shell, *, client: str = "c1", peer: Any = ALICE, group: str = GROUP) -> None:
    """Send the heartbeat of a producer."""
    body = {"clientID": client, "consumerDataSet": [], "producerDataSet": [{"groupName": group}]}
    assert shell.call(34, {}, fastjson.dumps(body), peer=peer).code == 0


@pytest.fixture
def orders(shell: Shell) -> Shell:
    """A leader with the ordered topic orders of two queues."""
    create(shell, TopicSet("orders", 2, 2, order=True))
    return shell


def succession() -> Shell:
    """Return a leader as *orders*, for tests that end with another one over the same store."""
    shell = Shell().lead()
    create(shell, TopicSet("orders", 2, 2, order=True))
    return shell


# -- half messages -----------------------------------------------------------------------------------


def test_a_half_message_is_seen_by_nobody_and_told_by_its_number_among_the_halves(
    orders: Shell,
) -> None:
    """Its sender learns the queue it asked for, and the offset by which it ends the transaction."""
    send(orders, body=b"before")

    reply = send(orders, body=b"half", props=half_properties(), a=GROUP, e=1, f=4)

    assert (reply.code, reply.ext["queueId"], reply.ext["queueOffset"]) == (0, "1", "0")
    assert found(orders) == [b"before"]
    assert found(orders, queue=1) == []


def test_a_half_message_rests_as_rocketmq_keeps_it(orders: Shell) -> None:
    """In queue 0 of the half topic, without transaction bits, with the way to where it belongs."""
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
        "CLUSTER": "shop",
        "REAL_TOPIC": "orders",
        "REAL_QID": "1",
    }


def stored_at(shell: Shell, *physical: int) -> list[StoredMessage]:
    found = []
    for offset in physical:
        reply = shell.call(33, {"offset": str(offset)})
        assert reply.code == 0, reply.remark
        found.append(decode_record(reply.body))
    return found


def test_the_bit_or_the_property_makes_a_half(orders: Shell) -> None:
    """Either alone would otherwise store a message that is delivered, or one that never is."""
    topic = orders.state.topics.by_name["orders"]

    assert is_half(topic, 4, "")
    assert is_half(topic, 0, properties(TRAN_MSG="true"))
    assert is_half(topic, 0, properties(TRAN_MSG="TRUE"))
    assert not is_half(topic, 0, properties(TRAN_MSG="false"))
    assert not is_half(topic, 8, "")


def test_a_repeated_half_gets_the_place_of_the_first(orders: Shell) -> None:
    """A sender that lost the answer has one transaction, not two."""
    first = begin(orders, key="U1")
    again = begin(orders, key="U1")
    other = begin(orders, key="U2")

    assert first == again
    assert other[0] == 1
    assert len(orders.state.transactions.open) == 2


def test_a_batch_cannot_be_sent_in_a_transaction(orders: Shell) -> None:
    """Its messages would need one decision each; the batch is refused as illegal."""
    entry = b"\x00\x00\x00\x17" + bytes(12) + b"\x00\x00\x00\x01x" + b"\x00\x00"

    reply = orders.call(320, send_ext("orders", half_properties(), f=4), entry)

    assert (reply.code, "transaction" in (reply.remark or "")) == (13, True)


# -- the end -----------------------------------------------------------------------------------------


def test_a_commit_shows_the_message_once_and_marks_the_end_in_the_same_proposal(
    orders: Shell,
) -> None:
    """The visible copy and the end of the half cannot be parted by a crash."""
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
        "CLUSTER": "shop",
    }


@pytest.mark.parametrize("second", [COMMIT, ROLLBACK])
def test_what_was_committed_stays_committed_once(orders: Shell, second: int) -> None:
    """A repeated or contrary end changes nothing and is told so."""
    half = begin(orders, b"half")
    end(orders, half, COMMIT)

    reply = end(orders, half, second)

    assert (reply.code, reply.remark) == (0, "the transaction had ended before; nothing changed")
    assert found(orders) == [b"half"]


def test_two_commits_in_one_turn_make_one_copy(orders: Shell) -> None:
    """The second waits for the first, whose answer it gets."""
    half = begin(orders, b"half")

    first = orders.submit(37, end_ext(half, COMMIT))
    second = orders.submit(37, end_ext(half, COMMIT), peer=BOB)
    assert orders.reply_to(second) is None
    orders.settle()

    codes = [reply.code for number in (first, second) if (reply := orders.reply_to(number))]
    assert codes == [0, 0]
    assert found(orders) == [b"half"]


def test_a_rolled_back_message_is_never_seen(orders: Shell) -> None:
    """A commit that comes later changes nothing."""
    half = begin(orders, b"half")

    assert end(orders, half, ROLLBACK).code == 0
    end(orders, half, COMMIT)
    orders.pass_time(10_000)

    assert found(orders) == []
    assert not orders.state.transactions.open


def test_ordered_transactional_sends_stand_where_they_were_committed(orders: Shell) -> None:
    """Not where the half was sent: what was acknowledged before the commit comes before it."""
    first, second = begin(orders, b"A", "U1"), begin(orders, b"B", "U2")
    send(orders, body=b"C")
    end(orders, second, COMMIT)
    send(orders, body=b"D")
    end(orders, first, COMMIT)

    assert found(orders) == [b"C", b"B", b"D", b"A"]


def test_a_committed_message_with_a_delay_waits_for_it_after_the_commit(orders: Shell) -> None:
    """The delay begins with the commit, as the message does not exist before."""
    half = begin(orders, b"half", DELAY="1")
    orders.pass_time(3_000)
    assert found(orders) == []

    end(orders, half, COMMIT)
    orders.pass_time(800)
    assert found(orders) == []
    orders.pass_time(400)

    assert found(orders) == [b"half"]


def test_an_end_that_does_not_know_its_half_is_refused(orders: Shell) -> None:
    """Wrong group, wrong physical offset, a number that never was, a choice that is none."""
    half = begin(orders)

    replies = [
        end(orders, half, COMMIT, group="others"),
        end(orders, (half[0], half[1] + 1), COMMIT),
        end(orders, (7, 0), COMMIT),
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
    assert found(orders) == []


def test_an_unknown_result_leaves_the_transaction_open(orders: Shell) -> None:
    """It is neither seen nor gone; the producer is asked later."""
    half = begin(orders)

    assert end(orders, half, UNKNOWN).code == 0

    assert list(orders.state.transactions.open) == [0]


def test_a_oneway_end_gets_no_answer(orders: Shell) -> None:
    """RocketMQ's clients end transactions without waiting."""
    half = begin(orders, b"half")

    assert orders.ask(37, end_ext(half, COMMIT), oneway=True) is None
    assert orders.ask(37, end_ext((99, 0), COMMIT), oneway=True) is None

    assert found(orders) == [b"half"]


def test_a_commit_whose_topic_is_gone_keeps_the_transaction_open(orders: Shell) -> None:
    """Created again, the topic gets the message; nothing acknowledged is dropped."""
    half = begin(orders, b"half")
    create(orders, TopicDeleted("orders"))

    assert end(orders, half, COMMIT).code == 17

    create(orders, TopicSet("orders", 1, 1))
    assert end(orders, half, COMMIT).code == 0
    assert found(orders) == [b"half"]


def test_an_end_that_is_lost_with_its_leader_can_be_asked_for_again(orders: Shell) -> None:
    """Both who asked are told; the half is still open."""
    half = begin(orders, b"half")
    numbers = [orders.submit(37, end_ext(half, COMMIT)) for _ in range(2)]

    orders.follow()
    orders.lose_proposals()

    replies = [orders.reply_to(number) for number in numbers]
    assert [reply.code for reply in replies if reply is not None] == [1, 1]
    orders.lead()
    end(orders, half, COMMIT)
    assert found(orders) == [b"half"]


def test_a_replica_that_does_not_lead_answers_as_a_slave(orders: Shell) -> None:
    """11, and nothing changes; a oneway end is asked about later anyway."""
    half = begin(orders)
    orders.follow()

    assert end(orders, half, COMMIT).code == 11

    orders.lead()
    assert list(orders.state.transactions.open) == [0]


# -- checks ------------------------------------------------------------------------------------------


def test_the_producer_is_asked_after_the_timeout_with_the_message_it_sent(orders: Shell) -> None:
    """Topic and queue are the real ones, the offsets are those by which it ends the transaction."""
    join(orders)
    half = begin(orders, b"half", queue=1)

    orders.pass_time(5_900)
    assert questions(orders) == []
    orders.pass_time(700)

    ((connection, question),) = questions(orders)
    assert connection == ALICE.connection
    assert question.ext == {
        "tranStateTableOffset": str(half[0]),
        "commitLogOffset": str(half[1]),
        "msgId": "U1",
        "transactionId": "U1",
        "offsetMsgId": f"C000026400002A9F{half[1]:016X}",
        "topic": "orders",
    }
    message = decode_record(question.body)
    assert (message.topic, message.queue_id, message.body) == ("orders", 1, b"half")
    assert (message.queue_offset, message.physical_offset) == half
    assert decode_properties(message.properties)["TRANSACTION_CHECK_TIMES"] == "1"
    assert decode_properties(message.properties)["PGROUP"] == GROUP


def test_the_answer_to_a_check_ends_the_transaction_and_the_message_says_it_was_checked(
    orders: Shell,
) -> None:
    """From then on nobody is asked."""
    half = begin(orders, b"half")
    orders.pass_time(7_000)
    assert len(questions(orders)) == 1

    end(orders, half, COMMIT)
    orders.pass_time(120_000, step=1_000)

    assert questions(orders) == []
    (message,) = messages(pull(orders))
    assert decode_properties(message.properties)["TRANSACTION_CHECK_TIMES"] == "1"


def test_live_producers_of_the_group_are_asked_in_turn(orders: Shell) -> None:
    """Those of other groups are not; a closed connection is not asked again."""
    join(orders, client="c1", peer=ALICE)
    join(orders, client="c2", peer=BOB)
    join(orders, client="c3", peer=TOOL, group="others")
    begin(orders)

    orders.pass_time(7_000 + 60_000, step=1_000)
    asked = [connection for connection, _ in questions(orders)]
    orders.run(orders.core.connection_closed(ALICE.connection, orders.now))
    orders.pass_time(120_000, step=1_000)

    assert asked == [ALICE.connection, BOB.connection]
    assert [connection for connection, _ in questions(orders)] == [BOB.connection] * 2


def test_who_sent_a_half_can_be_asked_before_its_first_heartbeat(orders: Shell) -> None:
    """Java sends one every 30 s only; the check need not wait for it."""
    begin(orders)

    orders.pass_time(7_000)

    assert [connection for connection, _ in questions(orders)] == [ALICE.connection]


def test_nothing_is_counted_while_no_producer_is_alive(orders: Shell) -> None:
    """The check comes as soon as one is back."""
    begin(orders)
    orders.run(orders.core.connection_closed(ALICE.connection, orders.now))
    orders.pass_time(60 * 60_000, step=10_000)
    assert questions(orders) == []
    assert orders.state.transactions.open[0].checks == 0

    join(orders, peer=BOB)
    orders.pass_time(1_000)

    assert [connection for connection, _ in questions(orders)] == [BOB.connection]


@pytest.mark.parametrize(("immunity", "first_ms"), [("20", 20_000), ("2", 2_000), ("soon", 6_000)])
def test_a_message_may_say_how_long_its_producer_must_not_be_asked(
    orders: Shell, immunity: str, first_ms: int
) -> None:
    """CHECK_IMMUNITY_TIME_IN_SECONDS; what is no number counts as not said."""
    begin(orders, CHECK_IMMUNITY_TIME_IN_SECONDS=immunity)

    orders.pass_time(first_ms - 100)
    assert questions(orders) == []
    orders.pass_time(700)

    assert len(questions(orders)) == 1


def test_after_the_last_check_a_copy_is_put_aside_and_nobody_is_asked(orders: Shell) -> None:
    """The copy and the giving up are one proposal; the copy says which half it is."""
    half = begin(orders, b"half")
    orders.pass_time(7_000 + 14 * 61_000, step=1_000)
    assert len(questions(orders)) == 15
    orders.proposed.clear()

    orders.pass_time(62_000, step=1_000)

    given_up = [r for r in orders.proposed if isinstance(r, Append | HalfGivenUp)]
    assert [type(record) for record in given_up] == [Append, HalfGivenUp]
    (copy,) = messages(pull(orders, topic="TRANS_CHECK_MAX_TIME_TOPIC"))
    kept = decode_properties(copy.properties)
    assert copy.body == b"half"
    assert (kept["REAL_TOPIC"], kept["TRANSACTION_CHECK_TIMES"]) == ("orders", "15")
    assert kept["TRAN_PREPARED_QUEUE_OFFSET"] == str(half[0])
    orders.pass_time(300_000, step=1_000)
    assert questions(orders) == []


def test_a_late_commit_of_a_given_up_transaction_gives_its_one_copy(orders: Shell) -> None:
    """The producer may know its own decision better than our patience."""
    half = begin(orders, b"half")
    orders.pass_time(16 * 62_000, step=1_000)
    assert list(orders.state.transactions.given_up) == [0]

    assert end(orders, half, COMMIT).code == 0
    end(orders, half, COMMIT)

    assert found(orders) == [b"half"]


def test_an_administrator_has_a_given_up_transaction_asked_about_again(orders: Shell) -> None:
    """323 with the id of the copy, or of the half itself; from the first check on, still one copy."""
    half = begin(orders, b"half")
    orders.pass_time(16 * 62_000, step=1_000)
    questions(orders)
    (copy,) = messages(pull(orders, topic="TRANS_CHECK_MAX_TIME_TOPIC"))
    copy_id = f"C000026400002A9F{copy.physical_offset:016X}"

    assert orders.call(323, {"msgId": copy_id}).code == 0
    assert orders.call(323, {"msgId": f"C000026400002A9F{half[1]:016X}"}).code == 0
    orders.pass_time(1_000)

    assert len(questions(orders)) == 1
    end(orders, half, COMMIT)
    assert orders.call(323, {"msgId": copy_id}).code == 1
    assert found(orders) == [b"half"]


@pytest.mark.parametrize("message_id", ["", "xyz", "C000026400002A9F0000000000FFFFFF"])
def test_asking_again_about_what_is_no_half_is_refused(orders: Shell, message_id: str) -> None:
    """The answer says which ids are meant."""
    reply = orders.call(323, {"msgId": message_id})

    assert (reply.code, bool(reply.remark)) == (1, True)


# -- fail-over ---------------------------------------------------------------------------------------


def test_checks_are_counted_on_after_a_fail_over() -> None:
    """The new leader asks at the next interval, not at once and not from the beginning."""
    orders = succession()
    begin(orders)
    orders.pass_time(7_000)
    assert len(questions(orders)) == 1

    successor = orders.restart().lead()
    join(successor, peer=BOB)
    successor.pass_time(50_000, step=1_000)
    assert questions(successor) == []
    successor.pass_time(12_000, step=1_000)

    ((_, question),) = questions(successor)
    message = decode_record(question.body)
    assert decode_properties(message.properties)["TRANSACTION_CHECK_TIMES"] == "2"


def test_an_end_that_was_applied_before_the_fail_over_is_not_repeated_after_it() -> None:
    """The producer repeats its commit to the new leader, since it saw no answer: one copy."""
    orders = succession()
    half = begin(orders, b"half")
    end(orders, half, COMMIT)

    successor = orders.restart().lead()
    reply = end(successor, half, COMMIT)

    assert reply.code == 0
    assert found(successor) == [b"half"]


def test_transactions_can_be_shown(orders: Shell) -> None:
    """The status says how many are open, since when, and whose."""
    begin(orders, key="U1")
    begin(orders, key="U2")

    assert orders.core.group_status()["transactions"] == {
        "open": 2,
        "givenUp": 0,
        "oldestMillis": START_MS,
        "groups": {GROUP: {"open": 2, "givenUp": 0}},
    }


# -- retention and timers ----------------------------------------------------------------------------


def test_open_transactions_keep_their_messages_and_given_up_ones_do_not() -> None:
    """Retention stops before the oldest open half; one of the age of messages is given up."""
    storage = StorageSettings(retention_ms=100_000)
    shell = Shell(settings(storage=storage, timers=TimerSettings(retention_scan_ms=1_000))).lead()
    create(shell, TopicSet("orders", 1, 1))
    half = begin(shell, b"half")
    shell.run(shell.core.connection_closed(ALICE.connection, shell.now))

    shell.pass_time(99_000, step=1_000)
    assert shell.state.floor <= half[1]
    shell.pass_time(5_000, step=500)
    assert list(shell.state.transactions.given_up) == [0]
    assert found(shell, "TRANS_CHECK_MAX_TIME_TOPIC") == [b"half"]
    shell.pass_time(110_000, step=1_000)

    assert shell.state.floor > half[1]
    assert not shell.state.transactions.given_up
    shell.replay()


def test_the_timers_of_checks_are_settings() -> None:
    """Time-out, interval and number of checks; tests and impatient users need not wait."""
    timers = TimerSettings(
        transaction_timeout_ms=300,
        transaction_check_interval_ms=500,
        transaction_check_max=2,
        transaction_scan_ms=100,
    )
    shell = Shell(settings(timers=timers)).lead()
    create(shell, TopicSet("orders", 1, 1))
    begin(shell)

    shell.pass_time(400)
    assert len(questions(shell)) == 1
    shell.pass_time(600)
    assert len(questions(shell)) == 1
    shell.pass_time(600)

    assert list(shell.state.transactions.given_up) == [0]
    shell.replay()


def test_a_half_is_one_entry_with_its_opening(orders: Shell) -> None:
    """The record that opens the transaction says all that a later leader must know."""
    orders.proposed.clear()
    half = begin(orders, queue=1)

    appended, opened = orders.proposed
    assert isinstance(appended, Append)
    assert opened == HalfOpened(half[0], half[1], GROUP, "orders", "U1", START_MS)
