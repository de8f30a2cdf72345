"""Checks of transactions that nobody ends, and their state after a change of leader."""

import pytest

from orderlymq_broker.core.effects import Caller
from orderlymq_broker.processors.admin.access import signature
from orderlymq_broker.processors.schedule.delaylevels import SIZE_MAX
from orderlymq_broker.processors.transactions.checks import COUNT_MAX
from orderlymq_broker.settings import AccessSettings, StorageSettings, TimerSettings
from orderlymq_broker.state.admin.accessrecords import AccountSet, WhiteAddressesSet
from orderlymq_broker.state.records import Append, TopicSet
from orderlymq_broker.state.transactions.halfrecords import HalfGivenUp, HalfOpened
from orderlymq_broker.state.transactions.halves import ENDED_MAX, Half
from orderlymq_protocol.frame.codec import FrameDecoder
from orderlymq_protocol.message.properties import decode_properties
from orderlymq_protocol.message.record import decode_record
from tests.broker.processors.driver import ALICE, BOB, DAY_MS, START_MS, TOOL, Shell, settings
from tests.broker.processors.halves import (
    COMMIT,
    GROUP,
    begin,
    end,
    found,
    half_properties,
    join,
    producer_body,
    questions,
    with_orders,
)
from tests.broker.processors.requests import create, messages, properties, pull, send, send_ext
from tests.protocol.golden import frames


@pytest.fixture
def orders(shell: Shell) -> Shell:
    """A leader with the ordered topic orders of two queues."""
    return with_orders(shell)


# -- checks ------------------------------------------------------------------------------------------


def test_a_clock_that_was_ahead_delays_no_question(orders: Shell) -> None:
    """Law: if the clock was ahead, checks are not delayed, neither for the half messages of that time nor for later ones."""
    join(orders)
    orders.set_clock(orders.wall_ms + DAY_MS)
    begin(orders, key="U1")
    orders.pass_time(500)
    orders.set_clock(orders.wall_ms - DAY_MS)
    begin(orders, key="U2")

    orders.pass_time(8_000)

    asked = {question.ext["msgId"] for _, question in questions(orders)}
    assert asked == {"U1", "U2"}


def test_no_half_is_given_up_because_a_clock_is_ahead(orders: Shell) -> None:
    """Law: no half message is given up because the clock is ahead; its producer is asked first."""
    join(orders)
    half = begin(orders, b"half")
    orders.pass_time(5_000)

    orders.set_clock(orders.wall_ms + 3_650 * DAY_MS)
    orders.pass_time(1_000)

    assert len(questions(orders)) == 1
    assert orders.state.transactions.given_up == {}
    assert end(orders, half, COMMIT).code == 0
    assert found(orders) == [b"half"]


def test_a_half_of_a_clock_that_was_ahead_is_given_up_in_time() -> None:
    """Law: a half message stored by a clock that was ahead, without an answer, is given up after the retention time."""
    storage = StorageSettings(retention_ms=100_000)
    shell = with_orders(Shell(settings(storage=storage)).lead())
    right_ms = shell.wall_ms
    shell.set_clock(right_ms + 3_650 * DAY_MS)
    begin(shell, b"half")
    shell.run(shell.core.connection_closed(ALICE.connection))
    shell.set_clock(right_ms)

    shell.pass_time(95_000, step=1_000)
    waits = len(shell.state.transactions.open)
    shell.pass_time(15_000, step=1_000)

    assert (waits, len(shell.state.transactions.open)) == (1, 0)
    assert len(shell.state.transactions.given_up) == 1


def test_the_producer_is_asked_after_the_timeout_with_the_message_it_sent(orders: Shell) -> None:
    """Law: after the time-out the producer gets its message with the real topic and queue and the offsets that end the
    transaction.
    """
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
    """Law: the answer ends the transaction, and the delivered message has TRANSACTION_CHECK_TIMES."""
    half = begin(orders, b"half")
    orders.pass_time(7_000)
    assert len(questions(orders)) == 1

    end(orders, half, COMMIT)
    orders.pass_time(120_000, step=1_000)

    assert questions(orders) == []
    (message,) = messages(pull(orders))
    assert decode_properties(message.properties)["TRANSACTION_CHECK_TIMES"] == "1"


