"""The core of a consumer by key, in virtual time: with a simple broker, and event by event."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orderlymq.consumer.core.events import Assigned, Closing, Paused, Report, Resumed, Tick
from orderlymq.consumer.lanes.core import LaneCore, LaneRules
from orderlymq.consumer.lanes.events import (
    Answered,
    AttemptId,
    Complete,
    CompleteFailed,
    CutOff,
    Ended,
    Event,
    Fetch,
    Fetched,
    FetchEmpty,
    FetchFailed,
    Given,
    Instruction,
    Listened,
    Place,
    Work,
    WorkDropped,
)
from orderlymq_protocol.body.lanes import (
    KEY_LENGTH_SHOWN,
    Lane,
    LaneReport,
    LaneVerdict,
    LaneVerdicts,
)
from orderlymq_protocol.body.messagequeue import MessageQueue
from tests.client.consumer.lanes.world import PLACE, World
from tests.client.messages import message

OTHER = Place("orders", "broker-b")
LEASE_MS = 15_000
RULES = LaneRules(workers=4, renew_ms=5_000)


def keys(random: Random, queues: int, messages: int, distinct: int) -> list[list[str]]:
    return [
        [f"k{random.randrange(distinct)}" for _ in range(random.randint(0, messages))]
        for _ in range(queues)
    ]


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    workers=st.sampled_from([1, 2, 5, 16]),
    batch=st.sampled_from([1, 3]),
    per_lane=st.sampled_from([1, 4]),
    members=st.sampled_from([1, 2]),
    slow_ms=st.sampled_from([0, 20, 900, 3_000]),
)
def test_every_message_is_done_in_the_order_of_its_lane_whatever_is_lost(
    seed: int, workers: int, batch: int, per_lane: int, members: int, slow_ms: int
) -> None:
    """Law: with lost requests and answers and failing listeners, each lane is done in order by one holder, and nothing is lost."""
    random = Random(seed)
    world = World(
        keys(random, queues=2, messages=15, distinct=6),
        random,
        rules=LaneRules(workers=workers, batch_max=batch, renew_ms=300),
        per_lane=per_lane,
        members=members,
        loss=0.15,
        failing=0.1,
        slow_ms=slow_ms,
    )

    world.drain()
    for member in world.members:
        world.close(member)

    assert world.broker.done == world.listened
    assert not world.broker.in_hand


@given(seed=st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_a_member_that_dies_costs_its_own_lanes(seed: int) -> None:
    """Law: a dead member's messages come again at another member, in order; those of others do not."""
    random = Random(seed)
    world = World(keys(random, queues=1, messages=40, distinct=10), random, rules=RULES, members=2)
    world.later(random.randint(0, 60), lambda: world.kill(world.members[0]))

    world.drain()

    assert world.broker.done == world.listened


def test_a_consumer_holds_no_more_than_its_workers_need() -> None:
    """Law: with slow listeners a consumer holds about as many lanes as workers; with quick ones more, up to the limit."""
    many = [[f"k{number}" for number in range(150)]]
    slow = World(many, Random(1), rules=LaneRules(workers=4), slow_ms=800)
    quick = World(many, Random(1), rules=LaneRules(workers=4, ahead_max=20), slow_ms=1)

    slow.drain()
    quick.drain()

    assert slow.most_in_hand <= 6
    assert 4 < quick.most_in_hand <= 24


def test_completions_of_a_moment_are_one_request() -> None:
    """Law: completions of the same moment share a request."""
    world = World(
        [[f"k{number}" for number in range(600)]],
        Random(1),
        rules=LaneRules(workers=64),
        slow_ms=10,
    )

    world.drain()

    assert world.requests < 200


# -- event by event


