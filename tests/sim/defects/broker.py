"""Defects of the state machine and of the processors."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from orderlymq_broker.core.effects import Propose
from orderlymq_broker.core.entrybuilder import Built, EntryBuilder
from orderlymq_broker.core.leaseclocks import LeaseClocks
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


@STATE.defect("keep the duplicate window out of the log", "one send, one copy")
def _no_window(bed: Bed) -> None:
    bed.put(DedupWindow, "add", lambda self, record, batch: None)


@STATE.defect(
    "let the newest leave the duplicate window",
    "the first result stands until the window has moved past it",
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
    "leave rows of a topic that is deleted",
    "nothing of a former life is in the next one",
    {"recycled": True},
)
def _rows_stay(bed: Bed) -> None:
    def drop_topic(self: OffsetTable, topic: str, writes: Any) -> None:
        for topics in self._groups.values():
            topics.pop(topic, None)

    bed.put(OffsetTable, "drop_topic", drop_topic)


@STATE.defect(
    "leave messages of a topic that is deleted in the store",
    "nothing of a former life is in the next one",
    {"recycled": True},
)
def _index_stays(bed: Bed) -> None:
    # The range is empty: it ends where it begins.
    bed.put(removals, "prefix_end", lambda prefix: prefix)


@STATE.defect(
    "let a commit of a former life count",
    "nothing of a former life is in the next one",
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
    "forget the epochs of a topic that is deleted",
    "an epoch names one holder",
    {"recycled": True},
)
def _epochs_fall(bed: Bed) -> None:
    real = LockTable._drop

    def drop(self: LockTable, group: str, topic: str, writes: Any) -> None:
        floor = self._floor
        real(self, group, topic, writes)
        self._floor = floor

    bed.put(LockTable, "_drop", drop)


@STATE.defect("keep the epoch when the holder changes", "an epoch names one holder")
def _same_epoch(bed: Bed) -> None:
    real = LockTable._set

    def keep(self: LockTable, lock: Lock, writes: Any) -> None:
        before = self._last(lock.group, lock.topic, lock.queue_id)
        if before is not None and before.epoch and lock.epoch > before.epoch:
            lock = msgspec.structs.replace(lock, epoch=before.epoch)
        real(self, lock, writes)

    bed.put(LockTable, "_set", keep)


@STATE.defect(
    "let anybody unlock",
    "only its holder gives a lock back",
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


@STATE.defect("let a commit move an offset back", "offsets of a group never fall")
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


@STATE.defect("use the own clock in apply", "equal logs, equal states")
def _own_clock(bed: Bed) -> None:
    real = ObservedMachine.apply

    def apply(self: ObservedMachine, index: int, term: int, parts: Any, batch: Any) -> Any:
        own = replace(parts, wall_ms=parts.wall_ms + self._replica.wall_offset_ms)
        return real(self, index, term, own, batch)

    bed.put(ObservedMachine, "apply", apply)


@PROCESSORS.defect(
    "delete a group whose members hold queues",
    "at most one holder",
    {"recycled": True},
)
def _delete_held(bed: Bed) -> None:
    def check_unused(self: GroupAdministration, group: str) -> None:
        pass

    bed.put(GroupAdministration, "_check_unused", check_unused)


@PROCESSORS.defect("end a lease early", "a lease is longer than needed, never shorter")
def _short_lease(bed: Bed) -> None:
    real = LeaseClocks.run

    def run(self: LeaseClocks[Any], key: Any, end_ms: int) -> None:
        is_lock = len(key) == 3  # group, topic, queue; lanes have more
        real(self, key, end_ms - 2_000 if is_lock else end_ms)

    bed.put(LeaseClocks, "run", run)


@PROCESSORS.defect("give a lock that is held to who asks", "at most one holder")
def _steal(bed: Bed) -> None:
    real = LockProcessor._over

    def over(self: LockProcessor, body: Any, wanted: Any, now: Any) -> Any:
        for queue in wanted:
            self._clocks.ends[body.consumer_group, queue.topic, queue.queue_id] = 0
        return real(self, body, wanted, now)

    bed.put(LockProcessor, "_over", over)


@PROCESSORS.defect(
    "drop the fence",
    "only the holder pulls and commits",
    STORMS["consumers"],
)
def _no_fence(bed: Bed) -> None:
    def judge(self: Fence, group: str, topic: str, queue: int, *_: Any, **__: Any) -> Verdict:
        lock = self._context.state.locks.get(group, topic, queue)
        return Verdict(epoch=0 if lock is None else lock.epoch)

    bed.put(Fence, "_judge", judge)


@PROCESSORS.defect(
    "let an epoch outlive its group",
    "nothing of a former life is in the next one",
    {"recycled": True},
)
def _epochs_stay(bed: Bed) -> None:
    bed.put(Fence, "_judge_unordered", lambda self, *_: Verdict())


@PROCESSORS.defect("answer an offset as a follower", "an answer is the truth of the group")
def _follower_answers(bed: Bed) -> None:
    real = BrokerCore.__init__

    def init(self: BrokerCore, *arguments: Any) -> None:
        real(self, *arguments)
        self._follower_handlers[RequestCode.QUERY_CONSUMER_OFFSET] = self.committer.query

    bed.put(BrokerCore, "__init__", init)


@PROCESSORS.defect("give a queue away without its parked keys", "a parked key stays held")
def _holds_untold(bed: Bed) -> None:
    real = locking._granted_body
    bed.put(locking, "_granted_body", lambda granted, held=(): real(granted))


@PROCESSORS.defect("acknowledge when proposed", "an acknowledged message is on a majority")
def _answer_early(bed: Bed) -> None:
    real = Proposer.propose

    def propose(self: Proposer, group: Sequence[Propose]) -> None:
        context, now = self._core.context, self._clock.now()
        built = context.entries.build(group, now.wall_ms)
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


@PROCESSORS.defect("answer a repeat before the first is stored", "acknowledged is committed")
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


@PROCESSORS.defect("give offsets from what is committed", "offsets are given once")
def _offsets_of_the_past(bed: Bed) -> None:
    def proposed(self: EntryBuilder, built: Built) -> None:
        self.physical_next = built.physical_end

    bed.put(EntryBuilder, "proposed", proposed)


@PROCESSORS.defect("keep the view after a lost proposal", "offsets of a lost message are void")
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


@PROCESSORS.defect("count a dead letter by its try", "a dead letter is stored once")
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