def test_a_group_with_more_than_anybody_can_ask_leaves_the_others_their_turn(orders: Shell) -> None:
    """Law: a producer group with very many half messages does not keep others from being checked."""
    join(orders, client="c1", caller=ALICE)
    join(orders, client="c3", caller=TOOL, group="others")
    for number in range(2 * COUNT_MAX):
        begin(orders, key=f"U{number}")
    props = properties(TRAN_MSG="true", UNIQ_KEY="V", PGROUP="others")
    assert send(orders, "orders", b"half", props, a="others", f=4, caller=TOOL).code == 0

    orders.wall_ms += 6_000
    for _ in range(2):
        orders.pass_time(500)

    assert TOOL.connection in {connection for connection, _ in questions(orders)}


def test_who_has_a_half_asked_about_again_and_again_is_remembered_once(orders: Shell) -> None:
    """Law: repeated requests (323) for one half message leave one note; they once left one each."""
    join(orders)
    half = begin(orders)
    orders.pass_time(7_000)
    message_id = f"C000026400002A9F{half[1]:016X}"

    for _ in range(50):
        assert orders.call(323, {"topic": "orders", "msgId": message_id}).code == 0
        orders.pass_time(600)
    orders.pass_time(70_000, step=1_000)

    (heap,) = orders.core.checks._due.values()
    assert len(heap) <= 2


def test_halves_that_ended_long_before_they_are_due_are_forgotten(orders: Shell) -> None:
    """Law: notes of ended half messages are removed before there are many, even if they are due days later."""
    open_half = begin(orders, CHECK_IMMUNITY_TIME_IN_SECONDS="20")
    checks = orders.core.checks
    for offset in range(1, 5 * ENDED_MAX):
        checks.watch(Half(HalfOpened(offset, 0, GROUP, "orders", "U", START_MS, 999_999_000)))

    (heap,) = checks._due.values()
    assert len(heap) <= ENDED_MAX + 4
    orders.pass_time(20_600)
    assert sum(map(len, orders.core.checks._due.values())) <= ENDED_MAX + 4
    ((_, question),) = questions(orders)
    assert question.ext["tranStateTableOffset"] == str(open_half[0])


def test_live_producers_of_the_group_are_asked_in_turn(orders: Shell) -> None:
    """Law: live producers of the group are asked in turn, not those of other groups or closed connections."""
    join(orders, client="c1", caller=ALICE)
    join(orders, client="c2", caller=BOB)
    join(orders, client="c3", caller=TOOL, group="others")
    begin(orders)

    orders.pass_time(7_000 + 60_000, step=1_000)
    asked = [connection for connection, _ in questions(orders)]
    orders.run(orders.core.connection_closed(ALICE.connection))
    orders.pass_time(120_000, step=1_000)

    assert asked == [ALICE.connection, BOB.connection]
    assert [connection for connection, _ in questions(orders)] == [BOB.connection] * 2


def test_who_sent_a_half_can_be_asked_before_its_first_heartbeat(orders: Shell) -> None:
    """Law: the sender of a half message can be asked before its first heartbeat."""
    begin(orders)

    orders.pass_time(7_000)

    assert [connection for connection, _ in questions(orders)] == [ALICE.connection]


def test_nothing_is_counted_while_no_producer_is_alive(orders: Shell) -> None:
    """Law: while no producer is alive no check is counted; it comes when one is back."""
    begin(orders)
    orders.run(orders.core.connection_closed(ALICE.connection))
    orders.pass_time(60 * 60_000, step=10_000)
    assert questions(orders) == []
    assert orders.state.transactions.open[0].checks == 0

    join(orders, caller=BOB)
    orders.pass_time(1_000)

    assert [connection for connection, _ in questions(orders)] == [BOB.connection]


WRITER, STRANGER = "writer", "stranger"
WHITE = Caller(7, "10.0.0.7", 40_007)


