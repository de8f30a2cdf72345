"""
Administrators' requests about lanes: code 20514, and the release of a key (20511) in a group by key.

The rules: an answer shows a limited number of lanes, those in trouble first; lanes that are not shown are counted.
Lists are written a few queues at a time, because a group may have begun a hundred thousand queues.
"""

from collections.abc import Iterator, Sequence
from heapq import nsmallest
from itertools import chain, islice
from operator import itemgetter
from typing import Any, Final, NamedTuple

from orderlymq_broker.core.effects import Caller, Effect, Now
from orderlymq_broker.core.listings import array
from orderlymq_broker.core.requestcontext import Context, RequestRefused, answer
from orderlymq_broker.core.responses import (
    answer_list,
    answer_when_applied,
    raise_unknown_group,
)
from orderlymq_broker.processors.groups.offsets import offsets_room
from orderlymq_broker.processors.groups.parkedkeys import expected_place
from orderlymq_broker.processors.lanes.planner import (
    LANE_OFFSETS_MAX,
    OFFSETS_FULL,
    lanes_max,
    why_limited,
)
from orderlymq_broker.processors.lanes.scan import lane_key, physical_at
from orderlymq_broker.state.broker import BrokerState
from orderlymq_broker.state.lanes.lane import Lane, LaneState
from orderlymq_broker.state.lanes.lanerecords import LaneFreed, LanesMoved
from orderlymq_broker.state.lanes.queue import LaneQueue
from orderlymq_broker.state.records import Outcome
from orderlymq_broker.state.topics.queues import Queue
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body import lanes as wire
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.header.lanes import LanesHeader
from orderlymq_protocol.message.properties import SHARDING_KEY
from orderlymq_protocol.names import retry_topic

# Lanes that one answer names; while a list is written, more are kept and then reduced to the first of them.
SHOWN_MAX: Final = 256
_KEPT_MAX: Final = 4 * SHOWN_MAX
RETRY: Final = "retry"
SKIP: Final = "skip"

NAMES: Final = {
    LaneState.READY: "ready",
    LaneState.IN_HAND: "inHand",
    LaneState.PARKED: "parked",
    LaneState.HELD: "held",
    LaneState.DEAD_LETTERING: "deadLettering",
}
# States of lanes whose messages wait for a time or for an administrator.
WAITING: Final = (LaneState.HELD, LaneState.DEAD_LETTERING, LaneState.PARKED)
# The order in which lanes are shown: those in trouble first.
_ORDER: Final = (*WAITING, LaneState.IN_HAND)


class Stand(NamedTuple):
    """The position of the work on a queue: the first message that could be handed out, and the last lane number given."""

    offset: int
    serial: int = 0


def lane_stand(state: BrokerState, group: str, topic: str, queue_id: int) -> Stand | None:
    """Return the position of a group by key in a queue, or None if its committed offset is the position.

    A lane that is held, parked or in hand keeps the committed offset back although work on the queue continues.
    """
    config = state.groups.get(group)
    queue = state.lanes.queues_of(group, topic).get(queue_id)
    if config is None or not config.by_key or queue is None or queue.stopping:
        return None
    ready = (lane.first for lane in queue.in_state(LaneState.READY))

    return Stand(min(ready, default=queue.scanned), queue.serial)


def lane_backlog(state: BrokerState, group: str, topic: str, queue: Queue) -> int | None:
    """Return how many messages of a queue a group by key has not consumed, or None if its committed offset tells that."""
    config = state.groups.get(group)
    lanes = state.lanes.queues_of(group, topic).get(queue.queue_id)
    if config is None or not config.by_key or lanes is None:
        return None

    return lanes.owed + queue.next_offset - max(lanes.scanned, queue.min_offset)


