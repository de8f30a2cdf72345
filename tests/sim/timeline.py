"""
Simulated time: one queue of events, and processes whose clocks drift and which can be stopped.

Rule: nothing here reads a real clock or an unseeded random number. Events at one instant run in the order in which
they were planned, so a seed always gives the same run. An event belongs to a process: it is dropped when the process
ends, and waits while the process is paused.
"""

import random
from collections.abc import Callable
from hashlib import blake2b
from heapq import heappop, heappush
from typing import Final

from orderlymq_broker.core.effects import Now

MS: Final = 1_000
SECOND: Final = 1_000_000
START_WALL_MS: Final = 1_700_000_000_000

# Quartz clocks drift by some 50 millionths. The broker's guarantees need clocks no worse than this: the drift between
# two clocks during a lease of some seconds must be less than a round trip.
DRIFT_MAX: Final = 50e-6

# A process that was paused finds data on all its connections and due timers, and handles them in any order.
WAKE_MAX_US: Final = 3 * MS

Call = Callable[[], None]


class Timeline:
    """The queue of events; times are microseconds since the run began."""

    def __init__(self, seed: int) -> None:
        self.now = 0
        self.steps = 0
        self.random = random.Random(seed)
        self._queue: list[tuple[int, int, Process | None, int, str, Call]] = []
        self._planned = 0
        self._digest = blake2b(digest_size=16)
        self.trace: Callable[[str], None] | None = None

    def note(self, text: str) -> None:
        """Add *text* to what two runs of a seed must have in common."""
        self._digest.update(b"%d " % self.now)
        self._digest.update(text.encode())
        if self.trace is not None:
            self.trace(f"{self.now / SECOND:10.6f}  {text}")

    def digest(self) -> str:
        """Return the hash of all events so far."""
        return self._digest.hexdigest()

    def at(self, time_us: int, name: str, call: Call, process: "Process | None" = None) -> None:
        """Plan *call*; it is dropped if its process has ended by then."""
        self._planned += 1
        life = 0 if process is None else process.life
        heappush(self._queue, (max(time_us, self.now), self._planned, process, life, name, call))

    def after(self, delay_us: int, name: str, call: Call, process: "Process | None" = None) -> None:
        """Plan *call* for later."""
        self.at(self.now + delay_us, name, call, process)

    def run(self, until_us: int, steps_max: int | None = None) -> bool:
        """Run events until *until_us*; return False if *steps_max* ended it."""
        queue = self._queue
        while queue and queue[0][0] <= until_us:
            if steps_max is not None and self.steps >= steps_max:
                return False
            time_us, number, process, life, name, call = heappop(queue)
            if process is not None:
                if process.life != life:
                    continue
                if process.paused_until > time_us:
                    # The order of planning is kept: the process that waited first runs first.
                    heappush(queue, (process.paused_until, number, process, life, name, call))
                    continue
            self.now = time_us
            self.steps += 1
            self._digest.update(b"%d %s" % (time_us, name.encode()))
            call()
        self.now = until_us
        return True


class Process:
    """A simulated process that runs, stops, is paused and has its own clocks.

    Attributes:
        life: rises with every start and every end, so that events of a former life are recognised.
        paused_until: the process is paused before this time.
        wrong_ms: how far its machine's time of day is ahead of a correct clock.
    """

    def __init__(self, timeline: Timeline, name: str) -> None:
        self.timeline = timeline
        self.name = name
        self.life = 1
        self.alive = False
        self.paused_until = 0
        self._rate = 1 + timeline.random.uniform(-DRIFT_MAX, DRIFT_MAX)
        self._boot_us = timeline.random.randrange(3600 * SECOND)
        self.wall_offset_ms = timeline.random.randrange(-5_000, 5_000)
        self.wrong_ms = 0

    # -- clocks

    @property
    def clock_us(self) -> int:
        """Return the monotonic clock of the machine."""
        return self._boot_us + int(self.timeline.now * self._rate)

    def true_time(self, clock_us: int) -> int:
        """Return the simulated time at which this machine's clock shows *clock_us*, rounded up."""
        return int((clock_us - self._boot_us) / self._rate) + 2

    def now_ms(self) -> int:
        """Return the monotonic clock in ms."""
        return self.clock_us // MS

    def now(self) -> Now:
        """Return both clocks, in the form that brokers use."""
        wall_ms = START_WALL_MS + self.timeline.now // MS + self.wall_offset_ms + self.wrong_ms
        return Now(wall_ms, self.clock_us // MS)

    def seconds(self) -> float:
        """Return the monotonic clock in seconds."""
        return self.clock_us / SECOND

    # -- life

    @property
    def paused(self) -> bool:
        """Return whether the process is paused now."""
        return self.paused_until > self.timeline.now

    def begin(self) -> None:
        """Start a new life."""
        self.life += 1
        self.alive = True
        self.paused_until = 0

    def end(self) -> None:
        """End; events planned for this life are dropped."""
        self.life += 1
        self.alive = False
        self.paused_until = 0

    def after(self, delay_us: int, name: str, call: Call) -> None:
        """Plan an event of this life."""
        self.timeline.at(self.timeline.now + delay_us, f"{self.name} {name}", call, self)

    def after_waking(self, delay_us: int, name: str, call: Call) -> None:
        """Plan an event of this life; if a pause delays it, it runs after waking, in any order with others."""
        due = self.timeline.now + delay_us

        def wake() -> None:
            if self.timeline.now > due:
                self.after(self.timeline.random.randrange(WAKE_MAX_US), name, call)
            else:
                call()

        self.after(delay_us, name, wake)
