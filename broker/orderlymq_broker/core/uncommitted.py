"""
The leader's view: pending changes beyond the applied state.

The rules: when leadership is lost the whole view is dropped, never repaired. Pending calls keep the view that
they were made with, so nothing of an old term leaks into a new one. ``entrybuilder.py`` gives offsets,
``repeats.py`` lets repeats of pending requests wait for them, and ``state/send/duplicates.py`` has the window
of known sends.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, TypeVar

from orderlymq_broker.core.effects import Caller, Effect
from orderlymq_broker.state.records import Append, Refused
from orderlymq_broker.state.send.duplicates import DedupWindow
from orderlymq_broker.state.topics.topics import Topic
from orderlymq_protocol.frame.command import RemotingCommand

T = TypeVar("T")

# The kind and name of each object that a request needs.
Creation: TypeAlias = tuple[tuple[str, str], ...]


class Place(NamedTuple):
    """The place of a message, for the answer to its sender."""

    queue_id: int
    queue_offset: int
    physical: int


@dataclass(slots=True)
class PendingSend:
    """A pending send of a deduplicated topic.

    Attributes:
        outcome: where it is stored, or why it is not; None while that is unknown.
        waiters: functions that answer its repeats once the outcome is known.
    """

    outcome: Append | Refused | None = None
    waiters: list[Callable[[], list[Effect]]] = field(default_factory=list)

    def end(self, outcome: Append | Refused) -> list[Effect]:
        """Store the outcome of the send; return the answers of the repeats that waited for it."""
        self.outcome = outcome

        return [effect for answer in self.waiters for effect in answer()]


# The first send of a message that is sent again: pending or stored.
KnownSend: TypeAlias = PendingSend | Place


def count_down(counts: Counter[T], items: Iterable[T]) -> None:
    """Decrement the count of each item, and remove items that reach zero, because *counts* may have many others."""
    for item in items:
        counts[item] -= 1
        if not counts[item]:
            del counts[item]


class Waiter(NamedTuple):
    """A request that waits for topics or groups that it needs; *creations* counts how often it has."""

    request: RemotingCommand
    caller: Caller
    creations: int


class LeaderView:
    """The proposals of one term of leadership that are not applied yet.

    Attributes:
        sends: uncommitted sends by identity.
        repeats: how many messages the waiting repeats have; a repeated end of a transaction counts as one.
        answering: repeats that no longer wait, each with its number of messages and the function that answers it.
        creating: topics and groups that requests need and that were proposed for the first of them, with all
            requests that wait for them; these take *creating_bytes* of memory.
        ending: half messages whose end was proposed and is not applied, with the repeated requests to end
            them that wait for it.
        handing_on: delay queues with some messages on their way to their real queues.
        fencing: topics whose fence, or change to fewer queues, was proposed and is not applied: sends to them
            are refused meanwhile.
        fetching: consumer groups and topics with a proposed hand-out of lanes that is not applied; its
            messages take *fetching_bytes* of memory.
        retrying: how many proposed messages to retry topics, delayed ones included, are not applied.
        timers_ending: offsets of timers whose end was proposed and is not applied.
        taken_back: physical offsets of messages whose rollback or cancellation was proposed and is not
            applied, with the time of the cancellation.
        operator_token: the greatest proposed token of an operator, applied or not.
    """

    def __init__(self) -> None:
        self.sends: dict[bytes, PendingSend] = {}
        self.repeats = 0
        self.answering: deque[tuple[int, Callable[[], list[Effect]]]] = deque()
        self.creating: dict[Creation, deque[Waiter]] = {}
        self.creating_bytes = 0
        self.ending: dict[int, list[tuple[RemotingCommand, Caller]]] = {}
        self.handing_on: set[int] = set()
        self.fencing: set[str] = set()
        self.fetching: set[tuple[str, str]] = set()
        self.fetching_bytes = 0
        self.retrying: Counter[str] = Counter()
        self.timers_ending: set[int] = set()
        self.taken_back: dict[int, int] = {}
        self.operator_token = 0
        self._turns: dict[int, int] = {}

    def first_send(self, identity: bytes, window: DedupWindow) -> KnownSend | None:
        """Return where the first send of an identity is or will be; None if this is the first."""
        pending = self.sends.get(identity)
        if pending is not None:
            return pending
        first = window.sends.get(identity)

        if first is None or first.cancelled_ms or first.physical in self.taken_back:
            return None
        return Place(first.queue_id, first.queue_offset, first.physical)

    def cancelled_ms(self, identity: bytes, window: DedupWindow) -> int:
        """Return when the first send of an identity was cancelled, 0 if it was not."""
        first = window.sends.get(identity)

        return 0 if first is None else first.cancelled_ms or self.taken_back.get(first.physical, 0)

    def choose_queue(self, topic: Topic) -> int:
        """Return the queue for a sender that leaves the choice to the broker: each queue in turn."""
        turn = self._turns.get(topic.id, 0)
        self._turns[topic.id] = turn + 1

        return turn % max(1, topic.config.write_queues)
