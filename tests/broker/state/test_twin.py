"""Locks and offsets, compared with a twin that keeps and searches everything it received."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from orderlymq_broker.state.groups.lockrecords import (
    ClientDead,
    LockRef,
    LocksExpired,
    LocksReleased,
    LocksRequested,
)
from orderlymq_broker.state.records import (
    Commit,
    GroupDeleted,
    GroupSet,
    OffsetsCommitted,
    OffsetsReset,
    Record,
    TopicDeleted,
    TopicSet,
)
from tests.broker.state.entries import WALL_MS, Replica

TOPICS, GROUPS, CLIENTS, QUEUES = ("s", "t"), ("g", "h"), ("a", "b"), (0, 1)
Place = tuple[str, str, int]


@dataclass
class Held:
    """What the twin knows about a queue that a consumer group has held."""

    epoch: int
    client: str = ""
    stamp: int = 0
    since_ms: int = 0
    released_by: str = ""


@dataclass
class Twin:
    """The rules of ``state/groups/locks.py`` and ``state/groups/offsets.py``, written as simply as possible."""

    locks: dict[Place, Held] = field(default_factory=dict)
    offsets: dict[Place, int] = field(default_factory=dict)
    ordered: set[str] = field(default_factory=set)
    topics: set[str] = field(default_factory=lambda: set(TOPICS))
    groups: set[str] = field(default_factory=lambda: set(GROUPS))
    floor: int = 0

    def take(self, record: Record, index: int, wall_ms: int) -> None:
        match record:
            case TopicSet():
                self.topics.add(record.name)
            case GroupSet():
                self.groups.add(record.name)
            case TopicDeleted():
                self.topics.discard(record.name)
                self._forget(1, record.name, with_offsets=True)
            case GroupDeleted():
                self.groups.discard(record.name)
                self.ordered.discard(record.name)
                self._forget(0, record.name, with_offsets=record.clean_offsets)
            case LocksRequested() if record.group in self.groups:
                self._grant(record, index, wall_ms)
            case LocksReleased() | LocksExpired() | ClientDead():
                for place, lock in self.locks.items():
                    if lock.client and _ends(record, place, lock):
                        by = lock.client if isinstance(record, LocksReleased) else ""
                        lock.client, lock.stamp, lock.since_ms, lock.released_by = "", 0, 0, by
            case OffsetsCommitted() | OffsetsReset():
                for lock in self._fenced(record):
                    lock.epoch, lock.released_by = lock.epoch + 1, ""
                for commit in record.commits:
                    self._commit(commit, is_reset=isinstance(record, OffsetsReset))

    def _forget(self, part: int, name: str, *, with_offsets: bool) -> None:
        for place in [place for place in self.locks if place[part] == name]:
            self.floor = max(self.floor, self.locks.pop(place).epoch)
        for place in [place for place in self.offsets if place[part] == name and with_offsets]:
            del self.offsets[place]

    def _grant(self, record: LocksRequested, index: int, wall_ms: int) -> None:
        if record.orderly:
            self.ordered.add(record.group)
        for topic, queue in record.queues:
            if topic not in self.topics:
                continue
            place = record.group, topic, queue
            lock = self.locks.get(place) or Held(self.floor)
            if lock.client not in ("", record.client_id):
                continue
            if not lock.client:
                lock = Held(lock.epoch + 1, record.client_id, since_ms=wall_ms)
            lock.stamp = index
            self.locks[place] = lock

    def _fenced(self, record: OffsetsCommitted | OffsetsReset) -> Iterator[Held]:
        if isinstance(record, OffsetsReset) and record.fences:
            places = ((each.group, each.topic, each.queue_id) for each in record.commits)
            yield from (self.locks[place] for place in places if place in self.locks)

    def _commit(self, commit: Commit, *, is_reset: bool) -> None:
        place = commit.group, commit.topic, commit.queue_id
        if commit.topic not in self.topics:
            return
        lock = self.locks.get(place)
        if is_reset:
            self.offsets[place] = commit.offset
        elif commit.epoch:
            allowed = lock is not None and lock.epoch == commit.epoch
        else:
            allowed = commit.group not in self.ordered or lock is None or not lock.client
        if not is_reset and allowed:
            self.offsets[place] = max(commit.offset, self.offsets.get(place, -1))


def _ends(record: LocksReleased | LocksExpired | ClientDead, place: Place, lock: Held) -> bool:
    """Return whether *record* ends the lock of a queue."""
    group, *queue = place
    match record:
        case LocksReleased():
            named = record.queues is None or tuple(queue) in record.queues
            return (record.group, record.client_id) == (group, lock.client) and named
        case LocksExpired():
            return record.group == group and LockRef(place[1], place[2], lock.stamp) in record.locks
        case ClientDead():
            return record.client_id == lock.client


# Most records are about one place, so that they meet.
_places = st.tuples(st.sampled_from(("t", "t", "t", "s")), st.sampled_from((0, 0, 1)))
_groups, _clients = st.sampled_from(("g", "g", "g", "h")), st.sampled_from(("a", "a", "b"))
_commits = st.builds(
    lambda group, place, offset, epoch: (Commit(group, place[0], place[1], offset, epoch),),
    _groups,
    _places,
    st.integers(0, 5),
    st.integers(0, 3),
)
_requests = st.builds(
    lambda group, client, places, orderly: LocksRequested(
        group, client, "h:1", 1_000, tuple(places), orderly=orderly
    ),
    _groups,
    _clients,
    st.lists(_places, min_size=1, max_size=3, unique=True),
    st.booleans(),
)
_releases = st.builds(
    LocksReleased, _groups, _clients, st.none() | st.lists(_places, max_size=2).map(tuple)
)
_records: st.SearchStrategy[Record] = st.one_of(
    _requests,
    _requests,
    _requests,
    _releases,
    _releases,
    st.builds(
        lambda group, place, stamp: LocksExpired(group, (LockRef(place[0], place[1], stamp),)),
        _groups,
        _places,
        st.integers(1, 12),
    ),
    st.builds(OffsetsCommitted, _commits),
    st.builds(OffsetsReset, _commits, st.booleans()),
    st.builds(ClientDead, _clients),
    st.builds(TopicDeleted, st.sampled_from(TOPICS)),
    st.builds(GroupDeleted, _groups, st.booleans()),
    st.builds(lambda topic: TopicSet(topic, 2, 2), st.sampled_from(TOPICS)),
    st.builds(GroupSet, _groups),
)


@hypothesis_settings(max_examples=60)
@given(st.lists(_records, min_size=6, max_size=20))
def test_locks_and_offsets_are_what_the_twin_says(records: list[Record]) -> None:
    """Law: a queue has one holder, epochs never fall, and only a reset moves an offset back."""
    replica, twin = Replica(), Twin()
    replica.take(*(TopicSet(topic, 2, 2) for topic in TOPICS), *(GroupSet(name) for name in GROUPS))

    for record in records:
        replica.take(record)
        twin.take(record, replica.state.applied_index, WALL_MS)

        locks = replica.state.locks
        kept = {
            place: Held(
                lock.epoch, lock.client_id, lock.stamp, lock.held_since_ms, lock.released_by
            )
            for place in ((g, t, q) for g in GROUPS for t in TOPICS for q in QUEUES)
            if (lock := locks.get(*place) or locks.released(*place)) is not None
        }
        assert kept == {
            place: lock for place, lock in twin.locks.items() if lock.client or lock.released_by
        }
        for client in CLIENTS:
            for group in GROUPS:
                mine = {p[1:] for p, x in twin.locks.items() if (p[0], x.client) == (group, client)}
                assert set(locks.held_by(client, group)) == mine
                assert locks.holds(group, client) == bool(mine)
            assert locks.holds_any(client) == any(x.client == client for x in twin.locks.values())
        for group in GROUPS:
            places = [place for place in twin.locks if place[0] == group]
            assert locks.takes_locks(group) == (group in twin.ordered)
            assert {(x.group, x.topic, x.queue_id) for x in locks.of_group(group)} == set(places)
            assert {(x.group, x.topic, x.queue_id) for x in locks.held(group)} == {
                place for place in places if twin.locks[place].client
            }
            assert {
                (group, topic, queue): offset
                for topic, queues in replica.state.offsets.of_group(group).items()
                for queue, offset in queues.items()
            } == {place: offset for place, offset in twin.offsets.items() if place[0] == group}
        assert set(replica.state.offsets.groups()) == {place[0] for place in twin.offsets}
        for topic in TOPICS:
            assert set(locks.groups_of(topic)) == {p[0] for p in twin.locks if p[1] == topic}
        for place, known in twin.locks.items():
            assert locks.epoch(*place) == known.epoch
            assert locks.is_current(*place, known.epoch)
            assert not locks.is_current(*place, known.epoch + 1)

    replica.state.check_invariants()
    assert replica.restarted().state.digest() == replica.state.digest()
