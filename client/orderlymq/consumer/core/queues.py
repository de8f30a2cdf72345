"""
Assigned queues of both cores: generations, starts, wakes.

Rule: this module never decides what a listener gets or what is committed; `ordered` and `concurrent` do.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar

from orderlymq.consumer.core.events import (
    Event,
    FindStart,
    Instruction,
    Report,
    StartFailed,
    StopPull,
)
from orderlymq.consumer.core.fetcher import Fetcher
from orderlymq_protocol.body.messagequeue import MessageQueue

START_RETRY_MS: Final = 500


@dataclass(slots=True)
class AssignedQueue:
    """One queue of a consumer.

    Attributes:
        finding: true while its start offset is being asked for.
        find_at_ms: time at which to ask again.
        dirty: true if `committed` is not known to be at the broker.
    """

    queue: MessageQueue
    fetcher: Fetcher
    finding: bool = False
    find_at_ms: int = 0
    committed: int | None = None
    dirty: bool = False


Q = TypeVar("Q", bound=AssignedQueue)


class AssignedQueues(Generic[Q]):
    """All queues of one consumer, and the instructions that the current event has produced so far."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._queues: dict[MessageQueue, Q] = {}
        self._wanted: frozenset[MessageQueue] = frozenset()
        self._releasing: set[MessageQueue] = set()
        self._topic_queues: Counter[str] = Counter()
        self._generation = 0
        self._delivery = 0
        self._paused = False
        self._closing = False
        self._out: list[Instruction] = []
        self._wakes: dict[MessageQueue, int] = {}

    @property
    def queues(self) -> dict[MessageQueue, Q]:
        """All queues with their states; read only."""
        return self._queues

    def next_wake_ms(self) -> int | None:
        """Return the time at which the next `Tick` is due, or None."""
        return min(self._wakes.values(), default=None)

    def _concerned(self, event: Event) -> list[Q]:
        """Return the queues that an event may affect; an event about one queue costs the same however many there are."""
        one = getattr(event, "queue", None)
        states = self._queues.values() if one is None else filter(None, [self._queues.get(one)])
        return list(states)

    def _instructions(self) -> list[Instruction]:
        out, self._out = self._out, []
        return out

    def _current(self, queue: MessageQueue, generation: int) -> Q | None:
        state = self._queues.get(queue)
        return state if state is not None and state.fetcher.generation == generation else None

    def _new_fetcher(self, queue: MessageQueue, next_offset: int = -1) -> Fetcher:
        self._generation += 1
        return Fetcher(queue, self._generation, next_offset)

    def _stop_pull(self, state: Q) -> None:
        if state.fetcher.in_flight:
            self._out.append(StopPull(state.queue))
            state.fetcher.in_flight = False

    def _maybe_find(self, state: Q, now_ms: int) -> None:
        if not state.finding and now_ms >= state.find_at_ms:
            state.finding = True
            self._out.append(FindStart(state.queue, state.fetcher.generation))

    def _start_failed(self, event: StartFailed, now_ms: int) -> None:
        state = self._current(event.queue, event.generation)
        if state is None:
            return
        state.finding = False
        state.find_at_ms = now_ms + START_RETRY_MS
        self._report(
            "debug",
            f"doRebalance, {self._group}, add new mq failed, {event.queue}: {event.reason}",
        )

    def _plan(self, queue: MessageQueue, wake_ms: int | None) -> None:
        if wake_ms is None:
            self._wakes.pop(queue, None)
        else:
            self._wakes[queue] = wake_ms

    def _report(self, level: Literal["debug", "info", "warning", "error"], text: str) -> None:
        self._out.append(Report(level, text))
