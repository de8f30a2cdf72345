"""Schedules are made of a seed and nothing else, and try everything that can be tried."""

import pytest

from tests.nemesis.schedule import SHAPES, Ability, Fault, Kind, Plan, Track, possible, schedule

EVERYTHING = ~Ability.NONE
LONG = Plan(replicas=3, seconds=900.0, abilities=EVERYTHING)


def test_a_seed_gives_one_schedule() -> None:
    """The same seed and plan: the same faults; another seed or another group: others."""
    assert schedule(7, LONG) == schedule(7, LONG)
    assert schedule(7, LONG) != schedule(8, LONG)
    assert schedule(7, LONG) != schedule(7, Plan(5, LONG.seconds, EVERYTHING))


@pytest.mark.parametrize("seed", range(20))
def test_a_long_run_tries_every_kind(seed: int) -> None:
    """Fifteen minutes hold at least one round, whatever the seed."""
    assert {fault.kind for fault in schedule(seed, LONG)} == set(Kind)


@pytest.mark.parametrize("seed", range(20))
def test_faults_begin_in_order_and_end_in_time(seed: int) -> None:
    """Sorted by their beginning; none lasts beyond the plan; lengths come from the kind's range."""
    plan = Plan(replicas=3, seconds=120.0, abilities=EVERYTHING)

    faults = schedule(seed, plan)

    assert faults
    assert list(faults) == sorted(faults, key=lambda fault: fault.begin_s)
    for fault in faults:
        shortest, longest = SHAPES[fault.kind].seconds
        assert shortest <= fault.lasts_s <= longest
        assert fault.end_s <= plan.seconds


@pytest.mark.parametrize("seed", range(20))
def test_what_must_be_alone_is_alone_on_its_track(seed: int) -> None:
    """No other fault of a replica is planned to last into it, and none to begin within it."""
    faults = [fault for fault in schedule(seed, LONG) if fault.shape.track is Track.REPLICAS]
    for number, fault in enumerate(faults):
        if fault.shape.alone:
            assert all(other.end_s <= fault.begin_s for other in faults[:number])
            assert all(other.begin_s >= fault.end_s for other in faults[number + 1 :])


def test_what_the_machine_cannot_do_is_left_out() -> None:
    """Without root there are no namespaces and no file systems, and no faults that need them."""
    bare = Plan(replicas=3, seconds=300.0, abilities=Ability.NONE)

    kinds = {fault.kind for fault in schedule(1, bare)}

    assert kinds == {kind for track in Track for kind in possible(bare, track)}
    assert not kinds & {Kind.SPLIT, Kind.POWER_LOSS_ALL, Kind.IO_ERROR, Kind.PAUSE_JAVA_CONSUMER}


def test_a_short_plan_holds_what_fits() -> None:
    """In twenty seconds no Java consumer can be paused for sixty-two; in two seconds nothing happens."""
    short = Plan(replicas=3, seconds=20.0, abilities=EVERYTHING)

    faults: tuple[Fault, ...] = schedule(3, short)

    assert faults
    assert Kind.PAUSE_JAVA_CONSUMER not in {fault.kind for fault in faults}
    assert schedule(3, Plan(3, 2.0, EVERYTHING)) == ()
