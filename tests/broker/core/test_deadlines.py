"""When leases end, for any number of leases."""

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from orderlymq_broker.core.deadlines import DeadlineQueue

KEYS = st.integers(0, 5)
STEPS = st.lists(
    st.tuples(st.sampled_from(["run", "stop", "over", "some"]), KEYS, st.integers(0, 9)),
    max_size=60,
)


def test_renewals_leave_nothing_to_pass_over() -> None:
    """Law: a renewed lease leaves no old entry behind; a hundred thousand of them would block the others when they are
    skipped.
    """
    deadlines: DeadlineQueue[int] = DeadlineQueue()
    for end_ms in range(1_000):
        for key in range(20):
            deadlines.set(key, end_ms)

    assert sum(map(len, deadlines._by_end.values())) == 20
    assert len(deadlines._times) <= 100
    assert list(deadlines.pop_expired(999)) == []
    assert len(list(deadlines.pop_expired(1_000))) == 20
    assert not deadlines._by_end


@given(steps=STEPS)
def test_each_lease_is_over_once_after_its_end(steps: list[tuple[str, int, int]]) -> None:
    """Law: each lease is reported over once after its end, whatever begins and stops while the reports are read."""
    deadlines: DeadlineQueue[int] = DeadlineQueue()
    ends: dict[int, int] = {}
    for step, key, at_ms in steps:
        match step:
            case "run":
                deadlines.set(key, at_ms)
                ends[key] = at_ms
            case "stop":
                deadlines.cancel(key)
                ends.pop(key, None)
            case _:
                due = sorted(end for end in ends.values() if end < at_ms)
                found = list(islice(deadlines.pop_expired(at_ms), 1 if step == "some" else None))
                assert [ends.pop(each) for each in found] == due[: len(found)]
                assert len(found) == (min(1, len(due)) if step == "some" else len(due))
        assert deadlines.ends == ends
