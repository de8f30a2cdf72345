"""Leases and pauses of many lanes, which the leader handles in steps."""

from orderlymq_broker.core.longwalks import WALK_STEP_MAX
from orderlymq_broker.processors.lanes.leases import ENDED_MAX
from orderlymq_broker.state.lanes.lane import Lane, LaneState
from orderlymq_broker.state.lanes.lanerecords import (
    Found,
    LanesFetched,
    LanesReported,
    QueueFetch,
    Report,
    ReportKind,
)
from orderlymq_protocol.body.lanes import LaneReport
from tests.broker.processors.driver import Shell
from tests.broker.processors.lanes.member import GROUP, TOPIC, Member, keys, lead, produce
from tests.broker.processors.requests import create

LEASE_MS = 5_000


def hand_out(count: int) -> Shell:
    """Return a leader with so many lanes, all in hand of a."""
    shell = lead()
    produce(shell, "x")
    # The messages themselves are not read.
    shell.state.topics.by_name[TOPIC].queue(0).next_offset = count
    found = tuple(Found(str(offset), (offset,), 1) for offset in range(count))
    part = QueueFetch(0, 0, count, found=found, begins=True)
    create(shell, LanesFetched(GROUP, TOPIC, "a", 1, LEASE_MS, (part,)))
    assert len(lanes_in(shell, LaneState.IN_HAND)) == count
    return shell


def lanes_in(shell: Shell, state: LaneState) -> list[Lane]:
    return list(shell.state.lanes.queues_of(GROUP, TOPIC)[0].in_state(state))


def begin_to_lead(shell: Shell) -> None:
    """Become leader without another turn."""
    shell.follow()
    shell.settle()
    shell.term += 1
    shell.run(shell.core.become_leader(shell.term, shell.state.physical_end, shell.now))


def renewal(lane: Lane) -> LaneReport:
    return LaneReport(0, lane.number, lane.attempt, "renew", -1)


def test_a_new_leader_begins_many_leases_in_turns() -> None:
    """Law: a new leader begins many leases in steps, so that it is not silent; a lease renewed before its turn runs."""
    count = 2 * WALK_STEP_MAX
    shell = hand_out(count)
    last = lanes_in(shell, LaneState.IN_HAND)[-1]
    begin_to_lead(shell)
    leases = shell.core.lanes.leases
    assert len(leases._deadlines.ends) < count / 2

    shell.monotonic_ms += LEASE_MS + 1
    assert [each.verdict for each in Member(shell).report(renewal(last))] == ["renewed"]
    assert len(leases._deadlines.ends) == count

    shell.pass_time(LEASE_MS)
    assert len(lanes_in(shell, LaneState.IN_HAND)) > count / 2
    shell.pass_time(100)
    assert not lanes_in(shell, LaneState.IN_HAND)


def test_no_lease_is_over_before_all_have_begun() -> None:
    """Law: no lease ends before all have begun; else a renewal of one that is ending could be lost."""
    shell = hand_out(2 * WALK_STEP_MAX)
    begin_to_lead(shell)
    first = lanes_in(shell, LaneState.IN_HAND)[0]
    shell.monotonic_ms += LEASE_MS + 1

    shell.run(shell.core.tick(shell.now))
    assert not shell.pending
    shell.settle()

    shell.run(shell.core.tick(shell.now))
    assert shell.pending
    assert [each.verdict for each in Member(shell).report(renewal(first))] == ["stale"]


def test_lanes_that_ended_while_leases_begin_have_none() -> None:
    """Law: a lane that ended before its turn gets no lease."""
    count = 2 * WALK_STEP_MAX
    shell = hand_out(count)
    last = lanes_in(shell, LaneState.IN_HAND)[-1]
    begin_to_lead(shell)

    said = Report(0, last.number, last.attempt, ReportKind.DONE, count - 1)
    create(shell, LanesReported(GROUP, TOPIC, "a", (said,)))

    assert len(shell.core.lanes.leases._deadlines.ends) == count - 1


def test_many_attempts_that_are_over_together_end_in_several_ticks() -> None:
    """Law: many attempts whose leases end together are ended over several ticks."""
    shell = hand_out(ENDED_MAX + 1)
    shell.monotonic_ms += LEASE_MS + 1

    shell.run(shell.core.tick(shell.now))
    shell.settle()
    assert len(lanes_in(shell, LaneState.IN_HAND)) == 1

    shell.pass_time(100)
    assert not lanes_in(shell, LaneState.IN_HAND)
    assert shell.core.context.counters["lanes_expired"] == ENDED_MAX + 1


def test_the_pauses_of_many_lanes_are_bounded_in_turns() -> None:
    """Law: if the former clock was ahead, the pauses of many lanes are corrected in steps;
    each counts from now in its full length.
    """
    count = 2 * WALK_STEP_MAX
    shell = hand_out(count)
    due_ms = shell.wall_ms + 10_000
    create(
        shell,
        LanesReported(
            GROUP,
            TOPIC,
            "a",
            tuple(
                Report(0, each.number, each.attempt, ReportKind.RETRY, -1, due_ms, 16)
                for each in lanes_in(shell, LaneState.IN_HAND)
            ),
        ),
    )
    leases = shell.core.lanes.leases
    queue = shell.state.lanes.queues_of(GROUP, TOPIC)[0]
    shell.set_clock(shell.wall_ms - 3_600_000)

    shell.run(shell.core.tick(shell.now))
    assert 0 < len(list(leases._bounded())) <= WALK_STEP_MAX
    shell.settle()

    assert len(list(leases._bounded())) == count
    assert not leases.due(queue, shell.wall_ms + 9_999)
    assert len(leases.due(queue, shell.wall_ms + 10_000)) == count
    shell.set_clock(due_ms)
    shell.run(leases._bound_pauses(shell.now))
    shell.settle()
    assert len(list(leases._bounded())) == count


def test_clocks_that_differ_by_little_bound_no_pause() -> None:
    """Law: a clock difference of milliseconds corrects no pause; the pause is just that much longer."""
    shell = lead()
    produce(shell, "x")
    a = Member(shell)
    a.say("retry", *a.fetch(), delay_millis=1_000)

    shell.follow().set_clock(shell.wall_ms - 5)
    shell.lead()

    assert not shell.core.lanes.leases._due_ms
    shell.pass_time(900)
    assert a.fetch() == ()
    shell.pass_time(200)
    assert keys(a.fetch()) == ["x"]


def test_a_pause_that_was_bounded_is_forgotten_when_its_lane_goes_on() -> None:
    """Law: the correction of a pause is forgotten when its lane goes on."""
    shell = lead()
    produce(shell, "x")
    a = Member(shell)
    a.say("retry", *a.fetch(), delay_millis=1_000)
    shell.follow().set_clock(shell.wall_ms - 3_600_000)
    shell.lead()
    assert shell.core.lanes.leases._due_ms

    waiting = a.wait()
    shell.pass_time(1_100)
    assert shell.reply_to(waiting) is not None
    assert a.fetch() == ()

    assert not shell.core.lanes.leases._due_ms
