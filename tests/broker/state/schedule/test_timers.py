"""The table of timers: its rows, and their number and checksum, which replicas compare."""

import pytest
from msgspec import structs

from orderlymq_broker.state.records import Append, Done, TopicSet
from orderlymq_broker.state.schedule.timerrecords import TimerRef, TimersEnded
from orderlymq_broker.state.schedule.timers import TimerTable, decode_timer, read_timers
from orderlymq_broker.state.tables import TableWrites, read_rows
from orderlymq_broker.store.layout import Table
from orderlymq_protocol.names import TIMER_TOPIC
from tests.broker.state.entries import WALL_MS, Replica, stored

FIRST = Append(1, 0, 0, 0, 150, WALL_MS + 5, WALL_MS)
GOLDEN = 5_984_387_253_548_372_504


@pytest.fixture
def timed(replica: Replica) -> Replica:
    """A replica with the timer topic."""
    replica.take(TopicSet(TIMER_TOPIC, 1, 1))
    return replica


def wait(replica: Replica, due_ms: int) -> TimerRef:
    """Append a timer message."""
    offset = replica.state.topics.by_id[1].queue(0).next_offset
    physical = replica.state.physical_end
    message = stored(offset, physical)
    replica.take(Append(1, 0, offset, physical, len(message), due_ms, WALL_MS), messages=[message])
    return TimerRef(due_ms, offset, physical)


def rows(replica: Replica, table: Table) -> list[TimerRef]:
    return [decode_timer(row) for row in read_rows(replica.store, table)]


def counted(table: TimerTable) -> tuple[int, int]:
    return table.count, table.checksum


def test_timers_stand_in_the_store_by_time_and_by_place_until_they_end(timed: Replica) -> None:
    """Law: until it ends, a timer is in the store twice: by time, to find those that are due, and by place,
    to find the oldest message.
    """
    late, soon, last = (wait(timed, WALL_MS + due) for due in (9, 3, 12))
    assert rows(timed, Table.TIMERS) == [soon, late, last]
    assert rows(timed, Table.TIMER_PLACES) == [late, soon, last]
    assert timed.state.timers.count == 3

    assert timed.take(TimersEnded((late, last))) == [Done()]

    assert rows(timed, Table.TIMERS) == rows(timed, Table.TIMER_PLACES) == [soon]
    assert timed.state.timers.count == 1


def test_number_and_sum_are_those_of_the_rows(timed: Replica) -> None:
    """Law: after each step and a restart, number and checksum are those of the rows, and 0 without rows."""
    waiting = [wait(timed, WALL_MS + due) for due in (9, 3, 3)]
    assert counted(read_timers(timed.store)) == counted(timed.state.timers)

    timed.take(TimersEnded((waiting[1],)))
    assert counted(read_timers(timed.store)) == counted(timed.state.timers)
    assert counted(timed.restarted().state.timers) == counted(timed.state.timers)
    assert list(timed.state.timers.rows()) == [counted(timed.state.timers)]

    timed.take(TimersEnded((waiting[2], waiting[0])))
    assert counted(timed.state.timers) == counted(read_timers(timed.store)) == (0, 0)


def test_more_cannot_end_than_wait(timed: Replica) -> None:
    """Law: ending more timers than there are stops the replica."""
    timer = wait(timed, WALL_MS + 1)
    writes = TableWrites()

    with pytest.raises(AssertionError, match="ends more timers than the 1"):
        timed.state.timers.end(TimersEnded((timer, timer)), writes)


def checksum(*records: Append) -> int:
    table, writes = TimerTable(), TableWrites()
    for record in records:
        table.open(record, writes)
    return table.checksum


def test_the_sum_of_a_timer_is_the_same_in_every_release() -> None:
    """Law: a timer's checksum is the same in every release, because it is stored and compared during an upgrade."""
    assert checksum(FIRST) == GOLDEN
    assert checksum(FIRST, FIRST) == 2 * GOLDEN % 2**63


@pytest.mark.parametrize(
    "other", [{"tags_code": WALL_MS + 6}, {"queue_offset": 1}, {"physical": 1}]
)
def test_each_part_of_a_timer_counts_in_the_sum(other: dict[str, int]) -> None:
    """Law: each field of a timer changes the checksum."""
    assert checksum(structs.replace(FIRST, **other)) != checksum(FIRST)


def test_the_sum_stays_a_signed_number_of_64_bits() -> None:
    """Law: the checksum stays within 63 bits and does not depend on the order of the timers."""
    records = [structs.replace(FIRST, queue_offset=number) for number in range(64)]
    sums = [checksum(record) for record in records]

    assert max(sums).bit_length() == 63
    assert sum(sums) > 2**64
    assert checksum(*records) == checksum(*reversed(records)) == sum(sums) % 2**63
