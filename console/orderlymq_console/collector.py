"""
Readings from brokers with their times; any number of viewers share one answer.

Rules: a question is not asked again while its answer is younger than its interval. Viewers who ask while a question is under way
share it. The collector asks nothing by itself. A failure is an answer, too: it has a reason and an age.
The numbers of answers and questions are limited. Expired answers are dropped, and beyond `ANSWERS_MAX` those unused for longest, too.
A silent broker group does not delay the others, because each has turns of its own. While it is silent, its failure is
the answer, and the next question is asked in the background. Questions that wait for a turn are not asked if the ones before them
found the broker group silent.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from orderlymq.errors import BrokerUnreachable, NameServersUnreachable, OrderlyMQError

T = TypeVar("T")

#: No question is asked more often than this.
INTERVAL_S: Final = 1.0
# Data with a version is large: if a cluster creates topics all the time, its list is not sent every second.
CHANGED_S: Final = 5.0
# A leader election takes less, and a viewer does not wait longer for a page.
TIMEOUT_S: Final = 4.0
# An answer takes some kilobytes. The catalogues of 10,000 topics take a few megabytes, but there are few of them. Pages of a large
# cluster need some thousand answers a second; expired answers are dropped long before this limit.
ANSWERS_MAX: Final = 8_192
_SWEEP_MIN: Final = 512
# Questions under way at one broker group; more would be a burst at a leader that is already in trouble.
ASKING_MAX: Final = 8
WAITING_MAX: Final = 256
#: How long a silent broker group's failure is the answer; a question to a hanging broker takes `TIMEOUT_S`.
SILENT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """The result of one request.

    Attributes:
        value: the answer; None if there is none.
        unknown: why there is no answer; empty if there is one.
        at_s: when it came, in seconds of the collector's clock.
        mark: the version of the data that was asked for, if it has one.
        is_silent: no process answered; False if one answered with an error.
        until_s: when the answer expires.
    """

    value: T | None
    unknown: str
    at_s: float
    mark: Hashable = None
    is_silent: bool = False
    until_s: float = 0.0


@dataclass(slots=True)
class _Turns:
    """Questions to one broker group, or of one kind.

    Attributes:
        is_one: all of them ask the same broker group.
        waiting: questions that wait or are under way.
        answered: number of answered questions, by which a question sees whether it alone got no answer.
        silence: the last failure, if no process answered any of the last questions.
    """

    is_one: bool
    free: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(ASKING_MAX))
    waiting: int = 0
    answered: int = 0
    silence: Reading[Any] | None = None


class Collector:
    """Asks questions, remembers the answers, and shares them among viewers; `close` ends the questions under way."""

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, answers_max: int = ANSWERS_MAX
    ) -> None:
        self._clock = clock
        self._answers_max = answers_max
        self._answers: OrderedDict[Hashable, Reading[Any]] = OrderedDict()
        self._sweep_at = _SWEEP_MIN
        self._asking: dict[Hashable, asyncio.Task[Reading[Any]]] = {}
        self._turns: dict[Hashable, _Turns] = {}
        self.asked = 0

    def age_s(self, reading: Reading[Any]) -> float:
        """Return the age of a reading in seconds."""
        return max(0.0, self._clock() - reading.at_s)

    def now_s(self) -> float:
        """Return the time of the collector's clock in seconds."""
        return self._clock()

    def silence(self, about: Hashable) -> Reading[Any] | None:
        """Return the last answer to a question if it is a recent failure in which no process answered; None otherwise."""
        known = self._answers.get(about)
        is_silent = known is not None and known.is_silent and self.age_s(known) < SILENT_S
        return known if is_silent else None

    async def read(
        self,
        about: Hashable,
        ask: Callable[[], Awaitable[T]],
        *,
        of: Hashable = None,
        every_s: float = INTERVAL_S,
        timeout_s: float = TIMEOUT_S,
        mark: Hashable = None,
    ) -> Reading[T]:
        """Return the answer to a question, asked now or at most *every_s* ago.

        Args:
            about: identifies the question; equal questions share their answer.
            ask: asks it; errors of the SDK become the reason why the answer is unknown.
            of: the target of the question, such as a broker group; if not given, questions of one kind share their turns.
            every_s: how old an answer may be, at least `INTERVAL_S`.
            timeout_s: how long one answer may take.
            mark: version of the data; an answer of another version is asked again after `CHANGED_S`.
        """
        known = self._answers.get(about)
        old_s = max(INTERVAL_S, every_s)
        if known is not None and known.mark != mark:
            old_s = min(old_s, CHANGED_S)
        if known is not None and self._clock() - known.at_s < old_s:
            self._answers.move_to_end(about)
            return known
        task = self._asking.get(about)
        if task is None:
            whom: Hashable = of
            if of is None:
                whom = about[0] if isinstance(about, tuple) else about
            turns = self._turns.setdefault(whom, _Turns(is_one=of is not None))
            if turns.waiting >= WAITING_MAX:
                return Reading(None, "too many requests are waiting; try again", self._clock())
            turns.waiting += 1
            asking = self._ask(about, ask, whom, max(INTERVAL_S, every_s), timeout_s, mark)
            task = asyncio.create_task(asking, name=f"ask {about}")
            self._asking[about] = task
        silence = self.silence(about)
        return silence if silence is not None else await asyncio.shield(task)

    async def close(self) -> None:
        """Cancel all questions under way."""
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(
        self,
        about: Hashable,
        ask: Callable[[], Awaitable[T]],
        of: Hashable,
        every_s: float,
        timeout_s: float,
        mark: Hashable,
    ) -> Reading[T]:
        turns = self._turns[of]
        try:
            async with turns.free:
                if turns.silence is not None:
                    return turns.silence
                before = turns.answered
                self.asked += 1
                value, unknown, is_silent = await _answer(ask, timeout_s)
                now_s = self._clock()
                until_s = now_s + max(every_s, SILENT_S if is_silent else 0.0)
                reading = Reading(value, unknown, now_s, mark, is_silent, until_s)
                if not is_silent:
                    turns.answered += 1
                    turns.silence = None
                elif turns.is_one and turns.answered == before:
                    turns.silence = reading
            self._keep(about, reading)
            return reading
        finally:
            del self._asking[about]
            turns.waiting -= 1
            if not turns.waiting:
                del self._turns[of]

    def _keep(self, about: Hashable, reading: Reading[Any]) -> None:
        self._answers[about] = reading
        self._answers.move_to_end(about)
        if len(self._answers) > self._sweep_at:
            now_s = self._clock()
            for each in [each for each, known in self._answers.items() if known.until_s <= now_s]:
                del self._answers[each]
            self._sweep_at = max(_SWEEP_MIN, 2 * len(self._answers))
        while len(self._answers) > self._answers_max:
            self._answers.popitem(last=False)


async def _answer(ask: Callable[[], Awaitable[T]], timeout_s: float) -> tuple[T | None, str, bool]:
    """Return the answer, the reason why there is none, and whether no process answered."""
    try:
        async with asyncio.timeout(timeout_s):
            return await ask(), "", False
    except TimeoutError:
        return None, f"no answer within {timeout_s:g} s", True
    except OrderlyMQError as error:
        return None, str(error), isinstance(error, BrokerUnreachable | NameServersUnreachable)
    except (ValueError, KeyError, TypeError) as error:
        # The answer has another form: the broker has another version, or the process is not a broker.
        return None, f"the answer cannot be read: {type(error).__name__}: {error}", False
