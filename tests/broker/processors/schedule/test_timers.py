"""Timer messages: RocketMQ 5's properties that set a delivery time for a single message."""

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from orderlymq_broker.processors.schedule.delaylevels import COUNT_MAX, SIZE_MAX
from orderlymq_broker.processors.schedule.timers import ENDING_MAX
from orderlymq_broker.processors.send.batches import READ_COUNT_MAX
from orderlymq_broker.settings import StorageSettings, TimerSettings
from orderlymq_broker.state.records import GroupSet, TopicDeleted, TopicSet
from orderlymq_broker.state.schedule.timers import decode_timer
from orderlymq_broker.store.kv import Family
from orderlymq_broker.store.layout import Table, table_bounds
from orderlymq_protocol.message.properties import decode_properties
from orderlymq_protocol.message.record import StoredMessage
from tests.broker.processors.driver import START_MS, Shell, settings
from tests.broker.processors.halves import COMMIT, begin, end
from tests.broker.processors.requests import (
    STORED_WITH,
    create,
    messages,
    properties,
    pull,
    send,
    send_ext,
)
from tests.broker.processors.send.test_batches import batch_body
from tests.broker.store.memory import MeasuringStore, ScanningStore

DAY_MS = 24 * 3_600_000


@pytest.fixture
def timed(shell: Shell) -> Shell:
    """A leader with the topic orders."""
    return with_orders(shell)


def with_orders(shell: Shell) -> Shell:
    create(shell, TopicSet("orders", 4, 4), GroupSet("billing"))
    return shell


def delivered(shell: Shell, queue: int = 0) -> list[StoredMessage]:
    reply = pull(shell, queue=queue)
    return messages(reply) if reply.body else []


def delivered_bodies(shell: Shell) -> list[bytes]:
    return [message.body for message in delivered(shell)]


def rows(shell: Shell) -> int:
    """Return the number of rows in the timers' index."""
    return sum(
        len(shell.store.scan(Family.TABLES, *table_bounds(table), limit=10_000))
        for table in (Table.TIMERS, Table.TIMER_PLACES)
    )


@pytest.mark.parametrize(
    "asked",
    [
        {"TIMER_DELAY_SEC": "7"},
        {"TIMER_DELAY_MS": "7000"},
        {"TIMER_DELIVER_MS": str(START_MS + 7_000)},
        {"TIMER_DELAY_SEC": "7", "TIMER_DELAY_MS": "1", "TIMER_DELIVER_MS": "1"},
    ],
)
def test_a_timer_message_comes_at_its_time_and_not_before(
    timed: Shell, asked: dict[str, str]
) -> None:
    """Law: a timer message is delivered at its time and never before; the properties have RocketMQ's order of precedence."""
    reply = send(timed, body=b"later", props=properties(KEYS="k", **asked), e=2)
    assert (reply.code, reply.ext["queueId"]) == (0, "2")

    timed.pass_time(6_900)
    assert delivered(timed, 2) == []
    timed.pass_time(300)
    (message,) = delivered(timed, 2)

    assert message.body == b"later"
    assert message.store_timestamp >= START_MS + 7_000
    told = decode_properties(message.properties)
    assert told == {"KEYS": "k", "TIMER_OUT_MS": str(START_MS + 7_000), **STORED_WITH, **asked}
    assert rows(timed) == 0


def test_those_that_are_due_together_keep_the_order_of_their_times(timed: Shell) -> None:
    """Law: timers due in one tick are delivered by due time, then in the order of sending."""
    for body, after in ((b"c", 3_000), (b"a", 1_000), (b"b", 2_000), (b"b2", 2_000)):
        send(timed, body=body, props=properties(TIMER_DELAY_MS=str(after)))

    timed.wall_ms += 10_000
    timed.pass_time(100)

    assert delivered_bodies(timed) == [b"a", b"b", b"b2", b"c"]


