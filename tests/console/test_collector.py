"""The collector: one answer for all viewers, no question when nobody looks, and a reason if there is no answer."""

import asyncio

import pytest

from orderlymq import ownedtasks
from orderlymq.errors import BrokerUnreachable
from orderlymq_console.app import Console
from orderlymq_console.collector import (
    ASKING_MAX,
    CHANGED_S,
    INTERVAL_S,
    SILENT_S,
    WAITING_MAX,
    Collector,
)


class Clock:
    """Time that stands until it is moved."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Broker:
    """Answers with rising numbers, when the test allows it."""

    def __init__(self) -> None:
        self.asked = 0
        self.lets = asyncio.Event()
        self.lets.set()

    async def ask(self) -> int:
        self.asked += 1
        number = self.asked
        await self.lets.wait()
        return number


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def test_a_hundred_viewers_cost_one_question_a_second(clock: Clock) -> None:
    """Law: a hundred viewers cost one question a second, including those who come while it is open."""
    collector, broker = Collector(clock=clock), Broker()
    broker.lets.clear()
    waiting = [asyncio.create_task(collector.read("status", broker.ask)) for _ in range(100)]
    await asyncio.sleep(0)
    broker.lets.set()

    first = [await each for each in waiting]
    clock.now_s += INTERVAL_S / 2
    again = [await collector.read("status", broker.ask) for _ in range(100)]
    asked = broker.asked
    clock.now_s += INTERVAL_S / 2
    later = await collector.read("status", broker.ask)

    assert {each.value for each in first + again} == {1}
    assert (asked, later.value) == (1, 2)
    assert collector.age_s(again[0]) == INTERVAL_S


async def test_no_question_is_asked_more_often_than_once_a_second(clock: Clock) -> None:
    """Law: no question is asked more than once a second, whatever interval a page asks for."""
    collector, broker = Collector(clock=clock), Broker()
    for _ in range(20):
        await collector.read("status", broker.ask, every_s=0.0)
        clock.now_s += INTERVAL_S / 10

    assert broker.asked == 2


async def test_an_answer_of_another_version_is_asked_again(clock: Clock) -> None:
    """Law: an answer is asked again some seconds after its mark (version) changes, and not while it stays."""
    collector, broker = Collector(clock=clock), Broker()

    async def look(mark: int) -> int | None:
        clock.now_s += CHANGED_S
        return (await collector.read("topics", broker.ask, every_s=60.0, mark=mark)).value

    assert [await look(mark) for mark in (1, 1, 1, 2, 2, 3)] == [1, 1, 1, 2, 2, 3]


async def test_nothing_is_asked_while_nobody_looks(clock: Clock) -> None:
    """Law: nothing is asked while nobody looks, and no task is left."""
    collector, broker = Collector(clock=clock), Broker()
    await collector.read("status", broker.ask)

    clock.now_s += 3_600
    await asyncio.sleep(0)

    assert broker.asked == 1
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("ask ")] == []


async def test_a_failure_is_unknown_with_its_reason_and_not_asked_again_immediately(
    clock: Clock,
) -> None:
    """Law: a failure is unknown with its reason, and is not asked again for each viewer."""
    collector = Collector(clock=clock)
    asked = 0

    async def fail() -> int:
        nonlocal asked
        asked += 1
        raise BrokerUnreachable("the broker group broker-a has no leader now; try again")

    readings = [await collector.read("status", fail) for _ in range(5)]

    assert asked == 1
    assert {(each.value, each.unknown) for each in readings} == {
        (None, "the broker group broker-a has no leader now; try again")
    }


@pytest.mark.parametrize("error", [KeyError("term"), ValueError("no number"), TypeError("x")])
async def test_an_answer_in_another_form_is_unknown(clock: Clock, error: Exception) -> None:
    """Law: an answer of another form is unknown with its reason, and does not break the page."""

    async def fail() -> int:
        raise error

    reading = await Collector(clock=clock).read("status", fail)

    assert reading.value is None
    assert "cannot be read" in reading.unknown


async def test_a_silent_broker_is_unknown_after_a_time(clock: Clock) -> None:
    """Law: a question that gets no answer ends after its timeout, as unknown."""
    reading = await Collector(clock=clock).read("status", asyncio.Event().wait, timeout_s=0.01)

    assert (reading.value, reading.unknown) == (None, "no answer within 0.01 s")


async def test_a_broker_group_that_hangs_takes_no_turns_of_another_one(clock: Clock) -> None:
    """Law: questions to a broker group that hangs wait only for each other, and have a limit of their own."""
    collector, hanging, healthy = Collector(clock=clock), Broker(), Broker()
    hanging.lets.clear()
    tasks = [
        asyncio.create_task(collector.read(("x", number), hanging.ask, of="broker-a"))
        for number in range(WAITING_MAX)
    ]
    await asyncio.sleep(0)

    async with asyncio.timeout(1.0):
        answer = await collector.read("y", healthy.ask, of="broker-b")
    hanging.lets.set()
    await asyncio.gather(*tasks)

    assert (answer.value, hanging.asked) == (1, WAITING_MAX)


@pytest.mark.parametrize("answers", [False, True])
async def test_who_waits_for_a_turn_at_a_broker_group_that_hangs_learns_so(
    clock: Clock, answers: bool
) -> None:
    """Law: questions that wait for a hanging broker group fail with it and are not sent one by one; if one was answered,
    others are sent.
    """
    collector, lets = Collector(clock=clock), asyncio.Event()
    asked = 0

    async def ask() -> int:
        nonlocal asked
        number = asked = asked + 1
        await lets.wait()
        if answers and not 1 < number <= ASKING_MAX:
            return number
        raise BrokerUnreachable("it did not answer within 3 s")

    tasks = [
        asyncio.create_task(collector.read(("x", number), ask, of="broker-a"))
        for number in range(3 * ASKING_MAX)
    ]
    for _ in range(5):
        await asyncio.sleep(0)
    lets.set()
    found = await asyncio.gather(*tasks)
    later = await collector.read("y", ask, of="broker-a")

    assert asked == (3 * ASKING_MAX if answers else ASKING_MAX) + 1
    assert sum(each.is_silent for each in [*found, later]) == (
        ASKING_MAX - 1 if answers else 3 * ASKING_MAX + 1
    )


async def test_while_somebody_is_silent_nobody_waits_for_it_again(clock: Clock) -> None:
    """Law: while a broker is silent its failure is the answer for some seconds,
    and the next question is sent without anybody waiting.
    """
    collector, broker = Collector(clock=clock), Broker()
    broker.lets.clear()
    first = await collector.read("status", broker.ask, timeout_s=0.01)
    clock.now_s += INTERVAL_S

    again = await collector.read("status", broker.ask)
    await asyncio.sleep(0)
    broker.lets.set()
    while collector.silence("status"):  # noqa: ASYNC110 - nothing signals it
        await asyncio.sleep(0)

    assert (again.value, again.unknown) == (None, first.unknown)
    assert (await collector.read("status", broker.ask)).value == broker.asked == 2
    broker.lets.clear()
    clock.now_s += INTERVAL_S
    await collector.read("status", broker.ask, timeout_s=0.01)
    clock.now_s += SILENT_S
    assert collector.silence("status") is None


async def test_a_viewer_who_leaves_takes_nothing_from_the_others(clock: Clock) -> None:
    """Law: a viewer that leaves does not cancel the question for the others."""
    collector, broker = Collector(clock=clock), Broker()
    broker.lets.clear()
    leaving, staying = (asyncio.create_task(collector.read("status", broker.ask)) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.sleep(0)
    broker.lets.set()

    assert (await staying).value == 1


async def test_no_answer_is_forgotten_before_it_is_asked_again(clock: Clock) -> None:
    """Law: pages with hundreds of questions drop no answer before it would be asked again."""
    collector, broker = Collector(clock=clock), Broker()
    await collector.read("topics", broker.ask, every_s=60.0)
    for second in range(20):
        for viewer in range(3):
            clock.now_s += 0.3 if viewer else 0.4
            for number in range(600):
                await collector.read(("x", second, number), broker.ask)
    asked = broker.asked
    await collector.read("topics", broker.ask, every_s=60.0)

    assert asked == 1 + 20 * 600
    assert broker.asked == asked


async def test_answers_and_waiting_questions_have_a_limit(clock: Clock) -> None:
    """Law: kept answers and waiting questions have limits; the answer unused for longest is dropped first."""
    collector, broker = Collector(clock=clock, answers_max=2), Broker()
    for about in ("a", "b", "a", "c"):
        await collector.read(about, broker.ask)
    assert broker.asked == 3
    await collector.read("a", broker.ask)
    assert broker.asked == 3
    await collector.read("b", broker.ask)
    assert broker.asked == 4

    broker.lets.clear()
    tasks = [
        asyncio.create_task(collector.read(("x", number), broker.ask))
        for number in range(WAITING_MAX)
    ]
    await asyncio.sleep(0)
    beyond = await collector.read(("x", "beyond"), broker.ask)
    await collector.close()
    await asyncio.gather(*tasks, return_exceptions=True)

    assert beyond.unknown == "too many requests are waiting; try again"


async def test_a_console_that_nobody_looks_at_goes_on_to_look(
    lonely: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: the regular look of a console goes on after an error, which is logged, so the last hour stays known."""
    monkeypatch.setattr(ownedtasks, "RESTART_S", 0.0)

    def looks() -> list[asyncio.Task[object]]:
        return [each for each in asyncio.all_tasks() if each.get_name() == "look"]

    (first,) = looks()
    first.cancel()
    await asyncio.wait([first])

    while not looks():  # noqa: ASYNC110 - nothing signals it
        await asyncio.sleep(0.01)
    assert looks() != [first]
