"""
The duplicate window by the log, read by a reader that shares no code with the state machine.

Rules: a send in the window is stored once, and a repeat gets the place of the first. A trim removes only sends that
are too many or too old by the leader's clock, oldest first. A send that was rolled back leaves the window. A
cancelled one stays only until its next send. The window of every replica equals this one.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orderlymq_broker.state.records import (
    Append,
    DedupTrimmed,
    GroupDeleted,
    OffsetsReset,
    Record,
    RetentionAdvanced,
)
from orderlymq_broker.state.schedule.timerrecords import TimersEnded
from orderlymq_broker.state.transactions.halfrecords import HalfEnded, HalfOpened
from orderlymq_protocol.names import dlq_topic, retry_topic

if TYPE_CHECKING:
    from tests.sim.broker.replica import Replica
    from tests.sim.invariants.safety import Laws


@dataclass(frozen=True, slots=True)
class Known:
    """A send that the window holds."""

    physical: int
    stored_ms: int
    queue: int
    offset: int
    cancelled: bool = False


class Window:
    """The window by identity, oldest first."""

    def __init__(self, laws: "Laws") -> None:
        self._laws = laws
        self._sends: dict[bytes, Known] = {}
        self._by_key: dict[tuple[int, str], bytes] = {}
        self._halves: dict[int, int] = {}  # physical offsets of open half messages
        self._was_trimmed = False
        # Sends taken back since the last trim: the leader may have counted them when it proposed the next one.
        self._gone_since = 0

    def known(self, topic_id: int, unique_key: str) -> Known | None:
        """Return the first send under a key; None if the window does not hold it or it was cancelled."""
        known = self._sends.get(self._by_key.get((topic_id, unique_key), b""))

        return None if known is None or known.cancelled else known

    def may_follow(self, record: Append) -> bool:
        """Return whether a second copy may be stored because the first has left the window."""
        key = (record.topic_id, record.unique_key)
        return key in self._by_key and self.known(*key) is None

    def appended(self, record: Append) -> None:
        """Add a send."""
        present = self._sends.get(record.identity)
        if record.identity and (present is None or present.cancelled):
            self._sends.pop(record.identity, None)
            known = Known(
                record.physical, record.store_timestamp, record.reply_queue, record.queue_offset
            )
            self._sends[record.identity] = known
            self._by_key[record.topic_id, record.unique_key] = record.identity

    def read(self, record: Record, wall_ms: int, replica: "Replica") -> None:
        """Remove sends that were trimmed or taken back; the next send of these is a first one again."""
        match record:
            case DedupTrimmed():
                self._trimmed(record, wall_ms)
            case HalfOpened():
                self._halves[record.offset] = record.physical
            case HalfEnded():
                physical = self._halves.pop(record.offset, -1)
                if not record.committed:
                    self._taken_back(physical)
            case TimersEnded() if record.cancelled:
                for identity in self._at(*(timer.physical for timer in record.timers)):
                    self._sends[identity] = replace(self._sends[identity], cancelled=True)
            case RetentionAdvanced():
                self._taken_back(*(at for at in self._halves.values() if at < record.floor))
            case OffsetsReset():
                self._begin_again({commit.group for commit in record.commits}, replica)
            case GroupDeleted():
                self._begin_again({record.name}, replica)

    def _begin_again(self, groups: set[str], replica: "Replica") -> None:
        """Remove failed sends of groups that begin again, as the replica did; the other replicas must do the same."""
        targets = {*map(retry_topic, groups), *map(dlq_topic, groups)}
        for identity, known in list(self._sends.items()):
            topic = replica.state.topics.by_id.get(int.from_bytes(identity[:4]))
            left = replica.state.dedup.sends.get(identity)
            stays = left is not None and left.physical == known.physical
            if topic is not None and topic.name in targets and not stays:
                self._taken_back(known.physical)

    def _taken_back(self, *physical: int) -> None:
        for identity in self._at(*physical):
            del self._sends[identity]
            self._gone_since += 1

    def _at(self, *physical: int) -> list[bytes]:
        return [each for each, known in self._sends.items() if known.physical in physical]

    def _trimmed(self, record: DedupTrimmed, wall_ms: int) -> None:
        """Check the sends that a trim removed."""
        world = self._laws.world
        plan, counted = world.plan, len(self._sends) + self._gone_since
        surplus, self._gone_since = counted - plan.window_count, 0
        gone = [each for each, known in self._sends.items() if known.physical < record.floor]
        for number, identity in enumerate(gone):
            known = self._sends.pop(identity)
            by_count = number < surplus
            # With wrong clocks no send is really that old, whatever the clocks show.
            by_time = not plan.wrong_clocks and known.stored_ms < wall_ms - plan.window_ms
            self._laws.ensure(
                by_count or by_time, "window", f"{known} left the window at {wall_ms} too early"
            )
            world.coverage["window trimmed by count"] += by_count
            world.coverage["window trimmed by time"] += by_time
        self._was_trimmed = True

    def compare(self, replica: "Replica") -> None:
        """Check after an entry with a trim that the replica's window equals the rest."""
        if not self._was_trimmed:
            return
        self._was_trimmed = False
        found = [row[1] for row in replica.state.dedup.rows()]
        self._laws.ensure(
            found == list(self._sends),
            "window",
            f"{replica.name} knows {len(found)} sends after a trim, the log {len(self._sends)}",
        )
