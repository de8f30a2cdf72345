"""
The network: raft messages between replicas, connections of clients, and their faults.

Raft messages may be lost, repeated, delayed and reordered. A client's connection is TCP: its data arrives whole and
in order, or the connection hangs, and both ends notice by their time-outs. A partition blocks each direction
separately, so it may be one-way or partial.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from tests.sim.timeline import MS, SECOND, Process, Timeline

if TYPE_CHECKING:
    from orderlymq_raft import Message
    from tests.sim.broker.replica import Replica as FramePeer

DELAY_MIN_US: Final = 300
DELAY_MAX_US: Final = 1_500
RESET_DELAY_US: Final = 500
KERNEL_TIMEOUT_US: Final = 3 * SECOND  # TCP_USER_TIMEOUT of the links between replicas
REDIAL_US: Final = 100 * MS


@dataclass(slots=True)
class Weather:
    """The faults of the network: shares of messages, and the longest extra delay."""

    loss: float = 0.0
    repeat: float = 0.0
    slow: float = 0.0
    slow_max_us: int = 60 * MS


@dataclass
class Network:
    """Moves messages between named places; *blocked* holds the directions that are cut."""

    timeline: Timeline
    weather: Weather = field(default_factory=Weather)
    blocked: set[tuple[str, str]] = field(default_factory=set)
    connections: int = 0
    # The extra delay between two replicas, by direction.
    ways_us: dict[tuple[str, str], int] = field(default_factory=dict)
    # Selects the messages between replicas that a fault loses.
    loses: Callable[["Message"], bool] | None = None

    def heal(self) -> None:
        """Deliver everything again, in time."""
        self.blocked.clear()
        self.loses = None
        self.weather = Weather()

    def is_cut(self, source: str, target: str) -> bool:
        """Return whether nothing passes in this direction."""
        return (source, target) in self.blocked

    def are_apart(self, one: str, other: str) -> bool:
        """Return whether the two cannot connect because at least one direction is cut."""
        return self.is_cut(one, other) or self.is_cut(other, one)

    def stretch(self, names: list[str], round_trip_ms: float) -> None:
        """Draw again the delay between any two of *names*, in each direction."""
        chance = self.timeline.random
        self.ways_us = {
            (source, target): int(chance.uniform(0, round_trip_ms / 2) * MS)
            for source in names
            for target in names
            if source != target
        }

    def delay_us(self, source: str, target: str) -> int:
        """Draw the delay of one message."""
        random, weather = self.timeline.random, self.weather
        delay = random.randrange(DELAY_MIN_US, DELAY_MAX_US)
        if self.ways_us:
            delay += self.ways_us.get((source, target), 0)
        if weather.slow and random.random() < weather.slow:
            delay += random.randrange(weather.slow_max_us)
        return delay

    def cast(self, source: str, target: Process, name: str, call: Callable[[], None]) -> None:
        """Deliver a message to *target*; it may be lost or delivered twice."""
        if self.is_cut(source, target.name) or not target.alive:
            return
        random, weather = self.timeline.random, self.weather
        if weather.loss and random.random() < weather.loss:
            return
        target.after_waking(self.delay_us(source, target.name), name, call)
        if weather.repeat and random.random() < weather.repeat:
            late_us = self.delay_us(source, target.name) + random.randrange(40 * MS)
            target.after_waking(late_us, name, call)


class Pipe:
    """One direction of a connection: it delivers in order, or hangs for good."""

    def __init__(self, network: Network, source: str, target: Process) -> None:
        self._network = network
        self._source = source
        self._target = target
        self._free_at = 0
        self.stuck = False

    def push(self, name: str, call: Callable[[], None]) -> None:
        """Deliver something to the other end, after everything before it."""
        network = self._network
        if network.is_cut(self._source, self._target.name):
            self.stuck = True
        weather, random = network.weather, network.timeline.random
        # TCP resends a lost segment; a connection that loses much hangs in the end.
        if weather.loss and random.random() < weather.loss / 4:
            self.stuck = True
        if self.stuck or not self._target.alive:
            return
        now = network.timeline.now
        delay_us = network.delay_us(self._source, self._target.name)
        self._free_at = max(self._free_at + 1, now + delay_us)
        self._target.after(self._free_at - now, name, call)


class FrameLink:
    """The connection on which one replica sends frames to another: frames arrive in order, or it is lost and made again.

    Both ends learn of its end: by a reset when a process dies, else by the kernel's time-out.
    """

    def __init__(self, network: Network, source: "FramePeer", target: "FramePeer") -> None:
        self._network = network
        self._source = source
        self._target = target
        self._pipe: Pipe | None = None
        self._target_life = 0
        self._number = 0
        self._is_ending = False
        self._retry_at = 0

    @property
    def is_up(self) -> bool:
        """Return whether frames can be written, whether or not they arrive."""
        return self._pipe is not None

    def send(self, frame: bytes) -> bool:
        """Write one frame; return False if the link is down."""
        pipe = self._pipe or self._dial()
        if pipe is None:
            return False
        target = self._target
        if not target.alive or target.life != self._target_life:
            # The kernel of a living machine sends a reset; a dead machine sends nothing.
            self._end_later(RESET_DELAY_US if target.alive else KERNEL_TIMEOUT_US)
            return True
        pipe.push("frame", partial(target.frame_arrives, self._source.id, frame))
        if pipe.stuck:
            self._end_later(KERNEL_TIMEOUT_US)
        return True

    def reset(self) -> None:
        """Notify the sending end that the process at the other end has died."""
        if self._pipe is not None:
            self._end_later(RESET_DELAY_US)

    def forget(self) -> None:
        """Drop the connection: the sending process has ended."""
        self._pipe = None
        self._number += 1
        self._is_ending = False

    def _dial(self) -> Pipe | None:
        network, source, target = self._network, self._source, self._target
        now = network.timeline.now
        cut = network.are_apart(source.name, target.name)
        if now < self._retry_at or cut or not target.alive:
            self._retry_at = max(self._retry_at, now + REDIAL_US)
            return None
        self._number += 1
        self._target_life = target.life
        self._pipe = Pipe(network, source.name, target)
        self._pipe.push("greeting", partial(target.link_lost_from, source.id))
        return self._pipe

    def _end_later(self, delay_us: int) -> None:
        if self._is_ending:
            return
        self._is_ending = True
        source, target, number = self._source, self._target, self._number

        def end() -> None:
            if self._number == number:
                self.forget()
                source.link_lost_to(target.id)

        source.after(delay_us, "link lost", end)
        if target.alive and target.life == self._target_life:
            target.after(delay_us, "link lost", partial(target.link_lost_from, source.id))
