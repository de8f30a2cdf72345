"""Defects of the state machine and of the processors."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from orderlymq_broker.core.deadlines import DeadlineQueue
from orderlymq_broker.core.effects import Propose
from orderlymq_broker.core.entrybuilder import Built, EntryBuilder
from orderlymq_broker.core.uncommitted import Place
from orderlymq_broker.processors.admin.groups import GroupAdministration
from orderlymq_broker.processors.dispatch import BrokerCore
from orderlymq_broker.processors.groups import locks as locking
from orderlymq_broker.processors.groups.fence import Fence, Verdict
from orderlymq_broker.processors.groups.locks import LockProcessor
from orderlymq_broker.processors.groups.offsets import Committer
from orderlymq_broker.processors.send.responses import answer_places
from orderlymq_broker.processors.send.sends import SendProcessor
from orderlymq_broker.replication.proposals import Proposer
from orderlymq_broker.state import removals
from orderlymq_broker.state.groups.lockrecords import LocksReleased
from orderlymq_broker.state.groups.locks import Lock, LockTable
from orderlymq_broker.state.groups.offsets import OffsetTable
from orderlymq_broker.state.records import Append, Commit, Trimmed, decode_records
from orderlymq_broker.state.send.duplicates import DedupWindow, send_identity
from orderlymq_broker.store.entry import split_entry
from orderlymq_protocol.codes import RequestCode
from tests.sim.broker.observed import ObservedMachine
from tests.sim.defects.defect import Bed, Catalogue
from tests.sim.plan import STORMS, WINDOWS

STATE = Catalogue("state machine")
PROCESSORS = Catalogue("processors")


@STATE.defect("add no send to the duplicate window", "one send, one copy")
def _no_window(bed: Bed) -> None:
    bed.put(DedupWindow, "add", lambda self, record, batch: None)


@STATE.defect(
    "remove the newest sends from the duplicate window",
    "a repeat gets the first result until the window has moved on",
    WINDOWS["count"],
)
def _trim_wrong_end(bed: Bed) -> None:
    def trim(self: DedupWindow, floor: int, batch: Any) -> Trimmed:
        count = sum(1 for physical in self._order if physical < floor)
        for physical in list(self._order)[len(self._order) - count :]:
            self.forget(physical, batch)
        return Trimmed(count)

    bed.put(DedupWindow, "trim", trim)


@STATE.defect(
    "leave rows of a deleted topic",
    "a new topic or group keeps nothing of a deleted one",
    {"recycled": True},
)
def _rows_stay(bed: Bed) -> None:
    def drop_topic(self: OffsetTable, topic: str, writes: Any) -> None:
        for topics in self._groups.values():
            topics.pop(topic, None)

    bed.put(OffsetTable, "drop_topic", drop_topic)


@STATE.defect(
    "leave messages of a deleted topic in the store",
    "a new topic or group keeps nothing of a deleted one",
    {"recycled": True},
)
def _index_stays(bed: Bed) -> None:
    # The range is empty: it ends where it begins.
    bed.put(removals, "prefix_end", lambda prefix: prefix)


@STATE.defect(
    "accept a commit from before the deletion of its topic",
    "a new topic or group keeps nothing of a deleted one",
    {"recycled": True},
)
def _late_commit(bed: Bed) -> None:
    real = OffsetTable.commit

    def commit(self: OffsetTable, commits: Any, locks: Any, topics: Any, writes: Any) -> Any:
        return real(self, commits, locks, {each.topic for each in commits}, writes)

    bed.put(OffsetTable, "commit", commit)
    bed.put(OffsetTable, "_is_allowed", staticmethod(lambda commit, locks: True))
    # Otherwise the leader refuses commits after the deletion.
    bed.put(Committer, "check_staying", lambda *_: None)


@STATE.defect(
    "forget the epochs of a deleted topic",
    "an epoch belongs to one holder",
    {"recycled": True},
)
def _epochs_fall(bed: Bed) -> None:
    real = LockTable._drop

    def drop(self: LockTable, group: str, topic: str, writes: Any) -> None:
        floor = self._floor
        real(self, group, topic, writes)
        self._floor = floor

    bed.put(LockTable, "_drop", drop)


@STATE.defect("keep the epoch when the holder changes", "an epoch belongs to one holder")
def _same_epoch(bed: Bed) -> None:
    real = LockTable._set

    def keep(self: LockTable, lock: Lock, writes: Any) -> None:
        before = self._last(lock.group, lock.topic, lock.queue_id)
        if before is not None and before.epoch and lock.epoch > before.epoch:
            lock = msgspec.structs.replace(lock, epoch=before.epoch)
        real(self, lock, writes)

    bed.put(LockTable, "_set", keep)


@STATE.defect(
    "let any client release a lock",
    "only the holder releases a lock",
    STORMS["consumers"],
)
def _unlock_anybody(bed: Bed) -> None:
    real = LockTable.release

    def release(self: LockTable, record: LocksReleased, writes: Any) -> Any:
        for lock in list(self.held(record.group)):
            if record.queues is None or (lock.topic, lock.queue_id) in record.queues:
                real(self, msgspec.structs.replace(record, client_id=lock.client_id), writes)
        return real(self, record, writes)

    bed.put(LockTable, "release", release)


@STATE.defect("let a commit move an offset back", "offsets of a group never go back")
def _commit_back(bed: Bed) -> None:
    real = OffsetTable.commit

    def commit(self: OffsetTable, commits: Any, locks: Any, topics: Any, writes: Any) -> Any:
        moved = real(self, commits, locks, topics, writes)
        for each in commits:
            self._set(self._queues(each), each, writes)
        return moved

    def gather(
        self: Committer, group: str, topic: Any, queue_id: int, offset: int, epoch: int
    ) -> str:
        self._pending[group, topic.name, queue_id] = Commit(
            group, topic.name, queue_id, offset, epoch
        )
        return ""

    bed.put(OffsetTable, "commit", commit)
    bed.put(Committer, "_gather", gather)


@STATE.defect(
    "use the replica's own clock when an entry is applied", "equal logs give equal states"
)
def _own_clock(bed: Bed) -> None:
    real = ObservedMachine.apply

    def apply(self: ObservedMachine, index: int, term: int, parts: Any, batch: Any) -> Any:
        own = replace(parts, wall_ms=parts.wall_ms + self._replica.wall_offset_ms)
        return real(self, index, term, own, batch)

    bed.put(ObservedMachine, "apply", apply)


@PROCESSORS.defect(
    "delete a consumer group whose members hold queues",
    "at most one holder",
    {"recycled": True},
)
def _delete_held(bed: Bed) -> None:
    def check_unused(self: GroupAdministration, group: str) -> None:
        pass

    bed.put(GroupAdministration, "_check_unused", check_unused)


@PROCESSORS.defect("end a lease early", "a lease is longer than needed, never shorter")
def _short_lease(bed: Bed) -> None:
    real = DeadlineQueue.set

    def set_earlier(self: DeadlineQueue[Any], key: Any, end_ms: int) -> None:
        is_lock = len(key) == 3  # group, topic, queue; lanes have more
        real(self, key, end_ms - 2_000 if is_lock else end_ms)

    bed.put(DeadlineQueue, "set", set_earlier)


@PROCESSORS.defect("give a held lock to any client that asks", "at most one holder")
def _steal(bed: Bed) -> None:
    real = LockProcessor._over

    def over(self: LockProcessor, body: Any, wanted: Any, now: Any) -> Any:
        for queue in wanted:
            self._deadlines.ends[body.consumer_group, queue.topic, queue.queue_id] = 0
        return real(self, body, wanted, now)

    bed.put(LockProcessor, "_over", over)


@PROCESSORS.defect(
    "remove the fence of pulls and commits",
    "only the holder pulls and commits",
    STORMS["consumers"],
)
def _no_fence(bed: Bed) -> None:
    def judge(self: Fence, group: str, topic: str, queue: int, *_: Any, **__: Any) -> Verdict:
        lock = self._context.state.locks.get(group, topic, queue)
        return Verdict(epoch=0 if lock is None else lock.epoch)

    bed.put(Fence, "_judge", judge)


@PROCESSORS.defect(
    "accept an epoch of a deleted consumer group",
    "a new topic or group keeps nothing of a deleted one",
    {"recycled": True},
)
def _epochs_stay(bed: Bed) -> None:
    bed.put(Fence, "_judge_unordered", lambda self, *_: Verdict())


@PROCESSORS.defect("answer offset queries on a follower", "an answer is not older than its request")
def _follower_answers(bed: Bed) -> None:
    real = BrokerCore.__init__

    def init(self: BrokerCore, *arguments: Any) -> None:
        real(self, *arguments)
        self._follower_handlers[RequestCode.QUERY_CONSUMER_OFFSET] = self.committer.query

    bed.put(BrokerCore, "__init__", init)


@PROCESSORS.defect("hand over a queue without its parked keys", "a parked key stays held")
def _holds_untold(bed: Bed) -> None:
    real = locking._granted_body
    bed.put(locking, "_granted_body", lambda granted, held=(): real(granted))


@PROCESSORS.defect(
    "acknowledge a send when it is proposed", "an acknowledged message is on a majority"
)
def _answer_early(bed: Bed) -> None:
    real = Proposer.propose

    def propose(self: Proposer, group: Sequence[Propose]) -> None:
        context, now = self._core.context, self._clock.now()
        built = context.entries.build(group, now.wall_ms, context.ages.earliest_ms(now))
        real(self, group)
        records = decode_records(split_entry(built.data).meta)
        position = 0
        for proposal in group:
            mine = records[position : position + len(proposal.records)]
            position += len(proposal.records)
            if len(mine) == 1 and isinstance(mine[0], Append) and proposal.applied is not None:
                context.counters["answered early"] += 1
                self._submit(proposal.applied([mine[0]], now))
                proposal.applied = proposal.lost = None

    bed.put(Proposer, "propose", propose)


@PROCESSORS.defect(
    "answer a repeated send before the first one is stored", "acknowledged entries are committed"
)
def _repeat_early(bed: Bed) -> None:
    def repeat(
        self: SendProcessor, first: Any, again: Any, request: Any, peer: Any, *, timed: bool
    ) -> Any:
        topic = self._context.state.topics.by_name[request.ext["b"]]
        queue = topic.queue(int(request.ext["e"]))
        end, _ = self._context.entries._heads.get(queue, (queue.next_offset, 0))
        places = [Place(queue.queue_id, end - 1, 0)]
        return answer_places(self._context, places, {}, request, peer)

    bed.put(SendProcessor, "_answer_repeat", repeat)


@PROCESSORS.defect("assign offsets from the committed state", "each offset is assigned once")
def _offsets_of_the_past(bed: Bed) -> None:
    def proposed(self: EntryBuilder, built: Built) -> None:
        self.physical_next = built.physical_end

    bed.put(EntryBuilder, "proposed", proposed)


@PROCESSORS.defect(
    "keep the leader's view after a lost proposal", "the offset of a lost message is used again"
)
def _keep_view(bed: Bed) -> None:
    def lost(self: BrokerCore, reason: str) -> None:
        self.context.counters = Counter(self.context.counters)

    def become_leader(self: BrokerCore, term: int, physical_end: int, now: Any) -> Any:
        view = self.context.view
        effects = real(self, term, physical_end, now)
        self.context.view = view
        return effects

    def reset(self: EntryBuilder, physical_end: int) -> None:
        self.uncommitted = 0
        self.physical_next = max(self.physical_next, physical_end)

    real = BrokerCore.become_leader
    follower = BrokerCore.become_follower

    def become_follower(self: BrokerCore, leader_known: bool) -> Any:
        view = self.context.view
        effects = follower(self, leader_known)
        self.context.view = view
        return effects

    bed.put(EntryBuilder, "reset", reset)
    bed.put(BrokerCore, "proposals_lost", lost)
    bed.put(BrokerCore, "become_leader", become_leader)
    bed.put(BrokerCore, "become_follower", become_follower)


@PROCESSORS.defect(
    "identify a dead letter by the number of its try", "a dead letter is stored once"
)
def _dead_letter_by_try(bed: Bed) -> None:
    real_read = SendProcessor._read

    def read(self: SendProcessor, *arguments: Any) -> Any:
        draft, wait = real_read(self, *arguments)
        if draft.identity and arguments[-1] == "dead":
            times, said = draft.reconsume_times, draft.properties.by_name
            draft.identity = send_identity(
                draft.topic.id, draft.unique_key, times, draft.body_crc, said, None
            )
        return draft, wait

    bed.put(SendProcessor, "_read", read)
