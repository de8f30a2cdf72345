"""
Changes in the cluster with their times: leaders, replicas, disks, standstills, and holders of queue locks.

Rules: the journal compares two readings. A change between them gets the time of the second one, unless the broker reports a better
time. A state that came and went between them is not seen; epochs show how many holders a lock had. The journal is bounded
and lives only in this process's memory, because brokers keep no history.
"""

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from orderlymq.admin.client import QueueLock
from orderlymq_console.links import WAITING, group_link
from orderlymq_console.status import SHOWN_MAX, StatusReport, WatchReport
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.plurals import counted

G = TypeVar("G")

HOUR_MS: Final = 3_600_000
CHANGES_MAX: Final = 500
GROUPS_MAX: Final = 200
QUEUES_MAX: Final = 500
LOCK_CHANGES_MAX: Final = 100
# An answer may take some seconds, and clocks may be set.
SAME_START_MS: Final = 5_000
KEYS_MAX: Final = 1_000
# The text for a key that is in a state, and the text for a key that has left it.
_KEY_STATES: Final = {
    "key": ("parked behind a dead letter", "no longer parked: it was released"),
    "held": ("its lane is held", "its lane is no longer held: it was tried again, or skipped"),
    "deadLettering": (
        "its dead letter is being stored",
        "its dead letter is stored; the lane continues",
    ),
    "parked": ("its lane waits for the next try", "its lane was tried again"),
}


@dataclass(frozen=True, slots=True)
class Change:
    """A change in words; *queue* is set if it is about the lock of a queue."""

    at_ms: int
    broker_group: str
    text: str
    link: str = ""
    queue: MessageQueue | None = None


@dataclass(frozen=True, slots=True)
class _Fact:
    """A fact that holds now: its value, and the texts for its beginning and its end."""

    value: object
    begins: str
    ends: str = ""
    since_ms: int | None = None
    link: str = "/raft"


@dataclass(slots=True)
class _Locks:
    seen: dict[MessageQueue, QueueLock] = field(default_factory=dict)
    changes: deque[Change] = field(default_factory=lambda: deque(maxlen=LOCK_CHANGES_MAX))


@dataclass(slots=True)
class _Keys:
    seen: dict[tuple[MessageQueue, str], tuple[str, int]] = field(default_factory=dict)
    changes: deque[tuple[str, Change]] = field(default_factory=lambda: deque(maxlen=CHANGES_MAX))