@pytest.mark.parametrize("asked", [{"TIMER_DELAY_SEC": "0"}, {"TIMER_DELIVER_MS": "17"}])
def test_a_time_that_is_over_is_no_time(timed: Shell, asked: dict[str, str]) -> None:
    """Law: a message whose time is over already is stored in its queue immediately."""
    send(timed, props=properties(**asked))

    assert delivered_bodies(timed) == [b"paid"]


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"TIMER_DELAY_MS": "soon"}, 13),
        ({"TIMER_DELAY_MS": str(3 * DAY_MS + 1)}, 13),
        ({"TIMER_DELIVER_MS": str(START_MS + 3 * DAY_MS + 1)}, 13),
        ({"TIMER_DELAY_MS": "0", "TIMER_DEL_UNIQKEY": "K"}, 13),
    ],
)
def test_what_cannot_be_waited_for_is_refused(
    timed: Shell, asked: dict[str, str], code: int
) -> None:
    """Law: an impossible time is refused with 13, as RocketMQ's WHEEL_TIMER_MSG_ILLEGAL."""
    reply = send(timed, props=properties(**asked))

    assert (reply.code, timed.state.physical_end) == (code, 0)


def test_timers_can_be_switched_off() -> None:
    """Law: with timerWheelEnable false, timers are refused in RocketMQ's words; delay levels go on."""
    shell = with_orders(Shell(settings(timers=TimerSettings(timer_enable=False))).lead())

    reply = send(shell, props=properties(TIMER_DELAY_MS="1000"))

    assert (reply.code, "timerWheelEnable is false" in (reply.remark or "")) == (1, True)
    assert send(shell, props=properties(DELAY="1")).code == 0


def test_a_delay_level_beats_a_time(timed: Shell) -> None:
    """Law: a delay level wins over a time, and the time is removed, as in RocketMQ (HookUtils.checkIfTimerMessage)."""
    send(timed, props=properties(DELAY="1", TIMER_DELAY_SEC="60"))

    timed.pass_time(1_200)

    (message,) = delivered(timed)
    assert "TIMER_DELAY_SEC" not in decode_properties(message.properties)


def test_what_has_waited_once_does_not_wait_again(timed: Shell) -> None:
    """Law: a message with TIMER_OUT_MS has waited already, so a consumer that forwards it has it stored immediately."""
    send(timed, props=properties(TIMER_DELAY_MS="5000", TIMER_OUT_MS="1"))

    assert delivered_bodies(timed) == [b"paid"]


def test_a_batch_may_hold_timer_messages(timed: Shell) -> None:
    """Law: messages of a batch may have different times."""
    body = batch_body((b"2", b"TIMER_DELAY_MS\x012000"), (b"1", b"TIMER_DELAY_MS\x011000"))

    assert timed.call(320, send_ext("orders", m="true"), body).code == 0

    timed.pass_time(1_300)
    assert delivered_bodies(timed) == [b"1"]
    timed.pass_time(1_000)
    assert delivered_bodies(timed) == [b"1", b"2"]


def test_a_committed_half_waits_from_its_commit_on(timed: Shell) -> None:
    """Law: a committed half message waits from its commit on; its transaction ends immediately."""
    half = begin(timed, TIMER_DELAY_MS="5000")
    timed.pass_time(3_000)

    assert end(timed, half, COMMIT).code == 0

    timed.pass_time(4_800)
    assert delivered(timed) == []
    timed.pass_time(400)
    assert delivered_bodies(timed) == [b"paid"]


def test_a_timer_message_is_cancelled_by_its_unique_key(timed: Shell) -> None:
    """Law: a timer is cancelled by its unique key; neither it nor the cancelling message is delivered, others are."""
    create(timed, TopicSet("other", 1, 1))
    key = {"UNIQ_KEY": "K1", "TIMER_DELAY_MS": "5000"}
    send(timed, props=properties(**key))
    send(timed, topic="other", props=properties(**key))
    send(timed, body=b"stays", props=properties(UNIQ_KEY="K2", TIMER_DELAY_MS="5000"))

    cancel = properties(UNIQ_KEY="K3", TIMER_DELAY_MS="5000", TIMER_DEL_UNIQKEY="K1")
    assert send(timed, body=b"cancel", props=cancel).code == 0

    timed.pass_time(6_000)
    assert delivered_bodies(timed) == [b"stays"]
    assert [m.body for m in messages(pull(timed, topic="other"))] == [b"paid"]
    assert rows(timed) == 0
    assert timed.core.context.counters["timers_cancelled"] == 1