class LaneOverview:
    """Shows lanes and releases them."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def lanes(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 20514: show the lanes of a group."""
        header = LanesHeader.from_ext(request.ext)
        group = header.consumer_group
        raise_unknown_group(self._context, group)
        config = self._context.state.groups.get(group)
        key = lane_key(header.key or "")
        by_rank: list[tuple[int, int, wire.LaneShown]] = []

        def rows() -> Iterator[wire.QueueLanes | None]:
            nonlocal by_rank
            lanes = self._context.state.lanes
            count, most = lanes.count_of(group), lanes_max(lanes, group)
            for queue in self._queues(group, header.topic):
                yield self._queue(queue, count, most)
                for lane in _of_key(queue, key) if key else _in_trouble(queue):
                    by_rank.append((_rank(lane), lane.since_ms, self._shown(queue, lane)))
                    yield None
                if len(by_rank) > _KEPT_MAX:
                    by_rank = _first(by_rank)
            yield from self._kept_out(group, header.topic)

        def end() -> dict[str, Any]:
            table = wire.LaneTable(
                wire.BY_QUEUE if config is None else config.concurrency,
                lanes=tuple(shown for *_, shown in _first(by_rank)),
                lane_key_property=SHARDING_KEY if config is None else config.lane_key_property,
            ).to_json_value()
            del table["queues"]
            return table

        return answer_list(self._context, request, caller, array("queues", rows(), end))

    def release(self, request: RemotingCommand, caller: Caller, now: Now) -> list[Effect]:
        """Serve 20511 for a group by key: hand the lanes of a key out again, or skip the failed messages."""
        ext = request.ext
        action = ext.get("action") or RETRY
        if action not in (RETRY, SKIP):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"action {action[:32]!r} is neither {RETRY} nor {SKIP}"
            )
        group, topic = ext.get("consumerGroup", ""), ext.get("topic", "")
        key = lane_key(ext.get("key", ""))
        record = LaneFreed(group, topic, key, action == SKIP, *expected_place(ext))

        def applied(outcomes: Sequence[Outcome], _: Now) -> list[Effect]:
            outcome = outcomes[0]
            freed = outcome.freed if isinstance(outcome, LanesMoved) else ()
            rows = [self._held(topic, *each) for each in freed]
            self._context.counters["lanes_freed"] += len(freed)
            return answer(request, caller, body=fastjson.dumps({"parkedKeys": rows}))

        return answer_when_applied(request, caller, [record], then=applied)

    def held(self, group: str) -> Iterator[dict[str, Any] | None]:
        """Yield the held lanes of a group in the form of its parked keys, and a None for each queue."""
        for queue in self._queues(group):
            yield None
            for lane in list(queue.in_state(LaneState.HELD)):
                yield self._held(queue.place[1], queue.place[2], lane)

    def owed(self) -> Iterator[int | None]:
        """Yield, for each queue of each group, the physical offset of the oldest message that lanes owe, or None."""
        topics = self._context.state.topics.by_name
        for queue in self._context.state.lanes.all():
            topic = topics.get(queue.place[1]) if queue.owed else None
            stored = None if topic is None else topic.queues.get(queue.place[2])
            if stored is None:
                yield None
            else:
                yield physical_at(self._context.reader, stored, queue.low_water())

    # -- parts -------------------------------------------------------------------------------------

    def _queues(self, group: str, only: str | None = None) -> Iterator[LaneQueue]:
        """Yield the queues of a group, or of one of its topics, in order; queues may be added or deleted meanwhile."""
        lanes = self._context.state.lanes
        for topic in [only] if only else lanes.topics_of(group):
            queues = lanes.queues_of(group, topic)
            yield from (queues[queue_id] for queue_id in sorted(queues))

    def _kept_out(self, group: str, only: str | None) -> Iterator[wire.QueueLanes | None]:
        """Yield the queues that members want but that cannot begin, because there is no room for their offsets."""
        context = self._context
        state = context.state
        config = state.groups.get(group)
        if config is None or not config.by_key or offsets_room(context, LANE_OFFSETS_MAX) > 0:
            return
        for name in sorted(state.members.subscriptions(group)):
            topic = state.topics.by_name.get(name)
            if topic is None or only not in (None, name) or name == retry_topic(group):
                continue
            for queue_id in range(topic.queue_count):
                has_begun = queue_id in state.lanes.queues_of(group, name)
                if has_begun or state.offsets.get(group, name, queue_id) is not None:
                    yield None
                    continue
                place = (name, context.settings.group, queue_id)
                yield wire.QueueLanes(*place, 0, 0, 0, 0, 0, 0, 0, limited=OFFSETS_FULL)

    def _queue(self, queue: LaneQueue, lanes: int, most: int) -> wire.QueueLanes:
        counts = {state: len(numbers) for state, numbers in queue.by_state.items()}
        _, topic, queue_id = queue.place

        return wire.QueueLanes(
            topic,
            self._context.settings.group,
            queue_id,
            queue.scanned,
            queue.low_water(),
            queue.owed,
            counts[LaneState.IN_HAND],
            counts[LaneState.READY],
            counts[LaneState.PARKED],
            counts[LaneState.HELD],
            counts[LaneState.DEAD_LETTERING],
            why_limited(queue, lanes, most),
        )

    def _shown(self, queue: LaneQueue, lane: Lane) -> wire.LaneShown:
        return wire.LaneShown(
            queue.place[1],
            self._context.settings.group,
            queue.place[2],
            lane.number,
            lane.key,
            NAMES[lane.state],
            lane.first,
            lane.owed,
            lane.tries,
            lane.since_ms,
            lane.due_ms if lane.state == LaneState.PARKED else 0,
            lane.reason,
            lane.holder if lane.state == LaneState.IN_HAND else "",
        )

    def _held(self, topic: str, queue_id: int, lane: Lane) -> dict[str, Any]:
        return {
            "topic": topic,
            "brokerName": self._context.settings.group,
            "queueId": queue_id,
            "key": lane.key,
            "sinceMillis": lane.since_ms,
            "firstOffset": lane.first,
            "firstMessageId": "",
            "behind": max(0, lane.owed - 1),
        }


def _of_key(queue: LaneQueue, key: str) -> list[Lane]:
    """Return the lane of a key in any state but idle."""
    lane = queue.of_key(key)

    return [] if lane is None else [lane]


def _rank(lane: Lane) -> int:
    """Return the rank by which a lane is listed; a lane that stops a queue comes first in any state."""
    return -1 if lane.stops else (*_ORDER, LaneState.READY).index(lane.state)


def _first(
    by_rank: list[tuple[int, int, wire.LaneShown]],
) -> list[tuple[int, int, wire.LaneShown]]:
    """Return the lanes that one answer names, the oldest of each rank first."""
    return nsmallest(SHOWN_MAX, by_rank, key=itemgetter(0, 1))


def _in_trouble(queue: LaneQueue) -> list[Lane]:
    """Return the lanes of a queue that one answer may name."""
    stopping = queue.in_state(LaneState.READY) if queue.stopping else ()
    lanes = chain(
        (lane for lane in stopping if lane.stops),
        *(queue.in_state(state) for state in _ORDER),
    )

    return list(islice(lanes, SHOWN_MAX))