class Journal:
    """Compares readings and keeps the changes; *wall_s* is the clock."""

    def __init__(self, wall_s: Callable[[], float] = time.time) -> None:
        self._wall_s = wall_s
        self.since_ms = self._now_ms()
        self._members: dict[str, Change] = {}
        self._starts: dict[tuple[str, str], int] = {}
        self._forgotten_ms = 0
        self._facts: dict[str, dict[str, _Fact]] = {}
        self._changes: deque[Change] = deque(maxlen=CHANGES_MAX)
        self._leaders: deque[Change] = deque(maxlen=LOCK_CHANGES_MAX)
        self._groups: OrderedDict[str, _Locks] = OrderedDict()
        self._keys: OrderedDict[str, _Keys] = OrderedDict()

    def last_hour(self) -> tuple[Change, ...]:
        """Return the changes of the last hour, the newest first."""
        begin_ms = self._now_ms() - HOUR_MS
        # Changes of leaders are kept apart, so that other changes do not push them out.
        known = dict.fromkeys((*self._changes, *self._leaders, *self._members.values()))
        found = [change for change in known if change.at_ms >= begin_ms]

        return tuple(sorted(found, key=lambda change: -change.at_ms))

    @property
    def whole_since_ms(self) -> int:
        """The time since which no change has been forgotten."""
        return max(self.since_ms, self._forgotten_ms)

    def note(self, name: str, status: StatusReport | None, reason: str = "") -> None:
        """Compare a leader's status with the one before; *status* is None if the leader does not answer."""
        first = name not in self._facts
        before = self._facts.get(name, {})
        if status is None:
            text = f"has no leader that answers: {reason}"
            after = {"silent": _Fact(True, text, "answers again")}
        else:
            after = dict(_facts(status, self._now_ms()))
        if status is None or status.examined is None:
            # A part that is not reported now counts as unchanged.
            kept = before if status is None else _examined(before)
            after = {**{about: fact for about, fact in kept.items() if about != "silent"}, **after}
        elif status.blocked_unknown:
            # A new leader cannot know yet whether these queues go on.
            after = {**{a: fact for a, fact in before.items() if a.startswith("blocked ")}, **after}
        self._facts[name] = after
        for about, fact in after.items():
            old = before.get(about)
            if about.startswith("start "):
                if self._is_known_start(name, about, fact):
                    continue
            elif old is not None and old.value == fact.value:
                continue
            if old is None and first and fact.since_ms is None:
                continue  # it was so before the first reading of this console
            self._add(name, fact.since_ms or self._now_ms(), fact.begins, fact.link, about)
        is_cut = (
            status is not None
            and status.examined is not None
            and len(status.examined.blocked) >= SHOWN_MAX
        )
        for about, fact in before.items():
            if about not in after and fact.ends and not (is_cut and about.startswith("blocked")):
                self._add(name, self._now_ms(), fact.ends, fact.link, about)

    def note_locks(
        self, group: str, broker_group: str, locks: Mapping[MessageQueue, QueueLock]
    ) -> None:
        """Compare the locks of a consumer group at one broker group with those that were seen before."""
        known = _of_group(self._groups, group, _Locks)
        before = {q: lock for q, lock in known.seen.items() if q.broker_name == broker_group}
        for queue, lock in locks.items():
            old = known.seen.get(queue)
            if old is None and len(known.seen) >= QUEUES_MAX:
                continue
            known.seen[queue] = lock
            if old is None or old.epoch != lock.epoch:
                at_ms = lock.held_since_ms or self._now_ms()
                known.changes.append(Change(at_ms, broker_group, _held(old, lock), queue=queue))
        for queue, old in before.items():
            if queue not in locks:
                del known.seen[queue]
                text = f"free; {old.client_id} held it with epoch {old.epoch}"
                known.changes.append(Change(self._now_ms(), broker_group, text, queue=queue))

    def note_keys(
        self,
        group: str,
        broker_group: str,
        keys: Mapping[tuple[MessageQueue, str], tuple[str, int]],
        *,
        is_whole: bool,
    ) -> None:
        """Compare the keys that stand still, each with its state and start, with those seen before; a missing key has gone on if *is_whole*."""
        known = _of_group(self._keys, group, _Keys)
        for place, (state, since_ms) in keys.items():
            old = known.seen.get(place)
            if old == (state, since_ms) or (old is None and len(known.seen) >= KEYS_MAX):
                continue
            known.seen[place] = (state, since_ms)
            queue, key = place
            change = Change(since_ms, broker_group, _KEY_STATES[state][0], queue=queue)
            known.changes.append((key, change))
        gone = [
            place
            for place in known.seen
            if place[0].broker_name == broker_group and place not in keys
        ]
        for queue, key in gone if is_whole else ():
            state, _ = known.seen.pop((queue, key))
            change = Change(self._now_ms(), broker_group, _KEY_STATES[state][1], queue=queue)
            known.changes.append((key, change))

    def key_of(self, group: str, queue: MessageQueue, key: str) -> tuple[Change, ...]:
        """Return how a key stood still and went on in a consumer group, the oldest change first."""
        known = self._keys.get(group)
        changes = () if known is None else known.changes
        return tuple(change for each, change in changes if each == key and change.queue == queue)

    def locks_of(self, group: str) -> tuple[Change, ...]:
        """Return how the locks of a consumer group changed, mixed with the changes of leaders, the newest first."""
        known = self._groups.get(group)
        if known is None:
            return ()
        brokers = {change.broker_group for change in known.changes}
        leaders = [change for change in self._leaders if change.broker_group in brokers]
        found = sorted([*known.changes, *leaders], key=lambda change: -change.at_ms)

        return tuple(found[:LOCK_CHANGES_MAX])

    def _add(self, name: str, at_ms: int, text: str, link: str, about: str) -> None:
        change = Change(at_ms, name, text, link)
        # Each member that comes or goes changes it, so only the newest change is kept.
        if about == "members":
            self._members[name] = change
            return
        if len(self._changes) == CHANGES_MAX:
            self._forgotten_ms = self._changes[0].at_ms + 1
        self._changes.append(change)
        if about in ("leader", "silent"):
            self._leaders.append(change)

    def _is_known_start(self, name: str, about: str, fact: _Fact) -> bool:
        """Return whether this start was seen before; each reading computes it, a few seconds earlier or later."""
        known_ms, at_ms = self._starts.get((name, about)), fact.since_ms or 0
        self._starts[name, about] = at_ms
        return known_ms is not None and abs(at_ms - known_ms) < SAME_START_MS

    def _now_ms(self) -> int:
        return int(self._wall_s() * 1000)


