"""
The invariants that always hold, checked during a run (numbered as in ``docs/explanation/guarantees.md``).

Rule: a check knows nothing of how the cores work. A small model reads the committed log once, in its order, and
determines the correct locks, offsets and places. Everything that a replica applies and that a client receives is
compared with it. Laws that can only be judged at the end are left to the oracle.
"""

import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from orderlymq.message import ReceivedMessage
from orderlymq.oracle.verdict import Kind
from orderlymq_broker.state.groups.lockrecords import (
    ClientDead,
    LocksExpired,
    LocksReleased,
    LocksRequested,
)
from orderlymq_broker.state.integerranges import NO_TOKEN
from orderlymq_broker.state.records import (
    Append,
    Commit,
    GroupDeleted,
    GroupSet,
    OffsetsCommitted,
    OffsetsReset,
    Outcome,
    Record,
    RetentionAdvanced,
    TopicDeleted,
    TopicSet,
    decode_records,
)
from orderlymq_broker.state.transactions.halfrecords import HalfEnded, HalfGivenUp, HalfOpened
from orderlymq_broker.store.entry import EntryParts
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC
from orderlymq_runtime.remoting.client import RemotingError
from tests.sim.invariants.elections import Elections
from tests.sim.invariants.expansion import GrowthLaws
from tests.sim.invariants.lanes import GROUP as LANE_GROUP
from tests.sim.invariants.lanes import LaneLaws
from tests.sim.invariants.lives import RECYCLED, Lives
from tests.sim.invariants.locks import LockLaws
from tests.sim.invariants.log import Key, Model, ModelLock
from tests.sim.invariants.parkedkeys import HeldLaws
from tests.sim.invariants.promises import Promises
from tests.sim.invariants.window import Window

if TYPE_CHECKING:
    from tests.sim.broker.replica import Replica
    from tests.sim.world import World

DIGEST_EVERY: Final = 16
# Requests that need a permission that can be revoked, and that only a leader answers.
_GUARDED: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.PULL_MESSAGE,
        RequestCode.UPDATE_CONSUMER_OFFSET,
    }
)


class LawBroken(BaseException):
    """A check failed. It is a BaseException so that no core's error handler catches it."""

    def __init__(self, check: str, text: str, cause: BaseException | None = None) -> None:
        super().__init__(f"{check}: {text}")
        self.check = check
        self.text = text
        self.trace = "" if cause is None else "".join(traceback.format_exception(cause))


