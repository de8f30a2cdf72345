"""
Requests of administrators about lanes: code 20514, and the release of a key (20511) in a group by key.

The rule: what is shown is bounded, the lanes in trouble first; what is not shown is counted.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from orderlymq_broker.core.effects import Effect, Now, Peer
from orderlymq_broker.core.requestcontext import Context, RequestRefused, answer
from orderlymq_broker.core.responses import answer_when_applied, raise_unknown_group
from orderlymq_broker.processors.groups.parkedkeys import expected_place
from orderlymq_broker.processors.lanes.planner import why_limited
from orderlymq_broker.processors.lanes.scan import lane_key, physical_at
from orderlymq_broker.state.broker import BrokerState
from orderlymq_broker.state.lanes.lane import Lane, LaneState
from orderlymq_broker.state.lanes.lanerecords import LaneFreed, LanesMoved
from orderlymq_broker.state.lanes.queue import LaneQueue
from orderlymq_broker.state.records import Outcome
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body import lanes as wire
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.header.lanes import LanesHeader
from orderlymq_protocol.message.properties import SHARDING_KEY

# Lanes that one answer names.
SHOWN_MAX: Final = 256
RETRY: Final = "retry"
SKIP: Final = "skip"

NAMES: Final = {
    LaneState.READY: "ready",
    LaneState.IN_HAND: "inHand",
    LaneState.PARKED: "parked",
    LaneState.HELD: "held",
    LaneState.DYING: "dying",
}
# Lanes whose messages wait for a time or for an administrator.
WAITING: Final = (LaneState.HELD, LaneState.DYING, LaneState.PARKED)
# In trouble first.
_ORDER: Final = (*WAITING, LaneState.IN_HAND)


class Stand(NamedTuple):
    """Where the work on a queue stands: the first message that could be handed out, and the last number given."""

    offset: int
    serial: int = 0


def lane_stand(state: BrokerState, group: str, topic: str, queue_id: int) -> Stand | None:
    """Return where a group by key stands in a queue, None where its committed offset says that.

    A lane that is held, parked or in hand keeps the committed offset, and the queue goes on all the same.
    """
    config = state.groups.get(group)
    queue = state.lanes.queues_of(group, topic).get(queue_id)
    if config is None or not config.by_key or queue is None or queue.stopping:
        return None
    ready = (lane.first for lane in queue.in_state(LaneState.READY))

    return Stand(min(ready, default=queue.scanned), queue.serial)


class LaneOverview:
    """Shows lanes and releases them."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def lanes(self, request: RemotingCommand, peer: Peer, now: Now) -> list[Effect]:
        """Serve 20514."""
        header = LanesHeader.from_ext(request.ext)
        group = header.consumer_group
        raise_unknown_group(self._context, group)
        config = self._context.state.groups.get(group)
        queues = [
            queue
            for queue in self._context.state.lanes.of_group(group)
            if header.topic in (None, "", queue.place[1])
        ]
        queues.sort(key=lambda queue: queue.place)
        if header.key:
            shown = _of_key(queues, header.key)
        else:
            shown = sorted(
                ((queue, lane) for queue in queues for lane in _in_trouble(queue)),
                key=lambda pair: (_rank(pair[1]), pair[1].since_ms),
            )
        count = self._context.state.lanes.count_of(group)
        table = wire.LaneTable(
            wire.BY_QUEUE if config is None else config.concurrency,
            tuple(self._queue(queue, count) for queue in queues),
            tuple(self._shown(queue, lane) for queue, lane in shown[:SHOWN_MAX]),
            SHARDING_KEY if config is None else config.lane_key_property,
        )

        return answer(request, peer, body=table.to_json())

    def release(self, request: RemotingCommand, peer: Peer, now: Now) -> list[Effect]:
        """Serve 20511 for a group by key: hand the lanes of a key out again, or skip what failed."""
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
            return answer(request, peer, body=fastjson.dumps({"parkedKeys": rows}))

        return answer_when_applied(request, peer, [record], then=applied)

    def held(self, group: str) -> list[dict[str, Any]]:
        """Return the held lanes of a group in the form of its parked keys."""
        return [
            self._held(queue.place[1], queue.place[2], lane)
            for queue in self._context.state.lanes.of_group(group)
            for lane in queue.in_state(LaneState.HELD)
        ]

    def owed(self) -> Iterator[int | None]:
        """Yield the physical offset of the oldest message that lanes owe in each queue of each group, None where none is owed."""
        topics = self._context.state.topics.by_name
        for queue in self._context.state.lanes.all():
            topic = topics.get(queue.place[1]) if queue.owed else None
            stored = None if topic is None else topic.queues.get(queue.place[2])
            if stored is None:
                yield None
            else:
                yield physical_at(self._context.reader, stored, queue.low_water())

    # -- parts -------------------------------------------------------------------------------------

    def _queue(self, queue: LaneQueue, lanes: int) -> wire.QueueLanes:
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
            counts[LaneState.DYING],
            why_limited(queue, lanes),
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


def _of_key(queues: Iterable[LaneQueue], key: str) -> list[tuple[LaneQueue, Lane]]:
    """Return the lanes of a key that are not idle, whatever they do."""
    known_by = lane_key(key)

    return [(queue, lane) for queue in queues if (lane := queue.of_key(known_by)) is not None]


def _rank(lane: Lane) -> int:
    """Return how early a lane is named; what stops a queue, in whatever state, before all others."""
    return -1 if lane.stops else _ORDER.index(lane.state)


def _in_trouble(queue: LaneQueue) -> Iterator[Lane]:
    """Yield the lanes of a queue that one answer may name."""
    left = SHOWN_MAX
    stopping = queue.in_state(LaneState.READY) if queue.stopping else ()
    yield from islice((lane for lane in stopping if lane.stops), left)
    for state in _ORDER:
        for lane in queue.in_state(state):
            if left == 0:
                return
            left -= 1
            yield lane
