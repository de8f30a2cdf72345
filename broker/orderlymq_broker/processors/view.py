"""
The leader's view: what it has handed out beyond the applied state.

The rules: queue offsets and physical offsets are given when a record is built, from the end of the
log and not from what is committed; a new leader starts from its applied log; when leadership is
lost the whole view is thrown away, never repaired. Calls that were under way keep the view they
were made with, so nothing of an old term leaks into a new one.
"""

from dataclasses import dataclass, field

from orderlymq_broker.processors.effects import Peer
from orderlymq_broker.state.queues import Queue
from orderlymq_broker.state.records import Append
from orderlymq_broker.state.topics import Topic
from orderlymq_protocol.command import RemotingCommand


@dataclass(slots=True)
class Head:
    """Where the next message of a queue goes, uncommitted ones counted."""

    next_offset: int
    timestamp: int


@dataclass(slots=True)
class Flight:
    """A send of a deduplicated topic that is not committed yet, and the repeats that wait for it.

    Each waiter is answered with its ext when the send is applied.
    """

    record: Append
    waiters: list[tuple[RemotingCommand, Peer, dict[str, str]]] = field(default_factory=list)


class LeaderView:
    """What one term of leadership has handed out.

    Attributes:
        next_physical: physical offset of the next message.
        uncommitted: bytes of messages that were proposed and neither applied nor lost.
        flights: uncommitted sends by identity.
        ending: half messages whose end was proposed and is not applied, with the requests to end
            them again that wait for it.
        delay_end: per delay queue, how far messages have been handed on, uncommitted ones counted.
        fencing: topics whose fence was proposed and is not applied: nobody writes to them any more.
        timers_ending: offsets of timers whose end was proposed and is not applied.
    """

    def __init__(self, next_physical: int) -> None:
        self.next_physical = next_physical
        self.uncommitted = 0
        self.flights: dict[bytes, Flight] = {}
        self.ending: dict[int, list[tuple[RemotingCommand, Peer]]] = {}
        self.delay_end: dict[int, int] = {}
        self.fencing: set[str] = set()
        self.timers_ending: set[int] = set()
        self._heads: dict[Queue, Head] = {}
        self._turns: dict[int, int] = {}

    def head(self, queue: Queue) -> Head:
        """Return the end of a queue; the caller moves it when it appends."""
        head = self._heads.get(queue)
        if head is None:
            head = self._heads[queue] = Head(queue.next_offset, queue.last_timestamp)

        return head

    def choose_queue(self, topic: Topic) -> int:
        """Return the queue for a sender that leaves the choice to us: each in turn."""
        turn = self._turns.get(topic.id, 0)
        self._turns[topic.id] = turn + 1

        return turn % max(1, topic.config.write_queues)
