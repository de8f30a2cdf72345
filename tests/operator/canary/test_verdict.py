"""The judge of a canary: it raises no alarm for what the promise allows, and one for each broken promise."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq_operator.canary.ledger import HISTORY_MAX
from orderlymq_operator.canary.troubles import Kind, Lane
from orderlymq_operator.canary.verdict import Canary, Limits, stale_after_s
from orderlymq_operator.kube.reconcile.canary import POLL_S
from tests.operator.canary.world import LANE, STEP_S, World

HONEST: dict[str, Callable[[World], object]] = {
    "send": World.send,
    "send twice": lambda world: world.send(copies=2),
    "acknowledge late": lambda world: world.send(acknowledged_late=True),
    "refuse": World.refuse,
    "deliver": World.deliver,
    "commit": lambda world: setattr(world, "committed", world.position),
    "lose the consumer": World.lose_consumer,
    "wait": World.step,
    "wait long": lambda world: world.step(30.0),
}


@given(st.lists(st.sampled_from(sorted(HONEST)), max_size=60))
def test_what_the_promise_allows_is_no_trouble(steps: list[str]) -> None:
    """Law: unknown outcomes, refusals, repeats after a lost consumer and pauses, in any order, are no trouble."""
    world = World()
    for step in steps:
        world.deliver()
        world.committed = world.position
        HONEST[step](world)
    world.deliver()
    world.well(1)

    assert dict(world.canary.counts) == {}
    assert world.canary.verdict(world.now).status == "True"


def skip(world: World) -> None:
    world.send()
    world.position += 1
    world.send()
    world.deliver()


def swap(world: World) -> None:
    world.send()
    world.send()
    end = len(world.log)
    world.give(world.log[end - 1], end - 1)
    world.give(world.log[end - 2], end - 2)
    world.position = end


def truncate(world: World) -> None:
    world.send()
    del world.log[-1]
    world.send()


def lose_all(world: World) -> None:
    world.log.clear()
    world.send()


def store_again(world: World) -> None:
    world.send()
    world.log.append(world.log[-4])
    world.deliver()


def rewrite(world: World) -> None:
    world.give(world.log[-1] - 1, len(world.log) - 1)


def hold_twice(world: World) -> None:
    world.canary.take(LANE, "first", world.now)
    world.canary.take(LANE, "second", world.now)


def alter(world: World) -> None:
    world.canary.report(
        Kind.ALTERED, LANE, "the message was altered: its checksum is wrong", world.now
    )


def invent(world: World) -> None:
    world.log.append(world.canary.ledgers[LANE].sent + 7)
    world.deliver()


def store_refused(world: World) -> None:
    world.log.append(world.refuse())
    world.deliver()


def misplace(world: World) -> None:
    number = world.canary.send(LANE, world.now)
    world.canary.acknowledge(LANE, number, len(world.log), 1, world.now)


def move(world: World) -> None:
    number = world.canary.send(LANE, world.now)
    world.acknowledge(number, len(world.log))
    world.log += [0, number]  # The first one is no message of ours.
    world.position += 1
    world.deliver()


def roll_back(world: World) -> None:
    world.well(HISTORY_MAX)
    world.position = 0
    world.deliver()


def go_back_a_bit(world: World) -> None:
    world.well(100)
    world.position -= 90
    world.deliver()


def keep(world: World) -> None:
    for _ in range(70):
        world.send()
        world.step(1.0)


def delete(world: World) -> None:
    world.canary.report(Kind.TOPIC_GONE, LANE, "gone", world.now)


PLANTED: dict[str, tuple[Callable[[World], None], Kind]] = {
    "a message is not delivered": (skip, Kind.SKIPPED),
    "two messages are swapped": (swap, Kind.REORDERED),
    "the tail of the log is cut": (truncate, Kind.LOST),
    "the queue begins at 0 again": (lose_all, Kind.LOST),
    "an older message is stored again": (store_again, Kind.STORED_TWICE),
    "an offset gets another message": (rewrite, Kind.REWRITTEN),
    "two consumers hold one queue": (hold_twice, Kind.TWO_HOLDERS),
    "a body is altered": (alter, Kind.ALTERED),
    "a message comes that nobody sent": (invent, Kind.ALTERED),
    "a refused message is stored": (store_refused, Kind.REFUSED_DELIVERED),
    "a message goes to another queue": (misplace, Kind.MISPLACED),
    "a message lies at another offset": (move, Kind.MISPLACED),
    "the offset of the group goes back to the beginning": (roll_back, Kind.REPLAYED),
    "the offset of the group goes back by 90 seconds": (go_back_a_bit, Kind.REPLAYED),
    "acknowledged messages are not delivered": (keep, Kind.UNDELIVERED),
    "the topic is deleted": (delete, Kind.TOPIC_GONE),
}


@pytest.mark.parametrize("name", PLANTED)
def test_each_planted_trouble_is_found_and_reported(name: str) -> None:
    """Law: each planted trouble is counted under its own name and makes the status False."""
    plant, kind = PLANTED[name]
    world = World()
    world.well()
    plant(world)

    assert world.canary.counts[kind] == 1
    assert world.canary.verdict(world.now).status == "False"


def test_every_kind_of_trouble_is_planted() -> None:
    assert {kind for _, kind in PLANTED.values()} == set(Kind)


@pytest.mark.parametrize("name", PLANTED)
def test_a_trouble_is_reported_for_a_while_and_things_go_on(name: str) -> None:
    """Law: one trouble is reported for a while and causes no second one."""
    world = World()
    world.well()
    PLANTED[name][0](world)
    world.canary.leave(LANE, "second")
    world.position = len(world.log)
    world.well(3)
    count = sum(world.canary.counts.values())
    assert world.canary.verdict(world.now).status == "False"

    world.well(int(Limits().hold_s))
    assert world.canary.verdict(world.now).status == "True"
    assert sum(world.canary.counts.values()) == count


def test_nothing_is_verified_before_each_queue_has_delivered() -> None:
    world = World(Canary([LANE, Lane("demo-1", 0)], "run"))
    world.well(3)

    verdict = world.canary.verdict(world.now)
    assert (verdict.status, verdict.reason) == ("Unknown", "Starting")


def test_a_group_that_takes_nothing_makes_it_unknown_within_the_bound() -> None:
    """Law: a group that accepts nothing makes the status Unknown within the bound, and its probes spend the budget."""
    world = World()
    world.well()
    world.canary.send(LANE, world.now)
    world.canary.fail(LANE, "BrokerUnreachable: nobody leads")
    for _ in range(24):
        world.step()

    verdict = world.canary.verdict(world.now)
    assert (verdict.status, verdict.reason) == ("Unknown", "SendsFail")
    assert "nobody leads" in verdict.message
    assert world.canary.budget.bad == 6


def test_a_group_that_gives_nothing_makes_it_unknown_before_it_is_a_trouble() -> None:
    world = World()
    world.well()
    for _ in range(6):
        world.send()
        world.step(1.0)

    verdict = world.canary.verdict(world.now)
    assert (verdict.status, verdict.reason) == ("Unknown", "NotDelivered")


def test_silence_is_seen_within_five_seconds_at_the_default_interval() -> None:
    """Law: at the default interval silence is seen within five seconds, also by the operator that asks once a second;
    one late message is no silence.
    """
    interval = Limits().interval_s
    world = World(Canary([LANE], "run", Limits(stale_s=stale_after_s(interval))))
    world.well()
    world.step(2 * interval)
    late = world.canary.verdict(world.now)
    world.step(5.0 - POLL_S - 2 * interval)

    assert late.status == "True"
    assert world.canary.verdict(world.now).status == "Unknown"
    assert stale_after_s(10.0) > 2 * 10.0


def test_late_messages_spend_the_budget_and_keep_the_order() -> None:
    """Law: late messages spend the budget but do not break the order."""
    world = World()
    world.well()
    for _ in range(4):
        world.send()
        world.step(1.2)
        world.deliver()

    verdict = world.canary.verdict(world.now)
    assert (verdict.status, verdict.reason) == ("True", "Slow")
    assert (world.canary.budget.good, world.canary.budget.bad) == (10, 4)
    assert world.canary.budget.burn(world.now, 5) == pytest.approx(4 / 14 * 1000)


@pytest.mark.parametrize("late_by", [-1, 1, 5])
@pytest.mark.parametrize("under_way", [1, 2, 3, 8])
def test_each_probe_is_counted_once(under_way: int, late_by: int) -> None:
    """Law: each probe is counted once, also if it takes longer than the interval; those within the target are good."""
    target, count = 2 * under_way, 100
    limits = Limits(interval_s=2 * STEP_S, target_s=target * STEP_S)
    world = World(Canary([LANE], "run", limits))
    for step in range(2 * count):
        if step % 2 == 0:
            world.send()
        if step >= target + late_by and (step - target - late_by) % 2 == 0:
            world.give(world.log[world.position], world.position)
            world.position += 1
        world.step()

    overdue = count - under_way + 1
    found = (world.canary.budget.good, world.canary.budget.bad)
    assert found == ((0, overdue) if late_by > 0 else (world.position, 0))


def test_a_second_canary_on_the_same_topics_is_reported() -> None:
    """Law: a second canary on the same topics is reported as such, not as a trouble of the cluster."""
    world = World()
    world.canary.foreign(LANE, world.now)
    world.well()
    assert world.canary.verdict(world.now).status == "True"

    world.canary.foreign(LANE, world.now)
    assert world.canary.verdict(world.now).reason == "AnotherCanary"


def test_memory_is_bounded() -> None:
    """Law: memory stays bounded for a queue that nobody consumes and for one that refuses everything."""
    world = World()
    for _ in range(3 * HISTORY_MAX):
        world.send()
        world.refuse()
    ledger = world.canary.ledgers[LANE]

    assert max(len(each) for each in (ledger._acked, ledger._sent_at, ledger._refused)) <= 1_024