def _of_group(table: OrderedDict[str, G], group: str, make: Callable[[], G]) -> G:
    """Return the entry of a consumer group; beyond `GROUPS_MAX`, forget the group that was used longest ago."""
    known = table.setdefault(group, make())
    table.move_to_end(group)
    while len(table) > GROUPS_MAX:
        table.popitem(last=False)
    return known


def _held(old: QueueLock | None, lock: QueueLock) -> str:
    text = f"held by {lock.client_id} with epoch {lock.epoch}"
    missed = 0 if old is None else lock.epoch - old.epoch - 1
    if missed > 0:
        text += f"; {missed} earlier holders were not seen"

    return text


def _facts(status: StatusReport, now_ms: int) -> Iterator[tuple[str, _Fact]]:
    """Yield the facts of a status that are compared."""
    began_ms = None if status.uptime_ms is None else now_ms - status.uptime_ms
    if began_ms is not None and status.uptime_ms is not None and status.uptime_ms < HOUR_MS:
        text = f"node {status.leader}, the leader, started its process"
        yield f"start {status.leader}", _Fact(True, text, since_ms=began_ms)
    if status.leader is not None:
        text = f"node {status.leader} leads in term {status.term}"
        yield "leader", _Fact((status.leader, status.term), text)
    for node, replica in status.replicas.items():
        if not replica.active:
            yield (
                f"away {node}",
                _Fact(True, f"replica {node} is not active", f"replica {node} is active again"),
            )
    if status.disk_full:
        yield "disk", _Fact(True, "the disk is full; sends are refused", "the disk has room again")
    if status.members is not None:
        text = f"consumer groups have {counted(status.members, 'member')}"
        yield "members", _Fact(status.members, text, link="/groups")
    if status.transactions is not None and status.transactions.given_up:
        count = status.transactions.given_up
        yield "given up", _Fact(count, f"{counted(count, 'half message')} given up", link=WAITING)
    if status.examined is not None:
        yield from _examination(status.examined)


def _examination(watch: WatchReport) -> Iterator[tuple[str, _Fact]]:
    """Yield the facts of an examination of consumer groups that are compared."""
    for row in watch.blocked:
        place = f"queue {row.queue} of {row.topic} in group {row.group}"
        yield (
            f"blocked {row.group} {row.topic} {row.queue}",
            _Fact(
                row.offset,
                f"{place} is blocked at offset {row.offset}",
                f"{place} makes progress again",
                row.since,
                group_link(row.group),
            ),
        )
    for parked in watch.parked_keys:
        text = f"group {parked.group} has {counted(parked.keys, 'key')} parked behind dead letters"
        yield (
            f"watched parked {parked.group}",
            _Fact(
                parked.keys,
                text,
                f"group {parked.group} has no more parked keys",
                link=group_link(parked.group),
            ),
        )
    for lanes in watch.lanes:
        if lanes.state == "held":
            text = f"group {lanes.group} has {lanes.lanes} held lanes"
            yield (
                f"watched lanes {lanes.group}",
                _Fact(
                    lanes.lanes,
                    text,
                    f"group {lanes.group} has no more held lanes",
                    link=group_link(lanes.group),
                ),
            )


def _examined(facts: Mapping[str, _Fact]) -> dict[str, _Fact]:
    """Return the facts that come from an examination of consumer groups."""
    return {
        about: fact for about, fact in facts.items() if about.startswith(("blocked ", "watched "))
    }
