"""
The invariants of parked keys (``onDeadLetter: HoldKey``): an independent reading of the log, compared with the replicas.

Law: from the dead letter that began a hold until its release, no listener of the group sees a later message of that
key. A late request for a letter that was held does not undo a release. All replicas know the same holds.
"""

from collections import defaultdict
from typing import TYPE_CHECKING

from orderlymq.message import ReceivedMessage
from orderlymq_broker.state.groups.parkedkeyrecords import KeyFollowed, KeyParked, KeyReleased
from orderlymq_broker.state.records import Record
from tests.sim.invariants.log import Key

if TYPE_CHECKING:
    from tests.sim.broker.replica import Replica
    from tests.sim.invariants.safety import Laws


class HeldLaws:
    """The holds by group, topic and queue: for each key the offset of its dead letter."""

    def __init__(self, laws: "Laws") -> None:
        self._laws = laws
        self._held: defaultdict[Key, dict[str, int]] = defaultdict(dict)
        self._handed_over: defaultdict[Key, set[int]] = defaultdict(set)
        # The last letter of each parked key; for released keys also the lock's epoch at the release.
        self._last: dict[tuple[Key, str], int] = {}
        self._let_go: dict[tuple[Key, str], tuple[int, int]] = {}

    def read(self, record: Record) -> None:
        """Read a record of the log."""
        match record:
            case KeyParked():
                self._hold(record)
            case KeyFollowed():
                self._follow(record)
            case KeyReleased():
                self._release(record)

    def _release(self, record: KeyReleased) -> None:
        for place, keys in self._held.items():
            if place[:2] != (record.group, record.topic) or record.key not in keys:
                continue
            del keys[record.key]
            lock = self._laws.model.locks.get(place)
            assert lock is not None, "a key is held under a lock"
            self._let_go[place, record.key] = (self._last.pop((place, record.key)), lock.epoch)
            self._laws.world.coverage["parked key released"] += 1

    def _follow(self, record: KeyFollowed) -> None:
        place = (record.group, record.topic, record.queue_id)
        lock = self._laws.model.locks.get(place)
        if record.key in self._held[place] and lock is not None and lock.epoch == record.epoch:
            last = self._last[place, record.key]
            self._last[place, record.key] = max(last, record.offset)

    def _hold(self, record: KeyParked) -> None:
        place = (record.group, record.topic, record.queue_id)
        model = self._laws.model
        lock = model.locks.get(place)
        is_last_holder = lock is not None and lock.epoch == record.epoch
        is_consumed = model.offsets.get(place, 0) > record.offset
        last, epoch = self._let_go.get((place, record.key), (-1, -1))
        if record.key in self._held[place] or not is_last_holder or is_consumed:
            return
        if epoch == record.epoch and record.offset <= last:
            self._laws.world.coverage["hold asked for after its release"] += 1
            return
        self._held[place][record.key] = self._last[place, record.key] = record.offset
        self._laws.world.coverage["key held"] += 1

    def compare(self, replica: "Replica") -> None:
        """Compare a replica's table."""
        for place, keys in self._held.items():
            known = replica.state.parked.of_queue(*place)
            found = {key: held.offset for key, held in known.items()}
            self._laws.ensure(
                found == keys, "parked keys", f"{replica.name}: {place} holds {found}, not {keys}"
            )

    def delivered(self, place: Key, client: str, message: ReceivedMessage) -> None:
        """Check that a listener sees no message of a parked key."""
        first = self._held[place].get(message.key or "")
        self._laws.ensure(
            first is None or message.queue_offset < first,
            "parked keys",
            f"{client} delivers {message.message_id} at {message.queue_offset} of {place}, its key "
            f"{message.key} is held from {first} on",
        )

    def handed_over(self, place: Key, offset: int) -> None:
        """Note that a message of a queue is among the dead letters."""
        self._handed_over[place].add(offset)

    def first_to_deliver(self, place: Key, offset: int) -> int:
        """Return the first message from *offset* on that a listener may have to see."""
        while offset in self._handed_over[place]:
            offset += 1
        return offset

    def some(self) -> list[tuple[str, str, str]]:
        """Return the held keys: group, topic and key."""
        return sorted(
            (group, topic, key) for (group, topic, _), keys in self._held.items() for key in keys
        )
