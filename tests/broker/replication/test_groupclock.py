"""The clock that a raft group corrects together."""

import logging
from dataclasses import dataclass
from statistics import median_low

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq_broker.core.effects import CLOCK_STEP_MS, Now
from orderlymq_broker.replication.groupclock import SHOWN_KEPT, GroupClock
from orderlymq_broker.replication.transport.server import SILENT_TICKS_MAX
from orderlymq_raft.types import NodeId

TRUE_MS = 1_700_000_000_000
DAY_MS = 86_400_000

offsets = st.one_of(
    st.integers(-CLOCK_STEP_MS, CLOCK_STEP_MS), st.integers(-1_000 * DAY_MS, 1_000 * DAY_MS)
)


@dataclass
class Machine:
    """The clocks of a machine, set by the test."""

    offset_ms: int = 0
    passed_ms: int = 0

    def now(self) -> Now:
        return Now(TRUE_MS + self.offset_ms + self.passed_ms, self.passed_ms)

    def seconds(self) -> float:
        return self.passed_ms / 1000


def group_clock(own: Machine, *peers_ms: int | None) -> GroupClock:
    """Return a clock with these offsets of its peers; None means that a peer has not shown its clock."""
    clock = GroupClock(own)
    peers = {NodeId(number) for number in range(len(peers_ms))}
    clock.keep(peers, peers)
    for number, offset_ms in enumerate(peers_ms):
        if offset_ms is not None:
            clock.shown(NodeId(number), TRUE_MS + own.passed_ms + offset_ms)
    return clock


@given(offsets, st.lists(offsets, min_size=2, max_size=6).filter(lambda each: len(each) % 2 == 0))
def test_a_known_group_goes_by_its_median(own_ms: int, peers_ms: list[int]) -> None:
    machine = Machine(own_ms)
    clock = group_clock(machine, *peers_ms)
    median_ms = median_low([own_ms, *peers_ms])
    expected = own_ms if abs(own_ms - median_ms) <= CLOCK_STEP_MS else median_ms

    assert clock.now().wall_ms - TRUE_MS == expected
    assert clock.ahead_s() == (own_ms - median_ms) / 1000


@given(st.integers(1, 7), st.data())
def test_right_majority_keeps_everybody_near_the_time(members: int, data: st.DataObject) -> None:
    right = st.integers(-1_000, 1_000)
    count = members // 2 + 1
    clocks = data.draw(
        st.tuples(
            st.lists(right, min_size=count, max_size=count),
            st.lists(offsets, min_size=members - count, max_size=members - count),
        ).flatmap(lambda both: st.permutations([*both[0], *both[1]]))
    )
    own, *peers = clocks
    clock = group_clock(Machine(own), *peers)

    assert abs(clock.now().wall_ms - TRUE_MS) <= CLOCK_STEP_MS + 1_000


@given(offsets, st.lists(st.one_of(st.none(), offsets), max_size=6))
def test_silent_members_contradict_nobody(own_ms: int, peers_ms: list[int | None]) -> None:
    clock = group_clock(Machine(own_ms), *peers_ms)
    shown = [each for each in peers_ms if each is not None]
    majority = (1 + len(peers_ms)) // 2 + 1
    earlier = sum(each < own_ms - CLOCK_STEP_MS for each in shown)
    later = sum(each > own_ms + CLOCK_STEP_MS for each in shown)

    is_contradicted = max(earlier, later) >= majority
    assert (clock.now().wall_ms != TRUE_MS + own_ms) == is_contradicted


@given(offsets, st.lists(st.one_of(st.none(), offsets), max_size=6))
def test_confirmed_time_is_that_of_a_majority(own_ms: int, peers_ms: list[int | None]) -> None:
    now = group_clock(Machine(own_ms), *peers_ms).now()
    shown = [own_ms, *(each for each in peers_ms if each is not None)]
    near = sum(abs(TRUE_MS + each - now.wall_ms) <= CLOCK_STEP_MS + 1 for each in shown)

    assert not now.is_confirmed or 2 * near > 1 + len(peers_ms)