@pytest.fixture
def guarded() -> Shell:
    """A broker with access control, a writer of orders, and a stranger who may write its own topic."""
    shell = Shell(settings(access=AccessSettings(enable=True))).lead()
    create(
        shell,
        TopicSet("orders", 1, 1),
        TopicSet("own", 1, 1),
        AccountSet(WRITER, "12345678", topic_perms={"orders": "PUB"}),
        AccountSet(STRANGER, "12345678", topic_perms={"own": "PUB"}),
        WhiteAddressesSet((WHITE.host,)),
    )
    return shell


def call_as(
    shell: Shell, who: str, code: int, ext: dict[str, str], body: bytes, caller: Caller
) -> None:
    fields = {**ext, "AccessKey": who}
    fields["Signature"] = signature(fields, body, "12345678")
    assert shell.call(code, fields, body, caller=caller).code == 0


def begin_as(shell: Shell, who: str, topic: str, caller: Caller) -> None:
    ext = send_ext(topic, half_properties(f"U-{topic}"), a=GROUP, f=4)
    call_as(shell, who, 310, ext, b"half", caller)


def asked(shell: Shell, ms: int) -> set[tuple[int, str]]:
    """Return which connections are asked about half messages of which topics while time passes."""
    shell.pass_time(ms, step=1_000)
    return {(connection, question.ext["topic"]) for connection, question in questions(shell)}


def test_who_may_not_write_a_topic_is_not_asked_about_its_transactions(guarded: Shell) -> None:
    """Law: only a client that may write the topic is asked about its half messages, whatever producer group it names."""
    begin_as(guarded, STRANGER, "own", BOB)
    begin_as(guarded, WRITER, "orders", ALICE)
    own = (BOB.connection, "own")
    assert asked(guarded, 7_000) == {own, (ALICE.connection, "orders")}

    guarded.run(guarded.core.connection_closed(ALICE.connection))
    assert asked(guarded, 120_000) == {own}
    call_as(guarded, STRANGER, 34, {}, producer_body("c2"), BOB)
    assert asked(guarded, 120_000) == {own}

    (half,) = (
        each for each in guarded.state.transactions.open.values() if each.opened.topic == "orders"
    )
    assert half.checks == 1
    call_as(guarded, WRITER, 34, {}, producer_body("c9"), TOOL)
    assert asked(guarded, 60_000) == {own, (TOOL.connection, "orders")}


def test_who_lost_the_right_to_write_is_asked_no_more(guarded: Shell) -> None:
    """Law: the present rights count; a client that lost them is not asked any more."""
    call_as(guarded, WRITER, 34, {}, producer_body("c1"), ALICE)
    begin_as(guarded, WRITER, "orders", ALICE)
    create(guarded, AccountSet(WRITER, "12345678", topic_perms={"orders": "SUB"}))
    assert asked(guarded, 60_000) == set()

    assert guarded.call(34, {}, producer_body("c7"), caller=WHITE).code == 0
    assert asked(guarded, 1_000) == {(WHITE.connection, "orders")}
    create(guarded, WhiteAddressesSet(()))
    assert asked(guarded, 120_000) == set()


@pytest.mark.parametrize(("immunity", "first_ms"), [("20", 20_000), ("2", 2_000), ("soon", 6_000)])
def test_a_message_may_say_how_long_its_producer_must_not_be_asked(
    orders: Shell, immunity: str, first_ms: int
) -> None:
    """Law: CHECK_IMMUNITY_TIME_IN_SECONDS delays the first check; a value that is no number is ignored."""
    begin(orders, CHECK_IMMUNITY_TIME_IN_SECONDS=immunity)

    orders.pass_time(first_ms - 100)
    assert questions(orders) == []
    orders.pass_time(700)

    assert len(questions(orders)) == 1


def test_after_the_last_check_a_copy_is_put_aside_and_nobody_is_asked(orders: Shell) -> None:
    """Law: after the last check a copy is put aside and the half message is given up, in one proposal."""
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