class Script:
    """A core that gets events at times that the test chooses."""

    def __init__(self, rules: LaneRules = RULES, places: Sequence[Place] = (PLACE,)) -> None:
        self.core = LaneCore(rules)
        self.fetch = 0
        queues = frozenset(MessageQueue(*place, 0) for place in places)
        self.first = self.tell(0, Assigned(queues))
        self.numbers = 0

    def tell(self, now_ms: int, event: Event) -> list[Instruction]:
        found = self.core.handle(event, now_ms)
        self.core.check()
        self.fetch = max([self.fetch, *(f.sequence for f in fetches(found) if f.place == PLACE)])
        return found

    def give(
        self, now_ms: int, *lanes: tuple[str, tuple[int, ...]], asked_at_ms: int | None = None
    ) -> list[Instruction]:
        """Answer the outstanding fetch."""
        given = []
        for key, offsets in lanes:
            self.numbers += 1
            lane = Lane(0, offsets[0], self.numbers, key, offsets)
            given.append(Given(lane, tuple(message(each) for each in offsets)))
        asked = now_ms if asked_at_ms is None else asked_at_ms
        return self.tell(now_ms, Fetched(PLACE, self.fetch, tuple(given), LEASE_MS, asked))

    def done(self, now_ms: int, attempt: int, error: str | None = None) -> list[Instruction]:
        return self.tell(now_ms, Ended((Listened(AttemptId(PLACE, 0, attempt), error),)))

    def verdict(self, now_ms: int, reports: Complete, *verdicts: str) -> list[Instruction]:
        said = tuple(
            LaneVerdict(each.queue_id, each.lane, each.attempt, verdict)
            for each, verdict in zip(reports.reports, verdicts, strict=True)
        )
        return self.tell(now_ms, Answered(PLACE, reports.reports, said, now_ms))


def works(found: list[Instruction]) -> list[tuple[int, tuple[int, ...]]]:
    return [
        (each.attempt.number, tuple(m.queue_offset for m in each.messages))
        for each in found
        if isinstance(each, Work)
    ]


def completes(found: list[Instruction]) -> Complete:
    (complete,) = (each for each in found if isinstance(each, Complete))
    return complete


def completed(found: list[Instruction]) -> list[int]:
    """Return the attempts that a request ends."""
    return [r.attempt for each in found if isinstance(each, Complete) for r in each.reports]


def fetches(found: list[Instruction]) -> list[Fetch]:
    return [each for each in found if isinstance(each, Fetch)]


def test_the_first_fetch_asks_for_as_many_lanes_as_there_are_workers() -> None:
    """Law: the first fetch asks for as many lanes as there are workers; each fetch has the next number."""
    script = Script(LaneRules(workers=4, first_sequence=1_000))

    assert script.first == [Fetch(PLACE, 1_001, 4)]
    assert script.tell(5, FetchEmpty(PLACE, 1_001)) == [Fetch(PLACE, 1_002, 4)]


def test_a_fetch_without_an_answer_is_repeated_with_its_number() -> None:
    """Law: an unanswered fetch is repeated with its number after a growing pause, so that a lost answer blocks no lane."""
    script = Script()

    assert fetches(script.tell(10, FetchFailed(PLACE, 2, "reset"))) == []
    assert script.core.next_wake_ms() == 60
    assert script.tell(60, Tick()) == [Fetch(PLACE, 2, 4)]
    assert fetches(script.tell(61, FetchFailed(PLACE, 2, "reset"))) == []
    assert script.core.next_wake_ms() == 161


def test_what_a_repeated_fetch_brings_is_renewed_before_a_listener_gets_it() -> None:
    """Law: lanes of a repeated fetch are renewed before a listener gets them, because their lease may be over."""
    script = Script()
    script.tell(10, FetchFailed(PLACE, 2, "reset"))
    script.tell(60, Tick())

    found = script.give(70, ("a", (0,)), ("b", (1,)))
    renewals = completes(found)
    assert works(found) == []
    assert [each.result for each in renewals.reports] == ["renew", "renew"]
    assert works(script.verdict(75, renewals, "renewed", "stale")) == [(1, (0,))]

    assert script.core.holds(AttemptId(PLACE, 0, 1), 75 + LEASE_MS - 1)
    assert script.core.figures().in_hand == 1


def test_a_refusal_is_reported_once_and_asked_about_seldom() -> None:
    """Law: a refusal is logged once and tried again seldom, with a new number."""
    script = Script()

    told = script.tell(10, FetchFailed(PLACE, 2, "not by key", refused=True))

    assert told == [Report("error", "no lanes of orders at broker-a: not by key")]
    assert script.core.next_wake_ms() == 5_010
    assert script.tell(5_010, Tick()) == [Fetch(PLACE, 3, 4)]
    assert script.tell(5_020, FetchFailed(PLACE, 3, "not by key", refused=True)) == []


