"""The table of half messages: what each record does to it, on every replica alike."""

from hypothesis import given, settings
from hypothesis import strategies as st

from orderlymq_broker.state.records import (
    HalfChange,
    HalfEnded,
    HalfGivenUp,
    HalfOpened,
    HalfResumed,
    HalvesChecked,
    HalvesMoved,
    Record,
    RetentionAdvanced,
    TopicSet,
)
from orderlymq_broker.state.transactions.halves import Half
from tests.broker.state.entries import WALL_MS, Replica


def opening(offset: int, group: str = "g") -> HalfOpened:
    return HalfOpened(offset, offset * 100, group, "orders", f"U{offset}", WALL_MS)


def test_a_half_is_open_until_it_ends(replica: Replica) -> None:
    """Whoever asks afterwards finds nothing."""
    assert replica.take(opening(0)) == [HalvesMoved((0,), HalfChange.OPENED)]
    assert replica.state.transactions.get(0) == Half(opening(0))

    assert replica.take(HalfEnded(0, True)) == [HalvesMoved((0,), HalfChange.ENDED)]

    assert replica.state.transactions.get(0) is None


def test_the_end_of_a_half_that_is_gone_changes_nothing(replica: Replica) -> None:
    """Retention may take a half between the proposal of its end and the end's place in the log."""
    replica.take(opening(0), opening(1))
    replica.take(HalfEnded(0, False))
    before = list(replica.state.transactions.rows())

    assert replica.take(HalfEnded(0, True)) == [HalvesMoved((), HalfChange.ENDED)]
    assert list(replica.state.transactions.rows()) == before


def test_checks_are_counted_and_say_which_halves_were_still_open(replica: Replica) -> None:
    """One that ended meanwhile is passed over, and nobody is asked about it."""
    replica.take(opening(0), opening(1))
    replica.take(HalfEnded(0, True))

    assert replica.take(HalvesChecked((0, 1))) == [HalvesMoved((1,), HalfChange.CHECKED)]

    assert replica.state.transactions.get(1) == Half(opening(1), 1, WALL_MS)


def test_a_given_up_half_is_known_until_retention_takes_it(replica: Replica) -> None:
    """It can end late, and be resumed, as long as its message is there."""
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
    """Both may be on their way when the end is applied."""
    replica.take(opening(0))
    replica.take(HalfEnded(0, True))

    assert replica.take(HalfGivenUp(0), HalfResumed(0)) == [
        HalvesMoved((), HalfChange.GIVEN_UP),
        HalvesMoved((), HalfChange.RESUMED),
    ]


STEPS = st.lists(
    st.tuples(st.sampled_from(["open", "end", "check", "give up", "resume"]), st.integers(0, 9)),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.integers(0, 40))
def test_a_replica_that_restarts_in_the_middle_has_the_same_table(
    steps: list[tuple[str, int]], middle: int
) -> None:
    """Any sequence a leader may write, and the invariants after each record."""
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