def test_a_message_whose_topic_is_gone_is_dropped(timed: Shell) -> None:
    """Law: a timer message whose topic is deleted is dropped and does not delay others."""
    create(timed, TopicSet("gone", 1, 1))
    send(timed, topic="gone", props=properties(TIMER_DELAY_MS="1000"))
    send(timed, props=properties(TIMER_DELAY_MS="1000"))
    create(timed, TopicDeleted("gone"))

    timed.pass_time(1_200)

    assert (delivered_bodies(timed), rows(timed)) == ([b"paid"], 0)


def test_a_new_leader_goes_on_with_the_timers() -> None:
    """Law: a new leader delivers waiting timers, once and in time."""
    timed = with_orders(Shell().lead())
    for number in range(5):
        send(timed, body=b"%d" % number, props=properties(TIMER_DELAY_MS=str(number * 1_000 + 500)))
    timed.pass_time(2_000)

    successor = timed.restart().lead()
    successor.pass_time(4_000)

    assert delivered_bodies(successor) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_clock_that_is_set_back_forgets_no_timer(timed: Shell) -> None:
    """Law: if the clock is set back, a timer due before already delivered ones is still delivered."""
    send(timed, body=b"1", props=properties(TIMER_DELAY_MS="1000"))
    timed.pass_time(1_500)
    send(timed, body=b"2", props=properties(TIMER_DELAY_MS="1000"))
    timed.pass_time(1_500)

    timed.wall_ms -= 60_000
    timed.pass_time(100)
    send(timed, body=b"3", props=properties(TIMER_DELAY_MS="1000"))
    timed.pass_time(1_500)

    assert delivered_bodies(timed) == [b"1", b"2", b"3"]


