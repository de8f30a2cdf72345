"""A queue that keeps the promise, with its sender and consumer, which report to a judge as the SDK does."""

from dataclasses import dataclass, field

from orderlymq_operator.canary.troubles import Lane
from orderlymq_operator.canary.verdict import Canary, Limits

LANE = Lane("demo-0", 0)
STEP_S = 0.25


@dataclass
class World:
    """One queue.

    Attributes:
        log: the number at each offset.
        position: the next offset to deliver; a new holder begins at *committed*.
    """

    canary: Canary = field(default_factory=lambda: Canary([LANE], "run", Limits()))
    log: list[int] = field(default_factory=list)
    position: int = 0
    committed: int = 0
    now: float = 0.0

    def step(self, seconds: float = STEP_S) -> None:
        """Let time pass."""
        self.now += seconds
        self.canary.tick(self.now)

    def send(self, *, copies: int = 1, acknowledged_late: bool = False) -> int:
        """Send the next message and store it; *copies* come from an unknown outcome whose repeat was not recognised."""
        number = self.canary.send(LANE, self.now)
        offset = len(self.log)
        self.log += [number] * copies
        if acknowledged_late:
            self.deliver()
        self.acknowledge(number, offset + copies - 1)
        return number

    def acknowledge(self, number: int, offset: int) -> None:
        """Acknowledge a send."""
        self.canary.acknowledge(LANE, number, offset, LANE.queue, self.now)

    def refuse(self) -> int:
        """Refuse the next message."""
        number = self.canary.send(LANE, self.now)
        self.canary.refuse(LANE, number)
        return number

    def deliver(self) -> None:
        """Deliver all stored messages."""
        while self.position < len(self.log):
            self.give(self.log[self.position], self.position)
            self.position += 1

    def give(self, number: int, offset: int, member: str = "first") -> None:
        """Deliver one message."""
        self.canary.take(LANE, member, self.now)
        self.canary.deliver(LANE, number, offset, self.now)
        self.canary.leave(LANE, member)

    def lose_consumer(self) -> None:
        """Let another consumer go on at the committed offset."""
        self.position = self.committed

    def well(self, probes: int = 10) -> None:
        """Let everything work for a while."""
        for _ in range(probes):
            self.send()
            self.deliver()
            self.committed = self.position
            self.step(1.0)