@given(st.integers(1, 7), st.data())
def test_time_is_confirmed_where_a_majority_agrees(members: int, data: st.DataObject) -> None:
    right = st.integers(-CLOCK_STEP_MS // 2, CLOCK_STEP_MS // 2)
    count = members // 2 + 1
    agreeing = data.draw(st.lists(right, min_size=count, max_size=count))
    others = data.draw(
        st.lists(st.one_of(st.none(), offsets), min_size=members - count, max_size=members - count)
    )
    clock = group_clock(Machine(agreeing[0]), *data.draw(st.permutations([*agreeing[1:], *others])))

    assert clock.now().is_confirmed


def test_one_of_two_clocks_confirms_nothing() -> None:
    machine = Machine()
    clock = group_clock(machine, 3 * DAY_MS, None)
    assert not clock.now().is_confirmed

    machine.offset_ms = 3 * DAY_MS
    assert clock.now().is_confirmed


def test_step_of_the_own_clock_is_seen_without_an_exchange() -> None:
    machine = Machine()
    clock = group_clock(machine, 0, 0)
    machine.passed_ms += 500
    machine.offset_ms = 3 * DAY_MS

    assert clock.now() == Now(TRUE_MS + 500, 500)


def test_step_of_the_own_clock_ends_a_confirmation() -> None:
    machine = Machine()
    clock = group_clock(machine, 0, None)
    assert clock.now().is_confirmed

    machine.offset_ms = 3 * DAY_MS
    assert not clock.now().is_confirmed


def test_clock_that_everybody_sets_is_followed() -> None:
    machine = Machine()
    clock = group_clock(machine, 0, 0)
    machine.offset_ms = DAY_MS
    for number in (0, 1):
        clock.shown(NodeId(number), TRUE_MS + DAY_MS)

    assert clock.now().wall_ms == TRUE_MS + DAY_MS


def test_peer_that_is_away_counts_by_what_it_has_shown() -> None:
    machine = Machine(3 * DAY_MS)
    clock = group_clock(machine, 0, 0)
    machine.passed_ms += 10 * DAY_MS
    clock.shown(NodeId(0), TRUE_MS + 10 * DAY_MS)

    assert clock.now().wall_ms == TRUE_MS + 10 * DAY_MS


def test_what_waited_while_this_process_stood_still_corrects_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Law: clocks of peers that waited to be read while this process stood still (sleep,
    debugger) do not correct its clock.
    """
    machine = Machine()
    clock = group_clock(machine, 0, 0)
    machine.passed_ms += DAY_MS
    for _ in range(2 * (SILENT_TICKS_MAX + 2)):  # On two links, until they are connected again.
        for number in (0, 1):
            clock.shown(NodeId(number), TRUE_MS)
            assert clock.now().wall_ms == TRUE_MS + DAY_MS

    assert not caplog.records


def test_peers_that_set_their_clocks_back_are_followed() -> None:
    machine = Machine(DAY_MS)
    clock = group_clock(machine, DAY_MS, DAY_MS)
    for _ in range(SHOWN_KEPT):
        for number in (0, 1):
            clock.shown(NodeId(number), TRUE_MS)

    assert clock.now().wall_ms == TRUE_MS


def test_learner_leaves_a_wrong_clock_corrected_while_it_joins_and_when_it_votes() -> None:
    """Law: a learner does not change the correction of a wrong clock, neither when it joins nor when it gets its vote."""
    voters, learner = {NodeId(0), NodeId(1)}, NodeId(2)
    clock = group_clock(Machine(3 * DAY_MS), 0, 0)
    clock.keep(voters | {learner}, voters)
    assert clock.now().wall_ms == TRUE_MS

    clock.shown(learner, TRUE_MS)
    clock.keep(voters | {learner}, voters | {learner})
    assert clock.now().wall_ms == TRUE_MS


def test_former_members_do_not_count() -> None:
    clock = group_clock(Machine(3 * DAY_MS), 0, 0)
    clock.keep({NodeId(0), NodeId(7)}, {NodeId(0), NodeId(7)})
    clock.shown(NodeId(1), TRUE_MS)

    assert clock.now().wall_ms == TRUE_MS + 3 * DAY_MS


def test_wrong_clock_is_reported_once_and_when_it_is_right_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    machine = Machine(3 * DAY_MS)
    clock = group_clock(machine, 0, 0)
    clock.shown(NodeId(0), TRUE_MS)
    machine.offset_ms = 0
    clock.shown(NodeId(0), TRUE_MS)

    contested, corrected, agreed = caplog.records
    assert "no majority" in contested.message  # When only one peer had shown its clock.
    assert "259200 s ahead of a majority" in corrected.message
    assert agreed.levelname == "INFO"


def test_clocks_that_nobody_decides_between_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = group_clock(Machine(), None, None, None, None)
    clock.shown(NodeId(0), TRUE_MS)
    assert not caplog.records  # Two of five peers, so far.

    clock.shown(NodeId(1), TRUE_MS + DAY_MS)
    clock.shown(NodeId(1), TRUE_MS + DAY_MS)
    clock.shown(NodeId(2), TRUE_MS)

    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
    assert "no data is deleted by its age" in caplog.text
