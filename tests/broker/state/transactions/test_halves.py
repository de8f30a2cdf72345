"""The table of half messages: what each record does to it, on every replica."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orderlymq_broker.state.records import Record, RetentionAdvanced, TopicSet
from orderlymq_broker.state.tables import TableWrites
from orderlymq_broker.state.transactions.halfrecords import (
    HalfEnded,
    HalfGivenUp,
    HalfOpened,
    HalfResumed,
    HalvesChecked,
    HalvesMoved,
)
from orderlymq_broker.state.transactions.halves import Half, TransactionTable
from orderlymq_broker.store.kv import Batch
from tests.broker.state.entries import WALL_MS, Replica
from tests.broker.store.memory import MemoryStore


def opening(offset: int, group: str = "g") -> HalfOpened:
    return HalfOpened(offset, offset * 100, group, "orders", f"U{offset}", WALL_MS)


def test_a_half_is_open_until_it_ends(replica: Replica) -> None:
    """Law: a half message is open until it ends; after that it is not found."""
    assert replica.take(opening(0)) == [HalvesMoved((0,))]
    assert replica.state.transactions.get(0) == Half(opening(0))

    assert replica.take(HalfEnded(0, True)) == [HalvesMoved((0,))]

    assert replica.state.transactions.get(0) is None


def test_the_end_of_a_half_that_is_gone_changes_nothing(replica: Replica) -> None:
    """Law: the end of a half that is gone changes nothing; retention may have removed it meanwhile."""
    replica.take(opening(0), opening(1))
    replica.take(HalfEnded(0, False))
    before = list(replica.state.transactions.rows())

    assert replica.take(HalfEnded(0, True)) == [HalvesMoved(())]
    assert list(replica.state.transactions.rows()) == before


def test_checks_are_counted_and_say_which_halves_were_still_open(replica: Replica) -> None:
    """Law: checks are counted; the outcome names the halves that were still open,
    so that no producer is asked about an ended one.
    """
    replica.take(opening(0), opening(1))
    replica.take(HalfEnded(0, True))

    assert replica.take(HalvesChecked((0, 1))) == [HalvesMoved((1,))]

    assert replica.state.transactions.get(1) == Half(opening(1), 1, WALL_MS)


def test_a_given_up_half_is_known_until_retention_takes_it(replica: Replica) -> None:
    """Law: a half that was given up can still end or be resumed until retention removes its message."""
    replica.take(TopicSet("orders", 1, 1))
    replica.append(replica.topic_id())
    replica.take(HalfOpened(0, 0, "g", "orders", "U", WALL_MS), HalvesChecked((0,)))

    replica.take(HalfGivenUp(0))
    assert replica.state.transactions.first_open() is None
    assert replica.state.transactions.given_up_by_group == {"g": 1}
    replica.take(HalfResumed(0))
    assert replica.state.transactions.get(0) == Half(HalfOpened(0, 0, "g", "orders", "U", WALL_MS))
    replica.take(HalfGivenUp(0))
    replica.take(RetentionAdvanced((), replica.state.physical_end))

    assert replica.state.transactions.get(0) is None


def test_giving_up_and_resuming_what_has_ended_changes_nothing(replica: Replica) -> None:
    """Law: giving up or resuming a half that has ended changes nothing."""
    replica.take(opening(0))
    replica.take(HalfEnded(0, True))

    assert replica.take(HalfGivenUp(0), HalfResumed(0)) == [
        HalvesMoved(()),
        HalvesMoved(()),
    ]


def test_groups_are_counted_by_what_they_have_open_and_given_up(replica: Replica) -> None:
    """Law: open and given-up halves are counted per producer group; a group without any is not remembered."""
    table = replica.state.transactions
    replica.take(opening(0), opening(1), opening(2, "h"))
    assert (dict(table.open_by_group), dict(table.given_up_by_group)) == ({"g": 2, "h": 1}, {})

    replica.take(HalfGivenUp(2), HalfGivenUp(0))
    assert (dict(table.open_by_group), dict(table.given_up_by_group)) == (
        {"g": 1},
        {"g": 1, "h": 1},
    )
    again = replica.restarted().state.transactions
    assert (again.open_by_group, again.given_up_by_group) == (
        table.open_by_group,
        table.given_up_by_group,
    )

    replica.take(HalfEnded(0, False), HalfEnded(1, False), HalfResumed(2))
    assert (dict(table.open_by_group), dict(table.given_up_by_group)) == ({"h": 1}, {})


def test_the_oldest_open_half_keeps_its_message_whatever_came_back_last(replica: Replica) -> None:
    """Law: retention keeps messages from the oldest open half on; given-up ones do not count until they are resumed."""
    table = replica.state.transactions
    replica.take(opening(1), opening(2), opening(3))
    assert table.first_open() == 100

    replica.take(HalfGivenUp(2), HalfGivenUp(1))
    assert (table.first_open(), sorted(table.given_up)) == (300, [1, 2])

    replica.take(HalfResumed(1))
    assert (table.first_open(), sorted(table.open)) == (100, [1, 3])


def test_halves_come_and_go_in_any_order_at_the_same_price() -> None:
    """Law: the cost of ending or giving up a half does not grow with the table; once it took every replica 5 ms each.

    If it grew, this test would take minutes and end by its time-out.
    """
    count = 40_000
    table, writes = TransactionTable(MemoryStore()), TableWrites()
    for offset in range(count):
        table.begin(opening(offset, f"g{offset % 2}"), writes)

    for offset in (*range(0, count, 2), *range(1, count, 2)):
        table.give_up(HalfGivenUp(offset), writes)
    for offset in range(0, count, 2):
        table.resume(HalfResumed(offset), writes)
    for offset in reversed(range(2, count, 2)):
        table.end(HalfEnded(offset, False), writes)

    table.check()
    assert (table.first_open(), len(table.open), len(table.given_up)) == (0, 1, count // 2)


def test_a_half_that_was_never_asked_about_is_not_resumed(replica: Replica) -> None:
    """Law: resuming a half that was never checked changes nothing."""
    replica.take(opening(0))

    assert replica.take(HalfResumed(0)) == [HalvesMoved(())]


def test_who_ends_nothing_for_long_leaves_no_trail(replica: Replica) -> None:
    """Law: while one half stays open and thousands end, the record of the oldest ones stays small."""
    table, writes = TransactionTable(MemoryStore()), TableWrites()
    table.begin(opening(0), writes)
    for offset in range(1, 20_000):
        table.begin(opening(offset), writes)
        table.end(HalfEnded(offset, True), writes)

    assert table.first_open() == 0
    assert len(table._oldest_open._offsets) < 2_000


def test_checks_are_counted_up_and_resuming_counts_from_the_first_again(replica: Replica) -> None:
    """Law: checks count up; resuming starts the count again, giving up keeps it."""
    replica.take(opening(0), opening(1), HalvesChecked((0, 1)), HalvesChecked((0, 1)))
    replica.take(HalfGivenUp(0))
    twice = Half(opening(1), 2, WALL_MS)
    assert list(replica.state.transactions.rows()) == [
        (twice,),
        (Half(opening(0), 2, WALL_MS, given_up=True),),
    ]

    replica.take(HalfResumed(0), HalfResumed(1))

    assert list(replica.state.transactions.rows()) == [(Half(opening(0)),), (Half(opening(1)),)]


def test_a_half_cannot_be_opened_twice_nor_while_it_is_given_up() -> None:
    """Law: a half cannot be opened twice, nor while it is given up: the log and the state would disagree."""
    replica = Replica()
    replica.take(opening(0), opening(1), HalfGivenUp(1))

    for offset in (0, 1):
        with pytest.raises(AssertionError, match="is open already"):
            replica.state.transactions.begin(opening(offset), TableWrites())


def test_retention_takes_the_halves_whose_messages_it_takes_and_no_others(replica: Replica) -> None:
    """Law: retention removes the halves below the floor, open and given up; a half at the floor stays."""
    replica.take(*(opening(offset) for offset in range(6)))
    replica.take(HalfGivenUp(1), HalfGivenUp(3), HalfGivenUp(5))
    writes, batch = TableWrites(), Batch()

    replica.state.transactions.drop_below(300, writes)

    writes.flush(batch)
    replica.store.write(batch, sync=True)
    table = replica.state.transactions
    assert (list(table.open), list(table.given_up)) == ([4], [3, 5])


STEPS = st.lists(
    st.tuples(st.sampled_from(["open", "end", "check", "give up", "resume"]), st.integers(0, 9)),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.integers(0, 40))
def test_a_replica_that_restarts_in_the_middle_has_the_same_table(
    steps: list[tuple[str, int]], middle: int
) -> None:
    """Law: a replica that restarts in the middle has the same table, for any sequence of records."""
    steady, restarted = Replica(), Replica()
    opened = 0
    for number, (kind, choice) in enumerate(steps):
        known = [*steady.state.transactions.open, *steady.state.transactions.given_up]
        chosen = known[choice % len(known)] if known else 0
        record: Record
        match kind:
            case "open":
                record, opened = opening(opened, f"g{choice % 3}"), opened + 1
            case "end" if known:
                record = HalfEnded(chosen, bool(choice % 2))
            case "check":
                record = HalvesChecked((chosen, choice))
            case "give up":
                record = HalfGivenUp(chosen)
            case _:
                record = HalfResumed(chosen)
        if number == middle:
            restarted = restarted.restarted()

        assert steady.take(record) == restarted.take(record)

        assert steady.state.digest() == restarted.state.digest()
        restarted.state.check_invariants()
