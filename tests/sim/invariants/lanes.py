"""
The invariants of key lanes, from the members and from the log.

Below, a message is owed from when the broker has scanned it until a listener has finished it or it is
a dead letter. Laws:

- A key has one listener at a time, by the leases that the members count.
- Messages of a key begin in order, and none before an earlier one that is owed.
- The committed offset passes no message that is owed, and retention drops none.
- A message becomes a dead letter only after as many attempts as the group allows, or when an administrator skips it.
  Its letter is then stored.
- A parked lane is not handed out before its time, by the clock of the leader that hands it out.
- Numbers of attempts rise.
- While a listener works, no mode changes and no group is deleted.
- A failing key stops no other key, and when all is consumed, no lane is left.

A reset and a deletion start all of this again.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from orderlymq.oracle.verdict import Kind
from orderlymq_broker.state.lanes.lane import LaneState
from orderlymq_broker.state.lanes.lanerecords import (
    LaneDeadLettered,
    LaneFreed,
    LanesFetched,
    LanesGranted,
    LanesMoved,
)
from orderlymq_broker.state.records import (
    GroupDeleted,
    GroupSet,
    OffsetsReset,
    Outcome,
    Record,
    Refused,
)
from orderlymq_protocol.names import dlq_topic
from tests.sim.invariants.picks import PickLaws
from tests.sim.timeline import MS

if TYPE_CHECKING:
    from tests.sim.broker.replica import Replica
    from tests.sim.invariants.safety import Laws

GROUP: Final = "shippers"
# The attempts that the group allows if messages may become dead letters.
TRIES_MAX: Final = 3

_Lane = tuple[int, str]


@dataclass(slots=True)
class _Working:
    """The client that works on a lane, and the latest simulated time at which it may."""

    client: str
    until_us: int


@dataclass(slots=True)
class _Lives:
    """The state of one queue since its lanes last began: at first, after a reset or after a deletion.

    Attributes:
        number: number of this life; attempts of an earlier life do not count in this one.
        seen: offsets that the broker has scanned; each is owed until it is finished.
        begun: by key, the offsets that a listener has begun.
        finished: offsets that a listener has finished, and dead letters.
        handed_out: how often a message was in an attempt.
        alone: how often it was the only message of an attempt.
        failed: offsets that a listener has reported as failed.
        former: offsets finished in a former life; until the next comparison the committed offset may pass them.
    """

    number: int = 0
    seen: set[int] = field(default_factory=set)
    keys: dict[int, str] = field(default_factory=dict)
    begun: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    finished: set[int] = field(default_factory=set)
    handed_out: Counter[int] = field(default_factory=Counter)
    alone: Counter[int] = field(default_factory=Counter)
    failed: set[int] = field(default_factory=set)
    skipped: set[str] = field(default_factory=set)
    former: set[int] = field(default_factory=set)

    def owed(self, key: str, below: int) -> list[int]:
        """Return the unfinished offsets of a key below an offset."""
        return [
            offset
            for offset in sorted(self.seen - self.finished)
            if offset < below and self.keys[offset] == key
        ]


class LaneLaws:
    """The actions of members, and the log's effects on lanes."""

    def __init__(self, laws: "Laws") -> None:
        self._laws = laws
        self.picks = PickLaws(laws)
        self._working: dict[_Lane, _Working] = {}
        self._queues: defaultdict[int, _Lives] = defaultdict(_Lives)
        # The life in which an attempt was handed out, by queue and attempt; attempts of deleted groups are unknown.
        self._attempts: dict[tuple[int, int], int] = {}
        self._serials: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        # By queue and lane: when it is due, by the clock of the leader that parked it and by simulated time.
        self._parked: dict[tuple[int, int], tuple[int, int]] = {}
        self._mode = ""
        # Queues whose offsets the current entry has set again after a deletion that removed all; else None.
        self._set_again: set[int] | None = None
        # The keys of sent messages, and how many events of the history were read for them.
        self._keys: dict[str, str] = {}
        self._events = 0

    # -- members

    def begins(self, client: str, lane: _Lane, attempt: int, offset: int, until_us: int) -> None:
        """Check that a listener may begin a message: no other works on its key, and no earlier message is owed."""
        laws, now = self._laws, self._laws.world.timeline.now
        queue, key = lane
        life = self._attempts.get((queue, attempt))
        if not key or life is None:
            return
        other = self._working.get(lane)
        laws.ensure(
            other is None or other.client == client or other.until_us <= now,
            "lane holder",
            f"{client} begins {key} {queue}@{offset}, {other} works on it until then, now is {now}",
        )
        self._working[lane] = _Working(client, until_us)
        lives = self._queues[queue]
        if life != lives.number:
            return  # a reset has ended the life of this attempt
        later = sorted(each for each in lives.begun[key] if each > offset)
        laws.ensure(
            not later or offset in lives.finished,
            "lane order",
            f"{client} begins {key} {queue}@{offset} for the first time to its end, {later} were begun before",
        )
        earlier = lives.owed(key, offset)
        laws.ensure(
            not earlier,
            "lane order",
            f"{client} begins {key} {queue}@{offset}, nobody has finished {earlier}",
        )
        lives.begun[key].add(offset)

    def ends(self, client: str, lane: _Lane, attempt: int, offset: int, *, good: bool) -> None:
        """Note that a listener has ended."""
        other = self._working.get(lane)
        if other is not None and other.client == client:
            del self._working[lane]
        lives = self._queues[lane[0]]
        if self._attempts.get((lane[0], attempt)) == lives.number:
            (lives.finished if good else lives.failed).add(offset)

    def gone(self, client: str) -> None:
        """Note that a member has died and works on nothing."""
        self._working = {
            lane: each for lane, each in self._working.items() if each.client != client
        }

    # -- the log

    def read(self, record: Record, outcome: Outcome, wall_ms: int, replica: "Replica") -> None:
        """Check a record's effects on lanes."""
        self.picks.read(record, outcome)
        match record:
            case LanesFetched(group=group) if group == GROUP and isinstance(outcome, LanesGranted):
                self._fetched(record, outcome, wall_ms)
            case LaneFreed() | LaneDeadLettered() if record.group == GROUP:
                if isinstance(outcome, LanesMoved):
                    self._failed(record, outcome, replica)
            case OffsetsReset():
                for commit in (each for each in record.commits if each.group == GROUP):
                    self._laws.world.coverage["lane offset reset"] += 1
                    self._begin_again(commit.queue_id)
                    self._committed[commit.queue_id] = commit.offset
                    if self._set_again is not None:
                        self._set_again.add(commit.queue_id)
            case GroupSet(name=name) if name == GROUP and not isinstance(outcome, Refused):
                self._set(record)
            case GroupDeleted(name=name) if name == GROUP:
                self._deleted(record, replica)

    def _fetched(self, record: LanesFetched, outcome: LanesGranted, wall_ms: int) -> None:
        if self._set_again is not None:
            self._set_again.update(part.queue_id for part in record.queues)
        for part in record.queues:
            lives = self._queues[part.queue_id]
            if part.begins and self._laws.world.plan.lane_last:
                self._begin_at(part.queue_id, part.start)
            for found in part.found:
                lives.seen.update(found.offsets)
                lives.keys.update(dict.fromkeys(found.offsets, found.key))
            for each in part.hand_outs:
                due_ms, until_us = self._parked.get((part.queue_id, each.lane), (0, 0))
                # A new leader whose clock is behind the former leader's counts the pause itself.
                world = self._laws.world
                is_due = due_ms <= wall_ms or until_us <= world.timeline.now
                self._laws.ensure(
                    not each.take or is_due or world.plan.wrong_clocks,
                    "lane parked",
                    f"lane {each.lane} of queue {part.queue_id} is handed out at {wall_ms}, it is "
                    f"parked until {due_ms}",
                )
        for granted in outcome.granted:
            lives = self._queues[granted.queue_id]
            self._attempts[granted.queue_id, granted.attempt] = lives.number
            lives.handed_out.update(granted.offsets)
            if len(granted.offsets) == 1:
                lives.alone.update(granted.offsets)

    def _begin_at(self, queue_id: int, start: int) -> None:
        """Note that messages before the position at which members begin a trimmed queue are not delivered."""
        passed = range(self._committed.get(queue_id, 0), start)
        if passed and self._laws.model.floors[self._laws.topic_id, queue_id]:
            self._laws.world.coverage["lane queue begun at its end"] += 1
            self._queues[queue_id].former.update(passed)

    def _failed(
        self, record: LaneFreed | LaneDeadLettered, outcome: LanesMoved, replica: "Replica"
    ) -> None:
        if isinstance(record, LaneDeadLettered):
            if outcome.topics:
                self._dead_lettered(record.queue_id, record.offset, replica)
            return
        for queue, lane in outcome.freed:
            self._laws.world.coverage[f"lane {'skipped' if record.skip else 'freed'}"] += 1
            if record.skip:
                self._queues[queue].skipped.add(lane.key)

    def _dead_lettered(self, queue_id: int, offset: int, replica: "Replica") -> None:
        """Check that a dead letter has failed often enough or was skipped, and that it is stored."""
        laws, lives = self._laws, self._queues[queue_id]
        laws.world.coverage["lane dead letter"] += 1
        self._check_tries(queue_id, offset)
        topic = replica.state.topics.get(dlq_topic(GROUP))
        unique = laws.model.at[laws.topic_id, queue_id, offset]
        laws.ensure(
            topic is not None and (topic.id, unique) in laws.model.places,
            "lane letter",
            f"{queue_id}@{offset} is said to be a dead letter, it stands nowhere",
        )
        lives.finished.add(offset)

    def _check_tries(self, queue_id: int, offset: int) -> None:
        """Check that a message is dead because of itself, not because of another in the same attempt."""
        lives = self._queues[queue_id]
        is_skipped = lives.keys.get(offset) in lives.skipped
        self._laws.ensure(
            lives.handed_out[offset] >= TRIES_MAX or is_skipped,
            "lane tries",
            f"{queue_id}@{offset} is dead, it was handed out {lives.handed_out[offset]} times",
        )
        # A message without a failure report is a suspect if its attempts ended twice in a row, from
        # the second one alone.
        self._laws.ensure(
            offset in lives.failed or lives.alone[offset] >= TRIES_MAX - 1 or is_skipped,
            "lane tries",
            f"{queue_id}@{offset} is dead, no listener failed with it, and it was alone in hand "
            f"{lives.alone[offset]} times",
        )

    def _set(self, record: GroupSet) -> None:
        """Note how the group consumes from now on."""
        if record.only_if_absent and self._mode:
            return
        if self._mode and self._mode != record.concurrency:
            self._laws.world.coverage[f"lane group by {record.concurrency.lower()}"] += 1
            self._ensure_rest("lane mode", record)
            self._forget_attempts()
        self._mode = record.concurrency

    def _ensure_rest(self, check: str, record: Record) -> None:
        """Check that no listener works, because after this record another one may begin its key."""
        now = self._laws.world.timeline.now
        working = [each for each in self._working.items() if each[1].until_us > now]
        self._laws.ensure(not working, check, f"{record} while {working} are in hand")

    def _deleted(self, record: GroupDeleted, replica: "Replica") -> None:
        if self._mode:
            self._laws.world.coverage["lane group deleted"] += 1
            self._ensure_rest("lane holder", record)
            self._mode = ""
            self._forget_attempts()
        # A later deletion removes the offsets that this one leaves, even though the group no longer exists.
        self._committed.clear()
        if record.clean_offsets:
            self._set_again = set()
        else:
            # Messages finished in the ending life may have moved offsets that were not compared yet.
            self._note_offsets(replica)

    def _note_offsets(self, replica: "Replica") -> None:
        """Take the present committed offsets as those from which the next lives begin."""
        for queue_id in list(self._queues):
            offset = replica.state.offsets.get(GROUP, self._laws.world.topic, queue_id)
            self._committed[queue_id] = offset or 0

    def _begin_again(self, queue_id: int) -> None:
        self._queues[queue_id] = _Lives(self._queues[queue_id].number + 1)

    def _forget_attempts(self) -> None:
        """Start a new life of all queues; no member works on them."""
        for queue_id, ended in list(self._queues.items()):
            self._begin_again(queue_id)
            self._queues[queue_id].former = ended.finished | ended.former
        self._attempts.clear()
        self._working.clear()

    def dropped(self, queue_id: int, start: int, end: int) -> None:
        """Check that retention drops no message that a lane owes."""
        lives = self._queues[queue_id]
        lost = [
            each for each in range(start, end) if each in lives.seen and each not in lives.finished
        ]
        self._laws.ensure(
            not lost, "lane retention", f"queue {queue_id}: {lost} are owed and were dropped"
        )

    def compare(self, replica: "Replica") -> None:
        """Check the table of the replica that has applied most."""
        self.picks.compare(replica)
        topic = self._laws.world.topic
        if self._set_again is not None:
            left = replica.state.offsets.of_group(GROUP).get(topic, {}).keys() - self._set_again
            self._laws.ensure(not left, "lives", f"offsets of the queues {left} outlive {GROUP}")
            self._set_again = None
        now = self._laws.world.timeline.now
        for queue_id, queue in replica.state.lanes.queues_of(GROUP, topic).items():
            self._laws.ensure(
                queue.serial >= self._serials.get(queue_id, 0),
                "lane numbers",
                f"queue {queue_id} is at number {queue.serial}, it was at {self._serials.get(queue_id)}",
            )
            self._serials[queue_id] = queue.serial
            for lane in queue.lanes.values():
                known = self._parked.pop((queue_id, lane.number), None)
                if lane.state == LaneState.PARKED:
                    # Clocks that count the same pause may round differently.
                    until_us = now + (lane.due_ms - lane.since_ms - 1) * MS
                    if known is None or known[0] != lane.due_ms:
                        known = (lane.due_ms, until_us)
                    self._parked[queue_id, lane.number] = known
                if lane.state in (LaneState.HELD, LaneState.DEAD_LETTERING):
                    self._laws.world.coverage[f"lane {lane.state.name.lower()}"] += 1
                    self._check_tries(queue_id, lane.first)
            self._laws.world.coverage["lane queue stopped"] += queue.stopping
            self._moved(queue_id, replica.state.offsets.get(GROUP, topic, queue_id) or 0)

    def _moved(self, queue_id: int, offset: int) -> None:
        """Check that the committed offset passes only messages finished, or dropped before they were scanned."""
        laws = self._laws
        before = self._committed.get(queue_id, 0)
        laws.ensure(
            offset >= before, "lane offset", f"queue {queue_id} fell from {before} to {offset}"
        )
        floor, lives = laws.model.floors[laws.topic_id, queue_id], self._queues[queue_id]
        lost = [
            each
            for each in range(before, offset)
            if each not in lives.finished
            and each not in lives.former
            and (each >= floor or each in lives.seen)
        ]
        laws.ensure(
            not lost,
            "lane lost",
            f"queue {queue_id} is committed to {offset}, nobody finished {lost}",
        )
        self._committed[queue_id] = offset
        lives.former.clear()

    # -- the end

    def is_done(self, queue_id: int, end: int) -> bool:
        """Return whether every message of a queue was consumed."""
        return self._committed.get(queue_id, 0) >= end

    def is_rest(self, failing: str) -> bool:
        """Return whether only one key has unfinished messages."""
        laws = self._laws
        events = laws.world.history.events
        for event in events[self._events :]:
            if event.kind is Kind.SEND:
                self._keys[event.message] = event.key
        self._events = len(events)
        return not any(
            topic_id == laws.topic_id
            and offset not in self._queues[queue].finished
            and offset >= max(laws.model.floors[topic_id, queue], self._committed.get(queue, 0))
            and self._keys.get(unique) != failing
            for (topic_id, queue, offset), unique in laws.model.at.items()
        )

    def conclude(self, replica: "Replica") -> None:
        """Check that no lane is left when all is consumed."""
        left = replica.state.lanes.count_of(GROUP)
        self._laws.ensure(left == 0, "lane left", f"{replica.name} keeps {left} lanes of nobody")
