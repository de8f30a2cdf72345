"""How long proposals wait for others: as long as an entry takes on this machine, so that clients that return soon share an entry."""

from hypothesis import given
from hypothesis import strategies as st

from orderlymq_broker.replication.groupcommit import (
    ENTRY_MAX_S,
    LINGER_COUNT_MAX,
    LINGER_MIN_S,
    LINGER_PART,
    GroupCommit,
)

ELAPSED = st.floats(0.0, 1e6)
FEW = st.integers(1, LINGER_COUNT_MAX - 1)


class Leader:
    """A group commit and its clock."""

    def __init__(self, *elapsed: float) -> None:
        self.now = 0.0
        self.group_commit = GroupCommit(lambda: self.now)
        for each in elapsed:
            self.entry(each, 1)

    def entry(self, takes: float, answers: int) -> None:
        """Begin an entry, let its time pass, and answer so many proposals."""
        self.group_commit.began()
        self.now += takes
        self.group_commit.ended(takes, answers)

    def arrive(self, count: int) -> None:
        for _ in range(count):
            self.group_commit.arrived()

    def settle(self, takes: float, returns: float, clients: int) -> None:
        """Answer *clients* repeatedly; they return after *returns* seconds."""
        for _ in range(60):
            self.entry(takes, clients)
            self.now += returns
            self.arrive(clients)

    @classmethod
    def that_answered(cls, clients: int, takes: float, returns: float) -> "Leader":
        """Return a leader that has answered clients which usually return after *returns* seconds."""
        leader = cls()
        leader.settle(takes, returns, clients)
        leader.entry(takes, clients)
        return leader

    def lingers(self, collected: int) -> bool:
        return self.group_commit.linger_s(collected, on_its_way=False) > 0


@given(st.lists(ELAPSED))
def test_the_limit_stays_within_its_bounds_whatever_was_measured(elapsed: list[float]) -> None:
    assert LINGER_MIN_S <= Leader(*elapsed).group_commit.limit_s <= ENTRY_MAX_S


@given(st.lists(ELAPSED, max_size=20), st.floats(LINGER_MIN_S / LINGER_PART, ENTRY_MAX_S))
def test_the_limit_becomes_a_part_of_what_an_entry_takes(before: list[float], takes: float) -> None:
    limit_s = Leader(*before, *[takes] * 60).group_commit.limit_s
    assert abs(limit_s - takes * LINGER_PART) < 0.01 * takes + 1e-5


def test_one_entry_that_hung_is_forgotten_after_a_few() -> None:
    assert Leader(*[0.004] * 60, 30.0, *[0.004] * 20).group_commit.limit_s < 0.0042


@given(FEW, st.lists(ELAPSED, max_size=5))
def test_few_wait_from_the_beginning_of_an_entry_to_the_limit(
    few: int, elapsed: list[float]
) -> None:
    leader = Leader(*elapsed)
    leader.group_commit.began()
    assert leader.group_commit.linger_s(few, on_its_way=True) > 0
    leader.now += 2 * ENTRY_MAX_S
    assert leader.group_commit.linger_s(few, on_its_way=True) <= 0


def test_many_do_not_wait() -> None:
    leader = Leader.that_answered(LINGER_COUNT_MAX, 0.004, 0.001)
    for on_its_way in (False, True):
        leader.group_commit.began()
        wait = leader.group_commit.linger_s
        assert wait(LINGER_COUNT_MAX - 1, on_its_way=on_its_way) > 0
        assert wait(LINGER_COUNT_MAX, on_its_way=on_its_way) <= 0


@given(st.integers(2, 64), st.floats(0.001, ENTRY_MAX_S), st.floats(0.0, 0.6))
def test_who_waits_behind_an_entry_waits_for_most_of_those_it_answered(
    clients: int, takes: float, part: float
) -> None:
    leader = Leader.that_answered(clients, takes, part * takes)
    assert leader.lingers(1)
    leader.arrive(clients // 2)
    assert leader.lingers(1 + clients // 2) == (clients // 2 + 1 < LINGER_COUNT_MAX)
    leader.arrive(clients - clients // 2)
    assert not leader.lingers(1)


@given(st.integers(2, 64), st.floats(0.001, ENTRY_MAX_S), st.floats(0.0, 0.6))
def test_nobody_waits_longer_for_them_than_a_part_of_an_entry(
    clients: int, takes: float, part: float
) -> None:
    leader = Leader.that_answered(clients, takes, part * takes)
    leader.now += takes * LINGER_PART * 1.01
    assert not leader.lingers(1)


@given(st.integers(1, 64), st.floats(0.001, ENTRY_MAX_S), st.floats(0.9, 100.0))
def test_nobody_waits_for_clients_that_usually_return_late(
    clients: int, takes: float, part: float
) -> None:
    leader = Leader.that_answered(clients, takes, part * takes)
    assert not leader.lingers(1)


@given(st.integers(1, 64), st.floats(0.001, ENTRY_MAX_S))
def test_nobody_waits_for_clients_that_never_return(clients: int, takes: float) -> None:
    leader = Leader.that_answered(clients, takes, 0.0)
    for _ in range(20):
        leader.entry(takes, clients)
    assert not leader.lingers(1)


@given(st.floats(0.001, ENTRY_MAX_S), st.floats(0.0, 0.6))
def test_a_single_sender_never_waits(takes: float, part: float) -> None:
    leader = Leader.that_answered(1, takes, part * takes)
    leader.now += part * takes
    leader.arrive(1)
    assert not leader.lingers(1)
