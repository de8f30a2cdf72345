"""Retention by time and by size."""

from collections.abc import Iterator
from typing import NoReturn

import pytest

from orderlymq_broker.core.effects import Propose
from orderlymq_broker.processors.topics.retention import (
    HELD_SIZE,
    OWED_PER_TICK,
    QUEUES_PER_TICK,
    RetentionService,
)
from orderlymq_broker.settings import StorageSettings
from orderlymq_broker.state.records import GroupSet, RetentionAdvanced, TopicDeleted, TopicSet
from orderlymq_broker.state.topics.queues import Queue
from orderlymq_broker.state.transactions.halfrecords import HalfGivenUp, HalvesChecked
from orderlymq_broker.store.kv import Batch, Family, StoreFailed
from orderlymq_broker.store.layout import decode_u64, queue_key
from tests.broker.processors.driver import START_MS, Shell, settings
from tests.broker.processors.halves import COMMIT, begin, end, found, stored_at
from tests.broker.processors.readcounter import ReadCounter
from tests.broker.processors.requests import bodies, create, properties, pull, send, send_ext

HOUR_MS = 3_600_000
MIB = 1 << 20


def kept(shell: Shell) -> int:
    """Return the number of messages in the store."""
    return len(shell.store.scan(Family.MESSAGES, b"", b"\xff" * 9, limit=10_000))


def filled(storage: StorageSettings) -> Shell:
    shell = Shell(settings(storage=storage)).lead()
    create(shell, TopicSet("orders", 2, 2), TopicSet("quiet", 1, 1), GroupSet("billing"))
    for number in range(40):
        send(shell, body=bytes(100_000), e=number % 2)
        shell.wall_ms += 60_000
    return shell


def test_messages_older_than_the_retention_go_with_their_queue_entries() -> None:
    """Law: messages older than the retention time go with their queue entries; offsets stay,
    and a pull below is sent to the new begin.
    """
    shell = filled(StorageSettings(retention_ms=20 * 60_000 + 1_000))

    shell.pass_time(1_000)

    assert kept(shell) == 20
    assert shell.call(31, {"topic": "orders", "queueId": "0"}).ext == {"offset": "10"}
    early = pull(shell, offset=3)
    assert (early.code, early.ext["nextBeginOffset"]) == (21, "10")
    assert len(bodies(pull(shell, offset=10))) == 2
    assert shell.restart().state.topics.by_name["orders"].queues[1].min_offset == 10


