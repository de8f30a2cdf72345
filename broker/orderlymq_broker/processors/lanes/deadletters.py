"""
Dead letters of lanes: messages that failed as often as their group allows, or that an administrator skips.

The rules: a lane waits until its dead letter is stored. Letter and progress are one proposal, so a crash repeats both
or neither. A letter that the duplicate window knows is stored once. The letters have the form of
``schedule/deadletters.py``, and are redriven like any others.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from orderlymq_broker.core.capacity import waiting_end
from orderlymq_broker.core.effects import Effect, Now, Propose, Refusal
from orderlymq_broker.core.longwalks import WALK_STEP_MAX
from orderlymq_broker.core.messagedraft import MessageDraft
from orderlymq_broker.core.requestcontext import Context, CreateFirst, RequestRefused
from orderlymq_broker.processors.lanes.scan import messages_at, physical_at
from orderlymq_broker.processors.schedule.deadletters import target_topic
from orderlymq_broker.processors.schedule.delaylevels import SIZE_MAX
from orderlymq_broker.processors.schedule.retries import copy_of_failed, find_copy, own_identity
from orderlymq_broker.state.lanes.lane import Lane, LaneState
from orderlymq_broker.state.lanes.lanerecords import LaneDeadLettered, LanesExpired
from orderlymq_broker.state.lanes.queue import LaneQueue
from orderlymq_broker.state.records import Outcome, Record
from orderlymq_protocol.message.record import decode_record
from orderlymq_protocol.names import dlq_topic

# Letters per tick; there are ten ticks per second. The bytes of large letters are limited as for the delay levels.
LETTERS_MAX: Final = 64

_Key = tuple[str, str, int, int]


class DeadLetterService:
    """Stores the dead letters that lanes wait for."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._under_way: set[_Key] = set()
        # The lanes that the next tick looks at first, so that refused letters do not hold up others.
        self._walk = self._dead_lettering()

    def stop(self) -> None:
        """Stop leading; another leader stores the remaining letters."""
        self._under_way = set()

    def tick(self) -> list[Effect]:
        """Propose the letters that are not proposed yet."""
        end = waiting_end(self._context)
        if not end:
            return []
        effects: list[Effect] = []
        size = 0
        for queue, lane in islice(self._looked_at(), LETTERS_MAX):
            if self._context.disk_full and self._physical(queue, lane) >= end:
                continue
            try:
                letter = self._letter(queue, lane)
            except RequestRefused:
                continue  # the group's name is too long: the group was created by key before such names were refused
            except CreateFirst as first:
                # A later tick stores the letter, into the topic that exists by then.
                return [*effects, Propose(first.records)]
            effects.append(letter)
            size += sum(len(each.body) for each in letter.records if type(each) is MessageDraft)
            if size >= SIZE_MAX:
                break

        return effects

    def _dead_lettering(self) -> Iterator[tuple[LaneQueue, int]]:
        """Yield all lanes that wait for a letter, by their numbers."""
        for queue in list(self._context.state.lanes.having[LaneState.DEAD_LETTERING].values()):
            for number in list(queue.by_state[LaneState.DEAD_LETTERING]):
                yield queue, number

    def _looked_at(self) -> Iterator[tuple[LaneQueue, Lane]]:
        """Yield lanes whose letter is not proposed yet, from where the last tick ended."""
        lanes = self._context.state.lanes
        looked = 0
        for _ in range(2):
            for queue, number in self._walk:
                looked += 1
                lane = queue.lanes.get(number)
                if (
                    lane is not None
                    and lane.state == LaneState.DEAD_LETTERING
                    and lanes.having[LaneState.DEAD_LETTERING].get(queue.place) is queue
                    and (*queue.place, number) not in self._under_way
                ):
                    yield queue, lane
                if looked >= WALK_STEP_MAX:
                    return
            self._walk = self._dead_lettering()

    def _physical(self, queue: LaneQueue, lane: Lane) -> int:
        """Return the physical offset of the message of a letter, or 0 if the message is gone."""
        _, name, queue_id = queue.place
        stored = self._context.state.topics.by_name[name].queue(queue_id)

        return physical_at(self._context.reader, stored, lane.first) or 0

    def _letter(self, queue: LaneQueue, lane: Lane) -> Propose:
        context = self._context
        group, name, queue_id = queue.place
        target = target_topic(context, dlq_topic(group))
        records: list[Record | MessageDraft] = []
        topic = context.state.topics.by_name[name]
        (stored,) = messages_at(context.reader, topic.queue(queue_id), (lane.first,))
        if stored is not None:
            message = decode_record(stored)
            draft = copy_of_failed(context, message, target, 0)
            draft.reconsume_times = lane.tries
            if find_copy(context, draft, own_identity(draft, message)) is None:
                records.append(draft)
        if not records:
            # After another proposal's refused record, the machine would take this record for the end of that letter
            # and skip it.
            records.append(LanesExpired(group, ()))
        records.append(LaneDeadLettered(group, name, queue_id, lane.number, lane.first))
        key = (*queue.place, lane.number)
        # The set belongs to this term: a lost letter of a former term must not change the next term's set.
        under_way = self._under_way
        under_way.add(key)

        def applied(_: Sequence[Outcome], __: Now) -> list[Effect]:
            under_way.discard(key)
            return []

        def lost(_: Refusal | None) -> list[Effect]:
            under_way.discard(key)
            return []

        return Propose(records, applied, lost)