def test_a_late_loss_of_a_former_term_puts_no_second_copy_aside(orders: Shell) -> None:
    """Law: a late loss of a former term's proposal puts no second copy aside."""
    begin(orders, b"half")
    orders.pass_time(7_000 + 14 * 61_000, step=1_000)
    while not any(isinstance(r, HalfGivenUp) for each in orders.pending for r in each.records):
        orders.settle()
        orders.wall_ms += 1_000
        orders.run(orders.core.tick(orders.now))
    former, orders.pending = orders.pending, []
    orders.run(orders.core.become_follower(leader_known=True))
    orders.core.proposals_lost()
    orders.lead()
    orders.run(orders.core.tick(orders.now))
    for each in former:
        if each.lost is not None:
            orders.run(each.lost(None))
    orders.wall_ms += 1_000
    orders.run(orders.core.tick(orders.now))
    orders.settle()

    assert len(messages(pull(orders, topic="TRANS_CHECK_MAX_TIME_TOPIC"))) == 1


def test_a_late_commit_of_a_given_up_transaction_gives_its_one_copy(orders: Shell) -> None:
    """Law: a late commit of a given-up transaction delivers the message once."""
    half = begin(orders, b"half")
    orders.pass_time(16 * 62_000, step=1_000)
    assert list(orders.state.transactions.given_up) == [0]

    assert end(orders, half, COMMIT).code == 0
    end(orders, half, COMMIT)

    assert found(orders) == [b"half"]


def test_an_administrator_has_a_given_up_transaction_asked_about_again(orders: Shell) -> None:
    """Law: 323 with the id of the copy or of the half message starts its checks again; it is still delivered once."""
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
    """Law: 323 for a message that is no half message is refused and says which ids are meant."""
    reply = orders.call(323, {"msgId": message_id})

    assert (reply.code, bool(reply.remark)) == (1, True)


# -- fail-over ---------------------------------------------------------------------------------------


def test_checks_are_counted_on_after_a_fail_over() -> None:
    """Law: a new leader continues the count of checks and asks at the next interval."""
    orders = with_orders(Shell().lead())
    begin(orders)
    orders.pass_time(7_000)
    assert len(questions(orders)) == 1

    successor = orders.restart().lead()
    join(successor, caller=BOB)
    successor.pass_time(50_000, step=1_000)
    assert questions(successor) == []
    successor.pass_time(12_000, step=1_000)

    ((_, question),) = questions(successor)
    message = decode_record(question.body)
    assert decode_properties(message.properties)["TRANSACTION_CHECK_TIMES"] == "2"


def test_an_end_that_was_applied_before_the_fail_over_is_not_repeated_after_it() -> None:
    """Law: a commit applied before a change of leader and repeated after it delivers one copy."""
    orders = with_orders(Shell().lead())
    half = begin(orders, b"half")
    end(orders, half, COMMIT)

    successor = orders.restart().lead()
    reply = end(successor, half, COMMIT)

    assert reply.code == 0
    assert found(successor) == [b"half"]


def test_transactions_can_be_shown(orders: Shell) -> None:
    """Law: the status shows the number of open transactions, the oldest time, and the groups."""
    begin(orders, key="U1")
    begin(orders, key="U2")

    assert orders.core.group_status()["transactions"] == {
        "open": 2,
        "givenUp": 0,
        "oldestMillis": START_MS,
        "groups": {GROUP: {"open": 2, "givenUp": 0}},
    }


def test_the_oldest_transaction_is_shown_though_it_was_resumed(orders: Shell) -> None:
    """Law: the oldest transaction is shown even after it was resumed, which moves it in the table."""
    half = begin(orders, key="U1")
    orders.pass_time(70_000, step=1_000)
    begin(orders, key="U2")
    join(orders)
    orders.pass_time(2_000)
    assert orders.state.transactions.open[0].checks

    assert orders.call(323, {"msgId": f"C000026400002A9F{half[1]:016X}"}).code == 0

    assert list(orders.state.transactions.open) == [1, 0]
    assert orders.core.group_status()["transactions"]["oldestMillis"] == START_MS


