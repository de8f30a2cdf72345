"""
The network: raft messages between replicas, connections of clients, and what goes wrong on the way.

Raft messages may be lost, repeated, delayed and reordered. A client's connection is TCP: what arrives is
whole and in order, or the connection stands still, and both ends find out by their time-outs. A partition
blocks directions one by one, so it may be one-way or partial.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tests.sim.timeline import MS, Process, Timeline

DELAY_MIN_US: Final = 300
DELAY_MAX_US: Final = 1_500
RESET_DELAY_US: Final = 500


@dataclass(slots=True)
class Weather:
    """How bad the network is: shares of messages, and the longest extra delay."""

    loss: float = 0.0
    repeat: float = 0.0
    slow: float = 0.0
    slow_max_us: int = 60 * MS


@dataclass
class Network:
    """Moves things between named places; *blocked* holds the directions that are cut."""

    timeline: Timeline
    weather: Weather = field(default_factory=Weather)
    blocked: set[tuple[str, str]] = field(default_factory=set)
    connections: int = 0

    def heal(self) -> None:
        """Let everything through, in time."""
        self.blocked.clear()
        self.weather = Weather()

    def is_cut(self, source: str, target: str) -> bool:
        """Tell whether nothing passes in this direction."""
        return (source, target) in self.blocked

    def delay_us(self) -> int:
        """Draw how long something is on its way."""
        random, weather = self.timeline.random, self.weather
        delay = random.randrange(DELAY_MIN_US, DELAY_MAX_US)
        if weather.slow and random.random() < weather.slow:
            delay += random.randrange(weather.slow_max_us)
        return delay

    def cast(self, source: str, target: Process, name: str, call: Callable[[], None]) -> None:
        """Bring a message to *target*, or not, or twice."""
        if self.is_cut(source, target.name) or not target.alive:
            return
        random, weather = self.timeline.random, self.weather
        if weather.loss and random.random() < weather.loss:
            return
        target.after(self.delay_us(), name, call)
        if weather.repeat and random.random() < weather.repeat:
            target.after(self.delay_us() + random.randrange(40 * MS), name, call)


class Pipe:
    """One direction of a connection: in order, or standing still for good."""

    def __init__(self, network: Network, source: str, target: Process) -> None:
        self._network = network
        self._source = source
        self._target = target
        self._free_at = 0
        self.stuck = False

    def push(self, name: str, call: Callable[[], None]) -> None:
        """Bring something to the other end, after all that went before."""
        network = self._network
        if network.is_cut(self._source, self._target.name):
            self.stuck = True
        weather, random = network.weather, network.timeline.random
        # A lost segment is sent again; a connection that loses much stands still at last.
        if weather.loss and random.random() < weather.loss / 4:
            self.stuck = True
        if self.stuck or not self._target.alive:
            return
        now = network.timeline.now
        self._free_at = max(self._free_at + 1, now + network.delay_us())
        self._target.after(self._free_at - now, name, call)