def test_messages_of_one_lane_are_given_one_after_the_other_and_other_lanes_come_first() -> None:
    """Law: messages of one lane are given one after the other, and other lanes come first."""
    script = Script(LaneRules(workers=1))

    assert works(script.give(1, ("a", (0, 2)), ("b", (1,)))) == [(1, (0,))]
    assert works(script.done(2, 1)) == [(2, (1,))]
    found = script.done(3, 2)
    assert works(found) == [(1, (2,))]
    # The completion of the other lane waits a moment for this one, and no worker is busy that could add more.
    assert completes(script.done(4, 1)).reports == (
        LaneReport(0, 1, 2, "done", 1),
        LaneReport(0, 0, 1, "done", 2),
    )


def test_completions_wait_longer_while_other_lanes_wait_for_a_worker() -> None:
    """Law: completions wait longer while other lanes wait for a worker, so that one request reports more."""
    script = Script(LaneRules(workers=1))
    script.give(0, *((f"k{each}", (each,)) for each in range(4)))

    assert completed(script.done(1, 1)) == []
    assert completed(script.done(12, 2)) == []
    assert completed(script.tell(20, Tick())) == []
    assert script.core.next_wake_ms() == 21
    assert completed(script.tell(21, Tick())) == [1, 2]


@pytest.mark.parametrize("error", [None, "it failed"])
def test_a_report_that_somebody_waits_for_does_not_wait_longer(error: str | None) -> None:
    """Law: a report that others wait for (a failure, or messages behind it) is sent soon, with those that wait already."""
    script = Script(LaneRules(workers=1))
    lanes = [Lane(0, each, each + 1, f"k{each}", (each,), behind=each) for each in (0, 1)]
    lanes += [Lane(0, each, each + 1, f"k{each}", (each,)) for each in (2, 3, 4)]
    brought = tuple(Given(lane, (message(lane.offsets[0]),)) for lane in lanes)
    script.tell(0, Fetched(PLACE, script.fetch, brought, LEASE_MS, 0))

    assert completed(script.done(1, 1)) == []
    assert completed(script.done(2, 2, error)) == []
    assert script.core.next_wake_ms() == 4
    assert completed(script.tell(4, Tick())) == [1, 2]


def test_more_lanes_wait_here_where_brokers_are_slow() -> None:
    """Law: the slower the broker answers, the more lanes wait here, up to a limit."""
    asked = []
    for took_ms in (1, 100, 1_000, 10_000):
        script = Script(LaneRules(workers=2))
        reports = (LaneReport(0, 0, 99, "done", 0),)
        verdicts = LaneVerdicts().of(reports)
        for each in range(100):
            now_ms = 20_000 + each
            script.tell(now_ms, Answered(PLACE, reports, verdicts, now_ms - took_ms))
        script.give(30_000, ("a", (0,)), ("b", (1,)))
        asked += [each.lanes_max for each in fetches(script.done(30_010, 1))]

    assert asked == [11, 41, 101, 101]


def test_a_batch_gives_several_messages_of_one_lane_in_one_call() -> None:
    """Law: a call gets at most batch_max messages, all of one lane."""
    script = Script(LaneRules(workers=2, batch_max=2))

    assert works(script.give(1, ("a", (0, 2, 4)), ("b", (1,)))) == [(1, (0, 2)), (2, (1,))]


def test_long_keys_that_begin_alike_are_worked_on_side_by_side() -> None:
    """Law: long keys with the same shown begin are different lanes and run in parallel."""
    script = Script(LaneRules(workers=3))
    long = "k" * KEY_LENGTH_SHOWN

    found = script.give(1, (long, (0,)), (long, (1,)), (long, (2,)))

    assert works(found) == [(1, (0,)), (2, (1,)), (3, (2,))]


def test_a_lane_that_has_failed_comes_message_by_message() -> None:
    """Law: after a failure a lane is given message by message, because the failed batch was a try of its first message."""
    script = Script(LaneRules(workers=1, batch_max=3))
    offsets = (0, 2, 4)
    lane = Lane(0, 0, 1, "a", offsets, tries=1)
    given = Given(lane, tuple(message(each) for each in offsets))

    found = script.tell(1, Fetched(PLACE, script.fetch, (given,), LEASE_MS, 1))

    assert works(found) == [(1, (0,))]
    assert works(script.done(2, 1)) == [(1, (2,))]
    said = completes(script.done(3, 1, "ValueError: no")).reports
    assert said == (LaneReport(0, 0, 1, "retry", 0, reason="ValueError: no"),)


