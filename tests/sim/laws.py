"""
What must always hold, checked while a run goes on (the numbers are those of the invariants in
``docs/guarantees.md``).

The rule: a check knows nothing of how the cores do it. A small model reads the committed log once, in
its order, and says what locks, offsets and places must be; everything that a replica applies and that a
client is told is compared with it. What can only be judged in the end is left to the oracle.
"""

import traceback
import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from orderlymq.oracle import Kind
from orderlymq_broker.state.records import (
    Append,
    ClientDead,
    Commit,
    LocksExpired,
    LocksReleased,
    LocksRequested,
    OffsetsCommitted,
    OffsetsReset,
    Record,
    TopicSet,
    decode_records,
)
from orderlymq_broker.store.entry import EntryParts
from orderlymq_raft import Role, RoleChange

if TYPE_CHECKING:
    from tests.sim.replica import Replica
    from tests.sim.world import World

DIGEST_EVERY: Final = 16

Key = tuple[str, str, int]  # group, topic, queue


class LawBroken(BaseException):
    """A check failed; no handler of a core's errors may swallow it."""

    def __init__(self, check: str, text: str, cause: BaseException | None = None) -> None:
        super().__init__(f"{check}: {text}")
        self.check = check
        self.text = text
        self.trace = "" if cause is None else "".join(traceback.format_exception(cause))


@dataclass(slots=True)
class ModelLock:
    """What the log says of one lock; free when *client* is empty."""

    client: str = ""
    epoch: int = 0
    stamp: int = 0
    committed: int = 0  # offset when the present holder got it
    delivered: int = 0  # newest epoch under which something was delivered


@dataclass(slots=True)
class Model:
    """The committed log, read by a reader that shares no code with the state machine."""

    index: int = 0
    entries: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])  # term, checksum
    locks: dict[Key, ModelLock] = field(default_factory=dict)
    offsets: dict[Key, int] = field(default_factory=dict)
    topics: dict[int, str] = field(default_factory=dict)
    places: dict[tuple[int, str], tuple[int, int]] = field(default_factory=dict)
    at: dict[tuple[int, int, int], str] = field(default_factory=dict)  # topic id, queue, offset
    ends: Counter[tuple[int, int]] = field(default_factory=Counter)