def test_the_producer_of_a_restored_half_is_asked_however_old_the_backup_is() -> None:
    """Law: the producer of a restored half message is asked, however old the backup;
    it is given up a retention time after the restore.
    """
    former = with_orders(Shell(settings(storage=StorageSettings(retention_ms=100_000))).lead())
    begin(former, b"half")
    former.wall_ms += 1_000_000

    shell = former.restored().lead()
    shell.pass_time(99_000, step=1_000)
    waits = len(shell.state.transactions.open)
    join(shell)
    shell.pass_time(500)
    asked = len(questions(shell))
    shell.pass_time(2_000, step=500)

    assert (waits, asked) == (1, 1)
    assert shell.state.transactions.open == {}
    assert len(shell.state.transactions.given_up) == 1


# -- retention and timers ----------------------------------------------------------------------------


@pytest.mark.parametrize("immunity", ["", "999999999"])
def test_open_transactions_keep_their_messages_and_given_up_ones_do_not(immunity: str) -> None:
    """Law: retention keeps the messages from the oldest open half message on;
    one as old as the retention time is given up.
    """
    storage = StorageSettings(retention_ms=100_000)
    shell = Shell(settings(storage=storage, timers=TimerSettings(retention_scan_ms=1_000))).lead()
    create(shell, TopicSet("orders", 1, 1))
    half = begin(shell, b"half", CHECK_IMMUNITY_TIME_IN_SECONDS=immunity)
    shell.run(shell.core.connection_closed(ALICE.connection))

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
    """Law: time-out, interval and number of checks are settings."""
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
    """Law: a half message and the record that opens its transaction are one entry, with all that a later leader needs."""
    orders.proposed.clear()
    half = begin(orders, queue=1)

    appended, opened = orders.proposed
    assert isinstance(appended, Append)
    assert opened == HalfOpened(half[0], half[1], GROUP, "orders", "U1", START_MS)


def test_a_check_has_the_fields_of_a_captured_one(orders: Shell) -> None:
    """Law: a check has the same header and properties as a captured one of RocketMQ 4.9.8, and is one-way."""
    (captured,) = [
        frame for frame in frames() if frame.code == 39 and frame.variant == "broker-to-client"
    ]
    (theirs,) = FrameDecoder().receive_data(captured.wire)
    begin(orders, TAGS="tx", WAIT="false")
    orders.pass_time(7_000)

    ((_, ours),) = questions(orders)

    assert set(ours.ext) - {"topic"} == set(theirs.ext)  # 5.x sends the topic too.
    assert ours.is_oneway
    # 5.x stores the region with each message.
    region = {"MSG_REGION", "TRACE_ON"}
    assert set(decode_properties(decode_record(ours.body).properties)) - region == set(
        decode_properties(decode_record(theirs.body).properties)
    )


def test_one_look_sends_no_more_bytes_than_one_proposal_and_counts_no_other_checks(
    orders: Shell,
) -> None:
    """Law: one look sends no more bytes than a proposal holds, and counts only the checks that it sends."""
    for number in range(3):
        begin(orders, bytes(SIZE_MAX * 5 // 8), key=f"U{number}")
    orders.wall_ms += 6_000

    seen = []
    for _ in range(3):
        orders.pass_time(500)
        checks = [half.checks for half in orders.state.transactions.open.values()]
        seen.append((len(questions(orders)), checks))

    assert seen == [(1, [1, 0, 0]), (1, [1, 1, 0]), (1, [1, 1, 1])]


def test_one_look_asks_about_a_limited_number_and_the_next_about_the_others(
    orders: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: one look asks about a limited number of half messages; the next ones follow."""
    monkeypatch.setattr("orderlymq_broker.processors.transactions.checks.COUNT_MAX", 3)
    for number in range(8):
        begin(orders, key=f"U{number}")
    orders.wall_ms += 10_000
    orders.monotonic_ms += 10_000

    counts = []
    for _ in range(4):
        orders.pass_time(500, step=500)
        counts.append(len(questions(orders)))

    assert counts == [3, 3, 2, 0]