def test_a_failure_says_what_was_done_before_it() -> None:
    """Law: a failure reports the last completed message, the delay that the listener wants, and the maximum of tries."""
    script = Script(LaneRules(workers=1, tries_max=5))
    script.give(1, ("a", (0, 2, 4)))
    script.done(2, 1)

    found = script.tell(3, Ended((Listened(AttemptId(PLACE, 0, 1), "ValueError: no", 700),)))

    assert completes(found).reports == (LaneReport(0, 0, 1, "retry", 0, 700, 5, "ValueError: no"),)


def test_a_record_that_cannot_be_read_fails_alone() -> None:
    """Law: an unreadable record fails alone; messages before it are done, and a lane behind it is given back without a try."""
    script = Script(LaneRules(workers=4, tries_max=5))
    bad = Given(Lane(0, 0, 1, "a", (0, 2)), (message(0),), 2, "unreadable record")
    behind = Given(Lane(0, 1, 2, "b", (1,)), (), 1)

    script.tell(1, Fetched(PLACE, 2, (bad, behind), LEASE_MS, 0))
    reports = completes(script.tell(3, Tick()))
    assert reports.reports == (LaneReport(0, 1, 2, "release", -1),)
    script.verdict(3, reports, "released")

    assert completes(script.done(4, 1)).reports == (
        LaneReport(0, 0, 1, "retry", 0, tries_max=5, reason="unreadable record"),
    )


def test_a_lease_is_renewed_while_the_listener_runs() -> None:
    """Law: a lease is renewed in time while the listener runs, with the messages done so far."""
    script = Script(LaneRules(workers=1, renew_ms=5_000))
    script.give(100, ("a", (0, 2)), asked_at_ms=50)
    script.done(200, 1)
    attempt = AttemptId(PLACE, 0, 1)

    assert script.core.next_wake_ms() == 5_100
    script.tell(5_100, Tick())
    renewal = completes(script.tell(5_102, Tick()))
    assert renewal.reports == (LaneReport(0, 0, 1, "renew", 0),)
    script.verdict(5_110, renewal, "renewed")

    assert script.core.holds(attempt, 20_109)
    assert not script.core.holds(attempt, 20_110)


@pytest.mark.parametrize("how", ["stale", "silence"])
def test_what_a_lost_lane_did_is_not_reported(how: str) -> None:
    """Law: after a lost lease (by the broker's word or the clock), the listener's result is not reported, and the log says so."""
    script = Script(LaneRules(workers=1, renew_ms=5_000))
    script.give(0, ("a", (0,)))
    attempt = AttemptId(PLACE, 0, 1)
    script.tell(5_000, Tick())
    renewal = completes(script.tell(5_002, Tick()))

    if how == "stale":
        found = script.verdict(5_003, renewal, "stale")
    else:
        script.tell(5_010, CompleteFailed(PLACE, renewal.reports, "no answer"))
        found = script.tell(15_000, Tick())

    assert [each.level for each in found if isinstance(each, Report)] == ["warning"]
    assert not script.core.holds(attempt, 15_000)
    assert not any(isinstance(each, Complete) for each in script.done(15_001, 1))
    assert script.core.figures().lost == 1
    assert script.core.is_idle


@pytest.mark.parametrize("verdict", ["renewed", "stale"])
def test_a_renewal_counts_that_is_answered_between_two_messages_of_a_lane(verdict: str) -> None:
    """Law: a renewal answered while the lane waits for its worker counts: the lease is longer, or no listener is called."""
    script = Script(LaneRules(workers=1, renew_ms=5_000))
    script.give(0, ("a", (0, 2, 4)))
    script.done(1, 1)
    script.give(4_000, ("b", (1, 3)))
    script.tell(5_000, Tick())
    renewal = completes(script.tell(5_002, Tick()))
    assert renewal.reports == (LaneReport(0, 0, 1, "renew", 0),)
    assert works(script.done(5_003, 1)) == [(2, (1,))]

    script.verdict(5_010, renewal, verdict)

    if verdict == "stale":
        assert works(script.done(5_020, 2)) == [(2, (3,))]
        assert (script.core.figures().in_hand, script.core.figures().lost) == (1, 1)
    else:
        assert works(script.done(5_020, 2)) == [(1, (4,))]
        assert script.core.holds(AttemptId(PLACE, 0, 1), 20_009)
        assert not script.core.holds(AttemptId(PLACE, 0, 1), 20_010)


