"""Defects of the state machine and of the processors."""

from collections import Counter
from dataclasses import replace
from typing import Any

import msgspec

from orderlymq_broker.processors import locking
from orderlymq_broker.processors.committing import Committer
from orderlymq_broker.processors.context import answer
from orderlymq_broker.processors.core import BrokerCore
from orderlymq_broker.processors.fencing import Fence, Verdict
from orderlymq_broker.processors.locking import LockProcessor
from orderlymq_broker.processors.sending import SendProcessor
from orderlymq_broker.processors.view import Head, LeaderView
from orderlymq_broker.state.dedup import DedupWindow, send_identity
from orderlymq_broker.state.locks import Lock, LockTable
from orderlymq_broker.state.offsets import OffsetTable
from orderlymq_broker.state.records import Commit, LocksReleased
from orderlymq_protocol.codes import RequestCode
from tests.sim.defects.planting import Bed, Catalogue
from tests.sim.replica import ObservedMachine

STATE = Catalogue("state machine")
PROCESSORS = Catalogue("processors")


@STATE.defect("keep the duplicate window out of the log", "one send, one copy")
def _no_window(bed: Bed) -> None:
    bed.put(DedupWindow, "add", lambda self, record, batch: None)


@STATE.defect("keep the epoch when the holder changes", "an epoch names one holder")
def _same_epoch(bed: Bed) -> None:
    real = LockTable._set

    def keep(self: LockTable, lock: Lock, writes: Any) -> None:
        before = self._groups[lock.group].get((lock.topic, lock.queue_id))
        if before is not None and before.epoch and lock.epoch > before.epoch:
            lock = msgspec.structs.replace(lock, epoch=before.epoch)
        real(self, lock, writes)

    bed.put(LockTable, "_set", keep)


@STATE.defect("let anybody unlock", "only its holder gives a lock back")
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

    def commit(self: OffsetTable, commits: Any, locks: Any, writes: Any) -> Any:
        moved = real(self, commits, locks, writes)
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


@PROCESSORS.defect("end a lease early", "a lease is longer than needed, never shorter")
def _short_lease(bed: Bed) -> None:
    real = LockProcessor._run

    def run(self: LockProcessor, key: Any, end_ms: int) -> None:
        real(self, key, end_ms - 2_000)

    bed.put(LockProcessor, "_run", run)


@PROCESSORS.defect("give a lock that is held to who asks", "at most one holder")
def _steal(bed: Bed) -> None:
    real = LockProcessor._over

    def over(self: LockProcessor, body: Any, wanted: Any, now: Any) -> Any:
        for queue in wanted:
            self._ends[body.consumer_group, queue.topic, queue.queue_id] = 0
        return real(self, body, wanted, now)

    bed.put(LockProcessor, "_over", over)


@PROCESSORS.defect("drop the fence", "only the holder pulls and commits")
def _no_fence(bed: Bed) -> None:
    def judge(self: Fence, group: str, topic: str, queue: int, *_: Any, **__: Any) -> Verdict:
        lock = self._context.state.locks.get(group, topic, queue)
        return Verdict(epoch=0 if lock is None else lock.epoch)

    bed.put(Fence, "_judge", judge)


@PROCESSORS.defect("answer an offset as a follower", "an answer is the truth of the group")
def _follower_answers(bed: Bed) -> None:
    real = BrokerCore.__init__

    def init(self: BrokerCore, *arguments: Any) -> None:
        real(self, *arguments)
        self._follower_handlers[RequestCode.QUERY_CONSUMER_OFFSET] = self.committer.query

    bed.put(BrokerCore, "__init__", init)


@PROCESSORS.defect("give a queue away without its held keys", "a held key stays held")
def _holds_untold(bed: Bed) -> None:
    real = locking._granted_body
    bed.put(locking, "_granted_body", lambda granted, held=(): real(granted))


@PROCESSORS.defect("acknowledge when proposed", "an acknowledged message is on a majority")
def _answer_early(bed: Bed) -> None:
    real = SendProcessor._propose

    def propose(self: SendProcessor, records: Any, messages: Any, ext: Any, *rest: Any) -> Any:
        request, peer = rest[0], rest[1]
        self._context.counters["answered early"] += 1
        early = answer(request, peer, ext=ext)
        proposal = real(self, records, messages, ext, *rest)
        self._early = early  # type: ignore[attr-defined]  # only here
        return proposal

    real_send = SendProcessor.send

    def send(self: SendProcessor, *arguments: Any) -> Any:
        self._early = []  # type: ignore[attr-defined]  # only here
        effects = real_send(self, *arguments)
        return [*self._early, *effects]  # type: ignore[attr-defined]  # only here

    bed.put(SendProcessor, "_propose", propose)
    bed.put(SendProcessor, "send", send)


@PROCESSORS.defect("answer a repeat before the first is stored", "acknowledged is committed")
def _repeat_early(bed: Bed) -> None:
    def repeat(self: SendProcessor, places: Any, _: Any, request: Any, peer: Any) -> Any:
        return answer(request, peer, ext=self._ext(places))

    bed.put(SendProcessor, "_answer_repeat", repeat)


@PROCESSORS.defect("give offsets from what is committed", "offsets are given once")
def _offsets_of_the_past(bed: Bed) -> None:
    bed.put(LeaderView, "head", lambda self, queue: Head(queue.next_offset, queue.last_timestamp))


@PROCESSORS.defect("keep the view after a lost proposal", "offsets of a lost message are void")
def _keep_view(bed: Bed) -> None:
    def lost(self: BrokerCore, reason: str) -> None:
        self.context.counters = Counter(self.context.counters)

    def become_leader(self: BrokerCore, term: int, physical_end: int, now: Any) -> Any:
        view = self.context.view
        effects = real(self, term, physical_end, now)
        view.next_physical = max(view.next_physical, physical_end)
        self.context.view = view
        return effects

    real = BrokerCore.become_leader
    follower = BrokerCore.become_follower

    def become_follower(self: BrokerCore, leader_known: bool) -> Any:
        view = self.context.view
        effects = follower(self, leader_known)
        self.context.view = view
        return effects

    bed.put(BrokerCore, "proposals_lost", lost)
    bed.put(BrokerCore, "become_leader", become_leader)
    bed.put(BrokerCore, "become_follower", become_follower)


@PROCESSORS.defect("count a dead letter by its try", "a dead letter is stored once")
def _dead_letter_by_try(bed: Bed) -> None:
    real_complete = SendProcessor._complete

    def complete(self: SendProcessor, draft: Any, *arguments: Any, **named: Any) -> Any:
        level = real_complete(self, draft, *arguments, **named)
        if draft.identity and named.get("dead"):
            draft.identity = send_identity(
                draft.topic.id, draft.unique_key, draft.reconsume_times, draft.body_crc
            )
        return level

    bed.put(SendProcessor, "_complete", complete)