class Laws:
    """All checks of one run."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.model = Model()
        self.refused: set[str] = set()
        # What clients were told of offsets. What followers have applied already does not count:
        # a leader whose own disk is slow may be behind them, and nobody has heard of it.
        self.observed: Counter[Key] = Counter()
        self._leaders: dict[int, str] = {}
        self._digests: dict[int, tuple[str, str]] = {}
        self._acknowledged_index = 0
        self._terms: dict[str, int] = {}

    def broken(self, check: str, text: str, cause: BaseException | None = None) -> None:
        """End the run with a finding."""
        raise LawBroken(check, text, cause)

    def ensure(self, holds: bool, check: str, text: str) -> None:
        """Check one law."""
        if not holds:
            self.broken(check, text)

    # -- replicas

    def opened(self, replica: "Replica") -> None:
        """Note that a replica reads its disk: what it stored must be what the group has applied."""
        # A term that was not durable yet may be forgotten in a crash.
        self._terms[replica.name] = replica.node.term
        self._compare(replica)

    def role_changed(self, replica: "Replica", change: RoleChange) -> None:
        """At most one leader in each term, and no term falls."""
        before = self._terms.get(replica.name, 0)
        if not replica.wiped:
            self.ensure(
                change.term >= before,
                "terms",
                f"{replica.name} went from term {before} to {change.term}",
            )
        self._terms[replica.name] = change.term
        if change.role is Role.LEADER:
            other = self._leaders.setdefault(change.term, replica.name)
            self.ensure(
                other == replica.name,
                "one leader",
                f"{other} and {replica.name} both lead term {change.term}",
            )

    def serving_began(self, replica: "Replica") -> None:
        """Check law 6: a new leader has everything that was ever acknowledged."""
        applied = replica.state.applied_index
        self.ensure(
            applied >= self._acknowledged_index,
            "acknowledged",
            f"{replica.name} leads with {applied} entries, acknowledged are "
            f"{self._acknowledged_index}",
        )

    def check_replica(self, replica: "Replica") -> None:
        """Check what holds inside one replica."""
        try:
            replica.node.check()
            replica.state.check_invariants()
        except AssertionError as error:
            self.broken("invariant", f"{replica.name}: {error}", error)

    def applied(self, replica: "Replica", index: int, term: int, parts: EntryParts | None) -> None:
        """Compare what was applied with what others applied there; read it when it is the first."""
        checksum = 0
        if parts is not None:
            checksum = zlib.crc32(parts.blob, zlib.crc32(parts.meta, parts.wall_ms & 0xFFFFFFFF))
        model = self.model
        if index <= model.index:
            self.ensure(
                model.entries[index] == (term, checksum),
                "same log",
                f"{replica.name} applies another entry {index} (term {term}) than was applied "
                f"before (term {model.entries[index][0]})",
            )
        else:
            self.ensure(index == model.index + 1, "same log", f"entry {index} was passed over")
            model.index = index
            model.entries.append((term, checksum))
            if parts is not None:
                for record in decode_records(bytes(parts.meta)):
                    self._read(record, index)
                self._compare_tables(replica)
        if index % DIGEST_EVERY == 0:
            self._compare(replica)

    def _compare(self, replica: "Replica") -> None:
        """Check law 10: equal indexes, equal states."""
        state = replica.state
        if not state.applied_index:
            return
        digest = state.digest()
        name, other = self._digests.setdefault(state.applied_index, (replica.name, digest))
        self.ensure(
            digest == other,
            "same state",
            f"{replica.name} and {name} have other states at entry {state.applied_index}",
        )

    def compare_all(self) -> None:
        """Compare all replicas in the end."""
        for replica in self.world.replicas.values():
            self._compare(replica)
            self.check_replica(replica)

    def _compare_tables(self, replica: "Replica") -> None:
        """Check laws 1 to 3: the tables are what the log says."""
        state, model = replica.state, self.model
        for key, lock in model.locks.items():
            held = state.locks.get(*key)
            found = ("", 0) if held is None else (held.client_id, held.epoch)
            wanted = (lock.client, lock.epoch if lock.client else 0)
            self.ensure(
                found == wanted, "locks", f"{replica.name}: {key} is held by {found}, not {wanted}"
            )
        for key, offset in model.offsets.items():
            stored = state.offsets.get(*key)
            self.ensure(
                stored == offset, "offsets", f"{replica.name}: {key} is at {stored}, not {offset}"
            )

    # -- the model

    def _read(self, record: Record, index: int) -> None:  # noqa: C901, PLR0912 - one arm per record
        model, history = self.model, self.world.history
        match record:
            case Append():
                self._read_append(record)
            case TopicSet():
                self.world.coverage["topic set"] += 1
            case LocksRequested():
                for topic, queue in record.queues:
                    key = (record.group, topic, queue)
                    lock = model.locks.setdefault(key, ModelLock())
                    if lock.client not in ("", record.client_id):
                        continue
                    if not lock.client:
                        lock.client, lock.epoch = record.client_id, lock.epoch + 1
                        lock.committed = model.offsets.get(key, 0)
                        history.event(
                            Kind.LOCK,
                            group=record.group,
                            topic=topic,
                            queue=str(queue),
                            client=lock.client,
                            epoch=lock.epoch,
                        )
                    lock.stamp = index
            case LocksReleased():
                for (group, topic, queue), lock in model.locks.items():
                    named = record.queues is None or (topic, queue) in record.queues
                    if group == record.group and lock.client == record.client_id and named:
                        lock.client = ""
            case LocksExpired():
                for ref in record.locks:
                    over = model.locks.get((record.group, ref.topic, ref.queue_id))
                    if over is not None and over.stamp == ref.stamp and over.client:
                        over.client = ""
                        self.world.coverage["lease expired"] += 1
            case ClientDead():
                for lock in model.locks.values():
                    if lock.client == record.client_id:
                        lock.client = ""
                        self.world.coverage["lock taken from a dead client"] += 1
            case OffsetsCommitted():
                for commit in record.commits:
                    self._read_commit(commit)
            case OffsetsReset():
                # What a tool says when nobody is online; here a client that is no member any more.
                for commit in record.commits:
                    model.offsets[commit.group, commit.topic, commit.queue_id] = commit.offset
            case _:
                pass

    def _read_append(self, record: Append) -> None:
        model = self.model
        place = (record.topic_id, record.queue_id)
        self.ensure(
            record.queue_offset == model.ends[place],
            "dense",
            f"{record} does not stand at the end {model.ends[place]} of its queue",
        )
        model.ends[place] += 1
        model.at[record.topic_id, record.queue_id, record.queue_offset] = record.unique_key
        if record.unique_key:
            key = (record.topic_id, record.unique_key)
            self.ensure(
                key not in model.places,
                "one copy",
                f"{record.unique_key} is stored at {model.places.get(key)} and again at {place}",
            )
            model.places[key] = (record.queue_id, record.queue_offset)
            self.ensure(
                record.unique_key not in self.refused or record.topic_id != self.topic_id,
                "refused",
                f"{record.unique_key} was refused for good and is stored now",
            )

    def _read_commit(self, commit: Commit) -> None:
        key = (commit.group, commit.topic, commit.queue_id)
        lock = self.model.locks.get(key)
        held = lock is not None and lock.client != ""
        if not commit.epoch:
            # A client without epochs may store its last offset after it has given the queue back.
            self.ensure(
                not held, "commit without epoch", f"{commit} was accepted while {lock} is held"
            )
        elif lock is None or lock.epoch != commit.epoch:
            # Free or held: nobody else has had the queue since.
            return
        if commit.offset > self.model.offsets.get(key, -1):
            self.model.offsets[key] = commit.offset
            self.world.history.event(
                Kind.COMMIT,
                group=commit.group,
                topic=commit.topic,
                queue=str(commit.queue_id),
                offset=commit.offset,
                epoch=commit.epoch,
            )

    @property
    def topic_id(self) -> int:
        """Return the number of the topic that the producers send to."""
        return self.world.topic_id

    # -- clients

    def acknowledged(self, key: str, queue: int, offset: int) -> None:
        """Check law 6: what is acknowledged is committed, there."""
        place = self.model.places.get((self.topic_id, key))
        self.ensure(
            place == (queue, offset),
            "acknowledged",
            f"{key} is acknowledged at {(queue, offset)}, in the log it stands at {place}",
        )
        self._acknowledged_index = self.model.index

    def send_refused(self, key: str) -> None:
        """Check law 7: a refused send is in no log."""
        self.refused.add(key)
        place = self.model.places.get((self.topic_id, key))
        self.ensure(place is None, "refused", f"{key} is refused for good but stands at {place}")

    def offset_answered(self, key: Key, offset: int, at_least: int) -> None:
        """Check that an answer is not older than its question, and is in the log."""
        now = self.model.offsets.get(key, 0)
        self.ensure(
            at_least <= offset <= now,
            "stale offset",
            f"{key} was answered {offset}, known before the question was {at_least}, is {now}",
        )
        self.observed[key] = max(self.observed[key], offset)

    def offset_stored(self, key: Key, offset: int) -> None:
        """Note that a client was told that its offset is stored."""
        self.ensure(
            self.model.offsets.get(key, 0) >= offset,
            "offset not stored",
            f"{key} is said to be stored at {offset}, the log says {self.model.offsets.get(key)}",
        )
        self.observed[key] = max(self.observed[key], offset)

    def pulled(self, topic: str, queue: int, offset: int, key: str) -> None:
        """Check that nothing is handed out that is not committed."""
        if topic == self.world.topic:
            found = self.model.at.get((self.topic_id, queue, offset))
            self.ensure(
                found == key,
                "pulled uncommitted",
                f"{topic} {queue}@{offset} was pulled as {key}, the log has {found}",
            )

    def delivered(
        self, key: Key, client: str, epoch: int | None, offset: int, *, lease_runs: bool
    ) -> None:
        """Check laws 1, 4 and 5: who works on a queue holds it, by its own clock and by the log.

        The first message of an epoch is the one that was committed when it began.
        """
        self.ensure(lease_runs, "lease", f"{client} delivers of {key} after its lease")
        lock = self.model.locks.get(key, ModelLock())
        same = lock.client == client and epoch in (None, lock.epoch)
        self.ensure(
            same,
            "one holder",
            f"{client} delivers of {key} under epoch {epoch}; the log says {lock}",
        )
        if lock.delivered < lock.epoch:
            lock.delivered = lock.epoch
            committed = self.model.offsets.get(key, 0)
            self.ensure(
                lock.committed <= offset <= committed,
                "first of an epoch",
                f"{client} begins {key} at {offset}, committed is {committed}, was "
                f"{lock.committed} when it got the queue",
            )