def test_a_lane_that_comes_back_waits_for_its_former_listener() -> None:
    """Law: if a lane comes back while its former listener runs, it waits for that listener."""
    script = Script(LaneRules(workers=2, renew_ms=5_000))
    script.give(0, ("a", (0,)))
    script.tell(5_000, Tick())
    renewal = completes(script.tell(5_002, Tick()))
    script.verdict(5_003, renewal, "stale")

    assert works(script.give(5_010, ("a", (0,)))) == []
    assert works(script.done(5_020, 1)) == [(2, (0,))]


def test_a_lane_that_waits_for_its_former_listener_keeps_no_worker_from_other_lanes() -> None:
    """Law: a lane that waits for its former listener, which may never return, takes no worker from others."""
    script = Script(LaneRules(workers=2, renew_ms=5_000))
    script.give(0, ("a", (0,)))
    script.tell(5_000, Tick())
    renewal = completes(script.tell(5_002, Tick()))
    script.verdict(5_003, renewal, "stale")

    found = script.give(5_010, ("a", (0,)))

    assert [each.lanes_max for each in fetches(found)] == [1]


def test_a_lane_that_comes_late_is_worked_on_where_a_worker_is_free() -> None:
    """Law: a lane that arrives late in its lease is worked on if a worker is free."""
    script = Script(LaneRules(workers=1))

    found = script.give(10_500, ("a", (0,)), asked_at_ms=0)

    assert works(found) == [(1, (0,))]
    renewal = completes(script.tell(10_502, Tick()))
    assert renewal.reports == (LaneReport(0, 0, 1, "renew", -1),)
    script.verdict(10_600, renewal, "renewed")
    assert script.core.holds(AttemptId(PLACE, 0, 1), 20_000)


def test_a_lane_that_waits_in_vain_for_a_worker_goes_back() -> None:
    """Law: a lane that waits too long for a worker is given back, because another member may have one."""
    script = Script(LaneRules(workers=1, renew_ms=5_000))
    script.give(0, ("a", (0,)), ("b", (1,)))
    script.tell(5_000, Tick())

    reports = completes(script.tell(5_002, Tick())).reports
    assert sorted(reports, key=lambda each: each.lane) == [
        LaneReport(0, 0, 1, "renew", -1),
        LaneReport(0, 1, 2, "release", -1),
    ]


def test_reports_without_an_answer_are_said_again_and_the_newest_stands() -> None:
    """Law: unanswered reports are repeated; a newer one of the same lane replaces the older."""
    script = Script(LaneRules(workers=1, renew_ms=5_000))
    script.give(0, ("a", (0,)))
    script.tell(5_000, Tick())
    renewal = completes(script.tell(5_002, Tick()))
    script.done(5_003, 1)

    script.tell(5_010, CompleteFailed(PLACE, renewal.reports, "no answer"))

    assert completes(script.tell(5_060, Tick())).reports == (LaneReport(0, 0, 1, "done", 0),)


def test_a_refused_completion_ends_what_it_spoke_of() -> None:
    """Law: a refused completion (no group, or by queue now) drops its lanes."""
    script = Script(LaneRules(workers=1))
    script.give(0, ("a", (0,)))
    complete = completes(script.done(1, 1))

    script.tell(2, CompleteFailed(PLACE, complete.reports, "no group", refused=True))

    assert script.core.is_idle
    assert script.core.figures().lost == 1


def test_suspending_calls_and_fetches_nothing() -> None:
    """Law: a suspended consumer calls and fetches nothing; messages of an outstanding fetch wait."""
    script = Script()
    script.tell(1, Paused())

    assert script.give(2, ("a", (0,))) == []
    assert works(script.tell(3, Resumed())) == [(1, (0,))]