def test_what_was_restored_is_as_old_as_the_restore_is() -> None:
    """Law: restored messages and known sends count as old as the restore,
    so an old backup stays for the whole retention time.
    """
    storage = StorageSettings(retention_ms=HOUR_MS, dedup_window_ms=HOUR_MS)
    former = Shell(settings(storage=storage)).lead()
    create(former, TopicSet("orders", 2, 2, order=True))
    send(former, body=bytes(MIB), props=properties(UNIQ_KEY="U0"))
    former.wall_ms += 100 * HOUR_MS

    shell = former.restored().lead()
    shell.pass_time(HOUR_MS // 2, step=10_000)
    repeated = send(shell, body=bytes(MIB), props=properties(UNIQ_KEY="U0")).ext["queueOffset"]
    new = send(shell, body=b"new").ext["queueOffset"]
    shell.pass_time(HOUR_MS // 2, step=10_000)
    during = (kept(shell), len(shell.state.dedup))
    shell.pass_time(60_000, step=10_000)

    assert (repeated, new) == ("0", "1")
    assert during == (2, 1)
    assert (kept(shell), len(shell.state.dedup)) == (1, 0)


def test_messages_beyond_the_size_go() -> None:
    """Law: beyond the size limit the oldest messages go, at message boundaries."""
    shell = filled(StorageSettings(retention_size=2 * MIB))

    shell.pass_time(1_000)

    assert kept(shell) == 20
    assert shell.state.floor >= shell.state.physical_end - 2 * MIB


def test_a_queue_whose_messages_are_all_gone_goes_on_where_it_was() -> None:
    """Law: a queue whose messages are all gone continues its offsets, also after a restart."""
    shell = filled(StorageSettings(retention_ms=HOUR_MS))
    shell.wall_ms += 2 * HOUR_MS
    shell.pass_time(1_000)
    assert kept(shell) == 0

    successor = shell.restart().lead()

    assert send(successor).ext["queueOffset"] == "20"
    assert successor.call(30, {"topic": "orders", "queueId": "0"}).ext == {"offset": "21"}
    assert successor.call(31, {"topic": "orders", "queueId": "0"}).ext == {"offset": "20"}


@pytest.mark.parametrize("from_the_start", [True, False])
def test_a_leader_whose_clock_is_ahead_drops_nothing_too_early(*, from_the_start: bool) -> None:
    """Law: if the leader's clock is ahead, older messages are kept for the retention time of its leadership."""
    storage = StorageSettings(retention_ms=HOUR_MS, dedup_window_ms=HOUR_MS)
    former = Shell(settings(storage=storage)).lead()
    create(former, TopicSet("orders", 1, 1, order=True))
    send(former, body=bytes(MIB), props=properties(UNIQ_KEY="U"))
    shell = former.restart()
    ahead_ms = shell.wall_ms + 100 * HOUR_MS
    if from_the_start:
        shell.set_clock(ahead_ms)
    shell.lead()
    shell.set_clock(ahead_ms)

    shell.pass_time(10 * 60_000, step=10_000)
    early = kept(shell)
    repeated = send(shell, body=bytes(MIB), props=properties(UNIQ_KEY="U")).ext["queueOffset"]
    shell.pass_time(10 * 60_000, step=10_000)
    send(shell, body=b"new")
    shell.pass_time(41 * 60_000, step=10_000)

    assert (early, repeated) == (1, "0")
    assert bodies(pull(shell, offset=1)) == [b"new"]
    assert kept(shell) == 1


def test_leader_that_leads_twice_by_an_unconfirmed_clock_drops_nothing_too_early() -> None:
    """Law: this holds if it leads twice with an unconfirmed clock; its own message's store time proves nothing."""
    storage = StorageSettings(retention_ms=HOUR_MS, dedup_window_ms=HOUR_MS)
    former = Shell(settings(storage=storage)).lead()
    create(former, TopicSet("orders", 1, 1, order=True))
    send(former, body=bytes(MIB), props=properties(UNIQ_KEY="U"))
    first = former.restart()
    first.set_clock(first.wall_ms + 100 * HOUR_MS)
    first.is_confirmed = False
    first.lead()
    send(first, body=bytes(MIB), props=properties(UNIQ_KEY="V"))

    shell = first.restart().lead()
    shell.pass_time(59 * 60_000, step=10_000)
    early, in_window = kept(shell), len(shell.state.dedup)
    shell.pass_time(3 * 60_000, step=10_000)

    assert (early, in_window) == (2, 2)
    assert kept(shell) == 0


def test_what_an_unconfirmed_clock_stored_in_the_past_is_kept() -> None:
    """Law: a leader with an unconfirmed clock that is behind stores no message before those of former leaders,
    so the next leader drops nothing too early; time passes in its stamps as it does in its leadership.
    """
    storage = StorageSettings(retention_ms=HOUR_MS, dedup_window_ms=HOUR_MS)
    former = Shell(settings(storage=storage)).lead()
    create(former, TopicSet("orders", 1, 1, order=True), TopicSet("bills", 1, 1, order=True))
    send(former, body=bytes(MIB))
    right_ms = former.wall_ms
    behind = former.restart()
    behind.set_clock(right_ms - 45 * HOUR_MS)
    behind.is_confirmed = False
    behind.lead()
    behind.pass_time(30 * 60_000, step=10_000)
    send(behind, topic="bills", body=bytes(MIB), props=properties(UNIQ_KEY="U"))
    stored_ms = behind.state.topics.by_name["bills"].queues[0].last_timestamp

    shell = behind.restart()
    shell.set_clock(right_ms + 30 * 60_000)
    shell.is_confirmed = True
    shell.lead()
    shell.pass_time(20 * 60_000, step=10_000)
    early = kept(shell), len(shell.state.dedup)
    shell.pass_time(41 * 60_000, step=10_000)

    assert right_ms + 30 * 60_000 <= stored_ms < right_ms + 31 * 60_000
    assert early == (2, 1)
    assert (kept(shell), len(shell.state.dedup)) == (0, 0)


def test_messages_stored_by_a_clock_that_was_ahead_go_in_time() -> None:
    """Law: messages stored by a clock that was years ahead go when their leader has led for the retention time since."""
    shell = Shell(settings(storage=StorageSettings(retention_ms=HOUR_MS))).lead()
    create(shell, TopicSet("orders", 1, 1, order=True))
    right_ms = shell.wall_ms
    shell.set_clock(right_ms + 87_600 * HOUR_MS)
    send(shell, body=bytes(MIB))
    shell.pass_time(1_000)
    shell.set_clock(right_ms + 1_000)
    shell.pass_time(30 * 60_000, step=10_000)
    send(shell, body=bytes(MIB))
    shell.pass_time(29 * 60_000, step=10_000)

    early = kept(shell)
    shell.pass_time(5 * 60_000, step=10_000)
    first_gone = kept(shell)
    shell.pass_time(30 * 60_000, step=10_000)

    assert (early, first_gone, kept(shell)) == (2, 1, 0)


def test_what_waits_for_its_delay_is_kept_and_delivered() -> None:
    """Law: a delayed message is kept until it is delivered."""
    shell = filled(StorageSettings(retention_ms=HOUR_MS))
    send(shell, body=b"later", props=properties(DELAY="18"), e=0)
    for _ in range(20):
        send(shell, body=bytes(100_000), e=1)
    shell.wall_ms += HOUR_MS + 60_000
    shell.pass_time(1_000)
    assert kept(shell) == 21

    shell.wall_ms += HOUR_MS
    shell.pass_time(1_000)

    reply = pull(shell, offset=20)
    assert bodies(reply) == [b"later"]


@pytest.mark.parametrize("kind", ["level", "timer", "timer whose turn is before", "half"])
def test_a_full_disk_hands_on_what_keeps_retention_from_making_room(kind: str) -> None:
    """Law: on a full disk, messages that keep retention from freeing space are delivered, unless nothing can be written."""
    shell = Shell(settings(storage=StorageSettings(retention_ms=HOUR_MS))).lead()
    create(shell, TopicSet("orders", 2, 2), GroupSet("billing"))
    topic = "TRANS_CHECK_MAX_TIME_TOPIC" if kind == "half" else "orders"
    second_ms = HOUR_MS // 2 if kind == "timer whose turn is before" else HOUR_MS + 1_000
    for body, after_ms in ((b"first", HOUR_MS), (b"second", second_ms)):
        if kind == "half":
            begin(shell, body, key=body.decode())
        else:
            waits = {"DELAY": "18"} if kind == "level" else {"TIMER_DELAY_MS": str(after_ms)}
            send(shell, body=body, props=properties(**waits))
        for _ in range(HELD_SIZE // MIB + 1):
            send(shell, body=bytes(MIB), e=1)
    shell.wall_ms += 3 * HOUR_MS

    shell.core.set_environment(1.0, {})
    shell.pass_time(2_000)
    assert found(shell, topic) == []
    shell.core.set_environment(0.91, {})
    shell.pass_time(2_000)
    assert found(shell, topic) == [b"first"]
    shell.pass_time(25_000)

    assert found(shell, topic) == [b"first", b"second"]
    assert kept(shell) == 2
    assert send(shell).code == 14


def test_a_round_over_many_queues_is_cut_into_steps() -> None:
    """Law: a round of retention is split over ticks: first queues, a few per tick, then messages,
    so that no entry lacks its message.
    """
    shell = Shell(settings(storage=StorageSettings(retention_ms=HOUR_MS))).lead()
    create(shell, TopicSet("wide", 100, 100))
    for queue in range(100):
        shell.submit(310, send_ext("wide", e=queue), bytes(20_000))
    shell.settle()
    shell.wall_ms += 2 * HOUR_MS
    before = len(shell.proposed)

    shell.pass_time(2_000)

    rounds = [each for each in shell.proposed[before:] if isinstance(each, RetentionAdvanced)]
    assert [(len(each.queues), bool(each.floor)) for each in rounds] == [
        *((count, False) for count in (32, 32, 32, 4)),
        (0, True),
    ]
    assert kept(shell) == 0


def test_a_transaction_that_is_resumed_during_a_round_stays() -> None:
    """Law: a transaction resumed during a round of retention keeps its message, and the round ends."""
    shell = Shell(settings(storage=StorageSettings(retention_size=MIB))).lead()
    create(shell, TopicSet("orders", 1, 1), TopicSet("wide", 100, 100))
    offset, physical = begin(shell)
    create(shell, HalvesChecked((offset,)), HalfGivenUp(offset))
    for queue in range(100):
        shell.submit(310, send_ext("wide", e=queue), bytes(20_000))
    shell.settle()

    while not rounds(shell):
        shell.pass_time(100)
    resumed = shell.call(323, {"msgId": f"C000026400002A9F{physical:016X}"})
    shell.pass_time(30_000)

    assert (resumed.code, sorted(shell.state.transactions.open)) == (0, [offset])
    assert len(stored_at(shell, physical)) == 1
    assert len(rounds(shell)) <= 3, "a round that cannot go on must end"
    assert end(shell, (offset, physical), COMMIT).code == 0
    shell.pass_time(60_000)
    assert kept(shell) < 60


def rounds(shell: Shell) -> list[RetentionAdvanced]:
    """Return the steps that the leader has proposed so far."""
    return [each for each in shell.proposed if isinstance(each, RetentionAdvanced)]


@pytest.mark.parametrize("is_first", [True, False])
def test_a_transaction_is_resumed_before_its_message_goes_or_not_at_all(is_first: bool) -> None:
    """Law: if retention and a resumption are both uncommitted, the first in the log counts,
    and the administrator learns which.
    """
    shell = Shell(settings(storage=StorageSettings(retention_ms=HOUR_MS))).lead()
    create(shell, TopicSet("orders", 1, 1))
    offset, physical = begin(shell)
    create(shell, HalvesChecked((offset,)), HalfGivenUp(offset))
    gone = Propose([RetentionAdvanced((), shell.state.physical_end)], lambda *_: [])

    if not is_first:
        shell.run([gone])
    resumed = shell.submit(323, {"msgId": f"C000026400002A9F{physical:016X}"})
    if is_first:
        shell.run([gone])
    shell.settle()

    reply = shell.reply_to(resumed)
    assert reply is not None
    assert (reply.code == 0, list(shell.state.transactions.open)) == (is_first, [offset] * is_first)
    assert kept(shell) == is_first


class _Unseen(dict[int, Queue]):
    """The queues of a topic whose turn has not come; they fail if they are read."""

    def values(self) -> NoReturn:
        raise AssertionError("a round looks at all topics when it begins")


def test_a_round_looks_at_no_topic_before_its_turn() -> None:
    """Law: a round does not look at a topic before its turn, because a list of all queues takes too long."""
    shell = Shell(settings(storage=StorageSettings(retention_ms=HOUR_MS))).lead()
    create(shell, TopicSet("first", QUEUES_PER_TICK, QUEUES_PER_TICK), TopicSet("late", 1, 1))
    for queue in range(QUEUES_PER_TICK):
        shell.submit(310, send_ext("first", e=queue), bytes(50_000))
    send(shell, "late")
    shell.wall_ms += 2 * HOUR_MS
    late = shell.state.topics.by_name["late"]
    queues, late.queues = late.queues, _Unseen(late.queues)

    shell.pass_time(100)

    assert shell.state.topics.by_name["first"].queues[0].min_offset == 1
    late.queues = queues
    shell.pass_time(1_000)
    assert kept(shell) == 0


def test_a_topic_that_is_deleted_within_a_round_is_passed_over() -> None:
    """Law: a topic deleted during a round is skipped."""
    shell = Shell(settings(storage=StorageSettings(retention_ms=HOUR_MS))).lead()
    count = 2 * QUEUES_PER_TICK
    create(shell, TopicSet("gone", count, count), TopicSet("last", 1, 1))
    for queue in range(count):
        shell.submit(310, send_ext("gone", e=queue), bytes(50_000))
    send(shell, "last")
    shell.state.tail.resize(0)
    shell.wall_ms += 2 * HOUR_MS
    queues = shell.state.topics.by_name["gone"].queues

    shell.pass_time(100)
    seen = [queue.min_offset for queue in queues.values()]
    create(shell, TopicDeleted("gone"))
    shell.pass_time(2_000)

    assert sum(seen) == QUEUES_PER_TICK
    assert kept(shell) == 0


def test_nothing_is_trimmed_up_to_an_entry_that_is_missing() -> None:
    """Law: if the entry where a trim would end is missing, files of the store are lost, and nothing is trimmed."""
    shell = filled(StorageSettings(retention_ms=29 * 60_000))
    shell.state.tail.resize(0)
    queue = shell.state.topics.by_name["orders"].queues[0]
    gone = Batch()
    gone.delete(Family.CONSUME_QUEUE, queue_key(queue.topic_id, 0, 10))
    shell.store.write(gone, sync=True)

    with pytest.raises(StoreFailed, match="has no entry at offset 10"):
        shell.pass_time(1_000)

    assert queue.min_offset == 0


def test_the_duplicate_window_is_bounded_by_count() -> None:
    """Law: the window of known sends is limited by number; the oldest leave first."""
    shell = Shell(settings(storage=StorageSettings(dedup_window_count=10))).lead()
    create(shell, TopicSet("orders", 1, 1, order=True))
    for number in range(25):
        send(shell, props=properties(UNIQ_KEY=f"U{number}"))

    shell.pass_time(2_000)

    assert len(shell.state.dedup) == 10
    assert send(shell, props=properties(UNIQ_KEY="U24")).ext["queueOffset"] == "24"
    assert send(shell, props=properties(UNIQ_KEY="U0")).ext["queueOffset"] == "25"
    shell.restart()


def test_the_floor_is_found_by_whole_messages() -> None:
    """Law: the floor is searched by whole messages, with as many reads as halving their number takes.

    Halving bytes would read a message of 4 MiB twenty times.
    """
    shell = Shell(settings(storage=StorageSettings(retention_ms=HOUR_MS))).lead()
    create(shell, TopicSet("orders", 2, 2))
    count = 33
    for number in range(count):
        send(shell, body=bytes(1 + 100_000 * (number % 3)), e=number % 2)
        shell.wall_ms += 1_000
    pairs = shell.store.scan(Family.MESSAGES, b"", b"\xff" * 9, limit=10_000)
    begins = [decode_u64(key) for key, _ in pairs]
    reader = shell.core.context.reader = ReadCounter(shell.store)

    for number in range(count + 1):
        reader.count = 0
        floor = shell.core.retention.find_floor(START_MS + 1_000 * number + HOUR_MS)
        expected = begins[number] if number < count else shell.state.physical_end
        # A step of less than STEP_SIZE_MIN is not done.
        assert floor in (0, expected)
        assert floor == expected or expected < MIB
        assert reader.count <= 2 + count.bit_length() * 2


@pytest.mark.parametrize("last", [0, None], ids=["owed", "complete"])
def test_what_lanes_owe_in_thousands_of_queues_is_looked_at_some_at_a_time(
    last: int | None,
) -> None:
    """Law: lanes of thousands of queues are looked at some per tick, and the last one counts as well."""
    shell = Shell(settings(storage=StorageSettings(retention_ms=HOUR_MS))).lead()
    create(shell, TopicSet("orders", 1, 1))
    send(shell, body=bytes(2 * MIB))
    shell.wall_ms += 2 * HOUR_MS
    looked_at = []

    def owed() -> Iterator[int | None]:
        for number in range(2 * OWED_PER_TICK + 1):
            looked_at.append(number)
            yield last if number == 2 * OWED_PER_TICK else None

    service = RetentionService(shell.core.context, owed=owed)
    service.start(shell.now)
    counts = []
    for _ in range(5):
        shell.run(service.tick(shell.now))
        shell.settle()
        counts.append(len(looked_at))

    assert counts[:3] == [OWED_PER_TICK, 2 * OWED_PER_TICK, 2 * OWED_PER_TICK + 1]
    assert (shell.state.floor == 0) == (last == 0)