class Laws:
    """All checks of one run."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.model = Model()
        self.refused: set[str] = set()
        # Offsets that clients learned. Offsets that only followers have applied do not count: a leader whose own disk
        # is slow may be behind them, and no client has learned them.
        self.observed: Counter[Key] = Counter()
        self.observed_ends: Counter[int] = Counter()  # by queue of the topic
        self._digests: dict[int, tuple[str, str]] = {}
        # The last applied index at the time of an answer, by the latest term that served then.
        self._acknowledged: dict[int, int] = {0: 0}
        self._serving_term = 0
        self.acknowledgements = 0
        # Accounts without permissions, from a confirmed denial until they may have permissions again.
        self.denied: dict[str, int] = {}
        self._schedule_id = self._timer_id = self._given_up_id = -1
        # Cancelled timer messages, and messages that only cancel: no consumer may get them any more.
        self.silenced: set[str] = set()
        self.promises = Promises(self)
        self.elections = Elections(self)
        self.growth = GrowthLaws(self)
        self.held = HeldLaws(self)
        self.lives = Lives(self)
        self.locks = LockLaws(self)
        self.window = Window(self)
        self.lanes = LaneLaws(self)

    def broken(self, check: str, text: str, cause: BaseException | None = None) -> None:
        """End the run with a finding."""
        raise LawBroken(check, text, cause)

    def ensure(self, holds: bool, check: str, text: str) -> None:
        """Check one law."""
        if not holds:
            self.broken(check, text)

    # -- replicas

    def opened(self, replica: "Replica") -> None:
        """Check the state that a replica reads from its disk against the applied entries."""
        # A crash may lose a term that was not durable yet, but no term that was sent.
        self.elections.opened(replica)
        self.promises.opened(replica)
        self._compare(replica)

    def serving_began(self, replica: "Replica") -> None:
        """Check law 6: a new leader has everything that was acknowledged up to its term.

        It need not have what a later leader acknowledged. A replica that was paused after receiving the
        votes, or the answers to its first entry, begins an old term when it continues. It deposes no leader
        and commits nothing more.
        """
        applied, term = replica.state.applied_index, replica.node.term
        owed = max(index for served, index in self._acknowledged.items() if served <= term)
        self.ensure(
            applied >= owed,
            "acknowledged",
            f"{replica.name} leads with {applied} entries, acknowledged are {owed}",
        )
        self._serving_term = max(self._serving_term, term)

    def check_replica(self, replica: "Replica") -> None:
        """Check the invariants inside one replica."""
        try:
            replica.node.check()
            replica.state.check_invariants()
        except AssertionError as error:
            self.broken("invariant", f"{replica.name}: {error}", error)

    def applied(
        self,
        replica: "Replica",
        index: int,
        term: int,
        parts: EntryParts | None,
        outcomes: Sequence[Outcome] = (),
    ) -> None:
        """Compare an applied entry with what others applied at its index; read it if this replica is the first."""
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
                records = decode_records(bytes(parts.meta))
                for record, outcome in zip(records, outcomes, strict=True):
                    self._read(record, index, parts.wall_ms, replica)
                    self.lanes.read(record, outcome, parts.wall_ms, replica)
                self.growth.applied(replica, records)
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
        """Compare all replicas at the end."""
        for replica in self.world.replicas.values():
            self._compare(replica)
            self.check_replica(replica)

    def _compare_tables(self, replica: "Replica") -> None:
        """Check laws 1 to 3: the tables agree with the log."""
        state, model = replica.state, self.model
        self.locks.compare(replica)
        self.held.compare(replica)
        self.lives.compare(replica)
        self.lanes.compare(replica)
        self.window.compare(replica)
        for key, offset in model.offsets.items():
            stored = state.offsets.get(*key)
            self.ensure(
                stored == offset, "offsets", f"{replica.name}: {key} is at {stored}, not {offset}"
            )

    # -- the model

    def _read(  # noqa: C901, PLR0912 - one arm per record
        self, record: Record, index: int, wall_ms: int, replica: "Replica"
    ) -> None:
        model = self.model
        token = getattr(record, "token", NO_TOKEN)
        if NO_TOKEN < token < model.token:
            return  # refused: another operator has succeeded the one that asks
        model.token = max(model.token, token)
        self.window.read(record, wall_ms, replica)
        match record:
            case Append():
                self._read_append(record, wall_ms, replica)
            case HalfOpened():
                model.halves[record.offset] = record.unique_key
            case HalfEnded():
                self._read_end(record)
            case RetentionAdvanced():
                self._read_retention(record, replica)
            case HalfGivenUp():
                self.world.coverage["transaction given up"] += 1
            case TopicSet():
                self.lives.topic_set(record.name, replica)
            case GroupSet():
                self.lives.group_set(record.name)
            case TopicDeleted():
                self.lives.topic_deleted(record, replica)
            case GroupDeleted():
                self.lives.group_deleted(record, replica)
            case LocksRequested() | LocksReleased() | LocksExpired() | ClientDead():
                self.locks.read(record, index, replica)
            case OffsetsCommitted():
                for commit in record.commits:
                    self._read_commit(commit)
            case OffsetsReset():
                # A tool sends this if no member is online; here a client sends it that is no longer a member.
                for commit in (each for each in record.commits if each.group != LANE_GROUP):
                    model.offsets[commit.group, commit.topic, commit.queue_id] = commit.offset
                    self.lives.committed((commit.group, commit.topic, commit.queue_id))
            case _:
                self.held.read(record)

    def _read_end(self, record: HalfEnded) -> None:
        """Check that a transaction ends once, as it was decided, and with its message."""
        key = self.model.halves.pop(record.offset, None)
        self.ensure(key is not None, "transaction", f"{record} ends what is not open")
        stored = (self.topic_id, key) in self.model.places
        self.ensure(
            stored == record.committed,
            "transaction",
            f"{record} of {key}: its message {'is' if stored else 'is not'} in the log",
        )

    def _read_retention(self, record: RetentionAdvanced, replica: "Replica") -> None:
        model, topic_id = self.model, self.topic_id
        for floor in record.queues:
            place = (floor.topic_id, floor.queue_id)
            before = model.floors[place]
            self.ensure(
                before <= floor.min_offset <= model.ends[place],
                "retention",
                f"{floor} after {before}, the queue ends at {model.ends[place]}",
            )
            kept = floor.min_offset
            topic = replica.state.topics.by_id.get(floor.topic_id)
            if topic is not None and floor.queue_id in topic.queues:
                # Since the leader decided, lanes may owe more messages.
                kept = max(before, min(kept, topic.queues[floor.queue_id].min_offset))
                self.lanes.picks.dropped((topic.name, floor.queue_id), kept)
            model.floors[place] = kept
            if floor.topic_id != topic_id:
                continue
            self.lanes.dropped(floor.queue_id, before, kept)
            self.world.coverage["messages dropped by retention"] += 1
            if kept < floor.min_offset:
                self.world.coverage["retention kept what a lane owes"] += 1
            for offset in range(before, kept):
                self.world.history.event(
                    Kind.DROPPED,
                    topic=self.world.topic,
                    queue=str(floor.queue_id),
                    offset=offset,
                    message=model.at[topic_id, floor.queue_id, offset],
                )

    def _system_topics(self, replica: "Replica") -> None:
        names = (SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC)
        found = [replica.state.topics.get(name) for name in names]
        self._schedule_id, self._timer_id, self._given_up_id = (
            -1 if topic is None else topic.id for topic in found
        )

    def _read_append(self, record: Append, wall_ms: int, replica: "Replica") -> None:
        model = self.model
        if record.topic_id in self.lives.dead:
            self.world.coverage["send to a deleted topic"] += 1
            return
        if self._schedule_id < 0:
            self._system_topics(replica)
        if record.topic_id == self.topic_id:
            self.growth.appended(record)
        if record.topic_id in (self._schedule_id, self._timer_id):
            model.due[record.unique_key] = record.tags_code
        elif record.topic_id == self.topic_id and record.unique_key in model.due:
            timed = (self._timer_id, record.unique_key) in model.places
            self.world.coverage[f"{'timer' if timed else 'delayed'} message handed on"] += 1
            self.ensure(
                record.unique_key not in self.silenced,
                "cancelled",
                f"{record.unique_key} is handed on, its cancellation was acknowledged",
            )
            self.ensure(
                model.due[record.unique_key] <= wall_ms or self.world.plan.wrong_clocks,
                "delay",
                f"{record.unique_key} is handed on at {wall_ms}, it is due at "
                f"{model.due[record.unique_key]}",
            )
        place = (record.topic_id, record.queue_id)
        self.ensure(
            record.queue_offset == model.ends[place],
            "dense",
            f"{record} does not stand at the end {model.ends[place]} of its queue",
        )
        model.ends[place] += 1
        model.at[record.topic_id, record.queue_id, record.queue_offset] = record.unique_key
        if record.unique_key and record.topic_id != self._given_up_id:
            key = (record.topic_id, record.unique_key)
            self.ensure(
                key not in model.places or self.window.may_follow(record),
                "one copy",
                f"{record.unique_key} is stored at {model.places.get(key)} and again at {place}",
            )
            model.places[key] = (record.queue_id, record.queue_offset)
            self.ensure(
                record.unique_key not in self.refused or record.topic_id != self.topic_id,
                "refused",
                f"{record.unique_key} was refused for good and is stored now",
            )
        self.window.appended(record)

    def _read_commit(self, commit: Commit) -> None:
        key = (commit.group, commit.topic, commit.queue_id)
        lock = self.model.locks.get(key)
        held = lock is not None and lock.client != ""
        if not commit.epoch:
            self.ensure(
                commit.topic not in RECYCLED,
                "lives",
                f"{commit} was made under an epoch, which has gone with its group, and accepted without",
            )
            # A client without epochs may store its last offset after it has given the queue back.
            self.ensure(
                not held, "commit without epoch", f"{commit} was accepted while {lock} is held"
            )
        elif lock is None or lock.epoch != commit.epoch:
            # The lock is free or held: no other client has had the queue since.
            return
        if commit.offset > self.model.offsets.get(key, -1):
            self.model.offsets[key] = commit.offset
            self.lives.committed(key)
            if commit.topic in RECYCLED:
                return  # in these topics an offset may fall in a new life
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
        """Check law 6: an acknowledged message is committed at the acknowledged place."""
        place = self.model.places.get((self.topic_id, key))
        self.ensure(
            place == (queue, offset),
            "acknowledged",
            f"{key} is acknowledged at {(queue, offset)}, in the log it stands at {place}",
        )
        self.observed_ends[queue] = max(self.observed_ends[queue], offset + 1)
        self.acknowledgements += 1
        self._acknowledged[self._serving_term] = self.model.index

    def waiting_acknowledged(self, key: str, level: int, offset: int) -> None:
        """Check that a message waits at its acknowledged place, or has been handed on; level 0 is a timer."""
        topic_id, queue = (self._schedule_id, level - 1) if level else (self._timer_id, 0)
        place = self.model.places.get((topic_id, key))
        self.ensure(
            place == (queue, offset),
            "acknowledged",
            f"{key} is acknowledged with delay {level} at {offset}, in the log it stands at {place}",
        )
        self._acknowledged[self._serving_term] = self.model.index

    def transaction_ended(self, key: str, *, committed: bool) -> None:
        """Check that the end of a transaction was in the log when it was answered."""
        place = self.model.places.get((self.topic_id, key))
        self.ensure(
            (place is not None) == committed,
            "transaction",
            f"{key} was {'committed' if committed else 'rolled back'}, it stands at {place}",
        )
        self._acknowledged[self._serving_term] = self.model.index

    def checked_back(self, message: ReceivedMessage) -> None:
        """Check that a producer is only asked about a message that was sent."""
        self.ensure(
            message.body == message.message_id.encode() and message.message_id in self.world.deals,
            "transaction",
            f"a check shows {message!r} with body {message.body!r}",
        )

    def access_watched(
        self,
        account: str,
        command: RemotingCommand,
        on_answer: Callable[[RemotingCommand | RemotingError], None],
    ) -> Callable[[RemotingCommand | RemotingError], None]:
        """Check that a request without permission is refused if the denial was confirmed before the request."""
        serial = self.denied.get(account)
        if serial is None or command.code not in _GUARDED:
            return on_answer

        def answered(answer: RemotingCommand | RemotingError) -> None:
            if isinstance(answer, RemotingCommand) and self.denied.get(account) == serial:
                self.world.coverage["request without rights answered"] += 1
                self.ensure(
                    answer.code != ResponseCode.SUCCESS,
                    "access",
                    f"request {command.code} of {account} was served without rights",
                )
            on_answer(answer)

        return answered

    def send_refused(self, key: str) -> None:
        """Check law 7: a refused send is in no log."""
        self.refused.add(key)
        place = self.model.places.get((self.topic_id, key))
        self.ensure(place is None, "refused", f"{key} is refused for good but stands at {place}")

    def offset_answered(self, key: Key, offset: int, at_least: int) -> None:
        """Check that an answered offset is in the log and not older than what was known at the request."""
        now = self.model.offsets.get(key, 0)
        self.ensure(
            at_least <= offset <= now,
            "stale offset",
            f"{key} was answered {offset}, known before the question was {at_least}, is {now}",
        )
        self.observed[key] = max(self.observed[key], offset)

    def end_answered(self, queue: int, end: int, at_least: int) -> None:
        """Check that no client learns of a shorter queue than was acknowledged before its request."""
        now = self.model.ends[self.topic_id, queue]
        self.ensure(
            at_least <= end <= now,
            "stale end",
            f"queue {queue} is said to end at {end}, acknowledged before the question was "
            f"{at_least}, the log has {now}",
        )

    def offset_stored(self, key: Key, offset: int) -> None:
        """Note that a client learned that its offset is stored."""
        self.ensure(
            self.model.offsets.get(key, 0) >= offset,
            "offset not stored",
            f"{key} is said to be stored at {offset}, the log says {self.model.offsets.get(key)}",
        )
        self.observed[key] = max(self.observed[key], offset)

    def answering(self) -> "Replica | None":
        """Return the leader that answers clients now, None if there is none.

        It answers from what it has applied itself. While its disk is slow or full, its followers may have applied
        more, and no client has learned of the rest.
        """
        serving = [
            each for each in self.world.replicas.values() if each.alive and each.loop.serving
        ]
        return max(serving, key=lambda each: each.node.term, default=None)

    def floor(self, queue: int) -> int:
        """Return the first offset of a queue of the topic that the answering replica still has."""
        kept = self.model.floors[self.topic_id, queue]
        leader = self.answering()
        topic = None if leader is None else leader.state.topics.by_id.get(self.topic_id)
        if topic is not None and queue in topic.queues:
            return min(kept, topic.queues[queue].min_offset)
        return kept

    def has_lost(self, key: Key, client: str, epoch: int | None) -> bool:
        """Return whether another client holds a queue by now, whatever this client believes."""
        lock = self.model.locks.get(key)
        if (
            lock is None
            or not lock.client
            or (lock.client == client and epoch in (None, lock.epoch))
        ):
            return False
        leader = self.answering()
        applied = None if leader is None else leader.state.locks.get(*key)
        return applied is None or applied.client_id != client or epoch not in (None, applied.epoch)

    def passed_over(self, queue: int, asked: int, offset: int, floor_then: int) -> None:
        """Check that a consumer is moved only if the message that it asked for was dropped.

        It is moved to an offset that was the first kept one at some time between its request
        and the answer's arrival.
        """
        self.world.coverage["consumer moved by retention"] += 1
        floor = self.model.floors[self.topic_id, queue]
        self.ensure(
            asked < offset and floor_then <= offset <= floor,
            "offset illegal",
            f"who pulls {queue}@{asked} is sent to {offset}, the first that is kept is {floor}, "
            f"it was {floor_then} when it asked",
        )

    def pulled(self, topic: str, queue: int, offset: int, key: str) -> None:
        """Check that only committed messages are handed out."""
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
        """Check laws 1, 4 and 5: a client that works on a queue holds it, by its own clock and by the log.

        The first message of an epoch is the one at the committed offset when the epoch began.
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
            floor = self.model.floors[self.topic_id, key[2]]
            self.ensure(
                lock.committed <= offset <= self.held.first_to_deliver(key, max(committed, floor)),
                "first of an epoch",
                f"{client} begins {key} at {offset}, committed is {committed}, was "
                f"{lock.committed} when it got the queue",
            )
