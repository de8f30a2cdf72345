"""
The leader's view: what is on its way into the log, beyond the applied state.

The rules: when leadership is lost the whole view is thrown away, never repaired. Calls that were under
way keep the view they were made with, so nothing of an old term leaks into a new one. Which offsets are
given: ``entrybuilder.py``.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from orderlymq_broker.processors.effects import Effect, Peer
from orderlymq_broker.state.records import Append, Refused
from orderlymq_broker.state.topics import Topic
from orderlymq_protocol.frame.command import RemotingCommand


@dataclass(slots=True)
class Flight:
    """A send of a deduplicated topic on its way into the log.

    Attributes:
        landed: where it is stored, or why it is not; None as long as nobody knows.
        waiters: repeats of the send, which are answered when it has landed. A repeat has no fate of its own: refused
            for certain while the first may still be stored, it would lie.
    """

    landed: Append | Refused | None = None
    waiters: list[Callable[[], list[Effect]]] = field(default_factory=list)

    def land(self, landed: Append | Refused) -> list[Effect]:
        """Note what became of the send; return the answers of those that waited for it."""
        self.landed = landed

        return [effect for answer in self.waiters for effect in answer()]


class LeaderView:
    """What one term of leadership has handed out.

    Attributes:
        flights: uncommitted sends by identity.
        ending: half messages whose end was proposed and is not applied, with the requests to end
            them again that wait for it.
        handing_on: delay queues of which some messages are on their way to where they belong.
        fencing: topics whose fence was proposed and is not applied: nobody writes to them any more.
        timers_ending: offsets of timers whose end was proposed and is not applied.
    """

    def __init__(self) -> None:
        self.flights: dict[bytes, Flight] = {}
        self.ending: dict[int, list[tuple[RemotingCommand, Peer]]] = {}
        self.handing_on: set[int] = set()
        self.fencing: set[str] = set()
        self.timers_ending: set[int] = set()
        self._turns: dict[int, int] = {}

    def choose_queue(self, topic: Topic) -> int:
        """Return the queue for a sender that leaves the choice to us: each in turn."""
        turn = self._turns.get(topic.id, 0)
        self._turns[topic.id] = turn + 1

        return turn % max(1, topic.config.write_queues)