def test_retention_keeps_what_still_waits() -> None:
    """Law: retention keeps messages that still wait for their time."""
    shell = with_orders(Shell(settings(storage=StorageSettings(retention_ms=DAY_MS))).lead())
    send(shell, body=b"late", props=properties(TIMER_DELAY_MS=str(2 * DAY_MS)))
    for _ in range(3):
        send(shell, body=bytes(1 << 20), e=1)

    shell.pass_time(2 * DAY_MS + 1_000, step=DAY_MS // 4)
    shell.pass_time(11_000)

    assert delivered_bodies(shell) == [b"late"]
    assert shell.state.floor > 3 << 20


def test_more_than_one_tick_can_take_are_all_delivered(timed: Shell) -> None:
    """Law: more due timers than one tick can take are delivered in order over several ticks."""
    for number in range(0, 2_500, 50):
        body = batch_body(
            *(
                (b"%d" % (number + each), b"TIMER_DELIVER_MS\x01%d" % (START_MS + 5_000))
                for each in range(50)
            )
        )
        assert timed.call(320, send_ext("orders", m="true"), body).code == 0

    timed.pass_time(6_000)

    queue = timed.state.topics.by_name["orders"].queues[0]
    assert queue.next_offset == 2_500
    assert (timed.state.timers.count, timed.state.timers.checksum) == (0, 0)


def test_while_nothing_is_committed_a_limited_number_is_under_way(timed: Shell) -> None:
    """Law: while nothing commits, a limited number of due timers is proposed, because each scan would visit them again."""
    count = ENDING_MAX + 2_000
    entries = [(b"x", b"TIMER_DELIVER_MS\x01%d" % (START_MS + 60_000))] * count
    assert timed.call(320, send_ext("orders", m="true"), batch_body(*entries)).code == 0
    timed.wall_ms = START_MS + 60_000

    for _ in range(20):
        timed.monotonic_ms += 100
        timed.run(timed.core.tick(timed.now))
    ending = timed.core.context.view.timers_ending
    assert len(ending) == ENDING_MAX
    timed.settle()
    timed.pass_time(500)

    assert timed.state.topics.by_name["orders"].queues[0].next_offset == count


def test_cancelled_timers_of_later_make_no_room_for_more_at_a_time(timed: Shell) -> None:
    """Law: cancellations that are uncommitted do not let a turn deliver more timers than its limit."""
    later, soon = START_MS + 60_000, START_MS + 10_000
    count = COUNT_MAX + 500
    for due_ms in (later, soon):
        entries = [(b"x", b"TIMER_DELIVER_MS\x01%d" % due_ms)] * count
        assert timed.call(320, send_ext("orders", m="true"), batch_body(*entries)).code == 0
    pairs = timed.store.scan(Family.TABLES, *table_bounds(Table.TIMERS), limit=2 * count)
    waiting = [decode_timer(value) for _, value in pairs]
    cancelled = timed.core.timers.cancel([each for each in waiting if each.due_ms == later], 0)
    timed.wall_ms = soon

    timed.run(timed.core.tick(timed.now))
    handed_on = [proposal for proposal in timed.pending if proposal.records]
    assert [len(proposal.records) for proposal in handed_on] == [COUNT_MAX + 1]
    timed.core.timers.ended(cancelled, timed.core.context.view)
    timed.settle()
    timed.pass_time(500)

    assert timed.state.topics.by_name["orders"].queues[0].next_offset == count


@pytest.mark.parametrize("waiting", [True, False])
def test_looking_for_the_oldest_timer_passes_no_remains_of_those_that_have_ended(
    timed: Shell, waiting: bool
) -> None:
    """Law: finding the oldest timer does not scan the deleted rows of ended ones, which stay in RocksDB until compaction."""
    for number in range(8):
        send(timed, props=properties(UNIQ_KEY=f"U{number}", TIMER_DELAY_MS="1000"))
    if waiting:
        send(timed, props=properties(UNIQ_KEY="V", TIMER_DELAY_MS="60000"))
    timed.pass_time(1_200)
    timed.core.timers.first_waiting()
    send(timed, props=properties(UNIQ_KEY="W", TIMER_DELAY_MS="60000"))
    store = ScanningStore(timed.store)
    timed.core.context.reader = store

    oldest = timed.core.timers.first_waiting()

    (start,) = store.starts
    assert decode_timer(timed.store.get(Family.TABLES, start) or b"").physical == oldest


def test_large_messages_that_are_due_together_are_read_a_few_at_a_time() -> None:
    """Law: large due messages are read a few at a time, no more than one proposal holds."""
    store = MeasuringStore()
    shell = with_orders(Shell(store=store).lead())
    for _ in range(5):
        send(shell, body=bytes(SIZE_MAX * 3 // 8), props=properties(TIMER_DELAY_MS="1000"))

    shell.pass_time(2_000)

    assert shell.state.topics.by_name["orders"].queues[0].next_offset == 5
    assert store.largest_read <= SIZE_MAX


@pytest.mark.parametrize("under_way", [False, True])
def test_timers_of_a_batch_that_were_due_before_it_was_read_are_delivered(
    timed: Shell, under_way: bool
) -> None:
    """Law: timers of a large batch are delivered even if they were due before the batch was read to its end."""
    for number in range(1, 4):
        send(timed, props=properties(TIMER_DELAY_MS=str(number * 1_000)))
    late = [(b"late", b"TIMER_DELAY_MS\x01500")] * (READ_COUNT_MAX + 1)
    opaque = timed.submit(320, send_ext("orders", m="true"), batch_body(*late))
    for _ in range(25):
        timed.wall_ms += 100
        timed.monotonic_ms += 100
        timed.run(timed.core.tick(timed.now))
        if timed.pending:
            timed.turn()
    assert timed.state.timers.count == 1

    if under_way:
        # The tick's message shares the batch's entry, which it has not seen.
        timed.wall_ms += 600
        timed.monotonic_ms += 600
        timed.run(timed.core.tick(timed.now))
    timed.settle()
    timed.pass_time(2_000)

    reply = timed.reply_to(opaque)
    assert reply is not None
    assert reply.code == 0
    assert timed.state.topics.by_name["orders"].queues[0].next_offset == len(late) + 3
    assert timed.state.timers.count == 0


@hypothesis_settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("send"), st.integers(1, 3_000)),
            st.tuples(st.just("cancel"), st.integers(0, 9)),
            st.tuples(st.just("recall"), st.integers(0, 9)),
            st.tuples(st.just("time"), st.integers(50, 1_500)),
            st.tuples(st.just("tick"), st.integers(0, 200)),
            st.tuples(st.just("turn"), st.just(0)),
            st.tuples(st.just("lose"), st.just(0)),
        ),
        max_size=40,
    )
)
def test_whatever_happens_each_acknowledged_timer_is_delivered_once_or_cancelled(
    steps: list[tuple[str, int]],
) -> None:
    """Law: over sends, cancellations, recalls, commits and lost leaderships in any order, each acknowledged timer is delivered once or cancelled.

    A message recalled with success is never delivered.
    """
    shell = with_orders(Shell().lead())
    sent: dict[str, int] = {}
    recalls: list[tuple[str, int]] = []
    due: dict[str, int] = {}
    for kind, number in steps:
        match kind:
            case "send":
                name = f"T{len(sent)}"
                due[name] = shell.wall_ms + number
                asked = properties(UNIQ_KEY=name, TIMER_DELAY_MS=str(number))
                sent[name] = shell.submit(310, send_ext("orders", asked), name.encode())
            case "cancel":
                asked = properties(TIMER_DELAY_MS="9000", TIMER_DEL_UNIQKEY=f"T{number}")
                shell.submit(310, send_ext("orders", asked), b"cancel")
            case "recall":
                name = f"T{number}"
                answer = shell.reply_to(sent[name]) if name in sent else None
                if answer is not None and answer.code == 0:
                    ext = {"topic": "orders", "recallHandle": answer.ext["recallHandle"]}
                    recalls.append((name, shell.submit(370, ext)))
            case "time":
                shell.pass_time(number)
            case "tick":
                shell.wall_ms += number
                shell.monotonic_ms += number
                shell.run(shell.core.tick(shell.now))
            case "turn":
                if shell.pending:
                    shell.turn()
            case _:
                shell.lose_proposals()
                shell.follow()
                shell.lead()
    shell.settle()
    shell.pass_time(12_000)

    acknowledged = {
        name
        for name, opaque in sent.items()
        if (reply := shell.reply_to(opaque)) is not None and reply.code == 0
    }
    got = delivered(shell) if shell.state.topics.by_name["orders"].queues else []
    bodies = [message.body.decode() for message in got]
    assert len(bodies) == len(set(bodies))
    assert set(bodies) <= acknowledged
    assert all(message.store_timestamp >= due[message.body.decode()] for message in got)
    cancelled = {f"T{number}" for kind, number in steps if kind in ("cancel", "recall")}
    assert acknowledged - set(bodies) <= cancelled
    recalled = {
        name
        for name, opaque in recalls
        if (reply := shell.reply_to(opaque)) is not None and reply.code == 0
    }
    assert not recalled & set(bodies)
    assert rows(shell) == 0
    shell.restart()
    shell.replay()


def test_replicas_that_lost_a_row_are_distinguished(timed: Shell) -> None:
    """Law: the digest contains the number and checksum of timers, so that a replica that lost a row differs."""
    send(timed, props=properties(TIMER_DELAY_MS="5000"))
    before = timed.state.digest()

    timed.state.timers.checksum ^= 1

    assert timed.state.digest() != before
    timed.state.timers.checksum ^= 1