def test_closing_gives_back_what_waits_and_finishes_what_runs() -> None:
    """Law: closing fetches nothing, finishes running calls and gives the rest back."""
    script = Script(LaneRules(workers=1))
    found = script.give(1, ("a", (0, 2)), ("b", (1,)))
    assert fetches(found) == []

    released = completes(script.tell(2, Closing()) + script.tell(4, Tick()))
    assert released.reports == (LaneReport(0, 1, 2, "release", -1),)
    script.verdict(5, released, "released")
    last = completes(script.done(6, 1))
    assert last.reports == (LaneReport(0, 0, 1, "release", 0),)
    assert not script.core.is_idle
    assert script.verdict(7, last, "released") == []
    assert script.core.is_idle


def test_what_a_fetch_brings_after_closing_goes_back_immediately() -> None:
    """Law: lanes that a fetch brings after closing are given back immediately."""
    script = Script(LaneRules(workers=2))
    assert fetches(script.give(1, ("a", (0,)))) == [Fetch(PLACE, 3, 1)]

    assert script.tell(2, Closing()) == []
    found = script.give(3, ("b", (1,))) + script.tell(9, Tick())

    assert works(found) == []
    assert fetches(found) == []
    assert completes(found).reports == (LaneReport(0, 1, 2, "release", -1),)


def test_closing_waits_for_no_fetch() -> None:
    """Law: closing does not wait for a fetch."""
    script = Script()

    assert script.tell(1, Closing()) == []
    assert script.core.is_idle
    assert script.tell(2, FetchFailed(PLACE, 2, "no answer")) != []
    assert script.tell(9_000, Tick()) == []


def test_what_is_cut_off_goes_back() -> None:
    """Law: when an async listener is cut off, its lane is given back."""
    script = Script(LaneRules(workers=1))
    script.give(1, ("a", (0,)))
    script.tell(2, Closing())

    found = script.tell(30_000, CutOff())

    assert not script.core.holds(AttemptId(PLACE, 0, 1), 30_000)
    assert not found or completes(found).reports == (LaneReport(0, 0, 1, "release", -1),)


def test_what_a_thread_works_on_is_not_given_back() -> None:
    """Law: a lane with a running thread is not given back, because nothing can cancel a thread; its lease ends it."""
    script = Script(LaneRules(workers=2))
    script.give(1, ("a", (0,)), ("b", (1,)))
    script.tell(2, Closing())

    found = completes(script.tell(10, CutOff(frozenset({AttemptId(PLACE, 0, 1)}))))

    assert found.reports == (LaneReport(0, 1, 2, "release", -1),)
    script.verdict(11, found, "released")
    assert script.core.is_idle


def test_nothing_is_fetched_while_half_of_what_may_wait_does_so() -> None:
    """Law: nothing is fetched while at least half of the lanes that may wait do so, because each fetch is a log entry."""
    script = Script(LaneRules(workers=2, ahead_max=20))
    script.give(1, ("a", (0,)), ("b", (1,)))
    assert fetches(script.done(1, 1)) == [Fetch(PLACE, 3, 21)]
    script.give(1, *((f"k{offset}", (offset,)) for offset in range(2, 23)))

    asked = [fetches(script.done(1, attempt)) for attempt in range(2, 23)]

    # Two of 22 lanes are with the workers; ten wait when ten are done.
    assert [(place, each) for place, each in enumerate(asked, 1) if each] == [
        (10, [Fetch(PLACE, 4, 10)])
    ]


@pytest.mark.parametrize("event", [Paused(), Closing()])
def test_a_listener_that_was_not_called_yet_is_not_called_any_more(event: Event) -> None:
    """Law: a listener that waits for its turn when the consumer is suspended or closed is not called."""
    script = Script(LaneRules(workers=1, batch_max=2))
    script.give(1, ("a", (0, 2, 4)))
    attempt = AttemptId(PLACE, 0, 1)
    assert script.core.may_start(attempt, 2)

    script.tell(2, event)

    assert not script.core.may_start(attempt, 2)
    found = script.tell(3, Ended((WorkDropped(attempt),)))
    if isinstance(event, Paused):
        assert works(script.tell(4, Resumed())) == [(1, (0, 2))]
    else:
        assert completes(found).reports == (LaneReport(0, 0, 1, "release", -1),)
